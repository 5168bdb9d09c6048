"""Events of requested snapshots, for notifications, metrics and logs.

A job records each event (``jobs.context.events``) after the commit that it reports, so that no event of a
killed job is reported that wasn't committed. A job that is killed right after the commit doesn't report it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SnapshotEventKind = Literal[
    "started",
    "in_progress",
    "paused",
    "resumed",
    "table_scanned",
    "tables_stopped",
    "completed",
    "aborted",
    "skipped",
]
ScanStatus = Literal["", "EMPTY", "NO_PRIMARY_KEY", "SKIPPED", "SQL_EXCEPTION", "SUCCEEDED", "UNKNOWN_SCHEMA"]
"""Outcome of a table's scan, in Debezium's words; empty if no scan ended."""


@dataclass(frozen=True)
class SnapshotEvent:
    """An event of a snapshot.

    Args:
        kind: The kind of event. ``started``, ``completed`` and ``aborted`` refer to a whole request,
            ``in_progress`` and ``table_scanned`` to one table, ``tables_stopped`` to some.
        snapshot: The kind of snapshot.
        request_id: Id of the signal that requested it.
        table: The table; in ``in_progress`` the one that is read next.
        tables: The request's tables whose scan isn't complete; those that a signal took from it in
            ``tables_stopped``.
        chunk: Ascending number of the chunk, or of the group of chunks, that was committed.
        chunk_from: Its first key, as text: for MongoDB the ``_id`` as Extended JSON. Empty if unknown.
        chunk_to: First key of the next chunk; empty after the last.
        maximum_key: The key up to which the table is read.
        rows: For ``in_progress`` the rows of the chunk; for ``table_scanned`` the rows of the table.
        status: For ``table_scanned`` the outcome.
        reason: For ``aborted``, ``tables_stopped`` and ``skipped`` the reason.
        at_us: Time of the event, µs since 1970.
    """

    kind: SnapshotEventKind
    snapshot: Literal["initial", "incremental", "blocking"]
    request_id: str
    table: str = ""
    tables: tuple[str, ...] = ()
    chunk: int = 0
    chunk_from: str = ""
    chunk_to: str = ""
    maximum_key: str = ""
    rows: int | None = None
    status: ScanStatus = ""
    reason: str = ""
    at_us: int = 0
