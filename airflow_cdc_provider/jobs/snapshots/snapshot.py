"""The snapshot stage: tables in full, range by range, resumable after each commit.

A commit may have ranges of several tables, and it grows while ranges turn out small, since each commit takes
about a second whatever its size. If it fails, its tables are committed one by one: a table that can't be
planned or read is left out, reported, and due again in the next run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict, CommitStateUnknown, classified
from airflow_cdc_provider.jobs.capturing.capture import begin_feed
from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.merging.pending import REPLACE, REREAD_UNSEEN
from airflow_cdc_provider.jobs.metrics.scanned import ScannedRows
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.snapshots.custom import captures, due_by_class, filter_of, snapshotter_of
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spark.read import new_metrics, read_partitions
from airflow_cdc_provider.jobs.spec import SnapshotResult, TableResult
from airflow_cdc_provider.lake.changes_table import ChangesState, PendingChanges
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.paced import share_pace
from airflow_cdc_provider.sources.schema_history import learn_schema

_RANGES_PER_CORE = 4
_MAX_RANGES_PER_CORE = 64
_TASKS_PER_CORE = 2
_FEW_ROWS = 50_000
"""After a commit with fewer rows, the next one has more ranges."""


@dataclass(frozen=True)
class _Part:
    """The ranges of one table in a commit."""

    table: str
    ranges: Sequence[Any]
    after: SnapshotProgress


def due_tables(job: Job, stores: Stores, source: Source, progress: Progress) -> list[str]:
    """List the tables whose snapshot is due by the declared snapshot mode.

    What a blocking request began, it continues itself, which counts its attempts.
    """
    due = _due_tables(job, stores, source, progress)
    return [table for table in due if not captures(job.connector) or not _is_requested(progress, table)]


def _is_requested(progress: Progress, table: str) -> bool:
    """Return whether the unfinished snapshot of a table is that of a blocking request."""
    taken = progress.snapshots.get(table)
    if taken is None or taken.done or taken.outdated:
        return False
    started = (r for r in progress.signals.requests if r.kind == "blocking" and r.started)
    asked = (r.tables for r in started if r.requested_us <= taken.started_us)
    return any(copy.table == table for copies in asked for copy in copies)


def _due_tables(job: Job, stores: Stores, source: Source, progress: Progress) -> list[str]:
    options = job.connector.snapshot
    mode = options.mode
    if source.feed_is_complete:
        return []
    if mode == "never":
        tables = [t for t in selected_tables(job, stores, source) if source.in_batches(t)]
    else:
        tables = [t for t in selected_tables(job, stores, source) if options.includes(t)]
    if (own := snapshotter_of(job.connector)) is not None:
        return due_by_class(own, tables, progress)
    if mode == "always":
        return tables
    return [t for t in tables if _is_due(source, progress.snapshots.get(t), t)]


def _is_due(source: Source, taken: SnapshotProgress | None, table: str) -> bool:
    if taken is None or taken.due or (taken.in_batches and not source.in_batches(table)):
        return True
    if source.in_batches(table):
        return not taken.done or time.time() - taken.started_us / 1e6 >= source.batch_interval_seconds
    # By the source's clock, if the snapshot read it.
    started_us = taken.read_after_us or taken.started_us
    return source.resumed_at(table) > started_us


def snapshot(
    job: Job,
    stores: Stores,
    source: Source,
    clients: Clients,
    report: RunReport,
    tables: Iterable[str],
    *,
    again: bool,
    replacing: bool,
    filters: Mapping[str, str] | None = None,
) -> SnapshotResult:
    """Read tables in full. The report has the progress, too, from the start.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        clients: Connections to other systems.
        report: State of the run.
        tables: The tables.
        again: Whether to read also tables with a finished snapshot.
        replacing: Whether to remove rows that the snapshot doesn't return and no later change wrote. If the
            snapshot has no position in the feed, the merge after it rereads such rows.
        filters: Per table, a filter in place of the declared one.

    Returns:
        The result, with the errors of tables that can't be read.

    Raises:
        CommitConflict: Another writer committed to the changes table; earlier commits stay and are resumed.
        Exception: The lake or Spark is unavailable, or a stop was requested meanwhile.
    """
    started = time.monotonic()
    progress, state = begin_feed(job.connector, stores.changes, source)
    if progress.source is not None:
        source.seek_to(progress.source)
    known = progress.snapshots
    due = [table for table in tables if again or _is_due(source, known.get(table), table)]
    left = _Ranges(job, source, due, known, again=again, replacing=replacing, filters=filters or {})
    first = state.batch
    shot = report.snapshot = SnapshotResult(tables=len(due), remaining=len(due))
    with (
        _notifications(clients, report),
        ScannedRows(stores.spark.sparkContext, job.spec.rows_path) as scanned,
    ):
        commits = _Commits(job.connector, stores, source, scanned)
        while not job.stopping() and (parts := left.take(commits.next_ranges)):
            for table in left.started(parts):
                clients.snapshot_notifier.in_progress(table)
            committed, progress, state, rows = commits.commit(parts, left, progress, state)
            seconds, by_table = time.monotonic() - started, scanned.tally.rows()
            for part in committed:
                _log_progress(part, seconds / max(commits.ranges, 1), by_table.get(part.table))
                if part.after.done:
                    clients.snapshot_notifier.table_completed(part.table, by_table.get(part.table))
            shot = report.snapshot = replace(
                shot,
                rows=shot.rows + rows,
                rows_by_table=by_table,
                remaining=shot.remaining - sum(part.after.done for part in committed),
                seconds=seconds,
                disconnects=commits.metrics.value.counts["disconnects"],
                last_event=scanned.tally.last_row,
                last_event_at=scanned.tally.reported_at,
            )
            scanned.tally.report(asdict(replace(shot, rows_by_table={})))  # rows are reported separately
            log.info("snapshot: %d rows, %.0f rows/s", shot.rows, shot.rows / max(seconds, 1e-3))
    if due:
        learn_schema(source, stores.changes, state.batch)  # snapshot readers record schemas, too
    shot = _with_committed(shot, stores.changes.summary(first, state.batch), due)
    report.snapshot = replace(shot, errors=left.errors, aborted=bool(left.errors))
    if shot.completed and due:
        log.info("snapshot completed: %d tables, %d rows, %.1f s", len(due), shot.rows, shot.seconds)
    return report.snapshot


def _with_committed(
    shot: SnapshotResult, found: Sequence[PendingChanges], due: Sequence[str]
) -> SnapshotResult:
    """Return the result with the committed rows by table and feed in place of the reported ones."""
    rows: dict[str, int] = {}
    by_origin: dict[str, dict[str, int]] = {}
    for part in found:
        if part.kind == record.SNAPSHOT and part.source_table is not None:
            rows[part.source_table] = part.rows
            for origin, count in sorted(part.origins.items()):
                by_origin.setdefault(origin, {})[part.source_table] = count
    return replace(
        shot,
        rows=sum(rows.values()),
        rows_by_origin=by_origin,
        rows_by_table={table: rows.get(table, 0) for table in due},
        erroneous=sum(part.count for part in found if part.kind == record.QUARANTINE),
    )


@contextmanager
def _notifications(clients: Clients, report: RunReport) -> Iterator[None]:
    """Send notifications of the start and end of the run's snapshot, if it has tables."""
    shot = report.snapshot
    if shot is None or not shot.tables:
        yield
        return
    notifier = clients.snapshot_notifier
    notifier.started()
    try:
        yield
    except BaseException:
        notifier.aborted()
        raise
    if report.snapshot is not None and report.snapshot.completed:
        notifier.completed()
    else:
        notifier.aborted()


class _Ranges:
    """The remaining ranges, table by table. A table is planned right before it is read.

    Attributes:
        errors: By table that was left out, its error in the form of ``TableResult.error``.
    """

    def __init__(
        self,
        job: Job,
        source: Source,
        tables: Iterable[str],
        known: Mapping[str, SnapshotProgress],
        *,
        again: bool,
        replacing: bool,
        filters: Mapping[str, str],
    ) -> None:
        self._job = job
        self._source = source
        self._tables = deque(tables)
        self.errors: dict[str, str] = {}
        self._running = {table: progress for table, progress in known.items() if not progress.done}
        self._before = known
        self._again = again
        self._replacing = replacing
        self._filters = filters
        self._started: set[str] = set()

    def started(self, parts: Sequence[_Part]) -> list[str]:
        """Return the tables whose first ranges are among the given parts."""
        new = [part.table for part in parts if part.table not in self._started]
        self._started.update(new)
        return new

    def take(self, count: int) -> list[_Part]:
        """Return the next ranges, about ``count``; none at the end."""
        parts = []
        while self._tables and count > 0:
            table = self._tables[0]
            try:
                with classified():
                    before = self._running.get(table) or self._plan(table)
                taken, left = self._source.planned_ranges.take(before.ranges, count)
            except Exception as error:
                if self.fails_all(error):
                    raise
                self.leave_out(table, error)
                continue
            committed = before.committed + len(taken)
            after = replace(before, committed=committed, done=not left, ranges=left)
            parts.append(_Part(table, taken, after))
            count -= max(len(taken), 1)
            self._running[table] = after
            if not left:
                self._tables.popleft()
        return parts

    def fails_all(self, error: Exception) -> bool:
        """Return whether after an error no table can be read, or none shall be."""
        conflict = isinstance(error, CommitConflict | CommitStateUnknown)
        return conflict or self._job.stopping() or failures.is_of_all_tables(error)

    def leave_out(self, table: str, error: Exception) -> None:
        """Read no more of a table, because of its error; ranges that were committed stay."""
        self.errors[table] = failures.of_one_table(TableResult(table), error, "its snapshot failed: ").error
        self._tables = deque(left for left in self._tables if left != table)

    def _plan(self, table: str) -> SnapshotProgress:
        where = self._filters.get(table) or filter_of(self._job.connector, table)
        before = self._before.get(table, SnapshotProgress(True))
        source = self._source
        if source.in_batches(table) and table not in self._filters:
            plan = source.plan_batch(table, where, "" if self._again or before.outdated else before.resume_at)
        else:
            # A requested part of a table doesn't advance its batch position.
            plan = replace(source.plan_snapshot(table, where), resume_at=before.resume_at)
        about = "" if plan.estimated_rows is None else f", about {plan.estimated_rows} rows"
        log.info("snapshot of %s: %d ranges%s", table, len(plan.ranges), about)
        return SnapshotProgress(
            done=False,
            position=plan.position.hex(),
            origin=plan.origin,
            replace=self._replacing and bool(plan.origin) and not plan.partial,
            ranges=source.planned_ranges.to_json(plan.ranges),
            started_us=time.time_ns() // 1000,
            read_after_us=plan.read_after_us if self._replacing else 0,
            resume_at=plan.resume_at,
            other_positions={origin: position.hex() for origin, position in plan.other_positions.items()},
            in_batches=source.in_batches(table),
        )


class _Commits:
    """Reads ranges and commits them with the progress after them; counts the ranges."""

    def __init__(self, connector: Connector, stores: Stores, source: Source, scanned: ScannedRows) -> None:
        self._connector, self._stores, self._source, self._scanned = connector, stores, source, scanned
        self._cores = stores.spark.sparkContext.defaultParallelism
        self.metrics = new_metrics(stores.spark)
        self.next_ranges = _RANGES_PER_CORE * self._cores  # number of ranges to take for the next commit
        self.ranges = 0

    def commit(
        self, parts: Sequence[_Part], left: _Ranges, progress: Progress, state: ChangesState
    ) -> tuple[list[_Part], Progress, ChangesState, int]:
        """Read and commit the ranges of one commit; table by table if that fails.

        Returns:
            The committed parts, the progress and state after them, and the number of their rows.
        """
        try:
            return list(parts), *self._commit(parts, progress, state)
        except Exception as error:
            self._scanned.tally.discard()
            if left.fails_all(error):
                raise
            if len(parts) == 1:
                left.leave_out(parts[0].table, error)
                return [], progress, state, 0
            log.warning("the ranges of %d tables can't be committed together", len(parts), exc_info=True)
        committed, rows = [], 0
        for part in parts:
            done, progress, state, more = self.commit([part], left, progress, state)
            committed += done
            rows += more
        return committed, progress, state, rows

    def _commit(
        self, parts: Sequence[_Part], progress: Progress, state: ChangesState
    ) -> tuple[Progress, ChangesState, int]:
        ranges = [one for part in parts for one in part.ranges]
        rate = self._connector.snapshot.rows_per_second
        paced = share_pace(self._source.snapshot_reader(), rate, min(self._cores, len(ranges)))
        reader = self._scanned.counted(paced, state.batch + 1)
        tasks = _TASKS_PER_CORE * self._cores
        frame = read_partitions(self._stores.spark, reader, ranges, tasks=tasks, metrics=self.metrics)
        for part in parts:
            progress = progress.with_snapshot(part.table, part.after)
        ends = [row for part in parts if part.after.done for row in _end_rows(part.table, part.after)]
        state = self._stores.changes.append_batch(frame, progress.to_offset(), state, extra_rows=ends)
        self._scanned.tally.settle(state.batch, (part.table for part in parts if part.after.done))
        self.ranges += len(ranges)
        rows = state.appended - len(ends)
        if rows < _FEW_ROWS:
            self.next_ranges = min(4 * self.next_ranges, _MAX_RANGES_PER_CORE * self._cores)
        return progress, state, rows


def _log_progress(part: _Part, seconds_per_range: float, rows: int | None) -> None:
    if part.after.done:
        log.info(
            "snapshot of %s completed: %s rows, %.1f s since it was planned",
            part.table,
            "?" if rows is None else rows,
            time.time() - part.after.started_us / 1e6,
        )
        return
    left = len(part.after.ranges)
    log.info(
        "snapshot of %s: %d of %d ranges read, about %.0f s left",
        part.table,
        part.after.committed,
        part.after.committed + left,
        left * seconds_per_range,
    )


def _end_rows(table: str, ended: SnapshotProgress) -> Iterator[dict[str, Any]]:
    """Build the records that end a snapshot, one for each feed.

    The record of a replacing snapshot is a fence at its start position; for cells merged by write time it has
    the start time of the reading.
    """
    payload = REPLACE if ended.replace else b"add"
    if ended.read_after_us:
        payload = REREAD_UNSEEN + ended.read_after_us.to_bytes(8, "big")
    now = datetime.now(UTC)
    for origin, position in {ended.origin: ended.position, **ended.other_positions}.items():
        yield {
            "source_table": table,
            "kind": record.SNAPSHOT_END,
            "origin": origin,
            "position": bytes.fromhex(position),
            "generation": 0,
            "captured_at": now,
            "payload": payload,
        }
