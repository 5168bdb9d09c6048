"""Prefetching of a stream, and the effect of a full buffer on VTGate and on the offset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from airflow_cdc_provider.jobs.metrics.debezium import STREAMING, metrics_of
from airflow_cdc_provider.jobs.spec import JobResult, OriginResult
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.prefetch import BufferedStats, BufferLimit
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.prefetch import StreamEnded, prefetch
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.fake_vtgate import (
    FakeVtgate,
    Step,
    Waits,
    event,
    fields,
    gtid,
    response,
    rows,
    transaction,
)

ROWS = 20


def item(number: int) -> bytes:
    """A transaction of some rows."""
    changes: list[Any] = [(None, [str(number * ROWS + n), "x"]) for n in range(ROWS)]
    head = [fields("item", "-80")] if number == 0 else []
    return response(*transaction("-80", {"-80": 11 + number}, *head, rows("item", "-80", *changes)))


ITEMS = [item(number) for number in range(30)]
SIZE = len(ITEMS[10])


class Given:
    """A stream that counts what was taken of it."""

    def __init__(self) -> None:
        self.given = 0
        self.cancelled = False

    def __iter__(self) -> Iterator[bytes]:
        for one in ITEMS:
            if self.cancelled:
                return
            self.given += 1
            yield one

    def cancel(self) -> None:
        self.cancelled = True


def settled(buffered: BufferedStats) -> int:
    """Wait until no more comes; how many row changes wait."""
    before = 0
    deadline = time.monotonic() + 30
    while not buffered.events or before != buffered.events:
        assert time.monotonic() < deadline
        before = buffered.events
        time.sleep(0.1)
    return buffered.events


@pytest.mark.covers("VIT-QUE-03")
@pytest.mark.parametrize(
    ("limit", "maximum"),
    [
        (BufferLimit(1 << 30, 5 * ROWS), 5),
        (BufferLimit(1 << 30, 5 * ROWS - 1), 5),  # a response comes whole
        (BufferLimit(3 * SIZE, 1000), 3),
        (BufferLimit(0, 4 * ROWS), 4),
        (BufferLimit(3 * SIZE, 0), 3),
        (BufferLimit(0, 0), len(ITEMS)),
        (BufferLimit(VitessAdvanced().read_ahead_bytes, VitessAdvanced().read_ahead_events), len(ITEMS)),
    ],
)
def test_the_limit_reached_first_applies_backpressure_to_the_stream(limit: BufferLimit, maximum: int) -> None:
    stream, buffered = Given(), BufferedStats()
    with closing(prefetch(stream, limit, buffered)) as responses:
        # The first response, which has the fields too, is larger.
        assert settled(buffered) // ROWS in (maximum - 1, maximum)
        assert stream.given <= maximum + 1, "one more is held in the hand"
        taken = []
        while True:
            try:
                taken.append(responses.next(5))
            except StreamEnded:
                break
    assert taken == ITEMS, "nothing is dropped"
    assert (buffered.events, buffered.bytes) == (0, 0)
    assert buffered.max_events <= (maximum + 1) * ROWS


def test_closing_a_stream_empties_its_buffer() -> None:
    buffered = BufferedStats()
    responses = prefetch(Given(), BufferLimit(0, 5 * ROWS), buffered)
    assert settled(buffered) == 5 * ROWS
    responses.close()
    assert (buffered.events, buffered.bytes) == (0, 0)


def test_other_events_and_broken_responses_count_as_no_change() -> None:
    buffered = BufferedStats()
    odd = [response(event("HEARTBEAT"), event("BEGIN", "-80")), b"\xff\xff", ITEMS[3][:-4], ITEMS[3]]

    class Odd(Given):
        def __iter__(self) -> Iterator[bytes]:
            yield from odd

    with closing(prefetch(Odd(), BufferLimit(0, 0), buffered)):
        settled(buffered)
        assert buffered.events in (ROWS, 2 * ROWS), "of a truncated response, the changes before its end"


@pytest.mark.covers("VIT-QUE-05", "VIT-MET-05", "VIT-MET-06")
def test_a_full_queue_stops_vtgate_loses_nothing_and_is_not_stored() -> None:
    wide = "x" * 200_000  # so large that gRPC's own buffers hold few
    sent: list[int] = []
    count = 300

    def script(request: Any) -> Iterator[Step]:
        first = int(request.vgtid.shard_gtids[0].gtid.rpartition("-")[2]) + 1
        for number in range(first, 11 + count):
            sent.append(number)
            row = rows("item", "-80", (None, [str(number), wide]))
            yield response(*transaction("-80", {"-80": number}, fields("item", "-80"), row))
        yield Waits()

    advanced = VitessAdvanced(read_ahead_events=5)
    options = VitessOptions(keyspace="shop", advanced=advanced)

    def at(number: int) -> Position:
        return Position({"shop/-80": ShardPosition(gtid(number), 1)})

    def keys(plan: Any) -> list[str]:
        reader = SliceReader(lambda table: True)
        batches = reader.read(plan.partitions, ReadMetrics())
        found = [r for batch in batches for r in batch.to_pylist() if r["kind"] == "change"]
        return [str(int.from_bytes(r["position"][4:12], "big")) for r in found]

    with (
        FakeVtgate([script]) as vtgate,
        VtgateClient(ConnectionValues.read(vtgate.connection)) as client,
    ):
        stream = ChangeStream(
            lambda: client, options, lambda: filter_of(None), lambda t: True, lambda t, s: False
        )
        first = stream.plan(at(10), at(10 + count), ReadLimit(changes=3))
        assert Position.from_offset(first.end) == at(13), "what waits isn't stored"
        deadline = time.monotonic() + 10
        while stream.counts.queue_events < 5:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)
        before = len(sent)
        time.sleep(0.3)
        assert len(sent) == before < count, "VTGate is held up"
        reported = metrics_of(JobResult(ok=True, origins=(OriginResult("stream", stream=stream.counts),)))
        found = reported[STREAMING]
        assert (found["QueueTotalCapacity"], found["QueueRemainingCapacity"]) == (5, 0)
        assert found["CurrentQueueSizeInBytes"] >= 5 * len(wide)

        # A job that is killed now resumes from its stored offset, and reads the buffered changes again.
        stream.close()
        assert stream.counts.queue_events == 0
        rest = stream.plan(at(13), at(10 + count), ReadLimit())
        stream.close()

    assert rest.at_head
    assert keys(first) + keys(rest) == [str(number) for number in range(11, 11 + count)]
