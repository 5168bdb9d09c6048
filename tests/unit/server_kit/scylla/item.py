"""The example table of the log's rules, its statements in short, and its log rows as people read them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.images import read_images
from server_kit.scylla.log_rows import Change, LogRow, changes_of
from server_kit.scylla.mutations import mutations
from server_kit.scylla.schemas import log_columns
from server_kit.scylla.statements import Batch, Statement
from server_kit.scylla.tables import CdcOptions, Column, Table
from server_kit.scylla.values import CqlType, Native, unpack_elements, unpack_pairs, unpack_parts

INT, TEXT = CqlType("int"), CqlType("text")
ADDRESS = CqlType("udt", (TEXT, TEXT), fields=("street", "city"), udt_name="address")

T = 1_700_000_000_000_000
NOW = T // 1_000_000

ITEM = Table(
    "shop",
    "item",
    (Column("shop", INT),),
    (Column("sku", INT),),
    (Column("owner", TEXT),),
    (Column("name", TEXT), Column("qty", INT)),
)
"""shop.item (shop int, sku int, name text, qty int, owner text static, PRIMARY KEY (shop, sku))"""

THINGS = Table(
    "shop",
    "things",
    (Column("id", INT),),
    (Column("part", INT),),
    (Column("labels", CqlType("set", (TEXT,))),),
    (
        Column("tags", CqlType("set", (TEXT,))),
        Column("attr", CqlType("map", (TEXT, INT))),
        Column("log", CqlType("list", (INT,))),
        Column("addr", ADDRESS),
        Column("qty", INT),
    ),
)
"""A table of collections and a user-defined type that aren't frozen."""

PAIRS = Table(
    "shop", "pairs", (Column("id", INT),), (Column("a", INT), Column("b", INT)), (), (Column("v", INT),)
)
"""Two clustering columns."""


def i(number: int) -> bytes:
    return struct.pack(">i", number)


def t(text: str) -> bytes:
    return text.encode()


def descending(table: Table) -> Table:
    return replace(table, descending=frozenset({table.clustering[0].name}))


@dataclass
class Server:
    """Executes statements on one table, and remembers what was logged."""

    table: Table
    base: BaseTable = field(init=False)

    def __post_init__(self) -> None:
        self.base = BaseTable(self.table)

    def execute(self, *statements: Statement, at: int = T, now: int = NOW) -> list[Change]:
        """Execute one request: several statements are a batch. What has no timestamp gets ``at``."""
        timed = [
            s if s.timestamp is not None else replace(s, timestamp=at) for s in Batch(statements).statements
        ]
        logged = []
        made = mutations(self.base, timed, now)
        for mutation in made:
            logged += changes_of(mutation, read_images(self.base, mutation, now))
        for mutation in made:
            self.base.apply(mutation)
        return logged

    def rows(self, *statements: Statement, at: int = T, now: int = NOW) -> list[dict[str, Any]]:
        """Execute a request that is one change, and show its rows."""
        (change,) = self.execute(*statements, at=at, now=now)
        assert change.time == at
        return self.shown(change)

    def shown(self, change: Change) -> list[dict[str, Any]]:
        """Show a change's rows: what isn't null, ``op`` first, ``eob`` on the last, ``del_`` for deleted."""
        return [self._show(row) for row in change.rows]

    def _show(self, row: LogRow) -> dict[str, Any]:
        types = dict(log_columns(self.table))
        found: dict[str, Any] = {"op": row.operation}
        if row.ttl is not None:
            found["ttl"] = row.ttl
        if row.end_of_batch:
            found["eob"] = True
        for column, value in zip(self.table.clustering, row.clustering, strict=False):
            found[column.name] = decoded(column.type, value)
        found.update({name: decoded(types[name], value) for name, value in row.values.items()})
        found.update({f"del_{name}": True for name in row.deleted})
        for name, value in row.deleted_elements.items():
            found[f"gone_{name}"] = decoded(types[f"cdc$deleted_elements_{name}"], value)
        return found


def server(table: Table = ITEM, **options: Any) -> Server:
    return Server(replace(table, cdc=CdcOptions(**options)))


def decoded(cql_type: CqlType, value: Native) -> Any:
    if value is None:
        return None
    name, inside = cql_type.name, cql_type.parameters
    match name:
        case "int" | "smallint":
            return int.from_bytes(value, "big", signed=True)
        case "text":
            return value.decode()
        case "set":
            return [decoded(inside[0], element) for element in unpack_elements(value)]
        case "map":
            return {decoded(inside[0], k): decoded(inside[1], v) for k, v in unpack_pairs(value)}
        case "udt":
            return tuple(decoded(p, v) for p, v in zip(inside, unpack_parts(value), strict=True))
    return value
