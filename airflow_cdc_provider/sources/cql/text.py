"""Kernels that format values as text, exactly like Cassandra.

uuid: 8-4-4-4-12 hex digits. inet: ``InetAddress.getHostAddress`` (IPv6 without abbreviation; IPv4-mapped IPv6
addresses as IPv4). varint: decimal digits. decimal: ``BigDecimal.toString``, which preserves scale and
unscaled value. duration: CQL's format, such as ``-1y2mo3d4h5m6s7ms8us9ns``; the zero duration is empty.

Each function takes the value's bytes and an output array with an offset, and returns the offset after the
text. Bytes beyond the array's end are counted but not written, so a pass over an empty array returns lengths.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker
from airflow_cdc_provider.sources.cql.digits import write_digits
from airflow_cdc_provider.sources.cql.programs import DECIMAL, DURATION, INET, VARINT
from airflow_cdc_provider.sources.cql.wire import read_i32, read_svint

MALFORMED: Final = -1
"""Result for bytes that are not a valid value of their type."""

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_YEAR_UNITS = np.frombuffer(b"y\0mo", np.uint8)
_TIME_UNITS = np.frombuffer(b"h\0m\0s\0msusns", np.uint8)
_TIME_DIVISORS = np.array([3_600_000_000_000, 60_000_000_000, 1_000_000_000, 1_000_000, 1_000, 1], np.int64)


@walker
def write_text(op: Int, data: Bytes, start: Int, end: Int, scratch: Int, out: Bytes, position: Int) -> Int:
    """Write a value of at least one byte.

    Args:
        op: One of VARINT, DECIMAL, DURATION, INET and the three kinds of UUID.
        data: uint8 array.
        start: Offset of the value.
        end: End of the value.
        scratch: Scratch arrays for values of that length.
        out: uint8 array to write to.
        position: Offset at which to write.

    Returns:
        The offset after the text, or :data:`MALFORMED`.
    """
    if op == VARINT:
        return _write_number(data, start, end, scratch, out, position)
    if op == DECIMAL:
        return _write_decimal(data, start, end, scratch, out, position)
    if op == DURATION:
        return _write_duration(data, start, end, out, position)
    if op == INET:
        return _write_inet(data, start, end, out, position)
    return _write_uuid(data, start, end, out, position)


@walker
def _put(out: Bytes, position: Int, byte: Int) -> Int:
    if position < out.size:
        out[position] = np.uint8(byte)
    return np.int64(position + 1)


@walker
def _write_uuid(data: Bytes, start: Int, end: Int, out: Bytes, position: Int) -> Int:
    if end - start != 16:
        return np.int64(MALFORMED)
    if position + 36 <= out.size:
        at = position
        for i in range(16):
            if i in (4, 6, 8, 10):
                out[at] = 0x2D
                at += 1
            out[at] = _HEX[data[start + i] >> 4]
            out[at + 1] = _HEX[data[start + i] & 15]
            at += 2
    return np.int64(position + 36)


@walker
def _write_inet(data: Bytes, start: Int, end: Int, out: Bytes, position: Int) -> Int:
    length = end - start
    if length == 16:
        mapped = data[start + 10] == 0xFF and data[start + 11] == 0xFF
        for i in range(10):
            mapped = mapped and data[start + i] == 0
        if mapped:
            start += 12
            length = 4
    if length == 4:
        for i in range(4):
            if i:
                position = _put(out, position, 0x2E)
            position = _write_unsigned(np.int64(data[start + i]), out, position)
        return np.int64(position)
    if length != 16:
        return np.int64(MALFORMED)
    for i in range(8):
        if i:
            position = _put(out, position, 0x3A)
        group = (np.int64(data[start + 2 * i]) << 8) | np.int64(data[start + 2 * i + 1])
        shift = 12
        while shift > 0 and group >> shift == 0:
            shift -= 4
        while shift >= 0:
            position = _put(out, position, _HEX[(group >> shift) & 15])
            shift -= 4
    return np.int64(position)


@walker
def _write_unsigned(value: Int, out: Bytes, position: Int) -> Int:
    """Write a non-negative number."""
    power = np.int64(1)
    while value // power >= 10:
        power *= 10
    while power > 0:
        position = _put(out, position, 0x30 + (value // power) % 10)
        power //= 10
    return np.int64(position)


@walker
def _write_number(data: Bytes, start: Int, end: Int, scratch: Int, out: Bytes, position: Int) -> Int:
    digits = scratch.digits
    count = write_digits(data, start, end, scratch)
    if data[start] >= 128:
        position = _put(out, position, 0x2D)
    for i in range(count):
        position = _put(out, position, 0x30 + digits[i])
    return np.int64(position)


@walker
def _write_decimal(data: Bytes, start: Int, end: Int, scratch: Int, out: Bytes, position: Int) -> Int:
    if end - start < 5:
        return np.int64(MALFORMED)
    scale = read_i32(data, start)
    digits = scratch.digits
    count = write_digits(data, start + 4, end, scratch)
    if data[start + 4] >= 128:
        position = _put(out, position, 0x2D)
    adjusted = np.int64(count - 1 - scale)
    if scale >= 0 and adjusted >= -6:
        point = np.int64(count - scale)
        if scale > 0 and point <= 0:
            position = _put(out, position, 0x30)
            position = _put(out, position, 0x2E)
            for _ in range(-point):
                position = _put(out, position, 0x30)
        for i in range(count):
            if 0 < i == point:
                position = _put(out, position, 0x2E)
            position = _put(out, position, 0x30 + digits[i])
        return np.int64(position)
    for i in range(count):
        if i == 1:
            position = _put(out, position, 0x2E)
        position = _put(out, position, 0x30 + digits[i])
    if adjusted != 0:
        position = _put(out, position, 0x45)
        position = _put(out, position, 0x2B if adjusted > 0 else 0x2D)
        position = _write_unsigned(adjusted if adjusted > 0 else -adjusted, out, position)
    return np.int64(position)


@walker
def _write_duration(data: Bytes, start: Int, end: Int, out: Bytes, position: Int) -> Int:
    months, at = read_svint(data, start, end)
    if at < 0:
        return np.int64(MALFORMED)
    days, at = read_svint(data, at, end)
    if at < 0:
        return np.int64(MALFORMED)
    nanoseconds, at = read_svint(data, at, end)
    if at != end:
        return np.int64(MALFORMED)
    if months < 0 or days < 0 or nanoseconds < 0:
        position = _put(out, position, 0x2D)
    months = abs(months)
    years = months // 12
    if years > 0:
        position = _write_unit(years, _YEAR_UNITS, 0, out, position)
    if months % 12 > 0:
        position = _write_unit(months % 12, _YEAR_UNITS, 1, out, position)
    if days != 0:
        position = _write_unsigned(abs(days), out, position)
        position = _put(out, position, 0x64)
    # abs of the least number is negative, as with Java's Math.abs; then no unit is written.
    rest = abs(nanoseconds)
    for unit in range(6):
        divisor = _TIME_DIVISORS[unit]
        if rest >= divisor:
            position = _write_unit(rest // divisor, _TIME_UNITS, unit, out, position)
            rest %= divisor
    return np.int64(position)


@walker
def _write_unit(value: Int, names: Bytes, unit: Int, out: Bytes, position: Int) -> Int:
    position = _write_unsigned(value, out, position)
    position = _put(out, position, names[2 * unit])
    if names[2 * unit + 1]:
        position = _put(out, position, names[2 * unit + 1])
    return np.int64(position)
