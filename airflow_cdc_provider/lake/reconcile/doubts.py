"""What a snapshot over CQL leaves open, and which later changes touch just that.

A SELECT shows neither row liveness nor tombstones (``ROW_UNCERTAIN``), and before Cassandra 5.0 no write
times of collection elements (``CELL_UNCERTAIN``: the write time is a lower bound). Until the time of that
reading, anything may lie hidden; what was written later is decided as ever. So a row is in doubt if

1. it has no live cell, and not through a deletion that is later than the reading: a hidden liveness may keep
   it alive (it counts as live until it is read again). That is so if it had cells, or a deletion covers it,
   and no liveness is known by which it lives still; or if the known one has expired since;
2. a cell lives that the newest reading did not show though it was written before: a hidden tombstone may
   cover it;
3. an element of uncertain write time gave way to something written before the reading, and differs from it;
4. a list whose elements bear made-up paths was changed by real ones (:mod:`.made_up`).

Only the first can be told from what is kept afterwards. The other two are told once, by the merge that meets
them, so its keys must reach the doubt list with it.
"""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_TOMBSTONE,
    CELL_UNCERTAIN,
    NEVER,
)
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    HOLDS_UNCERTAIN_CELL,
    HOLDS_UNCERTAIN_ROW,
    cell_column,
    cell_count,
    cell_flags,
    cell_time,
    compare_cell_places,
    compare_values,
    first_cell,
    is_live,
    next_cell,
    read_i64,
)
from airflow_cdc_provider.lake.reconcile.made_up import changed_out_of_sight, explain_real
from airflow_cdc_provider.lake.reconcile.shapes import (
    Batch,
    Bytes,
    Deletion,
    Flags,
    Int,
    Liveness,
    Numbers,
    Scratch,
    Settings,
)


@walker
def doubtful_cells(
    batch: Batch,
    order: Numbers,
    low: Int,
    high: Int,
    cells: Numbers,
    count: Int,
    active: Deletion,
    found: Liveness,
    uncertain: bool,
    settings: Settings,
    scratch: Scratch,
) -> bool:
    """Tell whether a cell of a row is in doubt: cases 2 to 4 above.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell, covered by deletions or not.
        count: How many.
        active: The greatest deletion of the row.
        found: The greatest liveness, covered or not; its time is that of the reading or later.
        uncertain: Whether the row still rests on a SELECT.
        settings: Moment and rules.
        scratch: Working room.
    """
    data = batch.state
    covered, covering_us = scratch.covered, scratch.covering_us
    column = np.int64(-1)
    deleted_column = np.int64(-1)
    deleted_us = np.int64(0)
    for number in range(count):
        covered[number] = False
        cell = cells[number]
        time_us = cell_time(data, cell)
        column = cell_column(data, cell)
        if cell_flags(data, cell) & CELL_COMPLEX_DELETION:
            deleted_column = column
            deleted_us = time_us
        elif column == deleted_column and time_us <= deleted_us:
            covered[number] = True
            covering_us[number] = deleted_us
        if active.present and time_us <= active.time_us:
            covering_us[number] = (
                max(covering_us[number], active.time_us) if covered[number] else active.time_us
            )
            covered[number] = True

    read_us = found.time_us if found.flag != 0 else np.int64(NEVER)
    uncertain_cells = False
    for place in range(low, high):
        if batch.contents[order[place]] & HOLDS_UNCERTAIN_CELL:
            uncertain_cells = True
            row = batch.row[order[place]]
            if _gave_way(data, row, cells, count, covered, covering_us, read_us, settings):
                return True
    if uncertain_cells and changed_out_of_sight(
        batch, order, low, high, cells, count, covered, read_us, settings.now_seconds
    ):
        return True
    return uncertain and _shows_older(
        batch, order, low, high, cells, count, covered, read_us, settings, scratch.explained
    )


@walker
def _gave_way(
    data: Bytes,
    row: Int,
    cells: Numbers,
    count: Int,
    covered: Flags,
    covering_us: Numbers,
    read_us: Int,
    settings: Settings,
) -> bool:
    number = 0
    cell = first_cell(data, row)
    for _ in range(cell_count(data, row)):
        while compare_cell_places(data, cells[number], cell) < 0:
            number += 1
        if cell_flags(data, cell) & CELL_UNCERTAIN:
            winner = cells[number]
            if covered[number] and covering_us[number] < read_us:
                return True
            if not covered[number] and winner != cell and cell_time(data, winner) < read_us:
                both = cell_flags(data, cell) & cell_flags(data, winner) & CELL_TOMBSTONE
                either = (cell_flags(data, cell) | cell_flags(data, winner)) & CELL_TOMBSTONE
                if both != either or (
                    compare_values(data, cell, winner, settings.now_seconds, settings.rules) != 0
                ):
                    return True
        cell = next_cell(data, cell)
    return False


@walker
def _shows_older(
    batch: Batch,
    order: Numbers,
    low: Int,
    high: Int,
    cells: Numbers,
    count: Int,
    covered: Flags,
    read_us: Int,
    settings: Settings,
    explained: Flags,
) -> bool:
    data = batch.state
    for number in range(count):
        explained[number] = False
    for place in range(low, high):
        row = batch.row[order[place]]
        # Only the newest reading tells what is there: an older one is part of what is in question.
        if batch.contents[order[place]] & HOLDS_UNCERTAIN_ROW and read_i64(data, row + 8) == read_us:
            number = 0
            cell = first_cell(data, row)
            for _ in range(cell_count(data, row)):
                while compare_cell_places(data, cells[number], cell) < 0:
                    number += 1
                explained[number] = True
                cell = next_cell(data, cell)
            if batch.contents[order[place]] & HOLDS_UNCERTAIN_CELL:
                explain_real(data, row, cells, count, explained)
    for number in range(count):
        cell = cells[number]
        if (
            not explained[number]
            and not covered[number]
            and cell_time(data, cell) < read_us
            and is_live(data, cell, settings.now_seconds)
        ):
            return True
    return False
