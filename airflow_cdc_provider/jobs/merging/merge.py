"""The merge stage: bring the mirrors of all dirty tables up to the last captured batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.merging.decode import decode
from airflow_cdc_provider.jobs.merging.doubts import Reread, read_doubts_again
from airflow_cdc_provider.jobs.merging.due import DueTable, look, unmerged
from airflow_cdc_provider.jobs.merging.learn import learn
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table, pending_changes
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine, schemas_awaited
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.merge import MergePlan, merge
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.reconcile import reconcile_cells, reconcile_rows
from airflow_cdc_provider.sources.abilities import LearnsColumns, RenamesTables, RevisitsRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_TABLES_AT_ONCE = 4
_NOTHING = -1
_MOST_READINGS = 3
"""A second reading can leave a little in doubt itself. What three leave, the next run looks at."""


@dataclass(frozen=True)
class _Round:
    """What the merges of several tables have in common."""

    through: int
    offset: Mapping[str, Any] | None
    """The source's offset that this batch reached."""
    now_seconds: int
    quarantine: Quarantine
    late: frozenset[str]
    """Tables of which changes in quarantine may land later than deletions are remembered."""
    reread: Mapping[str, Reread]
    """What :func:`read_doubts_again` gave."""
    unsettled: set[str]
    """Tables that have keys in doubt afterwards are added."""


def merge_tables(context: JobContext, *, force: bool = False) -> list[TableResult]:
    """Merge every table that is due; read again at the source what that leaves in doubt, and merge it too.

    A table that can't be merged doesn't stop the others: its result says why, and its changes stay pending.
    What all tables need does: it is raised, and what was merged before stays.

    Args:
        context: The job.
        force: Merge whatever is pending, whatever the cost and freshness options say.

    Returns:
        One result per table of the job, and per table that is gone since its last merge.

    Raises:
        Exception: Whatever tells that the lake or Spark is away (:func:`failures.is_of_all_tables`).
    """
    unsettled: set[str] = set()
    tables = context.tables()
    if not context.spec.tables:
        tables = [*tables, *_ended(context, tables)]
    results = _merge_due(context, tables, force=force, reread={}, unsettled=unsettled)
    for _ in range(_MOST_READINGS):
        reread: dict[str, Reread] = {}
        for number, result in enumerate(results):
            if result.table in unsettled:
                read = _or_failure(result, partial(read_doubts_again, context, [result.table]))
                if isinstance(read, TableResult):
                    results[number] = read
                else:
                    reread.update(read)
        if not reread or context.stopping():
            break
        unsettled = set()
        again = _merge_due(context, list(reread), force=True, reread=reread, unsettled=unsettled)
        merged = {r.table: r for r in again}
        results = [_joined(r, merged[r.table]) if r.table in merged else r for r in results]
    return [replace(r, unseen=r.table in unsettled and not r.doubtful) for r in results]


def _ended(context: JobContext, tables: Sequence[str]) -> list[str]:
    """List the tables that are gone and whose mirrors don't show that yet."""
    if not isinstance(context.source, RenamesTables):
        return []
    found = []
    for table, batch in Progress.from_offset(context.changes.state().offset).ended.items():
        if table in tables or not context.connector.selects(table):
            continue
        base = _or_failure(TableResult(table), context.mirror(table).state)
        if isinstance(base, TableResult) or 0 <= base.merged_through < batch:
            found.append(table)
    return sorted(found)


def _or_failure(result: TableResult, work: Callable[[], T]) -> T | TableResult:
    """Do what is to be done for one table; if it fails, return the table's result with the reason.

    Raises:
        Exception: What failed is not the table's own, so that the others need not be tried.
    """
    try:
        return work()
    except Exception as error:  # the other tables go on; the job ends by telling of it
        if failures.is_of_all_tables(error):
            log.error("%s: what all tables need is away", result.table)
            raise
        failed = failures.of_one_table(result, error)
        log.error("%s: %s", result.table, failed.error, exc_info=error)
        return failed


def _joined(first: TableResult, second: TableResult) -> TableResult:
    return replace(
        second,
        changes=first.changes,
        snapshot_rows=first.snapshot_rows,
        row_changes=first.row_changes,
        copies=first.copies,
        rows_written=first.rows_written + second.rows_written,
        rows_removed=first.rows_removed + second.rows_removed,
        undecodable=first.undecodable + second.undecodable,
        seconds=round(first.seconds + second.seconds, 3),
        note=f"{first.doubtful} keys in doubt were read again"
        if first.doubtful
        else "what the snapshot did not show was read again",
    )


def _merge_due(
    context: JobContext,
    tables: Sequence[str],
    *,
    force: bool,
    reread: Mapping[str, Reread],
    unsettled: set[str],
) -> list[TableResult]:
    """Merge what is due.

    Args:
        context: The job.
        tables: Which tables.
        force: As for :func:`merge_tables`.
        reread: What :func:`read_doubts_again` gave.
        unsettled: Tables that have keys in doubt afterwards are added.
    """
    changes = context.changes
    state = changes.state()
    now = int(context.spec.options.get("now_seconds", time.time()))
    started_us = time.time_ns() // 1000
    results: list[TableResult] = []
    states: dict[str, MirrorState] = {}
    for table in tables:
        base = _or_failure(TableResult(table), context.mirror(table).state)
        if isinstance(base, TableResult):
            results.append(base)
        else:
            states[table] = base
    quarantine = Quarantine.of(context)
    apart = quarantine.counts()
    pending = pending_by_table(changes, {t: s.merged_through for t, s in states.items()}, state.batch)
    dirty: list[DueTable] = []
    for table, base in states.items():
        found = pending.get(table, Pending())
        looking = partial(
            look,
            context,
            table,
            base,
            found,
            now=now,
            force=force,
            reread=table in reread,
            apart=bool(apart.get(table)),
        )
        looked = _or_failure(unmerged(table, base), looking)
        if isinstance(looked, TableResult):
            results.append(looked)
            if not looked.error and (base.doubts or base.unseen_before_us):
                unsettled.add(table)
        else:
            dirty.append(looked)
    if dirty:
        landing = schemas_awaited(context)
        late = frozenset(d.table for d in dirty if landing or apart.get(d.table))
        offset = Progress.from_offset(state.offset).source
        merged = _merge_each(
            context, dirty, _Round(state.batch, offset, now, quarantine, late, reread, unsettled)
        )
        results += merged
        failed = {result.table for result in merged if result.error}
        if landed := [d.table for d in dirty if d.waiting and d.table not in failed]:
            quarantine.release(landed, started_us)
    return sorted(results, key=lambda r: r.table)


def _merge_each(context: JobContext, dirty: Sequence[DueTable], together: _Round) -> list[TableResult]:
    """Merge tables in one pass over their changes; each on its own if one of them spoils that.

    Raises:
        Exception: As of :func:`merge_tables`, or the job was asked to stop.
    """
    if len(dirty) == 1:
        alone = partial(_merge_all, context, dirty, together)
        found = _or_failure(unmerged(dirty[0].table, dirty[0].state), alone)
        return [found] if isinstance(found, TableResult) else found
    try:
        return _merge_all(context, dirty, together)
    except Exception as error:
        if context.stopping() or failures.is_of_all_tables(error):
            raise
        log.warning("the changes of %d tables can't be decoded in one pass", len(dirty), exc_info=True)
    return [result for d in dirty for result in _merge_each(context, [d], together)]


def _merge_all(context: JobContext, dirty: Sequence[DueTable], together: _Round) -> list[TableResult]:
    changes = context.changes
    codecs = {d.table: d.codec for d in dirty}
    _compile(dirty)
    pending = pending_changes(
        changes,
        {d.table: _NOTHING if d.reread else d.state.merged_through for d in dirty},
        together.through,
        record.DATA_KINDS,
    ).select(*record.CHANGE_SCHEMA.names)
    waiting = [d.table for d in dirty if d.waiting]
    decoded = decode(
        pending.union(together.quarantine.waiting(waiting)) if waiting else pending,
        codecs,
        {d.table: d.fences for d in dirty},
    ).persist()
    try:
        faults = together.quarantine.add(decoded.where("fault IS NOT NULL"))
        with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(dirty))) as pool:
            one = partial(_merge_one, context, together, decoded, faults)
            return list(pool.map(lambda d: _or_failure(unmerged(d.table, d.state), partial(one, d)), dirty))
    finally:
        decoded.unpersist()


def _compile(dirty: Sequence[DueTable]) -> None:
    """Compile the kernels here, or load them, before several workers would each compile the same."""
    nothing = pa.RecordBatch.from_pylist([], schema=record.CHANGE_SCHEMA)
    no_rows = pa.RecordBatch.from_pylist([], schema=LIVE_ROW_SCHEMA)
    no_contributions = pa.Table.from_batches([], schema=CONTRIBUTION_SCHEMA)
    for d in dirty:
        d.codec.decode(nothing, ())
        d.codec.project(no_rows)
        if isinstance(d.codec, LearnsColumns) and d.codec.learns_columns:
            d.codec.tally(pa.RecordBatch.from_pylist([], schema=CONTRIBUTION_SCHEMA))
    if any(d.codec.model == "cell" for d in dirty):
        reconcile_cells(no_contributions, 0, pending=pa.chunked_array([], pa.bool_()))
    if any(d.codec.model == "row" for d in dirty):
        reconcile_rows(no_contributions, 0)


def _revisited(d: DueTable) -> tuple[str, str]:
    """Return which rows of mirror and statics are merged though nothing pends for them.

    They may have lived by columns that are gone, or are to be shown by other columns.

    Returns:
        SQL predicates, empty for none.
    """
    codec = d.codec
    if isinstance(codec, RevisitsRows):
        return codec.revisit, ""
    if codec.lived_by is None:
        return "", ""
    statics = codec.static_columns.names if codec.static_columns else ()
    return _all_null(codec.lived_by), _all_null([n for n in statics if n not in codec.drift.replaced])


def _all_null(columns: Sequence[str]) -> str:
    quoted = ["`" + name.replace("`", "``") + "`" for name in columns]
    return " AND ".join(["true", *(f"{name} IS NULL" for name in quoted)])


def _merge_one(
    context: JobContext,
    together: _Round,
    decoded: DataFrame,
    faults: Mapping[str, int],
    d: DueTable,
) -> TableResult:
    from pyspark.sql import functions as f

    own = decoded.where((f.col("source_table") == d.table) & f.col("fault").isNull())
    d = learn(context, d, own)
    late = d.table in together.late or bool(faults.get(d.table))
    horizon = together.now_seconds - context.connector.lake.tombstone_retention_seconds
    reread = together.reread.get(d.table)
    revisit, revisit_statics = _revisited(d)
    counts = merge(
        context.spark,
        d.mirror,
        d.codec,
        own if d.pending.rows or d.reread or d.waiting else None,
        MergePlan(
            base=d.state,
            through=together.through,
            offset=together.offset,
            fences=d.fences,
            memory=context.source.remember(d.codec),
            now_seconds=together.now_seconds,
            pending_rows=_rows_to_merge(d, own, revisit),
            purge_before_seconds=None if late else horizon,
            unseen_before_us=d.pending.unseen_before_us,
            reread=reread.asked if reread else None,
            unread=reread.unread if reread else (),
            column_ids=d.codec.column_ids,
            revisit=revisit,
            revisit_statics=revisit_statics,
        ),
    )
    if counts.unsettled:
        together.unsettled.add(d.table)
    log.info(
        "%s: %d rows written, %d removed, %.1f s, through batch %d",
        d.table,
        counts.written,
        counts.removed,
        counts.seconds,
        together.through,
    )
    return TableResult(
        d.table,
        changes=d.pending.changes,
        snapshot_rows=d.pending.snapshot_rows,
        rows_written=counts.written,
        rows_removed=counts.removed,
        row_changes=counts.row_changes,
        copies=counts.copies,
        undecodable=faults.get(d.table, 0),
        doubtful=counts.doubts,
        merged_through=together.through,
        mirror_rows=counts.rows,
        seconds=round(counts.seconds, 3),
        note="; ".join(d.codec.findings()) if isinstance(d.codec, LearnsColumns) else "",
    )


def _rows_to_merge(d: DueTable, own: DataFrame, revisit: str) -> int:
    """Tell about how many rows a merge handles, to size its shuffle."""
    pending = own.count() if d.reread else d.pending.rows
    return pending + d.mirror.row_count(d.state) if revisit else pending
