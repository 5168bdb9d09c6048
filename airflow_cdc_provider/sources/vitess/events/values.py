"""Kernels that convert values of MySQL's columns to the formats of events.

VStream sends text (``docs/source-vitess.md``): dates ``YYYY-MM-DD``, datetimes with `` HH:MM:SS`` and up to
six fractional digits, times ``[-]HHH:MM:SS`` likewise, and decimal numbers. A negative offset means no value.
Kernels read no bytes outside a value and never raise; a text that can't be parsed has the state
:data:`BROKEN`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import column_of, text_array
from airflow_cdc_provider.formats.dates import days_since_1970, is_date, read_digits
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

VALUE: Final = 0
NO_VALUE: Final = 1
"""NULL."""
NO_DATE: Final = 2
"""An invalid date: its month or day is zero, or exceeds the calendar."""
BROKEN: Final = 3
"""A text that can't be parsed."""

DAY_US: Final = 86_400_000_000

_DIGITS: Final = 65
"""Maximum number of digits of a MySQL DECIMAL."""
_NUMBER_BYTES: Final = 28
"""Size of the two's complement of that many digits."""
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)

States = npt.NDArray[np.int8]


def read_moments(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, States]:
    """Parse dates and datetimes.

    Returns:
        Microseconds since 1970 without a time zone (0 if there is no valid value), and the state of each.
    """
    micros = np.zeros(len(starts), np.int64)
    states = np.zeros(len(starts), np.int8)
    _read_moments(data, starts, ends, micros, states)
    return micros, states


def read_times(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, States]:
    """Parse times, which may be negative or longer than a day.

    Returns:
        Microseconds, and the state of each.
    """
    micros = np.zeros(len(starts), np.int64)
    states = np.zeros(len(starts), np.int8)
    _read_times(data, starts, ends, micros, states)
    return micros, states


def unscaled_numbers(data: Bytes, starts: Ints, ends: Ints, scale: int) -> tuple[pa.Array, States]:
    """Encode unscaled decimal numbers as minimal big-endian two's complement.

    Args:
        data: A buffer.
        starts: First byte of each number's text.
        ends: Byte after each.
        scale: Number of fractional digits; numbers with fewer are padded with zeros.

    Returns:
        Binary values, null where there is no number or it is invalid (more than 65 digits, or too many
        fractional digits), and the state of each.
    """
    count = len(starts)
    out = np.zeros(count * _NUMBER_BYTES, np.uint8)
    offsets = np.zeros(count + 1, np.int32)
    states = np.zeros(count, np.int8)
    used = _write_numbers(data, starts, ends, scale, out, offsets, states)
    return column_of(pa.binary(), out[:used], offsets, states == VALUE), states


def hexadecimal(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Encode bytes as hexadecimal text."""
    valid = starts >= 0
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.where(valid, 2 * (ends - starts), 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_hexadecimal(data, starts, ends, out)
    return text_array(out, offsets, valid)


@walker
def _read_moments(data: Bytes, starts: Ints, ends: Ints, micros: Ints, states: States) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            states[row] = NO_VALUE
            continue
        micros[row], states[row] = _moment(data, starts[row], ends[row])


@walker
def _moment(data: Bytes, start: Int, end: Int) -> tuple[Int, Int]:
    none = np.int64(0)
    if end - start < 10 or data[start + 4] != 45 or data[start + 7] != 45:
        return none, BROKEN
    year = read_digits(data, start, end, 4)
    month = read_digits(data, start + 5, end, 2)
    day = read_digits(data, start + 8, end, 2)
    if year < 0 or month < 0 or day < 0:
        return none, BROKEN
    time = none
    if end - start > 10:
        if data[start + 10] != 32 and data[start + 10] != 84:
            return none, BROKEN
        time = _clock(data, start + 11, end)
        if time < 0 or time >= DAY_US:
            return none, BROKEN
    if not is_date(year, month, day):
        return none, NO_DATE
    return days_since_1970(year, month, day) * DAY_US + time, VALUE


@walker
def _read_times(data: Bytes, starts: Ints, ends: Ints, micros: Ints, states: States) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            states[row] = NO_VALUE
            continue
        start = starts[row]
        negative = start < ends[row] and data[start] == 45
        if negative:
            start += 1
        time = _clock(data, start, ends[row])
        if time < 0:
            states[row] = BROKEN
        else:
            micros[row] = -time if negative else time


@walker
def _clock(data: Bytes, start: Int, end: Int) -> Int:
    """Parse ``H[HH]:MM:SS`` with up to six fractional digits; return microseconds, -1 if invalid."""
    broken = np.int64(-1)
    at = start
    while at < end and data[at] != 58:
        at += 1
    hours = read_digits(data, start, at, at - start)
    if at - start < 1 or at - start > 3 or hours < 0 or end - at < 6 or data[at + 3] != 58:
        return broken
    minutes = read_digits(data, at + 1, end, 2)
    seconds = read_digits(data, at + 4, end, 2)
    if minutes < 0 or minutes > 59 or seconds < 0 or seconds > 59:
        return broken
    fraction = np.int64(0)
    at += 6
    if at < end:
        digits = end - at - 1
        if data[at] != 46 or digits > 6:
            return broken
        fraction = read_digits(data, at + 1, end, end - at - 1)
        if fraction < 0:
            return broken
        for _ in range(6 - digits):
            fraction *= 10
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction


@walker
def _write_numbers(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    scale: Int,
    out: Bytes,
    offsets: npt.NDArray[np.int32],
    states: States,
) -> Int:
    used = np.int64(0)
    for row in range(len(starts)):
        if starts[row] < 0:
            states[row] = NO_VALUE
        else:
            states[row], used = _write_number(data, starts[row], ends[row], scale, out, used)
        offsets[row + 1] = used
    return used


@walker
def _write_number(data: Bytes, start: Int, end: Int, scale: Int, out: Bytes, at: Int) -> tuple[Int, Int]:
    """Encode one number; return its state and the offset after it."""
    limit = at + _NUMBER_BYTES
    negative = start < end and data[start] == 45
    first = start + 1 if negative else start
    out[at:limit] = 0
    digits = 0
    fraction_digits = -1
    for i in range(first, end):
        if data[i] == 46 and fraction_digits < 0:
            fraction_digits = 0
            continue
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9 or fraction_digits == scale:
            return BROKEN, at
        if digits or digit:
            digits += 1
        if digits > _DIGITS:
            return BROKEN, at
        if fraction_digits >= 0:
            fraction_digits += 1
        _times_ten(out, at, limit, digit)
    if first == end:
        return BROKEN, at
    for _ in range(scale - max(fraction_digits, 0)):
        if digits:
            digits += 1
        if digits > _DIGITS:
            return BROKEN, at
        _times_ten(out, at, limit, 0)
    if negative:
        _negate(out, at, limit)
    lead = at
    while lead + 1 < limit and (
        (out[lead] == 0 and out[lead + 1] < 128) or (out[lead] == 255 and out[lead + 1] >= 128)
    ):
        lead += 1
    size = limit - lead
    for i in range(size):
        out[at + i] = out[lead + i]
    return VALUE, at + size


@walker
def _times_ten(out: Bytes, start: Int, end: Int, digit: Int) -> None:
    """Multiply a big-endian number by ten and add a digit."""
    carry = np.int64(digit)
    for i in range(end - 1, start - 1, -1):
        total = np.int64(out[i]) * 10 + carry
        out[i] = total & 255
        carry = total >> 8


@walker
def _negate(out: Bytes, start: Int, end: Int) -> None:
    carry = np.int64(1)
    for i in range(end - 1, start - 1, -1):
        total = 255 - np.int64(out[i]) + carry
        out[i] = total & 255
        carry = total >> 8


@walker
def _write_hexadecimal(data: Bytes, starts: Ints, ends: Ints, out: Bytes) -> None:
    at = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            for i in range(starts[row], ends[row]):
                out[at] = _HEX[data[i] >> 4]
                out[at + 1] = _HEX[data[i] & 15]
                at += 2
