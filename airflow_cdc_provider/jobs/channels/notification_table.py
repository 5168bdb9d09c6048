"""Notifications kept in the lake: the table ``<connector>_notifications``, for whoever asks later.

They are appended when a snapshot ends and at the end of the job: a commit costs about a second.
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
        name: The table, ``namespace.table``; it is made with the first notification.
    """

    name = "table"

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self._table = lake.table(name, NOTIFICATIONS)
        self._waiting: list[Notification] = []

    @property
    def waiting(self) -> int:
        """How many are not in the table yet."""
        return len(self._waiting)

    def send(self, notification: Notification) -> None:
        """Take it for the next flush."""
        self._waiting.append(notification)

    def flush(self) -> None:
        """Append what waits, in one commit."""
        from pyspark.sql.types import StructType

        if not self._waiting:
            return
        rows = [
            (n.id, n.type, n.aggregate_type, dict(n.additional_data), _moment(n.timestamp_ms))
            for n in self._waiting
        ]
        self._waiting = []
        schema = StructType.fromDDL(_COLUMNS)
        self._table.create(schema)
        self._table.append(self._lake.spark.createDataFrame(rows, schema))


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
