"""Work on recordings, without a server: what ``airflow cdc events`` and ``airflow cdc rows`` print.

Reads recorded native bytes, decodes them by the source's own kernels and hands on lines of JSON, a chunk of
rows at a time. Broken places are located, counted and stepped over; with the source's option ``strict`` the
first one ends it. What is particular to a source is in a module of its own beside this one.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.changes.text_kernels import binary_slices
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CorruptInput

_MODULES: Final = {
    "cassandra": "airflow_cdc_provider.jobs.offline.cassandra",
    "mongodb": "airflow_cdc_provider.jobs.offline.mongodb",
    "vitess": "airflow_cdc_provider.jobs.offline.vitess",
}
_SHOWN_PLACES: Final = 20


@dataclass
class Damage:
    """What of the input had to be left out.

    Args:
        strict: Raise at the first such place.
        places: Where and why, one text each.
        skipped: Events that were left out on purpose, by kind; ``t`` are truncations, which have no event,
            ``copy`` what another node's log had told.
    """

    strict: bool
    places: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, reason: str) -> None:
        """Note a place.

        Raises:
            CorruptInput: The source is strict.
        """
        if self.strict:
            raise CorruptInput(
                f"{place}: {reason}", remedy="set source.advanced.strict: false to leave such places out"
            )
        self.places.append(f"{place}: {reason}")

    def told(self) -> list[str]:
        """Return lines for people: the first places, how many there are, and what was skipped."""
        lines = [f"left out: {place}" for place in self.places[:_SHOWN_PLACES]]
        if len(self.places) > _SHOWN_PLACES:
            lines.append(f"left out: and {len(self.places) - _SHOWN_PLACES} more")
        if self.places:
            lines.append(f"summary: {len(self.places)} places of the input were left out")
        if counted := +self.skipped:
            lines.append(
                "skipped: " + ", ".join(f"{n} of kind {kind}" for kind, n in sorted(counted.items()))
            )
        return lines


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


def text_of(lines: pa.LargeStringArray) -> bytes:
    """Return the bytes of an array of texts, one after the other."""
    data, starts, ends, _ = binary_slices(lines)
    return bytes(data[starts[0] : ends[-1]].data) if len(starts) else b""
