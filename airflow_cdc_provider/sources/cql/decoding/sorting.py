"""Sort the cells of a cell row in its defined order: by column, complex deletion first, then by path.

Updates list cells by column name and by the order of the collection's own type (signed numbers, times), so
cells seldom need sorting. It is a merge sort, because collections can be large.
"""

from __future__ import annotations

from airflow_cdc_provider.changes.cells import CELL_COMPLEX_DELETION, CELL_HEADER_BYTES
from airflow_cdc_provider.formats.byte_kernels import compare, copy, load_little16, load_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cql.decoding.sink import Sink
from airflow_cdc_provider.sources.cql.reasons import DUPLICATE_CELL, NO_SPACE


@walker
def compare_cells(states: Bytes, a: Int, b: Int) -> Int:
    """Compare two cells by their offsets: negative, 0 for the same column and path, or positive."""
    difference = load_little16(states, a) - load_little16(states, b)
    if difference != 0:
        return difference
    a_first = states[a + 2] & CELL_COMPLEX_DELETION
    b_first = states[b + 2] & CELL_COMPLEX_DELETION
    if a_first != b_first:
        return -1 if a_first else 1
    return compare(
        states,
        a + CELL_HEADER_BYTES,
        load_little32(states, a + 24),
        states,
        b + CELL_HEADER_BYTES,
        load_little32(states, b + 24),
    )


@walker
def order_cells(sink: Sink, begin: Int, end: Int, count: Int) -> Int:
    """Sort ``count`` cells that fill ``states`` from ``begin`` to ``end``.

    Returns:
        0, or a negative reason: two cells have the same column and path, or the scratch arrays are too short.
    """
    states, cells, spare = sink.states, sink.cells, sink.spare
    if count > len(cells) or end - begin > len(spare):
        return -NO_SPACE
    at = begin
    for i in range(count):
        cells[i, 0] = at
        at += CELL_HEADER_BYTES + load_little32(states, at + 24) + load_little32(states, at + 28)
    line = _merge_sort(states, cells, count)
    after = 0
    for i in range(count):
        cell = cells[i, line]
        if i > 0 and compare_cells(states, cells[i - 1, line], cell) == 0:
            return -DUPLICATE_CELL
        length = CELL_HEADER_BYTES + load_little32(states, cell + 24) + load_little32(states, cell + 28)
        after = copy(states, cell, length, spare, after)
    copy(spare, 0, after, states, begin)
    return 0


@walker
def _merge_sort(states: Bytes, cells: Ints, count: Int) -> Int:
    """Sort the offsets in line 0 of ``cells``, bottom up; return the line with the sorted offsets."""
    line = 0
    width = 1
    while width < count:
        for start in range(0, count, 2 * width):
            middle = min(start + width, count)
            stop = min(start + 2 * width, count)
            left, right = start, middle
            for i in range(start, stop):
                if left < middle and (
                    right >= stop or compare_cells(states, cells[left, line], cells[right, line]) <= 0
                ):
                    cells[i, 1 - line] = cells[left, line]
                    left += 1
                else:
                    cells[i, 1 - line] = cells[right, line]
                    right += 1
        line = 1 - line
        width *= 2
    return line
