"""Tables of random shapes and random statements on them, seeded; values are native bytes of any kind.

Statements of every form that CQL has for writes: inserts, updates, deletes of columns, elements, rows, ranges
and partitions, additions to and removals from collections, fields of user-defined types, batches, conditional
inserts; write times that go back and forth; TTLs that are long or already short.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import to_cql
from tests.chance import draw
from tests.unit.sources.cql.cql_values import SCALARS, types, values

Statement = tuple[str, list[bytes | None]]

_BASE_US = 1_700_000_000_000_000
_VALUES_EACH = 6


@dataclass
class RandomColumn:
    """A column with values to draw from; ``parts`` are those of its elements or fields."""

    name: str
    kind: CqlType
    pool: list[bytes]
    parts: list[list[bytes]] = field(default_factory=list)


@dataclass
class RandomTable:
    """A table of random shape."""

    name: str
    partition: list[RandomColumn]
    clustering: list[RandomColumn]
    statics: list[RandomColumn]
    regular: list[RandomColumn]
    orders: list[str]
    fields: Mapping[str, Sequence[str]]

    def create(self) -> str:
        """Return the statement that makes it."""
        columns = [f"{c.name} {to_cql(c.kind)}" for c in (*self.partition, *self.clustering, *self.regular)]
        columns += [f"{c.name} {to_cql(c.kind)} static" for c in self.statics]
        key = f"({', '.join(c.name for c in self.partition)})"
        key = ", ".join([key, *(c.name for c in self.clustering)])
        order = ", ".join(f"{c.name} {o}" for c, o in zip(self.clustering, self.orders, strict=True))
        ordered = f" AND CLUSTERING ORDER BY ({order})" if order else ""
        return (
            f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY ({key})) WITH cdc = true{ordered}"
        )


def _is_built_in(kind: CqlType) -> bool:
    return kind.name != "udt" and all(map(_is_built_in, kind.parameters))


def draw_table(rng: random.Random, name: str, udt: str) -> RandomTable:
    """Draw the shape of a table.

    Args:
        rng: Where chance comes from.
        name: ``keyspace.table``.
        udt: A type of the fields ``x int, y text, z frozen<list<int>>``.
    """
    fields = (CqlType("int"), CqlType("text"), CqlType("list", (CqlType("int"),), frozen=True))
    pair = CqlType("udt", fields, False, ("x", "y", "z"), udt)

    def column(name: str, kind: CqlType, *, key: bool = False) -> RandomColumn:
        # The server fails on keys that are empty, and on empty numbers inside collections.
        strategy = values(kind, empties=not key and kind.name in SCALARS)
        if key:
            strategy = strategy.filter(bool)
        drawn = draw(st.lists(strategy, min_size=_VALUES_EACH, max_size=_VALUES_EACH), rng)
        drawn_column = RandomColumn(name, kind, drawn)
        if kind.multi_cell:
            each = (st.lists(values(t, empties=False), min_size=5, max_size=5) for t in kind.parameters)
            drawn_column.parts = draw(st.tuples(*each), rng)
        return drawn_column

    def scalar() -> CqlType:
        return CqlType(rng.choice(sorted(SCALARS)))

    def any_kind() -> CqlType:
        frozen = draw(types(depth=1).filter(_is_built_in), rng)
        inner = scalar()
        return rng.choice(
            [
                scalar(),
                frozen,
                CqlType("list", (inner,)),
                CqlType("set", (inner,)),
                CqlType("map", (inner, scalar())),
                pair,
            ]
        )

    clustering = [column(f"c{n}", scalar(), key=True) for n in range(rng.choice([0, 1, 1, 2, 3]))]
    statics = rng.randrange(3) if clustering else 0
    return RandomTable(
        name,
        [column(f"p{n}", scalar(), key=True) for n in range(rng.choice([1, 1, 2]))],
        clustering,
        [column(f"s{n}", any_kind()) for n in range(statics)],
        [column(f"v{n}", any_kind()) for n in range(rng.choice([0, 1, 2, 4, 6]))],
        [rng.choice(["ASC", "DESC"]) for _ in clustering],
        {"udt": ("x", "y", "z")},
    )


def statements(rng: random.Random, table: RandomTable, count: int) -> Iterator[list[Statement]]:
    """Draw statements; several at once are a batch on one partition."""
    for _ in range(count):
        key = [rng.choice(c.pool[:3]) for c in table.partition]
        if rng.random() < 0.1:
            yield [_one(rng, table, key, conditional=False) for _ in range(rng.randrange(2, 4))]
        else:
            conditional = rng.random() < 0.05 and _answers_can_be_read(table)
            yield [_one(rng, table, key, conditional=conditional)]


def _answers_can_be_read(table: RandomTable) -> bool:
    """Return whether the driver can decode any row, as in the response to a conditional insert."""
    columns = (*table.partition, *table.clustering, *table.statics, *table.regular)
    return not any(name in to_cql(c.kind) for c in columns for name in ("timestamp", "date"))


def _one(rng: random.Random, table: RandomTable, key: list[bytes], *, conditional: bool) -> Statement:
    row = [rng.choice(c.pool[:4]) for c in table.clustering]
    if conditional:
        return _insert(rng, table, key, row, " IF NOT EXISTS")
    writers: list[Callable[[], Statement]] = [
        lambda: _insert(rng, table, key, row, _using(rng)),
        lambda: _delete(rng, table, key, row),
    ]
    if table.regular or table.statics:
        writers += [lambda: _update(rng, table, key, row)] * 4
    return rng.choice(writers)()


def _using(rng: random.Random, *, ttl: bool = True) -> str:
    parts = []
    if rng.random() < 0.6:
        parts.append(f"TIMESTAMP {_BASE_US + rng.randrange(40)}")
    if ttl and rng.random() < 0.2:
        parts.append(f"TTL {rng.choice([1, 100_000])}")
    return f" USING {' AND '.join(parts)}" if parts else ""


def _where(columns: Sequence[RandomColumn]) -> str:
    return " AND ".join(f"{c.name} = ?" for c in columns)


def _insert(
    rng: random.Random, table: RandomTable, key: list[bytes], row: list[bytes], tail: str
) -> Statement:
    cells = [c for c in (*table.regular, *table.statics) if rng.random() < 0.6]
    names = [c.name for c in (*table.partition, *table.clustering, *cells)]
    marks = ", ".join("?" * len(names))
    given_values = [None if rng.random() < 0.15 else rng.choice(c.pool) for c in cells]
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks}){tail}", [
        *key,
        *row,
        *given_values,
    ]


def _update(rng: random.Random, table: RandomTable, key: list[bytes], row: list[bytes]) -> Statement:
    of_statics = bool(table.statics) and (not table.regular or rng.random() < 0.3)
    cells = table.statics if of_statics else table.regular
    sets, bound = [], []
    for column in rng.sample(cells, rng.randrange(1, len(cells) + 1)):
        text, found = _assignment(rng, table, column)
        sets.append(text)
        bound += found
    where = table.partition if of_statics else [*table.partition, *table.clustering]
    text = f"UPDATE {table.name}{_using(rng)} SET {', '.join(sets)} WHERE {_where(where)}"
    return text, [*bound, *key, *([] if of_statics else row)]


def _assignment(
    rng: random.Random, table: RandomTable, column: RandomColumn
) -> tuple[str, list[bytes | None]]:
    name, kind = column.name, column.kind
    whole: tuple[str, list[bytes | None]] = (
        f"{name} = ?",
        [None if rng.random() < 0.15 else rng.choice(column.pool)],
    )
    if not kind.multi_cell or rng.random() < 0.3:
        return whole
    if kind.name == "udt":
        number = rng.randrange(len(column.parts))
        return f"{name}.{table.fields['udt'][number]} = ?", [rng.choice([None, *column.parts[number]])]
    some = rng.choice(column.pool)
    if kind.name == "map":
        if rng.random() < 0.5:
            value = rng.choice([None, *column.parts[1]])
            return f"{name}[?] = ?", [rng.choice(column.parts[0]), value]
        return f"{name} = {name} + ?", [some]
    if kind.name == "list":
        return rng.choice([f"{name} = {name} + ?", f"{name} = ? + {name}"]), [some]
    return rng.choice([f"{name} = {name} + ?", f"{name} = {name} - ?"]), [some]


def _delete(rng: random.Random, table: RandomTable, key: list[bytes], row: list[bytes]) -> Statement:
    using = _using(rng, ttl=False)
    kind = rng.randrange(6)
    cells = table.regular
    if cells and kind < 2:
        columns = rng.sample(cells, rng.randrange(1, len(cells) + 1))
        parts, bound = [], []
        for column in columns:
            if column.kind.name == "map" and column.kind.multi_cell:
                parts.append(f"{column.name}[?]")
                bound.append(rng.choice(column.parts[0]))
            else:
                parts.append(column.name)
        where = _where([*table.partition, *table.clustering])
        return f"DELETE {', '.join(parts)} FROM {table.name}{using} WHERE {where}", [*bound, *key, *row]
    if not table.clustering or kind == 2:
        return f"DELETE FROM {table.name}{using} WHERE {_where(table.partition)}", [*key]
    if kind == 3:
        where = _where([*table.partition, *table.clustering])
        return f"DELETE FROM {table.name}{using} WHERE {where}", [*key, *row]
    depth = rng.randrange(len(table.clustering))
    bounded = table.clustering[depth]
    fixed = _where([*table.partition, *table.clustering[:depth]])
    low, high = rng.choice(["", ">", ">="]), rng.choice(["", "<", "<="])
    ends = [sign for sign in (low, high) if sign] or [">="]
    limits = " AND ".join(f"{bounded.name} {sign} ?" for sign in ends)
    bound = [rng.choice(bounded.pool[:4]) for _ in ends]
    return f"DELETE FROM {table.name}{using} WHERE {fixed} AND {limits}", [*key, *row[:depth], *bound]
