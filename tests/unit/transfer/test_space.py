"""How fast cdc_raw fills, and when it will be full."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_cdc_provider.transfer.space import bytes_per_second, measure
from tests.unit.conftest import WriteSegment


def aged(write_segment: WriteSegment, ages: list[float], size: int = 1000) -> None:
    """Write segments that were finished so many seconds ago."""
    now = time.time()
    for number, age in enumerate(ages):
        os.utime(write_segment(number, end=size, completed=True, size=size), (now - age, now - age))


@pytest.mark.covers("CAS-SETUP-03")
@pytest.mark.parametrize(
    ("ages", "rate"),
    [
        ([], None),
        ([50], None),
        ([100, 60, 20], 2000 / 100),
        ([100_000, 300, 200, 100], 3000 / 900),
        ([100_000, 50_000], 0.0),
    ],
)
def test_the_rate_is_that_of_segments_finished_lately(
    write_segment: WriteSegment, tmp_path: Path, ages: list[float], rate: float | None
) -> None:
    (tmp_path / "cdc_raw").mkdir()
    aged(write_segment, ages)
    found = measure(tmp_path / "cdc_raw", 1 << 20).bytes_per_second
    assert found == (None if rate is None else pytest.approx(rate, rel=0.02))


@pytest.mark.covers("CAS-SETUP-03")
def test_a_node_is_full_when_one_more_segment_does_not_fit(
    write_segment: WriteSegment, tmp_path: Path
) -> None:
    aged(write_segment, [100, 75, 50, 25])
    used = sum(file.stat().st_size for file in (tmp_path / "cdc_raw").iterdir())
    assert not measure(tmp_path / "cdc_raw", used + 1000).full
    space = measure(tmp_path / "cdc_raw", used + 999)
    assert (space.full, space.seconds_to_full) == (True, 0)
    space = measure(tmp_path / "cdc_raw", used + 1000 + 600)
    assert space.seconds_to_full == pytest.approx(600 / (3000 / 100), rel=0.02)


def test_a_live_segment_counts_and_one_without_changes_does_not_make_a_rate(
    write_segment: WriteSegment, tmp_path: Path
) -> None:
    aged(write_segment, [100, 50])
    write_segment(7, size=5000)
    space = measure(tmp_path / "cdc_raw", 100_000)
    assert space.used_bytes > 7000
    assert space.segments == 3
    assert space.bytes_per_second == pytest.approx(1000 / 100, rel=0.02)


def test_nothing_comes_from_nothing() -> None:
    assert bytes_per_second([], time.time()) is None
