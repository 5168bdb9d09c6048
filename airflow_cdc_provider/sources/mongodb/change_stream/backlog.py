"""Splits a backlog into slices of cluster time and determines how much of it one batch reads.

One stream detects a backlog: a capture that is behind by time first reads a small batch, and slices follow
only if that batch doesn't reach the head. Slices should have equal sizes, and a batch of slices about the
size of its limit. There are two ways to estimate how changes are distributed over time:

* With ``sample_oplog``, a random sample of the oplog's entries with their sizes. The server walks down its
  tree, so a sample costs milliseconds however large the oplog is. It requires the privilege ``find`` on
  ``local.oplog.rs``, which the role ``read`` on ``local`` has; a ``mongos`` doesn't offer it.
* Otherwise the cluster time that the first batch spanned is extrapolated to a full batch, which is split into
  equal spans. The span is doubled while batches take less than half of the time that one stream would take by
  the first batch's measure, and halved when they take twice as long. If a span becomes too small for several
  streams, one stream reads and measures a batch again; within one second spans say nothing about changes.

A backlog ends at the head's cluster time, whose own changes the one stream reads: a slice might have to wait
for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from bson.timestamp import Timestamp
from pymongo import MongoClient, errors

from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.mongodb.connection import retry_over_elections
from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.position import StreamPosition

log = logger(__name__)

MAX_STREAMS: Final = 8
"""Default limit of parallel streams: each takes a core of the server."""

MIN_BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Minimum size of a backlog: one stream reads less than this as fast as several do."""

_EVENT_BYTES: Final = 250
_SAMPLE: Final = 1_000
_LARGEST_SAMPLE: Final = 10_000
_LARGEST_SHARE: Final = 0.04
_ENOUGH: Final = 200
_USABLE: Final = 32
_DISCARD_SECONDS: Final = 600.0
_LAST_OPERATION: Final = (1 << 31) - 1
"""The largest increment of an operation within a second."""


@dataclass(frozen=True)
class OplogSample:
    """Random entries of the oplog.

    Args:
        times: Cluster times, ascending, seconds in the upper half.
        sizes: Approximate bytes of each entry's change event.
        entries_each: Number of oplog entries that each sampled entry represents.
    """

    times: npt.NDArray[np.uint64]
    sizes: Ints
    entries_each: float

    @classmethod
    def take(cls, client: MongoClient, start: int, head: int) -> OplogSample | None:
        """Sample the oplog so that enough of the entries are between two cluster times.

        Args:
            client: A client of the deployment.
            start: The first cluster time, seconds in the upper half.
            head: The second cluster time.

        Returns:
            The sample; None if the user or the server doesn't permit sampling.

        Raises:
            TransientError: The server doesn't respond.
        """
        oplog = client["local"]["oplog.rs"]
        with translated("the oplog can't be sampled"):
            try:
                entries = oplog.estimated_document_count()
                if not entries:
                    return None
                sample = cls._draw(oplog, _SAMPLE, entries)
                inside = len(sample.between(start, head))
                limit = min(_LARGEST_SAMPLE, int(_LARGEST_SHARE * entries))
                if inside < _ENOUGH and limit > _SAMPLE:
                    needed = _SAMPLE * _ENOUGH // max(inside, 1)
                    sample = cls._draw(oplog, min(needed, limit), entries)
            except errors.OperationFailure as error:
                log.info("the oplog can't be sampled, splitting backlogs by time: error %s", error.code)
                return None
        return sample

    @classmethod
    def _draw(cls, oplog: Any, count: int, entries: int) -> OplogSample:
        pipeline = [{"$sample": {"size": count}}, {"$project": {"ts": 1, "size": {"$bsonSize": "$$ROOT"}}}]
        found = [
            ((e["ts"].time << 32) | e["ts"].inc, e["size"])
            for e in oplog.aggregate(pipeline)
            if isinstance(e.get("ts"), Timestamp)
        ]
        found.sort()
        times = np.array([time for time, _ in found], np.uint64)
        sizes = np.array([size for _, size in found], np.int64) + _EVENT_BYTES
        return cls(times, sizes, entries / max(len(found), 1))

    def between(self, start: int, head: int) -> Ints:
        """Return the indexes of the entries after a cluster time and before another."""
        first, end = np.searchsorted(self.times, np.array([start + 1, head], np.uint64))
        return np.arange(first, end, dtype=np.int64)


@dataclass(frozen=True)
class BatchStats:
    """Figures of a batch that one stream has read.

    Args:
        span: Cluster time from its start to its end, as a difference of numbers with seconds in the upper
            half.
        bytes: Bytes of its events.
        changes: Number of its events.
        seconds: Duration of reading it.
        at_head: Whether it reached the head.
    """

    span: int
    bytes: int
    changes: int
    seconds: float
    at_head: bool


class Backlog:
    """Plans batches of a backlog. It adapts the cluster time that one batch spans from batch to batch.

    Args:
        advanced: The source's options.
        client: Returns a client.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        advanced: MongodbAdvanced,
        client: Callable[[], MongoClient],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._advanced = advanced
        self._client = client
        self._clock = clock
        self._sample: OplogSample | None = None
        self._sampled_at = -_DISCARD_SECONDS
        self._sampled_head = 0
        self._has_backlog = False
        # Without a sample: the cluster time that a batch spans, and the minimum span of a backlog; the time
        # that one stream takes for a batch, and when the current batch was planned.
        self._span = 0
        self._min_span = 0
        self._one_stream_seconds = 0.0
        self._planned_at: float | None = None

    def slice_ends(self, start: StreamPosition, head: StreamPosition, limit: ReadLimit) -> list[int]:
        """Return the end times of the next batch's slices.

        Args:
            start: The current position of the capture.
            head: The head.
            limit: Limits of a batch, and the number of tasks that read it.

        Returns:
            Cluster times, ascending, seconds in the upper half. A slice starts at the previous end, the first
            one at ``start``, and ends before its own. Empty if one stream should read the batch.

        Raises:
            TransientError: The server doesn't respond.
        """
        if not self._has_backlog or not self._may_have_backlog(start, head, limit):
            self._planned_at = None
            return []
        streams = self._streams(limit)
        sample = self._fresh_sample(start.time, head.time)
        if sample is not None and len(inside := sample.between(start.time, head.time)) >= _USABLE:
            ends = self._by_sample(sample, inside, head.time, streams, limit)
        else:
            ends = self._by_time(start.time, head.time, streams)
        ends = _ascending(ends, start.time)
        if len(ends) < 2:
            return []
        self._planned_at = self._clock()
        return ends

    def one_stream_limit(self, start: StreamPosition, head: StreamPosition, limit: ReadLimit) -> ReadLimit:
        """Return the limit for one stream: small until it is known whether there is a backlog."""
        if self._has_backlog or not self._may_have_backlog(start, head, limit):
            return limit
        return replace(limit, bytes=min(limit.bytes, MIN_BACKLOG_BYTES))

    def record_batch(self, batch: BatchStats, limit: ReadLimit) -> None:
        """Record a batch that one stream has read.

        Args:
            batch: The batch.
            limit: Limits of a batch.
        """
        self._has_backlog = not batch.at_head
        times = min(limit.bytes / max(batch.bytes, 1), limit.changes / max(batch.changes, 1))
        self._span = int(batch.span * times)
        self._min_span = int(batch.span * MIN_BACKLOG_BYTES / max(batch.bytes, 1))
        self._one_stream_seconds = batch.seconds * times

    def _streams(self, limit: ReadLimit) -> int:
        return self._advanced.backlog_streams or min(limit.tasks, MAX_STREAMS)

    def _may_have_backlog(self, start: StreamPosition, head: StreamPosition, limit: ReadLimit) -> bool:
        behind_seconds = (head.time - start.time) / 2**32
        return (
            self._streams(limit) > 1
            and behind_seconds > 0
            and (behind_seconds >= self._advanced.backlog_threshold_seconds)
        )

    def _fresh_sample(self, start: int, head: int) -> OplogSample | None:
        if not self._advanced.sample_oplog:
            return None
        now = self._clock()
        if now - self._sampled_at >= _DISCARD_SECONDS or self._is_used_up(start, head):
            self._sample = retry_over_elections(lambda: OplogSample.take(self._client(), start, head))
            self._sampled_at = now
            self._sampled_head = head
        return self._sample

    def _is_used_up(self, start: int, head: int) -> bool:
        """Return whether most of the remaining backlog is newer than the sample."""
        return self._sample is not None and self._sampled_head - start < head - self._sampled_head

    @staticmethod
    def _by_sample(sample: OplogSample, inside: Ints, head: int, streams: int, limit: ReadLimit) -> list[int]:
        sums = np.cumsum(sample.sizes[inside])
        total_bytes = float(sums[-1]) * sample.entries_each
        if total_bytes < MIN_BACKLOG_BYTES:
            return []
        changes = len(inside) * sample.entries_each
        share = min(1.0, limit.bytes / total_bytes, limit.changes / changes)
        targets = sums[-1] * share * np.arange(1, streams + 1) / streams
        at = np.minimum(np.searchsorted(sums, targets), len(inside) - 1)
        ends = [int(time) for time in sample.times[inside[at]]]
        if share == 1.0:
            ends[-1] = head
        return ends

    def _by_time(self, start: int, head: int, streams: int) -> list[int]:
        if self._planned_at is not None and self._one_stream_seconds:
            seconds = self._clock() - self._planned_at
            if seconds < self._one_stream_seconds / 2:
                self._span *= 2
            elif seconds > 2 * self._one_stream_seconds:
                self._span //= 2
        if min(head - start, self._span) < max(self._min_span, streams):
            self._planned_at = None
            return []
        end = min(start + self._span, head)
        ends = [start + (end - start) * number // streams for number in range(1, streams + 1)]
        return [_possible_time(time) for time in ends]


def _possible_time(time: int) -> int:
    """Return the cluster time, or the last one before it that an operation can have.

    For an increment above the maximum the server scans the oplog from its first entry.
    """
    return (time >> 32 << 32) | min(time & 0xFFFF_FFFF, _LAST_OPERATION)


def _ascending(ends: list[int], start: int) -> list[int]:
    """Drop end times that are not after the previous one."""
    kept: list[int] = []
    for end in ends:
        if end > (kept[-1] if kept else start):
            kept.append(end)
    return kept
