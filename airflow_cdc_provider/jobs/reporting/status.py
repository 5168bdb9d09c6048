"""Where each table of a connector stands: what its mirror holds, what waits, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.spec import SnapshotState, TableStatus
from airflow_cdc_provider.sources.abilities import ReadsChunks


def table_status(context: JobContext) -> tuple[TableStatus, ...]:
    """Look at the mirrors of the job's tables; changes nothing."""
    captured = context.changes.state()
    progress = Progress.from_offset(captured.offset)
    states = {table: context.mirror(table).state() for table in context.tables()}
    merged = {table: state.merged_through for table, state in states.items()}
    begun = context.changes.table.exists()
    waiting = pending_by_table(context.changes, merged, captured.batch) if begun else {}
    apart = Quarantine.of(context).counts()
    now = time.time()
    found = []
    for table, state in states.items():
        pending = waiting.get(table, Pending())
        # What was captured since the last merge holds nothing of a table for which nothing waits.
        up_to_date = state.merged_through >= 0 and not pending.rows and not pending.fences
        found.append(
            TableStatus(
                table,
                snapshot=_snapshot_state(progress.snapshots.get(table)),
                offset=progress.source if up_to_date else state.offset,
                pending=pending.rows,
                pending_seconds=round(now - pending.oldest_captured_seconds, 3) if pending.rows else 0.0,
                rows=state.rows,
                doubtful=state.doubts,
                undecodable=apart.get(table, 0),
            )
        )
    return tuple(found)


def signal_status(context: JobContext) -> tuple[Mapping[str, Any], ...]:
    """Tell of the newest signals, oldest first, and of each table that one still asks to copy.

    A signal is ``{"signal": id, "type", "channel", "received_at", "outcome", "detail"}``, a table's copy
    ``{"copy": table, "signal": id, "kind", "paused", "chunks", "rows", "where", "next", "maximum"}``; its
    keys are shown as the source shows them.
    """
    signals = Progress.from_offset(context.changes.state().offset).signals
    source = context.source
    shown = source.show_key if isinstance(source, ReadsChunks) else str
    records = [
        {
            "signal": one.id,
            "type": one.type,
            "channel": one.channel,
            "received_at": datetime.fromtimestamp(one.received_us / 1e6, UTC).isoformat(timespec="seconds"),
            "outcome": one.outcome,
            "detail": one.detail,
        }
        for one in signals.records
    ]
    copies = [
        {
            "copy": copy.table,
            "signal": request.id,
            "kind": request.kind,
            "paused": signals.paused and request.kind == "incremental",
            "chunks": copy.chunks,
            "rows": copy.rows,
            "where": copy.where,
            "next": shown(copy.next),
            "maximum": shown(copy.maximum),
        }
        for request in signals.requests
        for copy in request.tables
    ]
    return (*records, *copies)


def _snapshot_state(taken: SnapshotProgress | None) -> SnapshotState:
    if taken is None:
        return "none"
    if not taken.done:
        return "running"
    return "outdated" if taken.outdated else "done"
