"""The MongoDB source: change streams and collection snapshots behind the contract of :mod:`..base`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.signals.signal import Arrived
from airflow_cdc_provider.sources.base import (
    ChunkPlan,
    Codec,
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    SnapshotPlan,
)
from airflow_cdc_provider.sources.mongodb.backlog import Backlog, BatchTaken
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.check import check_deployment, list_collections
from airflow_cdc_provider.sources.mongodb.chunks import maximum_key, plan_chunks, show_key
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    cluster_time,
    pinned_client,
    reach,
)
from airflow_cdc_provider.sources.mongodb.cursor_reads import CursorField
from airflow_cdc_provider.sources.mongodb.event_words import renamed_from
from airflow_cdc_provider.sources.mongodb.inferred import InferredColumns
from airflow_cdc_provider.sources.mongodb.moments import parse_moment
from airflow_cdc_provider.sources.mongodb.oplog import oldest_time
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN, StreamPlace, describe
from airflow_cdc_provider.sources.mongodb.raw_cursor import as_timestamp
from airflow_cdc_provider.sources.mongodb.reread import read_keys
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.server_errors import translated
from airflow_cdc_provider.sources.mongodb.signal_documents import signals_of, write_marks
from airflow_cdc_provider.sources.mongodb.snapshot import SnapshotRange, plan_snapshot, range_reader
from airflow_cdc_provider.sources.mongodb.time_slices import ChangeReader, TimeSlice
from airflow_cdc_provider.sources.mongodb.whole_reads import (
    NotInBatches,
    SnapshotReader,
    WholeRead,
    plan_reading,
    plan_whole_read,
)
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

log = logging.getLogger(__name__)

_AHEAD_SECONDS: Final = 60
"""Less than that a secondary may be behind what a primary gave."""


class MongodbSource:
    """A MongoDB deployment: a replica set or a sharded cluster.

    Connections are made when first needed, so decoding works without any.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection: host, port, login, password, schema, extra.
        selects: Tells whether ``database.collection`` belongs to the capture. A :class:`Selection` also makes
            the server filter; with another callable the server sends the changes of all namespaces.
    """

    type = "mongodb"
    planned_ranges = PlannedRanges({"keys": SnapshotRange, "whole": WholeRead})

    def __init__(
        self, options: MongodbOptions, connection: Mapping[str, Any], selects: Callable[[str], bool]
    ) -> None:
        self._options = options
        self._connection = connection
        self._selects = selects
        self._client_made: MongoClient | None = None
        self._stream_made: ChangeStream | None = None
        self._backlog = Backlog(options.advanced, lambda: self._client)

    @property
    def _values(self) -> ConnectionValues:
        advanced = self._options.advanced
        return ConnectionValues.read(
            self._connection,
            advanced.connect_timeout_seconds,
            advanced.heartbeat_seconds,
            self._options.authentication_class,
        )

    @property
    def _client(self) -> MongoClient:
        if self._client_made is None:
            client = self._values.client()
            try:
                reach(client, self._options.advanced)
            except CdcError:
                client.close()
                raise
            self._client_made = client
        return self._client_made

    @property
    def _stream(self) -> ChangeStream:
        if self._stream_made is None:
            selection = self._selects if isinstance(self._selects, Selection) else None
            self._stream_made = ChangeStream(self._values, self._options, selection)
        return self._stream_made

    def check(self, offset: Offset | None = None) -> list[Finding]:
        """Look at server, permissions, collections, images and oplog; with an offset, whether it holds."""
        place = StreamPlace.from_offset(offset) if offset is not None else None
        return check_deployment(self._values, self._options, self._selects, place)

    def tables(self) -> list[str]:
        """List the selected collections, sorted; views and time series if they are read in batches."""
        facts = list_collections(self._client, self._options, self._selects)
        named = self._selects.names if isinstance(self._selects, Selection) else self._selects
        found = [f for f in facts if named(f.name)]
        return [f.name for f in found if f.type == "collection" or self.in_batches(f.name)]

    def in_batches(self, table: str) -> bool:
        """Tell whether a table is read at each run, and not streamed."""
        return self._options.in_batches(table)

    @property
    def batch_seconds(self) -> float:
        """How long after the begin of one reading of such a table the next one may begin."""
        return self._options.batch_seconds

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a collection. It needs no schema, so dropped collections have one too.

        Raises:
            SchemaUnknown: ``table`` is no ``database.collection``.
            ConfigurationError: See :meth:`MongodbCodec.of`.
        """
        if not all(table.partition(".")):
            raise SchemaUnknown("this is no collection", expected="database.collection", found=table)
        return MongodbCodec.of(table, self._options, memory)

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return what the mirror keeps: its inferred columns."""
        assert isinstance(codec, MongodbCodec)
        return codec.remember()

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return inferred columns that are other ones than the mirror's: a type that was chosen stays."""
        assert isinstance(codec, MongodbCodec)
        if codec.inferred is None or codec.inferred == InferredColumns(declared=codec.inferred.declared):
            return None
        wanted = codec.inferred.to_memory()
        return None if wanted == memory else wanted

    def start(self) -> Offset:
        """Return the present head, for what came before is in the snapshots; or the place of ``start_at``.

        Raises:
            ConfigurationError: The server has no changes of that moment any more, or not yet.
        """
        chosen = parse_moment(self._options.start_at)
        if not chosen:
            return self.head()
        moment, now = as_timestamp(chosen), reach(self._client, self._options.advanced)
        before = StreamPlace(chosen - 1 >> 32, chosen - 1 & LAST_INDEX)
        wanted = f"{self._options.start_at}, {describe(StreamPlace.after(moment))}"
        if moment > now:
            raise ConfigurationError(
                "source.start_at is in the future",
                expected=f"a moment up to {describe(StreamPlace.after(now))}",
                found=wanted,
            )
        if not self._stream.accepts(moment):
            raise ConfigurationError(
                "the oplog begins after source.start_at",
                expected=f"a moment after {describe(self._earliest())}",
                found=wanted,
                remedy="choose a later one, or leave it out: a snapshot has what came before",
            )
        log.info("%s: the first capture begins at %s", self._options.scope, wanted)
        return before.to_offset()

    def after_loss(self) -> Offset:
        """Return the present head: what came before is lost, or in the snapshots that follow."""
        return self.head()

    def head(self) -> Offset:
        """Return the place after all changes of the present cluster time."""
        return StreamPlace.after(reach(self._client, self._options.advanced)).to_offset()

    def earliest(self) -> Offset:
        """Return the place before the first change that the oplog still has."""
        return self._earliest().to_offset()

    def lag(self, offset: Offset | None) -> Lag:
        """Tell how many seconds of cluster time an offset is behind; bytes can't be told."""
        head = StreamPlace.after(cluster_time(self._client))
        place = StreamPlace.from_offset(offset) if offset is not None else self._earliest()
        seconds = float(max(head.seconds - place.seconds, 0)) if place.time < head.time else 0.0
        ahead = place.seconds - head.seconds
        remarks = []
        if ahead > _AHEAD_SECONDS:
            remarks.append(
                f"the stored offset, {describe(place)}, is {ahead} s ahead of the deployment, so nothing is "
                "captured until it gets there: it was restored from a backup, or the connection leads to "
                "another one. Reset the offset and take a new snapshot"
            )
        details = {"stream": {"offset": describe(place), "head": describe(head)}}
        return Lag(seconds, None, details, remarks)

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of a wrong form.

        Raises:
            ConfigurationError: With what is expected.
        """
        StreamPlace.from_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Take the next batch: events that the stream gives, or slices of a backlog for executors to read.

        A batch of slices never is the last one before the head.

        Raises:
            PositionLost: The oplog no longer reaches back to ``start``; the message names the earliest time
                left.
            TransientError: The server can't be reached.
        """
        place = StreamPlace.from_offset(start) if start is not None else self._earliest()
        stop = StreamPlace.from_offset(head)
        try:
            if cuts := self._backlog.cuts(place, stop, limit):
                return self._sliced(place, cuts)
            began, before = time.monotonic(), self._stream.counts
            plan = self._stream.plan(place, stop, self._backlog.one_stream_limit(place, stop, limit))
        except PositionLost as error:
            raise self._explained(error, place) from error
        after = self._stream.counts
        taken = BatchTaken(
            span=self._stream.place.time - place.time,
            bytes=after.bytes - before.bytes,
            changes=after.events - before.events,
            seconds=time.monotonic() - began,
            at_head=plan.at_head,
        )
        self._backlog.was_read(taken, limit)
        return plan

    def stream_numbers(self) -> Mapping[str, StreamNumbers]:
        """Tell what the one stream met so far; those of slices are not counted."""
        return {ORIGIN: self._stream_made.counts} if self._stream_made is not None else {}

    def _sliced(self, start: StreamPlace, cuts: Sequence[int]) -> Plan:
        """Make a plan of slices that executors read."""
        now_us = time.time_ns() // 1000
        after = [start, *(StreamPlace.before(as_timestamp(cut)) for cut in cuts[:-1])]
        slices = [TimeSlice(place, cut, now_us) for place, cut in zip(after, cuts, strict=True)]
        last = as_timestamp(cuts[-1])
        end = replace(StreamPlace.before(last), token=self._stream.token_before(last))
        self._stream.go_to(end)
        log.info(
            "a backlog up to %s is read by %d change streams: after %s, then from %s",
            describe(end),
            len(slices),
            describe(start),
            ", ".join(f"{cut >> 32}:{cut & 0xFFFF_FFFF}" for cut in cuts[:-1]),
        )
        return Plan(end.to_offset(), slices, at_head=False)

    def reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that turns partitions into records."""
        values = self._values if self._connection else None
        selects = self._selects
        if self._options.batch:
            selects = NotInBatches(selects, self._options)
        return ChangeReader(values, self._options, selects)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Cut a collection into ``_id`` ranges.

        Args:
            table: ``database.collection``.
            where: A query in Extended JSON.
        """
        if self.in_batches(table) or self._options.copy.pipeline:
            return plan_whole_read(self._client, table, where)
        return plan_snapshot(self._client, table, where, self._options.advanced.ranges_per_snapshot)

    def plan_batch(self, table: str, where: str | None, reached: str) -> SnapshotPlan:
        """Plan the next reading of a table in batches, by its cursor field where it has one."""
        options = self._options
        field = options.batch_cursors.get(table)
        if field is None:
            return plan_whole_read(self._client, table, where)
        cursor = CursorField(field, options.batch_overlap_seconds, options.batch_full_seconds)
        return plan_reading(self._client, table, where, cursor, reached)

    def snapshot_reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one range."""
        return SnapshotReader(self._values, self._options, range_reader(self._values, self._options))

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read documents again, a batch each: of one that is gone a record without payload."""
        client = pinned_client(self._values)
        try:
            exact = self._options.full_document == "none"
            comment = f"{self._options.stream.comment} snapshot"
            yield from read_keys(client, table, keys, exact=exact, comment=comment)
        finally:
            client.close()

    def state_payload(self, codec: Codec, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes just this document: itself."""
        del codec
        return state

    def maximum_key(self, table: str, where: str) -> str:
        """Return the largest ``_id`` of a collection, empty if it has none."""
        return maximum_key(self._client, table, where)

    def plan_chunks(
        self,
        table: str,
        where: str,
        *,
        start: str,
        maximum: str,
        position: Offset,
        parts: int,
        chunks: int,
        chunk_size: int,
        number: int,
    ) -> ChunkPlan:
        """Cut the next chunks off a collection, read at the stream's own place (see :mod:`.chunks`).

        Raises:
            ConfigurationError: Copies have stages of their own, which chunks would leave out.
        """
        if self._options.copy.pipeline:
            raise ConfigurationError(
                "a snapshot beside the stream reads documents as they are: source.copy.pipeline changes them",
                expected="a signal of type blocking, or CdcSnapshotOperator: these apply it",
            )
        return plan_chunks(
            self._client,
            table,
            where,
            start=start,
            maximum=maximum,
            position=position,
            parts=parts,
            chunks=chunks,
            chunk_size=chunk_size,
            number=number,
        )

    def show_key(self, key: str) -> str:
        """Show an ``_id`` as Extended JSON."""
        return show_key(key)

    def arrival(self, payload: bytes) -> str:
        """Say from which name a collection came, by the event of its rename."""
        return f"{renamed_from(payload)} was renamed to it, with all its documents"

    def signals_of(self, payloads: Sequence[bytes]) -> Sequence[Arrived]:
        """Read signals from change events of the signal collection."""
        return signals_of(payloads)

    def write_marks(self, table: str, chunks: Sequence[str], strategy: str, *, opening: bool) -> None:
        """Mark that chunks begin or end, by documents in a collection.

        Raises:
            ConfigurationError: The user may not write there.
            TransientError: The server doesn't answer.
        """
        write_marks(self._client, table, chunks, strategy, opening=opening)

    def row_count(self, table: str) -> int | None:
        """Count documents by the collection's metadata: immediate, and off only after an unclean stop.

        What is read in batches has no such metadata, or needs none.
        """
        if self.in_batches(table):
            return None
        database, _, collection = table.partition(".")
        with translated(f"{table} can't be counted"):
            return int(self._client[database][collection].estimated_document_count())

    def close(self) -> None:
        """End connections."""
        if self._stream_made is not None:
            self._stream_made.close()
        if self._client_made is not None:
            self._client_made.close()
        self._stream_made = None
        self._client_made = None

    def _earliest(self) -> StreamPlace:
        oldest = oldest_time(self._client, self._stream.accepts, cluster_time(self._client))
        return StreamPlace.after(as_timestamp(((oldest.time << 32) | oldest.inc) - 1))

    def _explained(self, error: PositionLost, place: StreamPlace) -> PositionLost:
        """Say what is lost, and how to go on."""
        earliest = self._earliest()
        by_hand = (
            "To go on: snapshot.mode when_needed, or snapshot.on_lost_position: snapshot, reads the tables "
            "anew; or by hand, 'airflow cdc offsets reset' and a sync. A larger oplog or more frequent runs "
            "prevent it"
        )
        if earliest.time <= place.time:
            return PositionLost(
                "the server can't go on after the stored token",
                expected=describe(place),
                found=f"changes since {describe(earliest)}, and {error.found or error.message}",
                remedy=f"source.stream.resume_by_time goes on by its time. {by_hand}",
            )
        return PositionLost(
            "the oplog no longer has the changes after the stored offset",
            expected=describe(place),
            found=f"changes since {describe(earliest)}",
            remedy=by_hand,
        )
