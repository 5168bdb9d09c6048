"""Cells of dropped columns: stored states keep them, but they no longer keep a row alive.

A row that was only written by UPDATE is live as long as it has live cells. If its last cells belong to a
dropped column, the database no longer returns the row.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.cells import ROW_HEADER_BYTES
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.byte_kernels import copy, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    cell_column,
    cell_count,
    check_cell_rows,
    first_cell,
    next_cell,
)
from airflow_cdc_provider.lake.reconcile.flat import flat, large_binary, one_array

_MOST_COLUMNS: Final = 65_536
_CELL_COUNT_AT: Final = 44


def only_columns(states: Any, known: AbstractSet[int]) -> Any:
    """Remove cells of other columns from cell rows.

    Args:
        states: Cell rows as an Arrow column; nulls stay null.
        known: Ids of the existing columns.

    Returns:
        The column as large binary; the given one if no cell was removed.

    Raises:
        CorruptInput: A cell row is malformed.
    """
    column = one_array(states)
    rows = flat(column)
    present = np.flatnonzero(rows.ends > rows.starts)
    starts, ends = rows.starts[present], rows.ends[present]
    fault_row, fault = check_cell_rows(
        rows.data, starts, ends, np.empty(len(present), np.int64), np.empty(len(present), np.uint8)
    )
    if fault:
        raise CorruptInput(
            f"The cell row of contribution {present[fault_row]} is broken", found=FAULTS[fault]
        )
    is_known = np.zeros(_MOST_COLUMNS, np.uint8)
    is_known[list(known)] = 1
    out = np.empty(int((rows.ends - rows.starts).sum()), np.uint8)
    offsets = np.zeros(len(column) + 1, np.int64)
    left_out = _copy_known(rows.data, rows.starts, rows.ends, is_known, out, offsets)
    return large_binary(out[: offsets[-1]], offsets) if left_out else states


@walker
def _copy_known(data: Bytes, starts: Ints, ends: Ints, known: Bytes, out: Bytes, offsets: Ints) -> Int:
    left_out = np.int64(0)
    to = np.int64(0)
    for number in range(len(starts)):
        row = starts[number]
        end = ends[number]
        if end - row >= ROW_HEADER_BYTES:
            at = first_cell(data, row)
            begin = to
            copy(data, row, at - row, out, to)
            to += at - row
            kept = np.int64(0)
            for _ in range(cell_count(data, row)):
                after = next_cell(data, at)
                if known[np.uint64(cell_column(data, at))]:
                    copy(data, at, after - at, out, to)
                    to += after - at
                    kept += 1
                else:
                    left_out += 1
                at = after
            store_little32(out, begin + _CELL_COUNT_AT, kept)
        offsets[number + 1] = to
    return left_out
