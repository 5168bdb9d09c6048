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
    for known in _KNOWN:
        line = known.pattern.search(text)
        if line is not None:
            return known.error(known.message, found=line.group().strip()[:_LONGEST], remedy=known.remedy)
    return None


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
