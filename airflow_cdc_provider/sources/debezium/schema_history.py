"""The recorded schemas of a table's rows, and the columns for all of them.

Built from the records of kind ``schema`` that readers emit: one per table and schema, and one per table with
rows without a schema. A column has the narrowest type for the values of all schemas if there is one, else the
type in the newest schema. A column that a newer schema doesn't have is kept, because older rows have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.column_names import clash, column_names
from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.sources.debezium.connect_schema import (
    NO_SCHEMA,
    REST,
    WIDEST_DECIMAL,
    ConnectField,
)
from airflow_cdc_provider.sources.debezium.position import partition_of
from airflow_cdc_provider.sources.debezium.reader import table_of

HIDDEN: Final = frozenset({"__deleted", "__op"})
"""Members that ExtractNewRecordState adds to a row."""

MOST_COLUMNS: Final = 5_000
"""Most columns of schemas, and most fields of a struct of several; other values are in the rest."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TableRows:
    """The schemas of a table's rows.

    Args:
        table: ``database.table``.
        topic: The topic of its rows; empty if there are none.
        schemas: Schemas by name, oldest first.
        plain: Whether there are rows without a schema.
        kept: The names that columns of the mirror have already, by name at the source.
    """

    table: str
    topic: str = ""
    schemas: Mapping[str, ConnectField] = field(default_factory=dict)
    plain: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: str, records: Iterable[Mapping[str, Any]]) -> TableRows:
        """Read records of kind ``schema``; records of other kinds, tables and topics are skipped."""
        own = [one for one in records if one["kind"] == SCHEMA and one["source_table"] == table]
        topic = owners(own).get(table, "")
        own = [one for one in own if partition_of(one["origin"])[0] == topic]
        own.sort(key=lambda one: (one["committed_at"] or _EPOCH, bytes(one["position"]), one["origin"]))
        schemas: dict[str, ConnectField] = {}
        for one in own:
            if one["schema_id"] != NO_SCHEMA:
                schemas.setdefault(one["schema_id"], ConnectField.of(json.loads(bytes(one["payload"]))))
        return cls(table, topic, schemas, any(one["schema_id"] == NO_SCHEMA for one in own))

    @property
    def known(self) -> bool:
        """Whether any row was captured."""
        return self.plain or bool(self.schemas)

    @cached_property
    def lake_names(self) -> dict[str, str]:
        """The name in the mirror of each column of a schema."""
        fields = [one for schema in self.schemas.values() for one in schema.fields if one.name not in HIDDEN]
        names = dict.fromkeys(one.name for one in fields)
        if len(names) > MOST_COLUMNS:
            first = sorted(names, key=lambda name: name not in self.kept)
            names = dict.fromkeys(first[:MOST_COLUMNS])
        return column_names(names, self.kept, (REST, *self.kept.values()))

    @cached_property
    def fields(self) -> dict[str, ConnectField]:
        """The newest type of each column by its name in the mirror, in the order of the newest schema."""
        found: dict[str, ConnectField] = {}
        for schema in reversed(list(self.schemas.values())):
            for one in schema.fields:
                if one.name in self.lake_names:
                    found.setdefault(self.lake_names[one.name], one)
        return found

    @cached_property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of all schemas by their name in the mirror, with their lake types."""
        found: dict[str, pa.DataType] = {}
        for schema in self.schemas.values():
            for one in schema.fields:
                name = self.lake_names.get(one.name, "")
                if name and schema.field(one.name) is one:
                    found[name] = unified(found[name], one.lake_type) if name in found else one.lake_type
        return {name: found[name] for name in self.fields}


def owners(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the topic of each table: that of its first record, of several at once the one with its name.

    Rows of a table in several topics have no order, so those of other topics are quarantined.

    Args:
        records: Records of kind ``schema``.
    """
    first: dict[str, tuple[datetime, bool, str]] = {}
    for one in records:
        table, topic = one["source_table"], partition_of(one["origin"])[0]
        rank = (one["captured_at"] or _EPOCH, table_of(topic) != table, topic)
        first[table] = min(rank, first.get(table, rank))
    return {table: topic for table, (_, _, topic) in first.items()}


def unified(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the type for the values of both types; the newer type if there is none."""
    if old == new:
        return new
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return pa.int64()
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return pa.float64()
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        scale = max(old.scale, new.scale)
        precision = scale + max(old.precision - old.scale, new.precision - new.scale)
        return pa.decimal128(precision, scale) if precision <= WIDEST_DECIMAL else new
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        types = {one.name: one.type for one in new}
        for one in old:
            types[one.name] = unified(one.type, types[one.name]) if one.name in types else one.type
        return new if clash(types) or len(types) > MOST_COLUMNS else pa.struct(list(types.items()))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(pa.field("element", unified(old.value_type, new.value_type)))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return pa.map_(new.key_type, unified(old.item_type, new.item_type))
    return new
