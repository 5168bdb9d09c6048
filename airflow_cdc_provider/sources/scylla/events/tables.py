"""The schema of a log table for events: types of the log and of the base table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from airflow_cdc_provider.exceptions import CorruptInput, SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import (
    Column,
    ColumnKind,
    CqlType,
    TableSchema,
    number_columns,
    order_columns,
)
from airflow_cdc_provider.sources.cql.types import UdtLookup, freeze, parse_type
from airflow_cdc_provider.sources.scylla.log_table import LogTable
from airflow_cdc_provider.sources.scylla.payload import META_COLUMNS


@dataclass(frozen=True)
class EventColumn:
    """A column of the base table.

    Args:
        name: Its name.
        type: Its type in the base table.
        value: Index of the log column with its value.
        deleted: Index of the column ``cdc$deleted_``, -1 for key columns.
        removed: Index of the column ``cdc$deleted_elements_``, -1 for none.
    """

    name: str
    type: CqlType
    value: int
    deleted: int = -1
    removed: int = -1


@dataclass(frozen=True)
class EventTable:
    """A table and its log.

    Args:
        log: The log.
        types: Types of the log's columns, in the order of its rows.
        base: Types of the base table's columns.
    """

    log: LogTable
    types: tuple[CqlType, ...]
    base: Mapping[str, CqlType]

    @property
    def full_name(self) -> str:
        """``keyspace.table``."""
        return self.log.full_name

    @property
    def clustering(self) -> tuple[str, ...]:
        """Names of its clustering columns, in order."""
        return self.log.clustering

    @property
    def indexes(self) -> Mapping[str, int]:
        """Index of each of the log's columns by name."""
        return self.log.indexes

    @cached_property
    def key(self) -> tuple[EventColumn, ...]:
        """The key columns in the connector's order: partition key before clustering key, each by name."""
        return tuple(
            EventColumn(name, self.base[name], self.indexes[name])
            for names in (self.log.partition_key, self.log.clustering)
            for name in sorted(names)
        )

    @cached_property
    def cells(self) -> tuple[EventColumn, ...]:
        """The non-key columns, by name."""
        return tuple(
            EventColumn(c.name, self.base[c.name], c.value, c.deleted, c.deleted_elements)
            for c in self.log.value_columns
        )

    def cells_of(self, *, static: bool) -> frozenset[str]:
        """Return the names of its static columns, or of its regular ones."""
        return frozenset(c.name for c in self.cells if (c.name in self.log.static) is static)

    @cached_property
    def schema(self) -> TableSchema:
        """The base table, with column ids that are only valid within this object."""
        kinds: dict[str, ColumnKind] = dict.fromkeys(self.log.static, "static")
        kinds |= dict.fromkeys(self.log.partition_key, "partition_key")
        kinds |= dict.fromkeys(self.clustering, "clustering")
        positions = {
            n: at for names in (self.log.partition_key, self.clustering) for at, n in enumerate(names)
        }
        columns = [
            Column(
                name, kinds.get(name, "regular"), positions.get(name, -1), kind, name in self.log.descending
            )
            for name, kind in self.base.items()
        ]
        log = self.log
        return number_columns(TableSchema(log.keyspace, log.table, log.table_id, order_columns(columns)))


def event_table(payload: bytes) -> EventTable:
    """Read the payload of a record of kind ``schema``.

    Raises:
        CorruptInput: The payload is not a schema record, or a metadata column of the log is missing.
        SchemaUnknown: A type can't be parsed.
    """
    log = LogTable.of(payload)
    missing = [n for n in (*META_COLUMNS, *log.partition_key, *log.clustering) if n not in log.indexes]
    if missing:
        raise CorruptInput(f"the log of {log.full_name} has no column {missing[0]}")
    find = _types(log)
    types = tuple(parse_type(text, find) for _, text in log.columns)
    return EventTable(log, types, {name: parse_type(text, find) for name, text in log.base.items()})


class LogSchemas:
    """The recorded schemas of logs, which decode changes and snapshot rows.

    Args:
        recorded: Table, read time (us since 1970) and payload of each record of kind ``schema``, in any
            order.
    """

    def __init__(self, recorded: Iterable[tuple[str, int, bytes]]) -> None:
        self._recorded: dict[str, list[EventTable]] = {}
        self._read_us: dict[str, list[int]] = {}
        for table, read_us, payload in sorted(recorded):
            if not json.loads(payload).get("off"):
                self._recorded.setdefault(table, []).append(event_table(payload))
                self._read_us.setdefault(table, []).append(read_us)

    def of_change(self, table: str, schema_id: str) -> EventTable:
        """Return the schema of a change.

        Raises:
            CorruptInput: The schema isn't recorded.
        """
        for known in self._recorded.get(table, ()):
            if known.log.schema_id == schema_id:
                return known
        raise CorruptInput(f"the schema {schema_id} of the log of {table} is not among the records")

    def of_row(
        self, table: str, table_id: str, names: Collection[str], *, static: bool, read_us: int
    ) -> EventTable:
        """Return the schema of a snapshot row, which has column names but no schema id.

        That is the last schema with exactly these columns that was recorded before the row was read, else the
        first one after that. If no schema has these columns, it is the last one recorded. A column that is
        dropped and added again can't be confused within the clock skew: ScyllaDB enforces a longer wait.

        Args:
            table: The table.
            table_id: The table's id, empty if the row doesn't have it.
            names: Names of the row's columns.
            static: Whether these are static columns.
            read_us: When the row was read, us since 1970.

        Raises:
            CorruptInput: No schema of the table is recorded.
        """
        both = zip(self._read_us.get(table, ()), self._recorded.get(table, ()), strict=True)
        own = [(us, known) for us, known in both if table_id in ("", known.log.table_id)]
        if not own:
            raise CorruptInput(f"no schema of the log of {table}, of id {table_id}, is among the records")
        same = [(us, known) for us, known in own if known.cells_of(static=static) == set(names)]
        earlier = [known for us, known in same if us <= read_us]
        return (earlier[-1:] or [known for _, known in same[:1]] or [own[-1][1]])[0]


def _types(log: LogTable) -> UdtLookup:
    """Return a lookup of user-defined types, which may refer to each other in any order."""
    types: dict[str, CqlType] = {}

    def find(name: str) -> CqlType:
        plain = name.removeprefix(f"{log.keyspace}.")
        if plain not in types:
            if plain not in log.types:
                raise SchemaUnknown(f"there is no type {name}", expected="a type in the schema record")
            inside = tuple(freeze(parse_type(text, find)) for _, text in log.types[plain])
            names = tuple(field for field, _ in log.types[plain])
            types[plain] = CqlType("udt", inside, fields=names, udt=f"{log.keyspace}.{plain}")
        return types[plain]

    return find
