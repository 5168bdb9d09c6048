"""What a log table looks like, as far as events need it: types of the log and of the base table."""

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
        value: Number of the log's column that has its value.
        deleted: Number of the column ``cdc$deleted_``, -1 for columns of the key.
        removed: Number of the column ``cdc$deleted_elements_``, -1 where there is none.
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
    def places(self) -> Mapping[str, int]:
        """Number of each of the log's columns by name."""
        return self.log.places

    @cached_property
    def key(self) -> tuple[EventColumn, ...]:
        """The columns of the key as the connector sorts them: partition key before clustering, by name."""
        return tuple(
            EventColumn(name, self.base[name], self.places[name])
            for names in (self.log.partition_key, self.log.clustering)
            for name in sorted(names)
        )

    @cached_property
    def cells(self) -> tuple[EventColumn, ...]:
        """The other columns, by name."""
        return tuple(
            EventColumn(c.name, self.base[c.name], c.value, c.deleted, c.deleted_elements)
            for c in self.log.value_columns
        )

    def cells_of(self, *, static: bool) -> frozenset[str]:
        """Return the names of its static columns, or of its regular ones."""
        return frozenset(c.name for c in self.cells if (c.name in self.log.static) is static)

    @cached_property
    def schema(self) -> TableSchema:
        """The base table; its columns are numbered, for nothing but this table."""
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
        CorruptInput: It isn't one, or a column that every log has is missing.
        SchemaUnknown: A type can't be read.
    """
    log = LogTable.of(payload)
    missing = [n for n in (*META_COLUMNS, *log.partition_key, *log.clustering) if n not in log.places]
    if missing:
        raise CorruptInput(f"the log of {log.full_name} has no column {missing[0]}")
    find = _types(log)
    types = tuple(parse_type(text, find) for _, text in log.columns)
    return EventTable(log, types, {name: parse_type(text, find) for name, text in log.base.items()})


class LogSchemas:
    """The schemas of logs as they were recorded: what changes and rows of snapshots are read by.

    Args:
        recorded: Of each record of kind ``schema`` its table, when it was read (us since 1970) and its
            payload, in any order.
    """

    def __init__(self, recorded: Iterable[tuple[str, int, bytes]]) -> None:
        self._recorded: dict[str, list[EventTable]] = {}
        self._read_us: dict[str, list[int]] = {}
        for table, read_us, payload in sorted(recorded):
            if not json.loads(payload).get("off"):
                self._recorded.setdefault(table, []).append(event_table(payload))
                self._read_us.setdefault(table, []).append(read_us)

    def of_change(self, table: str, schema_id: str) -> EventTable:
        """Return what a change is read by.

        Raises:
            CorruptInput: Its schema isn't recorded.
        """
        for known in self._recorded.get(table, ()):
            if known.log.schema_id == schema_id:
                return known
        raise CorruptInput(f"the schema {schema_id} of the log of {table} is not among the records")

    def of_row(
        self, table: str, table_id: str, names: Collection[str], *, static: bool, read_us: int
    ) -> EventTable:
        """Return what a snapshot's row is read by: it names its columns, not its schema.

        That is the last schema with just these columns that was recorded before the row was read, else the
        first one after that; where none has them, the last that was recorded. A name that was dropped and
        taken again within the difference of two clocks can't be mistaken: ScyllaDB has it wait longer.

        Args:
            table: The table.
            table_id: Its id, empty if the row doesn't tell.
            names: Columns that the row names.
            static: Whether these are the static ones.
            read_us: When it was read, us since 1970.

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
    """Return what finds user-defined types, which may use each other in any order."""
    types: dict[str, CqlType] = {}

    def find(name: str) -> CqlType:
        plain = name.removeprefix(f"{log.keyspace}.")
        if plain not in types:
            if plain not in log.types:
                raise SchemaUnknown(f"there is no type {name}", expected="one that the schema record tells")
            inside = tuple(freeze(parse_type(text, find)) for _, text in log.types[plain])
            names = tuple(field for field, _ in log.types[plain])
            types[plain] = CqlType("udt", inside, fields=names, udt=f"{log.keyspace}.{plain}")
        return types[plain]

    return find
