"""Which rows a second reading shows with every cell that they hold: most, and there is nothing to settle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    cell_count,
    check_cell_rows,
    compare_cell_places,
    first_cell,
    is_live,
    next_cell,
)
from airflow_cdc_provider.lake.reconcile.flat import flat, one_array
from airflow_cdc_provider.lake.reconcile.shapes import Bytes, Int, Numbers


def shown_whole(held: Any, shown: Any, now_seconds: int) -> pa.Array:
    """Tell of each row whether a reading shows cells of it, and in the place of each that lives one.

    Args:
        held: Binary array of cell rows, without nulls.
        shown: Likewise, what the reading shows of the same rows.
        now_seconds: The moment at which expiry is judged.

    Returns:
        Boolean array of the same length. An element of a list is shown in a place of its own: a row that has
        lists with something in them is never said to be shown whole.

    Raises:
        CorruptInput: A cell row breaks its format.
    """
    rows = flat(pa.concat_arrays([one_array(held), one_array(shown)]))
    count = len(rows.starts)
    cells, contents = np.empty(count, np.int64), np.empty(count, np.uint8)
    broken, fault = check_cell_rows(*rows, cells, contents)
    if fault:
        raise CorruptInput(f"The cell row of state {broken} is broken", found=FAULTS[fault])
    found = np.empty(count // 2, np.uint8)
    _shown_whole(rows.data, rows.starts, np.int64(now_seconds), found)
    return pa.array(found.view(np.bool_))


@walker
def _shown_whole(data: Bytes, starts: Numbers, now_seconds: Int, found: Bytes) -> None:
    half = len(starts) // 2
    for number in range(half):
        held, shown = starts[number], starts[half + number]
        ours, theirs = first_cell(data, held), first_cell(data, shown)
        left = cell_count(data, shown)
        whole = left > 0
        for _ in range(cell_count(data, held)):
            if is_live(data, ours, now_seconds):
                while left > 0 and compare_cell_places(data, theirs, ours) < 0:
                    theirs = next_cell(data, theirs)
                    left -= 1
                if left == 0 or compare_cell_places(data, theirs, ours) != 0:
                    whole = False
                    break
            ours = next_cell(data, ours)
        found[number] = 1 if whole else 0
