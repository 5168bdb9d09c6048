"""Failures of Spark and its environment that are recognized by what was thrown, with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.masking import masked

_LONGEST: Final = 300


class KnownFailure(NamedTuple):
    """How a failure is recognized and reported."""

    pattern: re.Pattern[str]
    """Of the line ``class: message``. It matches no text that names, values or other servers may be in."""
    error: type[CdcError]
    message: str
    remedy: str
    of_all: bool = False
    """Whether the failure affects all tables."""

    def as_error(self, line: str) -> CdcError:
        """Return the error, with the line that it was recognized by."""
        return self.error(self.message, found=masked(line)[:_LONGEST], remedy=self.remedy)


def _thrown_as(*lines: str) -> re.Pattern[str]:
    """Return what matches the start of a line: a class's simple name, or that and its message's start."""
    return re.compile(rf"(?:[\w.$]+[.$])?(?:{'|'.join(lines)})")


def _by_system(*reasons: str) -> str:
    """Return what matches an operating system's reasons, in the forms of Java and Python."""
    reason = f"(?:{'|'.join(reasons)})"
    named = r"(?:FileSystemException|FileNotFoundException|ExitCodeException)"
    return rf"\w*IOException: {reason}|{named}: .*[:(] ?{reason}\)?$|\w*Error: \[Errno \d+\] {reason}"


_FAILURES: Final = (
    KnownFailure(
        _thrown_as(_by_system("No space left on device", "Disk quota exceeded")),
        TransientError,
        "a disk is full; the running commit is not visible, and the next run repeats it",
        "free space on the disk of the lake's warehouse or of Spark's local folders (spark.local.dir)",
    ),
    KnownFailure(
        _thrown_as(r"OutOfMemoryError: (?:Java heap space|GC overhead limit exceeded)"),
        TransientError,
        "Spark's JVM has too little memory",
        "raise the operator's driver_memory or executor_memory, or lower its batch_bytes",
    ),
    KnownFailure(
        _thrown_as(r"SparkException: (?:\[\w+\] )?Python worker exited unexpectedly"),
        TransientError,
        "a Python worker of Spark was killed, most likely because it ran out of memory",
        "raise spark.executor.memoryOverhead, or run fewer tasks at once (spark.executor.cores)",
    ),
    KnownFailure(
        _thrown_as(
            r"AccessDeniedException\b",
            r"AccessControlException\b",
            _by_system("Permission denied", "Read-only file system", "Not a directory"),
            "IOException: Mkdirs failed to create ",
        ),
        ConfigurationError,
        "Spark may not write or read a file",
        "correct the lake's warehouse, or grant Spark's user access to it and to the source's files",
    ),
    KnownFailure(
        _thrown_as(
            r"ClassNotFoundException\b",
            r"NoClassDefFoundError\b",
            r"\w+Exception: (?:No FileSystem for scheme|No suitable driver found|Unknown catalog type"
            r"|(?:\[\w+\] )?Cannot find catalog plugin class"
            r"|Cannot initialize (?:Catalog|FileIO) implementation)",
        ),
        ConfigurationError,
        "Spark lacks a class that the lake's catalog or storage needs, or the catalog's type doesn't exist",
        "add the jar to the operator's packages or jars, or correct lake.catalog_options",
    ),
    KnownFailure(
        _thrown_as(
            r"\w*(?:ConnectException|ConnectTimeoutException|UnknownHostException|NoRouteToHostException"
            r"|ServiceUnavailableException|ServiceFailureException|CommunicationsException)\b",
            r"\w+Exception: (?:(?:HTTP )?[Cc]onnect(?:ion)? timed out|Unable to execute HTTP request"
            r"|Communications link failure)",
            r"ConnectionRefusedError\b",
            _by_system("Connection timed out", "Stale file handle", "Transport endpoint is not connected"),
        ),
        TransientError,
        "the lake can't be reached: the remaining tables are not tried; earlier commits stay",
        "check that Spark can reach the lake's catalog and storage; the next run resumes",
        of_all=True,
    ),
    KnownFailure(
        _thrown_as(
            r"Py4JNetworkError\b",
            r"IllegalStateException: Cannot call methods on a stopped SparkContext",
            r"SparkException: (?:\[\w+\] )?Job \d+ cancelled because SparkContext was shut down",
        ),
        TransientError,
        "Spark has stopped: the remaining tables are not tried; earlier commits stay",
        "see the end of the application's log; the next run resumes",
        of_all=True,
    ),
)


def known_failure(thrown: Iterable[str]) -> tuple[KnownFailure | None, str]:
    """Return the known failure among lines ``class: message``, None for none, and its line."""
    lines = list(thrown)
    for known in _FAILURES:
        for line in lines:
            if known.pattern.match(line):
                return known, line
    return None, ""
