"""Loggers whose records can't be forged by what they quote: names, ids of signals, texts of servers."""

from __future__ import annotations

import logging
import traceback

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
