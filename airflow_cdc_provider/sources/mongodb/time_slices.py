"""Slices of cluster time: parts of a backlog that several change streams read at once, on executors.

A slice holds all events after a place and before a cluster time::

    start (token, or time) ──► [t0, t1)   [t1, t2)   ...   [tn-1, tn) ──► the offset: before all events of tn

The first one begins where one stream would, with the token; each later one at a cluster time, which it begins
with. All events of a cluster time, so of a transaction, are in one slice: they are numbered as one stream
numbers them, and together the slices give what it gives, each event once, in the same order. (Of streams that
are split by documents the server would have to make all events of each: that costs it as many times as much;
slices of time cost it a few percent more than one stream.)

A slice ends with the first event or token of its end or later. The server sends such a token only when it has
sent everything before, so nothing is missed; the part of the last reply that is beyond is dropped.

Read again, a slice gives the same records, but for documents that the server looks up. A lost connection, a
new primary, or an ``invalidate`` inside are got over as in one stream (:mod:`.capture`), of which each slice
is one. Events are handed on reply by reply, so a slice needs the memory of a few replies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.sources.abilities import ReadingCounts
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPlace, describe
from airflow_cdc_provider.sources.mongodb.records import EventSlice, read_events, slice_reader
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.stream_events import Events
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers


@dataclass(frozen=True)
class TimeSlice:
    """Events that a stream of its own reads.

    Args:
        start: The place after which it begins.
        until: Cluster time before which it ends, seconds in the upper half.
        captured_us: When it was planned, in us since 1970: what its records tell as the time of capture, so
            that they are the same when it is read again.
    """

    start: StreamPlace
    until: int
    captured_us: int


@dataclass(frozen=True)
class ChangeReader:
    """What reads the partitions of a plan: events that came with it, and slices of time. Picklable.

    It holds the connection's values; its text doesn't show them.

    Args:
        values: The connection, None where events come with the plan only.
        options: The source's options.
        selects: Tells whether a namespace belongs to the capture.
    """

    values: ConnectionValues | None = field(repr=False)
    options: MongodbOptions
    selects: Callable[[str], bool]

    def __call__(self, part: EventSlice | TimeSlice) -> Iterator[pa.RecordBatch]:
        """Read a partition (see :meth:`read_telling`)."""
        return self.read_telling(part, Counter())

    def read_telling(self, part: EventSlice | TimeSlice, counts: ReadingCounts) -> Iterator[pa.RecordBatch]:
        """Read a partition.

        Args:
            part: The partition.
            counts: To add what was done for it.

        Raises:
            PositionLost: The oplog no longer has the events of a slice.
            TransientError: The server can't be reached.
            CorruptInput: With option ``strict``: an event is broken.
        """
        strict = self.options.advanced.strict
        if isinstance(part, EventSlice):
            began = time.perf_counter()
            records = list(slice_reader(self.selects, strict=strict, counts=counts)(part))
            counts["convert_us"] += _us(time.perf_counter() - began)
            yield from records
            return
        assert self.values is not None
        selection = self.selects if isinstance(self.selects, Selection) else None
        stream = ChangeStream(self.values, self.options, selection, until=part.until)
        try:
            for events in _events(stream, part):
                began = time.perf_counter()
                records = read_events(
                    events.data,
                    events.spans,
                    first_index=int(events.indexes[0]),
                    captured_us=part.captured_us,
                    selects=self.selects,
                    strict=strict,
                    counts=counts,
                )
                counts["convert_us"] += _us(time.perf_counter() - began)
                yield records
            _add(counts, stream.counts)
        except PositionLost as error:
            raise position_lost(part.start, error.found) from error
        finally:
            stream.close()


def position_lost(place: StreamPlace, found: str) -> PositionLost:
    """Return the error of a stream that can't go on after a place."""
    return PositionLost(
        "the oplog no longer has the changes after the stored offset",
        expected=describe(place),
        found=found,
        remedy="take a new snapshot; a larger oplog or more frequent runs prevent it",
    )


def _add(counts: ReadingCounts, stream: StreamNumbers) -> None:
    counts["wait_us"] += _us(stream.waited_seconds)
    counts["parse_us"] += _us(stream.parsed_seconds)
    counts["events"] += stream.events
    counts["bytes"] += stream.bytes
    counts["disconnects"] += stream.disconnects


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _events(stream: ChangeStream, part: TimeSlice) -> Iterator[Events]:
    stream.go_to(part.start)
    while stream.place.time < part.until:
        reply = stream.read()
        for events in reply.events:
            if len(inside := events.before(part.until)):
                yield inside
        if stream.ended(reply):
            return
