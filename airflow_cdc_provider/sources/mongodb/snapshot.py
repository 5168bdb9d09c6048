"""Snapshots of collections in ranges of ``_id``, and full reads of views, time series and collections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pymongo import MongoClient

from airflow_cdc_provider.sources.contract import Reader, ReadMetrics, SnapshotPlan
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues, pinned_client
from airflow_cdc_provider.sources.mongodb.cursor_reads import CursorField
from airflow_cdc_provider.sources.mongodb.event_descriptions import describe_row
from airflow_cdc_provider.sources.mongodb.key_ranges import SnapshotRange, plan_key_ranges, read_range
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.whole_reads import (
    WholeRead,
    plan_reading,
    plan_whole_read,
    read_whole,
)


def plan_snapshot(
    client: MongoClient, options: MongodbOptions, table: str, where: str | None
) -> SnapshotPlan:
    """Split a collection into ``_id`` ranges; tables that are read in batches or by stages are one range.

    Raises:
        ConfigurationError: The filter is invalid, or ``table`` is not a collection.
    """
    if options.in_batches(table) or options.copy.pipeline:
        return plan_whole_read(client, table, where)
    return plan_key_ranges(client, table, where, options.advanced.ranges_per_snapshot)


def plan_batch(
    client: MongoClient, options: MongodbOptions, table: str, where: str | None, resume_at: str
) -> SnapshotPlan:
    """Plan the next batch read of a table, by its cursor field if it has one.

    Raises:
        ConfigurationError: The filter is invalid, or the table can't be read.
    """
    name = options.batch_cursors.get(table)
    if name is None:
        return plan_whole_read(client, table, where)
    cursor = CursorField(name, options.batch_overlap_seconds, options.batch_full_refresh_seconds)
    return plan_reading(client, table, where, cursor, resume_at)


@dataclass(frozen=True)
class SnapshotReader(Reader):
    """Reads ranges of collections, and whole tables. Picklable."""

    values: ConnectionValues = field(repr=False)
    options: MongodbOptions

    def read(
        self, parts: Iterable[SnapshotRange | WholeRead], metrics: ReadMetrics
    ) -> Iterator[pa.RecordBatch]:
        """Read parts as snapshot records."""
        for part in parts:
            if isinstance(part, SnapshotRange):
                yield from read_range(self.values, self.options, part, metrics)
            else:
                client = pinned_client(self.values)
                try:
                    yield from read_whole(client, self.options, part)
                finally:
                    client.close()

    def describe_row(self, rows: pa.RecordBatch) -> str:
        """Describe the last document of a batch."""
        last = rows.slice(rows.num_rows - 1)
        return describe_row(last["source_table"][0].as_py(), last["payload"][0].as_py())
