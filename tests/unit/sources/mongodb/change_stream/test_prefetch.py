"""Prefetching pauses at its limits and resumes when there is space; nothing is dropped."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import Spans
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.mongodb.change_stream.prefetch import PrefetchingCursor
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.prefetch import BufferedStats, BufferLimit

PROPERTIES = {"topic.prefix": "shop", "connector.class": "io.debezium.connector.mongodb.MongoDbConnector"}


class Cursor:
    """A server with a number of replies of some events of ten bytes each; it counts the replies."""

    def __init__(self, replies: int, events: int) -> None:
        self.left = replies
        self.events = events
        self.given = 0
        self.closed = False
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        return self.left > 0

    def next(self, wait_ms: int | None = None) -> RawBatch:
        with self._lock:
            self.left -= 1
            self.given += 1
            count = self.events if self.left > 0 else 0
            starts = np.arange(count) * 10
            return RawBatch(np.zeros(10 * count, np.uint8), Spans(starts, starts + 10, 10 * count), b"", None)

    def close(self) -> None:
        self.closed = True


def reading(cursor: Cursor, limit: BufferLimit) -> tuple[PrefetchingCursor, BufferedStats]:
    buffered = BufferedStats()
    fake: Any = cursor
    return PrefetchingCursor(fake, limit, lambda reply: False, buffered), buffered


def settle(buffered: BufferedStats) -> int:
    """Wait until the buffer is stable, and return its number of events."""
    before = -1
    while before != buffered.events:
        before = buffered.events
        time.sleep(0.1)
    return buffered.events


@pytest.mark.covers("MDB-QUE-02", "MDB-QUE-03", "MDB-QUE-04")
@pytest.mark.parametrize(
    ("limit", "max_events"),
    [
        (BufferLimit(1 << 20, 100, 20), 100),  # by events: five replies, none that might not fit
        (BufferLimit(1 << 20, 99, 20), 80),
        (BufferLimit(350, 1000, 20), 40),  # by bytes: 200 each, fetched while fewer than 350 are buffered
        (BufferLimit(350, 0, 20), 40),
    ],
)
def test_reading_stops_at_the_first_limit_and_resumes_when_there_is_space(
    limit: BufferLimit, max_events: int
) -> None:
    cursor = Cursor(50, 20)
    stream, buffered = reading(cursor, limit)
    seen = len(stream.next().documents)
    assert settle(buffered) == max_events
    assert cursor.given == 1 + max_events // 20, "the server is asked for no more"
    for _ in range(3):
        seen += len(stream.next().documents)
        assert settle(buffered) == max_events, "one was taken, one more is fetched"
    while stream.alive:
        seen += len(stream.next().documents)
    assert seen == 49 * 20, "nothing is dropped"
    assert (buffered.max_events, buffered.max_bytes) == (max_events, 10 * max_events)
    assert (buffered.events, buffered.bytes) == (0, 0)


def test_what_waits_when_a_stream_is_closed_waits_no_more() -> None:
    cursor = Cursor(50, 20)
    stream, buffered = reading(cursor, BufferLimit(1 << 20, 100, 20))
    stream.next()
    assert settle(buffered) == 100
    stream.close()
    assert cursor.closed
    assert (buffered.events, buffered.bytes) == (0, 0)


def advanced(**properties: str) -> MongodbAdvanced:
    source = from_debezium({**PROPERTIES, **properties}).connector.source
    assert isinstance(source, MongodbOptions)
    return source.advanced


@pytest.mark.covers("MDB-QUE-01")
def test_debeziums_sizes_of_batch_and_queue_are_imported() -> None:
    sizes = {"max.batch.size": "512", "max.queue.size": "4096", "max.queue.size.in.bytes": "1000000"}
    sizes_read = advanced(**sizes)
    assert (sizes_read.batch_events, sizes_read.read_ahead_events, sizes_read.read_ahead_bytes) == (
        512,
        4096,
        1_000_000,
    )
    default = MongodbAdvanced()
    assert advanced() == default
    assert advanced(**{"max.queue.size.in.bytes": "0"}) == default
    debeziums = advanced(**{"max.queue.size": "8192"})
    assert (debeziums.batch_events, debeziums.read_ahead_events) == (2048, 8192), (
        "its own size of a sizes_read"
    )
    assert advanced(**{"max.queue.size": "20000"}).batch_events == default.batch_events
    for wrong in (
        {"max.queue.size": "2048"},
        {"max.queue.size": "512", "max.batch.size": "512"},
        {"max.queue.size": "many"},
    ):
        with pytest.raises(ConfigurationError, match=r"max\.queue\.size"):
            advanced(**wrong)
    with pytest.raises(ConfigurationError, match="read_ahead_events is too small"):
        MongodbAdvanced(batch_events=100, read_ahead_events=100)


@pytest.mark.covers("MDB-STR-03")
def test_debeziums_interval_of_positions_is_accepted_and_the_commits_interval_named() -> None:
    imported = from_debezium({**PROPERTIES, "offset.flush.interval.ms": "1000", "poll.interval.ms": "250"})
    flush, poll = sorted(imported.notes)
    assert flush.startswith("property offset.flush.interval.ms is ignored: offsets are stored in the lake")
    assert poll.startswith("property poll.interval.ms is ignored: no queue is polled")
    assert all("commit_interval_seconds of CdcStreamOperator" in note for note in imported.notes)
