"""Calls of a custom snapshotter (mode ``custom``).

:mod:`airflow_cdc_provider.connector.snapshotter` defines its interface. With any other mode these functions
implement the mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.snapshotter import Snapshotter, load_snapshotter
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.contract import Source


def snapshotter_of(connector: Connector) -> Snapshotter | None:
    """Return the declaration's snapshotter; None with another mode.

    Raises:
        ConfigurationError: It can't be loaded.
    """
    options = connector.snapshot
    return load_snapshotter(options.custom, options.custom_settings) if options.mode == "custom" else None


def captures(connector: Connector) -> bool:
    """Return whether changes are captured."""
    own = snapshotter_of(connector)
    return connector.snapshot.mode != "initial_only" if own is None else own.stream()


def due_by_class(own: Snapshotter, tables: Sequence[str], progress: Progress) -> list[str]:
    """List the tables whose snapshot a snapshotter requests.

    Args:
        own: The snapshotter.
        tables: The tables that the declaration selects.
        progress: The connector's progress.
    """
    selected = [table for table in tables if own.query(table) is not None]
    unfinished = [
        table for table in selected if (snapshot := progress.snapshots.get(table)) and not snapshot.done
    ]
    own.snapshot_schema(progress.source is not None, bool(unfinished))
    if not own.snapshot_data(progress.source is not None, bool(unfinished)):
        lost = [
            t
            for t in selected
            if (snapshot := progress.snapshots.get(t)) and snapshot.outdated and snapshot.due
        ]
        return lost if own.snapshot_on_data_error() else []
    if not unfinished:
        return selected
    finished = {table for table, snapshot in progress.snapshots.items() if not snapshot.due}
    return [table for table in selected if table not in finished]


def filter_of(connector: Connector, table: str) -> str | None:
    """Return the filter of a table's snapshot; None for all rows."""
    own = snapshotter_of(connector)
    return (own.query(table) if own else None) or connector.snapshot.filters.get(table)


@contextmanager
def notify_snapshotter(connector: Connector, report: RunReport) -> Iterator[None]:
    """Notify the snapshotter how the snapshot inside the ``with`` ended, unless it is to be resumed."""
    own = snapshotter_of(connector)
    try:
        yield
    except Exception:
        if own is not None:
            own.snapshot_aborted()
        raise
    if own is not None and report.snapshot is not None:
        if report.snapshot.completed:
            own.snapshot_completed()
        elif report.snapshot.errors:
            own.snapshot_aborted()


def head_before(connector: Connector, source: Source, progress: Progress) -> Mapping[str, Any] | None:
    """Return the head before a snapshot, if capture may resume there after it."""
    own = snapshotter_of(connector)
    if own is None or progress.source is None or not own.stream_from_snapshot_start():
        return None
    return source.head()


def resume_from(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    report: RunReport,
    head: Mapping[str, Any] | None,
    read: Sequence[str],
) -> None:
    """Let capture resume at the start of a snapshot, if it read all captured tables completely.

    Args:
        connector: The declaration.
        changes: The changes table.
        source: The source.
        report: State of the run.
        head: The result of :func:`head_before`.
        read: The tables that it read.
    """
    if head is None or report.snapshot is None or not report.snapshot.completed:
        return
    left_out = [t for t in source.tables() if t not in read or filter_of(connector, t)]
    if left_out:
        log.warning(
            "%s: capture resumes at the stored offset, since the snapshot didn't read all rows of %s",
            connector.name,
            ", ".join(left_out),
        )
        return
    state = changes.state()
    moved = Progress.from_offset(state.offset).with_source(head)
    changes.set_offset(moved.to_offset(), state)
    log.info("%s: capture resumes at the start of the snapshot", connector.name)
