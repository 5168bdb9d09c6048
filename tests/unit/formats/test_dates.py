from __future__ import annotations

import calendar
from datetime import date

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.dates import days_since_1970, is_date, read_digits


@given(st.dates())
def test_days_are_those_of_pythons_calendar(day: date) -> None:
    assert days_since_1970(day.year, day.month, day.day) == (day - date(1970, 1, 1)).days


@given(st.integers(1, 9999), st.integers(0, 13), st.integers(0, 32))
def test_a_date_is_one_of_pythons_calendar(year: int, month: int, day: int) -> None:
    exists = 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
    assert is_date(year, month, day) == exists


@given(st.text(st.sampled_from("0123456789-"), min_size=1, max_size=6), st.integers(1, 8))
def test_digits_are_read_or_refused(text: str, count: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    part = text[:count]
    expected = int(part) if part.isdigit() and len(part) == count else -1
    assert read_digits(data, 0, len(data), count) == expected
