"""A folder of JSON lines files, one per table.

A line is a change: ``{"id": 1, "row": {...}}`` writes a row, ``{"id": 1}`` deletes it. Files only grow. Each
table is a feed of its own, whose position is the number of bytes that were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.sources.contract import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan, Source
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

from .codec import JsonLinesCodec
from .options import JsonLinesOptions
from .reader import Changes, JsonLinesReader, Rows, position_of


class JsonLinesSource(Source):
    """A folder of JSON lines files.

    Args:
        options: The declaration's source section.
        selects: Returns whether the declaration selects a table.
    """

    planned_ranges = PlannedRanges({"rows": Rows})

    def __init__(self, options: JsonLinesOptions, selects: Callable[[str], bool]) -> None:
        self._folder = Path(options.folder)
        self._selects = selects

    def check(self) -> list[Finding]:
        """Verify that the folder exists."""
        if not self._folder.is_dir():
            return [Finding("error", "folder", f"{self._folder} is not a folder", "set option source.folder")]
        return [Finding("ok", "folder", f"{self._folder} has {len(self.tables())} selected tables")]

    def tables(self) -> list[str]:
        """List the selected tables that have a file."""
        return sorted(file.stem for file in self._folder.glob("*.jsonl") if self._selects(file.stem))

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> JsonLinesCodec:
        """Return the decoder of a table."""
        if table not in self.tables():
            raise SchemaUnknown(f"there is no file of table {table}", expected=str(self._path(table)))
        return JsonLinesCodec(table)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Plan to read the rows that a table has now, as one range."""
        if where:
            raise ConfigurationError("files have no filters", expected="a snapshot of the whole table")
        end = self._end(table)
        return SnapshotPlan(table, [Rows(table, str(self._path(table)), end)], position_of(end), table)

    def snapshot_reader(self) -> JsonLinesReader:
        """Return the reader of ranges."""
        return JsonLinesReader()

    def start(self) -> Offset:
        """Start at the head: snapshots cover everything before it."""
        return self.head()

    def head(self) -> Offset:
        """Return the ends of all files."""
        return {table: {"v": 1, "bytes": self._end(table)} for table in self.tables()}

    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset."""
        for table, position in offset.items():
            read = position.get("bytes") if isinstance(position, Mapping) else None
            if not isinstance(read, int) or position != {"v": 1, "bytes": read}:
                raise ConfigurationError(
                    f"the offset of {table} is invalid", expected='{"v": 1, "bytes": N}', found=str(position)
                )

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next lines of each file, up to the limit of bytes."""
        captured_us = time.time_ns() // 1000
        end, parts, left = dict(start or {}), [], limit.bytes
        for table, position in head.items():
            first, last = end.get(table, {"bytes": 0})["bytes"], position["bytes"]
            if first > last:
                raise PositionLost(
                    f"{self._path(table)} was truncated",
                    expected=f"{first} bytes or more",
                    found=f"{last} bytes",
                    remedy="take a new snapshot: snapshot.on_lost_position",
                )
            last = self._end(table, min(last, first + left))
            if first < last:
                parts.append(Changes(table, str(self._path(table)), first, last, captured_us))
            end[table] = {"v": 1, "bytes": last}
            left = max(left - (last - first), 0)
        return Plan(end, parts, at_head=end == {**end, **head})

    def reader(self) -> JsonLinesReader:
        """Return the reader of changes."""
        return JsonLinesReader()

    def lag(self, offset: Offset | None) -> Lag:
        """Return how many bytes were not read yet."""
        read = offset or {}
        behind = {
            table: position["bytes"] - read.get(table, {"bytes": 0})["bytes"]
            for table, position in self.head().items()
        }
        seconds = None if any(behind.values()) else 0.0
        return Lag(seconds, sum(behind.values()), {t: {"bytes": n} for t, n in behind.items()})

    def _path(self, table: str) -> Path:
        return self._folder / f"{table}.jsonl"

    def _end(self, table: str, at: int | None = None) -> int:
        """Return the end of the first whole line at or after a byte; of the last one if there is none."""
        content = self._path(table).read_bytes()
        following = -1 if at is None else content.find(b"\n", max(at - 1, 0))
        return (following if following >= 0 else content.rfind(b"\n")) + 1
