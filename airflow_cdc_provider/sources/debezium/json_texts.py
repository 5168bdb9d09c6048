"""JSON strings and bytes: unescaping, canonical form, and base64 decoding."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, column_of, span_column
from airflow_cdc_provider.formats.json_text import STRING, hex_digit
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.debezium.json_members import ValueSpans

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_LARGEST: Final = int(np.iinfo(np.int32).max)


def strings(data: Bytes, values: ValueSpans, *, exact: bool = False) -> pa.Array:
    """Decode strings; null for other values.

    Args:
        data: The buffer.
        values: The values.
        exact: Whether strings with half of a surrogate pair, which UTF-8 can't represent, are null; otherwise
            it becomes U+FFFD.
    """
    own = values.only(STRING)
    starts = np.where(own.starts >= 0, own.starts + 1, -1)
    ends = np.where(own.starts >= 0, own.ends - 1, -1)
    sizes = np.zeros(len(starts) + 1, np.int64)
    plain = _measure(data, starts, ends, sizes)
    if plain:
        return span_column(pa.string(), data, starts, ends)
    offsets = _offsets(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    halves = np.zeros(len(starts), np.bool_)
    _unescape(data, starts, ends, offsets, out, halves)
    return column_of(pa.string(), out, offsets, (starts >= 0) & ~(halves & exact))


def compact(data: Bytes, values: ValueSpans) -> pa.Array:
    """Return values in canonical form: no blanks, only mandatory escapes (of halves of surrogate pairs, too).

    Returns:
        Binary; null for a missing value.
    """
    offsets = np.zeros(len(values.starts) + 1, np.int64)
    # A two-byte escape (\\b) may take six bytes here.
    capacity = np.where(values.starts >= 0, 3 * (values.ends - values.starts), 0).sum()
    out = np.empty(int(capacity), np.uint8)
    _compact(data, values.starts, values.ends, offsets, out)
    if offsets[-1] > _LARGEST:
        raise OverflowError(f"{offsets[-1]} bytes of JSON don't fit one Arrow column")
    return column_of(pa.binary(), out[: offsets[-1]].copy(), offsets, values.starts >= 0)


def from_base64(texts: pa.Array) -> tuple[pa.Array, Flags]:
    """Decode base64, standard alphabet or that of URLs, padded or not.

    Args:
        texts: Strings.

    Returns:
        Binary, null for none or invalid base64; and which texts are invalid.
    """
    data, starts, ends = binary_buffer(texts)
    offsets = np.zeros(len(starts) + 1, np.int64)
    broken = np.zeros(len(starts), np.bool_)
    out = np.empty(int(np.where(starts >= 0, ends - starts, 0).sum()), np.uint8)
    _decode_base64(data, starts, ends, offsets, out, broken)
    valid = (starts >= 0) & ~broken
    return column_of(pa.binary(), out[: offsets[-1]].copy(), offsets, valid), broken


def _offsets(sizes: Ints) -> Ints:
    offsets = np.cumsum(sizes)
    if len(offsets) and offsets[-1] > _LARGEST:
        raise OverflowError(f"{offsets[-1]} bytes of text don't fit one Arrow column")
    return offsets


@walker
def _unit(data: Bytes, at: Int) -> Int:
    """Read the four hexadecimal digits of an escape."""
    value = np.int64(0)
    for i in range(4):
        value = value << 4 | hex_digit(data[at + i])
    return value


@walker
def _next(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Return the next character of a valid string and the offset after it.

    An unescaped byte is returned as -1 - byte.
    """
    byte = np.int64(data[at])
    if byte != 0x5C:
        return -1 - byte, at + 1
    byte = np.int64(data[at + 1])
    if byte != 0x75:
        if byte == 0x62:
            byte = np.int64(0x08)
        elif byte == 0x66:
            byte = np.int64(0x0C)
        elif byte == 0x6E:
            byte = np.int64(0x0A)
        elif byte == 0x72:
            byte = np.int64(0x0D)
        elif byte == 0x74:
            byte = np.int64(0x09)
        return byte, at + 2
    unit = _unit(data, at + 2)
    at += 6
    if 0xD800 <= unit <= 0xDBFF and end - at >= 6 and data[at] == 0x5C and data[at + 1] == 0x75:
        low = _unit(data, at + 2)
        if 0xDC00 <= low <= 0xDFFF:
            return np.int64(0x10000) + ((unit - 0xD800) << 10) + (low - 0xDC00), at + 6
    return unit, at


@walker
def _size(point: Int) -> Int:
    if point < 0x80:
        return 1
    if point < 0x800:
        return 2
    return 3 if point < 0x10000 else 4


@walker
def _put(point: Int, out: Bytes, at: Int) -> Int:
    """Write a character as UTF-8."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at] = 0xC0 | (point >> 6)
    elif point < 0x10000:
        out[at] = 0xE0 | (point >> 12)
    else:
        out[at] = 0xF0 | (point >> 18)
        at += 1
        out[at] = 0x80 | ((point >> 12) & 0x3F)
    if point >= 0x800:
        at += 1
        out[at] = 0x80 | ((point >> 6) & 0x3F)
    out[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@walker
def _measure(data: Bytes, starts: Ints, ends: Ints, sizes: Ints) -> Int:
    """Fill in the unescaped lengths of strings; return whether there are no escapes."""
    plain = True
    for row in range(len(starts)):
        at = starts[row]
        if at < 0:
            continue
        size = np.int64(0)
        while at < ends[row]:
            if data[at] != 0x5C:
                size += 1
                at += 1
            else:
                plain = False
                point, at = _next(data, at, ends[row])
                size += _size(point)
        sizes[row + 1] = size
    return plain


@walker
def _unescape(data: Bytes, starts: Ints, ends: Ints, offsets: Ints, out: Bytes, halves: Flags) -> None:
    for row in range(len(starts)):
        at = starts[row]
        to = offsets[row]
        while 0 <= at < ends[row]:
            point, at = _next(data, at, ends[row])
            if point < 0:
                out[to] = -1 - point
                to += 1
            elif 0xD800 <= point <= 0xDFFF:
                halves[row] = True
                to = _put(np.int64(0xFFFD), out, to)
            else:
                to = _put(point, out, to)


@walker
def _put_escaped(point: Int, out: Bytes, to: Int) -> Int:
    """Write a character of a string, escaped if required."""
    if point in (0x22, 0x5C):
        out[to] = 0x5C
        out[to + 1] = point
        return to + 2
    if point < 0x20 or 0xD800 <= point <= 0xDFFF:
        out[to] = 0x5C
        out[to + 1] = 0x75
        for i in range(4):
            out[to + 2 + i] = _HEX[(point >> (12 - 4 * i)) & 15]
        return to + 6
    return _put(point, out, to)


@walker
def _compact(data: Bytes, starts: Ints, ends: Ints, offsets: Ints, out: Bytes) -> None:
    to = np.int64(0)
    for row in range(len(starts)):
        at = starts[row]
        inside = False
        while 0 <= at < ends[row]:
            byte = data[at]
            if not inside:
                at += 1
                if byte > 0x20:
                    out[to] = byte
                    to += 1
                inside = byte == 0x22
            elif byte == 0x22:
                out[to] = byte
                to += 1
                at += 1
                inside = False
            else:
                point, at = _next(data, at, ends[row])
                if point < 0:
                    out[to] = -1 - point
                    to += 1
                else:
                    to = _put_escaped(point, out, to)
        offsets[row + 1] = to


@walker
def _six_bits(byte: Int) -> Int:
    if 0x41 <= byte <= 0x5A:
        return np.int64(byte) - 0x41
    if 0x61 <= byte <= 0x7A:
        return np.int64(byte) - 0x47
    if 0x30 <= byte <= 0x39:
        return np.int64(byte) + 4
    if byte in (0x2B, 0x2D):
        return np.int64(62)
    if byte in (0x2F, 0x5F):
        return np.int64(63)
    return np.int64(-1)


@walker
def _decode_base64(data: Bytes, starts: Ints, ends: Ints, offsets: Ints, out: Bytes, broken: Flags) -> None:
    to = np.int64(0)
    for row in range(len(starts)):
        begin = to
        end = ends[row]
        while starts[row] >= 0 and end > starts[row] and data[end - 1] == 0x3D:
            end -= 1
        group = np.int64(0)
        bits = 0
        at = starts[row]
        while 0 <= at < end:
            value = _six_bits(data[at])
            if value < 0:
                broken[row] = True
                break
            group = ((group << 6) | value) & 0xFFFFFF
            bits += 6
            if bits >= 8:
                bits -= 8
                out[to] = (group >> bits) & 0xFF
                to += 1
            at += 1
        if bits == 6:
            broken[row] = True
        if broken[row]:
            to = begin
        offsets[row + 1] = to
