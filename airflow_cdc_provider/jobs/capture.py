"""The capture stage: batch after batch up to the head, each with its offset in one commit."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.progress import Progress
from airflow_cdc_provider.jobs.read import read_partitions
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.sources.base import ReadLimit


@dataclass(frozen=True)
class CaptureCounts:
    """What a capture committed."""

    batches: int = 0
    changes: int = 0
    seconds: float = 0.0


def begin_feed(context: JobContext) -> tuple[Progress, ChangesState]:
    """Return where a connector and its changes table stand.

    The feed of a new connector begins where its source says. That is committed before anything is read, so
    changes made while a snapshot runs, or before the next run, are captured.
    """
    state = context.changes.state()
    progress = Progress.from_offset(state.offset)
    if progress.source is None and (start := context.source.start()) is not None:
        progress = progress.with_source(start)
        state = context.changes.append_batch(None, progress.to_offset(), state)
    return progress, state


def capture(context: JobContext) -> CaptureCounts:
    """Capture up to the head that the source has when this begins.

    Options of the spec: ``batch_bytes``, ``batch_changes``.

    Raises:
        PositionLost: The source no longer has what follows the stored offset.
        CommitConflict: Another capture of the same connector committed meanwhile; nothing of this batch is
        left.
    """
    started = time.monotonic()
    options = context.spec.options
    limit = ReadLimit(
        bytes=int(options.get("batch_bytes", ReadLimit.bytes)),
        changes=int(options.get("batch_changes", ReadLimit.changes)),
    )
    changes, source = context.changes, context.source
    progress, state = begin_feed(context)
    head = source.head()
    reader = source.reader()
    batches = captured = 0
    while not context.stopping():
        plan = source.plan(progress.source, head, limit)
        if plan.end != progress.source:
            progress = progress.with_source(plan.end)
            rows = read_partitions(context.spark, reader, plan.partitions) if plan.partitions else None
            state = changes.append_batch(rows, progress.to_offset(), state)
            batches += 1
            captured += state.appended
            log.info(
                "%s: batch %d, %d changes, %d so far, %.1f s",
                context.connector.name,
                state.batch,
                state.appended,
                captured,
                time.monotonic() - started,
            )
        if plan.at_head:
            break
    return CaptureCounts(batches, captured, time.monotonic() - started)
