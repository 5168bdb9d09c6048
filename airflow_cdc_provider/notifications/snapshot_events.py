"""What happens to snapshots that were asked for, for whoever tells others: notifications, metrics, people.

A job tells each happening (``JobContext.happened``) once the commit that makes it true is done,
so nothing is told that a killed job takes back; one that is killed right then tells it never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Happening = Literal[
    "started", "in_progress", "paused", "resumed", "table_scanned", "completed", "aborted", "skipped"
]
ScanStatus = Literal["", "EMPTY", "NO_PRIMARY_KEY", "SKIPPED", "SQL_EXCEPTION", "SUCCEEDED", "UNKNOWN_SCHEMA"]
"""How the scan of a table ended, in Debezium's words; empty where none ended."""


@dataclass(frozen=True)
class SnapshotEvent:
    """One happening.

    Args:
        kind: What happened. ``started``, ``completed`` and ``aborted`` are of a whole request,
            ``in_progress`` and ``table_scanned`` of one table.
        snapshot: What kind of snapshot it is.
        request_id: Id of the signal that asked for it.
        table: Of one table: which; in ``in_progress`` the one that is read next.
        tables: Those of the request that are not read to their end.
        chunk: Number of the chunk, or of the group of chunks, that was committed; it counts up.
        chunk_from: First key of it, as text: for MongoDB the ``_id`` as Extended JSON. Empty where unknown.
        chunk_to: Where the next one begins, empty after the last.
        maximum_key: The key up to which the table is read.
        rows: Of ``in_progress``: rows of the chunk; of ``table_scanned``: rows of the table.
        status: Of ``table_scanned``: how it ended.
        reason: Of ``aborted`` and ``skipped``: why.
        at_us: When, µs since 1970.
    """

    kind: Happening
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
