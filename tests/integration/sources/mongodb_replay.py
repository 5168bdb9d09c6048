"""A minimal capture: reads plans to the head, takes snapshots, and reconciles rows in plain Python."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any

import bson
import pyarrow as pa
from bson.raw_bson import RawBSONDocument

from airflow_cdc_provider.changes.fence import Fence, FenceRecord, add_fences, newest_generation
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource


class Replay:
    """Everything that a connector keeps, in memory.

    Args:
        connection: Values of the connection.
        tables: Patterns of collections.
        **options: Options of the source.
    """

    def __init__(self, connection: Mapping[str, Any], *tables: str, **options: Any) -> None:
        self.options = MongodbOptions(**options)
        self.selects = Selection(tables)
        self.connection = connection
        self.source = self.new_source()
        self.offset: Offset = self.source.start()
        self.batches: list[pa.RecordBatch] = []
        self.fences: dict[str, tuple[Fence, ...]] = {}

    def new_source(self) -> MongodbSource:
        return MongodbSource(self.options, self.connection, self.selects)

    def capture(self, limit: ReadLimit | None = None, *, fresh: bool = False) -> int:
        """Read to the present head; return how many plans it took."""
        head = self.source.head()
        plans = 0
        while True:
            if fresh:
                self.source.close()
                self.source = self.new_source()
            plan = self.source.plan(self.offset, head, limit or ReadLimit())
            reader = pickle.loads(pickle.dumps(self.source.reader()))
            for partition in pickle.loads(pickle.dumps(list(plan.partitions))):
                self.keep(*reader.read([partition], ReadMetrics()))
            self.offset = plan.end
            plans += 1
            if plan.at_head:
                return plans

    def snapshot(self, table: str, where: str | None = None, *, replacing: bool = False) -> int:
        """Read a collection in full; return the number of rows."""
        plan = self.source.plan_snapshot(table, where)
        reader = pickle.loads(pickle.dumps(self.source.snapshot_reader()))
        rows = 0
        for part in pickle.loads(pickle.dumps(list(plan.ranges))):
            for batch in reader.read([part], ReadMetrics()):
                rows += batch.num_rows
                self.keep(batch)
        if replacing:
            fence = FenceRecord(plan.origin, plan.position, time.time_ns() // 1000)
            self.fences[table] = add_fences(self.fences.get(table, ()), [fence])
        return rows

    def keep(self, *batches: pa.RecordBatch) -> None:
        for batch in batches:
            batch.validate(full=True)
            self.batches.append(batch)
            for row in batch.to_pylist():
                if row["kind"] == "drop":
                    table = row["source_table"]
                    self.fences[table] = add_fences(self.fences.get(table, ()), [FenceRecord.of(row)])

    def records(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]

    def rows(self, table: str) -> list[bytes]:
        """Return the documents that live: the greatest generation and version of each key."""
        codec = self.source.codec(table)
        best: dict[bytes, tuple[tuple[int, bytes], bytes | None]] = {}
        fences = self.fences.get(table, ())
        for batch in self.batches:
            part = batch.filter(pa.compute.equal(batch.column("source_table"), table))
            found = codec.decode(part, fences)
            assert found.undecodable == ()
            for row in found.contributions.to_pylist():
                rank = (row["generation"], row["version"])
                if row["key"] not in best or rank >= best[row["key"]][0]:
                    best[row["key"]] = (rank, row["state"])
        newest = newest_generation(fences)
        return sorted(state for (generation, _), state in best.values() if state and generation == newest)


def documents(collection: Any) -> list[bytes]:
    """Return a collection's documents as they are stored, sorted."""
    raw = collection.with_options(codec_options=bson.CodecOptions(document_class=RawBSONDocument))
    return sorted(bytes(document.raw) for document in raw.find())
