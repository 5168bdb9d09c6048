"""The payload of a snapshot row: what one row of a SELECT says of a row or of a partition's static columns.

A snapshot row names its columns, so it stays readable when the schema changes before it is merged.
Little-endian::

    0    u8    'S'
    1    u8    scope: ROW or STATIC (changes/contribution.py)
    2    u16   length H of the names
    4    H     per column u16 length and its name as UTF-8
    4+H        a cell row (changes/cells.py) whose column ids are places in that list, from 0
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_cdc_provider.changes.cell_row import read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import ROW_STATIC
from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.schema import TableSchema

SNAPSHOT_TAG: Final = ord("S")
"""First byte of the payload."""


def snapshot_prefix(columns: Sequence[str], *, static: bool = False) -> bytes:
    """Write what stands before the cell row in the payload of a snapshot row.

    Args:
        columns: Names of static or regular columns; a cell's column id is the place of its name here.
        static: Whether the cell row is the partition's static row.
    """
    names = b"".join(struct.pack("<H", len(name.encode())) + name.encode() for name in columns)
    return struct.pack("<BBH", SNAPSHOT_TAG, STATIC if static else ROW, len(names)) + names


def snapshot_columns(payloads: pa.Array) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """Read the names in payloads of snapshot rows; few different ones, mostly.

    Args:
        payloads: What begins as :func:`snapshot_prefix` wrote it.

    Returns:
        Per payload a number, and the names of each number.
    """
    numbers = np.zeros(len(payloads), np.int64)
    names: list[tuple[str, ...]] = []
    data, starts, _ = binary_parts(payloads)
    lengths = data[starts[:-1] + 2].astype(np.int64) | data[starts[:-1] + 3].astype(np.int64) << 8
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        lists = pc.binary_slice(payloads.take(pa.array(places)), 4, 4 + length).dictionary_encode()
        numbers[places] = len(names) + lists.indices.to_numpy()
        names += [_names(listed) for listed in lists.dictionary.to_pylist()]
    return numbers, names


def _names(listed: bytes) -> tuple[str, ...]:
    names = []
    at = 0
    while at < len(listed):
        (length,) = struct.unpack_from("<H", listed, at)
        names.append(listed[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return tuple(names)


def state_payload(schema: TableSchema, state: bytes) -> bytes:
    """Write the payload of a snapshot row from a state, whose column ids are the schema's.

    Args:
        schema: The table, its columns numbered.
        state: A cell row of a row or of statics. Its cells of columns that were dropped since are left out.
    """
    row = read_cell_row(state)
    static = bool(row.flags & ROW_STATIC)
    names = {c.id: c.name for c in (schema.static if static else schema.regular)}
    used = sorted({cell.column for cell in row.cells if cell.column in names})
    places = {column: place for place, column in enumerate(used)}
    cells = tuple(cell._replace(column=places[cell.column]) for cell in row.cells if cell.column in places)
    prefix = snapshot_prefix([names[column] for column in used], static=static)
    return prefix + write_cell_row(row._replace(cells=cells))
