"""Tables that got their rows without events, such as by a rename, and dropped tables.

A source that renames tables writes a record of kind ``signal`` at that position of its feed, after the fence
that ended the rows before it. A capture that committed such a record marks the table's snapshot as due,
unless a snapshot after that position was planned already: that one has the rows. The next snapshot is itself
a fence at a later position, so changes in between are neither lost nor do they overwrite newer ones.

Jobs don't process a table that was dropped or renamed. The record of its end is pending in the changes table
like any other change; the offset lists such tables, so that a merge empties their mirrors too.

The last batch examined is stored with the offset, so the next run sets the mark if a run dies between its
commit and the mark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.changes_table import ChangesState


def mark_arrivals(
    stores: Stores, source: Source, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Examine the batches since the last call, and commit which snapshots are due and which tables ended.

    Args:
        stores: The lake.
        source: The source.
        progress: The connector's progress.
        state: The state of its changes table.

    Returns:
        Both after the call. If nothing was found, the next commit stores the last batch examined.

    Raises:
        CommitConflict: Another run committed meanwhile; the next run examines the batches again.
    """
    if not source.renames_tables or state.batch <= progress.arrivals:
        return progress, state
    examined = replace(progress, arrivals=state.batch)
    if progress.arrivals < 0:
        return examined, state
    rows = stores.changes.pending(progress.arrivals, state.batch, kinds=(record.SIGNAL, record.DROP))
    rows = rows.select("source_table", "kind", "position", "batch", "payload").orderBy("position")
    now_us = time.time_ns() // 1000
    ended: dict[str, int] = {}
    found = examined
    for row in rows.collect():
        table = row["source_table"]
        if row["kind"] == record.DROP:
            ended[table] = max(int(row["batch"]), ended.get(table, 0))
            found = found.without_loss(table)
            continue
        snapshot = found.snapshots.get(table)
        if snapshot is None or bytes.fromhex(snapshot.position) <= bytes(row["position"]):
            reason = source.describe_arrival(bytes(row["payload"]))
            log.info("%s: %s: its snapshot is due", table, reason)
            found = found.with_loss([table], now_us, reason)
    if ended:
        found = replace(found, ended=_unmerged(stores, {**found.ended, **ended}))
    if found == examined:
        return examined, state
    return found, stores.changes.append_batch(None, found.to_offset(), state)


def _unmerged(stores: Stores, ended: Mapping[str, int]) -> dict[str, int]:
    """Return the tables whose mirrors have merged changes, but not yet the end of the table."""
    merged = {table: stores.mirror(table).state().merged_through for table in ended}
    return {table: batch for table, batch in ended.items() if 0 <= merged[table] < batch}
