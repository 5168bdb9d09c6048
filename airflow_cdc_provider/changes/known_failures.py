"""Failures of Spark and its environment that are recognized by their text, with a remedy."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError


class KnownFailure(NamedTuple):
    """How a failure is recognized and reported."""

    pattern: re.Pattern[str]
    error: type[CdcError]
    message: str
    remedy: str
    of_all: bool = False
    """Whether the failure affects all tables."""


_KNOWN: Final = (
    KnownFailure(
        re.compile(r"(?:No space left on device|Disk quota exceeded)"),
        TransientError,
        "a disk is full; the running commit is not visible, and the next run repeats it",
        "free space on the disk of the lake's warehouse or of Spark's local folders (spark.local.dir)",
    ),
    KnownFailure(
        re.compile(r"(?:Java heap space|GC overhead limit exceeded)"),
        TransientError,
        "Spark's JVM has too little memory",
        "raise the operator's driver_memory or executor_memory, or lower its batch_bytes",
    ),
    KnownFailure(
        re.compile("Python worker exited unexpectedly"),
        TransientError,
        "a Python worker of Spark was killed, most likely because it ran out of memory",
        "raise spark.executor.memoryOverhead, or run fewer tasks at once (spark.executor.cores)",
    ),
    KnownFailure(
        re.compile(
            r"(?:AccessDeniedException|AccessControlException|Permission denied|Read-only file system"
            r"|: Not a directory|Mkdirs failed to create)"
        ),
        ConfigurationError,
        "Spark may not write or read a file",
        "correct the lake's warehouse, or grant Spark's user access to it and to the source's files",
    ),
    KnownFailure(
        re.compile(
            r"(?:ClassNotFoundException|NoClassDefFoundError|No FileSystem for scheme"
            r"|No suitable driver found|Unknown catalog type|Cannot find catalog plugin class)"
        ),
        ConfigurationError,
        "Spark lacks a class that the lake's catalog or storage needs, or the catalog's type doesn't exist",
        "add the jar to the operator's packages or jars, or correct lake.catalog_options",
    ),
    KnownFailure(
        re.compile(
            r"(?:Connection refused|[Cc]onnect(?:ion)? timed out|UnknownHostException"
            r"|NoRouteToHostException|Unable to execute HTTP request|ServiceUnavailableException"
            r"|ServiceFailureException|Communications link failure|Stale file handle"
            r"|Transport endpoint is not connected)"
        ),
        TransientError,
        "the lake can't be reached: the remaining tables are not tried; earlier commits stay",
        "check that Spark can reach the lake's catalog and storage; the next run resumes",
        of_all=True,
    ),
    KnownFailure(
        re.compile(
            r"(?:stopped SparkContext|SparkContext was shut down|Answer from Java side is empty"
            r"|Error while sending or receiving)"
        ),
        TransientError,
        "Spark has stopped: the remaining tables are not tried; earlier commits stay",
        "see the end of the application's log; the next run resumes",
        of_all=True,
    ),
)


def known_failure(text: str) -> tuple[KnownFailure | None, str]:
    """Return the known failure in a text, None for none, and the matching line."""
    for known in _KNOWN:
        if found := known.pattern.search(text):
            line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            return known, line.strip().removeprefix(": ")
    return None, ""
