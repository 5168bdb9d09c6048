"""Work on recordings, without a server: what ``airflow cdc events`` and ``airflow cdc rows`` print.

Reads recorded native bytes, decodes them by the source's own kernels and hands on lines of JSON, a chunk of
rows at a time. Broken places are located, counted and stepped over; with the source's option ``strict`` the
first one ends it. What is particular to a source is in a module of its own beside this one.
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
from airflow_cdc_provider.jobs.events.damage import Damage

_MODULES: Final = {
    "cassandra": "airflow_cdc_provider.jobs.offline.cassandra",
    "mongodb": "airflow_cdc_provider.jobs.offline.mongodb",
    "vitess": "airflow_cdc_provider.jobs.offline.vitess",
}


@dataclass(frozen=True)
class Recording:
    """A recording and how to look at it.

    Args:
        path: File or folder, as the source expects it.
        schema: CQL file with the schema; empty for none.
        now_ns: The moment at which events are built and TTLs are judged, ns since 1970.
        table: Rows of this table only; empty for all.
    """

    path: Path
    schema: str
    now_ns: int
    table: str = ""


def event_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events as lines of JSON, in publishing order.

    Args:
        connector: The declaration.
        recording: The input.
        damage: Collects what is left out.

    Raises:
        ConfigurationError: The input isn't there or not of this source.
        CorruptInput: It is broken and the source is strict.
    """
    lines: Iterator[pa.LargeStringArray] = importlib.import_module(_MODULES[connector.type]).event_lines(
        connector, recording, damage
    )
    return lines


def row_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write the rows that a recording adds up to as lines of JSON, table by table.

    Args:
        connector: The declaration.
        recording: The input.
        damage: Collects what is left out.

    Raises:
        ConfigurationError: The input isn't there or not of this source.
        CorruptInput: It is broken and the source is strict.
    """
    lines: Iterator[pa.LargeStringArray] = importlib.import_module(_MODULES[connector.type]).row_lines(
        connector, recording, damage
    )
    return lines


def row_lines_of(table: str, rows: Iterable[str]) -> pa.LargeStringArray:
    """Write rows of one table, given as JSON, as lines."""
    name = json.dumps(table, ensure_ascii=False)
    return pa.array([f'{{"table":{name},"row":{row}}}\n' for row in rows], pa.large_utf8())
