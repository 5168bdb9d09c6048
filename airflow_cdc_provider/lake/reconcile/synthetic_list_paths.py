"""List elements with synthetic paths, because a SELECT returned them, next to elements from the log.

Cassandra identifies each element of a list by a time UUID that no query returns. A snapshot generates paths,
which carry a mark (:data:`~airflow_cdc_provider.changes.cells.SYNTHETIC_PATH_MARK`); write times and values
of the elements are the real ones. So an element can occur twice, under its real path and under a synthetic
one:

- if the log has an element of the same write time and value as a synthetic one, they are the same element,
  also if it changed since: the synthetic one is dropped;
- an element that a reading returned under a synthetic path confirms the real one of the same write time and
  value;
- a later change that refers to the real path doesn't find an element with a synthetic path. If a list was
  changed so after the reading, by a removal or by index, the row is unresolved.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    SYNTHETIC_PATH_MARK,
)
from airflow_cdc_provider.formats.byte_kernels import compare
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    cell_column,
    cell_count,
    cell_flags,
    cell_time,
    first_cell,
    is_live,
    next_cell,
    path_length,
    value_length,
)
from airflow_cdc_provider.lake.reconcile.shapes import Batch

_PATH_BYTES: Final = 16
_MARK: Final = np.frombuffer(SYNTHETIC_PATH_MARK, np.uint8)
_HUNDRED_NS_TO_1970: Final = 12_219_292_800 * 10_000_000
_MIRROR_US: Final = 1_262_304_000 * 1_000_000
"""Cassandra gives prepended elements times mirrored at the beginning of 2010."""


@walker
def is_synthetic(data: Bytes, cell: Int) -> bool:
    """Return whether a cell is a list element with a synthetic path."""
    if path_length(data, cell) != _PATH_BYTES:
        return False
    at = cell + CELL_HEADER_BYTES + np.int64(8)
    same = 0
    while same < _MARK.size and data[at + same] == _MARK[same]:
        same += 1
    return same == _MARK.size


@walker
def drop_confirmed(batch: Batch, order: Ints, low: Int, high: Int, cells: Ints, count: Int) -> Int:
    """Drop synthetic elements whose real ones are known.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell.
        count: Number of winners.

    Returns:
        The number of remaining winners.
    """
    kept = np.int64(0)
    for number in range(count):
        cell = cells[number]
        if is_synthetic(batch.state, cell) and _is_confirmed(batch, order, low, high, cell):
            continue
        cells[kept] = cell
        kept += 1
    return kept


@walker
def confirm_real(data: Bytes, row: Int, cells: Ints, count: Int, confirmed: Flags) -> None:
    """Mark the winners that the synthetic elements of one contribution confirm under their real paths."""
    cell = first_cell(data, row)
    for _ in range(cell_count(data, row)):
        if is_synthetic(data, cell):
            for number in range(count):
                if _is_same_element(data, cell, cells[number]):
                    confirmed[number] = True
        cell = next_cell(data, cell)


@walker
def changed_by_real_paths(
    batch: Batch,
    order: Ints,
    low: Int,
    high: Int,
    cells: Ints,
    count: Int,
    covered: Flags,
    read_us: Int,
    now_seconds: Int,
) -> bool:
    """Return whether a list with synthetic elements was changed by real paths after its reading.

    Args:
        batch: The contributions.
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        cells: The winner of each cell.
        count: Number of winners.
        covered: Which of them deletions cover.
        read_us: Time of the reading.
        now_seconds: Epoch second at which expiry is judged.
    """
    data = batch.state
    column = np.int64(-1)
    synthetic = False
    changed = False
    for number in range(count):
        cell = cells[number]
        if cell_column(data, cell) != column:
            column = cell_column(data, cell)
            synthetic = False
            changed = False
        if covered[number] or path_length(data, cell) != _PATH_BYTES:
            continue
        if is_synthetic(data, cell):
            synthetic = synthetic or (
                is_live(data, cell, now_seconds) and not _is_confirmed(batch, order, low, high, cell)
            )
        elif cell_time(data, cell) > read_us:
            flags = cell_flags(data, cell)
            removed = flags & (CELL_TOMBSTONE | CELL_EXPIRING) == CELL_TOMBSTONE
            changed = changed or removed or _path_time_us(data, cell) < read_us
        if synthetic and changed:
            return True
    return False


@walker
def _is_confirmed(batch: Batch, order: Ints, low: Int, high: Int, synthetic: Int) -> bool:
    if cell_flags(batch.state, synthetic) & CELL_TOMBSTONE:
        return False
    for index in range(low, high):
        row = batch.row[order[index]]
        cell = first_cell(batch.state, row)
        for _ in range(cell_count(batch.state, row)):
            if _is_same_element(batch.state, synthetic, cell):
                return True
            cell = next_cell(batch.state, cell)
    return False


@walker
def _is_same_element(data: Bytes, synthetic: Int, cell: Int) -> bool:
    """Return whether a real and a synthetic element are the same element."""
    flags = cell_flags(data, cell)
    if (
        not flags & CELL_PATH
        or cell_column(data, cell) != cell_column(data, synthetic)
        or cell_time(data, cell) != cell_time(data, synthetic)
        or is_synthetic(data, cell)
    ):
        return False
    if flags & CELL_TOMBSTONE:
        return (flags & CELL_EXPIRING) != 0  # expired, and its value was dropped
    return (
        compare(
            data,
            synthetic + CELL_HEADER_BYTES + path_length(data, synthetic),
            value_length(data, synthetic),
            data,
            cell + CELL_HEADER_BYTES + path_length(data, cell),
            value_length(data, cell),
        )
        == 0
    )


@walker
def _path_time_us(data: Bytes, cell: Int) -> Int:
    """Return when an element's path was generated, in us: its UUID's time, mirrored back if prepended."""
    at = cell + CELL_HEADER_BYTES
    time = np.int64(0)
    for i in (6, 7, 4, 5, 0, 1, 2, 3):
        time = (time << np.int64(8)) | np.int64(data[at + i])
    time = ((time & np.int64(0x0FFFFFFFFFFFFFFF)) - _HUNDRED_NS_TO_1970) // np.int64(10)
    return np.int64(time if time >= _MIRROR_US else np.int64(2) * _MIRROR_US - time)
