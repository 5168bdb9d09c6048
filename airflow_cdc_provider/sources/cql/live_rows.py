"""The kernel that walks live rows and hands each column's value to :mod:`.emit`.

Input are partition keys as Cassandra writes them (one column: its bytes; several: int16 length, bytes, a
zero byte each) and cell rows (:mod:`airflow_cdc_provider.changes.cells`). A column that a row has no live
cell for is null. The elements of sets and maps come in the element type's own order, those of lists by their
timeuuid, the fields of a UDT by their number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    FORMAT,
    ROW_HEADER_BYTES,
)
from airflow_cdc_provider.sources.cql.comparable import encode_value
from airflow_cdc_provider.sources.cql.emit import BAD_VALUE, NULL_KEY, OK, emit, is_null, open_container
from airflow_cdc_provider.sources.cql.programs import (
    BLOB,
    CHILDREN,
    DATE,
    FIRST_CHILD,
    INET,
    LIST,
    MAP,
    OP,
    SET,
    TEXT,
    TIME,
    UDT,
)

BAD_KEY: Final = -4
"""A partition key that doesn't have the components of its columns."""
BAD_ROW: Final = -5
"""Bytes that are no cell row."""

_SIMPLE: Final = -1


class RowProgram(NamedTuple):
    """A table compiled for the walk. Arrays of int32; columns are numbered as in the schema.

    ``nodes``          type program
    ``partition``      root of each partition key column
    ``clustering``     root of each clustering column
    ``slot_of_id``     column id -> place in the following, -1 for ids that are shown no more
    ``roots``          root of each static and regular column
    ``statics``        whether it is static
    ``shapes``         op of a column with a cell per element, else -1
    ``timeuuid``       a node of type timeuuid, for the order of lists
    """

    nodes: npt.NDArray[np.int32]
    partition: npt.NDArray[np.int32]
    clustering: npt.NDArray[np.int32]
    slot_of_id: npt.NDArray[np.int32]
    roots: npt.NDArray[np.int32]
    statics: npt.NDArray[np.int32]
    shapes: npt.NDArray[np.int32]
    timeuuid: int


class Output(NamedTuple):
    """Where values go: see :mod:`.emit`."""

    fill: bool
    arena: npt.NDArray[np.uint8]
    layout: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


class LiveRows(NamedTuple):
    """Keys, rows and static rows as bytes with offsets; the last two with a flag that is False for null."""

    key: npt.NDArray[np.uint8]
    key_at: npt.NDArray[np.int64]
    state: npt.NDArray[np.uint8]
    state_at: npt.NDArray[np.int64]
    has_state: npt.NDArray[np.bool_]
    static: npt.NDArray[np.uint8]
    static_at: npt.NDArray[np.int64]
    has_static: npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def walk_rows(program, rows, output):  # type: ignore[no-untyped-def]
    """Emit every row.

    Args:
        program: RowProgram.
        rows: LiveRows.
        output: Output; its counts must be zero.

    Returns:
        A status (:mod:`.emit`, or one of this module's) and the row at which it occurred.
    """
    seen = np.empty(program.roots.size, np.bool_)
    cells = np.empty(64, np.int64)
    for row in range(rows.key_at.size - 1):
        status = _walk_key(program, rows.key, rows.key_at[row], rows.key_at[row + 1], output)
        if status < 0:
            return status, row
        seen[:] = False
        if rows.has_state[row]:
            begin, end = rows.state_at[row], rows.state_at[row + 1]
            status = _walk_clustering(program, rows.state, begin, end, output)
            if status == OK:
                status, cells = _walk_cells(program, rows.state, begin, end, 0, seen, cells, output)
        else:
            for root in program.clustering:
                status = _emit(program, root, rows.state, 0, -1, output)
        if status < 0:
            return status, row
        if rows.has_static[row]:
            begin, end = rows.static_at[row], rows.static_at[row + 1]
            status, cells = _walk_cells(program, rows.static, begin, end, 1, seen, cells, output)
            if status < 0:
                return status, row
        for slot in range(seen.size):
            if not seen[slot]:
                status = _emit(program, program.roots[slot], rows.state, 0, -1, output)
    return np.int64(OK), np.int64(-1)


@njit(cache=True, nogil=True)
def _emit(program, node, data, start, length, output):  # type: ignore[no-untyped-def]
    return emit(
        program.nodes,
        node,
        data,
        start,
        length,
        output.fill,
        output.arena,
        output.layout,
        output.counts,
        output.sizes,
    )


@njit(cache=True, nogil=True)
def _walk_key(program, key, begin, end, output):  # type: ignore[no-untyped-def]
    columns = program.partition.size
    if columns == 1:
        return _emit(program, program.partition[0], key, begin, end - begin, output)
    at = begin
    for column in range(columns):
        if at + 2 > end:
            return np.int64(BAD_KEY)
        length = (np.int64(key[at]) << 8) | np.int64(key[at + 1])
        if at + 3 + length > end:
            return np.int64(BAD_KEY)
        status = _emit(program, program.partition[column], key, at + 2, length, output)
        if status < 0:
            return status
        at += 3 + length
    return np.int64(OK)


@njit(cache=True, nogil=True)
def _little_u32(data, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[at])
        | (np.int64(data[at + 1]) << 8)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 24)
    )


@njit(cache=True, nogil=True)
def _clustering_end(state, begin, end):  # type: ignore[no-untyped-def]
    """Return where a cell row's cells begin, or -1."""
    if end - begin < ROW_HEADER_BYTES or state[begin] != FORMAT:
        return np.int64(-1)
    at = begin + ROW_HEADER_BYTES + _little_u32(state, begin + 40)
    return at if at <= end else np.int64(-1)


@njit(cache=True, nogil=True)
def _walk_clustering(program, state, begin, end, output):  # type: ignore[no-untyped-def]
    stop = _clustering_end(state, begin, end)
    if stop < 0:
        return np.int64(BAD_ROW)
    at = begin + ROW_HEADER_BYTES
    for root in program.clustering:
        if at + 4 > stop:
            return np.int64(BAD_ROW)
        length = _little_u32(state, at)
        at += 4
        if length >= 0x80000000:
            length = np.int64(-1)
        if length > stop - at:
            return np.int64(BAD_ROW)
        status = _emit(program, root, state, at, length, output)
        if status < 0:
            return status
        at += max(length, 0)
    return np.int64(OK)


@njit(cache=True, nogil=True)
def _walk_cells(program, state, begin, end, static, seen, cells, output):  # type: ignore[no-untyped-def]
    """Emit the live cells of a cell row; returns a status, and ``cells``, the room for elements."""
    at = _clustering_end(state, begin, end)
    if at < 0:
        return np.int64(BAD_ROW), cells
    total = _little_u32(state, begin + 44)
    slot = np.int64(-1)
    found = 0
    for number in range(total + 1):
        column = np.int64(-1)
        if number < total:
            if at + CELL_HEADER_BYTES > end:
                return np.int64(BAD_ROW), cells
            column = np.int64(state[at]) | (np.int64(state[at + 1]) << 8)
        here = np.int64(-1)
        if 0 <= column < program.slot_of_id.size:
            here = np.int64(program.slot_of_id[column])
        if here >= 0 and program.statics[here] != static:
            here = np.int64(-1)
        if here != slot:
            if slot >= 0 and found > 0:
                status = _emit_elements(program, slot, state, cells, found, output)
                if status < 0:
                    return status, cells
                seen[slot] = True
            slot = here
            found = 0
        if number == total:
            break
        flags = state[at + 2]
        path = _little_u32(state, at + 24)
        value = _little_u32(state, at + 28)
        if path + value > end - at - CELL_HEADER_BYTES:
            return np.int64(BAD_ROW), cells
        if slot >= 0 and not flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
            if program.shapes[slot] == _SIMPLE:
                if seen[slot]:
                    return np.int64(BAD_ROW), cells
                root = program.roots[slot]
                status = _emit(program, root, state, at + CELL_HEADER_BYTES + path, value, output)
                if status < 0:
                    return status, cells
                seen[slot] = True
            elif flags & CELL_PATH:
                if found == cells.size:
                    larger = np.empty(2 * cells.size, np.int64)
                    larger[:found] = cells
                    cells = larger
                cells[found] = at
                found += 1
        at += CELL_HEADER_BYTES + path + value
    return np.int64(OK), cells


@njit(cache=True, nogil=True)
def _emit_elements(program, slot, state, cells, count, output):  # type: ignore[no-untyped-def]
    """Emit a column that has a cell per element; ``cells`` holds the places of ``count`` cells, by path."""
    nodes = program.nodes
    root = program.roots[slot]
    shape = program.shapes[slot]
    first = nodes[root, FIRST_CHILD]
    open_container(nodes, root, True, output.fill, output.arena, output.layout, output.counts)
    if shape == UDT:
        number = 0
        for field in range(nodes[root, CHILDREN]):
            start, length = np.int64(0), np.int64(-1)
            while number < count and _field_number(state, cells[number]) < field:
                number += 1
            if number < count and _field_number(state, cells[number]) == field:
                start, length = _value(state, cells[number])
            status = _emit(program, first + field, state, start, length, output)
            if status < 0:
                return status
        return np.int64(OK)

    order_node = np.int64(program.timeuuid) if shape == LIST else np.int64(first)
    if nodes[order_node, OP] not in (TEXT, BLOB, INET, DATE, TIME):
        status = _sort(nodes, order_node, state, cells, count)
        if status < 0:
            return status
    for number in range(count):
        cell = cells[number]
        if shape in (SET, MAP):
            path = _little_u32(state, cell + 24)
            if shape == MAP and is_null(nodes, first, path):
                return np.int64(NULL_KEY)
            status = _emit(program, first, state, cell + CELL_HEADER_BYTES, path, output)
            if status < 0:
                return status
        if shape in (LIST, MAP):
            start, length = _value(state, cell)
            node = first + 1 if shape == MAP else first
            status = _emit(program, node, state, start, length, output)
            if status < 0:
                return status
    return np.int64(OK)


@njit(cache=True, nogil=True)
def _value(state, cell):  # type: ignore[no-untyped-def]
    start = cell + CELL_HEADER_BYTES + _little_u32(state, cell + 24)
    return np.int64(start), _little_u32(state, cell + 28)


@njit(cache=True, nogil=True)
def _field_number(state, cell):  # type: ignore[no-untyped-def]
    """Return the field that a UDT's cell is for; a path of a wrong length is for none."""
    if _little_u32(state, cell + 24) != 2:
        return np.int64(1 << 20)
    at = cell + CELL_HEADER_BYTES
    return (np.int64(state[at]) << 8) | np.int64(state[at + 1])


@njit(cache=True, nogil=True)
def _sort(nodes, node, state, cells, count):  # type: ignore[no-untyped-def]
    """Sort cells by their path in the order of a type."""
    encoded = np.empty(32 * count + 64, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    number = 0
    while number < count:
        path = _little_u32(state, cells[number] + 24)
        begin = cells[number] + CELL_HEADER_BYTES
        end = encode_value(nodes, node, state, begin, path, encoded, offsets[number], 0)
        if end < 0:
            return np.int64(BAD_VALUE)
        if end > encoded.size:
            larger = np.empty(2 * end, np.uint8)
            larger[: offsets[number]] = encoded[: offsets[number]]
            encoded = larger
            continue
        number += 1
        offsets[number] = end

    # A merge sort, bottom up: elements are often in order already, and then it only compares neighbours.
    order = np.arange(count)
    other = np.empty(count, np.int64)
    width = 1
    while width < count:
        for low in range(0, count, 2 * width):
            middle = min(low + width, count)
            high = min(low + 2 * width, count)
            left, right = low, middle
            for place in range(low, high):
                if right >= high or (
                    left < middle and not _less(encoded, offsets, order[right], order[left])
                ):
                    other[place] = order[left]
                    left += 1
                else:
                    other[place] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    places = cells[:count].copy()
    for number in range(count):
        cells[number] = places[order[number]]
    return np.int64(OK)


@njit(cache=True, nogil=True)
def _less(encoded, offsets, a, b):  # type: ignore[no-untyped-def]
    left, right = offsets[a], offsets[b]
    while left < offsets[a + 1] and right < offsets[b + 1]:
        if encoded[left] != encoded[right]:
            return encoded[left] < encoded[right]
        left += 1
        right += 1
    return False
