"""What a run does when the source no longer has what follows the stored offset.

There are two ways to learn of it. A source that can't go on raises
:class:`~airflow_cdc_provider.exceptions.PositionLost` when the next batch is planned. A source that does go
on, after a hole (:class:`~airflow_cdc_provider.sources.abilities.FindsGaps`), tells of it beforehand. Option
``snapshot.on_lost_position`` decides for both:

=========  =================================================================================================
fail       the run fails, and so does each after it, until a person acts; nothing is changed
fail_once  the run fails, so that somebody learns of it; the next sync reads the tables anew and captures on
snapshot   the same sync reads the tables anew and captures on
go_on      capture goes on after what is lost; what the mirrors lack is told until their next snapshot
auto       snapshot with mode when_needed and always; else fail, for holes fail_once
=========  =================================================================================================

What is to be read anew, and where capture goes on, is committed before anything is read, so a run that ends
in between is made good by the next one.
"""

from __future__ import annotations

import time
from typing import Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.sources.abilities import FindsGaps

_MOST_TOLD: Final = 5


class SnapshotsDue(PositionLost):
    """As its base; it is committed already that the tables' snapshots are due and where capture goes on."""


def goes_on(context: JobContext, lost: PositionLost) -> None:
    """Do what the declaration asks for when the source can't go on; return if capture is to go on.

    Raises:
        SnapshotsDue: The tables are to be read anew first.
        PositionLost: A person must act.
    """
    choice = context.connector.when_lost(hole=False)
    if choice == "fail":
        raise lost
    state = context.changes.state()
    progress = Progress.from_offset(state.offset)
    text = "; ".join(part for part in (lost.message, lost.found) if part)
    after = context.source.after_loss()
    marked = _marked(context, progress, text, tolerated=choice == "go_on").with_source(after)
    context.changes.set_offset(marked.to_offset(), state)
    if choice == "go_on":
        log.warning("%s: changes are lost, capture goes on without them: %s", context.connector.name, lost)
        return
    raise _due(context, lost.message, lost.found) from lost


def close_gaps(
    context: JobContext, source: FindsGaps, progress: Progress, state: ChangesState
) -> tuple[Progress, ChangesState]:
    """Tell of changes that the source has lost unread, once, and do what the declaration asks for.

    Returns:
        Where to capture from: what was lost before the first batch counts as read; and where the changes
        table stands.

    Raises:
        SnapshotsDue: The tables are to be read anew first.
        PositionLost: A person must act.
    """
    lost, after = source.gaps(progress.source)
    if not lost:
        begins = progress.source is None and after
        return (progress.with_source(after) if begins else progress), state
    more = f"; and {len(lost) - _MOST_TOLD} more" if lost[_MOST_TOLD:] else ""
    text = "; ".join(lost[:_MOST_TOLD]) + more
    choice = context.connector.when_lost(hole=True)
    if choice == "fail":
        raise PositionLost(text, remedy="snapshot.on_lost_position says what else a run may do")
    marked = _marked(context, progress, text, tolerated=choice == "go_on").with_source(after)
    context.changes.set_offset(marked.to_offset(), state)
    if choice != "go_on":
        raise _due(context, text, "")
    log.warning("%s: changes are lost, capture goes on without them: %s", context.connector.name, text)
    state = context.changes.state()
    return Progress.from_offset(state.offset), state


def _marked(context: JobContext, progress: Progress, text: str, *, tolerated: bool) -> Progress:
    return progress.with_loss(context.source.tables(), time.time_ns() // 1000, text, tolerated=tolerated)


def _due(context: JobContext, text: str, found: str) -> SnapshotsDue:
    tables = ", ".join(context.source.tables())
    never = context.connector.snapshot.mode == "never"
    return SnapshotsDue(
        text,
        found="; ".join(part for part in (found, f"changes of {tables} may be lost") if part),
        remedy="snapshot.mode is never: take a new snapshot of the tables with CdcSnapshotOperator"
        if never
        else "the next sync or stream reads the tables anew (where stages run apart: CdcSnapshotOperator); "
        "their events of that time are lost for good",
    )
