"""Reads by a single aggregation: batch reads of views, time series and collections, and copies with stages.

Neither a view nor a time series has an index on ``_id`` that could bound ranges, and custom stages may start
with anything, so one task reads the whole table. Documents are identified by ``_id`` as everywhere; those
without one are quarantined. Rows have the cluster time before the read as their version. A full read deletes
rows that it didn't find from the mirror; a read by a cursor field (:mod:`.cursor_reads`) only adds and
updates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from bson import json_util
from pymongo import MongoClient

from airflow_cdc_provider.sources.contract import SnapshotPlan
from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import user_stages
from airflow_cdc_provider.sources.mongodb.connection import cluster_time
from airflow_cdc_provider.sources.mongodb.cursor_reads import CursorField, greatest
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.key_ranges import parse_filter, read_concern
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN, StreamPosition
from airflow_cdc_provider.sources.mongodb.records import snapshot_records


@dataclass(frozen=True)
class WholeRead:
    """A whole view, time series or collection.

    Args:
        table: ``database.collection``.
        where: Filter as Extended JSON, empty for none.
        planned_at: Cluster time of the plan; the read is not older.
    """

    table: str
    where: str
    planned_at: int


def plan_whole_read(client: MongoClient, table: str, where: str | None) -> SnapshotPlan:
    """Plan to read a whole view, time series or collection at once.

    Raises:
        ConfigurationError: The filter is invalid.
    """
    parse_filter(where)
    now = cluster_time(client)
    return SnapshotPlan(
        table=table,
        ranges=(WholeRead(table, where or "", (now.time << 32) | now.inc),),
        position=StreamPosition(now.time, now.inc, LAST_INDEX - 1).encoded,
        origin=ORIGIN,
    )


def plan_reading(
    client: MongoClient, table: str, where: str | None, cursor: CursorField, state: str
) -> SnapshotPlan:
    """Plan an incremental read since the previous one, or a full read if that is due.

    Args:
        client: The client.
        table: The table.
        where: Filter as Extended JSON.
        cursor: The cursor field.
        state: The state that the previous read stored, empty for a full read.

    Raises:
        ConfigurationError: The filter is invalid, or the table can't be read.
    """
    filtered, now = parse_filter(where), time.time()
    value = greatest(client, table, cursor.field, filtered)
    newer = cursor.query_since(state, value, now)
    if newer is None:
        plan = plan_whole_read(client, table, where)
    else:
        both = {"$and": [filtered, newer]} if filtered else newer
        text = json_util.dumps(both, json_options=json_util.CANONICAL_JSON_OPTIONS)
        plan = plan_whole_read(client, table, text)
    next_state = cursor.next_state(value, state, now, full=newer is None)
    return replace(plan, resume_at=next_state, partial=newer is not None)


def read_whole(client: MongoClient, options: MongodbOptions, part: WholeRead) -> Iterator[pa.RecordBatch]:
    """Read a whole table as snapshot records. An interrupted read fails, and its task starts over."""
    database, _, collection = part.table.partition(".")
    now = cluster_time(client)
    at = max((now.time << 32) | now.inc, part.planned_at)
    size = options.advanced.fetch_size
    query = parse_filter(part.where)
    own = user_stages(options.copy.pipeline, "source.copy.pipeline")
    command: dict[str, Any] = {
        "aggregate": collection,
        "pipeline": [*([{"$match": query}] if query else []), *own],
        "cursor": {"batchSize": size},
        "allowDiskUse": options.copy.allow_disk_use,
        "readConcern": read_concern(at, exact=False),
        "comment": f"{options.stream.comment} snapshot",
    }
    cursor = RawCursor(client, database, command, size, f"{part.table} can't be read")
    rows = 0
    while cursor.alive:
        reply = cursor.next()
        if not len(reply.documents):
            continue
        records = snapshot_records(
            reply.data,
            reply.documents,
            table=part.table,
            time=at,
            number=0,
            first_row=rows,
            captured_us=time.time_ns() // 1000,
        )
        rows += len(records)
        yield records
    cursor.close()
