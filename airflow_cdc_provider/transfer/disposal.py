"""What becomes of segments that were captured, and of those that can't be: a class of the user's own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError


class CommitLogTransfer:
    """Base of classes that take segments over, for example to cold storage.

    A subclass is named by its dotted path. It is made once per transfer, with the options that the operator
    was given as keyword arguments. Its methods are called one at a time, may be called again for the same
    segment after a kill, and see complete files of the landing area or of its errors folder.
    """

    def on_success(self, log: Path, index: Path | None) -> None:
        """Take over a segment that was captured to its end; it is removed when this returns.

        Args:
            log: The segment.
            index: Its idx, None for Cassandra 3.11.

        Raises:
            Exception: The segment stays, and is offered again by the next transfer.
        """

    def on_error(self, log: Path | None, reason: str) -> None:
        """Take note of a segment that was set apart.

        Args:
            log: The segment in the errors folder, None where its bytes could not be had.
            reason: What is wrong with it.

        Raises:
            Exception: It is logged and counted as failed; the segment stays set apart and isn't told again.
        """


def load_transfer(path: str, options: dict[str, Any]) -> CommitLogTransfer:
    """Make the object of a class that is named by its dotted path.

    Raises:
        ConfigurationError: There is no such class, it is of another kind, or it takes other options.
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
            f"transfer_class {path} is of another kind",
            expected=f"a subclass of {CommitLogTransfer.__name__}",
        )
    try:
        made: CommitLogTransfer = cls(**options)
    except TypeError as error:
        raise ConfigurationError(
            f"transfer_class {path} can't be made with its transfer_options", found=str(error)
        ) from error
    return made
