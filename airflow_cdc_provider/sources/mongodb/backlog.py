"""Where a backlog is cut into slices of cluster time, and how much of it one batch takes.

Whether there is a backlog, one stream tells: a capture that is behind by time reads a small first batch, and
only if that isn't the head, slices follow. They are to hold as much each, and all of a batch about what its
limit allows. Two ways tell how changes lie in time:

* With ``sample_oplog``, a random sample of the oplog's entries with their sizes. The server finds them by
  walks down its tree, so a sample costs milliseconds however large the oplog is. It needs the right ``find``
  on ``local.oplog.rs``, which the role ``read`` on ``local`` has; a ``mongos`` can't give it.
* Without that, the cluster time that the first batch spanned tells how much a full one will; it is cut into
  equal spans. It is doubled while batches take less than half of the time that one stream would take by the
  first batch's measure, and halved when they take twice as long.

A backlog ends at the head's cluster time, whose own changes the one stream takes: for those a slice might
have to wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from bson.timestamp import Timestamp
from pymongo import MongoClient, errors

from airflow_cdc_provider.changes.spans import Ints
from airflow_cdc_provider.sources.base import ReadLimit
from airflow_cdc_provider.sources.mongodb.connection import over_elections
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.position import StreamPlace
from airflow_cdc_provider.sources.mongodb.server_errors import translated

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 8
"""Streams at a time unless the options say more: each takes a core of the server."""

WORTH_BYTES: Final = 16 * 1024 * 1024
"""What one stream reads before there is a backlog; less than that it reads as fast as several."""

_EVENT_BYTES: Final = 250
_SAMPLE: Final = 1_000
_LARGEST_SAMPLE: Final = 10_000
_LARGEST_SHARE: Final = 0.04
_ENOUGH: Final = 200
_USABLE: Final = 32
_DISCARD_SECONDS: Final = 600.0
_LAST_OPERATION: Final = (1 << 31) - 1
"""The largest number that an operation can have in its second."""


@dataclass(frozen=True)
class OplogSample:
    """Random entries of the oplog.

    Args:
        times: Cluster times, ascending, seconds in the upper half.
        sizes: Bytes of each one's change event, about.
        entries_each: How many entries of the oplog each one stands for.
    """

    times: npt.NDArray[np.uint64]
    sizes: Ints
    entries_each: float

    @classmethod
    def take(cls, client: MongoClient, start: int, head: int) -> OplogSample | None:
        """Sample the oplog so that enough of the entries lie between two cluster times.

        Returns:
            The sample; None if this user or server doesn't give one.

        Raises:
            TransientError: The server doesn't answer.
        """
        oplog = client["local"]["oplog.rs"]
        with translated("the oplog can't be sampled"):
            try:
                entries = oplog.estimated_document_count()
                if not entries:
                    return None
                sample = cls._draw(oplog, _SAMPLE, entries)
                inside = len(sample.between(start, head))
                most = min(_LARGEST_SAMPLE, int(_LARGEST_SHARE * entries))
                if inside < _ENOUGH and most > _SAMPLE:
                    wanted = _SAMPLE * _ENOUGH // max(inside, 1)
                    sample = cls._draw(oplog, min(wanted, most), entries)
            except errors.OperationFailure as error:
                log.info("the oplog can't be sampled, backlogs are cut by time: error %s", error.code)
                return None
        return sample

    @classmethod
    def _draw(cls, oplog: Any, count: int, entries: int) -> OplogSample:
        pipeline = [
            {"$sample": {"size": count}},
            {"$project": {"ts": 1, "size": {"$bsonSize": "$$ROOT"}}},
        ]
        found = [
            ((e["ts"].time << 32) | e["ts"].inc, e["size"])
            for e in oplog.aggregate(pipeline)
            if isinstance(e.get("ts"), Timestamp)
        ]
        found.sort()
        times = np.array([moment for moment, _ in found], np.uint64)
        sizes = np.array([size for _, size in found], np.int64) + _EVENT_BYTES
        return cls(times, sizes, entries / max(len(found), 1))

    def between(self, start: int, head: int) -> Ints:
        """Return the numbers of the entries after a cluster time and before another."""
        first, end = np.searchsorted(self.times, np.array([start + 1, head], np.uint64))
        return np.arange(first, end, dtype=np.int64)


@dataclass(frozen=True)
class BatchTaken:
    """A batch that one stream has read.

    Args:
        span: Cluster time from its begin to its end, as a difference of numbers with seconds in the upper
            half.
        bytes: Of its events.
        changes: Its events.
        seconds: How long it took.
        at_head: Whether it reached the head.
    """

    span: int
    bytes: int
    changes: int
    seconds: float
    at_head: bool


class Backlog:
    """Cuts batches of a backlog. It learns from batch to batch how much cluster time one takes.

    Args:
        advanced: The source's options.
        client: Returns a connection.
        clock: Seconds, monotonic.
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
        self._is_one = False
        # Without a sample: cluster time that a batch spans, and the least that is worth slices; how long one
        # stream takes for a batch, and when the one was given that is being read now.
        self._span = 0
        self._worth_span = 0
        self._one_stream_seconds = 0.0
        self._given_at: float | None = None

    def cuts(self, start: StreamPlace, head: StreamPlace, limit: ReadLimit) -> list[int]:
        """Return the ends of the next batch's slices.

        Args:
            start: Where the capture stands.
            head: The head.
            limit: How much a batch may take, and how many tasks there are to read it.

        Returns:
            Cluster times, ascending, seconds in the upper half. A slice goes from the one before, the first
            from ``start``, up to its own, without it. None where one stream is to read.

        Raises:
            TransientError: The server doesn't answer.
        """
        if not self._is_one or not self._may_be_one(start, head, limit):
            self._given_at = None
            return []
        streams = self._streams(limit)
        sample = self._fresh_sample(start.time, head.time)
        if sample is not None and len(inside := sample.between(start.time, head.time)) >= _USABLE:
            cuts = self._by_sample(sample, inside, head.time, streams, limit)
        else:
            cuts = self._by_time(start.time, head.time, streams)
        cuts = _ascending(cuts, start.time)
        if len(cuts) < 2:
            return []
        self._given_at = self._clock()
        return cuts

    def one_stream_limit(self, start: StreamPlace, head: StreamPlace, limit: ReadLimit) -> ReadLimit:
        """Return how much one stream may read: little, until it is known whether there is a backlog."""
        if self._is_one or not self._may_be_one(start, head, limit):
            return limit
        return replace(limit, bytes=min(limit.bytes, WORTH_BYTES))

    def was_read(self, took: BatchTaken, limit: ReadLimit) -> None:
        """Take note of a batch that one stream has read.

        Args:
            took: The batch.
            limit: How much a batch may take.
        """
        self._is_one = not took.at_head
        times = min(limit.bytes / max(took.bytes, 1), limit.changes / max(took.changes, 1))
        self._span = int(took.span * times)
        self._worth_span = int(took.span * WORTH_BYTES / max(took.bytes, 1))
        self._one_stream_seconds = took.seconds * times

    def _streams(self, limit: ReadLimit) -> int:
        return self._advanced.backlog_streams or min(limit.tasks, MOST_STREAMS)

    def _may_be_one(self, start: StreamPlace, head: StreamPlace, limit: ReadLimit) -> bool:
        behind_seconds = (head.time - start.time) / 2**32
        return (
            self._streams(limit) > 1
            and behind_seconds > 0
            and (behind_seconds >= self._advanced.backlog_seconds)
        )

    def _fresh_sample(self, start: int, head: int) -> OplogSample | None:
        if not self._advanced.sample_oplog:
            return None
        now = self._clock()
        if now - self._sampled_at >= _DISCARD_SECONDS or self._is_used_up(start, head):
            self._sample = over_elections(lambda: OplogSample.take(self._client(), start, head))
            self._sampled_at = now
            self._sampled_head = head
        return self._sample

    def _is_used_up(self, start: int, head: int) -> bool:
        """Tell whether most of what is left came after the sample was drawn."""
        return self._sample is not None and self._sampled_head - start < head - self._sampled_head

    @staticmethod
    def _by_sample(sample: OplogSample, inside: Ints, head: int, streams: int, limit: ReadLimit) -> list[int]:
        sums = np.cumsum(sample.sizes[inside])
        total_bytes = float(sums[-1]) * sample.entries_each
        if total_bytes < WORTH_BYTES:
            return []
        changes = len(inside) * sample.entries_each
        share = min(1.0, limit.bytes / total_bytes, limit.changes / changes)
        wanted = sums[-1] * share * np.arange(1, streams + 1) / streams
        at = np.minimum(np.searchsorted(sums, wanted), len(inside) - 1)
        cuts = [int(moment) for moment in sample.times[inside[at]]]
        if share == 1.0:
            cuts[-1] = head
        return cuts

    def _by_time(self, start: int, head: int, streams: int) -> list[int]:
        if self._given_at is not None and self._one_stream_seconds:
            took = self._clock() - self._given_at
            if took < self._one_stream_seconds / 2:
                self._span *= 2
            elif took > 2 * self._one_stream_seconds:
                self._span = max(self._span // 2, streams)
        if head - start < self._worth_span:
            self._given_at = None
            return []
        end = min(start + self._span, head)
        cuts = [start + (end - start) * number // streams for number in range(1, streams + 1)]
        return [_findable(cut) for cut in cuts]


def _findable(moment: int) -> int:
    """Return the moment, or the last one before it at which operations can be.

    From a number above that, the server looks for the place from the oplog's first entry on.
    """
    return (moment >> 32 << 32) | min(moment & 0xFFFF_FFFF, _LAST_OPERATION)


def _ascending(cuts: list[int], start: int) -> list[int]:
    """Leave out cuts that don't lie after the one before."""
    kept: list[int] = []
    for cut in cuts:
        if cut > (kept[-1] if kept else start):
            kept.append(cut)
    return kept
