"""Which rows hold something that a snapshot should have shown and didn't: it was deleted unnoticed, perhaps.

A row that a snapshot read bears the time of the reading, until a liveness written still later takes its
place. If a cell of such a row wasn't shown, that is told when the two are merged (:mod:`.doubts`). A row
without such a time was not there when its range was read. What it holds was written after the snapshot began,
or it is in doubt; a write time far in the future proves nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.cells import ROW_LIVENESS, ROW_STATIC, ROW_UNCERTAIN
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    cell_count,
    cell_time,
    check_cell_rows,
    first_cell,
    is_live,
    next_cell,
    read_i64,
    row_flags,
)
from airflow_cdc_provider.lake.reconcile.flat import flat, one_array
from airflow_cdc_provider.lake.reconcile.shapes import Bytes, Int, Numbers

WRITTEN_SINCE: Final = 0
"""All that lives of it was written after the snapshot began."""
UNSEEN: Final = 1
"""Something was written before."""
READ: Final = 2
"""It bears the time of a reading. Of several states of one row the greatest tells what is true of the row."""


def seen_by(states: Any, since_us: int, until_us: int, now_seconds: int) -> pa.Array:
    """Tell of states what a snapshot that saw all there was has shown of them.

    Args:
        states: Binary array of cell rows, without nulls.
        since_us: Whatever the snapshot read was read at this time or later.
        until_us: Greater write times prove nothing.
        now_seconds: The moment at which expiry is judged.

    Returns:
        Array of the same length, int8: :data:`WRITTEN_SINCE`, :data:`UNSEEN` or :data:`READ`.

    Raises:
        CorruptInput: A cell row breaks its format.
    """
    rows = flat(one_array(states))
    count = len(rows.starts)
    cells, contents = np.empty(count, np.int64), np.empty(count, np.uint8)
    broken, fault = check_cell_rows(*rows, cells, contents)
    if fault:
        raise CorruptInput(f"The cell row of state {broken} is broken", found=FAULTS[fault])
    found = np.empty(count, np.int8)
    _seen_by(rows.data, rows.starts, np.int64(since_us), np.int64(until_us), np.int64(now_seconds), found)
    return pa.array(found)


@walker
def _seen_by(data: Bytes, starts: Numbers, since: Int, until: Int, now_seconds: Int, found: Bytes) -> None:
    for number in range(len(starts)):
        row = starts[number]
        flags = row_flags(data, row)
        live_us = read_i64(data, row + 8)
        within = since <= live_us <= until
        if flags & (ROW_LIVENESS | ROW_UNCERTAIN) == ROW_UNCERTAIN and within:
            found[number] = READ
            continue
        lives = (flags & (ROW_LIVENESS | ROW_UNCERTAIN)) != 0 and (flags & ROW_STATIC) == 0
        found[number] = UNSEEN if lives and not within else WRITTEN_SINCE
        cell = first_cell(data, row)
        for _ in range(cell_count(data, row)):
            if is_live(data, cell, now_seconds) and not since <= cell_time(data, cell) <= until:
                found[number] = UNSEEN
            cell = next_cell(data, cell)
