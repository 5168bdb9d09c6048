"""Tables that got their rows without events, as by a rename: only a snapshot shows them.

Their source leaves a record of kind ``signal`` at that place of its feed, behind the fence that ended what
was there before. A capture that committed such a record marks the table's snapshot as due, unless one was
planned behind it already: that one has the rows. The next snapshot is a fence itself, at a later place, so
what comes of the table in between is neither lost nor told in place of what is newer.

Up to which batch signals were looked for stands with the offset, so a run that dies between its commit and
the mark is made good by the next one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.progress import Progress
from airflow_cdc_provider.sources.base import TellsArrivals

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.changes_table import ChangesState


def mark_arrivals(
    context: JobContext, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Look through the batches since the last look, and commit whose snapshots are due by what they tell.

    Args:
        context: The job.
        progress: Where the connector stands.
        state: Where its changes table does.

    Returns:
        Both, as they are then.

    Raises:
        CommitConflict: Another run committed meanwhile; the next one looks again.
    """
    source = context.source
    if not isinstance(source, TellsArrivals) or state.batch <= progress.arrivals:
        return progress, state
    rows = context.changes.pending(progress.arrivals, state.batch, kinds=(record.SIGNAL,))
    found = rows.select("source_table", "position", "payload").orderBy("position").collect()
    if not found:
        return progress, state
    now_us = time.time_ns() // 1000
    for row in found:
        table, place = row["source_table"], bytes(row["position"])
        taken = progress.snapshots.get(table)
        if taken is not None and bytes.fromhex(taken.position) > place:
            continue
        why = source.arrival(bytes(row["payload"]))
        log.info("%s: %s: its snapshot is due", table, why)
        progress = progress.with_loss([table], now_us, why)
    progress = progress.with_arrivals(state.batch)
    return progress, context.changes.append_batch(None, progress.to_offset(), state)
