"""Cell rows as Python objects, for the few that are handled one by one: unresolved keys, and inspection.

Data paths work on the bytes (layout: :mod:`airflow_cdc_provider.changes.cells`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from airflow_cdc_provider.changes.cells import FORMAT, NEVER
from airflow_cdc_provider.exceptions import CorruptInput

_HEADER = struct.Struct("<BBHiqqqqII")
_CELL = struct.Struct("<HBBiqqII")


class Cell(NamedTuple):
    """One cell, or the deletion of a multi-cell column."""

    column: int
    flags: int
    ttl: int
    time_us: int
    end_seconds: int
    path: bytes
    value: bytes


class CellRow(NamedTuple):
    """One cell row; fields as in the layout."""

    flags: int
    ttl: int = 0
    liveness_us: int = 0
    expiry_seconds: int = NEVER
    deletion_us: int = 0
    deletion_seconds: int = 0
    clustering: bytes = b""
    cells: tuple[Cell, ...] = ()


def read_cell_row(data: bytes) -> CellRow:
    """Read a cell row.

    Raises:
        CorruptInput: The bytes don't have the layout.
    """
    try:
        form, flags, _, ttl, live, expiry, deleted, seconds, length, count = _HEADER.unpack_from(data)
        at = _HEADER.size + length
        cells = []
        for _ in range(count):
            column, cell_flags, _, cell_ttl, time_us, end, path, value = _CELL.unpack_from(data, at)
            at += _CELL.size
            cells.append(
                Cell(
                    column,
                    cell_flags,
                    cell_ttl,
                    time_us,
                    end,
                    data[at : at + path],
                    data[at + path :][:value],
                )
            )
            at += path + value
    except struct.error as error:
        raise CorruptInput("a cell row ends too early", found=f"{len(data)} bytes") from error
    if form != FORMAT or at != len(data):
        raise CorruptInput(
            "a cell row is broken", expected=f"format {FORMAT}, {at} bytes", found=f"{form}, {len(data)}"
        )
    clustering = data[_HEADER.size : _HEADER.size + length]
    return CellRow(
        flags=flags,
        ttl=ttl,
        liveness_us=live,
        expiry_seconds=expiry,
        deletion_us=deleted,
        deletion_seconds=seconds,
        clustering=clustering,
        cells=tuple(cells),
    )


def write_cell_row(row: CellRow) -> bytes:
    """Write a cell row; its cells must be in the layout's order."""
    parts = [
        _HEADER.pack(
            FORMAT,
            row.flags,
            0,
            row.ttl,
            row.liveness_us,
            row.expiry_seconds,
            row.deletion_us,
            row.deletion_seconds,
            len(row.clustering),
            len(row.cells),
        ),
        row.clustering,
    ]
    for cell in row.cells:
        parts.append(
            _CELL.pack(
                cell.column,
                cell.flags,
                0,
                cell.ttl,
                cell.time_us,
                cell.end_seconds,
                len(cell.path),
                len(cell.value),
            )
        )
        parts += [cell.path, cell.value]
    return b"".join(parts)
