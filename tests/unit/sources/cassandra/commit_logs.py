"""Writes commit-log segments in plain Python, from the reference alone: what readers are tested with.

Rows and cells are those of ``tests.oracles.cassandra_read_path``, so what a reader makes of a written update
can be compared with what was put in.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_cdc_provider.sources.cql.schema import Column, TableSchema
from airflow_cdc_provider.sources.cql.types import fixed_length
from tests.oracles.cassandra_read_path import Cell, Row

EPOCH_US = 1442880000000000
EPOCH_S = 1442880000
LIVE = -(1 << 63)
HEADER_BYTES = 20
"""Length of a plain segment's header."""

Native = bytes | None
Deletion = tuple[int, int]


def uvint(value: int) -> bytes:
    """An unsigned variable-length number."""
    value &= (1 << 64) - 1
    for extra in range(8):
        if value < 1 << (7 - extra + 8 * extra):
            first = (0xFF00 >> extra) & 0xFF
            return (value | first << 8 * extra).to_bytes(extra + 1, "big")
    return b"\xff" + value.to_bytes(8, "big")


def vbytes(data: bytes) -> bytes:
    """Bytes led by their length."""
    return uvint(len(data)) + data


@dataclass(frozen=True)
class Marker:
    """A range tombstone marker; a boundary has both deletions."""

    kind: int
    values: Sequence[Native]
    closes: Deletion | None = None
    opens: Deletion | None = None


@dataclass(frozen=True)
class Stats:
    """The least times of an update, from which its own are counted."""

    timestamp: int = EPOCH_US
    deletion_time: int = EPOCH_S
    ttl: int = 0

    def header(self) -> bytes:
        return (
            uvint(self.timestamp - EPOCH_US)
            + uvint((self.deletion_time - EPOCH_S) % (1 << 32))
            + uvint(self.ttl)
        )

    def time(self, value: int) -> bytes:
        return uvint(value - self.timestamp)

    def seconds(self, value: int) -> bytes:
        return uvint((value - self.deletion_time) % (1 << 32))

    def deletion(self, deletion: Deletion | None) -> bytes:
        if deletion is None:
            return self.time(LIVE) + uvint(0x7FFFFFFF)
        return self.time(deletion[0]) + self.seconds(deletion[1])


@dataclass(frozen=True)
class UpdateWriter:
    """Writes updates of one table.

    Args:
        table: The table, with column ids.
        stats: See :class:`Stats`.
        borrow: Whether cells take the row's times where they are equal.
        list_all: Whether an update lists all columns, not only those that it has.
    """

    table: TableSchema
    stats: Stats = Stats()
    borrow: bool = True
    list_all: bool = False

    def write(
        self,
        key: bytes,
        items: Sequence[Row | Marker] = (),
        *,
        static: Row | None = None,
        partition_deletion: Deletion | None = None,
    ) -> bytes:
        """Write one update; rows carry their clustering as cell rows do."""
        flags = 0x10 | (0x04 if partition_deletion else 0) | (0x08 if static is not None else 0)
        rows = [item for item in items if isinstance(item, Row)]
        static_columns = self._listed(self.table.static, [static] if static is not None else [])
        regulars = self._listed(self.table.regular, rows)
        out = bytes.fromhex(self.table.id) + vbytes(key) + bytes([flags]) + self.stats.header()
        if static is not None:
            out += self._names(static_columns)
        out += self._names(regulars)
        if partition_deletion:
            out += self.stats.deletion(partition_deletion)
        if static is not None:
            out += self._row(static, static_columns, static=True)
        out += uvint(len(rows))
        for item in items:
            out += self._marker(item) if isinstance(item, Marker) else self._row(item, regulars)
        return out + b"\x01"

    def clustering(self, values: Sequence[Native]) -> bytes:
        """Write clustering values, or the first of them."""
        out = b""
        for start in range(0, len(values), 32):
            block = values[start : start + 32]
            marks = sum((2 if v is None else 1 if not v else 0) << 2 * i for i, v in enumerate(block))
            out += uvint(marks)
            for value, column in zip(block, self.table.clustering[start:], strict=False):
                if value:
                    out += value if fixed_length(column.type) >= 0 else vbytes(value)
        return out

    def _listed(self, columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
        present = {cell.column for row in rows for cell in row.cells}
        chosen = [c for c in columns if self.list_all or c.id in present]
        return sorted(chosen, key=lambda c: (c.type.multi_cell, c.name.encode()))

    @staticmethod
    def _names(columns: Sequence[Column]) -> bytes:
        return uvint(len(columns)) + b"".join(vbytes(c.name.encode()) for c in columns)

    def _marker(self, marker: Marker) -> bytes:
        out = bytes([0x02, marker.kind]) + struct.pack(">H", len(marker.values))
        out += self.clustering(marker.values)
        return out + b"".join(self.stats.deletion(d) for d in (marker.closes, marker.opens) if d is not None)

    def _row(self, row: Row, listed: Sequence[Column], *, static: bool = False) -> bytes:
        flags = 0x80 if static else 0
        times = b""
        liveness = row.liveness
        if liveness is not None:
            flags |= 0x04
            times = self.stats.time(liveness.time)
            if getattr(liveness, "ttl", 0):
                flags |= 0x08
                times += uvint(liveness.ttl - self.stats.ttl) + self.stats.seconds(liveness.expires)  # type: ignore[union-attr]
        if row.deletion:
            flags |= 0x10
            times += self.stats.deletion(row.deletion)
        cells: dict[int, list[Cell]] = {}
        for cell in row.cells:
            cells.setdefault(cell.column, []).append(cell)
        present = [column for column in listed if column.id in cells]
        complex_deletion = any(c.complex_deletion for c in row.cells)
        flags |= 0x40 if complex_deletion else 0
        subset = b""
        if len(present) == len(listed):
            flags |= 0x20
        else:
            subset = _subset([column.id in cells for column in listed])
        out = bytes([flags]) + (b"\x01" if static else b"")
        if not static:
            out += self.clustering(split_clustering(row.clustering))
        out += times + subset
        for column in present:
            mine = cells[column.id]
            if not column.type.multi_cell:
                out += self._cell(row, mine[0], column)
                continue
            if complex_deletion:
                marks = [(c.time, c.end) for c in mine if c.complex_deletion]
                out += self.stats.deletion(marks[0] if marks else None)
            elements = [c for c in mine if not c.complex_deletion]
            out += uvint(len(elements)) + b"".join(self._cell(row, c, column) for c in elements)
        return out

    def _cell(self, row: Row, cell: Cell, column: Column) -> bytes:
        liveness = row.liveness
        flags = (1 if cell.tombstone else 0) | (2 if cell.expiring else 0) | (0 if cell.value else 4)
        times = self.stats.time(cell.time)
        if self.borrow and liveness is not None and liveness.time == cell.time:
            flags |= 0x08
            times = b""
        own = (cell.ttl, cell.end)
        if (
            self.borrow
            and cell.expiring
            and own == (getattr(liveness, "ttl", 0), getattr(liveness, "expires", 0))
        ):
            flags |= 0x10
        elif cell.tombstone or cell.expiring:
            times += self.stats.seconds(cell.end)
            if cell.expiring:
                times += uvint(cell.ttl - self.stats.ttl)
        out = bytes([flags]) + times
        if column.type.multi_cell:
            out += vbytes(cell.path or b"")
        if not cell.value:
            return out
        bare = not column.type.multi_cell and fixed_length(column.type) >= 0
        return out + (cell.value if bare else vbytes(cell.value))


def _subset(present: Sequence[bool]) -> bytes:
    count = sum(present)
    if len(present) < 64:
        return uvint(sum(1 << i for i, there in enumerate(present) if not there))
    named = count < len(present) // 2
    indexes = [i for i, there in enumerate(present) if there == named]
    return uvint(len(present) - count) + b"".join(map(uvint, indexes))


def split_clustering(native: bytes) -> list[Native]:
    """Split a cell row's clustering."""
    values: list[Native] = []
    at = 0
    while at < len(native):
        (length,) = struct.unpack_from("<i", native, at)
        at += 4
        values.append(None if length < 0 else native[at : at + length])
        at += max(length, 0)
    return values


def join_clustering(values: Sequence[Native]) -> bytes:
    """Join a cell row's clustering."""
    return b"".join(struct.pack("<i", -1) if v is None else struct.pack("<i", len(v)) + v for v in values)


def mutation(*updates: bytes) -> bytes:
    """A mutation of some updates."""
    return uvint(len(updates)) + b"".join(updates)


def entry(payload: bytes) -> bytes:
    """An entry: size, its checksum, the payload, the checksum of all."""
    size = struct.pack(">i", len(payload))
    crc = zlib.crc32(size)
    return size + struct.pack(">I", crc) + payload + struct.pack(">I", zlib.crc32(payload, crc))


def header(segment: int, version: int = 7, parameters: Mapping[str, Any] | None = None) -> bytes:
    """A segment's header."""
    text = json.dumps(parameters or {}, sort_keys=True).encode()
    crc = zlib.crc32(struct.pack(">i", version))
    crc = zlib.crc32(struct.pack(">II", segment & 0xFFFFFFFF, segment >> 32), crc)
    crc = zlib.crc32(struct.pack(">i", len(text)) + text, crc)
    return struct.pack(">iqH", version, segment, len(text)) + text + struct.pack(">I", crc)


def marker(segment: int, at: int, stop: int) -> bytes:
    """A sync marker."""
    crc = zlib.crc32(struct.pack(">III", segment & 0xFFFFFFFF, segment >> 32, at))
    return struct.pack(">iI", stop, crc)


def segment(
    number: int,
    sections: Sequence[Sequence[bytes]],
    *,
    version: int = 7,
    parameters: Mapping[str, Any] | None = None,
    compress: Callable[[bytes], bytes] | None = None,
    size: int = 0,
) -> bytes:
    """A segment.

    Args:
        number: Its id.
        sections: Mutations of each section.
        version: Of the format.
        parameters: Of the header.
        compress: Returns a section's body, without the leading length; None for a plain segment.
        size: The file's length; the rest is zeros.
    """
    out = header(number, version, parameters)
    for mutations in sections:
        plain = b"".join(map(entry, mutations))
        body = plain if compress is None else struct.pack(">i", len(plain)) + compress(plain)
        out += marker(number, len(out), len(out) + 8 + len(body)) + body
    return out.ljust(size, b"\0")


def put_segment(
    folder: Path,
    number: int,
    data: bytes,
    *,
    end: int | None = None,
    completed: bool = True,
    version: int = 7,
) -> Path:
    """Put a segment into cdc_raw, with an index if its end is given or it is completed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"CommitLog-{version}-{number}.log"
    path.write_bytes(data)
    if end is not None or completed:
        text = str(len(data) if end is None else end) + ("\nCOMPLETED" if completed else "")
        put_index(folder, number, text, version=version)
    return path


def put_index(folder: Path, number: int, text: str, *, version: int = 7) -> Path:
    """Write a segment's index."""
    path = folder / f"CommitLog-{version}-{number}_cdc.idx"
    path.write_text(text)
    return path
