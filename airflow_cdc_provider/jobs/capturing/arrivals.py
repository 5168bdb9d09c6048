"""Tables that got their rows without events, as by a rename, and tables that are gone.

A source that renames tables leaves a record of kind ``signal`` at that place of its feed, behind the fence
that ended what was there before. A capture that committed such a record marks the table's snapshot as due,
unless one was planned behind it already: that one has the rows. The next snapshot is a fence itself, at a
later place, so what comes of the table in between is neither lost nor told in place of what is newer.

A table that was dropped, or renamed to another name, isn't among those that jobs work on. What ended it waits
in the changes table like any other change; that it does is kept, so that a merge empties its mirror too.

Up to which batch this was looked for stands with the offset, so a run that dies between its commit and the
mark is made good by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.sources.abilities import RenamesTables

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.changes_table import ChangesState


def mark_arrivals(
    context: JobContext, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Look through the batches since the last look, and commit what they tell.

    Args:
        context: The job.
        progress: Where the connector stands.
        state: Where its changes table does.

    Returns:
        Both, as they are then. Where nothing was found, the next commit keeps up to where was looked.

    Raises:
        CommitConflict: Another run committed meanwhile; the next one looks again.
    """
    source = context.source
    if not isinstance(source, RenamesTables) or state.batch <= progress.arrivals:
        return progress, state
    looked = progress.with_arrivals(state.batch)
    if progress.arrivals < 0:
        return looked, state
    rows = context.changes.pending(progress.arrivals, state.batch, kinds=(record.SIGNAL, record.DROP))
    rows = rows.select("source_table", "kind", "position", "batch", "payload").orderBy("position")
    now_us = time.time_ns() // 1000
    ended: dict[str, int] = {}
    found = looked
    for row in rows.collect():
        table = row["source_table"]
        if row["kind"] == record.DROP:
            ended[table] = max(int(row["batch"]), ended.get(table, 0))
            continue
        taken = found.snapshots.get(table)
        if taken is None or bytes.fromhex(taken.position) <= bytes(row["position"]):
            why = source.arrival(bytes(row["payload"]))
            log.info("%s: %s: its snapshot is due", table, why)
            found = found.with_loss([table], now_us, why)
    if ended:
        found = found.with_ended(_unmerged(context, {**found.ended, **ended}))
    if found == looked:
        return looked, state
    return found, context.changes.append_batch(None, found.to_offset(), state)


def _unmerged(context: JobContext, ended: Mapping[str, int]) -> dict[str, int]:
    """Keep the tables whose mirrors have merged something, and not yet their end."""
    merged = {table: context.mirror(table).state().merged_through for table in ended}
    return {table: batch for table, batch in ended.items() if 0 <= merged[table] < batch}
