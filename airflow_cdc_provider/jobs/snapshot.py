"""The snapshot stage: tables in full, range by range, resumable after each commit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.pending import REPLACE
from airflow_cdc_provider.jobs.progress import Progress, SnapshotProgress, pack_ranges
from airflow_cdc_provider.jobs.read import read_partitions
from airflow_cdc_provider.lake.changes_table import ChangesState

_RANGES_PER_CORE_AND_COMMIT = 4


@dataclass(frozen=True)
class SnapshotCounts:
    """Rows read per table."""

    rows: dict[str, int]
    seconds: float = 0.0


def due_tables(context: JobContext, progress: Progress) -> list[str]:
    """List the tables that the declaration's snapshot mode asks to read now."""
    mode = context.connector.snapshot.mode
    if mode == "never":
        return []
    tables = context.tables()
    if mode == "always":
        return tables
    return [t for t in tables if t not in progress.snapshots or not progress.snapshots[t].done]


def snapshot(context: JobContext, tables: Iterable[str], *, again: bool, replacing: bool) -> SnapshotCounts:
    """Read tables in full.

    Args:
        context: The job.
        tables: Which ones.
        again: Read also those that have a finished snapshot.
        replacing: Rows that the snapshot doesn't see, and no later change wrote, are to go. Only sources
            whose snapshots have a position can do it; others add.

    Raises:
        CommitConflict: Another writer took the changes table; what was committed before stays and is resumed.
    """
    started = time.monotonic()
    changes = context.changes
    state = changes.state()
    progress = Progress.from_offset(state.offset)
    if progress.source is None:
        # Changes made while the snapshot runs must be captured: their feed begins before it.
        progress = progress.with_source(context.source.start())
        state = changes.append_batch(None, progress.to_offset(), state)
    rows: dict[str, int] = {}
    for table in tables:
        known = progress.snapshots.get(table)
        if known is not None and known.done and not again:
            continue
        running = known if known is not None and not known.done else None
        if running is None:
            plan = context.source.plan_snapshot(table, context.connector.snapshot.filters.get(table))
            running = SnapshotProgress(
                done=False,
                position=plan.position.hex(),
                origin=plan.origin,
                replace=replacing and bool(plan.origin),
                ranges=pack_ranges(plan.ranges),
            )
            log.info("snapshot of %s: %d ranges, about %s rows", table, len(plan.ranges), plan.estimated_rows)
        progress, state, finished = _read(context, table, running, progress, state)
        rows[table] = finished.rows
        if context.stopping():
            break
    return SnapshotCounts(rows, time.monotonic() - started)


def _read(
    context: JobContext, table: str, running: SnapshotProgress, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState, SnapshotProgress]:
    started = time.monotonic()
    reader = context.source.snapshot_reader()
    step = _RANGES_PER_CORE_AND_COMMIT * context.spark.sparkContext.defaultParallelism
    total = running.committed + len(running.remaining())
    while not running.done and not context.stopping():
        ranges = list(running.remaining())[:step]
        committed = running.committed + len(ranges)
        done = committed == total
        frame = read_partitions(context.spark, reader, ranges)
        if done:
            end = _end_row(table, running)
            frame = frame.unionByName(context.spark.createDataFrame(pa.Table.from_batches([end])))
        after = replace(running, committed=committed, done=done, ranges="" if done else running.ranges)
        state = context.changes.append_batch(frame, progress.with_snapshot(table, after).to_offset(), state)
        running = replace(after, rows=running.rows + state.appended - int(done))
        progress = progress.with_snapshot(table, running)
        rate = running.rows / max(time.monotonic() - started, 1e-3)
        log.info(
            "snapshot of %s: %d of %d ranges, %d rows, %.0f rows/s, about %.0f s left",
            table,
            committed,
            total,
            running.rows,
            rate,
            (time.monotonic() - started) / max(committed, 1) * (total - committed),
        )
    return progress, state, running


def _end_row(table: str, running: SnapshotProgress) -> pa.RecordBatch:
    """Build the record that ends a snapshot; a replacing one is a fence at the position where it began."""
    now = datetime.now(UTC)
    values = {
        "source_table": table,
        "kind": record.SNAPSHOT_END,
        "origin": running.origin,
        "position": bytes.fromhex(running.position),
        "generation": 0,
        "captured_at": now,
        "payload": REPLACE if running.replace else b"add",
    }
    arrays = [pa.array([values.get(f.name)], f.type) for f in record.CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=record.CHANGE_SCHEMA)
