"""Dates of the Gregorian calendar and the digits that they are written with: kernels that read both."""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker


@walker
def read_digits(data: Bytes, at: Int, end: Int, count: Int) -> Int:
    """Parse a number of ``count`` digits; return -1 if it has other bytes, or ends after ``end``."""
    if end - at < count:
        return np.int64(-1)
    number = np.int64(0)
    for i in range(count):
        digit = np.int64(data[at + i]) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = number * 10 + digit
    return number


@walker
def is_date(year: Int, month: Int, day: Int) -> bool:
    """Return whether a month has a day."""
    if month == 2:
        return 1 <= day <= (29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28)
    return 1 <= month <= 12 and 1 <= day <= (30 if month in (4, 6, 9, 11) else 31)


@walker
def days_since_1970(year: Int, month: Int, day: Int) -> Int:
    """Return the days from 1970-01-01 to a date.

    Years start in March, so that a leap day is the last day (Howard Hinnant's days_from_civil).
    """
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
