"""Events and rows of recordings, without a server, for ``airflow cdc events`` and ``airflow cdc rows``.

Reads recorded native bytes, decodes them with the source's kernels and returns lines of JSON in chunks of
rows. Corrupt records are located, counted and skipped; with the source's option ``strict`` the first one
raises an error.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput


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


LinesOf = Callable[[Connector, Recording, SkippedRecords], Iterator[pa.LargeStringArray]]
"""Reads a recording as lines of JSON.

It raises ConfigurationError if the input doesn't exist or is of another source, CorruptInput if it is corrupt
and the source is strict.
"""


@dataclass(frozen=True)
class Recordings:
    """How a source reads recordings.

    Args:
        event_lines: Writes a recording's events, in publishing order.
        row_lines: Writes the rows at the end of a recording, table by table.
    """

    event_lines: LinesOf
    row_lines: LinesOf


def recorded_files(path: Path, ending: str, expected: str) -> list[Path]:
    """Find the files of a recording: a single file, or those of a folder by name.

    Args:
        path: The file or folder.
        ending: Ending of names in a folder, which ``.gz`` may follow.
        expected: What there should be, for the error.

    Raises:
        ConfigurationError: There are no files.
    """
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    named = [file for file in files if file == path or file.name.removesuffix(".gz").endswith(ending)]
    found = [file for file in named if file.is_file()]  # a named pipe would block
    if not found:
        raise ConfigurationError(f"there is no recording at {path}", expected=expected)
    return found


def read_file(file: Path) -> bytes:
    """Read a file, which is decompressed if its name ends with ``.gz``.

    Raises:
        CorruptInput: The file can't be read.
    """
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as stream:
            return stream.read()
    except (OSError, EOFError) as error:
        raise CorruptInput(f"{file} can't be read", found=str(error)) from error


def row_lines_of(table: str, rows: Iterable[str]) -> pa.LargeStringArray:
    """Return lines for rows of one table, given as JSON."""
    name = json.dumps(table, ensure_ascii=False)
    return pa.array([f'{{"table":{name},"row":{row}}}\n' for row in rows], pa.large_utf8())
