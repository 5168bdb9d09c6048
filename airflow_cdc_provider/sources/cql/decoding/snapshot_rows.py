"""Decode payloads of snapshot rows to contributions: validate, renumber and copy a cell row.

The payload was written by this package, but it was stored, and may have an earlier schema; so it is validated
like a segment.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_HEADER_BYTES,
    FORMAT,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.formats.byte_kernels import (
    copy,
    load_little16,
    load_little32,
    load_little64,
    store_little16,
    store_little32,
)
from airflow_cdc_provider.formats.kernels import Bytes, Int, walker
from airflow_cdc_provider.sources.cql.decoding.programs import DROPPED, Program, find_column
from airflow_cdc_provider.sources.cql.decoding.sink import FAILED_AT, NOWHERE, STATES_AT, Sink, put_row
from airflow_cdc_provider.sources.cql.decoding.sorting import compare_cells, order_cells
from airflow_cdc_provider.sources.cql.reasons import BAD_SNAPSHOT, NO_SPACE, UNKNOWN_COLUMN

_HEADER_BYTES: Final = 4
_TABLE: Final = np.int64(0)


@walker
def read_snapshot_row(data: Bytes, at: Int, end: Int, change: Int, program: Program, sink: Sink) -> Int:
    """Read one snapshot row of the program's only table and append its contribution.

    Args:
        data: Array with the payload.
        at: Offset of the payload, at its tag.
        end: End of the payload.
        change: Number to store with the contribution.
        program: The compiled table.
        sink: Receives the contribution, as in :func:`~.mutation.read_update`.

    Returns:
        ``end``, or a negative reason.
    """
    cursor, states = sink.cursor, sink.states
    cursor[FAILED_AT] = at
    if end - at < _HEADER_BYTES:
        return -BAD_SNAPSHOT
    scope = data[at + 1]
    names_end = at + _HEADER_BYTES + load_little16(data, at + 2)
    if scope not in (ROW, STATIC) or names_end > end - ROW_HEADER_BYTES:
        return -BAD_SNAPSHOT
    names = _find_columns(data, at + _HEADER_BYTES, names_end, program, sink)
    if names < 0:
        return names

    row_at = names_end
    clustering_length = load_little32(data, row_at + 40)
    cells = load_little32(data, row_at + 44)
    cell_at = row_at + ROW_HEADER_BYTES + clustering_length
    begin = cursor[STATES_AT]
    cursor[FAILED_AT] = row_at
    if data[row_at] != FORMAT or cell_at > end:
        return -BAD_SNAPSHOT
    if begin + end - row_at > len(states):
        return -NO_SPACE
    state_at = copy(data, row_at, cell_at - row_at, states, begin)
    first_cell = state_at
    kept = np.int64(0)
    ordered = True
    before = np.int64(-1)
    for _ in range(cells):
        cursor[FAILED_AT] = cell_at
        if end - cell_at < CELL_HEADER_BYTES:
            return -BAD_SNAPSHOT
        name = load_little16(data, cell_at)
        length = CELL_HEADER_BYTES + load_little32(data, cell_at + 24) + load_little32(data, cell_at + 28)
        if name >= names or length > end - cell_at:
            return -BAD_SNAPSHOT
        column = np.int64(sink.listed[0, name])
        timestamp = load_little64(data, cell_at + 8)
        if program.column_id[column] != DROPPED and timestamp > program.dropped_at[column]:
            copy(data, cell_at, length, states, state_at)
            store_little16(states, state_at, np.int64(program.column_id[column]))
            ordered = ordered and (kept == 0 or compare_cells(states, before, state_at) < 0)
            before = state_at
            kept += 1
            state_at += length
        cell_at += length
    if cell_at != end:
        return -BAD_SNAPSHOT
    if not ordered:
        problem = order_cells(sink, first_cell, state_at, kept)
        if problem < 0:
            return problem
    store_little32(states, begin + 44, kept)
    if kept == 0 and not data[row_at + 1] & (ROW_LIVENESS | ROW_DELETION | ROW_UNCERTAIN):
        return end
    if not put_row(sink, change, np.int64(scope), state_at, NOWHERE, NOWHERE):
        return -NO_SPACE
    return end


@walker
def _find_columns(data: Bytes, at: Int, end: Int, program: Program, sink: Sink) -> Int:
    """Look up the names that a payload lists; return their count or a negative reason."""
    count = 0
    likely = np.int64(0)
    while at < end:
        sink.cursor[FAILED_AT] = at
        if end - at < 2:
            return -BAD_SNAPSHOT
        length = load_little16(data, at)
        if length > end - at - 2:
            return -BAD_SNAPSHOT
        column = find_column(program, _TABLE, likely, data, at + 2, length)
        if column < 0 or count >= sink.listed.shape[1]:
            return -UNKNOWN_COLUMN
        sink.listed[0, count] = column
        likely = column + 1
        count += 1
        at += 2 + length
    return count
