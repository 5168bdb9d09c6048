"""Where notifications go.

A channel is an object with a name and two methods (:class:`Channel`). Here stand those that need nothing but
Python; what keeps notifications in the lake is :mod:`airflow_cdc_provider.jobs.channels.notification_table`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.notifications.notification import Notification

log = logging.getLogger("airflow_cdc_provider.notifications")

Callback = Callable[[dict[str, Any]], object]
"""A user's function: gets a notification's value (see :meth:`.notification.Notification.value`)."""


class Channel(Protocol):
    """Takes notifications, one after the other, from one thread. What it raises is logged and counted."""

    name: str

    @property
    def waiting(self) -> int:
        """How many were taken and are not delivered; 0 of a channel that delivers at once."""
        ...

    def send(self, notification: Notification) -> None:
        """Take a notification: deliver it now, or with the next :meth:`flush`."""
        ...

    def flush(self) -> None:
        """Deliver what waits. It is called when a snapshot has ended, and at the end of the job.

        If it raises, what waited is given up.
        """
        ...


class _AtOnce:
    """A channel where nothing waits."""

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
    """Appends a line of JSON per notification to a file, which somebody else follows.

    Args:
        path: The file; its folder must exist.
    """

    name = "airflow"

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, notification: Notification) -> None:
        """Append it."""
        with self._path.open("a") as file:
            file.write(notification.to_json() + "\n")


class CallbackChannel(_AtOnce):
    """Calls a user's function with each notification, in the job's driver, while the capture waits for it.

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
    def load(cls, place: str) -> CallbackChannel:
        """Load the function.

        Args:
            place: ``package.module:function``.

        Raises:
            ConfigurationError: There is none.
        """
        module, _, name = place.partition(":")
        try:
            function = getattr(importlib.import_module(module), name) if module and name else None
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the function of notifications can't be loaded: {error}",
                expected="package.module:function that the driver's Python finds",
                found=place,
            ) from error
        if not callable(function):
            raise ConfigurationError(
                "the function of notifications is none", expected="package.module:function", found=place
            )
        return cls(function)
