"""What a run does if the source no longer has the changes after the stored offset.

A run finds out in one of three ways. A source that can't continue raises
:class:`~airflow_cdc_provider.exceptions.PositionLost` when the next batch is planned; one that can continue
without some tables names these in the exception, and the other tables are captured, merged and published. A
source that continues after a gap (:meth:`~airflow_cdc_provider.sources.contract.Source.gaps`) reports the gap
first: of some tables, whose capture continues like that of the others, or of all. Option
``snapshot.on_lost_position`` applies to each way:

=========  =================================================================================================
fail       this run and each later one fail until an operator intervenes; nothing is changed
fail_once  the run fails, which alerts operators; the next sync takes new snapshots and resumes capture
snapshot   the same sync takes new snapshots and resumes capture
continue      capture resumes after the gap; runs report that mirrors are incomplete until their next snapshot
auto       snapshot with mode when_needed and always; else fail, for holes and single tables fail_once
=========  =================================================================================================

The tables to read again and the position to resume from are committed before anything is read, so the next
run completes what an interrupted one started.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    choice = connector.lost_position_action(hole=bool(lost.tables))
    if choice == "fail":
        raise lost
    state = changes.state()
    progress = Progress.from_offset(state.offset)
    text = "; ".join(part for part in (lost.message, lost.found) if part)
    tables = lost.tables or source.tables()
    marked = _marked(tables, progress, text, tolerated=choice == "continue")
    if not lost.tables:
        marked = marked.with_source(source.offset_after_loss())
    changes.set_offset(marked.to_offset(), state)
    if not lost.tables and choice != "continue":
        raise _due(connector, tables, lost.message, lost.found) from lost
    log.warning("%s: changes are lost, capture continues without them: %s", connector.name, lost)


def errors_of_tables(connector: Connector, source: Source, lost: Sequence[PositionLost]) -> dict[str, str]:
    """Return the error of each table that lost changes, if ``on_lost_position`` says so."""
    if connector.lost_position_action(hole=True) != "fail_once":
        return {}
    errors: dict[str, str] = {}
    for one in lost:
        # A source without snapshots knows another remedy.
        remedy = one.remedy if source.feed_is_complete else _remedy(connector)
        error = PositionLost(f"changes may be lost: {one.message}", found=one.found, remedy=remedy)
        errors |= dict.fromkeys(one.tables, str(error))
    return errors


def close_gaps(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    progress: Progress,
    state: ChangesState,
) -> tuple[Progress, ChangesState, Sequence[PositionLost]]:
    """Report changes that the source lost before they were read, once, and apply the declared option.

    Returns:
        The progress to capture from, in which changes lost before the first batch count as read; the state of
        the changes table; and the losses of single tables.

    Raises:
        SnapshotsDue: All tables need new snapshots first.
        PositionLost: An operator must intervene.
    """
    lost, after = source.gaps(progress.source)
    if not lost:
        begins = progress.source is None and after
        return (progress.with_source(after) if begins else progress), state, ()
    more = f"; and {len(lost) - _MAX_REPORTED} more" if lost[_MAX_REPORTED:] else ""
    text = "; ".join(one.message for one in lost[:_MAX_REPORTED]) + more
    choice = connector.lost_position_action(hole=True)
    if choice == "fail":
        raise PositionLost(text, remedy="set snapshot.on_lost_position to what a run shall do instead")
    of_tables = [one for one in lost if one.tables]
    losses = [(one.tables, one.message) for one in of_tables] or [(source.tables(), text)]
    marked = progress.with_source(after)
    for tables, message in losses:
        marked = _marked(tables, marked, message, tolerated=choice == "continue")
    changes.set_offset(marked.to_offset(), state)
    if not of_tables and choice != "continue":
        raise _due(connector, source.tables(), text, "")
    log.warning("%s: changes are lost, capture continues without them: %s", connector.name, text)
    state = changes.state()
    return Progress.from_offset(state.offset), state, of_tables


def _marked(tables: Sequence[str], progress: Progress, text: str, *, tolerated: bool) -> Progress:
    return progress.with_loss(tables, time.time_ns() // 1000, text, tolerated=tolerated)


def _due(connector: Connector, tables: Sequence[str], text: str, found: str) -> SnapshotsDue:
    return SnapshotsDue(
        text,
        found="; ".join(part for part in (found, f"changes of {', '.join(tables)} may be lost") if part),
        remedy=_remedy(connector),
    )


def _remedy(connector: Connector) -> str:
    if connector.snapshot.mode == "never":
        return "snapshot.mode is never: take a new snapshot of the tables with CdcSnapshotOperator"
    return (
        "the next sync or stream takes new snapshots (with separate stages: CdcSnapshotOperator); their "
        "events of that time can't be recovered"
    )
