"""Channels of notifications.

A channel has a name and two methods (:class:`Channel`). This module has those that only need Python; the
notification table of the lake is in :mod:`airflow_cdc_provider.jobs.channels.notification_table`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.regular_files import APPEND, open_regular

log = logger("airflow_cdc_provider.notifications")

Callback = Callable[[dict[str, Any]], object]
"""A user's function; takes a :meth:`.notification.Notification.value`."""


class Channel(Protocol):
    """Receives notifications in sequence, from one thread. Its exceptions are logged and counted."""

    name: str

    @property
    def waiting(self) -> int:
        """The number of undelivered notifications; 0 for a channel that delivers immediately."""
        ...

    def send(self, notification: Notification) -> None:
        """Deliver a notification now, or with the next :meth:`flush`."""
        ...

    def flush(self) -> None:
        """Deliver buffered notifications. It is called at the end of each snapshot and of the job.

        If it raises, the buffered notifications are discarded.
        """
        ...


class _AtOnce:
    """A channel without a buffer."""

    waiting = 0

    def flush(self) -> None:
        """Do nothing."""


class LogChannel(_AtOnce):
    """Writes a line per notification to the job's log, at level INFO."""

    name = "log"

    def send(self, notification: Notification) -> None:
        """Log it."""
        log.info("notification %s", notification.to_json())


class FileChannel(_AtOnce):
    """Appends a line of JSON per notification to a file, which another program follows.

    Args:
        path: The file; its folder must exist.
    """

    name = "airflow"

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, notification: Notification) -> None:
        """Append it."""
        with open(open_regular(self._path, APPEND, 0o600), "a") as file:
            file.write(notification.to_json() + "\n")


class CallbackChannel(_AtOnce):
    """Calls a user's function with each notification, in the job's driver; the capture waits for it.

    Args:
        function: The function.
    """

    name = "callback"

    def __init__(self, function: Callback) -> None:
        self._function = function

    def send(self, notification: Notification) -> None:
        """Call the function."""
        self._function(notification.value())

    @classmethod
    def load(cls, path: str) -> CallbackChannel:
        """Load the function.

        Args:
            path: Its import path, ``package.module:function``.

        Raises:
            ConfigurationError: The function can't be imported.
        """
        module, _, name = path.partition(":")
        try:
            function = getattr(importlib.import_module(module), name) if module and name else None
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the notification function can't be loaded: {error}",
                expected="package.module:function that the driver's Python can import",
                found=path,
            ) from error
        if not callable(function):
            raise ConfigurationError(
                "the notification function isn't callable", expected="package.module:function", found=path
            )
        return cls(function)
