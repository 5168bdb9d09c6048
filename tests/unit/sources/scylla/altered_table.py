"""A table whose columns are renamed, added and dropped between writes and reads of its log, in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.cql import schema as cql
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec, recall_scylla_codec
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.payload import DELETED
from airflow_cdc_provider.sources.scylla.schema_history import LoggedTable, LogHistory, log_tables
from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.schemas import log_columns, log_columns_of
from server_kit.scylla.tables import Column, Table
from server_kit.scylla.values import CqlType
from tests.unit.server_kit.scylla.item import T
from tests.unit.sources.scylla.logged import OTHER_ID, change_record, cql_type, logged_rows, table_schema
from tests.unit.sources.scylla.random_log_rows import random_changes

INT = CqlType("int")
SECOND_US: Final = 1_000_000
NAMES: Final = "abcdefghij"
"""Few names, so that columns get those that others had."""


@dataclass
class AlteredTable:
    """A table, what its log has dropped, and what was recorded of it.

    Args:
        chance: Where chance comes from.
        table: The table as it is.
        dropped_us: When the log's columns were dropped, by name; only the last time.
        history: The recorded schemas.
        now_us: The clock.
    """

    chance: random.Random
    table: Table
    dropped_us: dict[str, int] = field(default_factory=dict)
    history: LogHistory = field(default_factory=LogHistory)
    now_us: int = T
    _kinds: dict[str, bool] = field(default_factory=dict)
    _records: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def draw(cls, chance: random.Random) -> AlteredTable:
        """Draw a table with one to three clustering columns."""
        names = iter(NAMES)

        def columns(least: int, most: int) -> tuple[Column, ...]:
            return tuple(Column(next(names), INT) for _ in range(chance.randint(least, most)))

        partition, clustering, static, regular = columns(1, 2), columns(1, 3), columns(0, 1), columns(1, 2)
        descending = frozenset(c.name for c in clustering if chance.random() < 0.3)
        return cls(chance, Table("k", "t", partition, clustering, static, regular, descending))

    @property
    def keys(self) -> tuple[Column, ...]:
        """The columns of the key."""
        return (*self.table.partition, *self.table.clustering)

    @property
    def others(self) -> tuple[Column, ...]:
        """The columns that are in no key."""
        return (*self.table.static_columns, *self.table.regular)

    @property
    def dropped_columns(self) -> dict[str, int]:
        """When columns of the table that were in no key were dropped, by name."""
        flags = {name: us for name, us in self.dropped_us.items() if name.startswith(DELETED)}
        return {name.removeprefix(DELETED): us for name, us in flags.items()}

    def alter(self) -> None:
        """Rename a key column, or add or drop another column; the names come from few."""
        free = sorted(set(NAMES) - {c.name for c in (*self.keys, *self.others)})
        kind = self.chance.randrange(5) if free else 4
        if kind < 2:
            name = self.chance.choice(self.keys).name
            self.rename(name, self.chance.choice(free))
            if self.chance.random() < 0.3:  # the log's last drop of the name is another one
                self.add(name)
                self.drop(name)
        elif kind < 4:
            former = [name for name in free if name in self.dropped_us] or free
            self.add(self.chance.choice(former), static=self.chance.random() < 0.2)
        elif self.others:
            self.drop(self.chance.choice(self.others).name)

    def rename(self, name: str, to: str) -> None:
        """Rename a key column: the log drops it, and gets another, which is null in the rows before."""

        def of(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(replace(c, name=to) if c.name == name else c for c in columns)

        table = self.table
        descending = frozenset(to if one == name else one for one in table.descending)
        self.table = replace(
            table, partition=of(table.partition), clustering=of(table.clustering), descending=descending
        )
        self.dropped_us[name] = self._tick()

    def add(self, name: str, *, static: bool = False) -> None:
        """Add a column; one that was dropped comes again as what it was."""
        column = (Column(name, INT),)
        if self._kinds.setdefault(name, static):
            self.table = replace(self.table, static_columns=self.table.static_columns + column)
        else:
            self.table = replace(self.table, regular=self.table.regular + column)
        self._tick()

    def drop(self, name: str) -> None:
        """Drop a column that is in no key, from the log too."""
        at_us = self._tick()
        self.dropped_us |= {logged: at_us for logged, _ in log_columns_of(self.table.column(name))}
        self._kinds[name] = self.table.is_static(name)

        def without(columns: tuple[Column, ...]) -> tuple[Column, ...]:
            return tuple(c for c in columns if c.name != name)

        table = self.table
        self.table = replace(
            table, static_columns=without(table.static_columns), regular=without(table.regular)
        )

    def write(self, count: int) -> Iterator[LoggedChange]:
        """Yield changes of the table as it is."""
        yield from random_changes(self.chance, BaseTable(self.table), count, self._tick())

    def observe(self) -> tuple[LoggedTable, ScyllaCodec]:
        """Return the log as a run finds it, and the codec."""
        base = replace(table_schema(self.table), dropped=_dropped(self.dropped_columns))
        columns = [
            cql.Column(name, "regular", -1, cql_type(kind, "k")) for name, kind in log_columns(self.table)
        ]
        dropped = _dropped(self.dropped_us)
        log = cql.TableSchema("k", self.table.log_name, OTHER_ID, cql.order_columns(columns), dropped)
        schemas = cql.Schemas(tables={base.full_name: base, log.full_name: log})
        found = log_tables(schemas, {base.full_name: CdcOption(enabled=True)}, self.history)[base.full_name]
        known = self.history.payloads_of(found.name) | {found.schema_id: found.payload}
        return found, recall_scylla_codec(base, known, None)

    def record(self, found: LoggedTable) -> None:
        """Record the schema of the log, as the commit of a batch does."""
        records = self.history.new_records([found], (), self._tick())
        self._records += [{name: r.get(name) for name in CHANGE_SCHEMA.names} for r in records]
        self.history = LogHistory(pa.Table.from_pylist(self._records, CHANGE_SCHEMA))

    def read(self, found: LoggedTable, logged: LoggedChange) -> dict[str, Any]:
        """Return the record of a change: the log has no values of columns that were dropped since."""
        present = {name for name, _ in found.columns}

        def kept(name: str) -> bool:
            return name in present and self.dropped_us.get(name, 0) < logged.change.time

        rows = [{n: v for n, v in row.items() if kept(n)} for row in logged_rows(logged)]
        return {**change_record(self.table, rows), "schema_id": found.schema_id}

    def _tick(self) -> int:
        """Return the time, after some: a name can't be taken again for 5 s."""
        self.now_us += 10 * SECOND_US
        return self.now_us


def _dropped(moments: dict[str, int]) -> dict[str, cql.DroppedColumn]:
    return {n: cql.DroppedColumn(n, "regular", cql.CqlType("int"), us) for n, us in moments.items()}
