"""Reads one change stream up to the head, in bounded plans of raw bytes.

One server produces a change stream on one core, so near the head the driver reads it: it fetches raw batches,
parses only each event's position, and passes the bytes in slices (:class:`EventSlice`) to executors, which
decode them. Such a plan holds its data. Read again from the same offset, the stream returns the same events
at the same positions, except for documents that the server looks up. (Several streams on executors read a
backlog: :mod:`.reader`.)

A plan ends at the position of its last event, or at the high-water token that the server sends when nothing
matched, so quiet periods advance the offset too. The plan is at the head when the stream has passed the
head's cluster time, or has nothing more at that time.

A stream of one collection ends with an ``invalidate`` when the collection is dropped or renamed; it is
reopened after that event. After a lost connection or an election the stream is reopened at the last position
and no event is lost. A stream that goes back to an earlier cluster time than it had reached raises
:class:`TransientError`.
"""

from __future__ import annotations

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
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.contract import Plan, ReadLimit
from airflow_cdc_provider.sources.mongodb.change_stream.event_order import EventOrder, time_of
from airflow_cdc_provider.sources.mongodb.change_stream.guard import require_members
from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import (
    SPLIT_SINCE,
    Stages,
    describe_pipeline,
    large_events,
    stream_pipeline,
    target,
)
from airflow_cdc_provider.sources.mongodb.change_stream.prefetch import PrefetchingCursor
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import Reply, SlicedEvents
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    pinned_client,
    retry_over_elections,
)
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch, RawCursor, as_timestamp
from airflow_cdc_provider.sources.mongodb.driver.server_errors import EventTooLarge, ServerTimeout, translated
from airflow_cdc_provider.sources.mongodb.event_descriptions import describe_event
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition, describe
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.prefetch import BufferedStats, BufferLimit
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics

log = logger(__name__)


_TOKENS_ONLY: Final[Stages] = [{"$project": {"_id": 1}}]
_LOOK_FOR_LARGE_SECONDS: Final = 60.0


class ChangeStream:
    """One change stream. It stays open between consecutive plans.

    Args:
        values: The connection.
        options: The source's options.
        selection: The captured namespaces; None if the server can't filter by them.
        until: Cluster time at which reading may stop, seconds in the upper half; None to read on. Later
            events in the same reply as an earlier one are still returned.
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
        self._pipeline_logged = False
        self._batch_events = options.advanced.batch_events
        self._replays = False
        self._cursor: PrefetchingCursor | None = None
        self._wait_ms = 1
        self._order = EventOrder(options.target)
        self._primary: ObjectId | None = None
        self._counts = StreamMetrics(
            queue_events_limit=options.advanced.read_ahead_events,
            queue_bytes_limit=options.advanced.read_ahead_bytes,
        )
        self._buffered = BufferedStats()

    @property
    def counts(self) -> StreamMetrics:
        """The stream's counters so far."""
        position = self._order.position
        members = {} if position is None else {"sec": str(position.seconds), "ord": str(position.increment)}
        if position is not None and (token := position.stored_token):
            members["resume_token"] = str(bson.decode(token).get("_data", ""))
        buffered = self._buffered
        return replace(
            self._counts,
            connected=self._cursor is not None,
            position=members,
            last_event=describe_event(self._order.newest) if self._order.newest else "",
            queue_events=buffered.events,
            queue_bytes=buffered.bytes,
            queue_events_max=buffered.max_events,
            queue_bytes_max=buffered.max_bytes,
        )

    @property
    def position(self) -> StreamPosition:
        """The position up to which the stream has been read."""
        assert self._order.position is not None
        return self._order.position

    def plan(self, start: StreamPosition, head: StreamPosition, limit: ReadLimit) -> Plan:
        """Read from a position to the head or the limit, whichever comes first.

        Raises:
            PositionLost: The server no longer has the events after ``start``.
            TransientError: The server is unreachable, or its stream went back; the plan can be repeated.
        """
        self.seek(start)
        try:
            return self._read_to(head, limit)
        except CdcError:
            self._close_cursor()  # the cursor is ahead of the events that were returned
            raise

    def _read_to(self, head: StreamPosition, limit: ReadLimit) -> Plan:
        collected = SlicedEvents()
        while True:
            reply = self.read()
            for events in reply.events:
                collected.add(events)
            if self._order.incomplete:
                continue
            if self._is_at(head, reply):
                at_head = True
                break
            if collected.total_bytes >= limit.bytes or collected.changes >= limit.changes:
                at_head = False
                break
        collected.close()
        return Plan(self.position.to_offset(), collected.slices, at_head)

    def seek(self, position: StreamPosition) -> None:
        """Continue from a position. A stream that is already there stays open."""
        if self._cursor is None or self._order.position != position:
            self._close_cursor()
            self._order.position = position
        self._wait_ms = 1

    def read(self) -> Reply:
        """Read the next reply and advance the position.

        Each empty reply makes the server wait longer for new events, up to ``max_await_seconds``.

        Raises:
            PositionLost: The server no longer has the events after the position.
            TransientError: The server is unreachable, or its stream went back.
        """
        max_wait_ms = max(int(self._options.advanced.max_await_seconds * 1000), 1)
        batch = self._next(self._wait_ms)
        self._count(batch)
        began = time.perf_counter()
        try:
            events = list(self._order.take(batch))
        except CdcError:
            self._close_cursor()  # the batch was not processed: it must be read again
            raise
        self._counts.parsed_seconds += time.perf_counter() - began
        count = len(batch.documents)
        if count:
            self._counts.behind_seconds = max(time.time() - self._order.last_seconds, 0.0)
        waited = self._wait_ms >= max_wait_ms
        self._wait_ms = 1 if count else min(4 * self._wait_ms, max_wait_ms)
        return Reply(events, count, waited)

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
        """Return whether a stream with tokens without cluster time (not MongoDB's own) has no more events."""
        return reply.waited and not reply.count and not time_of(self.position.token)

    def token_before(self, time: Timestamp) -> bytes:
        """Return the token of the position before all events of a cluster time, empty if there is none.

        Raises:
            PositionLost: The server no longer has the events since that time.
        """

        def open_and_read() -> bytes:
            try:
                cursor = self._open(StreamPosition.before(time), batch_events=1)
            except TransientError:
                self._close_cursor(lost=True)
                raise
            token = cursor.next().resume_token
            cursor.close()
            return token

        return retry_over_elections(open_and_read)

    def open_at(self, position: StreamPosition) -> None:
        """Verify that the stream can be opened at a position.

        Raises:
            PositionLost: The server no longer has the events after it.
            CdcError: The stream can't be opened for another reason.
        """
        try:
            self._probe(position)
        except PositionLost:  # perhaps only the pipeline hides the token's event, or doesn't split it
            self._probe(position.unsplit, filtered=False)

    def accepts(self, time: Timestamp) -> bool:
        """Return whether the server still has all events since a cluster time."""
        try:
            # Without a filter the first read returns at once, however many other namespaces the oplog has.
            self._probe(StreamPosition.before(time), filtered=False)
        except PositionLost:
            return False
        return True

    def close(self) -> None:
        """Close the stream and its connection."""
        self._close_cursor()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _probe(self, position: StreamPosition, *, filtered: bool = True) -> None:
        cursor = self._open(position, batch_events=1, filtered=filtered)
        cursor.next()
        cursor.next(wait_ms=1)  # the server reports a lost position on the first read, not when opening
        cursor.close()

    def _is_at(self, head: StreamPosition, reply: Reply) -> bool:
        position = self.position
        if position.time != head.time:
            return position.time > head.time or self.ended(reply)
        return reply.count == 0 or position.index == LAST_INDEX

    def _close_cursor(self, *, lost: bool = False) -> None:
        """Close the cursor; a lost one is dropped with its connection, as its server may be down."""
        if self._cursor is not None and not lost:
            self._cursor.close()
        self._cursor = None
        self._order.drop_fragments()
        if lost and self._client is not None:
            self._client.close()
            self._client = None

    def _next(self, wait_ms: int) -> RawBatch:
        """Return the next batch; reopen the stream at its position if it has ended."""
        began = time.perf_counter()
        try:
            return self._next_with_retries(wait_ms)
        finally:
            self._counts.waited_seconds += time.perf_counter() - began

    def _next_with_retries(self, wait_ms: int) -> RawBatch:
        retry_pauses = pauses(self._options.advanced)
        while True:
            try:
                if self._cursor is None or not self._cursor.alive:
                    self._close_cursor()
                    self._cursor = self._open(self.position)
                    self._cursor.next()  # the first batch is empty; its token is the start token
                    self._order.opened(self.position, replays=self._replays)
                batch = self._cursor.next(wait_ms)
            except TransientError as error:
                self._close_cursor(lost=True)
                self._counts.disconnects += 1
                pause = next(retry_pauses, None)
                if pause is None:
                    raise
                if isinstance(error, ServerTimeout):
                    self._batch_events = max(self._batch_events // 4, 1)
                log.warning(
                    "change stream lost, reopening in %.1f s with %d events per batch: %s",
                    pause,
                    self._batch_events,
                    error,
                )
                time.sleep(pause)
            except PositionLost as error:
                self._close_cursor()
                self._fall_back_to_time(error)
            except EventTooLarge as error:
                self._close_cursor()
                raise self._name_large_event(error) from error
            else:
                self._replays = False
                self._batch_events = self._options.advanced.batch_events
                if self._options.stream.pipeline:
                    full_document = self._options.full_document != "none"
                    require_members(batch.data, batch.documents, full_document=full_document)
                return batch

    def _fall_back_to_time(self, lost: PositionLost) -> None:
        """Resume by the position's cluster time, or the token of a whole event, instead of its token.

        No event is missed: the server sends the events of that time again, and they are numbered after those
        that were read before.

        Raises:
            PositionLost: Resuming by time is not possible or not enabled: the original error.
            ConfigurationError: The position is valid, but the pipeline prevents resuming.
        """
        position = self._order.position
        assert position is not None
        if position.unsplit != position:
            log.info("the options no longer split the event of the stored token: %s", describe(position))
            self._order.position = position.unsplit
            return
        opens = self._opens_without_stages(position)
        if opens and position.token:
            # The server looks for the token's event after the filters, which may have changed.
            log.warning(
                "the pipeline hides the stored token's event; resuming by time: %s", describe(position)
            )
        elif opens and self._options.stream.pipeline:
            raise ConfigurationError(
                "the server can't resume with the stages of source.stream.pipeline",
                expected="stages that keep the _id of each event unchanged",
                found=lost.found,
            ) from lost
        elif position.token and self._options.stream.resume_by_time:
            log.warning(
                "the server refused the stored resume token; resuming by time from %s, whose events may be "
                "read again: %s",
                describe(position),
                lost,
            )
        else:
            raise lost
        self._order.position = replace(position, token=b"")
        self._replays = True

    def _opens_without_stages(self, position: StreamPosition) -> bool:
        try:
            self._probe(position, filtered=False)
        except PositionLost:
            return False
        return True

    def _name_large_event(self, error: EventTooLarge) -> ConfigurationError:
        """Build an error that names the event above the server's limit, if it can be found."""
        assert self._order.position is not None
        position = self._order.position
        found = error.found
        try:
            if event := self._first_large_event(position):
                names = [event.get("ns", {}).get(part, "") for part in ("db", "coll")]
                found = (
                    f"{event['operationType']} of {'.'.join(filter(None, names))}, {event['bytes']} bytes, "
                    f"at {describe(StreamPosition.after(event['clusterTime']))}"
                )
        except CdcError as failure:
            log.warning("failed to find the event over 16 MB: %s", failure)
        return ConfigurationError(
            f"a change event after {describe(position)} is above the server's limit of 16 MB",
            found=found,
            remedy="source.stream.oversize: split makes the server send such events in fragments (MongoDB "
            "6.0.9 or later), skip leaves them out; without pre_images and with full_document: none events "
            "are smaller",
        )

    def _first_large_event(self, position: StreamPosition) -> Mapping[str, Any] | None:
        stages = large_events(self._options, self._selection)
        # By time: after this pipeline's filter the server would not find the token's event.
        before = StreamPosition(position.time - 1 >> 32, position.time - 1 & LAST_INDEX)
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
        self, position: StreamPosition, *, batch_events: int | None = None, filtered: bool = True
    ) -> PrefetchingCursor:
        self._connect()
        return self._run(
            position, self._pipeline[1:] if filtered else _TOKENS_ONLY, batch_events=batch_events
        )

    def _connect(self) -> None:
        """Connect to a server unless connected, and build the pipeline for its version."""
        if self._client is not None:
            return
        self._client = pinned_client(self._values)
        preference = self._client.read_preference
        with translated("the MongoDB server's version can't be read"):
            version = tuple(self._client.server_info()["versionArray"][:3])
            self._count_election(self._client.admin.command("hello", read_preference=preference))
        self._pipeline = stream_pipeline(self._options, self._selection, split=version >= SPLIT_SINCE)
        if not self._pipeline_logged:
            self._pipeline_logged = True
            log.info("change stream of %s: %s", ".".join(map(str, self._target)), self.described)

    @property
    def described(self) -> str:
        """The pipeline as it is sent, without its start position."""
        return describe_pipeline(self._pipeline)

    def _run(
        self, position: StreamPosition, stages: Stages, *, batch_events: int | None
    ) -> PrefetchingCursor:
        self._connect()
        assert self._client is not None
        first = dict(self._pipeline[0]["$changeStream"])
        if position.token:
            first["startAfter"] = RawBSONDocument(position.token)
        else:
            replays = self._replays
            first["startAtOperationTime"] = as_timestamp(position.time) if replays else position.start_time
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
        doing = f"the change stream can't be opened after {describe(position)}"
        advanced = self._options.advanced
        cursor = RawCursor(
            self._client,
            database,
            command,
            batch_events or self._batch_events,
            doing,
            largest_batch=batch_events or advanced.batch_events,
        )
        buffer_limit = None
        if advanced.read_ahead_bytes and not batch_events:
            buffer_limit = BufferLimit(
                advanced.read_ahead_bytes, advanced.read_ahead_events, advanced.batch_events
            )
        return PrefetchingCursor(cursor, buffer_limit, self._is_last, self._buffered)

    def _count_election(self, hello: Mapping[str, Any]) -> None:
        primary = hello.get("electionId")  # set by primaries
        if primary is not None:
            self._counts.elections += self._primary not in (None, primary)
            self._primary = primary

    def _is_last(self, batch: RawBatch) -> bool:
        return self._until is not None and time_of(batch.resume_token) >= self._until
