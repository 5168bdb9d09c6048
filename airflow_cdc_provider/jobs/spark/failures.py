"""Mapping of failures inside Spark to errors with a remedy.

Spark turns errors of its workers into long text. Errors of this package are recognized by their code; common
failures of Spark and its environment get a message and a remedy here. Others keep their text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from airflow_cdc_provider.exceptions import (
    PERMANENT,
    CdcError,
    ConfigurationError,
    TransientError,
    error_from_text,
)
from airflow_cdc_provider.jobs.spec import TableResult


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    error: type[CdcError]
    message: str
    remedy: str
    of_all: bool = False
    """Whether the failure affects all tables."""


_KNOWN: Final = (
    _Known(
        re.compile(r"[^\n]*(?:No space left on device|Disk quota exceeded)[^\n]*"),
        TransientError,
        "a disk is full; the running commit is not visible, and the next run repeats it",
        "free space on the disk of the lake's warehouse or of Spark's local folders (spark.local.dir)",
    ),
    _Known(
        re.compile(r"[^\n]*(?:Java heap space|GC overhead limit exceeded)[^\n]*"),
        TransientError,
        "Spark's JVM has too little memory",
        "raise the operator's driver_memory or executor_memory, or lower its batch_bytes",
    ),
    _Known(
        re.compile(r"[^\n]*Python worker exited unexpectedly[^\n]*"),
        TransientError,
        "a Python worker of Spark was killed, most likely because it ran out of memory",
        "raise spark.executor.memoryOverhead, or run fewer tasks at once (spark.executor.cores)",
    ),
    _Known(
        re.compile(r"[^\n]*(?:AccessDeniedException|AccessControlException|Permission denied)[^\n]*"),
        ConfigurationError,
        "Spark may not write or read a file",
        "grant the user that runs Spark access to the lake's warehouse and to the source's files",
    ),
    _Known(
        re.compile(
            r"[^\n]*(?:Connection refused|[Cc]onnect(?:ion)? timed out|UnknownHostException"
            r"|NoRouteToHostException|Unable to execute HTTP request|ServiceUnavailableException"
            r"|ServiceFailureException|Communications link failure|Stale file handle"
            r"|Transport endpoint is not connected)[^\n]*"
        ),
        TransientError,
        "the lake can't be reached: the remaining tables are not tried; earlier commits stay",
        "check that Spark can reach the lake's catalog and storage; the next run resumes",
        of_all=True,
    ),
    _Known(
        re.compile(
            r"[^\n]*(?:stopped SparkContext|SparkContext was shut down|Answer from Java side is empty"
            r"|Error while sending or receiving)[^\n]*"
        ),
        TransientError,
        "Spark has stopped: the remaining tables are not tried; earlier commits stay",
        "see the end of the application's log; the next run resumes",
        of_all=True,
    ),
)
_LONGEST: Final = 300


def explain(error: BaseException) -> CdcError | None:
    """Map a failure to an error of this package.

    Args:
        error: The error of a stage; its text may be Spark's, including the traceback of a worker.

    Returns:
        The error, None if the failure is unknown.
    """
    if isinstance(error, CdcError):
        return error
    text = str(error)
    ours = error_from_text(text)
    if ours is not None:
        return ours
    known, line = _known(text)
    return known.error(known.message, found=line[:_LONGEST], remedy=known.remedy) if known else None


def is_of_all_tables(error: BaseException) -> bool:
    """Return whether a failure affects all tables, such as one of the lake or Spark."""
    text = str(error)
    known, _ = _known(text)
    return known is not None and known.of_all and error_from_text(text) is None


def _known(text: str) -> tuple[_Known | None, str]:
    """Return the known failure in a text, None for none, and the matching line."""
    for known in _KNOWN:
        if line := known.pattern.search(text):
            return known, line.group().strip()
    return None, ""


def of_one_table(result: TableResult, error: Exception) -> TableResult:
    """Return a table's result with the error of its merge."""
    known = explain(error)
    if known is None:
        first = (str(error).splitlines() or [""])[0]
        known = CdcError(f"{type(error).__name__}: {first[:_LONGEST]}")
    return replace(result, error_code=known.code, error=" ".join(str(known).split()))


def of_all_tables(tables: Sequence[TableResult]) -> CdcError | None:
    """Return the error of a job whose tables failed, None if none failed.

    It has the class of the tables' errors. Errors that a retry may resolve determine the class: the retry
    reports the others again.
    """
    failed = [table for table in tables if table.error]
    if not failed:
        return None
    errors = [error_from_text(table.error) or CdcError(table.error) for table in failed]
    retryable = [error for error in errors if not isinstance(error, PERMANENT)]
    kinds = {type(error) for error in retryable or errors}
    details = "; ".join(f"{t.table}: {t.error.removeprefix(f'[CDC-{t.error_code}] ')}" for t in failed)
    what = f"{len(failed)} of {len(tables)} tables could not be merged"
    return (kinds.pop() if len(kinds) == 1 else CdcError)(f"{what}: {details}")
