"""Tables of events: their columns, the conversion of each column, and the key.

The key consists of the primary key columns in the order of the table (as VStream reports it, and as in
Debezium), else of the first column with a unique key of its own, else there is none. Option ``key_columns``
overrides it for tables that have such columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.connect_metadata import CONNECT_PARAMETERS
from airflow_cdc_provider.sources.converters import Converter
from airflow_cdc_provider.sources.vitess.events.columns import Cells
from airflow_cdc_provider.sources.vitess.events.masks import mask_of
from airflow_cdc_provider.sources.vitess.events.types import EventColumn, EventTypes, event_column
from airflow_cdc_provider.sources.vitess.fields import (
    PRIMARY_KEY,
    UNIQUE_KEY,
    Column,
    TableShape,
    invalid_names,
)
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, parse

_SOURCE_COLUMN: Final = "__debezium.source.column"


@dataclass(frozen=True, eq=False)
class EventForm:
    """Format of a connector's events. Use one instance per connector, as it is a cache key of tables.

    Args:
        types: Options of the column types.
        include_columns: Expressions on ``keyspace.table.column``: columns to include in values; none: all.
        exclude_columns: Likewise, columns to exclude from values. Keys aren't affected.
        key_columns: Pairs of expressions, on ``keyspace.table`` and on a column name: the columns of the key,
            in this order.
        masks: Pairs of an expression on ``keyspace.table.column`` and the mask to apply in values
            (:mod:`.masks`).
        source_types_of_columns: Expressions on ``keyspace.table.column``: the schemas of these columns in
            values include the MySQL type.
        source_types: Likewise, on the type in MySQL (``BIGINT``) or VStream (``INT64``), ``keyspace.TYPE``,
            ``keyspace.table.TYPE`` or ``keyspace.table.column``.
        converters: Pairs of an expression on ``keyspace.table.column`` and the converter to apply.
    """

    types: EventTypes = EventTypes()  # noqa: RUF009  frozen
    include_columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key_columns: tuple[tuple[str, str], ...] = ()
    masks: tuple[tuple[str, str], ...] = ()
    source_types_of_columns: tuple[str, ...] = ()
    source_types: tuple[str, ...] = ()
    converters: tuple[tuple[str, Converter], ...] = ()

    def includes(self, path: str) -> bool:
        """Return whether values include a column, ``keyspace.table.column``."""
        if self.include_columns and not any(matches(p, path) for p in self.include_columns):
            return False
        return not any(matches(p, path) for p in self.exclude_columns)


@dataclass(frozen=True)
class EventTable:
    """A table of events with the schema of one FIELD event.

    Args:
        keyspace: Its keyspace.
        name: Its name.
        width: Number of values in its rows.
        columns: Columns of values.
        key: Columns of keys; empty for a table without a key.
    """

    keyspace: str
    name: str
    width: int
    columns: tuple[EventColumn, ...]
    key: tuple[EventColumn, ...]


@lru_cache(maxsize=1024)
def comparable_fields(fields: bytes) -> bytes:
    """Return a ``FieldEvent`` without shard-specific fields, serialised deterministically for comparison.

    Raises:
        CorruptInput: It can't be parsed.
    """
    event = parse(FieldEvent, fields)
    event.ClearField("shard")
    for field in event.fields:
        field.ClearField("database")
    serialised: bytes = event.SerializeToString(deterministic=True)
    return serialised


@lru_cache(maxsize=1024)
def event_table(fields: bytes, keyspace: str, name: str, form: EventForm) -> EventTable:
    """Return the table of a FIELD event.

    Args:
        fields: The ``FieldEvent`` message.
        keyspace: The table's keyspace.
        name: Its name, without the keyspace.
        form: Format of the events.

    Raises:
        CorruptInput: The message can't be parsed, or its columns have no names: a transient fault of VStream.
    """
    shape = TableShape.parse(fields)
    for invalid in invalid_names(shape.columns):
        raise CorruptInput(
            f"Illegal prefix '@' for column: {invalid}, from schema: {keyspace}, table: {name}",
            remedy="the tablet could not match a row with its schema: run again, and start vttablet with "
            "--track-schema-versions if the error persists",
        )
    columns: list[EventColumn] = []
    in_values: list[EventColumn] = []
    for index, table_column in enumerate(shape.columns):
        column = event_column(table_column, index, form.types)
        if column is not None:
            path = f"{keyspace}.{name}.{table_column.name}"
            column = _converted(column, path, form)
            columns.append(column)
            if form.includes(path):
                masked = _masked(column, table_column, path, form)
                in_values.append(_with_source_type(masked, table_column, keyspace, path, form))
    key = _key(shape, columns, f"{keyspace}.{name}", form)
    return EventTable(keyspace, name, len(shape.columns), tuple(in_values), tuple(key))


def _key(shape: TableShape, columns: Sequence[EventColumn], table: str, form: EventForm) -> list[EventColumn]:
    chosen = [pattern for tables, pattern in form.key_columns if matches(tables, table)]
    custom = {c.index: c for pattern in chosen for c in columns if matches(pattern, c.field.name)}
    if custom:
        return list(custom.values())
    primary = [c for c in columns if shape.columns[c.index].flags & PRIMARY_KEY]
    return primary or [c for c in columns if shape.columns[c.index].flags & UNIQUE_KEY][:1]


def _converted(column: EventColumn, path: str, form: EventForm) -> EventColumn:
    """Apply the first converter that matches a column."""
    for pattern, converter in form.converters:
        if matches(pattern, path):
            field = converter.field(column.field).with_nullable(column.field.nullable)
            return replace(column, field=field, read=_then(column.read, converter.array))
    return column


def _masked(column: EventColumn, table_column: Column, path: str, form: EventForm) -> EventColumn:
    """Apply the first mask that matches a column."""
    for pattern, mask in form.masks:
        if matches(pattern, path):
            kind = table_column.type
            length = kind.sizes[0] if kind.name in ("char", "varchar") and kind.sizes else 0
            found = mask_of(mask, path, column.field, length)
            if found is None:
                return column
            field = _with_parameters(column.field, found.parameters)
            return replace(column, field=field, read=_then(column.read, found.apply))
    return column


def _with_source_type(
    column: EventColumn, table_column: Column, keyspace: str, path: str, form: EventForm
) -> EventColumn:
    """Add a column's MySQL type to the parameters of its schema, if an option requires it."""
    mysql_type = table_column.type.name.upper() + (" UNSIGNED" if table_column.unsigned else "")
    table = path.removesuffix(table_column.name)
    types = [
        f"{scope}{kind}"
        for scope in ("", f"{keyspace}.", table)
        for kind in (mysql_type, table_column.wire_type)
    ]
    is_required = any(matches(p, path) for p in form.source_types_of_columns) or any(
        matches(p, text) for p in form.source_types for text in (path, *types)
    )
    if not is_required:
        return column
    parameters = {f"{_SOURCE_COLUMN}.type": mysql_type}
    for name, size in zip(("length", "scale"), table_column.type.sizes, strict=False):
        parameters[f"{_SOURCE_COLUMN}.{name}"] = str(size)
    parameters[f"{_SOURCE_COLUMN}.name"] = table_column.name
    return replace(column, field=_with_parameters(column.field, parameters))


def _with_parameters(field: pa.Field, added: Mapping[str, str]) -> pa.Field:
    """Add parameters to the schema of a field."""
    metadata = dict(field.metadata or {})
    parameters = {**json.loads(metadata.get(CONNECT_PARAMETERS, b"{}")), **added}
    metadata[CONNECT_PARAMETERS] = json.dumps(parameters, ensure_ascii=False).encode()
    return field.with_metadata(metadata)


def _then(
    read: Callable[[Cells], pa.Array], change: Callable[[pa.Array], pa.Array]
) -> Callable[[Cells], pa.Array]:
    return lambda cells: change(read(cells))
