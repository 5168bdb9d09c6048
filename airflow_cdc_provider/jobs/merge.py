"""The merge stage: bring the mirrors of all dirty tables up to the last captured batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, add_fences, newest_event, newest_generation
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.decode import decode
from airflow_cdc_provider.jobs.doubts import read_doubts_again
from airflow_cdc_provider.jobs.pending import Pending, pending_by_table, pending_changes
from airflow_cdc_provider.jobs.quarantine import Quarantine
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.merge import MergePlan, merge
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.reconcile import reconcile_cells, reconcile_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.sources.base import Codec

_TABLES_AT_ONCE = 4
_NOTHING = -1


@dataclass(frozen=True)
class _Dirty:
    """A table whose merge is due."""

    table: str
    mirror: Mirror
    state: MirrorState
    codec: Codec
    fences: tuple[Fence, ...]
    pending: Pending
    reread: bool
    """A new record of the newest fence stands between batches that are merged already: decode those that are
    still there again, by its light."""
    waiting: bool
    """Changes that an earlier merge could not decode are to be decoded again."""


def merge_tables(context: JobContext, *, force: bool = False) -> list[TableResult]:
    """Merge every table that is due; read again at the source what that leaves in doubt, and merge it too.

    Args:
        context: The job.
        force: Merge whatever is pending, whatever the cost and freshness options say.

    Returns:
        One result per table of the job.

    Raises:
        CommitConflict: Another writer came first; a retry goes on from where that one ended.
    """
    results = _merge_due(context, context.tables(), force=force, settled={})
    settled = read_doubts_again(context, [r.table for r in results if r.doubtful])
    if not settled:
        return results
    again = {r.table: r for r in _merge_due(context, list(settled), force=True, settled=settled)}
    return [_joined(r, again[r.table]) if r.table in again else r for r in results]


def _joined(first: TableResult, second: TableResult) -> TableResult:
    return replace(
        second,
        changes=first.changes,
        snapshot_rows=first.snapshot_rows,
        rows_written=first.rows_written + second.rows_written,
        rows_removed=first.rows_removed + second.rows_removed,
        undecodable=first.undecodable + second.undecodable,
        seconds=round(first.seconds + second.seconds, 3),
        note=f"{first.doubtful} keys in doubt were read again",
    )


def _merge_due(
    context: JobContext, tables: Sequence[str], *, force: bool, settled: Mapping[str, frozenset[bytes]]
) -> list[TableResult]:
    changes = context.changes
    state = changes.state()
    now = int(context.spec.options.get("now_seconds", time.time()))
    mirrors = {table: context.mirror(table) for table in tables}
    states = {table: mirror.state() for table, mirror in mirrors.items()}
    quarantine = Quarantine.of(context)
    apart = quarantine.counts()
    pending = pending_by_table(changes, {t: s.merged_through for t, s in states.items()}, state.batch)
    results: list[TableResult] = []
    dirty: list[_Dirty] = []
    for table in tables:
        found = pending.get(table, Pending())
        fences = add_fences(states[table].fences, found.fences)
        moved = newest_event(fences) != newest_event(states[table].fences)
        learned = _learned(context, table, states[table])
        why = _due(context, found, states[table], mirrors[table], now, moved=moved, force=force)
        if learned and not why:
            why = "its schema has changed"
        if not why:
            waiting = states[table]
            results.append(
                TableResult(
                    table,
                    merged_through=waiting.merged_through,
                    doubtful=len(waiting.doubts),
                    note=_wait(found),
                )
            )
            continue
        log.info("%s: merging %d pending changes (%s)", table, found.rows, why)
        reread = moved and states[table].merged_through >= 0
        dirty.append(
            _prepare(
                context,
                table,
                mirrors[table],
                states[table],
                fences,
                found,
                reread=reread,
                waiting=learned and bool(apart.get(table)),
            )
        )
    if dirty:
        results += _merge_all(context, dirty, quarantine, state.batch, now, settled)
    return sorted(results, key=lambda r: r.table)


def _due(
    context: JobContext,
    pending: Pending,
    state: MirrorState,
    mirror: Mirror,
    now: int,
    *,
    moved: bool,
    force: bool,
) -> str:
    """Say why a merge is due; empty if it can wait."""
    options = context.connector.lake.merge
    if state.next_expiry is not None and state.next_expiry <= now:
        return "rows have expired"
    if state.merged_through < 0:
        return "the mirror is new"
    if not pending.rows and not moved:
        return ""
    if force:
        return "it was asked for"
    if moved:
        return "the table was truncated, dropped or replaced"
    age = int(now - pending.oldest_captured_seconds)
    if age >= options.freshness_seconds:
        return f"the oldest pending change is {age} s old"
    if options.min_pending_ratio <= 0:
        return "each run merges"
    rows = mirror.row_count(state)
    if pending.rows >= options.min_pending_ratio * rows:
        return f"{pending.rows} changes for {rows} rows"
    return ""


def _learned(context: JobContext, table: str, state: MirrorState) -> bool:
    """Tell whether a table's definition is another one than that of its last merge."""
    source = context.source
    return source.remember(source.codec(table, state.memory)) != state.memory


def _wait(pending: Pending) -> str:
    return (
        f"{pending.rows} changes wait for more, or for their deadline" if pending.rows else "nothing pending"
    )


def _prepare(
    context: JobContext,
    table: str,
    mirror: Mirror,
    state: MirrorState,
    fences: tuple[Fence, ...],
    pending: Pending,
    *,
    reread: bool,
    waiting: bool,
) -> _Dirty:
    codec = context.source.codec(table, state.memory)
    for change in mirror.prepare(codec.mirror_schema(), codec.drift):
        log.info("%s: %s", mirror.name, change)
    if codec.drift.renewed and state.merged_through >= 0:
        log.info("%s: the table was dropped and made anew; its mirror begins again", table)
        # After all of its former life; what was truncated since then is among the pending fences.
        begun_us = max(newest_generation(state.fences) + 1, codec.created_us or newest_generation(fences) + 1)
        fences = add_fences((Fence(begun_us, "", b"", begun_us),), pending.fences)
        reread = True
    return _Dirty(table, mirror, state, codec, fences, pending, reread, waiting)


def _merge_all(
    context: JobContext,
    dirty: Sequence[_Dirty],
    quarantine: Quarantine,
    through: int,
    now: int,
    settled: Mapping[str, frozenset[bytes]],
) -> list[TableResult]:
    changes = context.changes
    codecs = {d.table: d.codec for d in dirty}
    _compile(dirty)
    started_us = time.time_ns() // 1000
    pending = pending_changes(
        changes,
        {d.table: _NOTHING if d.reread else d.state.merged_through for d in dirty},
        through,
        record.DATA_KINDS,
    ).select(*record.CHANGE_SCHEMA.names)
    waiting = [d.table for d in dirty if d.waiting]
    decoded = decode(
        pending.union(quarantine.waiting(waiting)) if waiting else pending,
        codecs,
        {d.table: d.fences for d in dirty},
    ).persist()
    try:
        faults = quarantine.add(decoded.where("fault IS NOT NULL"))
        with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(dirty))) as pool:
            one = partial(_merge_one, context, decoded, through, now, faults, settled)
            results = list(pool.map(one, dirty))
        if waiting:
            quarantine.release(waiting, started_us)
        return results
    finally:
        decoded.unpersist()


def _compile(dirty: Sequence[_Dirty]) -> None:
    """Compile the kernels here, or load them, before several workers would each compile the same."""
    nothing = pa.RecordBatch.from_pylist([], schema=record.CHANGE_SCHEMA)
    no_rows = pa.RecordBatch.from_pylist([], schema=LIVE_ROW_SCHEMA)
    no_contributions = pa.Table.from_batches([], schema=CONTRIBUTION_SCHEMA)
    for d in dirty:
        d.codec.decode(nothing, ())
        d.codec.project(no_rows)
    if any(d.codec.model == "cell" for d in dirty):
        reconcile_cells(no_contributions, 0)
    if any(d.codec.model == "row" for d in dirty):
        reconcile_rows(no_contributions, 0)


def _merge_one(
    context: JobContext,
    decoded: DataFrame,
    through: int,
    now: int,
    faults: Mapping[str, int],
    settled: Mapping[str, frozenset[bytes]],
    d: _Dirty,
) -> TableResult:
    from pyspark.sql import functions as f

    own = decoded.where((f.col("source_table") == d.table) & f.col("fault").isNull())
    horizon = now - context.connector.lake.tombstone_retention_seconds
    counts = merge(
        context.spark,
        d.mirror,
        d.codec,
        own if d.pending.rows or d.reread or d.waiting else None,
        MergePlan(
            base=d.state,
            through=through,
            fences=d.fences,
            memory=context.source.remember(d.codec),
            now_seconds=now,
            pending_rows=own.count() if d.reread else d.pending.rows,
            purge_before_seconds=horizon,
            settled=settled.get(d.table, frozenset()),
        ),
    )
    log.info(
        "%s: %d rows written, %d removed, %.1f s, through batch %d",
        d.table,
        counts.written,
        counts.removed,
        counts.seconds,
        through,
    )
    return TableResult(
        d.table,
        changes=d.pending.changes,
        snapshot_rows=d.pending.snapshot_rows,
        rows_written=counts.written,
        rows_removed=counts.removed,
        undecodable=faults.get(d.table, 0),
        doubtful=counts.doubts,
        merged_through=through,
        mirror_rows=counts.rows,
        seconds=round(counts.seconds, 3),
    )
