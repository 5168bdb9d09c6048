"""Metrics of each node's segments: from when a capture first lists them until they are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.jobs.metrics.segments import SegmentTally
from airflow_cdc_provider.jobs.spec import SegmentNumbers
from airflow_cdc_provider.sources.cassandra.capture import LogFolder, head, lag, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.tables import log_tables
from airflow_cdc_provider.sources.contract import Offset, ReadLimit
from tests.oracles.cassandra_read_path import Cell, Liveness, Row
from tests.unit.sources.cassandra.commit_logs import (
    HEADER_BYTES,
    UpdateWriter,
    mutation,
    put_index,
    put_segment,
    segment,
)
from tests.unit.sources.cassandra.updates import PLAIN

TABLES = log_tables([PLAIN], {PLAIN.full_name})


def sections(count: int) -> list[list[bytes]]:
    """Return sections of one write each."""
    row = Row(Liveness(1), None, b"", (Cell(1, 1, b"v"),))
    return [[mutation(UpdateWriter(PLAIN).write(bytes(4), [row]))] for _ in range(count)]


def put(folder: Path, number: int, *, end: int | None = None) -> None:
    """Put a segment of five sections, one that grows if its end is given."""
    put_segment(folder, number, segment(number, sections(5)), end=end, completed=end is None)


def run(log: LogFolder, tally: SegmentTally, start: Offset | None, stop: Offset, limit: ReadLimit) -> Offset:
    """Plan batches as a capture does."""
    offset = start
    while True:
        plan = plan_segments(log, offset, stop, limit)
        tally.add(plan)
        offset = plan.end
        if plan.at_head:
            return offset


@pytest.mark.covers("DSX-AGT-05")
@pytest.mark.parametrize(("limit", "at_once"), [(1 << 40, 3), (100, 1)])
def test_segments_of_each_node_are_counted_until_they_are_removed(
    tmp_path: Path, limit: int, at_once: int
) -> None:
    log = LogFolder(str(tmp_path))
    for number in (1, 2, 3):
        put(tmp_path / "a", number)
    two_sections = HEADER_BYTES + sum(8 + 12 + len(write) for (write,) in sections(2))
    put(tmp_path / "b", 7, end=two_sections)
    stop = head(log)
    put(tmp_path / "a", 4)
    tally = SegmentTally()

    offset = run(log, tally, None, stop, ReadLimit(bytes=limit))

    numbers = tally.at_end(lag(log, offset).details)
    assert numbers["a"] == SegmentNumbers(
        seen=3, at_once=at_once, read=3, pending=1, pending_max=3, kept=3, kept_max=3
    )
    assert numbers["b"] == SegmentNumbers(seen=1, at_once=1, read=1, pending_max=1)

    put_index(tmp_path / "b", 7, "900\nCOMPLETED")
    tally = SegmentTally()
    offset = run(log, tally, offset, head(log), ReadLimit(bytes=limit))
    for file in (tmp_path / "a").glob("CommitLog-7-[123]*"):
        file.unlink()

    numbers = tally.at_end(lag(log, offset).details)
    assert numbers["a"] == SegmentNumbers(seen=1, at_once=1, read=1, pending_max=1, kept=1, kept_max=3)
    assert numbers["b"] == SegmentNumbers(seen=1, at_once=1, read=1, pending_max=1, kept=1, kept_max=1)


def test_what_a_capture_that_was_stopped_did_not_read_goes_on_waiting(tmp_path: Path) -> None:
    log = LogFolder(str(tmp_path), "a")
    for number in (1, 2):
        put(tmp_path, number)
    tally = SegmentTally()
    tally.add(plan := plan_segments(log, None, head(log), ReadLimit(bytes=100)))
    assert tally.at_end(lag(log, plan.end).details) == {
        "a": SegmentNumbers(seen=2, at_once=1, pending=2, pending_max=2)
    }


def test_a_source_without_segments_has_no_numbers_of_them() -> None:
    assert SegmentTally().at_end({"stream": {"position": 1}}) == {}
