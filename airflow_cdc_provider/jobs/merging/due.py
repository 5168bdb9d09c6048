"""Selection of tables whose merge is due, with the reason, and preparation of their mirrors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_cdc_provider.changes.fence import Fence, add_fences, newest_event, newest_generation
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.merging.pending import Pending
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Codec, Source


@dataclass(frozen=True, kw_only=True)
class DueTable:
    """A table whose merge is due."""

    table: str
    mirror: Mirror
    state: MirrorState
    codec: Codec
    fences: tuple[Fence, ...]
    pending: Pending
    reread: bool
    """A new record of the newest fence affects batches that are merged already: decode those that are still
    there again."""
    retry_quarantined: bool
    """Changes that an earlier merge could not decode must be decoded again."""


def assess(
    connector: Connector,
    stores: Stores,
    source: Source,
    table: str,
    state: MirrorState,
    pending: Pending,
    *,
    now: int,
    force: bool,
    reread: bool,
    quarantined: bool,
) -> DueTable | TableResult:
    """Prepare a table for its merge, or return its result if the merge isn't due.

    Args:
        connector: The declaration.
        stores: The lake.
        source: The source.
        table: The table.
        state: The state of its mirror.
        pending: Its pending changes.
        now: Epoch seconds at which expiry is evaluated.
        force: Whether to merge regardless of the cost and freshness options.
        reread: Whether its unresolved keys were reread.
        quarantined: Whether it has quarantined changes.
    """
    mirror = stores.mirror(table)
    fences = add_fences(state.fences, pending.fences)
    moved = newest_event(fences) != newest_event(state.fences)
    learned = _learned(source, table, state)
    reason = _due(connector, pending, state, mirror, now, moved=moved, force=force)
    if reread and not reason:
        reason = "its unresolved keys were reread"
    if learned and not reason:
        reason = "its schema has changed"
    if not reason:
        return replace(unmerged(table, state), note=_note_of_pending(pending))
    log.info("%s: merging %d pending changes (%s)", table, pending.rows, reason)
    fenced = moved and state.merged_through >= 0
    retry = learned and quarantined
    return prepare(source, table, mirror, state, fences, pending, reread=fenced, retry_quarantined=retry)


def unmerged(table: str, state: MirrorState) -> TableResult:
    """Return the result of a table that isn't merged in this run."""
    return TableResult(table, merged_through=state.merged_through, unresolved_keys=state.unresolved_keys)


def _due(
    connector: Connector,
    pending: Pending,
    state: MirrorState,
    mirror: Mirror,
    now: int,
    *,
    moved: bool,
    force: bool,
) -> str:
    """Return reason a merge is due, empty if it isn't."""
    options = connector.lake.merge
    if state.earliest_expiry is not None and state.earliest_expiry <= now:
        return "rows have expired"
    if state.merged_through < 0:
        return "the mirror is new"
    if not pending.rows and not moved and not pending.snapshot_started_us:
        return ""
    if force:
        return "it was requested"
    if moved:
        return "the table was truncated, dropped or replaced"
    if pending.snapshot_started_us:
        return "a snapshot was completed"
    age = int(now - pending.oldest_captured_seconds)
    if age >= options.freshness_seconds:
        return f"the oldest pending change is {age} s old"
    if options.min_pending_ratio <= 0:
        return "each run merges"
    rows = mirror.row_count(state)
    if pending.rows >= options.min_pending_ratio * rows:
        return f"{pending.rows} changes for {rows} rows"
    return ""


def _learned(source: Source, table: str, state: MirrorState) -> bool:
    """Return whether a table's definition has changed since its last merge."""
    return source.codec(table, state.memory).remember() != state.memory


def _note_of_pending(pending: Pending) -> str:
    return f"{pending.rows} pending changes: merge not due yet" if pending.rows else "nothing pending"


def prepare(
    source: Source,
    table: str,
    mirror: Mirror,
    state: MirrorState,
    fences: tuple[Fence, ...],
    pending: Pending,
    *,
    reread: bool,
    retry_quarantined: bool,
) -> DueTable:
    """Adapt a mirror to the current definition of its table, and clear it if the table was re-created.

    Args:
        source: The source.
        table: The table.
        mirror: Its mirror.
        state: The mirror's state.
        fences: All known fences.
        pending: Its pending changes.
        reread: As in :class:`DueTable`.
        retry_quarantined: As in :class:`DueTable`.
    """
    codec = source.codec(table, state.memory)
    renewed = codec.drift.recreated
    static_columns = codec.static_columns
    mirror.require_layout(static_columns, codec.drift.replaced)
    mirror.create(codec.mirror_schema(), static_columns)
    # Before the columns change: rows of a dropped table would have only nulls.
    state = mirror.reserve(state, codec.reserve(state.memory), clear=renewed)
    for change in mirror.prepare(codec.mirror_schema(), codec.drift, static_columns):
        log.info("%s: %s", mirror.name, change)
    state = replace(state, static_columns=mirror.static_columns_state())
    if renewed:
        log.info("%s: the table was dropped and re-created; its mirror starts over", table)
        # Newer than all fences of the dropped table; later truncations are among the pending fences.
        since_us = max(newest_generation(state.fences) + 1, codec.created_us or newest_generation(fences) + 1)
        fences = add_fences((Fence(since_us, "", b"", since_us),), pending.fences)
        reread = True
    return DueTable(
        table=table,
        mirror=mirror,
        state=state,
        codec=codec,
        fences=fences,
        pending=pending,
        reread=reread,
        retry_quarantined=retry_quarantined,
    )
