r"""Kafka's JsonConverter over Arrow columns: rows to JSON text, column by column.

Each column is converted to a column of JSON and structs concatenate those of their fields, without Python
objects per row. The output equals Jackson's byte for byte: no white space, fields in schema order, text
escaped only where JSON requires it (control characters as ``\u00XX`` in capitals; characters outside the BMP
as two escapes), bytes in base64, floating-point numbers in Java's format, NaN and infinities as strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, binary_slices, join, text_array
from airflow_cdc_provider.formats.base64_text import base64_texts
from airflow_cdc_provider.formats.java_floats import DOUBLE_CHARACTERS, write_number
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, kernel

_TEXT: Final = pa.large_utf8()
"""Large strings, because a batch of wide rows may exceed 2 GiB."""
_COMPARED: Final = frozenset({"string", "boolean", "int8", "int16", "int32", "int64"})
"""Types whose equal values have equal texts; floating-point zeros don't."""
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def to_json(schema: ConnectSchema, column: pa.Array) -> pa.LargeStringArray:
    """Write each row as JSON.

    Args:
        schema: Schema of the rows. Fields of structs are matched by position.
        column: Rows of a matching Arrow type. Nulls are written as the schema's default, else ``null``.

    Returns:
        One text per row, without nulls.
    """
    texts = _texts(schema, column)
    return pc.fill_null(texts, _default(schema)) if texts.null_count else texts


def quote(column: pa.Array) -> pa.LargeStringArray:
    """Write text as JSON strings; nulls stay null."""
    data, starts, ends, valid = binary_slices(column)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _quoted_sizes(data, starts, ends, valid, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_quoted(data, starts, ends, valid, out)
    return text_array(out, offsets, valid, wide=True)


def _default(schema: ConnectSchema) -> pa.Scalar:
    value = "null"
    if schema.default is not None:
        value = to_json(_plain(schema), pa.array([schema.default]))[0].as_py()
    return pa.scalar(value, _TEXT)


def _plain(schema: ConnectSchema) -> ConnectSchema:
    return ConnectSchema(schema.type)


def _texts(schema: ConnectSchema, column: pa.Array) -> Any:
    kind = schema.type
    if column.null_count == len(column):
        return pa.nulls(len(column), _TEXT)
    if kind == "struct":
        if schema.omit_nulls:
            return _where_valid(column, _without_nulls(schema, column))
        pieces = _merged(_pieces(schema, column))
        text = join(*pieces) if len(pieces) > 1 else pa.repeat(pa.scalar("".join(pieces), _TEXT), len(column))
        return _where_valid(column, text)
    if kind == "array" and schema.items:
        return _joined(column, to_json(schema.items, column.values), "[", "]")
    if kind == "map" and schema.keys and schema.items:
        keys, values = to_json(schema.keys, column.keys), to_json(schema.items, column.items)
        if schema.keys.type == "string" and not (schema.entry_objects and schema.keys.optional):
            return _joined(column, join(keys, ":", values), "{", "}")
        if schema.entry_objects:
            return _joined(column, join('{"key":', keys, ',"value":', values, "}"), "[", "]")
        return _joined(column, join("[", keys, ",", values, "]"), "[", "]")
    if kind == "string":
        return quote(column)
    if kind == "bytes":
        return base64(column)
    if kind == "boolean":
        return pc.if_else(column, pa.scalar("true", _TEXT), pa.scalar("false", _TEXT))
    if kind in ("float", "double"):
        return _floats(column)
    return column.cast(_TEXT)


def _pieces(schema: ConnectSchema, column: pa.Array) -> Iterator[pa.Array | str]:
    """Yield the pieces of a struct's text; nested structs without nulls are expanded.

    Expansion avoids copies, and values that are constant in a batch are written once.
    """
    if not schema.fields:
        yield "{}"
        return
    for number, (name, field) in enumerate(schema.fields):
        yield ("{" if number == 0 else ",") + _member(name)
        values = column.field(number)
        if field.type == "struct" and not field.omit_nulls and not values.null_count:
            yield from _pieces(field, values)
        elif is_constant(field, values):
            yield to_json(field, values.slice(0, 1))[0].as_py()
        else:
            yield to_json(field, values)
    yield "}"


def _merged(pieces: Iterator[pa.Array | str]) -> list[pa.Array | str]:
    """Merge adjacent constants."""
    merged: list[pa.Array | str] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def is_constant(schema: ConnectSchema, values: pa.Array) -> bool:
    """Return whether all rows are equal, for types with a cheap comparison."""
    if not len(values) or values.null_count:
        return 0 < len(values) == values.null_count
    if schema.type not in _COMPARED:
        return False
    first = values[0]
    # Columns that aren't constant usually differ early.
    if values[-1] != first or not pc.all(pc.equal(values.slice(0, 16), first)).as_py():
        return False
    return bool(pc.all(pc.equal(values, first)).as_py())


def _without_nulls(schema: ConnectSchema, column: pa.Array) -> pa.Array:
    """Write structs without their null fields."""
    members = []
    for number, (name, field) in enumerate(schema.fields):
        member = join("," + _member(name), _texts(field, column.field(number)))
        members.append(pc.fill_null(member, pa.scalar("", _TEXT)))
    return join("{", pc.utf8_slice_codeunits(join(*members), 1), "}")


@lru_cache(maxsize=4096)
def _member(name: str) -> str:
    return f"{quote(pa.array([name]))[0].as_py()}:"


def _where_valid(column: pa.Array, text: pa.Array) -> pa.Array:
    if not column.null_count:
        return text
    return pc.if_else(column.is_valid(), text, pa.scalar(None, _TEXT))


def _joined(column: pa.Array, elements: pa.Array, left: str, right: str) -> pa.Array:
    """Join the texts of the elements of arrays or maps."""
    offsets = column.offsets.cast(pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, elements)
    return _where_valid(column, join(left, pc.binary_join(lists, pa.scalar(",", _TEXT)), right))


def _floats(column: pa.Array) -> pa.Array:
    """Write numbers; those without a JSON representation as strings."""
    text = java_floats(column)
    special = pc.invert(pc.is_finite(column)).fill_null(False)
    return pc.if_else(special, join('"', text, '"'), text) if pc.any(special).as_py() else text


def java_floats(column: pa.Array) -> pa.LargeStringArray:
    """Write floating-point numbers in Java's format; nulls stay null."""
    single = pa.types.is_float32(column.type)
    values = column.to_numpy(zero_copy_only=False).astype(np.float32 if single else np.float64)
    bits = values.view(np.uint32 if single else np.uint64).astype(np.uint64)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    out = np.empty(len(values) * DOUBLE_CHARACTERS, np.uint8)
    offsets = np.zeros(len(values) + 1, np.int64)
    _write_floats(bits, single, np.isfinite(values), valid, out, offsets)
    text = text_array(out, offsets, valid, wide=True)
    if np.isfinite(values[valid]).all():
        return text
    special = np.where(np.isnan(values), "NaN", np.where(values > 0, "Infinity", "-Infinity"))
    mask = pa.array(np.isfinite(values) | ~valid)
    return pc.if_else(mask, text, pa.array(special).cast(_TEXT))


@kernel
def _write_floats(bits: Ints, single: bool, finite: Ints, valid: Flags, out: Bytes, offsets: Ints) -> None:
    at = 0
    for row in range(len(bits)):
        if finite[row] and valid[row]:
            at = write_number(bits[row], single, out, at)
        offsets[row + 1] = at


def base64(column: pa.Array) -> pa.LargeStringArray:
    """Write bytes as base64 JSON strings; nulls stay null."""
    return base64_texts(*binary_buffer(column), quoted=True)


@kernel
def _quoted_size(byte: Int) -> Int:
    if byte in (34, 92, 8, 9, 10, 12, 13):
        return 2
    if byte < 32:
        return 6
    if byte >= 0xF0:  # first of four bytes, which become two escapes
        return 9
    return 1


@kernel
def _quoted_sizes(data: Bytes, starts: Ints, ends: Ints, valid: Flags, offsets: Ints) -> None:
    for row in range(len(starts)):
        size = 0
        if valid[row]:
            size = 2
            for i in range(starts[row], ends[row]):
                size += _quoted_size(data[i])
        offsets[row + 1] = offsets[row] + size


@kernel
def _write_unit(out: Bytes, at: Int, unit: Int) -> Int:
    out[at], out[at + 1] = 92, 117
    for i in range(4):
        out[at + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return at + 6


@kernel
def _write_quoted(data: Bytes, starts: Ints, ends: Ints, valid: Flags, out: Bytes) -> None:
    at = 0
    for row in range(len(starts)):
        if not valid[row]:
            continue
        out[at] = 34
        at += 1
        i = starts[row]
        while i < ends[row]:
            byte = int(data[i])
            i += 1
            if byte >= 0xF0:
                point = (byte & 7) << 18
                for shift in (12, 6, 0):
                    point |= (int(data[i]) & 0x3F) << shift
                    i += 1
                at = _write_unit(out, at, 0xD800 + ((point - 0x10000) >> 10))
                at = _write_unit(out, at, 0xDC00 + ((point - 0x10000) & 0x3FF))
            elif byte >= 32 and byte not in (34, 92):
                out[at] = byte
                at += 1
            else:
                short = byte
                if byte == 8:
                    short = 98
                elif byte == 9:
                    short = 116
                elif byte == 10:
                    short = 110
                elif byte == 12:
                    short = 102
                elif byte == 13:
                    short = 114
                elif byte < 32:
                    at = _write_unit(out, at, byte)
                    continue
                out[at], out[at + 1] = 92, short
                at += 2
        out[at] = 34
        at += 1
