"""Where sections end, in every form of segment that Cassandra writes: as capture's own reader finds it."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_cdc_provider.sources.cassandra.commit_log.sections import walk_sections
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes, read_descriptor
from airflow_cdc_provider.transfer.segments import Index, Segment, segment_number
from airflow_cdc_provider.transfer.whole_sections import Mark, durable_end, durable_marks
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "cassandra"
RECORDINGS = [p.parent for p in sorted([*FIXTURES.glob("A/*/cdc_raw"), *FIXTURES.glob("B/*/cdc_raw")])]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_sections_end_where_captures_reader_finds_their_ends(recording: Path) -> None:
    compared = 0
    for log in recording.rglob("*.log.gz"):
        compared += compare(log)
    assert compared > 0


def compare(log: Path) -> int:
    """Compare one segment's marks; return how many there are."""
    data = gzip.decompress(log.read_bytes())
    number = segment_number(log.name.removesuffix(".gz"))
    assert number is not None
    with SegmentBytes(str(log)) as source:
        descriptor = read_descriptor(data, str(log))
        sections = walk_sections(source, descriptor, complete=False).sections
    expected = [Mark(descriptor.length, descriptor.length), *(Mark(s.stop, s.end) for s in sections)]

    def read(begin: int, end: int) -> bytes:
        return data[begin:end]

    last = expected[-1]
    growing = Segment("", number[1], 7, Index(last.position, False, str(last.position)), len(data), 0.0)
    assert list(durable_marks(read, growing)) == expected
    assert durable_end(read, growing) == last.offset
    for place in (0, len(expected) // 2, len(expected) - 1):
        mark = expected[place]
        until = replace(growing, index=Index(mark.position, False, str(mark.position)))
        assert durable_end(read, until) == mark.offset
        assert list(durable_marks(read, growing, after=mark)) == expected[place + 1 :]
    finished = replace(growing, index=Index(last.position, True, f"{last.position}\nCOMPLETED"))
    whole = [*expected, *([Mark(len(data), last.position)] if last.offset < len(data) else [])]
    assert list(durable_marks(read, finished)) == whole
    return len(expected)
