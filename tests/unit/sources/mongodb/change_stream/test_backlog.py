"""Splitting of a backlog: equal slices, batches within their limit, and no slices without a backlog."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.mongodb.change_stream import backlog
from airflow_cdc_provider.sources.mongodb.change_stream.backlog import (
    MIN_BACKLOG_BYTES,
    Backlog,
    BatchStats,
    OplogSample,
)
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.position import StreamPosition

SECOND = 1 << 32
START = StreamPosition(1000, 5)
HEAD = StreamPosition(2000, 7)
MUCH = ReadLimit(bytes=1 << 40, changes=1 << 40, tasks=4)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_backlog(
    monkeypatch: pytest.MonkeyPatch, sample: OplogSample | None, **options: Any
) -> tuple[Backlog, Clock]:
    monkeypatch.setattr(OplogSample, "take", lambda *_: sample)
    clock = Clock()
    advanced = MongodbAdvanced(sample_oplog=True, **options)
    return Backlog(advanced, lambda: None, clock), clock  # type: ignore[arg-type,return-value]


def sample_of(seconds: list[int], size: int = 1000, entries_each: float = 1000.0) -> OplogSample:
    times = np.array(sorted(s * SECOND + n for n, s in enumerate(seconds)), np.uint64)
    return OplogSample(times, np.full(len(times), size, np.int64), entries_each)


def batch_stats(span: int = SECOND, at_head: bool = False, seconds: float = 1.0) -> BatchStats:
    return BatchStats(span, MIN_BACKLOG_BYTES, 10_000, seconds, at_head)


def test_one_stream_reads_little_until_it_is_known_that_there_is_a_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, _ = make_backlog(monkeypatch, sample_of(list(range(1000, 2000))))
    assert planner.slice_ends(START, HEAD, MUCH) == []
    assert planner.one_stream_limit(START, HEAD, MUCH).bytes == MIN_BACKLOG_BYTES
    near = StreamPosition(1995, 0)
    assert planner.one_stream_limit(near, HEAD, MUCH) == MUCH, "near the head all at once"

    planner.record_batch(batch_stats(), MUCH)
    assert len(planner.slice_ends(START, HEAD, MUCH)) == 4
    assert planner.slice_ends(near, HEAD, MUCH) == []
    assert planner.one_stream_limit(START, HEAD, MUCH) == MUCH

    planner.record_batch(batch_stats(at_head=True), MUCH)
    assert planner.slice_ends(START, HEAD, MUCH) == []


@pytest.mark.parametrize(
    ("options", "tasks", "streams"),
    [
        ({}, 3, 3),
        ({}, 50, backlog.MAX_STREAMS),
        ({"backlog_streams": 12}, 2, 12),
        ({"backlog_streams": 1}, 8, 0),
        ({}, 1, 0),
        ({"backlog_threshold_seconds": 1001.0}, 8, 0),
    ],
)
def test_there_are_as_many_slices_as_tasks_or_as_configured(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], tasks: int, streams: int
) -> None:
    for sample in (sample_of(list(range(1000, 2000))), None):
        planner, _ = make_backlog(monkeypatch, sample, **options)
        limit = ReadLimit(bytes=1 << 40, changes=1 << 40, tasks=tasks)
        planner.record_batch(batch_stats(), limit)
        assert len(planner.slice_ends(START, HEAD, limit)) == streams


def test_slices_hold_as_much_each_however_changes_lie_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = [1500] * 900 + list(range(1000, 2000, 10))
    sample = sample_of(burst)
    planner, _ = make_backlog(monkeypatch, sample)
    planner.record_batch(batch_stats(), MUCH)
    ends = planner.slice_ends(START, HEAD, MUCH)
    assert ends[-1] == HEAD.time
    held = [len(sample.between(a, b)) for a, b in itertools.pairwise([START.time, *ends])]
    assert max(held) - min(held) <= 4
    assert sum(end >> 32 == 1500 for end in ends) == 3


def test_a_batch_takes_what_its_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_of(list(range(1001, 2000)))  # 1 kB in each second, for each of 1,000 entries
    for limit in (ReadLimit(1_000_000 * 100, 1 << 40, 2), ReadLimit(1 << 40, 100_000, 2)):
        planner, _ = make_backlog(monkeypatch, sample)
        planner.record_batch(batch_stats(), limit)
        ends = planner.slice_ends(START, HEAD, limit)
        assert 95 <= len(sample.between(START.time, ends[-1])) <= 101
        assert 48 <= len(sample.between(START.time, ends[0])) <= 51


def test_a_small_rest_is_left_to_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, _ = make_backlog(monkeypatch, sample_of(list(range(1000, 2000)), entries_each=10.0))
    planner.record_batch(batch_stats(), MUCH)
    assert planner.slice_ends(START, HEAD, MUCH) == []


def test_without_a_sample_batches_span_what_the_first_one_spanned_and_then_adapt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, clock = make_backlog(monkeypatch, None)
    limit = ReadLimit(bytes=10 * MIN_BACKLOG_BYTES, changes=1 << 40, tasks=2)
    planner.record_batch(batch_stats(span=2 * SECOND, seconds=1.0), limit)
    ends = planner.slice_ends(START, HEAD, limit)
    assert ends == [START.time + 10 * SECOND, START.time + 20 * SECOND]

    spans = []
    at = START
    for seconds in (1, 1, 8, 30, 30):
        clock.now += seconds
        ends = planner.slice_ends(at, HEAD, limit)
        spans.append((ends[-1] - at.time) // SECOND)
        at = StreamPosition(ends[-1] >> 32, ends[-1] & 0xFFFF_FFFF)
    assert spans == [40, 80, 80, 40, 20]


def test_slices_that_only_become_slower_are_left_to_one_stream_which_measures_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, clock = make_backlog(monkeypatch, None)
    limit = ReadLimit(bytes=10 * MIN_BACKLOG_BYTES, changes=1 << 40, tasks=2)
    first = batch_stats(span=2 * SECOND, seconds=1.0)
    planner.record_batch(first, limit)
    spans = []
    while ends := planner.slice_ends(START, HEAD, limit):
        spans.append((ends[-1] - START.time) // SECOND)
        clock.now += 1000
    assert spans == [20, 10, 5, 2], "a span of less than 16 MiB isn't split"

    planner.record_batch(first, limit)
    assert planner.slice_ends(START, HEAD, limit)


@given(span=st.integers(1, 40 * SECOND), streams=st.integers(2, 9))
def test_slice_ends_by_time_are_possible_times_of_operations(span: int, streams: int) -> None:
    planner = Backlog(MongodbAdvanced(backlog_streams=streams), lambda: None)  # type: ignore[arg-type,return-value]
    planner.record_batch(batch_stats(span=span), ReadLimit(bytes=10 * MIN_BACKLOG_BYTES))
    ends = planner.slice_ends(START, HEAD, MUCH)
    assert all(end & 0xFFFF_FFFF < 1 << 31 for end in ends), "else the server reads its oplog from the start"


@given(
    times=st.lists(st.integers(1000 * SECOND, 2000 * SECOND), min_size=32, max_size=300),
    streams=st.integers(2, 9),
    changes=st.integers(1, 1 << 20),
)
def test_slice_ends_ascend_between_the_start_and_the_head(
    times: list[int], streams: int, changes: int
) -> None:
    sample = OplogSample(
        np.array(sorted(times), np.uint64), np.full(len(times), 10_000_000, np.int64), 1000.0
    )
    planner = Backlog(MongodbAdvanced(backlog_streams=streams, sample_oplog=True), lambda: None)  # type: ignore[arg-type,return-value]
    planner._sample, planner._sampled_at, planner._sampled_head = sample, float("inf"), HEAD.time
    limit = ReadLimit(bytes=1 << 50, changes=changes)
    planner.record_batch(batch_stats(), limit)
    ends = planner.slice_ends(START, HEAD, limit)
    assert len(ends) != 1
    assert all(a < b for a, b in itertools.pairwise([START.time, *ends]))
    assert not ends or ends[-1] <= HEAD.time
