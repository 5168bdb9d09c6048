"""The kernel that locates each column's values in live rows, in a single pass.

The input is partition keys in Cassandra's format (one column: its bytes; several: int16 length, bytes, a zero
byte each) and cell rows (:mod:`airflow_cdc_provider.changes.cells`). The output is an offset and a length for
each row of each column; :mod:`.scalars` and :mod:`.nested` then decode the bytes one column at a time.

A column without a live cell in a row has length -1. For a column with a cell per element, the offset is that
of the first live cell's header, and the length extends to the end of the last live one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    FORMAT,
    ROW_HEADER_BYTES,
)
from airflow_cdc_provider.formats.arrow_bytes import BinaryParts
from airflow_cdc_provider.formats.byte_kernels import load_little16, load_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

OK: Final = 0
BAD_KEY: Final = -1
"""A partition key that lacks components of its columns."""
BAD_ROW: Final = -2
"""Bytes that are not a cell row."""


class RowProgram(NamedTuple):
    """A compiled table. Arrays of int32; columns are numbered as in the schema.

    ``partition``      the partition key's columns
    ``clustering``     the clustering columns
    ``column_of_id``   column id -> column, -1 for ids of removed columns
    ``static``         per column, whether it is static
    ``multi_cell``     per column, whether it has a cell per element
    """

    partition: npt.NDArray[np.int32]
    clustering: npt.NDArray[np.int32]
    column_of_id: npt.NDArray[np.int32]
    static: npt.NDArray[np.int32]
    multi_cell: npt.NDArray[np.int32]


class LiveRows(NamedTuple):
    """Keys, rows and static rows; the last two may be null."""

    key: BinaryParts
    state: BinaryParts
    static: BinaryParts


class ValueSpans(NamedTuple):
    """Offsets and lengths of values: two int64 arrays, columns x rows, initialized to 0 and -1.

    Partition key columns are in the key, static columns in the static row, all others in the row.
    """

    starts: Ints
    lengths: Ints


@walker
def locate_values(program: RowProgram, rows: LiveRows, spans: ValueSpans) -> tuple[Int, Int]:
    """Locate the values of all rows.

    Args:
        program: The compiled table.
        rows: Keys, rows and static rows.
        spans: Receives the offsets and lengths.

    Returns:
        :data:`OK`, :data:`BAD_KEY` or :data:`BAD_ROW`, and the row of the failure.
    """
    key, state, static = rows.key, rows.state, rows.static
    for row in range(len(key.offsets) - 1):
        status = _locate_key(program, key.data, key.offsets[row], key.offsets[row + 1], row, spans)
        if status == OK and state.valid[row]:
            begin, end = state.offsets[row], state.offsets[row + 1]
            status = _locate_row(program, state.data, begin, end, np.int64(0), row, spans)
        if status == OK and static.valid[row]:
            begin, end = static.offsets[row], static.offsets[row + 1]
            status = _locate_row(program, static.data, begin, end, np.int64(1), row, spans)
        if status != OK:
            return status, row
    return np.int64(OK), np.int64(-1)


@walker
def _locate_key(program: RowProgram, key: Bytes, begin: Int, end: Int, row: Int, spans: ValueSpans) -> Int:
    partition = program.partition
    if len(partition) == 1:
        spans.starts[partition[0], row] = begin
        spans.lengths[partition[0], row] = end - begin
        return np.int64(OK)
    at = begin
    for column in partition:
        if at + 2 > end:
            return np.int64(BAD_KEY)
        length = (np.int64(key[at]) << 8) | np.int64(key[at + 1])
        if at + 3 + length > end:
            return np.int64(BAD_KEY)
        spans.starts[column, row] = at + 2
        spans.lengths[column, row] = length
        at += 3 + length
    return np.int64(OK)


@walker
def _locate_row(
    program: RowProgram, state: Bytes, begin: Int, end: Int, static: Int, row: Int, spans: ValueSpans
) -> Int:
    """Locate clustering and live cells of a cell row, or the live cells of a static row."""
    if end - begin < ROW_HEADER_BYTES or state[begin] != FORMAT:
        return np.int64(BAD_ROW)
    at = begin + ROW_HEADER_BYTES
    cells_at = at + load_little32(state, begin + 40)
    if cells_at > end:
        return np.int64(BAD_ROW)
    if not static:
        for column in program.clustering:
            if at + 4 > cells_at:
                return np.int64(BAD_ROW)
            length = load_little32(state, at)
            at += 4
            if length >= 0x80000000:
                continue
            if length > cells_at - at:
                return np.int64(BAD_ROW)
            spans.starts[column, row] = at
            spans.lengths[column, row] = length
            at += length
    return _locate_cells(program, state, cells_at, end, load_little32(state, begin + 44), static, row, spans)


@walker
def _locate_cells(
    program: RowProgram, state: Bytes, at: Int, end: Int, count: Int, static: Int, row: Int, spans: ValueSpans
) -> Int:
    starts, lengths = spans.starts, spans.lengths
    for _ in range(count):
        value_at = at + CELL_HEADER_BYTES
        if value_at > end:
            return np.int64(BAD_ROW)
        column_id = load_little16(state, at)
        flags = state[at + 2]
        value_at += load_little32(state, at + 24)
        length = load_little32(state, at + 28)
        if value_at + length > end:
            return np.int64(BAD_ROW)
        column = np.int64(program.column_of_id[column_id]) if column_id < len(program.column_of_id) else -1
        if (
            column >= 0
            and program.static[column] == static
            and not flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION)
        ):
            if not program.multi_cell[column]:
                if lengths[column, row] >= 0:
                    return np.int64(BAD_ROW)
                starts[column, row] = value_at
                lengths[column, row] = length
            elif flags & CELL_PATH:
                if lengths[column, row] < 0:
                    starts[column, row] = at
                lengths[column, row] = value_at + length - starts[column, row]
        at = value_at + length
    return np.int64(OK)
