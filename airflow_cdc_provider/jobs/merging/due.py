"""Which tables are due to be merged, why, and what must be made ready for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes.fence import Fence, add_fences, newest_event, newest_generation
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.merging.pending import Pending
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.base import Codec


@dataclass(frozen=True)
class DueTable:
    """A table whose merge is due."""

    table: str
    mirror: Mirror
    state: MirrorState
    codec: Codec
    fences: tuple[Fence, ...]
    pending: Pending
    reread: bool
    """A new record of the newest fence stands between batches that are merged already: decode those that are
    still there again, by its light."""
    waiting: bool
    """Changes that an earlier merge could not decode are to be decoded again."""


def look(
    context: JobContext,
    table: str,
    state: MirrorState,
    pending: Pending,
    *,
    now: int,
    force: bool,
    reread: bool,
    apart: bool,
) -> DueTable | TableResult:
    """Make a table ready to be merged; its result, if its merge can wait.

    Args:
        context: The job.
        table: The table.
        state: Its mirror's.
        pending: What waits for it.
        now: Epoch seconds at which expiry is judged.
        force: Whether it is merged whatever the cost and freshness options say.
        reread: Its keys in doubt were read again.
        apart: Changes of it wait in quarantine.
    """
    mirror = context.mirror(table)
    fences = add_fences(state.fences, pending.fences)
    moved = newest_event(fences) != newest_event(state.fences)
    learned = _learned(context, table, state)
    why = _due(context, pending, state, mirror, now, moved=moved, force=force)
    if reread and not why:
        why = "its keys in doubt were read again"
    if learned and not why:
        why = "its schema has changed"
    if not why:
        return replace(unmerged(table, state), note=_wait(pending))
    log.info("%s: merging %d pending changes (%s)", table, pending.rows, why)
    fenced = moved and state.merged_through >= 0
    return prepare(context, table, mirror, state, fences, pending, reread=fenced, waiting=learned and apart)


def unmerged(table: str, state: MirrorState) -> TableResult:
    """Return the result of a table that is not merged now."""
    return TableResult(table, merged_through=state.merged_through, doubtful=state.doubts)


def _due(
    context: JobContext,
    pending: Pending,
    state: MirrorState,
    mirror: Mirror,
    now: int,
    *,
    moved: bool,
    force: bool,
) -> str:
    """Say why a merge is due; empty if it can wait."""
    options = context.connector.lake.merge
    if state.expires_next is not None and state.expires_next <= now:
        return "rows have expired"
    if state.merged_through < 0:
        return "the mirror is new"
    if not pending.rows and not moved and not pending.unseen_before_us:
        return ""
    if force:
        return "it was asked for"
    if moved:
        return "the table was truncated, dropped or replaced"
    if pending.unseen_before_us:
        return "a snapshot was read to its end"
    age = int(now - pending.oldest_captured_seconds)
    if age >= options.freshness_seconds:
        return f"the oldest pending change is {age} s old"
    if options.min_pending_ratio <= 0:
        return "each run merges"
    rows = mirror.row_count(state)
    if pending.rows >= options.min_pending_ratio * rows:
        return f"{pending.rows} changes for {rows} rows"
    return ""


def _learned(context: JobContext, table: str, state: MirrorState) -> bool:
    """Tell whether a table's definition is another one than that of its last merge."""
    source = context.source
    return source.remember(source.codec(table, state.memory)) != state.memory


def _wait(pending: Pending) -> str:
    return (
        f"{pending.rows} changes wait for more, or for their deadline" if pending.rows else "nothing pending"
    )


def prepare(
    context: JobContext,
    table: str,
    mirror: Mirror,
    state: MirrorState,
    fences: tuple[Fence, ...],
    pending: Pending,
    *,
    reread: bool,
    waiting: bool,
) -> DueTable:
    """Fit a mirror to its table as that is now: its columns, and rows of a table that was dropped.

    Args:
        context: The job.
        table: The table.
        mirror: Its mirror.
        state: The mirror's.
        fences: All that are known.
        pending: What waits.
        reread: As in :class:`DueTable`.
        waiting: Likewise.
    """
    codec = context.source.codec(table, state.memory)
    renewed = codec.drift.renewed
    statics = codec.static_columns
    mirror.require_layout(statics, codec.drift.replaced)
    mirror.create(codec.mirror_schema(), statics)
    # Before the columns: rows of a table that is gone would show nothing but nulls.
    state = mirror.reserve(state, context.source.reserve(codec, state.memory), clear=renewed)
    for change in mirror.prepare(codec.mirror_schema(), codec.drift, statics):
        log.info("%s: %s", mirror.name, change)
    state = replace(state, statics=mirror.statics_state())
    if renewed:
        log.info("%s: the table was dropped and made anew; its mirror begins again", table)
        # After all of its former life; what was truncated since then is among the pending fences.
        begun_us = max(newest_generation(state.fences) + 1, codec.created_us or newest_generation(fences) + 1)
        fences = add_fences((Fence(begun_us, "", b"", begun_us),), pending.fences)
        reread = True
    return DueTable(table, mirror, state, codec, fences, pending, reread, waiting)
