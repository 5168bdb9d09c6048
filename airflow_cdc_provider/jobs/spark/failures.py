"""Mapping of failures inside Spark to errors with a remedy.

Spark turns errors of its workers into long text. Errors of this package are recognized by their driver's
token; known failures of Spark and its environment have a message and a remedy. Others keep their text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from airflow_cdc_provider.changes.known_failures import known_failure
from airflow_cdc_provider.changes.worker import error_of_worker
from airflow_cdc_provider.exceptions import (
    PERMANENT,
    CdcError,
    ConfigurationError,
    error_from_text,
    listed,
    printable,
)
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.iceberg_java import throwables
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.masking import masked

_LONGEST: Final = 300
_CALL: Final = "An error occurred while calling "
"""Begins the text of Py4J's errors; the next line says more."""
_CAUSED: Final = re.compile(r"^Caused by: (.+)", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"
_THROWN_FIRST: Final = re.compile(rf"\A{_CALL}.*\n(?:: |Caused by: )?")
_THROWN_NEXT: Final = re.compile(r"^\t.*\nCaused by: ", re.MULTILINE)
"""Java's own line is after one of a stack trace; a message may have others."""
_STAGE: Final = re.compile(
    r"\A(?:org\.apache\.spark\.\w+: )?(?:\[\w+\] )?Job aborted due to stage failure: "
    r"Task \S+ in stage \S+ failed \d+ times, most recent failure: "
    r"Lost task \S+ in stage \S+ \(TID \d+\) \([^()\n]*\): "
)
_WORKER: Final = re.compile(
    r"(?:org\.apache\.spark\.[\w.]+: )?(?:\[\w+\] )?\s*"
    r"(?:An exception was thrown from the Python worker.*\n\s*)?"
    rf"{re.escape(_TRACEBACK)}\n"
)

DEAD_LETTERS: Final = (
    "they are in the table <connector>_dead_letters, each with its reason. Consumers don't get them: correct "
    "the cause, and send their batches again with CdcReplayOperator, or airflow cdc offsets publish-from"
)
"""Where dead letters are, and the remedy."""

T = TypeVar("T")

log = logger("airflow_cdc_provider.jobs")


def explain(error: BaseException) -> CdcError | None:
    """Map a failure to an error of this package.

    Args:
        error: The error of a stage; its text may be Spark's, including the traceback of a worker.

    Returns:
        The error, None if the failure is unknown.
    """
    if isinstance(error, CdcError):
        return error
    ours = error_of_worker(str(error))
    if ours is not None:
        return ours
    known, line = known_failure(_thrown(error))
    return known.as_error(line) if known else None


def is_of_all_tables(error: BaseException) -> bool:
    """Return whether a failure affects all tables, such as one of the lake or Spark."""
    if isinstance(error, CdcError) or error_of_worker(str(error)) is not None:
        return False
    known, _ = known_failure(_thrown(error))
    return known is not None and known.of_all


_logged: Final[deque[str]] = deque(maxlen=100)
"""Errors of tables whose stack trace is in the log, so that tables that fail alike have one."""


def _thrown(error: BaseException) -> Iterator[str]:
    """Yield an error and its causes as lines ``class: message``, of which Java or Python wrote the class.

    Messages quote names and values, whose line ends must not begin such a line. So the classes are those of
    Java's objects if there are any; else a text is read if libraries have it from Spark.
    """
    texts = [f"{one.getClass().getName()}: {one.getMessage() or ''}" for one in throwables(error)]
    if not texts:
        yield f"{type(error).__name__}: {error}".partition("\n")[0]
        if not (isinstance(error, RuntimeError) or type(error).__module__.startswith(("pyspark.", "py4j."))):
            return
        own, *causes = _THROWN_NEXT.split(_THROWN_FIRST.sub("", str(error)))
        texts = [own] if _TRACEBACK in own else [own, *causes]
    for text in texts:
        inner = _STAGE.sub("", text, count=1)
        yield inner.partition("\n")[0]
        if worker := _WORKER.match(inner):  # what a worker raised first
            lines = inner[worker.end() :].split("\n")
            yield next((line for line in lines if not line.startswith((" ", "\t"))), "")


def described(error: BaseException) -> str:
    """Return what failed and the root cause in one line, from any text of Spark, Py4J, Java or Python."""
    if (known := explain(error)) is not None:
        return str(known)
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if raised := _raised(text):
        return printable(masked(raised))
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    found = [next((line for line in lines if line and not line.startswith(_CALL)), "")[:_LONGEST]]
    found += [cause[:_LONGEST] for cause in _CAUSED.findall(text)[-1:] if cause not in found[0]]
    return printable(f"{type(error).__name__}: {', caused by '.join(map(masked, found))}".removesuffix(": "))


def _raised(text: str) -> str:
    """Return the last line of a text's last traceback of Python, empty without one."""
    found, is_inside = "", False
    for line in text.split("\n"):
        if line.endswith(_TRACEBACK):
            is_inside = True
        elif is_inside and not line.startswith((" ", "\t")):
            found, is_inside = line or found, False
    return found


def as_error(error: BaseException) -> CdcError:
    """Return any failure as an error of this package."""
    return explain(error) or CdcError(described(error))


def of_one_table(result: TableResult, error: BaseException, during: str = "") -> TableResult:
    """Log a table's error and return its result with it; ``during`` says what failed, if not the stage."""
    known = as_error(error)
    text = str(known).removeprefix(f"[CDC-{known.code}] ")
    failed = replace(result, error_code=known.code, error=f"[CDC-{known.code}] {during}{text}")
    alike = _without_name(failed.table, text, "the table")
    new = alike not in _logged
    log.error("%s: %s", result.table, failed.error, exc_info=error if new else None)
    if new:
        _logged.append(alike)
    return failed


def _without_name(name: str, text: str, word: str) -> str:
    """Return an error's text with a word in place of a name."""
    return re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", word, text)


def _grouped(errors: Mapping[str, str], word: str) -> str:
    """Return errors by name as one text, in which equal ones are once, with the first names that have it."""
    groups: dict[str, list[str]] = {}
    for name, text in errors.items():
        groups.setdefault(_without_name(name, text, word), []).append(name)
    return "; ".join(
        f"{listed(names)}: {text if names[1:] else errors[names[0]]}" for text, names in groups.items()
    )


def or_failure(result: TableResult, work: Callable[[], T]) -> T | TableResult:
    """Do the work of one table; if it fails, return the table's result with the error.

    Raises:
        Exception: The failure affects all tables, so the others need not be tried.
    """
    try:
        return work()
    except Exception as error:  # the other tables continue; the job fails with this error
        if is_of_all_tables(error):
            log.error("%s: the failure affects all tables", result.table)
            raise
        return of_one_table(result, error)


def with_errors(tables: Sequence[TableResult], errors: Mapping[str, str]) -> list[TableResult]:
    """Add the errors that tables had in other parts of the job, in the form of ``TableResult.error``."""
    found = {table.table: table for table in tables}
    for table, text in errors.items():
        result = found.get(table, TableResult(table))
        code, _, message = text.removeprefix("[CDC-").partition("] ")
        both = f"{result.error}; {message}" if result.error else text
        found[table] = replace(result, error_code=result.error_code or code, error=both)
    return list(found.values())


def of_all_tables(tables: Sequence[TableResult]) -> CdcError | None:
    """Return the error of a job whose tables failed, None if none failed.

    It has the class of the tables' errors. Errors that a retry may resolve determine the class: the retry
    reports the others again. Equal errors are one, with the first tables that have it.
    """
    failed = [table for table in tables if table.error]
    if not failed:
        return None
    errors = [error_from_text(table.error) or CdcError(table.error) for table in failed]
    retryable = [error for error in errors if not isinstance(error, PERMANENT)]
    kinds = {type(error) for error in retryable or errors}
    details = _grouped(
        {table.table: table.error.removeprefix(f"[CDC-{table.error_code}] ") for table in failed}, "the table"
    )
    what = f"{len(failed)} of {len(tables)} tables failed"
    return (kinds.pop() if len(kinds) == 1 else CdcError)(f"{what}: {details}")


def of_refused_topics(refused: Mapping[str, str]) -> ConfigurationError | None:
    """Return the error of topics whose records are refused; None for none.

    Args:
        refused: By topic, its error.
    """
    if not refused:
        return None
    return ConfigurationError(
        f"topics are refused, all other events are published: {_grouped(refused, 'the topic')}",
        remedy="their records are dead letters: " + DEAD_LETTERS,
    )
