"""Notifications of snapshots: Debezium's, of initial and of incremental ones.

The ids of an initial or blocking snapshot's notifications are random UUIDs; those of an incremental one are
the id of the signal that requested it.

==========================  ==============================================================================
``STARTED``                 incremental: ``data_collections``
``IN_PROGRESS``             ``current_collection_in_progress``; incremental: ``data_collections``,
                            ``maximum_key``, ``last_processed_key`` too
``TABLE_SCAN_COMPLETED``    ``scanned_collection``, ``status``, ``total_rows_scanned``; incremental:
                            ``data_collections`` too
``COMPLETED``, ``ABORTED``  incremental, ``ABORTED``: ``data_collections``, those that are no longer copied
``SKIPPED``                 initial: no snapshot is due
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
    """Notifies of the full snapshots of a job.

    Args:
        notifier: Sends the notifications.
        connector_name: The topic prefix.
        row_counts: Include ``total_rows_scanned``, which Debezium omits here.
        clock: Returns the time, ms since 1970.
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
        """Notify that a snapshot has started, or resumes."""
        self._send("STARTED")

    def in_progress(self, table: str) -> None:
        """Notify that the scan of a table starts."""
        self._send("IN_PROGRESS", current_collection_in_progress=table)

    def table_completed(self, table: str, rows: int | None) -> None:
        """Notify that the scan of a table is complete.

        Args:
            table: The table.
            rows: The number of its rows that this job read; None if unknown.
        """
        counts = {} if rows is None or not self._row_counts else {"total_rows_scanned": str(rows)}
        self._send("TABLE_SCAN_COMPLETED", scanned_collection=table, status=SUCCEEDED, **counts)

    def completed(self) -> None:
        """Notify that all tables are complete."""
        self._send("COMPLETED")
        self._notifier.flush()

    def aborted(self) -> None:
        """Notify that the snapshot ended before it was complete: it failed, or the job was stopped."""
        self._send("ABORTED")
        self._notifier.flush()

    def skipped(self) -> None:
        """Notify that no snapshot is due; once per job, and only if it has taken none."""
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
    """Return the notification of an incremental snapshot's event; None for other snapshots' events.

    Args:
        event: The event.
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


_KINDS: Final = {"table_scanned": "TABLE_SCAN_COMPLETED", "tables_stopped": "ABORTED"}
