"""Canonical Extended JSON v2 (relaxed nowhere), written from BSON bytes by a kernel.

The text is the one that PyMongo's ``json_util`` prints in its canonical mode, separators ``", "`` and ``":
"`` included, but made of the bytes, so that what Python's types can't hold stays: members of the same name,
symbols, DBPointers, undefined, options of regular expressions, the order of a DBRef's members, dates of any
year. Digits of doubles are the shortest that read back.

Two forms differ in strings only: ``ascii_only`` escapes all outside ASCII as ``json_util`` does; without it
text stays UTF-8, for columns that people search. A byte that is no UTF-8 (the server doesn't check) shows as
U+FFFD; :func:`write_values` counts the values in which that happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import kernel
from airflow_cdc_provider.sources.mongodb.arrow import column_of
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
    Bytes,
    Ints,
    name_end,
    read_i32,
    read_u64,
    scope_start,
    value_end,
)
from airflow_cdc_provider.sources.mongodb.numbers import (
    FINITE,
    INFINITE,
    INFINITY_BITS,
    SIGN_BIT,
    decimal_parts,
    divide_128,
    shortest_digits,
)

_NO_ROOM: Final = -2
_ROOM_PER_BYTE: Final = 6
_ROOM_PER_ELEMENT: Final = 160


@dataclass(frozen=True)
class Texts:
    """Texts of many values.

    Args:
        column: A string array; null where the value isn't there or its bytes are broken.
        not_utf8: How many values hold bytes that are no UTF-8.
    """

    column: pa.Array
    not_utf8: int


def write_values(data: Bytes, kinds: Ints, starts: Ints, ends: Ints, *, ascii_only: bool) -> Texts:
    """Write many values as canonical Extended JSON.

    Args:
        data: The buffer.
        kinds: BSON type of each value, 0 for one that isn't there; a document is a value of type 3.
        starts: First byte of each value.
        ends: Byte after each value.
        ascii_only: Escape what is outside ASCII.

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
        missing = _ROOM_PER_BYTE * int(ends[row] - starts[row]) + _ROOM_PER_ELEMENT
        out = np.concatenate([out[: offsets[row]], np.empty(len(out) + missing, np.uint8)])
        row = _write_all(data, kinds, starts, ends, ascii_only, out, offsets, valid, not_utf8, row)
    used = int(offsets[count])
    if used > np.iinfo(np.int32).max:
        raise OverflowError(f"{used} bytes of text don't fit one Arrow column")
    column = column_of(pa.string(), out[:used], offsets.astype(np.int32), valid)
    return Texts(column, int(np.count_nonzero(not_utf8)))


def _text(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


_HEX: Final = _text("0123456789abcdef")
_BASE64: Final = _text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_NULL: Final = _text("null")
_TRUE: Final = _text("true")
_FALSE: Final = _text("false")
_NAN: Final = _text("NaN")
_INFINITY: Final = _text("Infinity")
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
    """Write values from ``first`` on; return the row for which the room didn't suffice, or their number."""
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
            if after == _NO_ROOM:
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
        < _ROOM_PER_BYTE * (end - start if kind not in (DOCUMENT, ARRAY) else 0) + _ROOM_PER_ELEMENT
    ):
        return _NO_ROOM
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
        if len(out) - used < _ROOM_PER_BYTE * size + _ROOM_PER_ELEMENT:
            return _NO_ROOM
        if not first:
            out[used] = 0x2C
            out[used + 1] = 0x20
            used += 2
        if shape[depth] != _SHAPE_ARRAY:
            used = _write_string(data, pos + 1, name, ascii_only, out, used, bad)
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
    """Write what stands before the members; return where the members begin and the bytes used."""
    if kind == CODE_WITH_SCOPE:
        inner = scope_start(data, start)
        used = _put(_OPEN_CODE, out, used)
        used = _write_string(data, start + 8, inner - 1, ascii_only, out, used, bad)
        used = _put(_SCOPE, out, used)
        start = inner
    out[used] = 0x5B if kind == ARRAY else 0x7B
    return start + 4, used + 1


@kernel
def _write_scalar(  # one return per type
    data: Any, kind: int, start: int, end: int, ascii_only: bool, out: Any, used: int, bad: Any
) -> Any:
    if kind == STRING:
        return _write_string(data, start + 4, end - 1, ascii_only, out, used, bad)
    if kind == INT32:
        used = _put(_OPEN_INT, out, used)
        return _put(_CLOSE, out, put_integer(read_i32(data, start), out, used))
    if kind == INT64:
        used = _put(_OPEN_LONG, out, used)
        return _put(_CLOSE, out, put_integer(np.int64(read_u64(data, start)), out, used))
    if kind == DOUBLE:
        used = _put(_OPEN_DOUBLE, out, used)
        return _put(_CLOSE, out, put_double(read_u64(data, start), out, used))
    if kind == OBJECT_ID:
        used = _put(_OPEN_OID, out, used)
        return _put(_CLOSE, out, put_hex(data, start, end, out, used))
    if kind == BOOLEAN:
        return _put(_TRUE, out, used) if data[start] else _put(_FALSE, out, used)
    if kind == DATE:
        used = _put(_OPEN_DATE, out, used)
        return _put(_CLOSE_TWICE, out, put_integer(np.int64(read_u64(data, start)), out, used))
    if kind == NULL:
        return _put(_NULL, out, used)
    if kind == BINARY:
        return _write_binary(data, start, end, out, used)
    if kind == DECIMAL128:
        used = _put(_OPEN_DECIMAL, out, used)
        used = put_decimal(read_u64(data, start + 8), read_u64(data, start), out, used)
        return _put(_CLOSE, out, used)
    if kind == TIMESTAMP:
        used = _put(_OPEN_TIMESTAMP, out, used)
        value = read_u64(data, start)
        used = _put_unsigned(value >> np.uint64(32), out, used)
        used = _put(_INCREMENT, out, used)
        return _put(_END_TWICE, out, _put_unsigned(value & np.uint64(0xFFFFFFFF), out, used))
    if kind == REGEX:
        middle = name_end(data, start, end)
        used = _put(_OPEN_REGEX, out, used)
        used = _write_string(data, start, middle, ascii_only, out, used, bad)
        used = _put(_OPTIONS, out, used)
        used = _write_string(data, middle + 1, end - 1, ascii_only, out, used, bad)
        return _put(_END_TWICE, out, used)
    if kind == CODE:
        used = _put(_OPEN_CODE, out, used)
        used = _write_string(data, start + 4, end - 1, ascii_only, out, used, bad)
        return _put(_END, out, used)
    if kind == SYMBOL:
        used = _put(_OPEN_SYMBOL, out, used)
        used = _write_string(data, start + 4, end - 1, ascii_only, out, used, bad)
        return _put(_END, out, used)
    if kind == DB_POINTER:
        used = _put(_OPEN_POINTER, out, used)
        used = _write_string(data, start + 4, end - 13, ascii_only, out, used, bad)
        used = _put(_POINTER_ID, out, used)
        return _put(_CLOSE_THRICE, out, put_hex(data, end - 12, end, out, used))
    if kind == UNDEFINED:
        return _put(_UNDEFINED, out, used)
    if kind == MIN_KEY:
        return _put(_MIN_KEY, out, used)
    if kind == MAX_KEY:
        return _put(_MAX_KEY, out, used)
    return BROKEN


@kernel
def _put(text: Any, out: Any, used: int) -> Any:
    for i in range(len(text)):
        out[used + i] = text[i]
    return used + len(text)


@kernel
def put_hex(data: Any, start: int, end: int, out: Any, used: int) -> Any:
    """Write bytes as lower-case hex digits; return the bytes used then."""
    for i in range(start, end):
        out[used] = _HEX[data[i] >> 4]
        out[used + 1] = _HEX[data[i] & 15]
        used += 2
    return used


@kernel
def _put_unsigned(value: Any, out: Any, used: int) -> Any:
    length = 1
    rest = value // np.uint64(10)
    while rest > 0:
        rest //= np.uint64(10)
        length += 1
    for i in range(length):
        out[used + length - 1 - i] = 0x30 + value % np.uint64(10)
        value //= np.uint64(10)
    return used + length


@kernel
def put_integer(value: Any, out: Any, used: int) -> Any:
    """Write an int64 in decimal; return the bytes used then."""
    size = np.uint64(value)
    if value < 0:
        out[used] = 0x2D
        used += 1
        size = ~size + np.uint64(1)
    return _put_unsigned(size, out, used)


@kernel
def _put_zeros(count: int, out: Any, used: int) -> Any:
    for i in range(count):
        out[used + i] = 0x30
    return used + count


@kernel
def put_double(bits: Any, out: Any, used: int) -> Any:
    """Write a double as Python's ``repr`` does, but ``NaN`` and ``Infinity`` as Extended JSON spells them."""
    size = bits & ~SIGN_BIT
    if size > INFINITY_BITS:
        return _put(_NAN, out, used)
    if bits != size:
        out[used] = 0x2D
        used += 1
    if size == INFINITY_BITS:
        return _put(_INFINITY, out, used)
    digits, exponent = shortest_digits(size)
    end = _put_unsigned(digits, out, used)
    length = end - used
    point = length + exponent
    if digits == 0:
        point = 1
    if point > 16 or point < -3:
        end = _insert_point(out, used, end, 1) if length > 1 else end
        out[end] = 0x65
        power = point - 1
        out[end + 1] = 0x2D if power < 0 else 0x2B
        power = -power if power < 0 else power
        end = _put_zeros(1, out, end + 2) if power < 10 else end + 2
        return _put_unsigned(np.uint64(power), out, end)
    if point <= 0:
        return _lead_with_zeros(out, used, end, -point)
    if point >= length:
        end = _put_zeros(point - length, out, end)
        out[end] = 0x2E
        out[end + 1] = 0x30
        return end + 2
    return _insert_point(out, used, end, point)


@kernel
def _insert_point(out: Any, start: int, end: int, place: int) -> Any:
    for i in range(end, start + place, -1):
        out[i] = out[i - 1]
    out[start + place] = 0x2E
    return end + 1


@kernel
def _lead_with_zeros(out: Any, start: int, end: int, zeros: int) -> Any:
    shift = zeros + 2
    for i in range(end - 1, start - 1, -1):
        out[i + shift] = out[i]
    out[start] = 0x30
    out[start + 1] = 0x2E
    _put_zeros(zeros, out, start + 2)
    return end + shift


@kernel
def put_decimal(high: Any, low: Any, out: Any, used: int) -> Any:
    """Write a decimal128 by the rules of its specification; return the bytes used then."""
    kind, negative, high, low, exponent = decimal_parts(high, low)
    if kind not in (FINITE, INFINITE):
        return _put(_NAN, out, used)
    if negative:
        out[used] = 0x2D
        used += 1
    if kind == INFINITE:
        return _put(_INFINITY, out, used)
    billion = np.uint64(1_000_000_000)
    parts = np.empty(5, np.uint64)
    count = 0
    while True:
        high, low, parts[count] = divide_128(high, low, billion)
        count += 1
        if high == 0 and low == 0:
            break
    end = _put_unsigned(parts[count - 1], out, used)
    for i in range(count - 2, -1, -1):
        part = parts[i]
        for j in range(9):
            out[end + 8 - j] = 0x30 + part % np.uint64(10)
            part //= np.uint64(10)
        end += 9
    length = end - used
    adjusted = exponent + length - 1
    if exponent > 0 or adjusted < -6:
        end = _insert_point(out, used, end, 1) if length > 1 else end
        out[end] = 0x45
        out[end + 1] = 0x2D if adjusted < 0 else 0x2B
        return _put_unsigned(np.uint64(-adjusted if adjusted < 0 else adjusted), out, end + 2)
    if exponent == 0:
        return end
    if length + exponent <= 0:
        return _lead_with_zeros(out, used, end, -(length + exponent))
    return _insert_point(out, used, end, length + exponent)


@kernel
def _write_binary(data: Any, start: int, end: int, out: Any, used: int) -> Any:
    subtype = np.int64(data[start + 4])
    first = start + 9 if subtype == 2 else start + 5
    used = _put(_OPEN_BINARY, out, used)
    pos = first
    while end - pos >= 3:
        a = np.int64(data[pos])
        b = np.int64(data[pos + 1])
        c = np.int64(data[pos + 2])
        out[used] = _BASE64[a >> 2]
        out[used + 1] = _BASE64[((a & 3) << 4) | (b >> 4)]
        out[used + 2] = _BASE64[((b & 15) << 2) | (c >> 6)]
        out[used + 3] = _BASE64[c & 63]
        used += 4
        pos += 3
    if end > pos:
        a = np.int64(data[pos])
        b = np.int64(data[pos + 1]) if end - pos == 2 else np.int64(0)
        out[used] = _BASE64[a >> 2]
        out[used + 1] = _BASE64[((a & 3) << 4) | (b >> 4)]
        out[used + 2] = _BASE64[(b & 15) << 2] if end - pos == 2 else 0x3D
        out[used + 3] = 0x3D
        used += 4
    used = _put(_SUBTYPE, out, used)
    used = put_hex(data, start + 4, start + 5, out, used)
    return _put(_CLOSE_TWICE, out, used)


@kernel
def code_point(data: Any, pos: int, end: int) -> Any:
    """Decode one character: its code point and length in bytes; code point -1, length 1 if it is no UTF-8."""
    lead = np.int64(data[pos])
    if lead < 0x80:
        return lead, 1
    if 0xC2 <= lead <= 0xDF:
        length = 2
        value = lead & 0x1F
        smallest = 0x80
    elif 0xE0 <= lead <= 0xEF:
        length = 3
        value = lead & 0x0F
        smallest = 0x800
    elif 0xF0 <= lead <= 0xF4:
        length = 4
        value = lead & 0x07
        smallest = 0x10000
    else:
        return np.int64(-1), 1
    if end - pos < length:
        return np.int64(-1), 1
    for i in range(1, length):
        following = np.int64(data[pos + i])
        if following & 0xC0 != 0x80:
            return np.int64(-1), 1
        value = (value << 6) | (following & 0x3F)
    if value < smallest or value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
        return np.int64(-1), 1
    return value, length


@kernel
def _put_escape(unit: int, out: Any, used: int) -> Any:
    out[used] = 0x5C
    out[used + 1] = 0x75
    for i in range(4):
        out[used + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return used + 6


@kernel
def _short_escape(byte: int) -> Any:
    if byte == 0x0A:
        return 0x6E
    if byte == 0x0D:
        return 0x72
    if byte == 0x09:
        return 0x74
    if byte == 0x08:
        return 0x62
    if byte == 0x0C:
        return 0x66
    return byte if byte in (0x22, 0x5C) else 0


@kernel
def _write_string(data: Any, start: int, end: int, ascii_only: bool, out: Any, used: int, bad: Any) -> Any:
    out[used] = 0x22
    used += 1
    pos = start
    while pos < end:
        byte = np.int64(data[pos])
        if 0x20 <= byte < 0x7F and byte not in (0x22, 0x5C):
            out[used] = byte
            used += 1
            pos += 1
            continue
        if byte < 0x80:
            short = _short_escape(byte)
            if short:
                out[used] = 0x5C
                out[used + 1] = short
                used += 2
            elif byte == 0x7F and not ascii_only:
                out[used] = byte
                used += 1
            else:
                used = _put_escape(byte, out, used)
            pos += 1
            continue
        value, length = code_point(data, pos, end)
        if value < 0:
            bad[0] += 1
            if ascii_only:
                used = _put_escape(0xFFFD, out, used)
            else:
                out[used] = 0xEF
                out[used + 1] = 0xBF
                out[used + 2] = 0xBD
                used += 3
        elif not ascii_only:
            for i in range(length):
                out[used + i] = data[pos + i]
            used += length
        elif value < 0x10000:
            used = _put_escape(value, out, used)
        else:
            used = _put_escape(0xD7C0 + (value >> 10), out, used)
            used = _put_escape(0xDC00 + (value & 0x3FF), out, used)
        pos += length
    out[used] = 0x22
    return used + 1
