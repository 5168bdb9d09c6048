"""Rows with data that a snapshot should have returned and didn't: it may have been deleted unnoticed.

A row that a snapshot read has the time of the reading, until a later liveness replaces it. If the reading
didn't return a cell of such a row, the merge of the two reports it (:mod:`.unresolved`). A row without such a
time didn't exist when its range was read: either its data was written after the snapshot started, or the row
is unresolved. A write time far in the future proves nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.cells import ROW_LIVENESS, ROW_STATIC, ROW_UNCERTAIN
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.byte_kernels import load_little64
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    cell_count,
    cell_time,
    check_cell_rows,
    first_cell,
    is_live,
    next_cell,
    row_flags,
)
from airflow_cdc_provider.lake.reconcile.flat import flat, one_array

WRITTEN_SINCE: Final = 0
"""All its live data was written after the snapshot started."""
NOT_IN_SNAPSHOT: Final = 1
"""Some of its live data was written before."""
READ: Final = 2
"""It has the time of a reading. The greatest value of all states of a row applies to the row."""


def snapshot_status(states: Any, since_us: int, until_us: int, now_seconds: int) -> pa.Array:
    """Classify states by whether a complete snapshot read them.

    Args:
        states: Binary array of cell rows, without nulls.
        since_us: Start of the snapshot: all its readings have this time or a later one.
        until_us: Greater write times prove nothing.
        now_seconds: Epoch second at which expiry is judged.

    Returns:
        Array of the same length, int8: :data:`WRITTEN_SINCE`, :data:`NOT_IN_SNAPSHOT` or :data:`READ`.

    Raises:
        CorruptInput: A cell row is malformed.
    """
    rows = flat(one_array(states))
    count = len(rows.starts)
    cells, contents = np.empty(count, np.int64), np.empty(count, np.uint8)
    broken, fault = check_cell_rows(*rows, cells, contents)
    if fault:
        raise CorruptInput(f"The cell row of state {broken} is broken", found=FAULTS[fault])
    found = np.empty(count, np.int8)
    _snapshot_status(
        rows.data, rows.starts, np.int64(since_us), np.int64(until_us), np.int64(now_seconds), found
    )
    return pa.array(found)


@walker
def _snapshot_status(
    data: Bytes, starts: Ints, since: Int, until: Int, now_seconds: Int, found: npt.NDArray[np.int8]
) -> None:
    for number in range(len(starts)):
        row = starts[number]
        flags = row_flags(data, row)
        live_us = load_little64(data, row + 8)
        within = since <= live_us <= until
        if flags & (ROW_LIVENESS | ROW_UNCERTAIN) == ROW_UNCERTAIN and within:
            found[number] = READ
            continue
        lives = (flags & (ROW_LIVENESS | ROW_UNCERTAIN)) != 0 and (flags & ROW_STATIC) == 0
        found[number] = NOT_IN_SNAPSHOT if lives and not within else WRITTEN_SINCE
        cell = first_cell(data, row)
        for _ in range(cell_count(data, row)):
            if is_live(data, cell, now_seconds) and not since <= cell_time(data, cell) <= until:
                found[number] = NOT_IN_SNAPSHOT
            cell = next_cell(data, cell)
