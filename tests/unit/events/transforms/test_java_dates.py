"""Times as texts: what is written is read again, and both are what Python makes of the same calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.transforms.java_dates import read, written
from airflow_cdc_provider.exceptions import ConfigurationError

MOMENTS = st.datetimes(datetime(1000, 1, 1), datetime(2999, 12, 31), timezones=st.just(UTC))
TIMES = st.lists(st.none() | MOMENTS, min_size=1, max_size=5)
FORMS = ["yyyy-MM-dd HH:mm:ss.SSS", "yyyyMMddHHmmssSSS", "dd/MM/yyyy hh:mm:ss.SSS a Z"]


def millis_of(times: list[datetime | None]) -> pa.Array:
    whole = [time and int(time.replace(microsecond=0).timestamp()) * 1000 for time in times]
    parts = [time and time.microsecond // 1000 for time in times]
    return pc.add(pa.array(whole, pa.int64()), pa.array(parts, pa.int64()))


def by_python(time: datetime) -> str:
    fraction = f"{time.microsecond // 1000:03}"
    return f"{time:%Y-%m-%dT%H:%M:%S}.{fraction}Z {time:%p %I %y} {time.day}.{time.month}. o'clock"


@given(TIMES)
def test_times_are_written_as_the_calendar_says(times: list[datetime | None]) -> None:
    found = written("yyyy-MM-dd'T'HH:mm:ss.SSSXXX a hh yy d.M. 'o''clock'", millis_of(times)).to_pylist()
    assert found == [time and by_python(time) for time in times]


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, -1, 0])))
def test_years_beyond_pythons_are_of_the_same_calendar(millis: int) -> None:
    cycles, rest = divmod(millis, 400 * 365_2425 * 8_640)  # the calendar repeats each 400 years
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=rest)
    year = time.year + 400 * cycles
    expected = f"{year if year > 0 else 1 - year:04}-{time:%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}"
    assert written("yyyy-MM-dd'T'HH:mm:ss.SSS", pa.array([millis, None])).to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("yyyy", "99999999999999999999999"),
        ("yyyy", "1234567890"),
        ("yyyy", "999999999"),
        ("yyyy-MM-dd", "2024-1-9999999999"),
        ("s", "9999999999"),
    ],
)
def test_numbers_of_which_no_time_of_64_bits_can_be_made_are_refused(form: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match="has another form"):
        read(form, pa.array([text]))
    assert read("s", pa.array(["0000000000000000007", None])).to_pylist() == [7000, None]


@given(TIMES, st.sampled_from(FORMS))
def test_what_is_written_is_read_again(times: list[datetime | None], form: str) -> None:
    millis = millis_of(times)
    assert read(form, written(form, millis)).equals(millis)


@pytest.mark.parametrize(
    ("form", "text", "time"),
    [
        ("yyyy-MM-dd", "2026-13-01", "2027-01-01"),
        ("yyyy-MM-dd", "2026-2-3 and more", "2026-02-03"),
        ("yyyy-MM-dd'T'HHX", "2026-02-03T04+02", "2026-02-03T02:00"),
        ("yyyy-MM-dd HH:mmZ", "2026-02-03 04:00-0130", "2026-02-03T05:30"),
        ("dd.MM.yy", "03.02.99", "1999-02-03"),
        ("dd.MM.yy", "03.02.1850", "1850-02-03"),
        ("hh a", "12 AM", "1970-01-01T00:00"),
        ("hh a", "12 PM", "1970-01-01T12:00"),
    ],
)
def test_reading_is_as_lenient_as_javas(form: str, text: str, time: str) -> None:
    expected = int(datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp()) * 1000
    assert read(form, pa.array([text, None])).to_pylist() == [expected, None]


def test_what_is_no_time_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match="has another form: expected yyyy") as refused:
        read("yyyy", pa.array(["2026", "hunter2"]))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="names d twice"):
        read("dd d", pa.array(["1 1"]))
