"""The status of a connector's tables: rows, pending changes, unresolved keys and undecodable changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table
from airflow_cdc_provider.jobs.merging.quarantine import Quarantine
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.spark.failures import or_failure
from airflow_cdc_provider.jobs.spec import SnapshotState, TableResult, TableStatus
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source


def table_status(job: Job, stores: Stores, source: Source) -> tuple[TableStatus, ...]:
    """Return the status of the job's tables, without those whose mirrors can't be read; read-only."""
    captured = stores.changes.state()
    progress = Progress.from_offset(captured.offset)
    read = {
        table: or_failure(TableResult(table), stores.mirror(table).state)
        for table in selected_tables(job, stores, source)
    }
    states = {table: state for table, state in read.items() if isinstance(state, MirrorState)}
    merged = {table: state.merged_through for table, state in states.items()}
    exists = stores.changes.table.exists()
    pending_tables = pending_by_table(stores.changes, merged, captured.batch) if exists else {}
    quarantined = Quarantine.of(job.connector, stores.lake).counts()
    now = time.time()
    found = []
    for table, state in states.items():
        pending = pending_tables.get(table, Pending())
        # Without pending changes the mirror is current up to the captured offset.
        up_to_date = state.merged_through >= 0 and not pending.rows and not pending.fences
        found.append(
            TableStatus(
                table,
                snapshot=_snapshot_state(progress.snapshots.get(table)),
                offset=progress.source if up_to_date else state.offset,
                pending=pending.rows,
                pending_seconds=round(now - pending.oldest_captured_seconds, 3) if pending.rows else 0.0,
                rows=state.rows,
                unresolved_keys=state.unresolved_keys,
                undecodable=quarantined.get(table, 0),
            )
        )
    return tuple(found)


def signal_status(changes: ChangesTable, source: Source) -> tuple[Mapping[str, Any], ...]:
    """Return the newest signals, oldest first, and each table that a pending request has to copy.

    A signal is ``{"signal": id, "type", "channel", "received_at", "outcome", "detail"}``, a table's copy
    ``{"copy": table, "signal": id, "kind", "paused", "chunks", "rows", "where", "next", "maximum"}``, with
    keys in the source's readable form.
    """
    signals = Progress.from_offset(changes.state().offset).signals
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
            "next": source.format_key(copy.next),
            "maximum": source.format_key(copy.maximum),
        }
        for request in signals.requests
        for copy in request.tables
    ]
    return (*records, *copies)


def _snapshot_state(snapshot: SnapshotProgress | None) -> SnapshotState:
    if snapshot is None:
        return "none"
    if not snapshot.done:
        return "running"
    return "outdated" if snapshot.outdated else "done"
