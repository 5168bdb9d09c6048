"""Reads the slices of a plan on executors: events that it holds, and slices of cluster time.

Slices of cluster time are parts of a backlog, which several change streams read in parallel. Such a slice has
all events after a position and before a cluster time::

    start (token, or time) ──► [t0, t1)   [t1, t2)   ...   [tn-1, tn) ──► the offset: before all events of tn

The first slice starts at the token, as a single stream would; each later one at a cluster time, inclusive.
All events of a cluster time, and so of a transaction, are in one slice: they get the same indexes as in a
single stream, and the slices together return each event of it once, in the same order. (If streams were split
by documents, the server would produce all events for each stream, at a multiple of the cost; slices of time
cost it a few percent more than one stream.)

A slice ends at the first event or token at or after its end. The server sends such a token only after all
earlier events, so none is missed; events of the last reply after the end are dropped.

Read again, a slice returns the same records, except for documents that the server looks up. A slice is an
ordinary stream (:mod:`.capture`), so it survives a lost connection, an election or an ``invalidate``. Events
are yielded reply by reply, so a slice needs the memory of a few replies.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.formats.bson import Spans, split_documents
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import Events, EventSlice
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition, describe
from airflow_cdc_provider.sources.mongodb.records import read_events
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics


@dataclass(frozen=True)
class TimeSlice:
    """A slice of events, read by its own change stream.

    Args:
        start: The position after which it starts.
        until: Cluster time before which it ends, seconds in the upper half.
        captured_us: When it was planned, in us since 1970: the capture time of its records, so that they are
            the same when it is read again.
    """

    start: StreamPosition
    until: int
    captured_us: int


@dataclass(frozen=True)
class NotInBatches:
    """Selects the namespaces that are streamed. Picklable."""

    selects: Callable[[str], bool]
    options: MongodbOptions

    def __call__(self, table: str) -> bool:
        """Return whether ``database.collection`` is streamed."""
        return self.selects(table) and not self.options.in_batches(table)


@dataclass(frozen=True)
class ChangeReader(Reader):
    """Reads the partitions of a plan: events that the plan holds, and slices of time. Picklable.

    Its ``repr`` doesn't contain the connection's values.

    Args:
        values: The connection; None if plans hold all their events.
        options: The source's options.
        selects: Whether a namespace belongs to the capture.
    """

    values: ConnectionValues | None = field(repr=False)
    options: MongodbOptions
    selects: Callable[[str], bool]

    def read(self, parts: Iterable[EventSlice | TimeSlice], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read partitions, reply by reply.

        Raises:
            PositionLost: The oplog no longer has the events of a slice.
            TransientError: The server is unreachable.
            CorruptInput: With option ``strict``: an event is broken.
        """
        return (batch for part in parts for batch in self._read(part, metrics.counts))

    def _read(self, part: EventSlice | TimeSlice, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        strict = self.options.advanced.strict
        if isinstance(part, EventSlice):
            began = time.perf_counter()
            records = read_slice(part, self.selects, strict=strict, counts=counts)
            counts["convert_us"] += _us(time.perf_counter() - began)
            yield records
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


def read_slice(
    part: EventSlice, selects: Callable[[str], bool], *, strict: bool, counts: Counter[str] | None = None
) -> pa.RecordBatch:
    """Read events that a plan holds (see :func:`.records.read_events`)."""
    data = np.frombuffer(part.events, np.uint8)
    spans = split_documents(data)
    if spans.stopped_at != len(data):  # the rest, which can't be split by lengths, is one broken event
        spans = Spans(np.append(spans.starts, spans.stopped_at), np.append(spans.ends, len(data)), len(data))
    return read_events(
        data,
        spans,
        first_index=part.first_index,
        captured_us=part.captured_us,
        selects=selects,
        strict=strict,
        counts=counts,
    )


def position_lost(position: StreamPosition, found: str) -> PositionLost:
    """Return the error of a stream that can't resume after a position."""
    return PositionLost(
        "the oplog no longer has the changes after the stored offset",
        expected=describe(position),
        found=found,
        remedy="take a new snapshot; a larger oplog or more frequent runs prevent it",
    )


def _add(counts: Counter[str], stream: StreamMetrics) -> None:
    counts["wait_us"] += _us(stream.waited_seconds)
    counts["parse_us"] += _us(stream.parsed_seconds)
    counts["events"] += stream.events
    counts["bytes"] += stream.bytes
    counts["disconnects"] += stream.disconnects


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _events(stream: ChangeStream, part: TimeSlice) -> Iterator[Events]:
    stream.seek(part.start)
    while stream.position.time < part.until:
        reply = stream.read()
        for events in reply.events:
            if len(selected := events.before(part.until)):
                yield selected
        if stream.ended(reply):
            return
