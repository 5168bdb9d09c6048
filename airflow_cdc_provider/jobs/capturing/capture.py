"""The capture stage: read batches up to the head, and commit each with its offset."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.jobs.capturing.arrivals import mark_arrivals
from airflow_cdc_provider.jobs.capturing.lost_position import (
    SnapshotsDue,
    close_gaps,
    continue_after_loss,
    errors_of_tables,
)
from airflow_cdc_provider.jobs.capturing.reselected import mark_reselected
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.metrics.segments import SegmentTally
from airflow_cdc_provider.jobs.resuming.identity import claimed
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark.read import new_metrics, read_partitions
from airflow_cdc_provider.lake.changes_table import ChangesState, ChangesTable, OriginChanges, join_origins
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Offset, Plan, ReadLimit, ReadMetrics, Source
from airflow_cdc_provider.sources.schema_history import learn_schema, recorded_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class CaptureCounts:
    """What a capture committed.

    Percentiles of joined captures can't be computed: the greater ones are kept.

    ``quarantined`` counts all quarantined records after the capture; ``skipped`` the skipped changes (for
    Cassandra, updates of other tables) by origin and reason; ``segments`` the segments of its batches;
    ``reading`` the counts of tasks (:class:`~airflow_cdc_provider.sources.contract.ReadMetrics`).
    Planning batches on the driver took ``plan_seconds``; reading, converting and writing them
    ``commit_seconds``. ``errors`` are those of tables without which the capture continued, in the form of
    ``TableResult.error``.
    """

    batches: int = 0
    changes: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    origins: Sequence[OriginChanges] = ()
    skipped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    segments: SegmentTally = field(default_factory=SegmentTally)
    reading: Mapping[str, int] = field(default_factory=dict)
    plan_seconds: float = 0.0
    commit_seconds: float = 0.0
    errors: Mapping[str, str] = field(default_factory=dict)

    def joined(self, later: CaptureCounts) -> CaptureCounts:
        """Return this capture and a later one of the same job as one."""
        skipped = Counter(self.skipped)
        skipped.update(later.skipped)
        return CaptureCounts(
            batches=self.batches + later.batches,
            changes=self.changes + later.changes,
            quarantined=later.quarantined,
            seconds=self.seconds + later.seconds,
            origins=join_origins(self.origins, later.origins),
            skipped=skipped,
            segments=self.segments.joined(later.segments),
            reading=dict(Counter(self.reading) + Counter(later.reading)),
            plan_seconds=self.plan_seconds + later.plan_seconds,
            commit_seconds=self.commit_seconds + later.commit_seconds,
            errors={**self.errors, **later.errors},
        )


def begin_feed(connector: Connector, changes: ChangesTable, source: Source) -> tuple[Progress, ChangesState]:
    """Return the progress of a connector and the state of its changes table.

    The source defines where the feed of a new connector starts. That position is committed before anything is
    read, so changes made while a snapshot runs, or before the next run, are captured. The batch after which
    the feed is searched for signals is committed likewise.

    Raises:
        ConfigurationError: The table is another connector's.
    """
    state = changes.state()
    stored = progress = claimed(connector, Progress.from_offset(state.offset))
    if progress.source is None and (start := source.start()) is not None:
        progress = progress.with_source(start)
    if connector.signals.listens_to_source and progress.signals.read_batch < 0:
        progress = progress.with_signals(replace(progress.signals, read_batch=state.batch))
    if progress != stored:
        state = changes.append_batch(None, progress.to_offset(), state)
    return progress, state


def capture(job: Job, stores: Stores, source: Source, report: RunReport) -> CaptureCounts:
    """Capture up to the head that the source has when this begins.

    Options of the spec: ``batch_bytes``, ``batch_changes``.

    Raises:
        PositionLost: The source no longer has the changes after the stored offset, and
            ``snapshot.on_lost_position`` doesn't allow to continue (see :mod:`.lost_position`). If only some
            tables are affected, the result may have their errors instead.
        CommitConflict: Another capture of the same connector committed meanwhile; nothing of this batch was
            committed.
    """
    of_tables: list[PositionLost] = []
    while True:
        try:
            counts = _capture(job, stores, source, report)
        except SnapshotsDue:
            raise
        except PositionLost as lost:
            continue_after_loss(job.connector, stores.changes, source, lost)
            if not lost.tables:
                return _capture(job, stores, source, report)
            of_tables.append(lost)  # without these tables, others may turn out to be lost
        else:
            errors = {**counts.errors, **errors_of_tables(job.connector, source, of_tables)}
            errors |= {table: str(error) for table, error in source.left_out().items()}
            return replace(counts, errors=errors)


def _capture(job: Job, stores: Stores, source: Source, report: RunReport) -> CaptureCounts:
    started = time.monotonic()
    changes = stores.changes
    progress, state = begin_feed(job.connector, changes, source)
    first = state.batch
    progress, state = mark_arrivals(stores, source, progress, state)  # for a run that ended too early
    head = source.head()
    learn_schema(source, changes, first)
    progress, state = mark_reselected(stores, source, report, progress, state)
    progress, state, lost = close_gaps(job.connector, changes, source, progress, state)
    batches = _Batches(job, stores, source, report, started)
    while not job.stopping():
        plan = batches.plan(progress, head)
        if plan.end != progress.source:
            progress = progress.with_source(plan.end)
            state = batches.commit(plan, progress, state)
        if plan.at_head:
            break
    progress, state = mark_arrivals(stores, source, progress, state)
    origins: Sequence[OriginChanges] = ()
    if batches.changes:
        latencies = job.connector.lag_statistics
        origins = changes.origins(first, state.batch, latencies=latencies, per_table=source.many_feeds)
    read = batches.metrics.value
    report.reading.update(read.counts)
    landed, quarantined = 0, sum(origin.quarantined for origin in origins)
    if source.has_schema_history:
        state = batches.commit_schemas(progress, state)
        landed, quarantined = land_quarantined(job.connector, changes, source, state)
    if read.skipped:
        skipped = dict(sorted(read.skipped.items()))
        log.info("%s: skipped, by origin and reason: %s", job.connector.name, skipped)
    return CaptureCounts(
        batches=batches.committed,
        changes=batches.changes + landed,
        quarantined=quarantined,
        seconds=time.monotonic() - started,
        origins=origins,
        skipped=read.skipped,
        segments=batches.segments,
        reading=dict(read.counts),
        plan_seconds=batches.plan_seconds,
        commit_seconds=batches.commit_seconds,
        errors=errors_of_tables(job.connector, source, lost),
    )


class _Batches:
    """The batches of one capture: plans and commits one after the other, and counts what they have."""

    def __init__(self, job: Job, stores: Stores, source: Source, report: RunReport, started: float) -> None:
        options = job.spec.options
        self._limit = ReadLimit(
            bytes=int(options.get("batch_bytes", ReadLimit.bytes)),
            changes=int(options.get("batch_changes", ReadLimit.changes)),
            tasks=stores.spark.sparkContext.defaultParallelism,
        )
        self._name, self._stores, self._source, self._report = job.connector.name, stores, source, report
        self._schemas = list(source.schema_records())  # to commit with the next batch
        self._schema_changed = bool(self._schemas)
        self._reader = source.reader()
        self.metrics = new_metrics(stores.spark)
        self.segments = SegmentTally()
        self.committed = self.changes = 0
        self._started, self._planning = started, 0.0
        self.plan_seconds = self.commit_seconds = 0.0

    def plan(self, progress: Progress, head: Offset) -> Plan:
        """Plan the batch after a position, which may be empty."""
        began = time.monotonic()
        plan = self._source.plan(progress.source, head, self._limit)
        self._planning = time.monotonic() - began
        self.plan_seconds += self._planning
        self.segments.add(plan)
        return plan

    def commit(self, plan: Plan, after: Progress, state: ChangesState) -> ChangesState:
        """Read a planned batch and commit it with the progress after it."""
        parts, spark = plan.partitions, self._stores.spark
        rows = read_partitions(spark, self._reader, parts, metrics=self.metrics) if parts else None
        self._schemas += plan.records
        self._schema_changed |= bool(plan.records)
        began, before = time.monotonic(), self.metrics.value.copy()
        try:
            state = self._append(rows, after, state)
        except Exception:
            self._report.uncommitted = [origin for origin, found in plan.segments.items() if found.taken]
            raise
        seconds = time.monotonic() - began
        self.commit_seconds += seconds
        of_batch = self.metrics.value.since(before)
        if self._source.on_batch_read(of_batch):
            learn_schema(self._source, self._stores.changes, state.batch)
            self._reader = self._source.reader()
        self.committed += 1
        log.info(
            "%s: batch %d, %d changes, %d so far, %.1f s; planned %.3f s, committed %.3f s%s",
            self._name,
            state.batch,
            state.appended,
            self.changes,
            time.monotonic() - self._started,
            self._planning,
            seconds,
            _task_metrics(of_batch),
        )
        return state

    def commit_schemas(self, progress: Progress, state: ChangesState) -> ChangesState:
        """Commit schema records that came after the last batch; the source learns all new ones."""
        if self._schemas:
            state = self._append(None, progress, state)
        if self._schema_changed or self.changes:
            learn_schema(self._source, self._stores.changes, state.batch)
        return state

    def _append(self, rows: DataFrame | None, after: Progress, state: ChangesState) -> ChangesState:
        schemas, self._schemas = self._schemas, []
        state = self._stores.changes.append_batch(rows, after.to_offset(), state, extra_rows=schemas)
        self.changes += state.appended - len(schemas)
        return state


def _task_metrics(metrics: ReadMetrics) -> str:
    """Format the read metrics of the tasks of one batch."""
    shown = ", ".join(
        f"{name.removesuffix('_us')} {count / 1_000_000:.3f} s" if name.endswith("_us") else f"{name} {count}"
        for name, count in sorted(metrics.counts.items())
        if " " not in name  # of one table
    )
    return f"; tasks: {shown}" if shown else ""


def land_quarantined(
    connector: Connector, changes: ChangesTable, source: Source, state: ChangesState
) -> tuple[int, int]:
    """Read quarantined records again with the current schema history.

    Returns:
        How many changes were released, and how many records stay in quarantine.

    Raises:
        CommitConflict: Another capture of the same connector committed meanwhile; nothing has changed.
    """
    if not changes.table.exists():
        return 0, 0
    quarantined_rows = changes.lasting(record.QUARANTINE)
    before = _counted(quarantined_rows)
    if not before:
        return 0, 0
    source.learn(recorded_schema(source, changes))
    names = record.CHANGE_SCHEMA.names
    work = _ReadAgain(source.quarantine_reader())
    again = map_in_arrow(quarantined_rows.select(*names), work, record.SPARK_DDL).persist()
    try:
        after = _counted(again)
        left, recorded = (
            sum(count for (kind, _), count in after.items() if kind == one)
            for one in (record.QUARANTINE, record.SCHEMA)
        )
        landed = sum(after.values()) - left - recorded
        if after != before:
            # Also if only reasons changed: no one must wait for what stays in quarantine for good.
            changes.land(again, state)
            log.info("%s: %d quarantined changes were released", connector.name, landed)
        if recorded:
            source.learn(recorded_schema(source, changes))
        if left:
            log.warning("%s: %d records stay in quarantine", connector.name, left)
    finally:
        again.unpersist()
    return landed, left


def _counted(records: DataFrame) -> dict[tuple[str, str | None], int]:
    """Count records by kind; quarantined ones also by the code of their reason."""
    code = f"IF(kind = '{record.QUARANTINE}', substring_index(reason, ':', 1), NULL) code"
    counted = records.selectExpr("kind", code).groupBy("kind", "code").count().collect()
    return {(row["kind"], row["code"]): int(row["count"]) for row in counted}


@dataclass(frozen=True)
class _ReadAgain:
    reader: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self.reader(batch)
