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
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source


def mark_reselected(
    stores: Stores, source: Source, report: RunReport, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Store the connector's patterns with the progress, and commit the tables that are due because of them.

    Args:
        stores: The lake.
        source: The source.
        report: Gets a message per table that is selected again.
        progress: The connector's progress.
        state: The state of its changes table.

    Returns:
        Both after the call. Without such tables, the next commit stores the patterns.

    Raises:
        CommitConflict: Another run committed meanwhile; the next run finds the tables again.
    """
    connector, stored = stores.connector, progress.selection
    own = {"tables": list(connector.tables), "exclude_tables": list(connector.exclude_tables)}
    progress = replace(progress, selection={**own, "at_us": time.time_ns() // 1000})
    if stored is None or {**stored, **own} == stored:
        return progress, state
    before = replace(
        connector, tables=tuple(stored["tables"]), exclude_tables=tuple(stored["exclude_tables"])
    )
    selected = [t for t in source.tables() if not source.in_batches(t)]
    captured = {t for t in selected if before.selects(t) and (before.names(t) or not source.requires_name(t))}
    back = _known(stores, progress, state, [table for table in selected if table not in captured])
    text = f"the connector's tables did not select it in the captures up to batch {state.batch}"
    effect = "capture resumes at its own position"
    if not source.resumes_tables:
        progress = progress.with_loss(back, stored["at_us"], text)
        effect = "only a new snapshot has what it missed"
        back = [table for table in back if progress.snapshots[table].outdated]
    if not back:
        return progress, state
    for table in back:
        report.reselected[table] = f"{table} is selected again: {effect}; {text}"
        log.warning("%s: %s", connector.name, report.reselected[table])
    return progress, stores.changes.append_batch(None, progress.to_offset(), state)


def _known(stores: Stores, progress: Progress, state: ChangesState, tables: Sequence[str]) -> list[str]:
    """Return the tables that a snapshot, a mirror or the changes table has rows of."""
    new = [t for t in tables if t not in progress.snapshots and not stores.mirror(t).table.exists()]
    if new:
        rows = stores.changes.pending(0, state.batch, new, record.DATA_KINDS)
        captured = {row["source_table"] for row in rows.select("source_table").distinct().collect()}
        new = [table for table in new if table not in captured]
    return [table for table in tables if table not in new]
