"""Capture: one change stream, read to a head in bounded plans of raw bytes.

A change stream is one feed that one server produces on one core, so the driver reads it: it asks for raw
batches, looks at each event's place only, and hands the bytes on in slices for executors to decode
(:class:`EventSlice`). A plan therefore holds its data. Read again from the same offset, the stream gives the
same events at the same positions, but for documents that the server looks up.

The end of a plan is the place of its last event, or the high-water token that the server sends when nothing
matched, so quiet periods move the offset too. The plan is at its head when the stream has passed the head's
cluster time, or has nothing more at that time.

A stream of one collection ends with an ``invalidate`` when the collection is dropped or renamed; it is opened
again after that event. A lost connection or a new primary costs a reopening at the last place, and no event.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import bson
import numpy as np
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, errors

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.base import Plan, ReadLimit
from airflow_cdc_provider.sources.mongodb.bson import Spans, as_bytes, find_in_all, gather
from airflow_cdc_provider.sources.mongodb.change_event import Scan, scan
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    RawBatch,
    RawCursor,
    as_timestamp,
    pinned_client,
    translated,
)
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, token_time
from airflow_cdc_provider.sources.mongodb.records import EventSlice
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter

log = logging.getLogger(__name__)

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Size at which a slice of events is closed; one reply of the server may exceed it."""

BEGIN: Final = Timestamp(1, 1)
"""A time before all changes."""

_TOKEN: Final = b"_id"
_SPLIT: Final = b"splitEvent"
_ATTEMPTS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.2
_SPLIT_SINCE: Final = (6, 0, 9)


def stream_pipeline(
    options: MongodbOptions, selection: Selection | None, *, split: bool
) -> list[dict[str, Any]]:
    """Build a change stream's pipeline but for the place where it starts.

    Args:
        options: What to watch and what events carry.
        selection: The captured namespaces, None if only the client knows them.
        split: Whether the server can split events over 16 MB.
    """
    stage: dict[str, Any] = {}
    if options.scope == "deployment":
        stage["allChangesForCluster"] = True
    if options.full_document == "lookup":
        stage["fullDocument"] = "updateLookup"
    elif options.full_document == "post_image":
        stage["fullDocument"] = "whenAvailable"
    if options.pre_images:
        stage["fullDocumentBeforeChange"] = "whenAvailable"
    pipeline: list[dict[str, Any]] = [{"$changeStream": stage}, {"$match": event_filter(selection)}]
    if split:
        pipeline.append({"$changeStreamSplitLargeEvent": {}})
    return pipeline


def target(options: MongodbOptions) -> tuple[str, str | int]:
    """Return database and ``aggregate`` argument of the stream's scope.

    Raises:
        ConfigurationError: ``target`` doesn't fit ``scope``.
    """
    if options.scope == "deployment":
        return "admin", 1
    database, _, collection = options.target.partition(".")
    if options.scope == "database":
        if not database or collection:
            raise ConfigurationError(
                "option source.target is wrong",
                expected="a database for scope database",
                found=options.target,
            )
        return database, 1
    if not collection:
        raise ConfigurationError(
            "option source.target is wrong",
            expected="database.collection for scope collection",
            found=options.target,
        )
    return database, collection


@dataclass
class _Collected:
    """The events of a plan on their way into slices."""

    slices: list[EventSlice] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    first_index: int = 0
    captured_us: int = 0
    open_bytes: int = 0
    total_bytes: int = 0
    changes: int = 0

    def add(self, events: bytes, count: int, first_index: int) -> None:
        if not self.parts:
            self.first_index = first_index
            self.captured_us = time.time_ns() // 1000
        self.parts.append(events)
        self.open_bytes += len(events)
        self.total_bytes += len(events)
        self.changes += count
        if self.open_bytes >= SLICE_BYTES:
            self.close()

    def close(self) -> None:
        if self.parts:
            self.slices.append(EventSlice(b"".join(self.parts), self.first_index, self.captured_us))
            self.parts = []
            self.open_bytes = 0


class ChangeStream:
    """One change stream. It stays open between plans that follow each other.

    Args:
        values: The connection.
        options: The source's options.
        selection: The captured namespaces, None if only the client knows them.
    """

    def __init__(
        self, values: ConnectionValues, options: MongodbOptions, selection: Selection | None
    ) -> None:
        self._values = values
        self._options = options
        self._selection = selection
        self._target = target(options)
        self._client: MongoClient | None = None
        self._pipeline: list[dict[str, Any]] = []
        self._cursor: RawCursor | None = None
        self._place: StreamPlace | None = None
        self._fragments: list[bytes] = []
        self._skip_through: tuple[int, int] | None = None

    def plan(self, start: StreamPlace, head: StreamPlace, limit: ReadLimit) -> Plan:
        """Read on from a place to the head or the limit, whichever comes first.

        Raises:
            PositionLost: The server no longer has the events after ``start``.
            TransientError: The server can't be reached; nothing is changed.
        """
        if self._cursor is None or self._place != start:
            self._leave()
            self._place = start
        collected = _Collected()
        patience_ms = int(self._options.advanced.max_await_seconds * 1000)
        wait_ms = 1
        while True:
            batch = self._next(wait_ms)
            assert self._place is not None
            took = self._take(batch, collected)
            complete = not self._fragments
            if complete and self._passed(head, took, waited=wait_ms >= patience_ms):
                at_head = True
                break
            if complete and (collected.total_bytes >= limit.bytes or collected.changes >= limit.changes):
                at_head = False
                break
            wait_ms = 1 if took else min(4 * wait_ms, max(patience_ms, 1))
        collected.close()
        return Plan(self._place.to_offset(), collected.slices, at_head)

    def open_at(self, place: StreamPlace) -> None:
        """Try whether the stream can be opened at a place.

        Raises:
            PositionLost: The server no longer has the events after it.
            CdcError: It can't be opened for another reason.
        """
        self._try(place)

    def accepts(self, time: Timestamp) -> bool:
        """Tell whether the server still has all events from a cluster time on."""
        try:
            # Without a filter the first read ends at once, however much the oplog holds of other namespaces.
            self._try(StreamPlace.after(as_timestamp(((time.time << 32) | time.inc) - 1)), filtered=False)
        except PositionLost:
            return False
        return True

    def close(self) -> None:
        """End the stream and its connection."""
        self._leave()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _try(self, place: StreamPlace, *, filtered: bool = True) -> None:
        cursor = self._open(place, batch_events=1, filtered=filtered)
        cursor.next()
        cursor.next(wait_ms=1)  # a lost place shows with the first read, not with the opening
        cursor.close()

    def _passed(self, head: StreamPlace, took: int, *, waited: bool) -> bool:
        place = self._place
        assert place is not None
        if place.time != head.time:
            # A stream whose tokens tell no time (not MongoDB's own) is at its head once it has nothing to
            # give.
            return place.time > head.time or (
                waited and not took and bool(place.token) and not _time_of(place.token)
            )
        return took == 0 or place.index == LAST_INDEX

    def _leave(self, *, lost: bool = False) -> None:
        """End the cursor; a lost one is forgotten with its connection, as its server may be gone."""
        if self._cursor is not None and not lost:
            self._cursor.close()
        self._cursor = None
        self._fragments = []
        if lost and self._client is not None:
            self._client.close()
            self._client = None

    def _next(self, wait_ms: int) -> RawBatch:
        """Return the next batch, opening the stream where it was after whatever ended it."""
        pause = _FIRST_PAUSE_SECONDS
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._cursor is None or not self._cursor.alive:
                    self._leave()
                    assert self._place is not None
                    self._cursor = self._open(self._place)
                    self._cursor.next()  # the first batch is empty; its token is the one given
                return self._cursor.next(wait_ms)
            except TransientError as error:
                self._leave(lost=True)
                if attempt == _ATTEMPTS:
                    raise
                log.warning("change stream lost, opened again (%d of %d): %s", attempt, _ATTEMPTS - 1, error)
                time.sleep(pause)
                pause *= 2
        raise AssertionError("unreachable")

    def _open(
        self, place: StreamPlace, *, batch_events: int | None = None, filtered: bool = True
    ) -> RawCursor:
        if self._client is None:
            self._client = pinned_client(self._values)
            with translated("the MongoDB server's version can't be read"):
                version = tuple(self._client.server_info()["versionArray"][:3])
            self._pipeline = stream_pipeline(self._options, self._selection, split=version >= _SPLIT_SINCE)
        first = dict(self._pipeline[0]["$changeStream"])
        self._skip_through = None
        if place.token:
            first["startAfter"] = RawBSONDocument(place.token)
        else:
            first["startAtOperationTime"] = place.start_time
            if place.index != LAST_INDEX:
                self._skip_through = (place.time, place.index)
        database, aggregate = self._target
        stages = [stage for stage in self._pipeline[1:] if filtered or "$match" not in stage]
        command = {
            "aggregate": aggregate,
            "pipeline": [{"$changeStream": first}, *stages],
            "cursor": {"batchSize": 0},
            "readConcern": {"level": "majority"},
            "comment": "airflow-cdc-provider capture",
        }
        doing = f"the change stream can't be opened after {describe(place)}"
        batch_events = batch_events or self._options.advanced.batch_events
        return RawCursor(self._client, database, command, batch_events, doing)

    def _take(self, batch: RawBatch, collected: _Collected) -> int:
        """Add a batch's events and move the place; return how many events came."""
        place = self._place
        assert place is not None
        count = len(batch.documents)
        if batch.documents.stopped_at != len(batch.data) and count == 0 and not batch.resume_token:
            return 0
        if count:
            same = place.index != LAST_INDEX and self._skip_through is None
            found = scan(batch.data, batch.documents, place.time if same else 0, place.index if same else -1)
            if found.fragments.any() or self._fragments:
                self._take_with_fragments(batch, found, collected)
                return count
            first = self._skipped(found)
            if first < count:
                spans = batch.documents
                data, _ = gather(batch.data, spans.starts[first:], spans.ends[first:])
                collected.add(data.tobytes(), count - first, int(found.indexes[first]))
            last_time = int(found.times[-1])
            place = StreamPlace(
                last_time >> 32, last_time & 0xFFFF_FFFF, int(found.indexes[-1]), batch.resume_token
            )
            if found.invalidate:
                log.warning(
                    "the change stream of %s ended with its collection and goes on after it",
                    self._options.target,
                )
        newest = _time_of(batch.resume_token)
        if newest > place.time:
            place = StreamPlace(newest >> 32, newest & 0xFFFF_FFFF, LAST_INDEX, batch.resume_token)
        elif batch.resume_token and not count:
            place = StreamPlace(place.seconds, place.increment, place.index, batch.resume_token)
        self._place = place
        return count

    def _skipped(self, found: Scan) -> int:
        """Count the events at the beginning that a start by time and index has passed already."""
        if self._skip_through is None:
            return 0
        time_passed, index = self._skip_through
        passed = (found.times == time_passed) & (found.indexes <= index)
        count = int(np.argmin(passed)) if not passed.all() else len(passed)
        if count < len(passed):
            self._skip_through = None
        return count

    def _take_with_fragments(self, batch: RawBatch, found: Scan, collected: _Collected) -> None:
        """Add events one by one, joining fragments; the place moves with whole events only."""
        data = batch.data
        spans = batch.documents
        _, token_starts, token_ends = find_in_all(data, spans.starts, spans.ends, _TOKEN)
        for row in range(len(spans)):
            event = data[spans.starts[row] : spans.ends[row]].tobytes()
            fragment = int(found.fragments[row])
            if fragment:
                if fragment != len(self._fragments) + 1:
                    raise TransientError(
                        "a fragment of a large change event is missing",
                        expected=f"fragment {len(self._fragments) + 1}",
                        found=f"fragment {fragment}",
                        remedy="run again: the stream starts at the last whole event",
                    )
                self._fragments.append(event)
                if fragment < int(found.fragments_in_all[row]):
                    continue
                event = join_fragments(self._fragments)
                self._fragments = []
            moment = int(found.times[row]) or int(_event_time(event))
            index = int(found.indexes[row])
            collected.add(event, 1, index)
            token = data[token_starts[row] : token_ends[row]].tobytes()
            self._place = StreamPlace(moment >> 32, moment & 0xFFFF_FFFF, index, token)


def join_fragments(fragments: list[bytes]) -> bytes:
    """Join the fragments of one event: all fields in order, the last token, no ``splitEvent``."""
    fields: list[bytes] = []
    token = b""
    for fragment in fragments:
        data = as_bytes(fragment)
        whole = np.array([0]), np.array([len(data)])
        cuts = []
        for name in (_TOKEN, _SPLIT):
            _, starts, ends = find_in_all(data, *whole, name)
            cuts.append((int(starts[0]) - len(name) - 2, int(ends[0])))
        token = fragment[slice(*cuts[0])]
        at = 4
        for start, end in sorted(cuts):
            fields.append(fragment[at:start])
            at = end
        fields.append(fragment[at:-1])
    body = token + b"".join(fields)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def _event_time(event: bytes) -> int:
    data = as_bytes(event)
    return int(scan(data, Spans(np.array([0]), np.array([len(data)]), len(data)), 0, -1).times[0])


def _time_of(token: bytes) -> int:
    """Read the cluster time from a resume token's BSON, 0 if it has none that can be told."""
    try:
        return token_time(bson.decode(token)) if token else 0
    except BSONError:
        return 0


def describe(place: StreamPlace) -> str:
    """Name a place for people."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(place.seconds))
    return f"cluster time {place.seconds}:{place.increment} ({moment})"


def oldest_time(client: MongoClient, accepts: Callable[[Timestamp], bool], now: Timestamp) -> Timestamp:
    """Find the first cluster time from which the server can still stream.

    ``serverStatus`` tells it to users that may ask. For others, and for sharded clusters, times are tried:
    back from now in doubling steps, then by halving, to the second. A set that never dropped anything from
    its oplog takes any time; then it is :data:`BEGIN`.

    Args:
        client: A connection.
        accepts: Tells whether a stream can start at a time.
        now: The cluster time.
    """
    if (known := _oldest_by_status(client)) is not None:
        return known
    if accepts(BEGIN):
        return BEGIN
    step = 64
    kept = now.time
    while kept > step and accepts(Timestamp(kept - step, 0)):
        kept -= step
        step *= 2
    lost = max(kept - step, 0)
    while kept - lost > 1:
        middle = (kept + lost) // 2
        if accepts(Timestamp(middle, 0)):
            kept = middle
        else:
            lost = middle
    return Timestamp(kept, 0)


def _oldest_by_status(client: MongoClient) -> Timestamp | None:
    try:
        status: Mapping[str, Any] = client.admin.command("serverStatus", oplog=1)
    except errors.OperationFailure:
        return None
    time_of_first = status.get("oplog", {}).get("earliestOptime")
    return time_of_first if isinstance(time_of_first, Timestamp) else None
