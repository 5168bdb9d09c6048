"""Tables whose schema changes at random between the statements: what comes in the middle of a workload.

Columns are added, dropped and added again, key columns are renamed, user-defined types grow, tables are
truncated, dropped and re-created in another shape. A :class:`RandomTable` is kept as the server's table is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import to_cql
from tests.chance import draw
from tests.integration.sources.cassandra.random_tables import (
    RandomColumn,
    RandomTable,
    Statement,
    draw_table,
    statements,
)
from tests.unit.sources.cql.cql_values import values

_PIECES = 6


@dataclass
class RandomSchema:
    """Tables of one keyspace, which change.

    Args:
        rng: Where chance comes from.
        keyspace: It has a type ``pair (x int, y text, z frozen<list<int>>)``.
        draw_shape: Draws a table: chance, its name, the name of the type.
    """

    rng: random.Random
    keyspace: str
    draw_shape: Callable[[random.Random, str, str], RandomTable] = draw_table
    tables: list[RandomTable] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    _dropped: dict[str, list[RandomColumn]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(100))

    def create(self, session: Any, tables: int) -> None:
        """Make the first tables."""
        for number in range(tables):
            table = self.draw_shape(self.rng, f"{self.keyspace}.t{number}", f"{self.keyspace}.pair")
            session.execute(table.create())
            self.tables.append(table)

    def statements(self, number: int) -> Iterator[list[Statement]]:
        """Draw statements on any of the tables."""
        for _ in range(number):
            yield from statements(self.rng, self.rng.choice(self.tables), 1)

    def change(self, session: Any) -> str:
        """Change something; return what. The server may reject it: then nothing has changed."""
        from cassandra import InvalidRequest

        number = self.rng.randrange(len(self.tables))
        table = self.tables[number]
        kinds = {
            "add": self._add,
            "drop": self._drop,
            "add again": self._add_again,
            "rename": self._rename,
            "truncate": self._truncate,
            "make anew": self._re_create,
            "grow type": self._grow_type,
        }
        kind = self.rng.choice([*kinds, "add", "drop", "add again", "rename"])
        try:
            found = kinds[kind](session, number, table)
        except InvalidRequest as error:
            return f"{kind} on {table.name} refused: {error}"
        if found:
            self.done[kind] = self.done.get(kind, 0) + 1
        return found or f"no {kind} on {table.name}"

    def _add(self, session: Any, _: int, table: RandomTable) -> str:
        """Take the column from a table of another shape."""
        donor = self.draw_shape(self.rng, table.name, f"{self.keyspace}.pair")
        static = bool(table.clustering) and self.rng.random() < 0.3
        found = donor.statics if static else donor.regular
        if not found:
            return ""
        kind = self._as_grown(found[0])
        column = replace(kind, name=f"n{next(self._numbers)}")
        return self._add_column(session, table, column, static=static)

    def _add_again(self, session: Any, _: int, table: RandomTable) -> str:
        dropped = self._dropped.get(table.name, [])
        if not dropped:
            return ""
        column = dropped[self.rng.randrange(len(dropped))]
        text = self._add_column(session, table, column, static=column.name in self._statics(table))
        dropped.remove(column)
        return text

    def _add_column(self, session: Any, table: RandomTable, column: RandomColumn, *, static: bool) -> str:
        text = (
            f"ALTER TABLE {table.name} ADD {column.name} {to_cql(column.kind)}{' static' if static else ''}"
        )
        session.execute(text)
        (table.statics if static else table.regular).append(column)
        if static:
            self._statics(table).add(column.name)
        return text

    def _drop(self, session: Any, _: int, table: RandomTable) -> str:
        columns = [*table.regular, *table.statics]
        if not columns:
            return ""
        column = self.rng.choice(columns)
        text = f"ALTER TABLE {table.name} DROP {column.name}"
        session.execute(text)
        if column in table.statics:
            self._statics(table).add(column.name)
            table.statics.remove(column)
        else:
            table.regular.remove(column)
        self._dropped.setdefault(table.name, []).append(column)
        return text

    def _rename(self, session: Any, _: int, table: RandomTable) -> str:
        column = self.rng.choice([*table.partition, *table.clustering])
        name = f"k{next(self._numbers)}"
        text = f"ALTER TABLE {table.name} RENAME {column.name} TO {name}"
        session.execute(text)
        column.name = name
        return text

    def _truncate(self, session: Any, _: int, table: RandomTable) -> str:
        text = f"TRUNCATE {table.name}"
        session.execute(text, timeout=60)
        return text

    def _re_create(self, session: Any, number: int, table: RandomTable) -> str:
        table_shape = self.draw_shape(self.rng, table.name, f"{self.keyspace}.pair")
        for columns in (table_shape.statics, table_shape.regular):
            columns[:] = [self._as_grown(column) for column in columns]
        session.execute(f"DROP TABLE {table.name}")
        self._dropped.pop(table.name, None)
        self._known_statics.pop(table.name, None)
        self.tables[number] = table_shape
        session.execute(table_shape.create())
        table_shape.fields = table.fields
        return table_shape.create()

    def _grow_type(self, session: Any, _: int, table: RandomTable) -> str:
        """Add a field to the type that all tables share; values written before are shorter."""
        if self._grown >= 3:
            return ""
        name = f"w{self._grown}"
        text = f"ALTER TYPE {self.keyspace}.pair ADD {name} bigint"
        session.execute(text)
        self._grown += 1
        for one in self.tables:
            one.fields = {"udt": (*one.fields["udt"], name)}
            for columns in (one.statics, one.regular):
                columns[:] = [self._grow(column, name) for column in columns]
        for dropped in self._dropped.values():
            dropped[:] = [column for column in dropped if column.kind.name != "udt"]
        del table
        return text

    def _as_grown(self, column: RandomColumn) -> RandomColumn:
        for number in range(self._grown):
            column = self._grow(column, f"w{number}")
        return column

    def _grow(self, column: RandomColumn, name: str) -> RandomColumn:
        if column.kind.name != "udt" or name in column.kind.fields:
            return column
        bigint = CqlType("bigint")
        kind = replace(
            column.kind,
            parameters=(*column.kind.parameters, bigint),
            fields=(*column.kind.fields, name),
        )
        pieces = draw(st.lists(values(bigint), min_size=_PIECES, max_size=_PIECES), self.rng)
        return replace(column, kind=kind, parts=[*column.parts, pieces])

    def _statics(self, table: RandomTable) -> set[str]:
        """Names of columns that are or were static: they can be added again as nothing else."""
        return self._known_statics.setdefault(table.name, set())

    def __post_init__(self) -> None:
        self._grown = 0
        self._known_statics: dict[str, set[str]] = {}
