"""Events and rows of recordings, without a server, for ``airflow cdc events`` and ``airflow cdc rows``.

Reads recorded native bytes, decodes them with the source's kernels and returns lines of JSON in chunks of
rows. Corrupt records are located, counted and skipped; with the source's option ``strict`` the first one
raises an error. Each source has its own module in this folder.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords

_MODULES: Final = {
    "cassandra": "airflow_cdc_provider.jobs.offline.cassandra",
    "mongodb": "airflow_cdc_provider.jobs.offline.mongodb",
    "vitess": "airflow_cdc_provider.jobs.offline.vitess",
}


@dataclass(frozen=True)
class Recording:
    """A recording and how to read it.

    Args:
        path: File or folder, as the source expects it.
        schema: CQL file with the schema; empty for none.
        now_ns: The time at which events are built and TTLs are evaluated, ns since 1970.
        table: Only rows of this table; empty for all.
    """

    path: Path
    schema: str
    now_ns: int
    table: str = ""


def event_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events as lines of JSON, in publishing order.

    Args:
        connector: The declaration.
        recording: The input.
        skipped: Collects skipped records.

    Raises:
        ConfigurationError: The input doesn't exist or is of another source.
        CorruptInput: The input is corrupt and the source is strict.
    """
    lines: Iterator[pa.LargeStringArray] = importlib.import_module(_MODULES[connector.type]).event_lines(
        connector, recording, skipped
    )
    return lines


def row_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write the rows at the end of a recording as lines of JSON, table by table.

    Args:
        connector: The declaration.
        recording: The input.
        skipped: Collects skipped records.

    Raises:
        ConfigurationError: The input doesn't exist or is of another source.
        CorruptInput: The input is corrupt and the source is strict.
    """
    lines: Iterator[pa.LargeStringArray] = importlib.import_module(_MODULES[connector.type]).row_lines(
        connector, recording, skipped
    )
    return lines


def row_lines_of(table: str, rows: Iterable[str]) -> pa.LargeStringArray:
    """Return lines for rows of one table, given as JSON."""
    name = json.dumps(table, ensure_ascii=False)
    return pa.array([f'{{"table":{name},"row":{row}}}\n' for row in rows], pa.large_utf8())
