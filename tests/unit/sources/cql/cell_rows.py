"""Builds live rows from the values of a SELECT."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_PATH,
    CELL_TOMBSTONE,
    FORMAT,
    NEVER,
    ROW_LIVENESS,
    ROW_STATIC,
)
from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.sources.cql.schema import Column, TableSchema
from tests.unit.sources.cql.cql_values import Native, split

Cell = tuple[int, int, bytes, bytes]


def cell(column: int, flags: int, path: bytes, value: bytes) -> bytes:
    """Write one cell."""
    header = struct.pack("<HBBiqqII", column, flags, 0, 0, 1_000_000, NEVER, len(path), len(value))
    return header + path + value


def cell_row(clustering: Sequence[Native], cells: Sequence[Cell], *, static: bool = False) -> bytes:
    """Write one cell row; cells are put in their order."""
    native = b"".join(
        struct.pack("<i", -1) if v is None else struct.pack("<i", len(v)) + v for v in clustering
    )
    flags = ROW_STATIC if static else ROW_LIVENESS
    header = struct.pack("<BBHiqqqqII", FORMAT, flags, 0, 0, 1, NEVER, 0, NEVER, len(native), len(cells))
    ordered = sorted(cells, key=lambda c: (c[0], not c[1] & CELL_COMPLEX_DELETION, c[2]))
    return header + native + b"".join(cell(*c) for c in ordered)


def column_cells(column: Column, value: Native, *, noise: random.Random | None = None) -> list[Cell]:
    """Split a column's value into cells; ``noise`` adds tombstones, which don't change it."""
    cells: list[Cell] = []
    name = column.type.name
    if not column.type.multi_cell:
        if value is not None:
            return [(column.id, 0, b"", value)]
        return [(column.id, CELL_TOMBSTONE, b"", b"")] if noise and noise.random() < 0.5 else []
    if noise and noise.random() < 0.5:
        cells.append((column.id, CELL_COMPLEX_DELETION, b"", b""))
    if value is None:
        return cells
    parts: list[Native] = split(value if name == "udt" else value[4:])
    if name == "udt":
        for index, part in enumerate(parts):
            if part is not None:
                cells.append((column.id, CELL_PATH, struct.pack(">H", index), part))
        return cells
    if name == "map":
        for key, part in zip(parts[::2], parts[1::2], strict=True):
            cells.append((column.id, CELL_PATH, key or b"", part or b""))
    elif name == "set":
        cells += [(column.id, CELL_PATH, part or b"", b"") for part in parts]
    else:
        for index, part in enumerate(parts):
            # The time rises with the index; its low half comes first in the bytes.
            path = struct.pack(">IHH", index * 7919 % 1000 + 1000, index, 0x1000) + b"\x80" * 8
            cells.append((column.id, CELL_PATH, path, part or b""))
    if noise and noise.random() < 0.5 and name == "list":
        cells.append((column.id, CELL_PATH | CELL_TOMBSTONE, b"\0" * 6 + b"\x10" + b"\1" * 9, b""))
    return cells


def partition_key(parts: Sequence[bytes]) -> bytes:
    """Write a partition key."""
    if len(parts) == 1:
        return parts[0]
    return b"".join(struct.pack(">H", len(p)) + p + b"\0" for p in parts)


def live_rows(
    table: TableSchema, selected: Sequence[Mapping[str, Native]], *, noise: random.Random | None = None
) -> pa.RecordBatch:
    """Build live rows from values by column name."""
    records = []
    for values in selected:
        key = partition_key([values[c.name] or b"" for c in table.partition_key])
        clustering = [values[c.name] for c in table.clustering]
        only_static = bool(clustering) and all(v is None for v in clustering)
        cells = [x for c in table.regular for x in column_cells(c, values[c.name], noise=noise)]
        static = [x for c in table.static for x in column_cells(c, values[c.name], noise=noise)]
        records.append(
            {
                "key": key,
                "clustering": None if only_static else b"",
                "generation": 0,
                "version": None,
                "state": None if only_static else cell_row(clustering, cells),
                "static_state": cell_row([], static, static=True) if static else None,
                "expires_at": None,
            }
        )
    return pa.RecordBatch.from_pylist(records, LIVE_ROW_SCHEMA)
