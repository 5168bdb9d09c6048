"""What a changes table holds of Vitess to lines of events: the decoder and encoder of recordings.

Batch after batch; in each the rows of a snapshot, then each shard's changes in the order of its stream.
Shards come one after the other: their transactions can't be ordered against each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.vitess import VitessRecords
from airflow_cdc_provider.jobs.offline.recordings import Damage
from airflow_cdc_provider.jobs.progress import Progress
from airflow_cdc_provider.sources.vitess.event_records import decode_records, whole_transactions
from airflow_cdc_provider.sources.vitess.events import Heartbeat
from airflow_cdc_provider.sources.vitess.position import Position, epoch_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE

_SHOWN: Final = (record.CHANGE, record.SNAPSHOT, record.TRANSACTION)
_ROWS_AT_ONCE: Final = 10_000


def captured_lines(
    context: JobContext, after: int, through: int, now_ns: int, damage: Damage
) -> Iterator[pa.LargeStringArray]:
    """Write the events of batches, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        after: Batches up to this one are left out.
        through: The last batch.
        now_ns: When events are built, ns since 1970.
        damage: Collects what is left out.

    Yields:
        Lines, some thousands at a time.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
        ConfigurationError: Two tables would share a name, or a mask or converter doesn't fit its column.
    """
    connector = context.connector
    publish = connector.publish
    wanted = set(context.spec.tables)

    def captured(keyspace: str, table: str) -> bool:
        name = f"{keyspace}.{table}"
        return connector.selects(name) and (not wanted or name in wanted)

    known, births = _schema(context, through)

    def fields(table: str, schema_id: str) -> bytes:
        if (table, schema_id) not in known:
            raise CorruptInput(f"the fields {schema_id} of {table} are not among the schema's records")
        return known[table, schema_id]

    headers = context_headers(connector.topic_prefix, publish.task_id, "vitess", str(uuid.uuid4()))
    maker = VitessRecords(connector, now_ns, captured, damage.skipped, births)
    for rows in record_pieces(_batches(context, after, through)):
        decoded = decode_records(rows, fields, maker.form, captured)
        for number, reason in sorted(decoded.unread.items()):
            table, position = (rows[name][number].as_py() for name in ("source_table", "position"))
            damage.add(f"{table} at {position.hex()}", reason)
        records = maker.made(decoded)
        if records.num_rows:
            yield to_lines(records, headers if publish.headers else ())
    reached = maker.heartbeats(_reached(context))
    if reached.num_rows:
        yield to_lines(reached, headers if publish.headers else ())


def _reached(context: JobContext) -> list[Heartbeat]:
    """Return the stored offset as a heartbeat: what stands for those of the stream, which nothing keeps."""
    progress = Progress.from_offset(context.changes.state().offset)
    if progress.source is None:
        return []
    return [Heartbeat(0, Position.from_offset(progress.source).to_vgtid().SerializeToString())]


def record_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut records behind whole transactions.

    Args:
        batches: Batches of ``CHANGE_SCHEMA`` that follow each other.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        whole = whole_transactions(batch)
        if whole:
            yield _joined([*waiting, batch.slice(0, whole)])
            waiting = []
        if whole < batch.num_rows:
            waiting.append(batch.slice(whole))
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _schema(context: JobContext, through: int) -> tuple[dict[tuple[str, str], bytes], dict[str, set[int]]]:
    """Read the fields that rows came with, by table and ``schema_id``, and the first epochs of shards."""
    rows = context.changes.pending(0, through, kinds=(record.SCHEMA,))
    told = rows.select("source_table", "schema_id", "payload", "origin", "position").collect()
    births: dict[str, set[int]] = {}
    for row in told:
        if row["schema_id"] == LINEAGE:
            births.setdefault(row["origin"], set()).add(epoch_of(bytes(row["position"])))
    return {(row["source_table"], row["schema_id"]): bytes(row["payload"]) for row in told}, births


def _batches(context: JobContext, after: int, through: int) -> Iterator[pa.RecordBatch]:
    """Read batch after batch of the changes table."""
    from pyspark.sql import functions as f

    rows = context.changes.pending(after, through, kinds=(*_SHOWN, record.SCHEMA))
    told = f.col("schema_id") == DDL if context.connector.publish.schema_changes else f.lit(False)
    rows = rows.where((f.col("kind") != record.SCHEMA) | told)
    numbers = sorted(row["batch"] for row in rows.select("batch").distinct().collect())
    is_change = f.col("kind") != record.SNAPSHOT
    for number in numbers:
        ordered = rows.where(f.col("batch") == number).orderBy(is_change, "origin", "position")
        table = ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)
        yield from table.to_batches(max_chunksize=_ROWS_AT_ONCE)
