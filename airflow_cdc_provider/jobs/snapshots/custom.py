"""What a job asks a snapshotter of one's own, and tells it (mode ``custom``).

What it is and may say: :mod:`airflow_cdc_provider.connector.snapshotter`. With any other mode
these functions answer as the mode does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.snapshotter import Snapshotter, load_snapshotter
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.resuming.progress import Progress


def snapshotter_of(connector: Connector) -> Snapshotter | None:
    """Return the declaration's snapshotter; None with another mode.

    Raises:
        ConfigurationError: It can't be loaded.
    """
    options = connector.snapshot
    return load_snapshotter(options.custom, options.custom_settings) if options.mode == "custom" else None


def captures(connector: Connector) -> bool:
    """Tell whether changes are captured at all."""
    own = snapshotter_of(connector)
    return connector.snapshot.mode != "initial_only" if own is None else own.stream()


def due_by_class(own: Snapshotter, tables: Sequence[str], progress: Progress) -> list[str]:
    """List the tables that a snapshotter asks to read now.

    Args:
        own: The snapshotter.
        tables: Those that the declaration selects.
        progress: Where the connector stands.
    """
    wanted = [table for table in tables if own.query(table) is not None]
    began = [table for table in wanted if (taken := progress.snapshots.get(table)) and not taken.done]
    own.snapshot_schema(progress.source is not None, bool(began))
    if not own.snapshot_data(progress.source is not None, bool(began)):
        lost = [t for t in wanted if (taken := progress.snapshots.get(t)) and taken.outdated and taken.due]
        return lost if own.snapshot_on_data_error() else []
    if not began:
        return wanted
    finished = {table for table, taken in progress.snapshots.items() if not taken.due}
    return [table for table in wanted if table not in finished]


def filter_of(connector: Connector, table: str) -> str | None:
    """Return the filter by which a snapshot reads a table; None for all of it."""
    own = snapshotter_of(connector)
    return (own.query(table) if own else None) or connector.snapshot.filters.get(table)


@contextmanager
def told(context: JobContext) -> Iterator[None]:
    """Tell the snapshotter how the snapshot inside the ``with`` ended; one that is to go on isn't told of."""
    own = snapshotter_of(context.connector)
    try:
        yield
    except Exception:
        if own is not None:
            own.snapshot_aborted()
        raise
    if own is not None and context.snapshot is not None and context.snapshot.completed:
        own.snapshot_completed()


def moment_before(context: JobContext, progress: Progress) -> Mapping[str, Any] | None:
    """Return the head before a snapshot, if capture may go on there after it."""
    own = snapshotter_of(context.connector)
    if own is None or progress.source is None or not own.stream_from_snapshot_start():
        return None
    return context.source.head()


def go_to(context: JobContext, moment: Mapping[str, Any] | None, read: Sequence[str]) -> None:
    """Let capture go on where a snapshot began, if it read all captured tables whole.

    Args:
        context: The job, with the snapshot that it took.
        moment: What :func:`moment_before` returned.
        read: The tables that it read.
    """
    if moment is None or context.snapshot is None or not context.snapshot.completed:
        return
    connector = context.connector
    left_out = [t for t in context.source.tables() if t not in read or filter_of(connector, t)]
    if left_out:
        log.warning(
            "%s: capture goes on at the stored offset, since the snapshot didn't read all of %s",
            connector.name,
            ", ".join(left_out),
        )
        return
    state = context.changes.state()
    moved = Progress.from_offset(state.offset).with_source(moment)
    context.changes.set_offset(moved.to_offset(), state)
    log.info("%s: capture goes on where the snapshot began", connector.name)
