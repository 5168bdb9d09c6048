"""Declared columns: values at dotted paths as typed Arrow columns, exact or null.

A declaration is ``'dotted.path type'``. A value is stored in its column only if the column's type holds it
exactly; otherwise the column is null, the value is counted as a misfit, and the mirror's ``document`` still
has it. A missing value, null and undefined are null and not misfits. If a name repeats, the last member
counts. A number in a path is an array index. docs/types-mongodb.md lists which values fit which type.

=============================== ==========================================================================
type                            holds
=============================== ==========================================================================
boolean                         booleans
tinyint, smallint, int, bigint  int32, int64, double and decimal128 of a whole value in range
float, double                   double (float: without rounding), int32; int64 and decimal128 if equal
decimal(p, s)                   int32, int64, decimal128; double by its shortest digits; without rounding
string                          string, symbol, code; ObjectId as 24 hex digits; UUID (subtype 4) as text
binary                          binary of any subtype, ObjectId
date                            dates at midnight UTC
timestamp                       dates of the years 1 to 9999
json                            everything, as canonical Extended JSON
=============================== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_column, span_column
from airflow_cdc_provider.formats.bson import (
    BINARY,
    BOOLEAN,
    CODE,
    DATE,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT_ID,
    STRING,
    SYMBOL,
    UNDEFINED,
    read_i32,
    read_u64,
)
from airflow_cdc_provider.formats.bson_numbers import (
    FINITE,
    INFINITE,
    INFINITY_BITS,
    NAN_BITS,
    SIGN_BIT,
    decimal_as_double,
    decimal_parts,
    double_as_integer,
    integer_as_double,
    scaled_decimal,
)
from airflow_cdc_provider.formats.extended_json import MIRROR, write_values
from airflow_cdc_provider.formats.extended_json_text import code_point, write_hex
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, Words, walker
from airflow_cdc_provider.formats.shortest_decimal import shortest_decimal
from airflow_cdc_provider.sources.mongodb.declared_columns import DeclaredColumn
from airflow_cdc_provider.sources.mongodb.decoding.paths import Paths, Values

_INTEGERS: Final = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_OTHERS: Final = {
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
_MILLISECONDS_PER_DAY: Final = 86_400_000
_FIRST_MILLISECOND: Final = -62_135_596_800_000
_LAST_MILLISECOND: Final = 253_402_300_799_999

Bits = npt.NDArray[np.bool_]


def arrow_type(column: DeclaredColumn) -> pa.DataType:
    """Return the Arrow type of a declared column."""
    if column.decimal is not None:
        return pa.decimal128(*column.decimal)
    return _INTEGERS.get(column.type_name) or _OTHERS[column.type_name]


class LocatedColumn(NamedTuple):
    """A column with the number of its misfits and the spans of all its values."""

    array: pa.Array
    misfits: int
    values: Values


def read_columns(
    columns: Sequence[DeclaredColumn], data: Bytes, starts: Ints, ends: Ints
) -> list[tuple[pa.Array, int]]:
    """Read columns from documents; return each with the number of its misfits.

    Args:
        columns: The columns.
        data: The buffer.
        starts: First byte of each document, -1 for none.
        ends: Byte after each.
    """
    return [(column.array, column.misfits) for column in read_located(columns, data, starts, ends)]


def read_located(
    columns: Sequence[DeclaredColumn], data: Bytes, starts: Ints, ends: Ints
) -> list[LocatedColumn]:
    """Read columns as :func:`read_columns` does; return the spans of their values too."""
    if not columns:
        return []
    found = Paths([column.path for column in columns]).find(data, starts, ends)
    located = []
    for row, column in enumerate(columns):
        values = found.values(row)
        located.append(LocatedColumn(*_read(column, _Column(data, values)), values))
    return located


def read_values(type_name: str, data: Bytes, kinds: Ints, starts: Ints, ends: Ints) -> pa.Array:
    """Read values as a type; null for values that the type can't hold.

    Args:
        type_name: One of the types above except decimal.
        data: The buffer.
        kinds: BSON type of each value, 0 for none.
        starts: First byte of each.
        ends: Byte after.
    """
    return _read(DeclaredColumn("", (), type_name), _Column(data, Values(kinds, starts, ends)))[0]


def _read(column: DeclaredColumn, values: _Column) -> tuple[pa.Array, int]:
    if column.decimal is not None:
        return _decimals(values, *column.decimal)
    if column.type_name in _INTEGERS:
        return _integers(values, _INTEGERS[column.type_name])
    return _READERS[column.type_name](values)


class _Column:
    """The values of one column before conversion to its type."""

    def __init__(self, data: Bytes, values: Values) -> None:
        self.data = data
        self.kinds, self.starts, self.ends = values.kinds, values.starts, values.ends

    def __len__(self) -> int:
        return len(self.kinds)

    def misfits(self, valid: Bits) -> int:
        nothing = (self.kinds == 0) | (self.kinds == NULL) | (self.kinds == UNDEFINED)
        return int(np.count_nonzero(~valid & ~nothing))


def _integers(values: _Column, kind: pa.DataType) -> tuple[pa.Array, int]:
    out = np.zeros(len(values), np.int64)
    valid = np.zeros(len(values), np.bool_)
    _read_integers(values.data, values.kinds, values.starts, out, valid)
    narrow = np.dtype(kind.to_pandas_dtype())
    valid &= (out >= np.iinfo(narrow).min) & (out <= np.iinfo(narrow).max)
    return fixed_column(kind, np.where(valid, out, 0).astype(narrow), valid), values.misfits(valid)


def _doubles(values: _Column) -> tuple[pa.Array, int]:
    bits, valid = _double_bits(values)
    return fixed_column(pa.float64(), bits, valid), values.misfits(valid)


def _floats(values: _Column) -> tuple[pa.Array, int]:
    bits, valid = _double_bits(values)
    wide = bits.view(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32)
    valid &= (narrow == wide) | np.isnan(wide)
    return fixed_column(pa.float32(), narrow, valid), values.misfits(valid)


def _double_bits(values: _Column) -> tuple[npt.NDArray[np.uint64], Bits]:
    bits = np.zeros(len(values), np.uint64)
    valid = np.zeros(len(values), np.bool_)
    _read_doubles(values.data, values.kinds, values.starts, bits, valid)
    return bits, valid


def _decimals(values: _Column, precision: int, scale: int) -> tuple[pa.Array, int]:
    halves = np.zeros((len(values), 2), np.uint64)
    valid = np.zeros(len(values), np.bool_)
    limit = 10**precision
    _read_decimals(
        values.data,
        values.kinds,
        values.starts,
        scale,
        np.uint64(limit >> 64),
        np.uint64(limit & 0xFFFF_FFFF_FFFF_FFFF),
        halves,
        valid,
    )
    return fixed_column(pa.decimal128(precision, scale), halves, valid), values.misfits(valid)


def _booleans(values: _Column) -> tuple[pa.Array, int]:
    valid = values.kinds == BOOLEAN
    out = np.zeros(len(values), np.bool_)
    out[valid] = values.data[values.starts[valid]] != 0
    return pa.array(out, mask=~valid), values.misfits(valid)


def _milliseconds(values: _Column) -> tuple[Ints, Bits]:
    out = np.zeros(len(values), np.int64)
    valid = values.kinds == DATE
    _read_milliseconds(values.data, values.starts, out, valid)
    valid &= (out >= _FIRST_MILLISECOND) & (out <= _LAST_MILLISECOND)
    return np.where(valid, out, 0), valid


def _timestamps(values: _Column) -> tuple[pa.Array, int]:
    out, valid = _milliseconds(values)
    return fixed_column(_OTHERS["timestamp"], out * 1000, valid), values.misfits(valid)


def _dates(values: _Column) -> tuple[pa.Array, int]:
    out, valid = _milliseconds(values)
    days, rest = np.divmod(out, _MILLISECONDS_PER_DAY)
    valid &= rest == 0
    return fixed_column(pa.date32(), days.astype(np.int32), valid), values.misfits(valid)


def _binaries(values: _Column) -> tuple[pa.Array, int]:
    valid = (values.kinds == BINARY) | (values.kinds == OBJECT_ID)
    starts = np.where(valid, values.starts, -1)
    of_binary = values.kinds == BINARY
    starts[of_binary] += 5
    starts[of_binary] += np.where(values.data[starts[of_binary] - 1] == 2, 4, 0)
    return span_column(pa.binary(), values.data, starts, values.ends), values.misfits(valid)


def _strings(values: _Column) -> tuple[pa.Array, int]:
    sizes = np.zeros(len(values) + 1, np.int64)
    valid = np.zeros(len(values), np.bool_)
    _measure_strings(values.data, values.kinds, values.starts, values.ends, sizes, valid)
    offsets = np.cumsum(sizes)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{offsets[-1]} bytes of text don't fit one Arrow column")
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_strings(values.data, values.kinds, values.starts, values.ends, offsets, valid, out)
    return column_of(pa.string(), out, offsets.astype(np.int32), valid), values.misfits(valid)


def _json(values: _Column) -> tuple[pa.Array, int]:
    kinds = np.where((values.kinds == NULL) | (values.kinds == UNDEFINED), 0, values.kinds)
    texts = write_values(values.data, kinds, values.starts, values.ends, MIRROR)
    return texts.column, texts.not_utf8


_READERS: Final[Mapping[str, Callable[[_Column], tuple[pa.Array, int]]]] = {
    "boolean": _booleans,
    "float": _floats,
    "double": _doubles,
    "string": _strings,
    "binary": _binaries,
    "date": _dates,
    "timestamp": _timestamps,
    "json": _json,
}


@walker
def _read_integers(data: Bytes, kinds: Ints, starts: Ints, out: Ints, valid: Flags) -> None:
    for i in range(len(kinds)):
        kind = kinds[i]
        if kind == INT32:
            out[i] = read_i32(data, starts[i])
            valid[i] = True
        elif kind == INT64:
            out[i] = np.int64(read_u64(data, starts[i]))
            valid[i] = True
        elif kind == DOUBLE:
            valid[i], out[i] = double_as_integer(read_u64(data, starts[i]))
        elif kind == DECIMAL128:
            form, negative, high, low, exponent = decimal_parts(
                read_u64(data, starts[i] + 8), read_u64(data, starts[i])
            )
            whole, high, low = scaled_decimal(high, low, exponent, 0)
            if form == FINITE and whole and high == 0 and (low < SIGN_BIT or (negative and low == SIGN_BIT)):
                out[i] = np.int64(~low + np.uint64(1)) if negative else np.int64(low)
                valid[i] = True


@walker
def _read_doubles(data: Bytes, kinds: Ints, starts: Ints, bits: Words, valid: Flags) -> None:
    for i in range(len(kinds)):
        kind = kinds[i]
        if kind == DOUBLE:
            bits[i] = read_u64(data, starts[i])
            valid[i] = True
        elif kind == INT32:
            valid[i], bits[i] = integer_as_double(read_i32(data, starts[i]))
        elif kind == INT64:
            valid[i], bits[i] = integer_as_double(np.int64(read_u64(data, starts[i])))
        elif kind == DECIMAL128:
            form, negative, high, low, exponent = decimal_parts(
                read_u64(data, starts[i] + 8), read_u64(data, starts[i])
            )
            sign = SIGN_BIT if negative else np.uint64(0)
            if form == INFINITE:
                valid[i] = True
                bits[i] = INFINITY_BITS | sign
            elif form != FINITE:
                valid[i] = True
                bits[i] = NAN_BITS
            elif high == 0 and low == 0:
                valid[i] = True
                bits[i] = sign
            else:
                exact, size = decimal_as_double(high, low, exponent)
                valid[i] = exact
                bits[i] = size | sign if exact else np.uint64(0)


@walker
def _read_decimals(
    data: Bytes,
    kinds: Ints,
    starts: Ints,
    scale: int,
    limit_high: Int,
    limit_low: Int,
    halves: Words,
    valid: Flags,
) -> None:
    for i in range(len(kinds)):
        kind = kinds[i]
        high = np.uint64(0)
        low = np.uint64(0)
        exponent = np.int64(0)
        negative: Any = False
        if kind in (INT32, INT64):
            value = read_i32(data, starts[i]) if kind == INT32 else np.int64(read_u64(data, starts[i]))
            negative = value < 0
            low = ~np.uint64(value) + np.uint64(1) if negative else np.uint64(value)
        elif kind == DOUBLE:
            bits = read_u64(data, starts[i])
            if bits & ~SIGN_BIT >= INFINITY_BITS:
                continue
            negative = bits >= SIGN_BIT
            low, exponent = shortest_decimal(bits & ~SIGN_BIT, False, False)
        elif kind == DECIMAL128:
            form, negative, high, low, exponent = decimal_parts(
                read_u64(data, starts[i] + 8), read_u64(data, starts[i])
            )
            if form != FINITE:
                continue
        else:
            continue
        exact, high, low = scaled_decimal(high, low, exponent, scale)
        if not exact or high > limit_high or (high == limit_high and low >= limit_low):
            continue
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(low == 0)
        halves[i, 0] = low
        halves[i, 1] = high
        valid[i] = True


@walker
def _read_milliseconds(data: Bytes, starts: Ints, out: Ints, valid: Flags) -> None:
    for i in range(len(valid)):
        if valid[i]:
            out[i] = np.int64(read_u64(data, starts[i]))


@walker
def _is_uuid(data: Bytes, kind: int, start: int, end: int) -> bool:
    return kind == BINARY and data[start + 4] == 4 and end - start == 21


@walker
def _measure_strings(data: Bytes, kinds: Ints, starts: Ints, ends: Ints, sizes: Ints, valid: Flags) -> None:
    for i in range(len(kinds)):
        kind = kinds[i]
        if kind in (STRING, SYMBOL, CODE):
            pos = starts[i] + 4
            stop = ends[i] - 1
            while pos < stop:
                point, length = code_point(data, pos, stop)
                if point < 0:
                    break
                pos += length
            valid[i] = pos == stop
            sizes[i + 1] = stop - starts[i] - 4 if valid[i] else 0
        elif kind == OBJECT_ID:
            valid[i] = True
            sizes[i + 1] = 24
        elif _is_uuid(data, kind, starts[i], ends[i]):
            valid[i] = True
            sizes[i + 1] = 36


@walker
def _write_strings(
    data: Bytes, kinds: Ints, starts: Ints, ends: Ints, offsets: Ints, valid: Flags, out: Bytes
) -> None:
    for i in range(len(kinds)):
        if not valid[i]:
            continue
        offset = offsets[i]
        if kinds[i] == OBJECT_ID:
            write_hex(data, starts[i], ends[i], out, offset)
        elif kinds[i] == BINARY:
            first = starts[i] + 5
            for group in range(5):
                size = 4 if group == 0 else (6 if group == 4 else 2)
                if group > 0:
                    out[offset] = 0x2D
                    offset += 1
                offset = write_hex(data, first, first + size, out, offset)
                first += size
        else:
            for j in range(offsets[i + 1] - offset):
                out[offset + j] = data[starts[i] + 4 + j]
