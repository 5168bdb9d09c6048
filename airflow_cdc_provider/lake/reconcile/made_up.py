"""Elements of lists whose paths are made up, because they were read by a SELECT, beside those from the log.

Cassandra names each element of a list by a time UUID that no query shows. A snapshot gives elements paths
of its own, which bear a mark (:data:`~airflow_cdc_provider.changes.cells.MADE_UP_PATH_MARK`); their write
times and values are the real ones. So an element can be there twice, under its real and under a made-up
path:

- a made-up element for which the log brought one of the same write time and value is the same element,
  whatever became of it since: the made-up one goes;
- one that the reading showed explains the real one of the same write time and value;
- an element with a made-up path can't be found by a later change that names the real one. If the list was so
  changed after the reading, by a removal or by index, the row is in doubt.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    MADE_UP_PATH_MARK,
)
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    cell_column,
    cell_count,
    cell_flags,
    cell_time,
    compare_bytes,
    first_cell,
    is_live,
    next_cell,
    path_length,
    value_length,
)
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Bytes, Flags, Int, Numbers

_PATH_BYTES: Final = 16
_MARK: Final = np.frombuffer(MADE_UP_PATH_MARK, np.uint8)
_HUNDRED_NS_TO_1970: Final = 12_219_292_800 * 10_000_000
_MIRROR_US: Final = 1_262_304_000 * 1_000_000
"""Cassandra gives prepended elements times mirrored at the beginning of 2010."""


@walker
def is_made_up(data: Bytes, cell: Int) -> bool:
    """Tell whether a cell is an element of a list that bears a made-up path."""
    if path_length(data, cell) != _PATH_BYTES:
        return False
    at = cell + CELL_HEADER_BYTES + np.int64(8)
    same = 0
    while same < _MARK.size and data[at + same] == _MARK[same]:
        same += 1
    return same == _MARK.size


@walker
def drop_explained(batch: Batch, order: Numbers, low: Int, high: Int, cells: Numbers, count: Int) -> Int:
    """Drop made-up elements whose real ones are known; returns how many winners are left.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell.
        count: How many.
    """
    kept = np.int64(0)
    for number in range(count):
        cell = cells[number]
        if is_made_up(batch.state, cell) and _is_explained(batch, order, low, high, cell):
            continue
        cells[kept] = cell
        kept += 1
    return kept


@walker
def explain_real(data: Bytes, row: Int, cells: Numbers, count: Int, explained: Flags) -> None:
    """Mark the winners that the made-up elements of one contribution show under their real paths."""
    cell = first_cell(data, row)
    for _ in range(cell_count(data, row)):
        if is_made_up(data, cell):
            for number in range(count):
                if _are_twins(data, cell, cells[number]):
                    explained[number] = True
        cell = next_cell(data, cell)


@walker
def changed_out_of_sight(
    batch: Batch,
    order: Numbers,
    low: Int,
    high: Int,
    cells: Numbers,
    count: Int,
    covered: Flags,
    read_us: Int,
    now_seconds: Int,
) -> bool:
    """Tell whether a list was changed, after its reading, by paths that its made-up elements don't have.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell.
        count: How many.
        covered: Which of them deletions cover.
        read_us: Time of the reading.
        now_seconds: The moment at which expiry is judged.
    """
    data = batch.state
    column = np.int64(-1)
    made_up = False
    changed = False
    for number in range(count):
        cell = cells[number]
        if cell_column(data, cell) != column:
            column = cell_column(data, cell)
            made_up = False
            changed = False
        if covered[number] or path_length(data, cell) != _PATH_BYTES:
            continue
        if is_made_up(data, cell):
            made_up = made_up or (
                is_live(data, cell, now_seconds) and not _is_explained(batch, order, low, high, cell)
            )
        elif cell_time(data, cell) > read_us:
            flags = cell_flags(data, cell)
            removed = flags & (CELL_TOMBSTONE | CELL_EXPIRING) == CELL_TOMBSTONE
            changed = changed or removed or _named_at_us(data, cell) < read_us
        if made_up and changed:
            return True
    return False


@walker
def _is_explained(batch: Batch, order: Numbers, low: Int, high: Int, made_up: Int) -> bool:
    if cell_flags(batch.state, made_up) & CELL_TOMBSTONE:
        return False
    for place in range(low, high):
        row = batch.row[order[place]]
        cell = first_cell(batch.state, row)
        for _ in range(cell_count(batch.state, row)):
            if _are_twins(batch.state, made_up, cell):
                return True
            cell = next_cell(batch.state, cell)
    return False


@walker
def _are_twins(data: Bytes, made_up: Int, cell: Int) -> bool:
    """Tell whether a real element is the one that a made-up one stands for."""
    flags = cell_flags(data, cell)
    if (
        not flags & CELL_PATH
        or cell_column(data, cell) != cell_column(data, made_up)
        or cell_time(data, cell) != cell_time(data, made_up)
        or is_made_up(data, cell)
    ):
        return False
    if flags & CELL_TOMBSTONE:
        return (flags & CELL_EXPIRING) != 0  # expired, and its value forgotten
    return (
        compare_bytes(
            data,
            made_up + CELL_HEADER_BYTES + path_length(data, made_up),
            value_length(data, made_up),
            data,
            cell + CELL_HEADER_BYTES + path_length(data, cell),
            value_length(data, cell),
        )
        == 0
    )


@walker
def _named_at_us(data: Bytes, cell: Int) -> Int:
    """Return when an element's path was given, in us: its UUID's time, mirrored back for prepended ones."""
    at = cell + CELL_HEADER_BYTES
    time = np.int64(0)
    for i in (6, 7, 4, 5, 0, 1, 2, 3):
        time = (time << np.int64(8)) | np.int64(data[at + i])
    time = ((time & np.int64(0x0FFFFFFFFFFFFFFF)) - _HUNDRED_NS_TO_1970) // np.int64(10)
    return np.int64(time if time >= _MIRROR_US else np.int64(2) * _MIRROR_US - time)
