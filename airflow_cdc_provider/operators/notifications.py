"""Notifications of a job, told to Airflow while it runs: channel ``airflow``.

The job appends them to a file; each becomes a line of the task's log and counts as ``cdc.notifications``, and
all so far go to whoever asked for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.operators.followed_file import following
from airflow_cdc_provider.operators.metrics import emit_notification

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

log = logging.getLogger(__name__)


def following_notifications(
    path: Path, connector: Connector, push: Callable[[list[dict[str, Any]]], None] | None
) -> AbstractContextManager[None]:
    """Follow a job's file of notifications until the block ends, and tell what it says.

    Args:
        path: The file; it need not exist yet, or ever.
        connector: Whose they are.
        push: Gets all so far, once a second at most; None for nobody.
    """
    told: list[dict[str, Any]] = []

    def take(lines: Sequence[bytes]) -> None:
        for line in lines:
            notification = Notification.from_json(line)
            told.append(notification.value())
            emit_notification(connector, notification)
            log.info("%s: %s %s", connector.name, notification.aggregate_type, line.decode())
        if push is not None:
            push(list(told))

    return following(path, take)
