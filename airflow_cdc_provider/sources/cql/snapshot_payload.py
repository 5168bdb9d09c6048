"""The payload of a snapshot row: a row of a SELECT, or its partition's static columns.

A snapshot row contains its column names, so it can be decoded if the schema changes before it is merged.
Little-endian::

    0    u8    'S'
    1    u8    scope: ROW or STATIC (changes/contribution.py)
    2    u16   length H of the names
    4    H     per column u16 length and its name as UTF-8
    4+H        a cell row (changes/cells.py) whose column ids are indexes into that list
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_row import read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import ROW_STATIC
from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.cql.schema import TableSchema

SNAPSHOT_TAG: Final = ord("S")
"""First byte of the payload."""


def snapshot_prefix(columns: Sequence[str], *, static: bool = False) -> bytes:
    """Encode the part of a snapshot row's payload before the cell row.

    Args:
        columns: Names of static or regular columns; a cell's column id is the index of its name.
        static: Whether the cell row is the partition's static row.

    Returns:
        The bytes.
    """
    names = b"".join(struct.pack("<H", len(name.encode())) + name.encode() for name in columns)
    return struct.pack("<BBH", SNAPSHOT_TAG, STATIC if static else ROW, len(names)) + names


def snapshot_columns(payloads: pa.Array) -> tuple[Ints, list[tuple[str, ...]]]:
    """Decode the column names in payloads of snapshot rows, which are mostly the same.

    Args:
        payloads: Payloads that start with the output of :func:`snapshot_prefix`.

    Returns:
        A number per payload, and the names of each number.
    """
    numbers = np.zeros(len(payloads), np.int64)
    names: list[tuple[str, ...]] = []
    data, starts, _ = binary_parts(payloads)
    lengths = data[starts[:-1] + 2].astype(np.int64) | data[starts[:-1] + 3].astype(np.int64) << 8
    for length in np.unique(lengths).tolist():
        indexes = np.flatnonzero(lengths == length)
        lists = pc.binary_slice(payloads.take(pa.array(indexes)), 4, 4 + length).dictionary_encode()
        numbers[indexes] = len(names) + lists.indices.to_numpy()
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
    """Encode the payload of a snapshot row from a state with the schema's column ids.

    Args:
        schema: The table, its columns numbered.
        state: A cell row of a row or of static columns. Its cells of dropped columns are omitted.

    Returns:
        The payload.
    """
    row = read_cell_row(state)
    static = bool(row.flags & ROW_STATIC)
    names = {c.id: c.name for c in (schema.static if static else schema.regular)}
    used = sorted({cell.column for cell in row.cells if cell.column in names})
    indexes = {column: index for index, column in enumerate(used)}
    cells = tuple(cell._replace(column=indexes[cell.column]) for cell in row.cells if cell.column in indexes)
    prefix = snapshot_prefix([names[column] for column in used], static=static)
    return prefix + write_cell_row(row._replace(cells=cells))
