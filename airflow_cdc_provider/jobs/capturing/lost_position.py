"""What a run does if the source no longer has the changes after the stored offset.

A run finds out in one of two ways. A source that can't continue raises
:class:`~airflow_cdc_provider.exceptions.PositionLost` when the next batch is planned. A source that continues
after a gap (:meth:`~airflow_cdc_provider.sources.contract.Source.gaps`) reports the gap first. Option
``snapshot.on_lost_position`` applies to both:

=========  =================================================================================================
fail       this run and each later one fail until an operator intervenes; nothing is changed
fail_once  the run fails, which alerts operators; the next sync takes new snapshots and resumes capture
snapshot   the same sync takes new snapshots and resumes capture
continue      capture resumes after the gap; runs report that mirrors are incomplete until their next snapshot
auto       snapshot with mode when_needed and always; else fail, for holes fail_once
=========  =================================================================================================

The tables to read again and the position to resume from are committed before anything is read, so the next
run completes what an interrupted one started.
"""

from __future__ import annotations

import time
from typing import Final

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesState, ChangesTable
from airflow_cdc_provider.sources.contract import Source

_MAX_REPORTED: Final = 5


class SnapshotsDue(PositionLost):
    """A lost position for which the due snapshots and the position to resume from are committed already."""


def continue_after_loss(
    connector: Connector, changes: ChangesTable, source: Source, lost: PositionLost
) -> None:
    """Apply ``snapshot.on_lost_position`` to a source that can't continue; return if capture may resume.

    Raises:
        SnapshotsDue: The tables need new snapshots first.
        PositionLost: An operator must intervene.
    """
    choice = connector.lost_position_action(hole=False)
    if choice == "fail":
        raise lost
    state = changes.state()
    progress = Progress.from_offset(state.offset)
    text = "; ".join(part for part in (lost.message, lost.found) if part)
    after = source.offset_after_loss()
    marked = _marked(source, progress, text, tolerated=choice == "continue").with_source(after)
    changes.set_offset(marked.to_offset(), state)
    if choice == "continue":
        log.warning("%s: changes are lost, capture continues without them: %s", connector.name, lost)
        return
    raise _due(connector, source, lost.message, lost.found) from lost


def close_gaps(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    progress: Progress,
    state: ChangesState,
) -> tuple[Progress, ChangesState]:
    """Report changes that the source lost before they were read, once, and apply the declared option.

    Returns:
        The progress to capture from, in which changes lost before the first batch count as read; and the
        state of the changes table.

    Raises:
        SnapshotsDue: The tables need new snapshots first.
        PositionLost: An operator must intervene.
    """
    lost, after = source.gaps(progress.source)
    if not lost:
        begins = progress.source is None and after
        return (progress.with_source(after) if begins else progress), state
    more = f"; and {len(lost) - _MAX_REPORTED} more" if lost[_MAX_REPORTED:] else ""
    text = "; ".join(lost[:_MAX_REPORTED]) + more
    choice = connector.lost_position_action(hole=True)
    if choice == "fail":
        raise PositionLost(text, remedy="set snapshot.on_lost_position to what a run shall do instead")
    marked = _marked(source, progress, text, tolerated=choice == "continue").with_source(after)
    changes.set_offset(marked.to_offset(), state)
    if choice != "continue":
        raise _due(connector, source, text, "")
    log.warning("%s: changes are lost, capture continues without them: %s", connector.name, text)
    state = changes.state()
    return Progress.from_offset(state.offset), state


def _marked(source: Source, progress: Progress, text: str, *, tolerated: bool) -> Progress:
    return progress.with_loss(source.tables(), time.time_ns() // 1000, text, tolerated=tolerated)


def _due(connector: Connector, source: Source, text: str, found: str) -> SnapshotsDue:
    tables = ", ".join(source.tables())
    never = connector.snapshot.mode == "never"
    return SnapshotsDue(
        text,
        found="; ".join(part for part in (found, f"changes of {tables} may be lost") if part),
        remedy="snapshot.mode is never: take a new snapshot of the tables with CdcSnapshotOperator"
        if never
        else "the next sync or stream takes new snapshots (with separate stages: CdcSnapshotOperator); "
        "their events of that time can't be recovered",
    )
