"""Random tables, and random statements of every form on them, drawn with a seed.

A drawn statement fits the table as it is: places of lists are there. Values come from small pools, so rows,
elements and timestamps meet again and again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.random_values import KEY_TYPES, SCALAR_TYPES, draw_set, draw_value
from server_kit.scylla.statements import (
    AddElements,
    Assignment,
    Batch,
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    PrependElements,
    RemoveElements,
    SetElement,
    SetField,
    SetWhole,
    Statement,
    Update,
    list_place,
)
from server_kit.scylla.tables import CdcOptions, Column, Table
from server_kit.scylla.values import CqlType, Native, unpack_elements, unpack_pairs

PAIR = CqlType(
    "udt",
    (CqlType("int"), CqlType("text"), CqlType("list", (CqlType("int"),), frozen=True)),
    fields=("x", "y", "z"),
    udt_name="pair",
)
"""A user-defined type for random tables; create it before they are."""

LONG_TTL_SECONDS = 100_000


def draw_table(
    chance: random.Random, keyspace: str, name: str, *, lists: bool = True, cdc: CdcOptions | None = None
) -> Table:
    """Draw the shape of a table.

    Args:
        chance: Where chance comes from.
        keyspace: It has the type :data:`PAIR`.
        name: The table's name.
        lists: Whether it may have lists that aren't frozen.
        cdc: How its changes are logged.
    """

    def scalar() -> CqlType:
        return CqlType(chance.choice(SCALAR_TYPES))

    def key() -> CqlType:
        return CqlType(chance.choice(KEY_TYPES))

    def any_type() -> CqlType:
        frozen = chance.choice(
            [
                CqlType("list", (scalar(),), frozen=True),
                CqlType("set", (key(),), frozen=True),
                CqlType("map", (key(), scalar()), frozen=True),
                CqlType("tuple", (scalar(), key())),
                PAIR.as_frozen,
            ]
        )
        loose = [CqlType("set", (key(),)), CqlType("map", (key(), scalar())), PAIR]
        loose += [CqlType("list", (scalar(),))] if lists else []
        return chance.choice([scalar(), frozen, chance.choice(loose)])

    clustering = tuple(Column(f"c{n}", key()) for n in range(chance.choice([0, 1, 1, 2, 3])))
    static_columns = chance.randrange(3) if clustering else 0
    return Table(
        keyspace,
        name,
        tuple(Column(f"p{n}", key()) for n in range(chance.choice([1, 1, 2]))),
        clustering,
        tuple(Column(f"s{n}", any_type()) for n in range(static_columns)),
        tuple(Column(f"v{n}", any_type()) for n in range(chance.choice([0, 1, 2, 4, 6]))),
        frozenset(c.name for c in clustering if chance.random() < 0.4),
        cdc or CdcOptions(),
    )


@dataclass
class Workload:
    """Statements on one table.

    Args:
        chance: Where chance comes from.
        base: The table as it is; its shape may change while statements are drawn.
        timestamps: Draws a timestamp; None lets the server choose.
        short_ttls: Whether TTLs of a second are drawn; else only long ones, each longer than those before, so
            that of two expiries it is never open which is later.
        partitions: How many there are.
    """

    chance: random.Random
    base: BaseTable
    timestamps: Callable[[], int | None] = lambda: None
    short_ttls: bool = False
    partitions: int = 3
    _pools: dict[str, list[bytes]] = field(default_factory=dict)
    _ttls: Iterator[int] = field(default_factory=lambda: itertools.count(LONG_TTL_SECONDS, 1000))

    @property
    def table(self) -> Table:
        """The table as it is."""
        return self.base.table

    def requests(self, count: int, now: Callable[[], int]) -> Iterator[Statement | Batch]:
        """Draw requests one by one; each must be done before the next is drawn.

        Args:
            count: How many.
            now: The clock in seconds, for places of lists.
        """
        for _ in range(count):
            key = self._key()
            if self.chance.random() < 0.15:
                several = tuple(self.statement(key, now()) for _ in range(self.chance.randrange(2, 5)))
                yield Batch(several)
            else:
                yield self.statement(key, now())

    def statement(self, key: tuple[bytes, ...], now: int) -> Statement:
        """Draw a statement on a partition."""
        clustering = tuple(self._one_of(c, 4) for c in self.table.clustering)
        writers: list[Callable[[], Statement]] = [
            *[lambda: self._insert(key, clustering)] * 3,
            lambda: self._delete(key, clustering, now),
        ]
        if self.table.regular or self.table.static_columns:
            writers += [lambda: self._update(key, clustering, now)] * 4
        return self.chance.choice(writers)()

    def _key(self) -> tuple[bytes, ...]:
        return tuple(self._one_of(column, self.partitions) for column in self.table.partition)

    def _one_of(self, column: Column, count: int) -> bytes:
        """Return one of a key column's few values."""
        pool = self._pools.setdefault(column.name, [])
        while len(pool) < count:
            pool.append(draw_value(self.chance, column.type))
        return self.chance.choice(pool[:count])

    def _ttl(self) -> int:
        if self.chance.random() >= 0.2:
            return 0
        return 1 if self.short_ttls and self.chance.random() < 0.5 else next(self._ttls)

    def _value(self, column: Column) -> Native:
        if self.chance.random() < 0.15:
            return None
        pool = self._pools.setdefault(column.name, [])
        if len(pool) < 6:
            pool.append(draw_value(self.chance, column.type))
        return self.chance.choice(pool)

    def _insert(self, key: tuple[bytes, ...], clustering: tuple[bytes, ...]) -> Insert:
        chosen = [c for c in (*self.table.regular, *self.table.static_columns) if self.chance.random() < 0.6]
        if self.table.static_columns and self.chance.random() < 0.1:
            static_columns = {c.name: self._value(c) for c in self.table.static_columns}
            return Insert(key, None, static_columns, self.timestamps(), self._ttl())
        values = {column.name: self._value(column) for column in chosen}
        return Insert(key, clustering, values, self.timestamps(), self._ttl())

    def _update(self, key: tuple[bytes, ...], clustering: tuple[bytes, ...], now: int) -> Update:
        static_columns = bool(self.table.static_columns) and (
            not self.table.regular or self.chance.random() < 0.3
        )
        columns = self.table.static_columns if static_columns else self.table.regular
        chosen = self.chance.sample(columns, self.chance.randrange(1, len(columns) + 1))
        row = None if static_columns else clustering
        assignments = tuple(self._assignment(key, row, column, now) for column in chosen)
        return Update(key, row, assignments, self.timestamps(), self._ttl())

    def _assignment(
        self, key: tuple[bytes, ...], clustering: tuple[bytes, ...] | None, column: Column, now: int
    ) -> Assignment:
        name, inside = column.name, column.type.parameters
        whole = SetWhole(name, self._value(column))
        if not column.type.multi_cell or self.chance.random() < 0.3:
            return whole
        choices: list[Assignment] = []
        match column.type.name:
            case "udt":
                number = self.chance.randrange(len(inside))
                value = None if self.chance.random() < 0.3 else draw_value(self.chance, inside[number])
                choices = [SetField(name, number, value)]
            case "map":
                pairs = tuple(unpack_pairs(self._known(column)))
                some = self._element(pairs, column)
                value = None if self.chance.random() < 0.3 else draw_value(self.chance, inside[1])
                choices = [
                    AddElements(name, pairs=pairs),
                    RemoveElements(name, tuple(k for k, _ in pairs[:2])),
                    SetElement(name, some, value),
                ]
            case "set":
                elements = tuple(unpack_elements(self._known(column)))
                choices = [AddElements(name, elements), RemoveElements(name, elements[:2])]
            case "list":
                elements = tuple(unpack_elements(self._known(column)))
                choices = [AddElements(name, elements), PrependElements(name, elements)]
                if present := self.base.live_elements(key, clustering, name, now):
                    place = list_place(self.chance.randrange(len(present)))
                    some = present[0][1].value or b""
                    drawn = None if self.chance.random() < 0.3 else draw_value(self.chance, inside[0])
                    choices += [SetElement(name, place, drawn), RemoveElements(name, (some,))]
        return self.chance.choice(choices)

    def _known(self, column: Column) -> bytes:
        """Return a value that isn't null."""
        value = self._value(column)
        while value is None:
            value = self._value(column)
        return value

    def _element(self, pairs: Sequence[tuple[bytes, bytes]], column: Column) -> bytes:
        return pairs[0][0] if pairs else draw_set(self.chance, column.type.parameters[0])[0]

    def _delete(self, key: tuple[bytes, ...], clustering: tuple[bytes, ...], now: int) -> Statement:
        kind = self.chance.randrange(7)
        columns = self.table.regular
        if columns and kind < 3:
            chosen = self.chance.sample(columns, self.chance.randrange(1, min(len(columns), 3) + 1))
            parts = tuple(self._deleted_part(key, clustering, column, now) for column in chosen)
            return DeleteColumns(key, clustering, parts, self.timestamps())
        if not self.table.clustering:
            return DeleteRow(key, (), self.timestamps())
        if kind == 3:
            return DeletePartition(key, self.timestamps())
        if kind == 4:
            return DeleteRow(key, clustering, self.timestamps())
        return self._delete_range(key, clustering)

    def _deleted_part(
        self, key: tuple[bytes, ...], clustering: tuple[bytes, ...], column: Column, now: int
    ) -> SetWhole | SetElement | SetField:
        kind = column.type
        if not kind.multi_cell or kind.name == "set" or self.chance.random() < 0.4:
            return SetWhole(column.name, None)
        if kind.name == "udt":
            return SetField(column.name, self.chance.randrange(len(kind.parameters)), None)
        if kind.name == "map":
            pairs = unpack_pairs(self._known(column))
            return SetElement(column.name, self._element(pairs, column), None)
        present = self.base.live_elements(key, clustering, column.name, now)
        if not present:
            return SetWhole(column.name, None)
        return SetElement(column.name, list_place(self.chance.randrange(len(present))), None)

    def _delete_range(self, key: tuple[bytes, ...], clustering: tuple[bytes, ...]) -> DeleteRange:
        depth = self.chance.randrange(len(clustering))
        prefix, bounded = clustering[:depth], self.table.clustering[depth]

        def limit() -> Limit | None:
            if self.chance.random() < 0.3:
                return None
            return Limit(self._one_of(bounded, 4), self.chance.random() < 0.5)

        low, high = limit(), limit()
        if not prefix and not low and not high:
            low = Limit(self._one_of(bounded, 4), True)
        return DeleteRange(key, prefix, low, high, self.timestamps())
