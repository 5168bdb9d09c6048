"""The merge stage: it brings the mirrors of all due tables up to the last captured batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import printable
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.tables import refused_tables, selected_tables
from airflow_cdc_provider.jobs.merging.decode import decode
from airflow_cdc_provider.jobs.merging.due import DueTable, assess, unmerged
from airflow_cdc_provider.jobs.merging.learn import learn
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table, pending_changes
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine, schemas_awaited
from airflow_cdc_provider.jobs.merging.unresolved_keys import Reread, reread_unresolved_keys
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spark.failures import or_failure
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.merge import MergePlan, merge
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.reconcile import reconcile_cells, reconcile_rows
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES_AT_ONCE = 4
_NOTHING = -1
_MAX_REREADS = 3
"""Maximum number of rereads in a run: a reread can leave keys unresolved, which the next run rereads."""


@dataclass(frozen=True)
class _Round:
    """Parameters that the merges of several tables share."""

    through: int
    offset: Mapping[str, Any] | None
    """The source's offset of this batch."""
    now_seconds: int
    quarantine: Quarantine
    late: frozenset[str]
    """Tables whose quarantined changes may be released after the retention of deletions."""
    reread: Mapping[str, Reread]
    """The result of :func:`reread_unresolved_keys`."""


class _Merged(NamedTuple):
    """The outcome of a table's merge."""

    result: TableResult
    has_unresolved: bool = False
    """Whether the table has unresolved keys after the merge."""


def merge_tables(job: Job, stores: Stores, source: Source, *, force: bool = False) -> list[TableResult]:
    """Merge every due table; reread unresolved keys from the source, and merge them too.

    A table that can't be merged doesn't stop the others: its result has the error, and its changes stay
    pending. A failure that affects all tables is raised; earlier merges remain.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        force: Whether to merge all pending changes regardless of the cost and freshness options.

    Returns:
        One result per table of the job, and per table that was dropped since its last merge.

    Raises:
        Exception: The lake or Spark is unavailable (:func:`failures.is_of_all_tables`).
    """
    tables, refused = selected_tables(job, stores, source), refused_tables(job, stores, source)
    if not job.spec.tables:
        tables = [*tables, *_ended(job.connector, stores, source, tables)]
    merged = _merge_due(job, stores, source, tables, force=force, reread={})
    results, unresolved = [m.result for m in merged], _unresolved(merged)
    for _ in range(_MAX_REREADS):
        reread: dict[str, Reread] = {}
        for number, result in enumerate(results):
            if result.table in unresolved:
                read = or_failure(
                    result, partial(reread_unresolved_keys, job, stores, source, [result.table])
                )
                if isinstance(read, TableResult):
                    results[number] = read
                else:
                    reread.update(read)
        if not reread or job.stopping():
            break
        merged = _merge_due(job, stores, source, list(reread), force=True, reread=reread)
        unresolved = _unresolved(merged)
        again = {m.result.table: m.result for m in merged}
        results = [_joined(r, again[r.table]) if r.table in again else r for r in results]
    results = [replace(r, not_in_snapshot=r.table in unresolved and not r.unresolved_keys) for r in results]
    return [*results, *refused]


def _unresolved(merged: Sequence[_Merged]) -> frozenset[str]:
    return frozenset(m.result.table for m in merged if m.has_unresolved)


def _ended(connector: Connector, stores: Stores, source: Source, tables: Sequence[str]) -> list[str]:
    """List dropped tables whose mirrors haven't merged the drop yet."""
    if not source.renames_tables:
        return []
    found = []
    for table, batch in Progress.from_offset(stores.changes.state().offset).ended.items():
        if table in tables or not connector.selects(table):
            continue
        base = or_failure(TableResult(table), stores.mirror(table).state)
        if isinstance(base, TableResult) or 0 <= base.merged_through < batch:
            found.append(table)
    return sorted(found)


def _joined(first: TableResult, second: TableResult) -> TableResult:
    return replace(
        second,
        changes=first.changes,
        snapshot_rows=first.snapshot_rows,
        row_changes=first.row_changes,
        replica_duplicates=first.replica_duplicates,
        rows_written=first.rows_written + second.rows_written,
        rows_removed=first.rows_removed + second.rows_removed,
        undecodable=first.undecodable + second.undecodable,
        seconds=round(first.seconds + second.seconds, 3),
        note=f"{first.unresolved_keys} unresolved keys were reread"
        if first.unresolved_keys
        else "rows that the snapshot didn't return were reread",
    )


def _merge_due(
    job: Job,
    stores: Stores,
    source: Source,
    tables: Sequence[str],
    *,
    force: bool,
    reread: Mapping[str, Reread],
) -> list[_Merged]:
    """Merge due tables.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        tables: Which tables.
        force: As for :func:`merge_tables`.
        reread: The result of :func:`reread_unresolved_keys`.
    """
    changes = stores.changes
    state = changes.state()
    now = int(job.spec.options.get("now_seconds", time.time()))
    started_us = time.time_ns() // 1000
    results: list[_Merged] = []
    states: dict[str, MirrorState] = {}
    for table in tables:
        base = or_failure(TableResult(table), stores.mirror(table).state)
        if isinstance(base, TableResult):
            results.append(_Merged(base))
        else:
            states[table] = base
    quarantine = Quarantine.of(job.connector, stores.lake)
    quarantined = quarantine.counts()
    pending = pending_by_table(changes, {t: s.merged_through for t, s in states.items()}, state.batch)
    due: list[DueTable] = []
    for table, base in states.items():
        found = pending.get(table, Pending())
        assessment = partial(
            assess,
            job.connector,
            stores,
            source,
            table,
            base,
            found,
            now=now,
            force=force,
            reread=table in reread,
            quarantined=bool(quarantined.get(table)),
        )
        assessed = or_failure(unmerged(table, base), assessment)
        if isinstance(assessed, TableResult):
            has_unresolved = base.unresolved_keys > 0 or base.snapshot_started_us > 0
            results.append(_Merged(assessed, has_unresolved and not assessed.error))
        else:
            due.append(assessed)
    if due:
        schemas_missing = schemas_awaited(stores.changes, source)
        late = frozenset(d.table for d in due if schemas_missing or quarantined.get(d.table))
        offset = Progress.from_offset(state.offset).source
        merged = _merge_each(job, stores, due, _Round(state.batch, offset, now, quarantine, late, reread))
        results += merged
        failed = {m.result.table for m in merged if m.result.error}
        if released := [d.table for d in due if d.retry_quarantined and d.table not in failed]:
            quarantine.release(released, started_us)
    return sorted(results, key=lambda m: m.result.table)


def _merge_each(job: Job, stores: Stores, due: Sequence[DueTable], shared: _Round) -> list[_Merged]:
    """Merge tables in one pass over their changes; one by one if that fails.

    Raises:
        Exception: As :func:`merge_tables`, or a stop was requested.
    """
    if len(due) == 1:
        single = partial(_merge_all, job.connector, stores, due, shared)
        found = or_failure(unmerged(due[0].table, due[0].state), single)
        return [_Merged(found)] if isinstance(found, TableResult) else found
    try:
        return _merge_all(job.connector, stores, due, shared)
    except Exception as error:
        if job.stopping() or failures.is_of_all_tables(error):
            raise
        log.warning("the changes of %d tables can't be decoded in one pass", len(due), exc_info=True)
    return [merged for d in due for merged in _merge_each(job, stores, [d], shared)]


def _merge_all(
    connector: Connector, stores: Stores, due: Sequence[DueTable], shared: _Round
) -> list[_Merged]:
    changes = stores.changes
    codecs = {d.table: d.codec for d in due}
    _compile(due)
    pending = pending_changes(
        changes,
        {d.table: _NOTHING if d.reread else d.state.merged_through for d in due},
        shared.through,
        record.DATA_KINDS,
    ).select(*record.CHANGE_SCHEMA.names)
    retried = [d.table for d in due if d.retry_quarantined]
    decoded = decode(
        pending.union(shared.quarantine.waiting(retried)) if retried else pending,
        codecs,
        {d.table: d.fences for d in due},
    ).persist()
    try:
        faults = shared.quarantine.add(decoded.where("fault IS NOT NULL"))
        one = partial(_merge_one, connector, stores.spark, shared, decoded, faults)

        def merged(d: DueTable) -> _Merged:
            found = or_failure(unmerged(d.table, d.state), partial(one, d))
            return _Merged(found) if isinstance(found, TableResult) else found

        with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(due))) as pool:
            return list(pool.map(merged, due))
    finally:
        decoded.unpersist()


def _compile(due: Sequence[DueTable]) -> None:
    """Compile or load the kernels here, so that workers don't all compile the same."""
    nothing = pa.RecordBatch.from_pylist([], schema=record.CHANGE_SCHEMA)
    no_rows = pa.RecordBatch.from_pylist([], schema=LIVE_ROW_SCHEMA)
    no_contributions = pa.Table.from_batches([], schema=CONTRIBUTION_SCHEMA)
    for d in due:
        d.codec.decode(nothing, ())
        d.codec.project(no_rows)
        if d.codec.infers_columns:
            d.codec.tally(pa.RecordBatch.from_pylist([], schema=CONTRIBUTION_SCHEMA))
    if any(d.codec.model == "cell" for d in due):
        reconcile_cells(no_contributions, 0, pending=pa.chunked_array([], pa.bool_()))
    if any(d.codec.model == "row" for d in due):
        reconcile_rows(no_contributions, 0)


def _rows_to_rewrite(d: DueTable) -> tuple[str, str]:
    """Return which rows of mirror and static columns table to rewrite without pending changes.

    They may have existed only by dropped columns, or need other columns now.

    Returns:
        SQL predicates, empty for none.
    """
    codec = d.codec
    if codec.liveness_columns is None:
        return codec.rows_to_rewrite, ""
    static_columns = codec.static_columns.names if codec.static_columns else ()
    return _all_null(codec.liveness_columns), _all_null(
        [n for n in static_columns if n not in codec.drift.replaced]
    )


def _all_null(columns: Sequence[str]) -> str:
    quoted = ["`" + name.replace("`", "``") + "`" for name in columns]
    return " AND ".join(["true", *(f"{name} IS NULL" for name in quoted)])


def _merge_one(
    connector: Connector,
    spark: SparkSession,
    shared: _Round,
    decoded: DataFrame,
    faults: Mapping[str, int],
    d: DueTable,
) -> _Merged:
    from pyspark.sql import functions as f

    own = decoded.where((f.col("source_table") == d.table) & f.col("fault").isNull())
    d = learn(d, own)
    late = d.table in shared.late or bool(faults.get(d.table))
    horizon = shared.now_seconds - connector.lake.tombstone_retention_seconds
    reread = shared.reread.get(d.table)
    rows_to_rewrite, static_rows_to_rewrite = _rows_to_rewrite(d)
    counts = merge(
        spark,
        d.mirror,
        d.codec,
        own if d.pending.rows or d.reread or d.retry_quarantined else None,
        MergePlan(
            base=d.state,
            through=shared.through,
            offset=shared.offset,
            fences=d.fences,
            memory=d.codec.remember(),
            now_seconds=shared.now_seconds,
            pending_rows=_rows_to_merge(d, own, rows_to_rewrite),
            purge_before_seconds=None if late else horizon,
            snapshot_started_us=d.pending.snapshot_started_us,
            reread=reread.asked if reread else None,
            unread=reread.unread if reread else (),
            column_ids=d.codec.column_ids,
            rows_to_rewrite=rows_to_rewrite,
            static_rows_to_rewrite=static_rows_to_rewrite,
        ),
    )
    log.info(
        "%s: %d rows written, %d removed, %.1f s, through batch %d",
        d.table,
        counts.written,
        counts.removed,
        counts.seconds,
        shared.through,
    )
    result = TableResult(
        d.table,
        changes=d.pending.changes,
        snapshot_rows=d.pending.snapshot_rows,
        rows_written=counts.written,
        rows_removed=counts.removed,
        row_changes=counts.row_changes,
        replica_duplicates=counts.replica_duplicates,
        undecodable=faults.get(d.table, 0),
        unresolved_keys=counts.unresolved_keys,
        merged_through=shared.through,
        mirror_rows=counts.rows,
        seconds=round(counts.seconds, 3),
        note=printable(masked("; ".join(d.codec.findings()))),
    )
    return _Merged(result, counts.has_unresolved)


def _rows_to_merge(d: DueTable, own: DataFrame, rows_to_rewrite: str) -> int:
    """Return the approximate number of rows of a merge, to size its shuffle."""
    pending = own.count() if d.reread else d.pending.rows
    return pending + d.mirror.row_count(d.state) if rows_to_rewrite else pending
