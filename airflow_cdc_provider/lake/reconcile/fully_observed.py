"""Rows of which a second reading returns every cell: nearly all, and there is nothing to resolve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    cell_count,
    check_cell_rows,
    compare_cell_keys,
    first_cell,
    is_live,
    next_cell,
)
from airflow_cdc_provider.lake.reconcile.flat import flat, one_array


def fully_observed(stored: Any, read: Any, now_seconds: int) -> pa.Array:
    """Return for each row whether a reading has cells of it, and one for each live cell of the row.

    Args:
        stored: Binary array of cell rows, without nulls.
        read: The same rows as the reading returned them.
        now_seconds: Epoch second at which expiry is judged.

    Returns:
        Boolean array of the same length. A reading returns list elements under synthetic paths, so rows with
        non-empty lists are never reported as fully observed.

    Raises:
        CorruptInput: A cell row is malformed.
    """
    rows = flat(pa.concat_arrays([one_array(stored), one_array(read)]))
    count = len(rows.starts)
    cells, contents = np.empty(count, np.int64), np.empty(count, np.uint8)
    broken, fault = check_cell_rows(*rows, cells, contents)
    if fault:
        raise CorruptInput(f"The cell row of state {broken} is broken", found=FAULTS[fault])
    found = np.empty(count // 2, np.uint8)
    _fully_observed(rows.data, rows.starts, np.int64(now_seconds), found)
    return pa.array(found.view(np.bool_))


@walker
def _fully_observed(data: Bytes, starts: Ints, now_seconds: Int, found: Bytes) -> None:
    half = len(starts) // 2
    for number in range(half):
        stored, read = starts[number], starts[half + number]
        stored_cell, read_cell = first_cell(data, stored), first_cell(data, read)
        left = cell_count(data, read)
        whole = left > 0
        for _ in range(cell_count(data, stored)):
            if is_live(data, stored_cell, now_seconds):
                while left > 0 and compare_cell_keys(data, read_cell, stored_cell) < 0:
                    read_cell = next_cell(data, read_cell)
                    left -= 1
                if left == 0 or compare_cell_keys(data, read_cell, stored_cell) != 0:
                    whole = False
                    break
            stored_cell = next_cell(data, stored_cell)
        found[number] = 1 if whole else 0
