"""Tables of Vitess as events show them: which columns, in which form, and what the key is.

The key is the columns of the primary key in the order of the table (what VStream tells of it, and as Debezium
has it), or else the first column that is unique by itself, or none; or what is chosen instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.connect_metadata import CONNECT_PARAMETERS
from airflow_cdc_provider.sources.converters import Converter
from airflow_cdc_provider.sources.vitess.event_columns import Cells
from airflow_cdc_provider.sources.vitess.event_masks import mask_of
from airflow_cdc_provider.sources.vitess.event_types import (
    EventColumn,
    EventTypes,
    event_column,
)
from airflow_cdc_provider.sources.vitess.fields import (
    PRIMARY_KEY,
    UNIQUE_KEY,
    Column,
    TableShape,
    invalid_names,
)
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent

_SOURCE_COLUMN: Final = "__debezium.source.column"


@dataclass(frozen=True, eq=False)
class EventForm:
    """What events show of tables; one for all events of a connector, as tables are kept by it.

    Args:
        types: How columns are shown.
        include_columns: Expressions on ``keyspace.table.column``: only these are in values; none: all.
        exclude_columns: Likewise, what is left out of values. Keys keep theirs.
        key_columns: Pairs of expressions, on ``keyspace.table`` and on the name of a column: what the key is
            made of instead.
        masks: Pairs of an expression on ``keyspace.table.column`` and what hides it in values
            (:mod:`.event_masks`).
        source_types_of_columns: Expressions on ``keyspace.table.column``: schemas of these columns in values
            tell their type in MySQL.
        source_types: Likewise, on the type (``VARCHAR``) or ``keyspace.TYPE``.
        converters: Pairs of an expression on ``keyspace.table.column`` and what shows it otherwise.
    """

    types: EventTypes = EventTypes()  # noqa: RUF009  frozen
    include_columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key_columns: tuple[tuple[str, str], ...] = ()
    masks: tuple[tuple[str, str], ...] = ()
    source_types_of_columns: tuple[str, ...] = ()
    source_types: tuple[str, ...] = ()
    converters: tuple[tuple[str, Converter], ...] = ()

    def shows(self, path: str) -> bool:
        """Tell whether a column, ``keyspace.table.column``, is in values."""
        if self.include_columns and not any(re.fullmatch(p, path) for p in self.include_columns):
            return False
        return not any(re.fullmatch(p, path) for p in self.exclude_columns)


@dataclass(frozen=True)
class EventTable:
    """A table as events show it, by one FIELD event.

    Args:
        keyspace: Its keyspace.
        name: Its name.
        width: How many values its rows have.
        columns: What values show.
        key: What keys show; empty for a table without a key.
    """

    keyspace: str
    name: str
    width: int
    columns: tuple[EventColumn, ...]
    key: tuple[EventColumn, ...]


@lru_cache(maxsize=1024)
def comparable_fields(fields: bytes) -> bytes:
    """Return a ``FieldEvent`` without what shards differ in, serialised so that equal ones have equal bytes.

    Raises:
        CorruptInput: It can't be read.
    """
    try:
        told = FieldEvent.FromString(fields)
    except DecodeError as error:
        raise CorruptInput("the fields of a table can't be read", found=str(error)) from error
    told.ClearField("shard")
    for field in told.fields:
        field.ClearField("database")
    serialised: bytes = told.SerializeToString(deterministic=True)
    return serialised


@lru_cache(maxsize=1024)
def event_table(fields: bytes, keyspace: str, name: str, form: EventForm) -> EventTable:
    """Read what a table looks like.

    Args:
        fields: The ``FieldEvent`` message.
        keyspace: The table's keyspace.
        name: Its name, without the keyspace.
        form: The choices.

    Raises:
        CorruptInput: The message can't be read, or its columns have no names: a passing fault of VStream.
    """
    shape = TableShape.parse(fields)
    for passing in invalid_names(shape.columns):
        raise CorruptInput(
            f"Illegal prefix '@' for column: {passing}, from schema: {keyspace}, table: {name}",
            remedy="the tablet could not match a row with its schema: run again, and start vttablet with "
            "--track-schema-versions if it stays",
        )
    shown: list[EventColumn] = []
    in_values: list[EventColumn] = []
    for place, told in enumerate(shape.columns):
        column = event_column(told, place, form.types)
        if column is not None:
            path = f"{keyspace}.{name}.{told.name}"
            column = _converted(column, path, form)
            shown.append(column)
            if form.shows(path):
                in_values.append(_told(_masked(column, told, path, form), told, keyspace, path, form))
    key = _key(shape, shown, f"{keyspace}.{name}", form)
    return EventTable(keyspace, name, len(shape.columns), tuple(in_values), tuple(key))


def _key(shape: TableShape, shown: Sequence[EventColumn], table: str, form: EventForm) -> list[EventColumn]:
    chosen = [pattern for tables, pattern in form.key_columns if re.fullmatch(tables, table)]
    if chosen:
        return [c for c in shown if any(re.fullmatch(pattern, c.field.name) for pattern in chosen)]
    primary = [c for c in shown if shape.columns[c.place].flags & PRIMARY_KEY]
    return primary or [c for c in shown if shape.columns[c.place].flags & UNIQUE_KEY][:1]


def _converted(column: EventColumn, path: str, form: EventForm) -> EventColumn:
    """Show a column by the first converter that is meant for it."""
    for pattern, converter in form.converters:
        if re.fullmatch(pattern, path):
            field = converter.field(column.field).with_nullable(column.field.nullable)
            return replace(column, field=field, read=_then(column.read, converter.array))
    return column


def _masked(column: EventColumn, told: Column, path: str, form: EventForm) -> EventColumn:
    """Hide a column as the first form says that is meant for it."""
    for pattern, mask in form.masks:
        if re.fullmatch(pattern, path):
            is_text = pa.types.is_string(column.field.type)
            length = told.type.sizes[0] if told.type.word in ("char", "varchar") and told.type.sizes else 0
            hide = mask_of(mask, path, is_text=is_text, length=length)
            return column if hide is None else replace(column, read=_then(column.read, hide))
    return column


def _told(column: EventColumn, told: Column, keyspace: str, path: str, form: EventForm) -> EventColumn:
    """Tell a column's type in MySQL as parameters of its schema, where that is wanted."""
    word = told.type.word.upper() + (" UNSIGNED" if told.unsigned else "")
    wanted = any(re.fullmatch(p, path) for p in form.source_types_of_columns) or any(
        re.fullmatch(p, text) for p in form.source_types for text in (word, f"{keyspace}.{word}")
    )
    if not wanted:
        return column
    metadata = dict(column.field.metadata or {})
    parameters = json.loads(metadata.get(CONNECT_PARAMETERS, b"{}"))
    parameters[f"{_SOURCE_COLUMN}.type"] = word
    for name, size in zip(("length", "scale"), told.type.sizes, strict=False):
        parameters[f"{_SOURCE_COLUMN}.{name}"] = str(size)
    parameters[f"{_SOURCE_COLUMN}.name"] = told.name
    metadata[CONNECT_PARAMETERS] = json.dumps(parameters, ensure_ascii=False).encode()
    return replace(column, field=column.field.with_metadata(metadata))


def _then(
    read: Callable[[Cells], pa.Array], change: Callable[[pa.Array], pa.Array]
) -> Callable[[Cells], pa.Array]:
    return lambda cells: change(read(cells))
