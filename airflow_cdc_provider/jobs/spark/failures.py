"""What a failure inside Spark means for the person who must mend it.

Spark turns what happens on its workers into long text. Ours are told by their code; of the others, those that
every installation meets sooner or later get one sentence and a remedy here. The rest keep their own words.
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
    """Whether it is of what every table needs."""


_KNOWN: Final = (
    _Known(
        re.compile(r"[^\n]*(?:No space left on device|Disk quota exceeded)[^\n]*"),
        TransientError,
        "a disk is full; nothing of the running commit is visible, and the next run does it again",
        "free space where the lake's warehouse or Spark's local folders (spark.local.dir) lie",
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
        "a Python worker of Spark was killed, most likely for want of memory",
        "raise spark.executor.memoryOverhead, or run fewer tasks at once (spark.executor.cores)",
    ),
    _Known(
        re.compile(r"[^\n]*(?:AccessDeniedException|AccessControlException|Permission denied)[^\n]*"),
        ConfigurationError,
        "Spark may not write or read a file",
        "give the user that runs Spark the right to the lake's warehouse and to the source's files",
    ),
    _Known(
        re.compile(
            r"[^\n]*(?:Connection refused|[Cc]onnect(?:ion)? timed out|UnknownHostException"
            r"|NoRouteToHostException|Unable to execute HTTP request|ServiceUnavailableException"
            r"|ServiceFailureException|Communications link failure|Stale file handle"
            r"|Transport endpoint is not connected)[^\n]*"
        ),
        TransientError,
        "the lake can't be reached: no further table is tried, and what was committed stays",
        "see that Spark reaches the lake's catalog and storage; the next run goes on",
        of_all=True,
    ),
    _Known(
        re.compile(
            r"[^\n]*(?:stopped SparkContext|SparkContext was shut down|Answer from Java side is empty"
            r"|Error while sending or receiving)[^\n]*"
        ),
        TransientError,
        "Spark has ended: no further table is tried, and what was committed stays",
        "look for its last words in the application's log; the next run goes on",
        of_all=True,
    ),
)
_LONGEST: Final = 300


def explain(error: BaseException) -> CdcError | None:
    """Tell what a failure means.

    Args:
        error: Whatever a stage raised; its text may be Spark's, with the traceback of a worker inside.

    Returns:
        An error of ours, None if the failure is of no known kind.
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
    """Tell whether a failure is of what every table needs, the lake or Spark: no other would fare better."""
    text = str(error)
    known, _ = _known(text)
    return known is not None and known.of_all and error_from_text(text) is None


def _known(text: str) -> tuple[_Known | None, str]:
    """Return the kind of failure that a text tells of, None for none, and the line that says so."""
    for known in _KNOWN:
        if line := known.pattern.search(text):
            return known, line.group().strip()
    return None, ""


def of_one_table(result: TableResult, error: Exception) -> TableResult:
    """Return a table's result with what kept it from being merged."""
    known = explain(error)
    if known is None:
        first = (str(error).splitlines() or [""])[0]
        known = CdcError(f"{type(error).__name__}: {first[:_LONGEST]}")
    return replace(result, error_code=known.code, error=" ".join(str(known).split()))


def of_all_tables(tables: Sequence[TableResult]) -> CdcError | None:
    """Return the error that a job ends with because of its tables, None if all went well.

    It is of the class that all of them have. Where another try may get over some, these decide: it will tell
    of the others again.
    """
    failed = [table for table in tables if table.error]
    if not failed:
        return None
    errors = [error_from_text(table.error) or CdcError(table.error) for table in failed]
    passing = [error for error in errors if not isinstance(error, PERMANENT)]
    kinds = {type(error) for error in passing or errors}
    told = "; ".join(f"{t.table}: {t.error.removeprefix(f'[CDC-{t.error_code}] ')}" for t in failed)
    what = f"{len(failed)} of {len(tables)} tables could not be merged"
    return (kinds.pop() if len(kinds) == 1 else CdcError)(f"{what}: {told}")
