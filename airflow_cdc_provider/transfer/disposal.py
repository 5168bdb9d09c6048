"""Custom handling of captured segments, and of those that can't be captured: a class of the user."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError


class CommitLogTransfer:
    """Base of classes that receive segments, for example for cold storage.

    A subclass is named by its dotted path. It is instantiated once per transfer, with the operator's
    ``transfer_options`` as keyword arguments. Its methods are called one at a time, may be called again for
    the same segment after a kill, and receive complete files.
    """

    def on_success(self, log: Path, index: Path | None) -> None:
        """Handle a segment that was captured to its end; it is removed when this returns.

        Args:
            log: A copy of the segment, which only this user can read. It is removed when this returns.
            index: Its idx, None for Cassandra 3.11.

        Raises:
            Exception: The segment is kept, and the next transfer calls this again.
        """

    def on_error(self, log: Path | None, reason: str) -> None:
        """Handle a segment that was quarantined.

        Args:
            log: The segment in the errors folder; None if it couldn't be read.
            reason: The reason.

        Raises:
            Exception: It is logged and counted as failed; the segment stays quarantined, and this isn't
                called again.
        """


def load_transfer(path: str, options: dict[str, Any]) -> CommitLogTransfer:
    """Instantiate a class by its dotted path.

    Raises:
        ConfigurationError: The class can't be imported, isn't a subclass, or has other options.
    """
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"transfer_class {path} can't be imported",
            expected="package.module.Class",
            found=str(error),
            remedy="make its module importable where the task runs",
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, CommitLogTransfer)):
        raise ConfigurationError(
            f"transfer_class {path} has the wrong type",
            expected=f"a subclass of {CommitLogTransfer.__name__}",
        )
    try:
        instance: CommitLogTransfer = cls(**options)
    except TypeError as error:
        raise ConfigurationError(
            f"transfer_class {path} doesn't accept its transfer_options", found=str(error)
        ) from error
    return instance
