"""Text of single BSON values in Extended JSON.

:mod:`.extended_json` lists the profiles and combines the values. Kernels write to ``out`` at an offset and
return the end of the text; the caller must check the value's bounds and the capacity of ``out``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.base64_text import write_base64
from airflow_cdc_provider.formats.bson import (
    BINARY,
    BOOLEAN,
    CODE,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
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
)
from airflow_cdc_provider.formats.bson_numbers import INFINITY_BITS, SIGN_BIT
from airflow_cdc_provider.formats.extended_json_numbers import (
    put,
    write_decimal,
    write_integer,
    write_iso_date,
    write_repr,
    write_special,
)
from airflow_cdc_provider.formats.extended_json_text import write_hex, write_sorted, write_string
from airflow_cdc_provider.formats.java_floats import write_number
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, kernel, walker

# The bits of a profile.
WRAPPED: Final = 1
"""Numbers and dates have wrappers with their type."""
VERSION_1: Final = 2
"""Version 1 of Extended JSON: only longs have wrappers, dates are numbers."""
SPACED: Final = 4
"""A space follows each comma."""
PYTHON: Final = 8
"""Values in the form of PyMongo, otherwise in that of the Java driver."""
ASCII: Final = 16
"""Characters outside ASCII are escaped."""
INDENTED: Final = 32
"""Members and elements have lines of their own."""

_LAST_ISO_MS: Final = 253_402_300_799_999


def _text(value: str) -> Bytes:
    return np.frombuffer(value.encode(), np.uint8)


_NULL: Final = _text("null")
_TRUE: Final = _text("true")
_FALSE: Final = _text("false")
_DOUBLE: Final = _text('{"$numberDouble": "')
_INT: Final = _text('{"$numberInt": "')
_LONG: Final = _text('{"$numberLong": "')
_DECIMAL: Final = _text('{"$numberDecimal": "')
_OID: Final = _text('{"$oid": "')
_DATE: Final = _text('{"$date": ')
_BINARY_1: Final = _text('{"$binary": "')
_BINARY_2: Final = _text('{"$binary": {"base64": "')
_TYPE_1: Final = _text('"$type": "')
_TYPE_2: Final = _text('"subType": "')
_REGEX_1: Final = _text('{"$regex": ')
_REGEX_2: Final = _text('{"$regularExpression": {"pattern": ')
_OPTIONS_1: Final = _text('"$options": ')
_OPTIONS_2: Final = _text('"options": ')
_REF: Final = _text('{"$ref": ')
_POINTER: Final = _text('{"$dbPointer": ')
_ID: Final = _text('"$id": ')
CODE_OPENS: Final = _text('{"$code": ')
SCOPE: Final = _text('"$scope": ')
_SYMBOL: Final = _text('{"$symbol": ')
_TIMESTAMP: Final = _text('{"$timestamp": {"t": ')
_INCREMENT: Final = _text('"i": ')
_UNDEFINED: Final = _text('{"$undefined": true}')
_MIN_KEY: Final = _text('{"$minKey": 1}')
_MAX_KEY: Final = _text('{"$maxKey": 1}')
_HEX: Final = _text("0123456789abcdef")
_HEX_UPPER: Final = _text("0123456789ABCDEF")


@walker
def write_separator(profile: Int, out: Bytes, at: Int) -> Int:
    """Write the comma between members."""
    out[at] = 44
    if profile & SPACED:
        out[at + 1] = 32
        return at + 2
    return at + 1


@walker
def close(braces: Int, out: Bytes, at: Int) -> Int:
    """Write closing braces."""
    for i in range(braces):
        out[at + i] = 125
    return at + braces


@walker
def _close_quoted(braces: Int, out: Bytes, at: Int) -> Int:
    out[at] = 34
    return close(braces, out, at + 1)


@walker
def _long(value: Int, out: Bytes, at: Int) -> Int:
    return _close_quoted(1, out, write_integer(value, out, put(_LONG, out, at)))


@walker
def _date(ms: Int, profile: Int, out: Bytes, at: Int) -> Int:
    at = put(_DATE, out, at)
    if profile & VERSION_1:
        at = write_integer(ms, out, at)
    elif profile & WRAPPED or ms < 0 or ms > _LAST_ISO_MS:
        at = _long(ms, out, at)
    else:
        at = write_iso_date(ms, out, at)
    return close(1, out, at)


@kernel
def _double(bits: Int, profile: Int, out: Bytes, at: Int) -> Int:
    size = bits & ~SIGN_BIT
    finite = size < INFINITY_BITS
    wrapped = profile & WRAPPED or not (finite or profile & VERSION_1)
    if wrapped:
        at = put(_DOUBLE, out, at)
    if not finite:
        at = write_special(size > INFINITY_BITS, size != bits, out, at)
    elif profile & PYTHON:
        at = write_repr(bits, out, at)
    else:
        at = write_number(bits, False, out, at)
    return _close_quoted(1, out, at) if wrapped else at


@walker
def _binary(data: Bytes, start: Int, end: Int, profile: Int, out: Bytes, at: Int) -> Int:
    subtype = data[start + 4]
    first = start + 9 if subtype == 2 else start + 5  # the old type repeats its length
    at = put(_BINARY_1, out, at) if profile & VERSION_1 else put(_BINARY_2, out, at)
    at = write_base64(data, first, end, out, at)
    out[at] = 34
    at = write_separator(profile, out, at + 1)
    at = put(_TYPE_1, out, at) if profile & VERSION_1 else put(_TYPE_2, out, at)
    digits = _HEX if profile & PYTHON else _HEX_UPPER
    out[at], out[at + 1] = digits[subtype >> 4], digits[subtype & 15]
    return _close_quoted(1 if profile & VERSION_1 else 2, out, at + 2)


@kernel
def _regex(
    data: Bytes, start: Int, end: Int, profile: Int, out: Bytes, at: Int, escapes: Flags, flaws: Bytes
) -> Int:
    python = profile & PYTHON != 0
    stop = name_end(data, start, end)
    at = put(_REGEX_1, out, at) if profile & VERSION_1 else put(_REGEX_2, out, at)
    at = write_string(data, start, stop, out, at, escapes, python, flaws)
    at = write_separator(profile, out, at)
    at = put(_OPTIONS_1, out, at) if profile & VERSION_1 else put(_OPTIONS_2, out, at)
    if python:
        at = write_string(data, stop + 1, end - 1, out, at, escapes, python, flaws)
    else:
        at = write_sorted(data, stop + 1, end - 1, out, at, escapes, flaws)
    return close(1 if profile & VERSION_1 else 2, out, at)


@kernel
def write_scalar(
    data: Bytes,
    kind: Int,
    start: Int,
    end: Int,
    profile: Int,
    out: Bytes,
    at: Int,
    escapes: Flags,
    flaws: Bytes,
) -> Int:
    """Write a scalar value; the caller has checked its bounds."""
    python = profile & PYTHON != 0
    if kind == STRING:
        return write_string(data, start + 4, end - 1, out, at, escapes, python, flaws)
    if kind == INT32:
        value = read_i32(data, start)
        if profile & WRAPPED:
            return _close_quoted(1, out, write_integer(value, out, put(_INT, out, at)))
        return write_integer(value, out, at)
    if kind == INT64:
        value = np.int64(read_u64(data, start))
        return _long(value, out, at) if profile & (WRAPPED | VERSION_1) else write_integer(value, out, at)
    if kind == DOUBLE:
        return _double(read_u64(data, start), profile, out, at)
    if kind == OBJECT_ID:
        return _close_quoted(1, out, write_hex(data, start, end, out, put(_OID, out, at)))
    if kind == BOOLEAN:
        return put(_TRUE, out, at) if data[start] else put(_FALSE, out, at)
    if kind == DATE:
        return _date(np.int64(read_u64(data, start)), profile, out, at)
    if kind == NULL:
        return put(_NULL, out, at)
    if kind == BINARY:
        return _binary(data, start, end, profile, out, at)
    if kind == DECIMAL128:
        high, low = read_u64(data, start + 8), read_u64(data, start)
        return _close_quoted(1, out, write_decimal(high, low, not python, out, put(_DECIMAL, out, at)))
    if kind == TIMESTAMP:
        at = write_integer(read_i32(data, start + 4) & 0xFFFFFFFF, out, put(_TIMESTAMP, out, at))
        at = put(_INCREMENT, out, write_separator(profile, out, at))
        return close(2, out, write_integer(read_i32(data, start) & 0xFFFFFFFF, out, at))
    if kind == REGEX:
        return _regex(data, start, end, profile, out, at, escapes, flaws)
    if kind in (CODE, SYMBOL):
        at = put(CODE_OPENS, out, at) if kind == CODE else put(_SYMBOL, out, at)
        return close(1, out, write_string(data, start + 4, end - 1, out, at, escapes, python, flaws))
    if kind == DB_POINTER:
        at = put(_REF, out, put(_POINTER, out, at) if profile & WRAPPED else at)
        at = write_string(data, start + 4, end - 13, out, at, escapes, python, flaws)
        at = put(_OID, out, put(_ID, out, write_separator(profile, out, at)))
        return _close_quoted(3 if profile & WRAPPED else 2, out, write_hex(data, end - 12, end, out, at))
    if kind == UNDEFINED:
        return put(_UNDEFINED, out, at)
    return put(_MIN_KEY, out, at) if kind == MIN_KEY else put(_MAX_KEY, out, at)
