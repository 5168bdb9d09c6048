"""Rows that a snapshot over CQL and later changes leave unresolved.

A SELECT returns neither row liveness nor tombstones (``ROW_UNCERTAIN``), and before Cassandra 5.0 no write
times of collection elements (``CELL_UNCERTAIN``: the write time is a lower bound). Anything written before
the reading may be hidden; later writes are decided as usual. A row is unresolved if

1. it has no live cell, and no deletion later than the reading is the cause: a hidden liveness may keep it
alive
   (it counts as live until it is read again). This applies if it had cells or a deletion covers it, and no
   known liveness keeps it alive; or if the known liveness has expired since;
2. a live cell is missing in the newest reading though it was written before: a hidden tombstone may cover it;
3. an element of uncertain write time lost to data written before the reading, and differs from it;
4. a list with synthetic paths was changed by real ones (:mod:`.synthetic_list_paths`).

Only the first case can be detected again from the merged state. The others are reported once, by the merge
that detects them, so their keys must be committed with it.
"""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.changes.cells import CELL_COMPLEX_DELETION, CELL_TOMBSTONE, CELL_UNCERTAIN, NEVER
from airflow_cdc_provider.formats.byte_kernels import load_little64
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    HOLDS_UNCERTAIN_CELL,
    HOLDS_UNCERTAIN_ROW,
    cell_column,
    cell_count,
    cell_flags,
    cell_time,
    compare_cell_keys,
    compare_values,
    first_cell,
    is_live,
    next_cell,
)
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Deletion, Liveness, Scratch, Settings
from airflow_cdc_provider.lake.reconcile.synthetic_list_paths import changed_by_real_paths, confirm_real


@walker
def has_unresolved_cells(
    batch: Batch,
    order: Ints,
    low: Int,
    high: Int,
    cells: Ints,
    count: Int,
    active: Deletion,
    found: Liveness,
    uncertain: bool,
    settings: Settings,
    scratch: Scratch,
) -> bool:
    """Return whether a cell of a row is unresolved: cases 2 to 4 above.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell, covered by deletions or not.
        count: Number of winners.
        active: The greatest deletion of the row.
        found: The greatest liveness, covered or not; its time is that of the reading or later.
        uncertain: Whether the row still depends on a SELECT.
        settings: Time and rules.
        scratch: Scratch buffers.
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
    for index in range(low, high):
        if batch.contents[order[index]] & HOLDS_UNCERTAIN_CELL:
            uncertain_cells = True
            row = batch.row[order[index]]
            if _uncertain_cell_lost(data, row, cells, count, covered, covering_us, read_us, settings):
                return True
    if uncertain_cells and changed_by_real_paths(
        batch, order, low, high, cells, count, covered, read_us, settings.now_seconds
    ):
        return True
    return uncertain and _has_unread_cell(
        batch, order, low, high, cells, count, covered, read_us, settings, scratch.confirmed
    )


@walker
def _uncertain_cell_lost(
    data: Bytes,
    row: Int,
    cells: Ints,
    count: Int,
    covered: Flags,
    covering_us: Ints,
    read_us: Int,
    settings: Settings,
) -> bool:
    number = 0
    cell = first_cell(data, row)
    for _ in range(cell_count(data, row)):
        while compare_cell_keys(data, cells[number], cell) < 0:
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
def _has_unread_cell(
    batch: Batch,
    order: Ints,
    low: Int,
    high: Int,
    cells: Ints,
    count: Int,
    covered: Flags,
    read_us: Int,
    settings: Settings,
    confirmed: Flags,
) -> bool:
    data = batch.state
    for number in range(count):
        confirmed[number] = False
    for index in range(low, high):
        row = batch.row[order[index]]
        # Only the newest reading is evidence; older ones are among the data to check.
        if batch.contents[order[index]] & HOLDS_UNCERTAIN_ROW and load_little64(data, row + 8) == read_us:
            number = 0
            cell = first_cell(data, row)
            for _ in range(cell_count(data, row)):
                while compare_cell_keys(data, cells[number], cell) < 0:
                    number += 1
                confirmed[number] = True
                cell = next_cell(data, cell)
            if batch.contents[order[index]] & HOLDS_UNCERTAIN_CELL:
                confirm_real(data, row, cells, count, confirmed)
    for number in range(count):
        cell = cells[number]
        if (
            not confirmed[number]
            and not covered[number]
            and cell_time(data, cell) < read_us
            and is_live(data, cell, settings.now_seconds)
        ):
            return True
    return False
