"""The kernels that locate the parts of nested values, for each node of a type program.

A column's Arrow array mirrors its type program, so each node gets a list of spans, one per value: for a
scalar, the offset of the value; for a list, set or map, the number of preceding parts (the offset in its
child node); and a length that is negative for null. Then :mod:`.scalars` decodes the scalars.

A first pass counts, a second pass over the same values writes, because the lists' lengths must be known.

The elements of sets and maps are in the element type's order, those of lists in the order of their timeuuid,
the fields of a UDT in the order of their number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
)
from airflow_cdc_provider.formats.byte_kernels import load_little16, load_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cql.comparable import encode_value
from airflow_cdc_provider.sources.cql.programs import (
    BLOB,
    CHILDREN,
    CUSTOM,
    DATE,
    DIMENSIONS,
    FIRST_CHILD,
    FIXED_LENGTH,
    INET,
    LIST,
    MAP,
    MAX_DEPTH,
    OP,
    SET,
    TEXT,
    TIME,
    TUPLE,
    UDT,
    VECTOR,
    Nodes,
)
from airflow_cdc_provider.sources.cql.scratch import Scratch
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_uvint

OK: Final = 0
BAD_VALUE: Final = -1
"""Bytes that are not a valid value of their type."""
NULL_KEY: Final = -2
"""A map whose key is the empty value of a type without empty values in the lake."""
NO_SPACE: Final = -3
"""The arrays for sorting are too small for a row's elements."""


class Parts(NamedTuple):
    """The lists of spans, concatenated.

    ``fill``      whether to write, or only to count
    ``first``     per node, start of its list in the following two
    ``starts``    offsets
    ``lengths``   lengths
    ``counts``    per node, number of spans so far
    """

    fill: bool
    first: Ints
    starts: Ints
    lengths: Ints
    counts: Ints


class Sorting(NamedTuple):
    """Arrays for sorting a row's elements.

    ``cells``     offsets of the elements' cells
    ``order``     scratch: numbers of cells, while they are sorted
    ``spare``     scratch: the same
    ``offsets``   one more: offset of each cell's encoded path
    ``encoded``   paths in byte-comparable form
    """

    cells: Ints
    order: Ints
    spare: Ints
    offsets: Ints
    encoded: Bytes


def new_sorting(most: int, path_bytes: int) -> Sorting:
    """Allocate arrays for sorting.

    Args:
        most: Maximum number of a row's elements.
        path_bytes: Capacity for their encoded paths, in bytes.

    Returns:
        The arrays.
    """
    return Sorting(
        cells=np.empty(most, np.int64),
        order=np.empty(most, np.int64),
        spare=np.empty(most, np.int64),
        offsets=np.empty(most + 1, np.int64),
        encoded=np.empty(path_bytes, np.uint8),
    )


@walker
def locate_parts(
    nodes: Nodes, root: Int, data: Bytes, starts: Ints, lengths: Ints, scratch: Scratch, parts: Parts
) -> tuple[Int, Int]:
    """Locate the parts of a column's values, for a column with one cell per row.

    Args:
        nodes: Type program.
        root: The column's node.
        data: Bytes with the values.
        starts: Offset of each value.
        lengths: Their lengths, -1 for null.
        scratch: Scratch arrays.
        parts: Receives the spans of the root and its descendants.

    Returns:
        :data:`OK` or one of the errors, and the row at which it occurred.
    """
    for row in range(len(starts)):
        status = _locate(nodes, root, data, starts[row], lengths[row], scratch, parts)
        if status != OK:
            return status, row
    return np.int64(OK), np.int64(-1)


@walker
def locate_elements(
    nodes: Nodes,
    root: Int,
    order: Int,
    state: Bytes,
    starts: Ints,
    lengths: Ints,
    sorting: Sorting,
    scratch: Scratch,
    parts: Parts,
) -> tuple[Int, Int]:
    """Locate the parts of a column's values, for a column with a cell per element.

    Args:
        nodes: Type program.
        root: The column's node.
        order: Node of the type by which to sort paths; ignored for a UDT.
        state: Cell rows.
        starts: Offset of the first live cell of each row.
        lengths: Length up to the end of the last live cell, -1 for null.
        sorting: Arrays for sorting; :data:`NO_SPACE` if ``encoded`` is too small.
        scratch: Scratch arrays.
        parts: Receives the spans of the root and its descendants.

    Returns:
        As :func:`locate_parts`.
    """
    shape = nodes[root, OP]
    # Paths of these types are already in order, as cells are sorted by the paths' bytes.
    sort = shape != UDT and nodes[order, OP] not in (TEXT, BLOB, INET, DATE, TIME)
    for row in range(len(starts)):
        _append_container(nodes, root, lengths[row] >= 0, parts)
        count, status = _live_cells(state, starts[row], starts[row] + lengths[row], sorting.cells)
        if status == OK and shape == UDT:
            status = _locate_fields(nodes, root, state, sorting.cells, count, scratch, parts)
        elif status == OK:
            if sort and count > 1:
                status = _sort(nodes, order, state, count, sorting, scratch)
            if status == OK:
                status = _locate_entries(nodes, root, state, sorting.cells, count, scratch, parts)
        if status != OK:
            return status, row
    return np.int64(OK), np.int64(-1)


@walker
def is_null(nodes: Nodes, node: Int, length: Int) -> bool:
    """Return whether a value is null in the lake: it is null, or empty and of a type without empty values."""
    return length < 0 or (length == 0 and nodes[node, OP] not in (TEXT, BLOB, CUSTOM))


@walker
def _append(parts: Parts, node: Int, start: Int, length: Int) -> None:
    count = parts.counts[node]
    parts.counts[node] = count + 1
    if parts.fill:
        parts.starts[parts.first[node] + count] = start
        parts.lengths[parts.first[node] + count] = length


@walker
def _append_container(nodes: Nodes, node: Int, valid: Int, parts: Parts) -> None:
    _append(parts, node, parts.counts[nodes[node, FIRST_CHILD]], np.int64(0) if valid else np.int64(-1))


@walker
def _locate(
    nodes: Nodes, node: Int, data: Bytes, start: Int, length: Int, scratch: Scratch, parts: Parts
) -> Int:
    """Append one value, null if ``length`` is negative, to a node and its descendants."""
    # Open containers: op, node of the first part, offset, end, index of the next part, number of parts.
    stack = scratch.stack
    depth = 0
    node = np.int64(node)
    start = np.int64(start)
    length = np.int64(length)
    while True:
        if nodes[node, OP] < LIST:
            _append(parts, node, start, length)
        else:
            if depth == MAX_DEPTH:
                return np.int64(BAD_VALUE)
            at, end, count = _open(nodes, node, data, start, length)
            if count < 0:
                return np.int64(BAD_VALUE)
            _append_container(nodes, node, length > 0, parts)
            stack[depth, 0] = nodes[node, OP]
            stack[depth, 1] = nodes[node, FIRST_CHILD]
            stack[depth, 2] = at
            stack[depth, 3] = end
            stack[depth, 4] = 0
            stack[depth, 5] = count
            depth += 1

        while depth > 0 and stack[depth - 1, 4] == stack[depth - 1, 5]:
            depth -= 1
        if depth == 0:
            return np.int64(OK)

        top = stack[depth - 1]
        node = top[1]
        if top[0] == MAP:
            node += top[4] % 2
        elif top[0] in (TUPLE, UDT):
            node += top[4]
        if top[0] in (TUPLE, UDT) and top[2] >= top[3]:
            start, length, after = top[2], np.int64(-1), top[2]
        elif top[0] != VECTOR:
            start, length, after = next_part(data, top[2], top[3])
        elif nodes[node, FIXED_LENGTH] >= 0:
            start = top[2]
            length = np.int64(nodes[node, FIXED_LENGTH])
            after = start + length
        else:
            length, start = read_uvint(data, top[2], top[3])
            after = start + length if start >= 0 and length >= 0 else np.int64(-1)
        if after < 0 or after > top[3]:
            return np.int64(BAD_VALUE)
        if top[0] == MAP and top[4] % 2 == 0 and is_null(nodes, node, length):
            return np.int64(NULL_KEY)
        top[2] = after
        top[4] += 1


@walker
def _open(nodes: Nodes, node: Int, data: Bytes, start: Int, length: Int) -> tuple[Int, Int, Int]:
    """Return the offset of a container's first part, its end, and the number of parts (-1: malformed)."""
    op = nodes[node, OP]
    end = start + length
    if op in (TUPLE, UDT):
        # A null struct still has a null in each field.
        return start, end if length > 0 else start, np.int64(nodes[node, CHILDREN])
    if length <= 0:
        return start, start, np.int64(0)
    if op == VECTOR:
        return start, end, np.int64(nodes[node, DIMENSIONS])
    if length < 4:
        return start, start, np.int64(-1)
    count = read_i32(data, start)
    if count < 0:
        return start, start, np.int64(-1)
    return np.int64(start + 4), end, np.int64(2 * count if op == MAP else count)


@walker
def _live_cells(state: Bytes, at: Int, end: Int, cells: Ints) -> tuple[Int, Int]:
    """List the live cells of a range, which must be of one column."""
    column = load_little16(state, at) if at < end else np.int64(0)
    count = np.int64(0)
    while at < end:
        flags = state[at + 2]
        if load_little16(state, at) != column:
            return count, np.int64(BAD_VALUE)
        if flags & CELL_PATH and not flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
            cells[count] = at
            count += 1
        at += CELL_HEADER_BYTES + load_little32(state, at + 24) + load_little32(state, at + 28)
    return count, np.int64(OK)


@walker
def _path(state: Bytes, cell: Int) -> tuple[Int, Int]:
    """Return the offset of a cell's path, and its length."""
    return cell + CELL_HEADER_BYTES, load_little32(state, cell + 24)


@walker
def _value(state: Bytes, cell: Int) -> tuple[Int, Int]:
    """Return the offset of a cell's value, and its length."""
    return cell + CELL_HEADER_BYTES + load_little32(state, cell + 24), load_little32(state, cell + 28)


@walker
def _locate_fields(
    nodes: Nodes, root: Int, state: Bytes, cells: Ints, count: Int, scratch: Scratch, parts: Parts
) -> Int:
    """Append the fields of a UDT; cells are sorted by field."""
    number = 0
    for field in range(nodes[root, CHILDREN]):
        start, length = np.int64(0), np.int64(-1)
        while number < count and _field_number(state, cells[number]) < field:
            number += 1
        if number < count and _field_number(state, cells[number]) == field:
            start, length = _value(state, cells[number])
        node = np.int64(nodes[root, FIRST_CHILD]) + field
        status = _locate(nodes, node, state, start, length, scratch, parts)
        if status != OK:
            return status
    return np.int64(OK)


@walker
def _field_number(state: Bytes, cell: Int) -> Int:
    """Return the field number of a UDT's cell; that of no field if the path has the wrong length."""
    at, length = _path(state, cell)
    return (np.int64(state[at]) << 8) | np.int64(state[at + 1]) if length == 2 else np.int64(1 << 20)


@walker
def _locate_entries(
    nodes: Nodes, root: Int, state: Bytes, cells: Ints, count: Int, scratch: Scratch, parts: Parts
) -> Int:
    """Append the elements of a list, set or map."""
    shape = nodes[root, OP]
    node = np.int64(nodes[root, FIRST_CHILD])
    for number in range(count):
        if shape != LIST:
            start, length = _path(state, cells[number])
            if shape == MAP and is_null(nodes, node, length):
                return np.int64(NULL_KEY)
            status = _locate(nodes, node, state, start, length, scratch, parts)
            if status != OK:
                return status
        if shape != SET:
            start, length = _value(state, cells[number])
            item = node + 1 if shape == MAP else node
            status = _locate(nodes, item, state, start, length, scratch, parts)
            if status != OK:
                return status
    return np.int64(OK)


@walker
def _sort(nodes: Nodes, node: Int, state: Bytes, count: Int, sorting: Sorting, scratch: Scratch) -> Int:
    """Sort cells by path in the order of a type."""
    cells, offsets, encoded = sorting.cells, sorting.offsets, sorting.encoded
    order, other = sorting.order, sorting.spare
    offsets[0] = 0
    for number in range(count):
        start, length = _path(state, cells[number])
        end = encode_value(nodes, node, state, start, length, scratch, encoded, offsets[number], np.int64(0))
        if end < 0:
            return np.int64(BAD_VALUE)
        if end > len(encoded):
            return np.int64(NO_SPACE)
        offsets[number + 1] = end
        order[number] = number

    # A bottom-up merge sort: elements are often in order already, and then it only compares neighbors.
    width = 1
    while width < count:
        for low in range(0, count, 2 * width):
            middle = min(low + width, count)
            high = min(low + 2 * width, count)
            left, right = low, middle
            for index in range(low, high):
                if right >= high or (
                    left < middle and not _less(encoded, offsets, order[right], order[left])
                ):
                    other[index] = order[left]
                    left += 1
                else:
                    other[index] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    for number in range(count):
        other[number] = cells[order[number]]
    for number in range(count):
        cells[number] = other[number]
    return np.int64(OK)


@walker
def _less(encoded: Bytes, offsets: Ints, a: Int, b: Int) -> bool:
    left, right = offsets[a], offsets[b]
    while left < offsets[a + 1] and right < offsets[b + 1]:
        if encoded[left] != encoded[right]:
            return bool(encoded[left] < encoded[right])
        left += 1
        right += 1
    return False
