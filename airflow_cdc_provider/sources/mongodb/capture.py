"""Capture: one change stream, read to a head in bounded plans of raw bytes.

A change stream is one feed that one server produces on one core, so near the head the driver reads it: it
asks for raw batches, looks at each event's place only, and hands the bytes on in slices for executors to
decode (:class:`EventSlice`). Such a plan holds its data. Read again from the same offset, the stream gives
the same events at the same positions, but for documents that the server looks up. (A backlog is read by
several streams, on executors: :mod:`.time_slices`.)

The end of a plan is the place of its last event, or the high-water token that the server sends when nothing
matched, so quiet periods move the offset too. The plan is at its head when the stream has passed the head's
cluster time, or has nothing more at that time.

A stream of one collection ends with an ``invalidate`` when the collection is dropped or renamed; it is opened
again after that event. A lost connection or a new primary costs a reopening at the last place, and no event.
A stream that goes back, to events or tokens of an earlier cluster time than it had reached, is refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.sources.base import Plan, ReadLimit
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    over_elections,
    pinned_client,
)
from airflow_cdc_provider.sources.mongodb.event_order import EventOrder, time_of
from airflow_cdc_provider.sources.mongodb.event_words import in_words
from airflow_cdc_provider.sources.mongodb.guard import require_members
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.pipeline import (
    SPLIT_SINCE,
    Stages,
    describe_pipeline,
    large_events,
    stream_pipeline,
    target,
)
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, describe
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawBatch, RawCursor, as_timestamp
from airflow_cdc_provider.sources.mongodb.read_ahead import ReadAhead, Room, Waiting
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.server_errors import EventTooLarge, ServerTimeout, translated
from airflow_cdc_provider.sources.mongodb.stream_events import Reply, SlicedEvents
from airflow_cdc_provider.sources.pauses import pauses
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

log = logging.getLogger(__name__)


_PLACES_ALONE: Final[Stages] = [{"$project": {"_id": 1}}]
_LOOK_FOR_LARGE_SECONDS: Final = 60.0


class ChangeStream:
    """One change stream. It stays open between plans that follow each other.

    Args:
        values: The connection.
        options: The source's options.
        selection: The captured namespaces, None if only the client knows them.
        until: Cluster time from which on nothing is wanted, seconds in the upper half; None for no such. What
            comes in the same reply as an earlier event is given all the same.
    """

    def __init__(
        self,
        values: ConnectionValues,
        options: MongodbOptions,
        selection: Selection | None,
        *,
        until: int | None = None,
    ) -> None:
        self._values = values
        self._until = until
        self._options = options
        self._selection = selection
        self._target = target(options)
        self._client: MongoClient | None = None
        self._pipeline: Stages = []
        self._told_pipeline = False
        self._batch_events = options.advanced.batch_events
        self._comes_again = False
        self._cursor: ReadAhead | None = None
        self._wait_ms = 1
        self._order = EventOrder(options.target)
        self._primary: ObjectId | None = None
        self._counts = StreamNumbers(
            queue_events_limit=options.advanced.read_ahead_events,
            queue_bytes_limit=options.advanced.read_ahead_bytes,
        )
        self._waiting = Waiting()

    @property
    def counts(self) -> StreamNumbers:
        """What the stream met so far."""
        place = self._order.place
        position = {} if place is None else {"sec": str(place.seconds), "ord": str(place.increment)}
        if place is not None and place.token:
            position["resume_token"] = str(bson.decode(place.token).get("_data", ""))
        waiting = self._waiting
        return replace(
            self._counts,
            connected=self._cursor is not None,
            position=position,
            last_event=in_words(self._order.newest) if self._order.newest else "",
            queue_events=waiting.events,
            queue_bytes=waiting.bytes,
            queue_events_max=waiting.most_events,
            queue_bytes_max=waiting.most_bytes,
        )

    @property
    def place(self) -> StreamPlace:
        """How far the stream has been read."""
        assert self._order.place is not None
        return self._order.place

    def plan(self, start: StreamPlace, head: StreamPlace, limit: ReadLimit) -> Plan:
        """Read on from a place to the head or the limit, whichever comes first.

        Raises:
            PositionLost: The server no longer has the events after ``start``.
            TransientError: The server can't be reached, or its stream went back; nothing is changed.
        """
        self.go_to(start)
        try:
            return self._read_on(head, limit)
        except CdcError:
            self._leave()  # the cursor is ahead of what was taken
            raise

    def _read_on(self, head: StreamPlace, limit: ReadLimit) -> Plan:
        collected = SlicedEvents()
        while True:
            reply = self.read()
            for events in reply.events:
                collected.add(events)
            if self._order.incomplete:
                continue
            if self._at(head, reply):
                at_head = True
                break
            if collected.total_bytes >= limit.bytes or collected.changes >= limit.changes:
                at_head = False
                break
        collected.close()
        return Plan(self.place.to_offset(), collected.slices, at_head)

    def go_to(self, place: StreamPlace) -> None:
        """Read on from a place. A stream that stands there already stays open."""
        if self._cursor is None or self._order.place != place:
            self._leave()
            self._order.place = place
        self._wait_ms = 1

    def read(self) -> Reply:
        """Read what the server has next, and move the place.

        The server waits for news the longer, the more often it had none.

        Raises:
            PositionLost: The server no longer has the events after the place.
            TransientError: The server can't be reached, or its stream went back.
        """
        patience_ms = max(int(self._options.advanced.max_await_seconds * 1000), 1)
        batch = self._next(self._wait_ms)
        self._count(batch)
        began = time.perf_counter()
        try:
            events = list(self._order.take(batch))
        except CdcError:
            self._leave()  # what the cursor gave is not taken: it must be given again
            raise
        self._counts.parsed_seconds += time.perf_counter() - began
        took = len(batch.documents)
        if took:
            self._counts.behind_seconds = max(time.time() - self._order.last_seconds, 0.0)
        waited = self._wait_ms >= patience_ms
        self._wait_ms = 1 if took else min(4 * self._wait_ms, patience_ms)
        return Reply(events, took, waited)

    def _count(self, batch: RawBatch) -> None:
        counts = self._counts
        counts.replies += 1
        if len(batch.documents):
            counts.last_event_at = time.time()
        else:
            counts.empty_replies += 1
            counts.last_empty_reply_at = time.time()
        counts.events += len(batch.documents)
        counts.bytes += int((batch.documents.ends - batch.documents.starts).sum())

    def ended(self, reply: Reply) -> bool:
        """Tell whether a stream without tokens that tell the time (not MongoDB's own) had nothing to give."""
        return reply.waited and not reply.took and not time_of(self.place.token)

    def token_before(self, time: Timestamp) -> bytes:
        """Return the token of the place before all events of a cluster time, empty if the server has none.

        Raises:
            PositionLost: The server no longer has the events from then on.
        """

        def ask() -> bytes:
            try:
                cursor = self._open(StreamPlace.before(time), batch_events=1)
            except TransientError:
                self._leave(lost=True)
                raise
            token = cursor.next().resume_token
            cursor.close()
            return token

        return over_elections(ask)

    def open_at(self, place: StreamPlace) -> None:
        """Try whether the stream can be opened at a place.

        Raises:
            PositionLost: The server no longer has the events after it.
            CdcError: It can't be opened for another reason.
        """
        try:
            self._try(place)
        except PositionLost:  # of the pipeline alone?
            self._try(place, filtered=False)

    def accepts(self, time: Timestamp) -> bool:
        """Tell whether the server still has all events from a cluster time on."""
        try:
            # Without a filter the first read ends at once, however much the oplog holds of other namespaces.
            self._try(StreamPlace.before(time), filtered=False)
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

    def _at(self, head: StreamPlace, reply: Reply) -> bool:
        place = self.place
        if place.time != head.time:
            return place.time > head.time or self.ended(reply)
        return reply.took == 0 or place.index == LAST_INDEX

    def _leave(self, *, lost: bool = False) -> None:
        """End the cursor; a lost one is forgotten with its connection, as its server may be gone."""
        if self._cursor is not None and not lost:
            self._cursor.close()
        self._cursor = None
        self._order.left()
        if lost and self._client is not None:
            self._client.close()
            self._client = None

    def _next(self, wait_ms: int) -> RawBatch:
        """Return the next batch, opening the stream where it was after whatever ended it."""
        began = time.perf_counter()
        try:
            return self._next_after_pauses(wait_ms)
        finally:
            self._counts.waited_seconds += time.perf_counter() - began

    def _next_after_pauses(self, wait_ms: int) -> RawBatch:
        left = pauses(self._options.advanced)
        while True:
            try:
                if self._cursor is None or not self._cursor.alive:
                    self._leave()
                    self._cursor = self._open(self.place)
                    self._cursor.next()  # the first batch is empty; its token is the one given
                    self._order.opened(self.place, comes_again=self._comes_again)
                batch = self._cursor.next(wait_ms)
            except TransientError as error:
                self._leave(lost=True)
                self._counts.disconnects += 1
                pause = next(left, None)
                if pause is None:
                    raise
                if isinstance(error, ServerTimeout):
                    self._batch_events = max(self._batch_events // 4, 1)
                log.warning(
                    "change stream lost, opened again in %.1f s with %d events at a time: %s",
                    pause,
                    self._batch_events,
                    error,
                )
                time.sleep(pause)
            except PositionLost as error:
                self._leave()
                self._go_by_time(error)
            except EventTooLarge as error:
                self._leave()
                raise self._located(error) from error
            else:
                self._comes_again = False
                self._batch_events = self._options.advanced.batch_events
                if self._options.stream.pipeline:
                    wanted = self._options.full_document != "none"
                    require_members(batch.data, batch.documents, full_document=wanted)
                return batch

    def _go_by_time(self, lost: PositionLost) -> None:
        """Have the stream opened by the place's cluster time alone, if that does.

        Nothing is missed by it: the events of that time come again, numbered after those that came before.

        Raises:
            PositionLost: It may not do: the one that was met.
            ConfigurationError: It is not the place that is lost.
        """
        place = self._order.place
        assert place is not None
        opens = self._opens_without_stages(place)
        if opens and place.token:
            # The server looks for the token's event behind the filters, which may be others than they were.
            log.warning("the pipeline hides where the stream stood; it goes on by time: %s", describe(place))
        elif opens and self._options.stream.pipeline:
            raise ConfigurationError(
                "the server can't go on with the stages of source.stream.pipeline",
                expected="stages that leave the _id of each event as it is",
                found=lost.found,
            ) from lost
        elif place.token and self._options.stream.resume_by_time:
            log.warning(
                "the stored token of the change stream is lost; going on by time, from %s on, whose events "
                "may come again: %s",
                describe(place),
                lost,
            )
        else:
            raise lost
        self._order.place = replace(place, token=b"")
        self._comes_again = True

    def _opens_without_stages(self, place: StreamPlace) -> bool:
        try:
            self._try(place, filtered=False)
        except PositionLost:
            return False
        return True

    def _located(self, error: EventTooLarge) -> ConfigurationError:
        """Say which event is above the server's limit, if that can be found out."""
        assert self._order.place is not None
        place = self._order.place
        found = error.found
        try:
            if event := self._first_large_event(place):
                names = [event.get("ns", {}).get(part, "") for part in ("db", "coll")]
                found = (
                    f"{event['operationType']} of {'.'.join(filter(None, names))}, {event['bytes']} bytes, "
                    f"at {describe(StreamPlace.after(event['clusterTime']))}"
                )
        except CdcError as failure:
            log.warning("the event over 16 MB can't be looked for: %s", failure)
        return ConfigurationError(
            f"a change event after {describe(place)} is above the server's limit of 16 MB",
            found=found,
            remedy="source.stream.oversize: split has such events sent in parts (MongoDB 6.0.9 or later), "
            "skip leaves them out; without pre_images and with full_document: none events are smaller",
        )

    def _first_large_event(self, place: StreamPlace) -> Mapping[str, Any] | None:
        stages = large_events(self._options, self._selection)
        # By time: behind this pipeline's filter the server would not find the token's event.
        before = StreamPlace(place.time - 1 >> 32, place.time - 1 & LAST_INDEX)
        cursor = self._run(before, stages[1:], batch_events=1)
        deadline = time.monotonic() + _LOOK_FOR_LARGE_SECONDS
        try:
            while cursor.alive and time.monotonic() < deadline:
                batch = cursor.next(1000)
                if len(batch.documents):
                    event = batch.data[batch.documents.starts[0] : batch.documents.ends[0]]
                    return dict(bson.decode(event.tobytes()))
        finally:
            cursor.close()
        return None

    def _open(
        self, place: StreamPlace, *, batch_events: int | None = None, filtered: bool = True
    ) -> ReadAhead:
        self._connect()
        return self._run(place, self._pipeline[1:] if filtered else _PLACES_ALONE, batch_events=batch_events)

    def _connect(self) -> None:
        """Connect to a server, unless there is a connection, and build the pipeline that it can run."""
        if self._client is not None:
            return
        self._client = pinned_client(self._values)
        preference = self._client.read_preference
        with translated("the MongoDB server's version can't be read"):
            version = tuple(self._client.server_info()["versionArray"][:3])
            self._count_election(self._client.admin.command("hello", read_preference=preference))
        self._pipeline = stream_pipeline(self._options, self._selection, split=version >= SPLIT_SINCE)
        if not self._told_pipeline:
            self._told_pipeline = True
            log.info("change stream of %s: %s", ".".join(map(str, self._target)), self.described)

    @property
    def described(self) -> str:
        """The pipeline as it is sent, but for the place where it starts."""
        return describe_pipeline(self._pipeline)

    def _run(self, place: StreamPlace, stages: Stages, *, batch_events: int | None) -> ReadAhead:
        self._connect()
        assert self._client is not None
        first = dict(self._pipeline[0]["$changeStream"])
        if place.token:
            first["startAfter"] = RawBSONDocument(place.token)
        else:
            again = self._comes_again
            first["startAtOperationTime"] = as_timestamp(place.time) if again else place.start_time
        database, aggregate = self._target
        stream = self._options.stream
        command = {
            "aggregate": aggregate,
            "pipeline": [{"$changeStream": first}, *stages],
            "cursor": {"batchSize": 0},
            "readConcern": {"level": "majority"},
            "comment": f"{stream.comment} capture",
        }
        if stream.collation:
            command["collation"] = dict(stream.collation)
        doing = f"the change stream can't be opened after {describe(place)}"
        advanced = self._options.advanced
        cursor = RawCursor(
            self._client,
            database,
            command,
            batch_events or self._batch_events,
            doing,
            largest_batch=batch_events or advanced.batch_events,
        )
        room = Room(
            0 if batch_events else advanced.read_ahead_bytes,
            advanced.read_ahead_events,
            advanced.batch_events,
        )
        return ReadAhead(cursor, room, self._is_last, self._waiting)

    def _count_election(self, hello: Mapping[str, Any]) -> None:
        primary = hello.get("electionId")  # told by primaries
        if primary is not None:
            self._counts.elections += self._primary not in (None, primary)
            self._primary = primary

    def _is_last(self, batch: RawBatch) -> bool:
        return self._until is not None and time_of(batch.resume_token) >= self._until
