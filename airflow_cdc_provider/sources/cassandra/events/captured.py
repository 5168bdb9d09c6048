"""Events from the Cassandra records of a changes table: batch by batch, each node in the order of its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced, runs_of_batches
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra.events.before_images import Known
from airflow_cdc_provider.sources.cassandra.events.changes import EventSettings, Numbered, cluster_of
from airflow_cdc_provider.sources.cassandra.events.earlier_rows import earlier_rows
from airflow_cdc_provider.sources.cassandra.events.records import build_events
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.paced import paced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logger(__name__)
_KINDS: Final = (record.CHANGE, record.SNAPSHOT, record.TRUNCATE)
_ROWS_AT_ONCE: Final = 10_000
_ROWS_PER_READ: Final = 200_000


def captured_records(
    stores: Stores, source: CassandraSource, request: EventRequest, skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of batches; see :class:`.event_source.SourceEvents`.

    Raises:
        ConfigurationError: Whole rows are requested for a part of the batches.
    """
    after, connector = request.after, stores.connector
    publish = connector.publish
    if after and publish.envelope == "datastax" and not publish.cassandra.reread:
        raise ConfigurationError(
            "events with whole rows need all batches",
            expected="no --after-batch in envelope datastax",
            found=str(after),
            remedy="or set publish.cassandra.reread, which needs only the rows' keys",
        )
    settings = EventSettings(
        connector,
        source,
        cluster_of(source),
        request.now_ns,
        read_again=partial(_read_again, connector, source),
        earlier_rows=partial(earlier_rows, stores, request.now_ns) if publish.cassandra.reread else None,
        by_batch=request.by_batch,
        registrar=request.registrar,
        owners=dict(request.owners),
    )
    earlier: Iterator[pa.RecordBatch] = iter(())
    if publish.cassandra.before:
        before = replace(request, after=0, through=after)
        earlier = (batch for _, batch in _records(stores.changes, before))
        settings = replace(settings, known_of=partial(_known, stores, after))
    yield from build_events(settings, _records(stores.changes, request), skipped, earlier)


@dataclass(frozen=True)
class CassandraSlice:
    """Builds the events of a slice of Cassandra's records.

    Args:
        settings: The settings of events, without a reader of rows.
    """

    settings: EventSettings

    def __call__(
        self, rows: Iterator[pa.RecordBatch], request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the events; see :class:`~airflow_cdc_provider.events.sliced.SliceBuilder`."""
        settings = replace(
            self.settings,
            now_ns=request.now_ns,
            registrar=request.registrar,
            owners=dict(request.owners),
        )
        runs = (run for batch in rows for run in runs_of_batches(batch))
        numbered = ((number, run.drop_columns(["batch"])) for number, run in runs)
        return build_events(settings, numbered, skipped)


def sliced_records(stores: Stores, source: CassandraSource, after: int, through: int) -> Sliced:
    """Partition records by their partition key, whichever node logged them; a truncation by its table."""
    from pyspark.sql import functions as f

    settings = EventSettings(stores.connector, source.detached(), cluster_of(source), 0, by_batch=True)
    rows = _rows(stores.changes, after, through)
    return Sliced(
        rows,
        f.coalesce("key", f.encode("origin", "utf-8")),
        [f.col("batch"), f.col("origin"), f.col("position")],
        CassandraSlice(settings),
    )


def _read_again(
    connector: Connector, source: CassandraSource, table: str, keys: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """Read partitions of a table, within the rate limit of snapshots."""
    _log.info("%s: reading %d keys again for events", table, len(keys))
    batches = source.read_keys(table, keys)
    limit = connector.snapshot.rows_per_second
    return paced(batches, limit) if limit else batches


def _known(stores: Stores, after: int, table: str, keys: pa.Array) -> Known | None:
    """Return the mirror's rows of some keys, or None if it has merged a batch later than ``after``."""
    from pyspark.sql import functions as f

    mirror = stores.mirror(table)
    state = mirror.state()
    if not 0 <= state.merged_through <= after:
        return None
    frame = stores.spark.createDataFrame(pa.table({"key": keys.cast(pa.binary())}))
    broadcast_keys = f.broadcast(frame)
    names = CONTRIBUTION_SCHEMA.names
    both = (
        mirror.rows(state)
        .where("state IS NOT NULL")
        .select(*names)
        .unionByName(mirror.tombstone_rows().select(*names))
    )
    found = both.join(broadcast_keys, "key", "left_semi").select(*names).toArrow().cast(CONTRIBUTION_SCHEMA)
    return Known(found, state.fences, state.memory)


def _rows(changes: ChangesTable, after: int, through: int, tables: Sequence[str] = ()) -> DataFrame:
    rows = changes.pending(after, through, tables=tables or None, kinds=_KINDS)
    return rows.select(*record.TABLE_SCHEMA.names)


def _records(changes: ChangesTable, request: EventRequest) -> Iterator[Numbered]:
    """Read batch by batch, small ones at once: as much as fits the driver's memory."""
    rows = _rows(changes, request.after, request.through, request.tables)
    counts = sorted((row["batch"], row["count"]) for row in rows.groupBy("batch").count().collect())
    batch_numbers: list[int] = []
    size = 0
    for batch, count in [*counts, (None, _ROWS_PER_READ)]:
        if batch_numbers and size + count > _ROWS_PER_READ:
            part = rows.where(rows["batch"].between(batch_numbers[0], batch_numbers[-1]))
            ordered = part.orderBy("batch", "origin", "position")
            found = ordered.toArrow().cast(record.TABLE_SCHEMA)
            for piece in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
                for number, run in runs_of_batches(piece):
                    yield number, run.drop_columns(["batch"])
            batch_numbers, size = [], 0
        if batch is not None:
            batch_numbers.append(batch)
            size += count
