"""The MongoDB source: change streams and collection snapshots behind the contract of :mod:`..contract`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.options import to_plain
from airflow_cdc_provider.signals.signal import ReceivedSignal
from airflow_cdc_provider.sources.contract import (
    ChunkPlan,
    ChunkRequest,
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    SnapshotPlan,
    Source,
)
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream
from airflow_cdc_provider.sources.mongodb.change_stream.backlog import Backlog, BatchStats
from airflow_cdc_provider.sources.mongodb.check import check_deployment, list_collections
from airflow_cdc_provider.sources.mongodb.chunks import format_key, maximum_key, plan_chunks
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    await_cluster_time,
    cluster_time,
    pinned_client,
)
from airflow_cdc_provider.sources.mongodb.driver.oplog import oldest_time
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import as_timestamp
from airflow_cdc_provider.sources.mongodb.event_descriptions import renamed_from
from airflow_cdc_provider.sources.mongodb.key_ranges import SnapshotRange, refused_filter
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.pending import Feed, oldest
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN, StreamPosition, describe
from airflow_cdc_provider.sources.mongodb.reader import ChangeReader, NotInBatches, TimeSlice
from airflow_cdc_provider.sources.mongodb.reread import read_keys
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.signal_documents import parse_signals, write_watermarks
from airflow_cdc_provider.sources.mongodb.snapshot import SnapshotReader, plan_batch, plan_snapshot
from airflow_cdc_provider.sources.mongodb.start_times import parse_start_time
from airflow_cdc_provider.sources.mongodb.whole_reads import WholeRead
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics

log = logger(__name__)

_PATIENCE_SECONDS: Final = 5.0
"""How long a report of the lag may wait for the server's search."""
_AHEAD_SECONDS: Final = 60
"""A secondary may lag its primary by less than this."""


class MongodbSource(Source):
    """A MongoDB deployment: a replica set or a sharded cluster.

    It connects on first use, so decoding needs no connection.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection: host, port, login, password, schema, extra.
        selects: Whether ``database.collection`` belongs to the capture. A :class:`Selection` is also applied
            as a filter on the server; with another callable the server sends the changes of all namespaces.
    """

    renames_tables = True
    reads_chunks = True
    rereads_keys = True
    planned_ranges = PlannedRanges({"keys": SnapshotRange, "whole": WholeRead})

    def __init__(
        self, options: MongodbOptions, connection: Mapping[str, Any], selects: Callable[[str], bool]
    ) -> None:
        self._options = options
        self._connection = connection
        self._selects = selects
        self._cached_client: MongoClient | None = None
        self._cached_stream: ChangeStream | None = None
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
        if self._cached_client is None:
            client = self._values.client()
            try:
                await_cluster_time(client, self._options.advanced)
            except CdcError:
                client.close()
                raise
            self._cached_client = client
        return self._cached_client

    @property
    def _stream(self) -> ChangeStream:
        if self._cached_stream is None:
            selection = self._selects if isinstance(self._selects, Selection) else None
            self._cached_stream = ChangeStream(self._values, self._options, selection)
        return self._cached_stream

    def check(self, offset: Offset | None = None) -> list[Finding]:
        """Verify server, permissions, collections, images and oplog, and that a stored offset is valid."""
        position = StreamPosition.from_offset(offset) if offset is not None else None
        return check_deployment(self._values, self._options, self._selects, position)

    def tables(self) -> list[str]:
        """List the selected collections, sorted, and the views and time series that are read in batches."""
        facts = list_collections(self._client, self._options, self._selects)
        named = self._selects.names if isinstance(self._selects, Selection) else self._selects
        found = [f for f in facts if named(f.name)]
        return [f.name for f in found if f.type == "collection" or self.in_batches(f.name)]

    def in_batches(self, table: str) -> bool:
        """Return whether each run reads the table in full instead of streaming it."""
        return self._options.in_batches(table)

    @property
    def batch_interval_seconds(self) -> float:
        """Minimum seconds between the starts of two reads of such a table."""
        return self._options.batch_interval_seconds

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> MongodbCodec:
        """Return the codec of a collection. It needs no schema, so a dropped collection has one too."""
        if not all(table.partition(".")):
            raise SchemaUnknown("not a collection name", expected="database.collection", found=table)
        return MongodbCodec.of(table, self._options, memory)

    def start(self) -> Offset:
        """Return the offset of ``start_at``, or the current head: snapshots cover everything before it.

        Raises:
            ConfigurationError: The oplog no longer covers ``start_at``, or it is in the future.
        """
        chosen = parse_start_time(self._options.start_at)
        if not chosen:
            return self.head()
        time, now = as_timestamp(chosen), await_cluster_time(self._client, self._options.advanced)
        before = StreamPosition(chosen - 1 >> 32, chosen - 1 & LAST_INDEX)
        requested = f"{self._options.start_at}, {describe(StreamPosition.after(time))}"
        if time > now:
            raise ConfigurationError(
                "source.start_at is in the future",
                expected=f"a time up to {describe(StreamPosition.after(now))}",
                found=requested,
            )
        if not self._stream.accepts(time):
            raise ConfigurationError(
                "the oplog begins after source.start_at",
                expected=f"a time after {describe(self._earliest())}",
                found=requested,
                remedy="choose a later time, or remove the option: a snapshot covers earlier changes",
            )
        log.info("%s: the first capture starts at %s", self._options.scope, requested)
        return before.to_offset()

    def offset_after_loss(self) -> Offset:
        """Return the current head: earlier changes are lost, or covered by the snapshots that follow."""
        return self.head()

    def head(self) -> Offset:
        """Return the offset after all changes of the current cluster time."""
        return StreamPosition.after(await_cluster_time(self._client, self._options.advanced)).to_offset()

    def earliest(self) -> Offset:
        """Return the offset before the first change in the oplog."""
        return self._earliest().to_offset()

    def lag(self, offset: Offset | None) -> Lag:
        """Return the age of the oldest selected change after an offset; bytes are unknown."""
        head = StreamPosition.after(cluster_time(self._client))
        position = StreamPosition.from_offset(offset) if offset is not None else self._earliest()
        seconds = asyncio.run(self._age(position)) if position.seconds < head.seconds else 0.0
        ahead = position.seconds - head.seconds
        remarks = []
        if ahead > _AHEAD_SECONDS:
            remarks.append(
                f"the stored offset, {describe(position)}, is {ahead} s ahead of the deployment, so nothing "
                "is captured until the deployment gets there: it was restored from a backup, or the "
                "connection points to another deployment. Reset the offset and take a new snapshot"
            )
        details = {"stream": {"offset": describe(position), "head": describe(head)}}
        return Lag(seconds, None, details, remarks)

    async def _age(self, position: StreamPosition) -> float | None:
        selection = self._selects if isinstance(self._selects, Selection) else Selection()
        feed = Feed(to_plain(self._options), selection.tables, selection.exclude_tables, selection.signals)
        async with self._values.async_client() as client:
            try:
                return (await oldest(client, feed, position, _PATIENCE_SECONDS)).lag_seconds
            except PositionLost:  # the next capture reports it
                return None

    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset."""
        StreamPosition.from_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch: events read from the stream, or slices of a backlog for executors to read.

        A batch of slices is never the last one before the head.

        Raises:
            PositionLost: The oplog no longer reaches back to ``start``; the message names its earliest time.
            TransientError: The server is unreachable.
        """
        position = StreamPosition.from_offset(start) if start is not None else self._earliest()
        stop = StreamPosition.from_offset(head)
        try:
            if ends := self._backlog.slice_ends(position, stop, limit):
                return self._plan_slices(position, ends)
            began, before = time.monotonic(), self._stream.counts
            plan = self._stream.plan(position, stop, self._backlog.one_stream_limit(position, stop, limit))
        except PositionLost as error:
            raise self._explain_loss(error, position) from error
        after = self._stream.counts
        batch = BatchStats(
            span=self._stream.position.time - position.time,
            bytes=after.bytes - before.bytes,
            changes=after.events - before.events,
            seconds=time.monotonic() - began,
            at_head=plan.at_head,
        )
        self._backlog.record_batch(batch, limit)
        return plan

    def stream_metrics(self) -> Mapping[str, StreamMetrics]:
        """Return the counters of the driver's stream; the streams of slices are not counted."""
        return {ORIGIN: self._cached_stream.counts} if self._cached_stream is not None else {}

    def _plan_slices(self, start: StreamPosition, ends: Sequence[int]) -> Plan:
        """Build a plan of slices that executors read."""
        now_us = time.time_ns() // 1000
        starts = [start, *(StreamPosition.before(as_timestamp(end)) for end in ends[:-1])]
        slices = [TimeSlice(first, until, now_us) for first, until in zip(starts, ends, strict=True)]
        last = as_timestamp(ends[-1])
        end = replace(StreamPosition.before(last), token=self._stream.token_before(last))
        self._stream.seek(end)
        log.info(
            "reading the backlog up to %s with %d change streams: after %s, then from %s",
            describe(end),
            len(slices),
            describe(start),
            ", ".join(f"{time >> 32}:{time & 0xFFFF_FFFF}" for time in ends[:-1]),
        )
        return Plan(end.to_offset(), slices, at_head=False)

    def reader(self) -> ChangeReader:
        """Return the reader that converts partitions to records."""
        values = self._values if self._connection else None
        selects = self._selects
        if self._options.batch:
            selects = NotInBatches(selects, self._options)
        return ChangeReader(values, self._options, selects)

    def refused_filter(self, where: str) -> str:
        """Refuse queries with JavaScript."""
        return refused_filter(where)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Split a collection into ``_id`` ranges; ``where`` is a query in Extended JSON."""
        return plan_snapshot(self._client, self._options, table, where)

    def plan_batch(self, table: str, where: str | None, resume_at: str) -> SnapshotPlan:
        """Plan the next batch read of a table, by its cursor field if it has one."""
        return plan_batch(self._client, self._options, table, where, resume_at)

    def snapshot_reader(self) -> SnapshotReader:
        """Return the reader of ranges, chunks and whole tables."""
        return SnapshotReader(self._values, self._options)

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Re-read documents, one batch each; a deleted document yields a record without payload."""
        client = pinned_client(self._values)
        try:
            exact = self._options.full_document == "none"
            comment = f"{self._options.stream.comment} snapshot"
            yield from read_keys(client, table, keys, exact=exact, comment=comment)
        finally:
            client.close()

    def maximum_key(self, table: str, where: str) -> str:
        """Return the largest ``_id`` of a collection; empty for an empty collection."""
        return maximum_key(self._client, table, where)

    def plan_chunks(self, request: ChunkRequest) -> ChunkPlan:
        """Plan the next chunks of a collection, read at the stream's own position (see :mod:`.chunks`).

        Raises:
            ConfigurationError: ``source.copy.pipeline`` is set, which chunks don't apply.
        """
        if self._options.copy.pipeline:
            raise ConfigurationError(
                "an incremental snapshot reads documents unchanged and can't apply source.copy.pipeline",
                expected="a signal of type blocking, or CdcSnapshotOperator, which apply it",
            )
        return plan_chunks(self._client, request)

    def format_key(self, key: str) -> str:
        """Return an ``_id`` as Extended JSON."""
        return format_key(key)

    def describe_arrival(self, payload: bytes) -> str:
        """Describe from which name a collection was renamed, given the event of its rename."""
        return f"{renamed_from(payload)} was renamed to it, with all its documents"

    def parse_signals(self, payloads: Sequence[bytes]) -> Sequence[ReceivedSignal]:
        """Read signals from change events of the signal collection."""
        return parse_signals(payloads)

    def write_watermarks(self, table: str, chunks: Sequence[str], strategy: str, *, opening: bool) -> None:
        """Mark the start or the end of chunks by documents in a collection."""
        write_watermarks(self._client, table, chunks, strategy, opening=opening)

    def close(self) -> None:
        """Close all connections."""
        if self._cached_stream is not None:
            self._cached_stream.close()
        if self._cached_client is not None:
            self._cached_client.close()
        self._cached_stream = None
        self._cached_client = None

    def _earliest(self) -> StreamPosition:
        oldest = oldest_time(self._client, self._stream.accepts, cluster_time(self._client))
        return StreamPosition.after(as_timestamp(((oldest.time << 32) | oldest.inc) - 1))

    def _explain_loss(self, error: PositionLost, position: StreamPosition) -> PositionLost:
        """Build an error that states what is lost and how to recover."""
        earliest = self._earliest()
        recovery = (
            "To recover: snapshot.mode when_needed, or snapshot.on_lost_position: snapshot, takes a new "
            "snapshot of the tables; or manually, 'airflow cdc offsets reset' and a sync. A larger oplog or "
            "more frequent runs prevent this"
        )
        if earliest.time <= position.time:
            return PositionLost(
                "the server can't resume after the stored token",
                expected=describe(position),
                found=f"changes since {describe(earliest)}, and {error.found or error.message}",
                remedy=f"source.stream.resume_by_time resumes by its cluster time. {recovery}",
            )
        return PositionLost(
            "the oplog no longer has the changes after the stored offset",
            expected=describe(position),
            found=f"changes since {describe(earliest)}",
            remedy=recovery,
        )
