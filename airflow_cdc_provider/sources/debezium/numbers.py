"""Kernels that convert Debezium's numbers and timestamps in bytes or text to Arrow columns."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, column_of
from airflow_cdc_provider.formats.dates import days_since_1970, is_date, read_digits
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker

LARGEST_DECIMAL: Final = 256
"""Bytes of the largest supported unscaled value: 616 digits."""
FIRST_DAY: Final = -719_162
"""1 January of year 1, in days since 1970."""
LAST_DAY: Final = 2_932_896
"""31 December of year 9999."""
DAY_US: Final = 86_400_000_000

_MOST_SCALE: Final = 1000
_GROUP: Final = 1_000_000_000
_WORST: Final = 3
"""Maximum number of digits per byte."""


def decimal_texts(unscaled: pa.Array, scales: Ints) -> tuple[pa.Array, Flags]:
    """Format decimals in plain notation.

    Args:
        unscaled: Big-endian two's complement, as in Java's BigInteger.
        scales: Number of digits after the decimal point; negative for zeros before it.

    Returns:
        Strings, null for none or an invalid value; and which values are invalid: too large or empty.
    """
    data, starts, ends = binary_buffer(unscaled)
    broken = (starts >= 0) & ((ends - starts > LARGEST_DECIMAL) | (ends == starts))
    broken |= (starts >= 0) & (np.abs(scales) > _MOST_SCALE)
    starts = np.where(broken, -1, starts)
    capacity = np.where(starts >= 0, _WORST * (ends - starts) + np.abs(scales) + 3, 0)
    out = np.empty(int(capacity.sum()), np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    scratch = np.zeros(LARGEST_DECIMAL, np.uint8)
    digits = np.zeros(_WORST * LARGEST_DECIMAL + 16, np.uint8)
    _write_decimals(data, starts, ends, scales.astype(np.int64), scratch, digits, out, offsets)
    return column_of(pa.string(), out[: offsets[-1]].copy(), offsets, starts >= 0), broken


def read_instants(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Flags, Flags]:
    """Parse ISO 8601 timestamps: ``2024-02-29T12:00:00.5Z``, with or without a zone.

    Args:
        data: A buffer.
        starts: Start of each text, negative for none.
        ends: End of each text.

    Returns:
        Microseconds since 1970 in UTC, truncated, not rounded; which texts are not timestamps of the years 1
        to 9999; and which values were truncated.
    """
    found = np.zeros(len(starts), np.int64)
    broken = np.zeros(len(starts), np.bool_)
    truncated = np.zeros(len(starts), np.bool_)
    _read_instants(data, starts, ends, found, broken, truncated)
    return found, broken, truncated


def whole_parts(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Flags]:
    """Find the floor of each JSON number, by the position of its decimal point.

    Args:
        data: A buffer.
        starts: Start of each number, negative for none.
        ends: End of each number.

    Returns:
        The end of the digits before the decimal point, -1 without a point or with an exponent; the addend to
        them for the floor, 0 or -1; and which numbers have non-zero digits after the point.
    """
    found = np.full(len(starts), -1, np.int64)
    below = np.zeros(len(starts), np.int64)
    truncated = np.zeros(len(starts), np.bool_)
    _find_points(data, starts, ends, found, below, truncated)
    return found, below, truncated


@walker
def _find_points(data: Bytes, starts: Ints, ends: Ints, found: Ints, below: Ints, truncated: Flags) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        point = np.int64(-1)
        rest = False
        for at in range(starts[row], ends[row]):
            byte = data[at]
            if byte == 0x2E:
                point = np.int64(at)
            elif byte in (0x45, 0x65):
                point = np.int64(-1)
                break
            elif point >= 0 and byte != 0x30:
                rest = True
        if point >= 0:
            found[row] = point
            truncated[row] = rest
            if rest and data[starts[row]] == 0x2D:
                below[row] = -1


@walker
def _write_decimals(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    scales: Ints,
    scratch: Bytes,
    digits: Bytes,
    out: Bytes,
    offsets: Ints,
) -> None:
    to = np.int64(0)
    for row in range(len(starts)):
        if starts[row] >= 0:
            size = ends[row] - starts[row]
            negative = data[starts[row]] >= 0x80
            carry = np.int64(1)
            for i in range(size - 1, -1, -1):
                byte = np.int64(data[starts[row] + i])
                if negative:
                    byte = (byte ^ 0xFF) + carry
                    carry = byte >> 8
                scratch[i] = byte & 0xFF
            # A negative number with only zeros after its sign is its own complement, read as unsigned.
            count = _to_digits(scratch, size, digits)
            to = _put_number(digits, count, scales[row], negative, out, to)
        offsets[row + 1] = to


@walker
def _to_digits(scratch: Bytes, size: Int, digits: Bytes) -> Int:
    """Write a number's digits, lowest first, without leading zeros of the number; return their count."""
    count = np.int64(0)
    first = np.int64(0)
    while first < size:
        rest = np.int64(0)
        for i in range(first, size):
            rest = (rest << 8) | np.int64(scratch[i])
            scratch[i] = rest // _GROUP
            rest = rest % _GROUP
        while first < size and scratch[first] == 0:
            first += 1
        for _ in range(9):
            digits[count] = 0x30 + rest % 10
            rest //= 10
            count += 1
    while count > 0 and digits[count - 1] == 0x30:
        count -= 1
    return count


@walker
def _put_number(digits: Bytes, count: Int, scale: Int, negative: bool, out: Bytes, to: Int) -> Int:
    if negative:
        out[to] = 0x2D
        to += 1
    if count <= max(scale, 0):
        out[to] = 0x30
        to += 1
    for digit in range(count - 1, max(scale, 0) - 1, -1):
        out[to] = digits[digit]
        to += 1
    if scale < 0 and count > 0:
        for _ in range(-scale):
            out[to] = 0x30
            to += 1
    if scale > 0:
        out[to] = 0x2E
        to += 1
        for digit in range(scale - 1, -1, -1):
            out[to] = digits[digit] if digit < count else 0x30
            to += 1
    return to


@walker
def _read_instants(
    data: Bytes, starts: Ints, ends: Ints, found: Ints, broken: Flags, truncated: Flags
) -> None:
    for row in range(len(starts)):
        at = starts[row]
        end = ends[row]
        if at < 0:
            continue
        broken[row] = True
        if end - at < 16 or data[at + 4] != 0x2D or data[at + 7] != 0x2D or data[at + 13] != 0x3A:
            continue
        if data[at + 10] != 0x54 and data[at + 10] != 0x20:
            continue
        year = read_digits(data, at, end, 4)
        month = read_digits(data, at + 5, end, 2)
        day = read_digits(data, at + 8, end, 2)
        hour = read_digits(data, at + 11, end, 2)
        minute = read_digits(data, at + 14, end, 2)
        if year < 1 or not is_date(year, month, day) or hour < 0 or hour > 23 or minute < 0 or minute > 59:
            continue
        at += 16
        second = np.int64(0)
        if at < end and data[at] == 0x3A:
            second = read_digits(data, at + 1, end, 2)
            if second < 0 or second > 59:
                continue
            at += 3
        micros = np.int64(0)
        if at < end and data[at] == 0x2E:
            at += 1
            weight = np.int64(100_000)
            while at < end and 0x30 <= data[at] <= 0x39:
                digit = np.int64(data[at]) - 0x30
                micros += digit * weight
                if weight == 0 and digit != 0:
                    truncated[row] = True
                weight //= 10
                at += 1
        minutes = np.int64(0)
        if at < end and data[at] == 0x5A:
            at += 1
        elif at < end and (data[at] == 0x2B or data[at] == 0x2D):
            hours = read_digits(data, at + 1, end, 2)
            rest = read_digits(data, at + 4, end, 2)
            if hours < 0 or rest < 0 or hours > 18 or rest > 59 or data[at + 3] != 0x3A:
                truncated[row] = False
                continue
            minutes = (hours * 60 + rest) * (1 if data[at] == 0x2B else -1)
            at += 6
        if at != end:
            truncated[row] = False
            continue
        seconds = (hour * 60 + minute - minutes) * 60 + second
        found[row] = days_since_1970(year, month, day) * DAY_US + seconds * 1_000_000 + micros
        broken[row] = False
