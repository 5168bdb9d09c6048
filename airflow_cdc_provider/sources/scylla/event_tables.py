"""What a log table looks like, as far as events need it, from a record of kind ``schema``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from airflow_cdc_provider.exceptions import CorruptInput, SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import freeze, parse_type

META: Final = "cdc$"
"""Begins the names of the log's own columns."""
DELETED: Final = "cdc$deleted_"
DELETED_ELEMENTS: Final = "cdc$deleted_elements_"
TTL_LEFT: Final = "ttl(cdc$operation)"
"""Not a column: how long the log row itself still lives."""

STREAM_ID: Final = "cdc$stream_id"
TIME: Final = "cdc$time"
BATCH_SEQ_NO: Final = "cdc$batch_seq_no"
OPERATION: Final = "cdc$operation"
TTL: Final = "cdc$ttl"
END_OF_BATCH: Final = "cdc$end_of_batch"


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
        keyspace: The table's keyspace.
        name: Its name.
        partition: Names of its partition key columns, in order.
        clustering: Names of its clustering columns, in order.
        static: Names of its static columns.
        columns: Names and types of the log's columns, in the order of its rows.
        base: Types of the base table's columns.
    """

    keyspace: str
    name: str
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    static: frozenset[str]
    columns: tuple[tuple[str, CqlType], ...]
    base: Mapping[str, CqlType]

    @property
    def full_name(self) -> str:
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.name}"

    @cached_property
    def places(self) -> dict[str, int]:
        """Number of each of the log's columns by name."""
        return {name: number for number, (name, _) in enumerate(self.columns)}

    @cached_property
    def key(self) -> tuple[EventColumn, ...]:
        """The columns of the key as the connector sorts them: partition key before clustering, by name."""
        return tuple(
            EventColumn(name, self.base[name], self.places[name])
            for names in (self.partition, self.clustering)
            for name in sorted(names)
        )

    @cached_property
    def cells(self) -> tuple[EventColumn, ...]:
        """The other columns, by name."""
        keys = {*self.partition, *self.clustering}
        return tuple(
            EventColumn(
                name,
                self.base[name],
                self.places[name],
                self.places.get(DELETED + name, -1),
                self.places.get(DELETED_ELEMENTS + name, -1),
            )
            for name in sorted(self.base)
            if name not in keys and name in self.places
        )


def read_schema(payload: bytes) -> EventTable:
    """Read the payload of a record of kind ``schema``.

    Raises:
        CorruptInput: It isn't one, or a column of the log is missing.
        SchemaUnknown: A type can't be read.
    """
    try:
        told: dict[str, Any] = json.loads(payload)
        types = _types(told["keyspace"], told.get("types") or {})
        columns = tuple((name, _parsed(text, types, told["keyspace"])) for name, text in told["columns"])
        table = EventTable(
            told["keyspace"],
            told["table"],
            tuple(told["partition_key"]),
            tuple(name for name, _ in told["clustering"]),
            frozenset(told["static"]),
            columns,
            {name: _parsed(text, types, told["keyspace"]) for name, text in told["base"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptInput(f"a schema record can't be read: {error!r}") from error
    own = (STREAM_ID, TIME, BATCH_SEQ_NO, OPERATION, TTL, END_OF_BATCH)
    missing = [n for n in (*own, *table.partition, *table.clustering) if n not in table.places]
    if missing:
        raise CorruptInput(f"the log of {table.full_name} has no column {missing[0]}")
    return table


def _types(keyspace: str, told: Mapping[str, Any]) -> dict[str, CqlType]:
    """Read user-defined types, which may use each other in any order."""
    types: dict[str, CqlType] = {}

    def find(name: str) -> CqlType:
        plain = name.removeprefix(f"{keyspace}.")
        if plain not in types:
            if plain not in told:
                raise SchemaUnknown(f"there is no type {name}", expected="one that the schema record tells")
            fields = told[plain]
            inside = tuple(freeze(parse_type(text, find)) for _, text in fields)
            names = tuple(field for field, _ in fields)
            types[plain] = CqlType("udt", inside, fields=names, udt=f"{keyspace}.{plain}")
        return types[plain]

    for name in told:
        find(name)
    return types


def _parsed(text: str, types: Mapping[str, CqlType], keyspace: str) -> CqlType:
    def find(name: str) -> CqlType:
        try:
            return types[name.removeprefix(f"{keyspace}.")]
        except KeyError:
            raise SchemaUnknown(
                f"there is no type {name}", expected="one that the schema record tells"
            ) from None

    return parse_type(text, find)
