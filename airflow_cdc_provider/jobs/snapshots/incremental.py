"""Incremental snapshots: a few chunks of a table in one commit, between two commits of the stream.

A commit has the rows, the current offset of the stream, and the progress of the request, so a job resumes
after its last commit. Rows and changes of the stream are merged by their versions, as for every snapshot, and
no rows are removed from a mirror: deletes are in the stream.

The order of events in the changes table is consistent: a chunk that a source reads at the committed position
of the stream (:meth:`~airflow_cdc_provider.sources.contract.Source.plan_chunks`) includes every earlier
change of its rows, and each later change is newer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    CommitStateUnknown,
    TransientError,
    classified,
)
from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.context.events import record_event
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SnapshotRequest, TableCopy
from airflow_cdc_provider.jobs.spark.failures import as_error, is_of_all_tables
from airflow_cdc_provider.jobs.spark.read import read_partitions
from airflow_cdc_provider.lake.changes_table import ChangesState, ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent
from airflow_cdc_provider.sources.contract import ChunkRequest, Reader, ReadMetrics, Source
from airflow_cdc_provider.sources.paced import share_pace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTS_PER_CORE: Final = 2
_MAX_CHUNKS: Final = 256
_SHORT_SECONDS: Final = 4.0
_LONG_SECONDS: Final = 12.0
_RANGES_PER_CORE: Final = 2
_MOST_FAILURES: Final = 3


@dataclass(frozen=True)
class _Step:
    """The ranges of the next commit, and the progress of the table after it."""

    ranges: Sequence[Any]
    after: TableCopy
    ended: bool
    chunk_from: str = ""
    chunk_to: str = ""
    maximum: str = ""


def copy_chunks(
    connector: Connector,
    stores: Stores,
    source: Source,
    clients: Clients,
    report: RunReport,
    request: SnapshotRequest,
    progress: Progress,
    state: ChangesState,
) -> tuple[Progress, ChangesState]:
    """Read the next chunks of a request, commit them and send notifications.

    A table that can't be read as requested ends the request, not the job (:func:`after_failure`).

    Raises:
        CdcError: Another writer committed to the changes table, or the source doesn't respond.
    """
    started = time.monotonic()
    if report.signals.attempted != request.id:
        request, progress, state = begin_attempt(stores.changes, clients, report, request, progress, state)
        if not request.tables:
            return progress, state
    else:
        request = replace(request, failures=request.failures + 1)
    try:
        return _copied(connector, stores, source, clients, report, request, progress, state)
    except Exception as error:
        if (ended := after_failure(stores.changes, clients, report, request, error)) is None:
            raise
        return ended
    finally:
        _adapt_size(report, time.monotonic() - started)


def _adapt_size(report: RunReport, seconds: float) -> None:
    """Adapt the size of commits to their duration."""
    memory = report.signals
    if seconds < _SHORT_SECONDS:
        memory.chunks = min(2 * memory.chunks, _MAX_CHUNKS)
    elif seconds > _LONG_SECONDS:
        memory.chunks = max(memory.chunks // 2, 1)


def begin_attempt(
    changes: ChangesTable,
    clients: Clients,
    report: RunReport,
    request: SnapshotRequest,
    progress: Progress,
    state: ChangesState,
) -> tuple[SnapshotRequest, Progress, ChangesState]:
    """Count an attempt before it is made, so that one that ends the process counts, too.

    Returns:
        The request, without tables if it has ended: the process ended in the last attempts; the progress, and
        the state, after the commit.
    """
    request = replace(request, failures=request.failures + 1)
    if request.failures > _MOST_FAILURES:
        reason = (
            f"the job ended during the last {_MOST_FAILURES} attempts: its memory or its time was exceeded"
        )
        return replace(request, tables=()), *_end(changes, clients, report, request, TransientError(reason))
    report.signals.attempted = request.id
    progress = progress.with_signals(progress.signals.with_request(request))
    return request, progress, changes.set_offset(progress.to_offset(), state)


def after_failure(
    changes: ChangesTable, clients: Clients, report: RunReport, request: SnapshotRequest, error: Exception
) -> tuple[Progress, ChangesState] | None:
    """End a request that failed, so that the next run doesn't meet it again; the job continues.

    After a failure that may pass the next run tries again, but the third in a row ends the request. A failure
    of the lake, of Spark, or of the commit isn't the request's: its attempt no longer counts, if Spark still
    runs.

    Args:
        changes: The changes table.
        clients: Connections to other systems.
        report: State of the run.
        request: The request, whose failures include this one.
        error: The error.

    Returns:
        The progress after the request's end, None if it goes on.
    """
    known = as_error(error)
    report.signals.attempted = ""
    if isinstance(known, CommitConflict | CommitStateUnknown) or is_of_all_tables(error):
        try:
            _set_failures(changes, request.id, request.failures - 1)
        except Exception as lost:  # noqa: BLE001 - the caller raises the failure itself
            log.warning("this attempt of signal %s counts as failed: %s", request.id, as_error(lost))
        return None
    if isinstance(known, TransientError) and request.failures < _MOST_FAILURES:
        log.warning("the snapshot of signal %s failed, %d in a row: %s", request.id, request.failures, known)
        _set_failures(changes, request.id, request.failures)
        return None
    return _end(changes, clients, report, request, known)


def _set_failures(changes: ChangesTable, identity: str, failures: int) -> None:
    state = changes.state()
    progress = Progress.from_offset(state.offset)
    known = next((r for r in progress.signals.requests if r.id == identity), None)
    if known is not None and known.failures != failures:
        signals = progress.signals.with_request(replace(known, failures=failures))
        changes.set_offset(progress.with_signals(signals).to_offset(), state)


def _end(
    changes: ChangesTable, clients: Clients, report: RunReport, request: SnapshotRequest, known: CdcError
) -> tuple[Progress, ChangesState]:
    """End a request because of its error; return the progress after it."""
    log.error("the snapshot of signal %s failed: %s", request.id, known)
    state = changes.state()
    progress = Progress.from_offset(state.offset)
    signals = progress.signals.with_request(replace(request, tables=()))
    progress = progress.with_signals(signals.with_outcome(request.id, "failed", str(known)))
    if request.kind == "blocking":
        progress = progress.without_unfinished(request, [copy.table for copy in request.tables])
    state = changes.set_offset(progress.to_offset(), state)
    record_event(
        clients,
        report,
        SnapshotEvent(
            "aborted",
            request.kind,
            request.id,
            table=request.tables[0].table,
            tables=tuple(t.table for t in request.tables),
            reason=str(known),
            at_us=time.time_ns() // 1000,
        ),
    )
    return progress, state


def _copied(
    connector: Connector,
    stores: Stores,
    source: Source,
    clients: Clients,
    report: RunReport,
    request: SnapshotRequest,
    progress: Progress,
    state: ChangesState,
) -> tuple[Progress, ChangesState]:
    """Read and commit the next step of a request's first table."""
    copy, signals = request.tables[0], progress.signals
    step = _next_step(connector, stores, source, copy, progress, report.signals.chunks)
    frame = _rows_of(step, connector, stores, source, request.id)
    left = request.tables[1:] if step.ended else (step.after, *request.tables[1:])
    after = replace(request, tables=left, started=True, failures=0, done=request.done + step.ended)
    changed = replace(signals.with_request(after), chunks=signals.chunks + 1)
    progress = progress.with_signals(changed.with_outcome(request.id, "running" if left else "done"))
    ends = [_end_row(copy.table)] if step.ended else []
    with _marks(connector, source, step):
        state = stores.changes.append_batch(frame, progress.to_offset(), state, extra_rows=ends)
    rows = state.appended - len(ends)
    # The number of rows is known only after the commit, so the next commit stores it, and a job that resumes
    # another job's copy lacks the last number.
    total = copy.rows + rows
    if step.ended:
        total = max(total, _rows_copied(stores.changes, copy.table, request.id, state))
    counted = replace(step.after, rows=total)
    if not step.ended:
        after = replace(after, tables=(counted, *left[1:]))
        progress = progress.with_signals(progress.signals.with_request(after))
    _record_events(clients, report, request, after, step, counted, rows, changed.chunks)
    return progress, state


def _next_step(
    connector: Connector, stores: Stores, source: Source, copy: TableCopy, progress: Progress, chunks: int
) -> _Step:
    """Plan the next ranges of a table: ``chunks`` chunks unless declared otherwise."""
    cores = stores.spark.sparkContext.defaultParallelism
    with classified():
        if source.reads_chunks:
            declared = connector.snapshot.incremental.chunks_per_commit
            return _next_chunks(connector, source, copy, progress, declared or chunks, cores)
        if progress.source is not None:
            source.seek_to(progress.source)
        return _next_ranges(source, copy, cores)


def _rows_of(
    step: _Step, connector: Connector, stores: Stores, source: Source, request: str
) -> DataFrame | None:
    """Return the rows of a step's ranges, None if it has none."""
    if not step.ranges:
        return None
    cores = stores.spark.sparkContext.defaultParallelism
    reader = Requested(source.snapshot_reader(), request)
    paced = share_pace(reader, connector.snapshot.rows_per_second, min(cores, len(step.ranges)))
    return read_partitions(stores.spark, paced, step.ranges, tasks=cores)


def _rows_copied(changes: ChangesTable, table: str, request: str, state: ChangesState) -> int:
    rows = changes.pending(0, state.batch, [table], [record.SNAPSHOT])
    return rows.where(rows["request"] == request).count()


def _next_chunks(
    connector: Connector, source: Source, copy: TableCopy, progress: Progress, chunks: int, cores: int
) -> _Step:
    options = connector.snapshot.incremental
    if not copy.started:
        copy = replace(copy, started=True, maximum=source.maximum_key(copy.table, copy.where))
        log.info(
            "%s: copying up to %s", copy.table, source.format_key(copy.maximum) or "nothing: it is empty"
        )
    if not copy.maximum:
        return _Step((), copy, ended=True)
    assert progress.source is not None
    parts = chunks if options.watermarks != "none" else min(chunks, _PARTS_PER_CORE * cores)
    request = ChunkRequest(
        table=copy.table,
        where=copy.where,
        start=copy.next,
        maximum=copy.maximum,
        position=progress.source,
        parts=parts,
        chunks=max(chunks // parts, 1),
        chunk_size=options.chunk_size,
        number=progress.signals.chunks,
    )
    plan = source.plan_chunks(request)
    after = replace(copy, next=plan.next, chunks=copy.chunks + len(plan.ranges) * request.chunks)
    keys = (source.format_key(key) for key in (copy.next, plan.next, copy.maximum))
    return _Step(plan.ranges, after, plan.done, *keys)


def _next_ranges(source: Source, copy: TableCopy, cores: int) -> _Step:
    if not copy.started:
        plan = source.plan_snapshot(copy.table, copy.where or None)
        log.info("%s: copying %d ranges", copy.table, len(plan.ranges))
        copy = replace(copy, started=True, ranges=source.planned_ranges.to_json(plan.ranges))
    taken, left = source.planned_ranges.take(copy.ranges, _RANGES_PER_CORE * cores)
    after = replace(copy, ranges=left, chunks=copy.chunks + len(taken))
    return _Step(taken, after, ended=not left)


@contextmanager
def _marks(connector: Connector, source: Source, step: _Step) -> Iterator[None]:
    """Write watermarks around the chunks of a commit, if enabled."""
    strategy = connector.snapshot.incremental.watermarks
    if strategy == "none" or not step.ranges:
        yield
        return
    table = connector.signals.collection
    chunks = [str(uuid.uuid4()) for _ in step.ranges]
    source.write_watermarks(table, chunks, strategy, opening=True)
    yield
    source.write_watermarks(table, chunks, strategy, opening=False)


def _record_events(
    clients: Clients,
    report: RunReport,
    before: SnapshotRequest,
    after: SnapshotRequest,
    step: _Step,
    counted: TableCopy,
    rows: int,
    chunk: int,
) -> None:
    def record_one(kind: Any, request: SnapshotRequest = after, **details: Any) -> None:
        tables = tuple(t.table for t in request.tables)
        at_us = time.time_ns() // 1000
        event = SnapshotEvent(kind, "incremental", before.id, tables=tables, at_us=at_us, **details)
        record_event(clients, report, event)

    if not before.started:
        record_one("started", before)
    if step.ranges:
        record_one(
            "in_progress",
            table=counted.table,
            chunk=chunk,
            chunk_from=step.chunk_from,
            chunk_to=step.chunk_to,
            maximum_key=step.maximum,
            rows=rows,
        )
    if step.ended:
        status = "SUCCEEDED" if counted.rows or counted.where else "EMPTY"
        record_one("table_scanned", table=counted.table, rows=counted.rows, status=status)
        log.info("%s: copied %d rows by the incremental snapshot", counted.table, counted.rows)
    if not after.tables:
        record_one("completed")


def _end_row(table: str) -> dict[str, Any]:
    """Build the record that ends a table's copy; it removes no rows from a mirror."""
    return {
        "source_table": table,
        "kind": record.SNAPSHOT_END,
        "origin": "",
        "position": b"",
        "generation": 0,
        "captured_at": datetime.now(UTC),
        "payload": b"add",
    }


@dataclass(frozen=True)
class Requested(Reader):
    """A reader whose records name the request that they are read for. Picklable.

    Args:
        reader: Reads the records.
        request: Value of their column ``request``.
    """

    reader: Reader
    request: str

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read partitions in sequence."""
        column = record.CHANGE_SCHEMA.get_field_index("request")
        for batch in self.reader.read(parts, metrics):
            requests = pa.repeat(pa.scalar(self.request), batch.num_rows)
            yield batch.set_column(column, record.CHANGE_SCHEMA.field(column), requests)
