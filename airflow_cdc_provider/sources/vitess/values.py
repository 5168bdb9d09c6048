"""Converts values of a column to a lake type, or to MySQL's text.

A value that the type can't represent exactly, or that is invalid for the column's type, is null and reported
as a *misfit*.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, fixed_column, join, span_column
from airflow_cdc_provider.formats.json_text import ABSENT, scan_texts
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.formats.number_texts import (
    decimal_texts,
    float_texts,
    read_decimals,
    read_floats,
    read_integers,
)
from airflow_cdc_provider.sources.vitess.charsets import decode_column
from airflow_cdc_provider.sources.vitess.events.values import (
    BROKEN,
    DAY_US,
    NO_DATE,
    hexadecimal,
    read_moments,
    read_times,
)
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.json_order import in_mysqls_order
from airflow_cdc_provider.sources.vitess.lake_types import VECTOR, family_of

_FLOAT_BYTES: Final = 4
_YEAR_1_US: Final = -719_162 * DAY_US
"""Python, with it PySpark, has no earlier dates."""


def to_lake_type(
    column: Column, kind: pa.DataType, data: Bytes, starts: Ints, ends: Ints
) -> tuple[pa.Array, Flags]:
    """Convert a column's values to a lake type.

    Args:
        column: The column in the schema version of the values.
        kind: A lake type of :class:`.lake_types.LakeTypes`, possibly of a later version of the column.
        data: A buffer.
        starts: First byte of each value, negative for NULL.
        ends: Byte after each.

    Returns:
        The values, null for NULL and misfits; and a mask of the misfits.
    """
    family = family_of(column)
    if kind == pa.string():
        plain, misfits = texts(column, data, starts, ends)
        if family == "json":
            misfits |= broken_json(data, starts, ends)
            plain = pc.if_else(pa.array(misfits), None, plain)
        return plain, misfits
    if kind == pa.binary():
        return span_column(kind, data, starts, ends), _no_misfits(starts)
    if kind == pa.bool_():
        return _bits(data, starts, ends)
    if kind == VECTOR:
        return _vectors(data, starts, ends)
    if family == "time" and kind == pa.int64():
        return _times(data, starts, ends)
    if family in ("members", "text"):
        plain, misfits = texts(column, data, starts, ends)
        data, starts, ends = binary_buffer(plain)
    else:
        misfits = _no_misfits(starts)
    converted, more = _convert_typed(kind, data, starts, ends)
    return converted, misfits | more


def texts(column: Column, data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    """Convert a column's values to text as MySQL's SELECT does, and bytes to ``0x`` and digits.

    Returns:
        Strings, null for NULL and misfits (text that is invalid in its character set, an invalid number); and
        a mask of the misfits.
    """
    family = family_of(column)
    if family in ("bytes", "bit", "vector"):
        return join("0x", pc.ascii_upper(hexadecimal(data, starts, ends))).cast(pa.string()), _no_misfits(
            starts
        )
    if family == "members":
        return _members(column, data, starts, ends)
    if family == "decimal":
        return decimal_texts(data, starts, ends, column.scale)
    if family == "float":
        kind = pa.float32() if column.type.name == "float" else pa.float64()
        numbers, misfits = read_floats(data, starts, ends, kind)
        return float_texts(numbers), misfits
    if family == "integer":
        plain, misfits = decimal_texts(data, starts, ends, 0)
        if column.type.zerofill and column.type.sizes:
            plain = pc.utf8_lpad(plain, column.type.sizes[0], "0")
        return plain, misfits
    raw = span_column(pa.binary(), data, starts, ends)
    if family == "json":
        raw = in_mysqls_order(raw)
    converted = decode_column(raw, column.charset if family == "text" else "utf8mb4")
    return converted, _missing(converted, starts)


def broken_json(data: Bytes, starts: Ints, ends: Ints) -> Flags:
    """Return which values, except NULL, aren't JSON.

    Before 24.0.4 VTGate's stream loses what precedes a BLOB or BIT.
    """
    broken: Flags = (starts >= 0) & (scan_texts(data, starts, ends)[2] == ABSENT)
    return broken


def texts_or_hex(column: Column, data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Convert a column's values as :func:`texts` does, and misfits to hexadecimal."""
    converted, misfits = texts(column, data, starts, ends)
    if misfits.any():
        raw = join("0x", pc.ascii_upper(hexadecimal(data, starts, ends))).cast(pa.string())
        converted = pc.if_else(pa.array(misfits), raw, converted)
    return converted


def _convert_typed(kind: pa.DataType, data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    if pa.types.is_timestamp(kind) or kind == pa.date32():
        micros, states = read_moments(data, starts, ends)
        misfits = (states == NO_DATE) | (states == BROKEN) | (micros < _YEAR_1_US)
        valid = (starts >= 0) & ~misfits
        if kind == pa.date32():
            return fixed_column(kind, (micros // DAY_US).astype(np.int32), valid), misfits
        return fixed_column(kind, micros, valid), misfits
    if pa.types.is_floating(kind):
        return read_floats(data, starts, ends, kind)
    if pa.types.is_decimal(kind):
        return read_decimals(data, starts, ends, kind.precision, kind.scale)
    return read_integers(data, starts, ends, kind.bit_width)


def _times(data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    """Convert values of TIME to microseconds."""
    micros, states = read_times(data, starts, ends)
    misfits = states == BROKEN
    return fixed_column(pa.int64(), micros, (starts >= 0) & ~misfits), misfits


def _members(column: Column, data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    """Convert values of ENUM and SET to names.

    A copy sends names in the column's character set, the stream in UTF-8. Vitess 8 doesn't send the member
    names, so its values remain numbers.
    """
    raw = span_column(pa.binary(), data, starts, ends)
    names = column.type.members
    if column.as_text or not names:
        converted = decode_column(raw, "utf8mb4")
        if converted.null_count > raw.null_count:
            converted = pc.coalesce(converted, decode_column(raw, column.charset))
        return converted, _missing(converted, starts)
    numbers, misfits = read_decimals(data, starts, ends, 20, 0)
    distinct = pc.dictionary_encode(numbers)
    is_set = column.type.name == "set"
    found = [_named(int(number), names, is_set=is_set) for number in distinct.dictionary.to_pylist()]
    converted = pa.array(found, pa.string()).take(distinct.indices)
    return converted, misfits | _missing(converted, starts)


def _named(number: int, names: tuple[str, ...], *, is_set: bool) -> str | None:
    if is_set:
        if number < 0 or number >> len(names):
            return None
        return ",".join(name for bit, name in enumerate(names) if number >> bit & 1)
    if number == 0:
        return ""
    return names[number - 1] if 0 < number <= len(names) else None


def _bits(data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    values = np.zeros(len(starts), np.bool_)
    misfits = np.zeros(len(starts), np.bool_)
    _read_bits(data, starts, ends, values, misfits)
    return pa.array(values, mask=(starts < 0) | misfits), misfits


@walker
def _read_bits(data: Bytes, starts: Ints, ends: Ints, values: Flags, misfits: Flags) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        if ends[row] - starts[row] == 1 and data[starts[row]] <= 1:
            values[row] = data[starts[row]] == 1
        else:
            misfits[row] = True


def _vectors(data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Flags]:
    misfits = (starts >= 0) & ((ends - starts) % _FLOAT_BYTES != 0)
    valid = (starts >= 0) & ~misfits
    raw = span_column(pa.binary(), data, np.where(valid, starts, -1), ends)
    _, offset_buffer, numbers = raw.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(raw) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    content = numbers.slice(first, last - first) if numbers is not None else pa.py_buffer(b"")
    elements = pa.Array.from_buffers(pa.float32(), (last - first) // _FLOAT_BYTES, [None, content])
    bitmap = None if valid.all() else pa.array(valid).buffers()[1]
    element_offsets = pa.py_buffer(((offsets - first) // _FLOAT_BYTES).astype(np.int32))
    return pa.Array.from_buffers(VECTOR, len(raw), [bitmap, element_offsets], children=[elements]), misfits


def _missing(converted: pa.Array, starts: Ints) -> Flags:
    missing: Flags = converted.is_null().to_numpy(zero_copy_only=False) & (starts >= 0)
    return missing


def _no_misfits(starts: Ints) -> Flags:
    return np.zeros(len(starts), np.bool_)
