"""Forwards a running job's notifications to Airflow: channel ``airflow``.

The job appends them to a file. Each is logged by the task and counted as ``cdc.notifications``, and a
callback receives all so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.tasks.followed_file import following
from airflow_cdc_provider.tasks.metrics import emit_notification

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

log = logger(__name__)


def following_notifications(
    path: Path, connector: Connector, push: Callable[[list[dict[str, Any]]], None] | None
) -> AbstractContextManager[None]:
    """Follow a job's notification file until the block ends, and forward its notifications.

    Args:
        path: The file; it need not exist yet, or ever.
        connector: The job's connector.
        push: Receives all notifications so far, at most once a second; None for no callback.
    """
    values: list[dict[str, Any]] = []

    def take(lines: Sequence[bytes]) -> None:
        for line in lines:
            notification = Notification.from_json(line)
            values.append(notification.value())
            emit_notification(connector, notification)
            log.info("%s: %s %s", connector.name, notification.aggregate_type, line.decode())
        if push is not None:
            push(list(values))

    return following(path, take)
