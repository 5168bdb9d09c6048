"""Notifications in the lake: the table ``<connector>_notifications``.

They are appended when a snapshot ends and at the end of the job, since a commit takes about a second.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from airflow_cdc_provider.lake.layout import NOTIFICATIONS
from airflow_cdc_provider.lake.table import Lake
from airflow_cdc_provider.notifications.notification import Notification

_COLUMNS: Final = (
    "id string, type string, aggregate_type string, additional_data map<string,string>, timestamp timestamp"
)


class TableChannel:
    """Appends notifications to a table.

    Args:
        lake: The lake.
        name: The table, ``namespace.table``; the first notification creates it.
    """

    name = "table"

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self._table = lake.table(name, NOTIFICATIONS)
        self._buffered: list[Notification] = []

    @property
    def waiting(self) -> int:
        """How many notifications are not in the table yet."""
        return len(self._buffered)

    def send(self, notification: Notification) -> None:
        """Buffer a notification until the next flush."""
        self._buffered.append(notification)

    def flush(self) -> None:
        """Append the buffered notifications in one commit."""
        from pyspark.sql.types import StructType

        if not self._buffered:
            return
        rows = [
            (n.id, n.type, n.aggregate_type, dict(n.additional_data), _moment(n.timestamp_ms))
            for n in self._buffered
        ]
        self._buffered = []
        schema = StructType.fromDDL(_COLUMNS)
        self._table.create(schema)
        self._table.append(self._lake.spark.createDataFrame(rows, schema))


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
