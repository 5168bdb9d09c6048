"""Canonical Extended JSON v2, written from BSON bytes by a kernel.

The text equals the output of PyMongo's ``json_util`` in canonical mode, including the separators ``", "`` and
``": "``. It is written from the bytes, so it also contains what Python's types can't hold: members with the
same name, symbols, DBPointers, undefined, options of regular expressions, the order of a DBRef's members,
dates of any year. Doubles have the shortest digits that read back.

Two formats differ in strings only: ``ascii_only`` escapes all characters outside ASCII as ``json_util`` does;
without it text stays UTF-8, for columns that users search. A byte that is not UTF-8 (the server doesn't
check) is replaced by U+FFFD; :func:`write_values` counts the values with replacements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import column_of
from airflow_cdc_provider.formats.base64_text import write_base64
from airflow_cdc_provider.formats.kernels import Bytes, Ints, kernel
from airflow_cdc_provider.sources.mongodb.bson import (
    ARRAY,
    BINARY,
    BOOLEAN,
    BROKEN,
    CODE,
    CODE_WITH_SCOPE,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MAX_DEPTH,
    MAX_KEY,
    MIN_KEY,
    NULL,
    OBJECT_ID,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
    name_end,
    read_i32,
    read_u64,
    scope_start,
    value_end,
)
from airflow_cdc_provider.sources.mongodb.canonical_numbers import (
    put,
    put_decimal,
    put_double,
    put_hex,
    put_integer,
    put_unsigned,
)
from airflow_cdc_provider.sources.mongodb.canonical_strings import put_string

_BUFFER_FULL: Final = -2
_MAX_PER_BYTE: Final = 6
_MAX_PER_ELEMENT: Final = 160


@dataclass(frozen=True)
class Texts:
    """Texts of many values.

    Args:
        column: A string array; null for missing and broken values.
        not_utf8: Number of values with bytes that are not UTF-8.
    """

    column: pa.Array
    not_utf8: int


def write_values(data: Bytes, kinds: Ints, starts: Ints, ends: Ints, *, ascii_only: bool) -> Texts:
    """Write many values as canonical Extended JSON.

    Args:
        data: The buffer.
        kinds: BSON type of each value, 0 for a missing one; a document is a value of type 3.
        starts: First byte of each value.
        ends: Byte after each value.
        ascii_only: Escape characters outside ASCII.

    Raises:
        OverflowError: The texts take 2 GiB or more.
    """
    count = len(kinds)
    offsets = np.zeros(count + 1, np.int64)
    valid = np.zeros(count, np.bool_)
    not_utf8 = np.zeros(count, np.bool_)
    out = np.empty(4096 + 3 * int(np.where(kinds > 0, ends - starts, 0).sum()), np.uint8)
    row = _write_all(data, kinds, starts, ends, ascii_only, out, offsets, valid, not_utf8, 0)
    while row < count:
        missing = _MAX_PER_BYTE * int(ends[row] - starts[row]) + _MAX_PER_ELEMENT
        out = np.concatenate([out[: offsets[row]], np.empty(len(out) + missing, np.uint8)])
        row = _write_all(data, kinds, starts, ends, ascii_only, out, offsets, valid, not_utf8, row)
    used = int(offsets[count])
    if used > np.iinfo(np.int32).max:
        raise OverflowError(f"{used} bytes of text don't fit one Arrow column")
    column = column_of(pa.string(), out[:used], offsets.astype(np.int32), valid)
    return Texts(column, int(np.count_nonzero(not_utf8)))


def _text(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


_NULL: Final = _text("null")
_TRUE: Final = _text("true")
_FALSE: Final = _text("false")
_CLOSE: Final = _text('"}')
_CLOSE_TWICE: Final = _text('"}}')
_OPEN_INT: Final = _text('{"$numberInt": "')
_OPEN_LONG: Final = _text('{"$numberLong": "')
_OPEN_DOUBLE: Final = _text('{"$numberDouble": "')
_OPEN_DECIMAL: Final = _text('{"$numberDecimal": "')
_OPEN_DATE: Final = _text('{"$date": {"$numberLong": "')
_OPEN_OID: Final = _text('{"$oid": "')
_OPEN_BINARY: Final = _text('{"$binary": {"base64": "')
_SUBTYPE: Final = _text('", "subType": "')
_OPEN_REGEX: Final = _text('{"$regularExpression": {"pattern": ')
_OPTIONS: Final = _text(', "options": ')
_END: Final = _text("}")
_END_TWICE: Final = _text("}}")
_OPEN_POINTER: Final = _text('{"$dbPointer": {"$ref": ')
_POINTER_ID: Final = _text(', "$id": {"$oid": "')
_CLOSE_THRICE: Final = _text('"}}}')
_OPEN_CODE: Final = _text('{"$code": ')
_SCOPE: Final = _text(', "$scope": ')
_OPEN_SYMBOL: Final = _text('{"$symbol": ')
_OPEN_TIMESTAMP: Final = _text('{"$timestamp": {"t": ')
_INCREMENT: Final = _text(', "i": ')
_UNDEFINED: Final = _text('{"$undefined": true}')
_MIN_KEY: Final = _text('{"$minKey": 1}')
_MAX_KEY: Final = _text('{"$maxKey": 1}')


@kernel
def _write_all(
    data: Any,
    kinds: Any,
    starts: Any,
    ends: Any,
    ascii_only: bool,
    out: Any,
    offsets: Any,
    valid: Any,
    not_utf8: Any,
    first: int,
) -> Any:
    """Write values from ``first`` on; return the row that didn't fit into ``out``, or the number of rows."""
    stack = np.empty(MAX_DEPTH, np.int64)
    shape = np.empty(MAX_DEPTH, np.uint8)
    bad = np.zeros(1, np.int64)
    for row in range(first, len(kinds)):
        used = offsets[row]
        valid[row] = False
        if kinds[row] > 0:
            bad[0] = 0
            after = _write_value(
                data, kinds[row], starts[row], ends[row], ascii_only, out, used, stack, shape, bad
            )
            if after == _BUFFER_FULL:
                return row
            if after >= 0:
                used = after
                valid[row] = True
                not_utf8[row] = bad[0] > 0
        offsets[row + 1] = used
    return len(kinds)


_SHAPE_DOCUMENT: Final = 0
_SHAPE_ARRAY: Final = 1
_SHAPE_SCOPE: Final = 2


@kernel
def _write_value(
    data: Any,
    kind: int,
    start: int,
    end: int,
    ascii_only: bool,
    out: Any,
    used: int,
    stack: Any,
    shape: Any,
    bad: Any,
) -> Any:
    if value_end(data, kind, start, end) != end:
        return BROKEN
    if (
        len(out) - used
        < _MAX_PER_BYTE * (end - start if kind not in (DOCUMENT, ARRAY) else 0) + _MAX_PER_ELEMENT
    ):
        return _BUFFER_FULL
    if kind not in (DOCUMENT, ARRAY, CODE_WITH_SCOPE):
        return _write_scalar(data, kind, start, end, ascii_only, out, used, bad)
    pos, used = _open(data, kind, start, ascii_only, out, used, bad)
    depth = 0
    stack[0] = end - 1
    shape[0] = _shape(kind)
    first = True
    while True:
        if pos == stack[depth]:
            out[used] = 0x5D if shape[depth] == _SHAPE_ARRAY else 0x7D
            used += 1
            if shape[depth] == _SHAPE_SCOPE:
                out[used] = 0x7D
                used += 1
            if depth == 0:
                return used
            depth -= 1
            pos += 1
            first = False
            continue
        inner = np.int64(data[pos])
        name = name_end(data, pos + 1, stack[depth])
        if name < 0:
            return BROKEN
        stop = value_end(data, inner, name + 1, stack[depth])
        if stop < 0:
            return BROKEN
        nested = inner in (DOCUMENT, ARRAY)
        size = name - pos + (0 if nested else stop - name)
        if len(out) - used < _MAX_PER_BYTE * size + _MAX_PER_ELEMENT:
            return _BUFFER_FULL
        if not first:
            out[used] = 0x2C
            out[used + 1] = 0x20
            used += 2
        if shape[depth] != _SHAPE_ARRAY:
            used = put_string(data, pos + 1, name, ascii_only, out, used, bad)
            out[used] = 0x3A
            out[used + 1] = 0x20
            used += 2
        if nested or inner == CODE_WITH_SCOPE:
            depth += 1
            if depth >= MAX_DEPTH:
                return BROKEN
            pos, used = _open(data, inner, name + 1, ascii_only, out, used, bad)
            stack[depth] = stop - 1
            shape[depth] = _shape(inner)
            first = True
        else:
            used = _write_scalar(data, inner, name + 1, stop, ascii_only, out, used, bad)
            pos = stop
            first = False


@kernel
def _shape(kind: int) -> Any:
    if kind == CODE_WITH_SCOPE:
        return _SHAPE_SCOPE
    return _SHAPE_ARRAY if kind == ARRAY else _SHAPE_DOCUMENT


@kernel
def _open(data: Any, kind: int, start: int, ascii_only: bool, out: Any, used: int, bad: Any) -> Any:
    """Write the text before the members; return the start of the members and the bytes used."""
    if kind == CODE_WITH_SCOPE:
        inner = scope_start(data, start)
        used = put(_OPEN_CODE, out, used)
        used = put_string(data, start + 8, inner - 1, ascii_only, out, used, bad)
        used = put(_SCOPE, out, used)
        start = inner
    out[used] = 0x5B if kind == ARRAY else 0x7B
    return start + 4, used + 1


@kernel
def _write_scalar(  # one return per type
    data: Any, kind: int, start: int, end: int, ascii_only: bool, out: Any, used: int, bad: Any
) -> Any:
    if kind == STRING:
        return put_string(data, start + 4, end - 1, ascii_only, out, used, bad)
    if kind == INT32:
        used = put(_OPEN_INT, out, used)
        return put(_CLOSE, out, put_integer(read_i32(data, start), out, used))
    if kind == INT64:
        used = put(_OPEN_LONG, out, used)
        return put(_CLOSE, out, put_integer(np.int64(read_u64(data, start)), out, used))
    if kind == DOUBLE:
        used = put(_OPEN_DOUBLE, out, used)
        return put(_CLOSE, out, put_double(read_u64(data, start), out, used))
    if kind == OBJECT_ID:
        used = put(_OPEN_OID, out, used)
        return put(_CLOSE, out, put_hex(data, start, end, out, used))
    if kind == BOOLEAN:
        return put(_TRUE, out, used) if data[start] else put(_FALSE, out, used)
    if kind == DATE:
        used = put(_OPEN_DATE, out, used)
        return put(_CLOSE_TWICE, out, put_integer(np.int64(read_u64(data, start)), out, used))
    if kind == NULL:
        return put(_NULL, out, used)
    if kind == BINARY:
        return _write_binary(data, start, end, out, used)
    if kind == DECIMAL128:
        used = put(_OPEN_DECIMAL, out, used)
        used = put_decimal(read_u64(data, start + 8), read_u64(data, start), out, used)
        return put(_CLOSE, out, used)
    if kind == TIMESTAMP:
        used = put(_OPEN_TIMESTAMP, out, used)
        value = read_u64(data, start)
        used = put_unsigned(value >> np.uint64(32), out, used)
        used = put(_INCREMENT, out, used)
        return put(_END_TWICE, out, put_unsigned(value & np.uint64(0xFFFFFFFF), out, used))
    if kind == REGEX:
        middle = name_end(data, start, end)
        used = put(_OPEN_REGEX, out, used)
        used = put_string(data, start, middle, ascii_only, out, used, bad)
        used = put(_OPTIONS, out, used)
        used = put_string(data, middle + 1, end - 1, ascii_only, out, used, bad)
        return put(_END_TWICE, out, used)
    if kind == CODE:
        used = put(_OPEN_CODE, out, used)
        used = put_string(data, start + 4, end - 1, ascii_only, out, used, bad)
        return put(_END, out, used)
    if kind == SYMBOL:
        used = put(_OPEN_SYMBOL, out, used)
        used = put_string(data, start + 4, end - 1, ascii_only, out, used, bad)
        return put(_END, out, used)
    if kind == DB_POINTER:
        used = put(_OPEN_POINTER, out, used)
        used = put_string(data, start + 4, end - 13, ascii_only, out, used, bad)
        used = put(_POINTER_ID, out, used)
        return put(_CLOSE_THRICE, out, put_hex(data, end - 12, end, out, used))
    if kind == UNDEFINED:
        return put(_UNDEFINED, out, used)
    if kind == MIN_KEY:
        return put(_MIN_KEY, out, used)
    if kind == MAX_KEY:
        return put(_MAX_KEY, out, used)
    return BROKEN


@kernel
def _write_binary(data: Any, start: int, end: int, out: Any, used: int) -> Any:
    subtype = np.int64(data[start + 4])
    first = start + 9 if subtype == 2 else start + 5
    used = put(_OPEN_BINARY, out, used)
    used = write_base64(data, first, end, out, used)
    used = put(_SUBTYPE, out, used)
    used = put_hex(data, start + 4, start + 5, out, used)
    return put(_CLOSE_TWICE, out, used)
