"""What is told of snapshots: Debezium's notifications of initial and of incremental ones.

An initial snapshot's (also a blocking one's) ids are random UUIDs; those of an incremental one all bear the
id of the signal that asked for it.

==========================  ==============================================================================
``STARTED``                 incremental: ``data_collections``
``IN_PROGRESS``             ``current_collection_in_progress``; incremental: ``data_collections``,
                            ``maximum_key``, ``last_processed_key`` too
``TABLE_SCAN_COMPLETED``    ``scanned_collection``, ``status``, ``total_rows_scanned``; incremental:
                            ``data_collections`` too
``COMPLETED``, ``ABORTED``  an incremental one that was aborted for some tables: ``data_collections``
``SKIPPED``                 initial: none is due
``PAUSED``, ``RESUMED``     incremental: ``data_collections``
==========================  ==============================================================================

All have ``connector_name``, the topic prefix.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent

INITIAL: Final = "Initial Snapshot"
INCREMENTAL: Final = "Incremental Snapshot"

SUCCEEDED: Final = "SUCCEEDED"
_NO_KEY: Final = '"<null>"'


def now_ms() -> int:
    """Return the time, ms since 1970."""
    return time.time_ns() // 1_000_000


class InitialSnapshot:
    """Tells of the snapshots that a job takes in full.

    Args:
        notifier: Who is told.
        connector_name: The topic prefix.
        row_counts: Tell ``total_rows_scanned`` too, which Debezium leaves out here.
        clock: Gives the time, ms since 1970.
    """

    def __init__(
        self,
        notifier: Notifier,
        connector_name: str,
        *,
        row_counts: bool = True,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._notifier = notifier
        self._connector_name = connector_name
        self._row_counts = row_counts
        self._clock = clock
        self._silent = True

    def started(self) -> None:
        """Tell that one has begun, or goes on."""
        self._send("STARTED")

    def in_progress(self, table: str) -> None:
        """Tell that the reading of a table begins."""
        self._send("IN_PROGRESS", current_collection_in_progress=table)

    def table_completed(self, table: str, rows: int | None) -> None:
        """Tell that a table is read to its end.

        Args:
            table: The table.
            rows: Its rows that this job read, None if that isn't known.
        """
        counts = {} if rows is None or not self._row_counts else {"total_rows_scanned": str(rows)}
        self._send("TABLE_SCAN_COMPLETED", scanned_collection=table, status=SUCCEEDED, **counts)

    def completed(self) -> None:
        """Tell that all tables are read."""
        self._send("COMPLETED")
        self._notifier.flush()

    def aborted(self) -> None:
        """Tell that it ended before all was read: it failed, or the job was asked to stop."""
        self._send("ABORTED")
        self._notifier.flush()

    def skipped(self) -> None:
        """Tell that none is due; once in a job, and only if it has taken none."""
        if self._silent:
            self._send("SKIPPED")
            self._notifier.flush()

    def _send(self, kind: str, **data: str) -> None:
        self._silent = False
        self._notifier.send(
            Notification(
                str(uuid.uuid4()),
                kind,
                INITIAL,
                {**data, "connector_name": self._connector_name},
                self._clock(),
            )
        )


def incremental_notification(event: SnapshotEvent, connector_name: str) -> Notification | None:
    """Say what became of an incremental snapshot; None of another one, which :class:`InitialSnapshot` tells.

    Args:
        event: What became of it.
        connector_name: The topic prefix.
    """
    if event.snapshot != "incremental":
        return None
    kind = _KINDS.get(event.kind, event.kind.upper())
    return Notification(
        event.request_id or str(uuid.uuid4()),
        kind,
        INCREMENTAL,
        {**_data(kind, event), "connector_name": connector_name},
        event.at_us // 1000 or now_ms(),
    )


def _data(kind: str, event: SnapshotEvent) -> Mapping[str, str]:
    collections = {"data_collections": ",".join(event.tables)}
    if kind == "IN_PROGRESS":
        return {
            **collections,
            "current_collection_in_progress": event.table,
            "maximum_key": event.maximum_key or _NO_KEY,
            "last_processed_key": event.chunk_to or event.maximum_key,
        }
    if kind == "TABLE_SCAN_COMPLETED":
        return {
            **collections,
            "scanned_collection": event.table,
            "total_rows_scanned": str(event.rows or 0),
            "status": event.status or SUCCEEDED,
        }
    if kind == "COMPLETED":
        return {}
    return collections if event.tables or kind != "ABORTED" else {}


_KINDS: Final = {"table_scanned": "TABLE_SCAN_COMPLETED"}
