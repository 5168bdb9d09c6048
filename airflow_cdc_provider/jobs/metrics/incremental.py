"""Progress of an incremental snapshot, computed from its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from airflow_cdc_provider.jobs.spec import IncrementalResult
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent

State = Literal["running", "paused", "aborted", "completed", "skipped"]

_STATES: Final[Mapping[str, State]] = {
    "paused": "paused",
    "resumed": "running",
    "aborted": "aborted",
    "completed": "completed",
    "skipped": "skipped",
}
_ENDS: Final = ("aborted", "completed", "skipped")


def after(known: IncrementalResult | None, event: SnapshotEvent) -> IncrementalResult | None:
    """Return the progress of the newest incremental snapshot after an event.

    Args:
        known: The progress before; None before the first event.
        event: The event. An event of a new snapshot starts over; one of another kind of snapshot has no
            effect.
    """
    if event.snapshot != "incremental":
        return known
    if event.kind == "tables_stopped":  # of a request that goes on, or waits
        is_known = known is not None and known.request_id == event.request_id
        return replace(known, remaining=known.remaining - len(event.tables)) if known and is_known else known
    if known is None or known.request_id != event.request_id:
        known = IncrementalResult(event.request_id, tables=len(event.tables), started_us=event.at_us)
    known = replace(known, remaining=len(event.tables), tables=max(known.tables, len(event.tables)))
    if event.kind == "in_progress":
        return _with_chunk(known, event)
    if event.kind == "table_scanned":
        rows = {} if event.rows is None else {event.table: event.rows}
        return replace(known, table=event.table, rows_by_table={**known.rows_by_table, **rows})
    if event.kind == "paused" and not known.paused_at_us:
        known = replace(known, paused_at_us=event.at_us)
    elif event.kind == "resumed" and known.paused_at_us:
        waited = event.at_us - known.paused_at_us
        known = replace(known, paused_at_us=0, paused_us=known.paused_us + waited)
    if event.kind in _ENDS:
        remaining = 0 if event.kind == "completed" else known.remaining
        known = replace(known, ended_us=event.at_us, remaining=remaining)
    return replace(known, state=_STATES.get(event.kind, known.state))


def _with_chunk(known: IncrementalResult, event: SnapshotEvent) -> IncrementalResult:
    first = known.table_from if event.table == known.table else event.chunk_from
    rows = known.rows_by_table.get(event.table, 0) + (event.rows or 0)
    return replace(
        known,
        table=event.table,
        chunk_id=f"{event.request_id}-{event.chunk}",
        chunk_from=event.chunk_from,
        chunk_to=event.chunk_to or event.maximum_key,
        table_from=first,
        table_to=event.maximum_key,
        rows_by_table={**known.rows_by_table, event.table: rows},
    )
