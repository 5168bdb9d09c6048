"""Kernels that convert values of MySQL's columns to the formats of events.

VStream sends text (``docs/source-vitess.md``): dates ``YYYY-MM-DD``, datetimes with `` HH:MM:SS`` and up to
six fractional digits, times ``[-]HHH:MM:SS`` likewise, and decimal numbers. A negative offset means no value.
Kernels read no bytes outside a value and never raise; a text that can't be parsed has the state
:data:`BROKEN`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import kernel, walker
from airflow_cdc_provider.changes.spans import Bytes, Ints, column_of
from airflow_cdc_provider.changes.text_kernels import text_array, write_base64

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


def base64_text(data: Bytes, starts: Ints, ends: Ints, *, url_safe: bool = False) -> pa.Array:
    """Encode bytes in base64 with padding; ``url_safe`` with ``-`` and ``_`` instead of ``+`` and ``/``."""
    valid = starts >= 0
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.where(valid, (ends - starts + 2) // 3 * 4, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_base64(data, starts, ends, out)
    if url_safe:
        out[out == ord("+")] = ord("-")
        out[out == ord("/")] = ord("_")
    return text_array(out, offsets, valid)


@walker
def _read_moments(data: Any, starts: Any, ends: Any, micros: Any, states: Any) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            states[row] = NO_VALUE
            continue
        micros[row], states[row] = _moment(data, starts[row], ends[row])


@walker
def _moment(data: Any, start: Any, end: Any) -> Any:
    none = np.int64(0)
    if end - start < 10 or data[start + 4] != 45 or data[start + 7] != 45:
        return none, BROKEN
    year = _digits(data, start, start + 4)
    month = _digits(data, start + 5, start + 7)
    day = _digits(data, start + 8, start + 10)
    if year < 0 or month < 0 or day < 0:
        return none, BROKEN
    time = none
    if end - start > 10:
        if data[start + 10] != 32 and data[start + 10] != 84:
            return none, BROKEN
        time = _clock(data, start + 11, end)
        if time < 0 or time >= DAY_US:
            return none, BROKEN
    if month < 1 or month > 12 or day < 1 or day > _month_days(year, month):
        return none, NO_DATE
    return _days(year, month, day) * DAY_US + time, VALUE


@walker
def _read_times(data: Any, starts: Any, ends: Any, micros: Any, states: Any) -> None:
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
def _clock(data: Any, start: Any, end: Any) -> Any:
    """Parse ``H[HH]:MM:SS`` with up to six fractional digits; return microseconds, -1 if invalid."""
    broken = np.int64(-1)
    at = start
    while at < end and data[at] != 58:
        at += 1
    hours = _digits(data, start, at)
    if at - start < 1 or at - start > 3 or hours < 0 or end - at < 6 or data[at + 3] != 58:
        return broken
    minutes = _digits(data, at + 1, at + 3)
    seconds = _digits(data, at + 4, at + 6)
    if minutes < 0 or minutes > 59 or seconds < 0 or seconds > 59:
        return broken
    fraction = np.int64(0)
    at += 6
    if at < end:
        digits = end - at - 1
        if data[at] != 46 or digits > 6:
            return broken
        fraction = _digits(data, at + 1, end)
        if fraction < 0:
            return broken
        for _ in range(6 - digits):
            fraction *= 10
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction


@walker
def _digits(data: Any, start: Any, end: Any) -> Any:
    """Parse digits; -1 if there is any other byte."""
    number = np.int64(0)
    for i in range(start, end):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = number * 10 + digit
    return number


@walker
def _month_days(year: Any, month: Any) -> Any:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@walker
def _days(year: Any, month: Any, day: Any) -> Any:
    """Return the days since 1970 of a Gregorian date from year 0.

    Years start in March, so that a leap day is the last day (Howard Hinnant's days_from_civil).
    """
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@walker
def _write_numbers(data: Any, starts: Any, ends: Any, scale: Any, out: Any, offsets: Any, states: Any) -> Any:
    used = np.int64(0)
    for row in range(len(starts)):
        if starts[row] < 0:
            states[row] = NO_VALUE
        else:
            states[row], used = _write_number(data, starts[row], ends[row], scale, out, used)
        offsets[row + 1] = used
    return used


@walker
def _write_number(data: Any, start: Any, end: Any, scale: Any, out: Any, at: Any) -> Any:
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
def _times_ten(out: Any, start: Any, end: Any, digit: Any) -> None:
    """Multiply a big-endian number by ten and add a digit."""
    carry = np.int64(digit)
    for i in range(end - 1, start - 1, -1):
        total = np.int64(out[i]) * 10 + carry
        out[i] = total & 255
        carry = total >> 8


@walker
def _negate(out: Any, start: Any, end: Any) -> None:
    carry = np.int64(1)
    for i in range(end - 1, start - 1, -1):
        total = 255 - np.int64(out[i]) + carry
        out[i] = total & 255
        carry = total >> 8


@walker
def _write_hexadecimal(data: Any, starts: Any, ends: Any, out: Any) -> None:
    at = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            for i in range(starts[row], ends[row]):
                out[at] = _HEX[data[i] >> 4]
                out[at + 1] = _HEX[data[i] & 15]
                at += 2


@kernel
def _write_base64(data: Any, starts: Any, ends: Any, out: Any) -> None:
    at = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            at = write_base64(data, starts[row], ends[row], out, at)
