"""Numbers of Extended JSON: integers, decimals, doubles as Python writes them, and ISO dates."""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.bson_numbers import FINITE, INFINITE, SIGN_BIT, decimal_parts, divide_128
from airflow_cdc_provider.formats.byte_kernels import OFFSET
from airflow_cdc_provider.formats.kernels import Bytes, Int, kernel, walker
from airflow_cdc_provider.formats.shortest_decimal import shortest_decimal

_NAN: Final = np.frombuffer(b"NaN", np.uint8)
_INFINITY: Final = np.frombuffer(b"Infinity", np.uint8)
_POWERS: Final = np.array([10**n for n in range(20)], np.uint64)
_COEFFICIENT: Final = np.uint64((1 << 49) - 1)
_BILLION: Final = np.uint64(10**9)


@walker
def put(text: Bytes, out: Bytes, at: Int) -> Int:
    """Write bytes unchanged; return the offset after them, as all functions here do."""
    at &= OFFSET
    for i in range(len(text)):
        out[at + i] = text[i]
    return at + len(text)


@walker
def write_integer(value: Int, out: Bytes, at: Int) -> Int:
    """Write an int64."""
    at &= OFFSET
    size = np.uint64(value)
    if value < 0:
        out[at] = 45
        at += 1
        size = ~size + np.uint64(1)
    count = 1
    while count < len(_POWERS) and size >= _POWERS[count]:
        count += 1
    return _write_digits(size, count, out, at)


@walker
def _write_digits(value: Int, count: Int, out: Bytes, at: Int) -> Int:
    """Write the last digits of a uint64."""
    at &= OFFSET
    for i in range(count):
        out[at + count - 1 - i] = np.uint8(value % np.uint64(10)) + np.uint8(48)
        value //= np.uint64(10)
    return at + count


@walker
def write_special(is_nan: bool, negative: bool, out: Bytes, at: Int) -> Int:
    """Write NaN, which has no sign, or infinity."""
    if is_nan:
        return put(_NAN, out, at)
    if negative:
        out[at] = 45
        at += 1
    return put(_INFINITY, out, at)


@walker
def write_repr(bits: Int, out: Bytes, at: Int) -> Int:
    """Write a finite double as Python's ``repr`` does."""
    size = bits & ~SIGN_BIT
    if bits != size:
        out[at] = 45
        at += 1
    digits, exponent = shortest_decimal(size, False, False)
    end = write_integer(np.int64(digits), out, at)
    point = end - at + exponent if digits else 1
    if point > 16 or point < -3:
        return _write_exponent(out, at, end, 101, point - 1, 2)
    if point < end - at:
        return _write_point(out, at, end, point)
    while end - at < point:
        out[end] = 48
        end += 1
    out[end], out[end + 1] = 46, 48
    return end + 2


@walker
def _write_exponent(out: Bytes, start: Int, end: Int, mark: Int, power: Int, width: Int) -> Int:
    """Append an exponent of at least ``width`` digits to digits, and put the point after the first one."""
    if end - start > 1:
        end = _write_point(out, start, end, 1)
    out[end], out[end + 1] = mark, 45 if power < 0 else 43
    if width == 2 and -10 < power < 10:
        out[end + 2] = 48
        end += 1
    return write_integer(abs(power), out, end + 2)


@walker
def _write_point(out: Bytes, start: Int, end: Int, point: Int) -> Int:
    """Put a point after ``point`` digits; for 0 and less, lead with zeros."""
    lead = 2 - point if point <= 0 else 1
    first = start + max(point, 0)
    for i in range(end - 1, first - 1, -1):
        out[i + lead] = out[i]
    if point <= 0:
        for i in range(lead):
            out[start + i] = 48
        out[start + 1] = 46
    else:
        out[first] = 46
    return end + lead


@kernel
def write_decimal(high: Int, low: Int, as_java: bool, out: Bytes, at: Int) -> Int:
    """Write a decimal128 by its specification; with ``as_java``, coefficients of 35 digits too."""
    combination = (high >> np.uint64(58)) & np.uint64(0x1F)
    kind, negative, top, bottom, exponent = decimal_parts(high, low)
    if kind != FINITE:
        return write_special(kind != INFINITE, negative, out, at)
    if as_java and (combination >> np.uint64(3)) != 3:
        top, bottom = high & _COEFFICIENT, low
    if negative:
        out[at] = 45
        at += 1
    parts = np.empty(5, np.uint64)
    count = 0
    while count == 0 or top != 0 or bottom != 0:
        top, bottom, parts[count] = divide_128(top, bottom, _BILLION)
        count += 1
    end = write_integer(np.int64(parts[count - 1]), out, at)
    for i in range(count - 2, -1, -1):
        end = _write_digits(parts[i], 9, out, end)
    length = end - at
    adjusted = exponent + length - 1
    if exponent > 0 or adjusted < -6:
        return _write_exponent(out, at, end, 69, adjusted, 1)
    return _write_point(out, at, end, length + exponent) if exponent else end


@walker
def write_iso_date(ms: Int, out: Bytes, at: Int) -> Int:
    """Write milliseconds since 1970, of the years 1970 to 9999, as a date and time in UTC, in quotes.

    Zeros at the end of a fraction of a second are omitted.
    """
    days, rest = ms // 86_400_000, ms % 86_400_000
    era_day = days + 719_468  # civil date from days, proleptic Gregorian, years from March
    era = era_day // 146_097
    day_of_era = era_day - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    at = _write_part(34, year, 4, out, at)
    at = _write_part(45, month, 2, out, at)
    at = _write_part(45, day_of_year - (153 * from_march + 2) // 5 + 1, 2, out, at)
    at = _write_part(84, rest // 3_600_000, 2, out, at)
    at = _write_part(58, rest // 60_000 % 60, 2, out, at)
    at = _write_part(58, rest // 1000 % 60, 2, out, at)
    if rest % 1000:
        at = _write_part(46, rest % 1000, 3, out, at)
        while out[at - 1] == 48:
            at -= 1
    out[at], out[at + 1] = 90, 34
    return at + 2


@walker
def _write_part(mark: Int, value: Int, width: Int, out: Bytes, at: Int) -> Int:
    out[at] = mark
    return _write_digits(np.uint64(value), width, out, at + 1)
