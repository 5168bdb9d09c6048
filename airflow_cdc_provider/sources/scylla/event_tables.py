"""What a log table looks like, as far as events need it: types of the log and of the base table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from airflow_cdc_provider.exceptions import CorruptInput, SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import CqlType
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
