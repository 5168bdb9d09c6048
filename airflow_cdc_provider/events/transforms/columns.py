"""Keys and values during transformation: a schema and its column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.exceptions import ConfigurationError

Side = Literal["key", "value"]

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "bytes": pa.binary(),
}


@dataclass(frozen=True)
class Column:
    """Keys, values or one of their fields.

    Args:
        schema: Schema of the column.
        values: One value per row. An Arrow column of type null is valid for any schema.
    """

    schema: ConnectSchema
    values: pa.Array

    @classmethod
    def of(cls, envelope: Envelope, side: str) -> Column:
        """Return keys or values, with the schema of the first destination."""
        if side == "key":
            return cls(envelope.destinations[0].key, envelope.key)
        return cls(envelope.destinations[0].value, envelope.value)

    def members(self) -> list[tuple[str, Column]]:
        """Return the fields of a struct; undefined for null structs."""
        if pa.types.is_null(self.values.type):
            return [(name, Column(schema, pa.nulls(len(self.values)))) for name, schema in self.schema.fields]
        return [
            (name, Column(schema, self.values.field(number)))
            for number, (name, schema) in enumerate(self.schema.fields)
        ]

    def member(self, name: str) -> Column | None:
        """Return a field of a struct, null for null structs; None if it doesn't exist."""
        names = [known for known, _ in self.schema.fields]
        if name not in names:
            return None
        number = names.index(name)
        schema = self.schema.fields[number][1]
        if pa.types.is_null(self.values.type):
            return Column(schema, pa.nulls(len(self.values)))
        return Column(schema, self.values.flatten()[number])

    def with_members(self, members: Sequence[tuple[str, Column]]) -> Column:
        """Return the struct with other fields; nulls stay null.

        Raises:
            ConfigurationError: Two fields have the same name.
        """
        names = [name for name, _ in members]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(
                f"a transform creates duplicate field {twice}", remedy="rename one of them"
            )
        schema = replace(self.schema, fields=tuple((name, column.schema) for name, column in members))
        return Column(schema, self._struct(members))

    def _struct(self, members: Sequence[tuple[str, Column]]) -> pa.Array:
        if pa.types.is_null(self.values.type):
            return self.values
        missing = self.values.is_null() if self.values.null_count else None
        if not members:
            valid = None if missing is None else self.values.is_valid().buffers()[1]
            return pa.Array.from_buffers(pa.struct([]), len(self.values), [valid])
        return pa.StructArray.from_arrays(
            [column.values for _, column in members], [name for name, _ in members], mask=missing
        )

    def without_options(self) -> Column:
        """Return it with a required schema without default, the result of most Connect transforms."""
        return Column(replace(self.schema, optional=False, default=None), self.values)

    def is_struct(self) -> bool:
        """Return whether it is a struct."""
        return self.schema.type == "struct"


Change = Callable[[Column], Column]


def reshaped(envelope: Envelope, side: Side, change: Change) -> Envelope:
    """Change keys or values with their schemas.

    Args:
        envelope: The records; destinations' schemas differ in names only.
        side: Whether to change keys or values.
        change: Returns another column of the same length. Called once per destination, with all rows for
            the first
            and none for the others.

    Raises:
        ConfigurationError: Values are text with the whole event.
    """
    if side == "value" and envelope.verbatim:
        raise ConfigurationError(
            "values that are text have no fields to transform",
            expected="publish.envelope: debezium, or publish.unwrap",
        )
    column = Column.of(envelope, side)
    changed = change(column)
    destinations = []
    for number, destination in enumerate(envelope.destinations):
        if side == "key":
            schema = destination.key
            new = change(Column(schema, column.values.slice(0, 0))).schema if number else changed.schema
            destinations.append(replace(destination, key=new, avro_key=None))
        else:
            schema = destination.value
            new = change(Column(schema, column.values.slice(0, 0))).schema if number else changed.schema
            destinations.append(replace(destination, value=new, avro_value=None))
    if side == "key":
        return replace(envelope, destinations=destinations, key=changed.values)
    return replace(envelope, destinations=destinations, value=changed.values)


def at_path(column: Column, path: str, change: Callable[[Column], Column | None]) -> Column:
    """Change a field by name or dotted path.

    Missing fields are ignored, because records of other topics may have them.

    Args:
        column: A struct.
        path: The field.
        change: Returns another column, or None to remove the field.
    """
    if not column.is_struct():
        return column
    names = [name for name, _ in column.schema.fields]
    if path in names:
        members = []
        for name, member in column.members():
            new = change(member) if name == path else member
            if new is not None:
                members.append((name, new))
        return column.with_members(members)
    head, _, rest = path.partition(".")
    if not rest or head not in names:
        return column
    return column.with_members(
        [
            (name, at_path(member, rest, change) if name == head else member)
            for name, member in column.members()
        ]
    )


def typed(column: Column) -> pa.Array:
    """Return a column's values in their Arrow type, even if all are null."""
    if pa.types.is_null(column.values.type) and column.schema.type in _ARROW:
        return column.values.cast(_ARROW[column.schema.type])
    return column.values
