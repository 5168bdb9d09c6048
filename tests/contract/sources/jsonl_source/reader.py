"""Reads lines on executors: as changes, or as the rows that they result in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SNAPSHOT
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics


class Changes(NamedTuple):
    """Lines of a table to read as changes: from a byte to another."""

    table: str
    path: str
    first: int
    last: int
    captured_us: int


class Rows(NamedTuple):
    """The rows of a table after the first bytes of its file."""

    table: str
    path: str
    last: int


class JsonLinesReader(Reader):
    """Reads :class:`Changes` and :class:`Rows`."""

    def read(self, parts: Iterable[Changes | Rows], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read parts as a batch each; see :class:`Reader`."""
        for part in parts:
            content = Path(part.path).read_bytes()[: part.last]
            metrics.counts["bytes"] += part.last
            found = _changes(part, content) if isinstance(part, Changes) else _rows(part, content)
            yield pa.RecordBatch.from_pylist(list(found), schema=CHANGE_SCHEMA)


def position_of(byte: int, number: int = -1) -> bytes:
    """Return the position of a line that ends at a byte, or of a row that a snapshot reads there.

    Positions sort as bytes: a snapshot's rows follow its fence, which follows the changes before it.
    """
    return byte.to_bytes(8, "big") + (b"" if number < 0 else number.to_bytes(4, "big"))


def _changes(part: Changes, content: bytes) -> Iterator[dict[str, Any]]:
    at = part.first
    for line in content[part.first :].splitlines(keepends=True):
        at += len(line)
        values = {"captured_at": part.captured_us, **_record(part.table, line, position_of(at))}
        try:
            yield {**values, "kind": CHANGE, "key": str(json.loads(line)["id"]).encode()}
        except (ValueError, KeyError, TypeError) as error:
            yield {**values, "kind": QUARANTINE, "reason": f"INVALID-LINE: {error}"}


def _rows(part: Rows, content: bytes) -> Iterator[dict[str, Any]]:
    rows: dict[str, bytes] = {}
    for line in content.splitlines(keepends=True):
        try:
            change = json.loads(line)
            rows[str(change["id"])] = line if "row" in change else b""
        except (ValueError, KeyError, TypeError):
            continue  # the capture quarantines it
    for number, (key, line) in enumerate(rows.items()):
        if line:
            record = _record(part.table, line, position_of(part.last, number))
            yield {**record, "kind": SNAPSHOT, "key": key.encode()}


def _record(table: str, line: bytes, position: bytes) -> dict[str, Any]:
    return {
        "source_table": table,
        "origin": table,
        "position": position,
        "version": position,
        "generation": 0,
        "payload": line,
    }
