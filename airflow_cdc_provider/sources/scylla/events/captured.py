"""Events from the ScyllaDB records of a changes table.

Events come batch by batch; in each the rows of a snapshot, then each group of streams in the order of its
log. Groups come in sequence: a row's changes are in one group, so they stay in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced, runs_of_batches
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas

_ROWS_AT_ONCE = 10_000


def captured_records(
    connector: Connector, changes: ChangesTable, request: EventRequest, skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of some thousands of events at a time; see :class:`.event_source.SourceEvents`."""
    after, through = request.after, request.through
    schemas = schemas_of(changes, through)
    owners = dict(request.owners)
    builder = ScyllaRecords(connector, request.now_ns, schemas, skipped, request.registrar, owners)
    rows = changes.pending(after, through, tables=request.tables or None, kinds=record.DATA_KINDS)
    parts = rows.select("batch", "kind").distinct().collect()
    for number, kind in sorted(((row["batch"], row["kind"]) for row in parts), key=_snapshots_first):
        chosen = rows.where((rows["batch"] == number) & (rows["kind"] == kind))
        ordered = chosen.orderBy("source_table", "origin", "position")
        found = ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)
        for batch in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield EventBatch(number, builder.build(batch))


@dataclass(frozen=True)
class ScyllaSlice:
    """Builds the events of a slice of ScyllaDB's records.

    Args:
        connector: The declaration.
        schemas: The logs' schemas.
    """

    connector: Connector
    schemas: LogSchemas

    def __call__(
        self, rows: Iterator[pa.RecordBatch], request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the events; see :class:`~airflow_cdc_provider.events.sliced.SliceBuilder`."""
        owners = dict(request.owners)
        builder = ScyllaRecords(
            self.connector, request.now_ns, self.schemas, skipped, request.registrar, owners
        )
        for batch in rows:
            for number, run in runs_of_batches(batch):
                yield EventBatch(number, builder.build(run.drop_columns(["batch"])))


def sliced_records(connector: Connector, changes: ChangesTable, after: int, through: int) -> Sliced:
    """Partition records by their table.

    A change may be of several keys, and a row's group of streams changes with the cluster's topology; rows of
    snapshots have none.
    """
    from pyspark.sql import functions as f

    rows = changes.pending(after, through, kinds=record.DATA_KINDS)
    order = [f.col("batch"), f.col("kind") != record.SNAPSHOT]
    return Sliced(
        rows.select(*record.TABLE_SCHEMA.names),
        f.encode("source_table", "utf-8"),
        [*order, f.col("source_table"), f.col("origin"), f.col("position")],
        ScyllaSlice(connector, schemas_of(changes, through)),
    )


def schemas_of(changes: ChangesTable, through: int) -> LogSchemas:
    """Return the recorded schemas of the logs."""
    rows = changes.pending(0, through, kinds=(record.SCHEMA,))
    recorded = rows.select("source_table", "position", "payload").collect()
    return LogSchemas(
        (row["source_table"], int.from_bytes(row["position"][-8:], "big"), bytes(row["payload"]))
        for row in recorded
    )


def _snapshots_first(part: tuple[int, str]) -> tuple[int, bool]:
    number, kind = part
    return number, kind != record.SNAPSHOT
