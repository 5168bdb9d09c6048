"""Records of recordings as a changes table holds them, cut into batches, and what makes their events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import bson
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import SliceBuilder, SliceRows
from airflow_cdc_provider.formats.bson import split_documents
from airflow_cdc_provider.sources.cassandra.events.captured import CassandraSlice
from airflow_cdc_provider.sources.cassandra.events.changes import EventSettings
from airflow_cdc_provider.sources.cassandra.events.recording import _records, _source
from airflow_cdc_provider.sources.mongodb.events.captured import MongodbSlice
from airflow_cdc_provider.sources.mongodb.records import read_events, snapshot_records
from airflow_cdc_provider.sources.vitess.events.captured import RecordedSchema, VitessSlice
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING
from tests.unit.sources.vitess.events.recorded_events import captured
from tests.unit.sources.vitess.events.vitess_recordings import declared

NOW_NS = 1_800_000_000_000_000_000


@dataclass(frozen=True)
class LakeRecords:
    """Records, and what makes their events.

    Args:
        connector: The declaration.
        rows: Table of ``TABLE_SCHEMA``, in the order in which events are sent.
        build: Builds events.
        partition_by: Per record, what is the same for all of a row of the source.
    """

    connector: Connector
    rows: pa.Table
    build: SliceBuilder
    partition_by: list[bytes]

    @property
    def through(self) -> int:
        """The last batch."""
        return int(pc.max(self.rows["batch"]).as_py())

    def of_slice(self, number: int, slices: int) -> pa.Table:
        """Return the records of a slice."""
        return self.rows.filter(
            pa.array([crc32(text + b".") % slices == number for text in self.partition_by])
        )

    def made(self, number: int, slices: int, *, rows_at_once: int = 10_000) -> list[EventBatch]:
        """Make the events of a slice, of records that come so many at a time."""
        rows = SliceRows(self.of_slice(number, slices).to_batches(max_chunksize=rows_at_once))
        wanted = EventRequest(0, self.through, NOW_NS, by_batch=True)
        return list(self.build(rows.between(0, self.through), wanted, SkippedRecords(strict=True)))

    def batches(self, wanted: EventRequest) -> Iterator[EventBatch]:
        """Make events as they are wanted, of all records."""
        rows = SliceRows(self.rows.to_batches(max_chunksize=10_000))
        return self.build(rows.between(wanted.after, wanted.until), wanted, SkippedRecords(strict=True))


def cassandra(**publish: Any) -> LakeRecords:
    """Read a recording of Cassandra: batches of forty records."""
    declaration = {"name": "p", "source": {"type": "cassandra"}, "publish": {"topic_prefix": "p", **publish}}
    connector = Connector.from_dict(declaration)
    source = _source(connector, RECORDING)
    table = pa.Table.from_batches(_records(source, RECORDING, SkippedRecords(strict=True)))
    settings = EventSettings(connector, source.detached(), "c", 0, by_batch=True)
    rows = _in_batches(table, 40)
    return LakeRecords(connector, rows, CassandraSlice(settings), _keys(rows))


def vitess(**publish: Any) -> LakeRecords:
    """Read a recording of Vitess, of two shards: batches of whole transactions."""
    plain = {"schemas": False, "transactions": False, "vitess": {"ordered_transactions": False}}
    connector = declared("txordered", **{**plain, **publish})
    table, fields = captured("txordered", "shop", ("-80", "80-"))
    ends = np.flatnonzero(pc.equal(table["kind"], record.TRANSACTION).to_numpy()) + 1
    cuts = ends[9::10]
    rows = table.add_column(0, "batch", pa.array(np.searchsorted(cuts, np.arange(len(table)), "right") + 1))
    make = VitessSlice(connector, frozenset(), RecordedSchema(fields, {}))
    origins = [origin.encode() for origin in rows["origin"].to_pylist()]
    return LakeRecords(connector, rows.cast(record.TABLE_SCHEMA), make, origins)


def mongodb(**publish: Any) -> LakeRecords:
    """Make a snapshot of forty documents and some changes of each."""
    connector = Connector.from_dict({"name": "p", "source": {"type": "mongodb"}, "publish": publish})
    documents = b"".join(bson.encode({"_id": n, "x": n}) for n in range(40))
    data = np.frombuffer(documents, np.uint8)
    read = snapshot_records(
        data, split_documents(data), table="d.c", time=0, number=0, first_row=0, captured_us=1
    )
    events = b"".join(
        bson.encode(
            {
                "_id": {"_data": f"82{n:06x}"},
                "operationType": "delete" if n % 9 == 8 else "insert",
                "clusterTime": bson.Timestamp(1_700_000_000 + n // 10, n % 10 + 1),
                "ns": {"db": "d", "coll": "c"},
                "documentKey": {"_id": n % 7},
                **({} if n % 9 == 8 else {"fullDocument": {"_id": n % 7, "x": n}}),
            }
        )
        for n in range(150)
    )
    data = np.frombuffer(events, np.uint8)
    changed = read_events(
        data, split_documents(data), first_index=0, captured_us=1, selects=lambda table: True
    )
    rows = _in_batches(pa.Table.from_batches([read, changed]), 40)
    last = (1, read["position"][-1].as_py())
    return LakeRecords(connector, rows, MongodbSlice(connector, frozenset([last])), _keys(rows))


def _in_batches(table: pa.Table, size: int) -> pa.Table:
    return table.add_column(0, "batch", pa.array(np.arange(len(table)) // size + 1)).cast(record.TABLE_SCHEMA)


def _keys(rows: pa.Table) -> list[bytes]:
    pairs = zip(rows["key"].to_pylist(), rows["origin"].to_pylist(), strict=True)
    return [origin.encode() if key is None else key for key, origin in pairs]
