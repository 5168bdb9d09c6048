"""Tables that a connector selects again, after captures without them.

The offset stores the patterns that selected the tables of the newest capture, and its time, in the commit of
its batches. A table that the declaration selects now, and the stored patterns don't, misses the changes up to
then: a snapshot that starts later is due, unless the source resumes the table at a position of its own. A
table of which nothing is known yet misses nothing; its first snapshot is due anyway.

A table that was read in batches, and is streamed now, is the same case; :class:`~.progress.SnapshotProgress`
remembers it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.findings import grouped


def mark_reselected(
    stores: Stores, source: Source, report: RunReport, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Store the connector's patterns with the progress, and commit the tables that are due because of them.

    Args:
        stores: The lake.
        source: The source.
        report: Gets what is said of each table that is selected again.
        progress: The connector's progress.
        state: The state of its changes table.

    Returns:
        Both after the call. Without such tables, the next commit stores the patterns.

    Raises:
        CommitConflict: Another run committed meanwhile; the next run finds the tables again.
    """
    found = reselected(stores, source, progress, state)
    selection = {**_patterns(stores.connector), "at_us": time.time_ns() // 1000}
    stored, progress = progress.selection, replace(progress, selection=selection)
    if not found or stored is None:
        return progress, state
    if not source.resumes_tables:
        progress = progress.with_loss(found, stored["at_us"], _reason(state))
    report.reselected.update(found)
    for message in grouped(found.items()):
        log.warning("%s: %s", stores.connector.name, message)
    return progress, stores.changes.append_batch(None, progress.to_offset(), state)


def reselected(stores: Stores, source: Source, progress: Progress, state: ChangesState) -> dict[str, str]:
    """Return what is said of each table that the next capture finds selected again."""
    connector, stored = stores.connector, progress.selection
    if stored is None or {**stored, **_patterns(connector)} == stored:
        return {}
    before = replace(
        connector, tables=tuple(stored["tables"]), exclude_tables=tuple(stored["exclude_tables"])
    )
    existing = source.tables()
    selected = [t for t in existing if not source.in_batches(t)]
    captured = {t for t in selected if before.selects(t) and (before.names(t) or not source.requires_name(t))}
    if not source.resumes_tables:  # no change reports the drop of a table that wasn't captured
        dropped = sorted(progress.snapshots.keys() - set(existing))
        selected += [t for t in dropped if connector.selects(t) and not before.selects(t)]
    back = _known(stores, progress, state, [table for table in selected if table not in captured])
    effect = "capture resumes at its own position"
    if not source.resumes_tables:
        effect = "only a new snapshot has what it missed"
        missed = progress.with_loss(back, stored["at_us"], "").snapshots
        back = [table for table in back if missed[table].outdated]
    return dict.fromkeys(back, f"is selected again: {effect}; {_reason(state)}")


def _patterns(connector: Connector) -> dict[str, list[str]]:
    return {"tables": list(connector.tables), "exclude_tables": list(connector.exclude_tables)}


def _reason(state: ChangesState) -> str:
    return f"the connector's tables did not select it in the captures up to batch {state.batch}"


def _known(stores: Stores, progress: Progress, state: ChangesState, tables: Sequence[str]) -> list[str]:
    """Return the tables that a snapshot, a mirror or the changes table has rows of."""
    new = [t for t in tables if t not in progress.snapshots and not stores.mirror(t).table.exists()]
    if new:
        rows = stores.changes.pending(0, state.batch, new, record.DATA_KINDS)
        captured = {row["source_table"] for row in rows.select("source_table").distinct().collect()}
        new = [table for table in new if table not in captured]
    return [table for table in tables if table not in new]
