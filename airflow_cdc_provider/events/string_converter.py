"""Kafka's StringConverter over Arrow columns: Java's ``toString`` of rows, column by column.

Text is unchanged, numbers and booleans have Java's format, structs are ``Struct{a=1,b=x}`` without nulls,
arrays ``[1, 2]``, maps ``{k=v, l=w}``; nothing is escaped. Java's ``toString`` of bytes is their memory
address.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.json_converter import java_floats
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import join

_TEXT: Final = pa.large_utf8()


def to_text(schema: ConnectSchema, column: pa.Array) -> pa.LargeStringArray:
    """Write each row as text; nulls stay null.

    Args:
        schema: Schema of the rows. Fields of structs are matched by position.
        column: Rows of a matching Arrow type.

    Raises:
        ConfigurationError: The schema contains bytes, which have no text.
    """
    kind = schema.type
    if column.null_count == len(column):
        return pa.nulls(len(column), _TEXT)
    if kind == "struct":
        return _where_valid(column, _struct(schema, column))
    if kind == "array" and schema.items:
        return _where_valid(column, _joined(column, _element(schema.items, column.values), "[", "]"))
    if kind == "map" and schema.keys and schema.items:
        entries = join(_element(schema.keys, column.keys), "=", _element(schema.items, column.items))
        return _where_valid(column, _joined(column, entries, "{", "}"))
    if kind == "bytes":
        raise ConfigurationError(
            "bytes have no text",
            expected="keys or values without bytes for converter string",
            remedy="use converter json, which writes base64, or converter bytes for values of type bytes",
        )
    if kind == "boolean":
        return pc.if_else(column, pa.scalar("true", _TEXT), pa.scalar("false", _TEXT))
    if kind in ("float", "double"):
        return java_floats(column)
    return column.cast(_TEXT)


def _element(schema: ConnectSchema, column: pa.Array) -> pa.Array:
    return pc.fill_null(to_text(schema, column), pa.scalar("null", _TEXT))


def _struct(schema: ConnectSchema, column: pa.Array) -> pa.Array:
    empty = pa.scalar("", _TEXT)
    members = []
    for number, (name, field) in enumerate(schema.fields):
        values = pc.struct_field(column, [number]) if column.null_count else column.field(number)
        members.append(pc.fill_null(join(f",{name}=", to_text(field, values)), empty))
    if not members:
        return pa.repeat(pa.scalar("Struct{}", _TEXT), len(column))
    return join("Struct{", pc.utf8_slice_codeunits(join(*members), 1), "}")


def _joined(column: pa.Array, elements: pa.Array, left: str, right: str) -> pa.Array:
    lists = pa.LargeListArray.from_arrays(column.offsets.cast(pa.int64()), elements)
    return join(left, pc.binary_join(lists, pa.scalar(", ", _TEXT)), right)


def _where_valid(column: pa.Array, text: pa.Array) -> Any:
    if not column.null_count:
        return text
    mask = ~column.is_valid().to_numpy(zero_copy_only=False)
    return text.take(pa.array(np.arange(len(column)), mask=mask))
