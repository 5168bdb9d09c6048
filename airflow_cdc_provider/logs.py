"""Loggers whose records can't be forged by what they quote: names, ids of signals, texts of servers."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from airflow_cdc_provider.exceptions import printable
from airflow_cdc_provider.masking import masked


def logger(name: str) -> logging.Logger:
    """Return a logger whose messages are one line of printable characters; tracebacks are indented.

    Secrets are masked before: one of several lines isn't found in a single one.
    """
    own = logging.getLogger(name)
    own.addFilter(_to_lines)
    return own


def _to_lines(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(masked(record.getMessage())), None
    if record.exc_info and record.exc_info[0] is not None:
        lines = masked("".join(traceback.format_exception(*record.exc_info))).splitlines()
        record.exc_text = "\n".join(f"  {printable(line)}" for line in lines)
    return True


class MaskedLog:
    """The logger of one of Airflow's hooks, whose messages are masked lines."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a logging method, such as ``info``."""
        write = getattr(self._log, name)

        def write_masked(message: object, *args: object, **named: Any) -> None:
            write("%s", printable(masked(str(message) % args if args else str(message))), **named)

        return write_masked
