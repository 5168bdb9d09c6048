"""Times of source blocks in three units, at the edges of 64 bits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.events.envelopes import EnvelopeOptions, times_of
from airflow_cdc_provider.events.topics import TopicNaming

LEAST, MOST = -(2**63), 2**63 - 1
UNITS_NS = (1_000_000, 1000, 1)


def java(number: int) -> int:
    """Return the low 64 bits, as arithmetic of Java's long does."""
    return (number - LEAST) % 2**64 + LEAST


def times(number: int, unit_ns: int, *, wraps: bool) -> list[Any]:
    options = EnvelopeOptions(topics=TopicNaming("p"), version="1", tombstones=True, now_ns=0, wraps=wraps)
    return [column.to_pylist()[0] for column in times_of(pa.array([number], pa.int64()), unit_ns, options)]


@given(number=st.integers(LEAST, MOST), unit_ns=st.sampled_from([1_000_000_000, *UNITS_NS]))
@example(number=1_700_000_000_000_000_000, unit_ns=1000)
@example(number=MOST, unit_ns=1000)
@example(number=LEAST, unit_ns=1000)
@example(number=MOST // 1000, unit_ns=1000)
@example(number=MOST // 1000 + 1, unit_ns=1000)
def test_a_time_beyond_64_bits_wraps_as_debeziums_or_is_null(number: int, unit_ns: int) -> None:
    exact = [number * unit_ns // to_ns for to_ns in UNITS_NS]
    assert times(number, unit_ns, wraps=True) == [java(time) for time in exact]
    for found, time in zip(times(number, unit_ns, wraps=False), exact, strict=True):
        assert found == time or (found is None and not LEAST + unit_ns < time < MOST - unit_ns)


@pytest.mark.parametrize(
    ("written_us", "ts_ns"), [(1_700_000_000_000_000_000, 2_899_545_218_721_251_328), (MOST, -1000)]
)
def test_debeziums_values_of_times_after_2262(written_us: int, ts_ns: int) -> None:
    """Debezium 3.6 multiplies the seconds by 1,000,000,000 as a long: AbstractSourceInfoStructMaker."""
    assert times(written_us, 1000, wraps=True)[2] == ts_ns
    seconds, micros = divmod(written_us, 1_000_000)
    assert java(java(seconds * 1_000_000_000) + micros * 1000) == ts_ns
    assert times(written_us, 1000, wraps=False) == [written_us // 1000, written_us, None]
