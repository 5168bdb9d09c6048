"""Tables of Vitess as events show them: which columns, in which form, and what the key is.

The key is the columns of the primary key in the order of the table (what VStream tells of it, and as Debezium
has it), or else the first column that is unique by itself, or none; or what is chosen instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from google.protobuf.message import DecodeError

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.event_types import EventColumn, EventTypes, event_column
from airflow_cdc_provider.sources.vitess.fields import PRIMARY_KEY, UNIQUE_KEY, TableShape, invalid_names
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent


@dataclass(frozen=True)
class EventForm:
    """What events show of tables.

    Args:
        types: How columns are shown.
        include_columns: Expressions on ``keyspace.table.column``: only these are in values; none: all.
        exclude_columns: Likewise, what is left out of values. Keys keep theirs.
        key_columns: Pairs of expressions, on ``keyspace.table`` and on the name of a column: what the key is
            made of instead.
    """

    types: EventTypes = EventTypes()  # noqa: RUF009  frozen
    include_columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    key_columns: tuple[tuple[str, str], ...] = ()

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

    @property
    def value_type(self) -> pa.StructType:
        """Type of rows."""
        return pa.struct([column.field for column in self.columns])

    @property
    def key_type(self) -> pa.StructType:
        """Type of keys."""
        return pa.struct([column.field for column in self.key])


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
    shown = [
        column
        for place, told in enumerate(shape.columns)
        if (column := event_column(told, place, form.types)) is not None
    ]
    in_values = [column for column in shown if form.shows(f"{keyspace}.{name}.{column.field.name}")]
    key = _key(shape, shown, f"{keyspace}.{name}", form)
    return EventTable(keyspace, name, len(shape.columns), tuple(in_values), tuple(key))


def _key(shape: TableShape, shown: Sequence[EventColumn], table: str, form: EventForm) -> list[EventColumn]:
    chosen = [pattern for tables, pattern in form.key_columns if re.fullmatch(tables, table)]
    if chosen:
        return [c for c in shown if any(re.fullmatch(pattern, c.field.name) for pattern in chosen)]
    primary = [c for c in shown if shape.columns[c.place].flags & PRIMARY_KEY]
    return primary or [c for c in shown if shape.columns[c.place].flags & UNIQUE_KEY][:1]
