"""The MongoDB source: change streams and collection snapshots behind the contract of :mod:`..base`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import PositionLost, SchemaUnknown
from airflow_cdc_provider.sources.base import Codec, Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan
from airflow_cdc_provider.sources.mongodb.capture import ChangeStream, describe, oldest_time
from airflow_cdc_provider.sources.mongodb.check import check_deployment, list_collections
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    as_timestamp,
    cluster_time,
    translated,
)
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPlace
from airflow_cdc_provider.sources.mongodb.records import slice_reader
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.snapshot import plan_snapshot, range_reader


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

    def __init__(
        self, options: MongodbOptions, connection: Mapping[str, Any], selects: Callable[[str], bool]
    ) -> None:
        self._options = options
        self._connection = connection
        self._selects = selects
        self._client_made: MongoClient | None = None
        self._stream_made: ChangeStream | None = None

    @property
    def _values(self) -> ConnectionValues:
        return ConnectionValues.read(self._connection, self._options.advanced.connect_timeout_seconds)

    @property
    def _client(self) -> MongoClient:
        if self._client_made is None:
            self._client_made = self._values.client()
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
        """List the selected collections, sorted; views and time series are left out."""
        facts = list_collections(self._client, self._options, self._selects)
        return [f.name for f in facts if f.type == "collection"]

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a collection. It needs no schema, so dropped collections have one too.

        Raises:
            SchemaUnknown: ``table`` is no ``database.collection``.
        """
        if not all(table.partition(".")):
            raise SchemaUnknown("this is no collection", expected="database.collection", found=table)
        return MongodbCodec.of(table, self._options)

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return what the mirror keeps: nothing, since documents name their own fields."""
        return {}

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> None:
        """Return None: nothing is remembered."""

    def start(self) -> Offset:
        """Return the present head: what came before is in the snapshots."""
        return self.head()

    def head(self) -> Offset:
        """Return the place after all changes of the present cluster time."""
        return StreamPlace.after(cluster_time(self._client)).to_offset()

    def earliest(self) -> Offset:
        """Return the place before the first change that the oplog still has."""
        return self._earliest().to_offset()

    def lag(self, offset: Offset | None) -> Lag:
        """Tell how many seconds of cluster time an offset is behind; bytes can't be told."""
        head = StreamPlace.after(cluster_time(self._client))
        place = StreamPlace.from_offset(offset) if offset is not None else self._earliest()
        seconds = float(max(head.seconds - place.seconds, 0)) if place.time < head.time else 0.0
        return Lag(seconds, None, {"stream": {"offset": describe(place), "head": describe(head)}})

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of a wrong form.

        Raises:
            ConfigurationError: With what is expected.
        """
        StreamPlace.from_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Read the next batch from the stream; its partitions hold the events' bytes.

        Raises:
            PositionLost: The oplog no longer reaches back to ``start``; the message names the earliest time
                left.
            TransientError: The server can't be reached.
        """
        place = StreamPlace.from_offset(start) if start is not None else self._earliest()
        try:
            return self._stream.plan(place, StreamPlace.from_offset(head), limit)
        except PositionLost as error:
            raise PositionLost(
                "the oplog no longer has the changes after the stored offset",
                expected=describe(place),
                found=f"changes since {describe(self._earliest())}",
                remedy="take a new snapshot; a larger oplog or more frequent runs prevent it",
            ) from error

    def reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that turns a partition's events into records."""
        return slice_reader(self._selects, strict=self._options.advanced.strict)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Cut a collection into ``_id`` ranges.

        Args:
            table: ``database.collection``.
            where: A query in Extended JSON.
        """
        return plan_snapshot(self._client, table, where, self._options.advanced.ranges_per_snapshot)

    def snapshot_reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one range."""
        return range_reader(self._values, self._options.advanced.batch_events)

    def row_count(self, table: str) -> int | None:
        """Count documents by the collection's metadata: immediate, and off only after an unclean stop."""
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
