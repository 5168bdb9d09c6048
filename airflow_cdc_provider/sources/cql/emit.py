"""Kernels that take values of any CQL type apart into the buffers of nested Arrow arrays.

A column's Arrow array mirrors its type program: each node has its own buffers, all inside one byte arena. A
first pass counts (``fill`` false): how many values each node gets and how many bytes of text. Then the arena
is laid out, and a second pass over the same input writes. ``layout`` holds per node, as places in the arena:

======= ==========================================================
column  meaning
======= ==========================================================
0       validity, one byte a value
1       offsets, int32, one more than values (text, list, set, map)
2       data: values of fixed size, or text
======= ==========================================================

``counts`` holds how many values a node has so far, ``sizes`` how many bytes of text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from airflow_cdc_provider.sources.cql.programs import (
    BIGINT,
    BLOB,
    BOOLEAN,
    CHILDREN,
    COUNTER,
    CUSTOM,
    DATE,
    DIMENSIONS,
    DOUBLE,
    EMPTY,
    FIRST_CHILD,
    FIXED_LENGTH,
    FLOAT,
    INT,
    LIST,
    MAP,
    MAX_DEPTH,
    OP,
    SMALLINT,
    TEXT,
    TIME,
    TIMESTAMP,
    TINYINT,
    TUPLE,
    UDT,
    VECTOR,
)
from airflow_cdc_provider.sources.cql.text import write_text
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_i64, read_signed, read_uvint

OK: Final = 0
BAD_VALUE: Final = -1
"""Bytes that are no value of their type."""
BAD_TIMESTAMP: Final = -2
"""A timestamp that microseconds in 64 bits can't hold."""
NULL_KEY: Final = -3
"""A map whose key is the empty value of a type that has no such value in the lake."""

_MAX_MILLISECONDS = ((1 << 63) - 1) // 1000


@njit(cache=True, nogil=True)
def emit(nodes, node, data, start, length, fill, arena, layout, counts, sizes):  # type: ignore[no-untyped-def]
    """Append one value, null if ``length`` is negative, to a node and all nodes under it.

    Returns:
        :data:`OK` or one of the errors.
    """
    # Open containers: op, node of the first part, place, end, index of the next part, number of parts.
    stack = np.empty((MAX_DEPTH, 6), np.int64)
    depth = 0
    node = np.int64(node)
    start = np.int64(start)
    length = np.int64(length)
    while True:
        op = nodes[node, OP]
        if op < LIST:
            status = _emit_scalar(nodes, node, data, start, length, fill, arena, layout, counts, sizes)
            if status < 0:
                return status
        else:
            if depth == MAX_DEPTH:
                return np.int64(BAD_VALUE)
            at, end, parts = _begin(nodes, node, data, start, length)
            if parts < 0:
                return np.int64(BAD_VALUE)
            open_container(nodes, node, length > 0, fill, arena, layout, counts)
            stack[depth, 0] = op
            stack[depth, 1] = nodes[node, FIRST_CHILD]
            stack[depth, 2] = at
            stack[depth, 3] = end
            stack[depth, 4] = 0
            stack[depth, 5] = parts
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


@njit(cache=True, nogil=True)
def is_null(nodes, node, length):  # type: ignore[no-untyped-def]
    """Tell whether a value is shown as null: it is one, or it is empty and its type has no empty value."""
    op = nodes[node, OP]
    return length < 0 or (length == 0 and op not in (TEXT, BLOB, CUSTOM))


@njit(cache=True, nogil=True)
def open_container(nodes, node, valid, fill, arena, layout, counts):  # type: ignore[no-untyped-def]
    """Begin a list, map or struct; its parts are appended to the nodes under it."""
    count = counts[node]
    counts[node] = count + 1
    if fill:
        arena[layout[node, 0] + count] = valid
        if nodes[node, OP] not in (TUPLE, UDT):
            _write_i32(arena, layout[node, 1] + 4 * count, counts[nodes[node, FIRST_CHILD]])


@njit(cache=True, nogil=True)
def close_offsets(nodes, arena, layout, counts, sizes):  # type: ignore[no-untyped-def]
    """Write the last offset of every node that has offsets, after all values."""
    for node in range(nodes.shape[0]):
        if layout[node, 1] >= 0:
            container = nodes[node, OP] >= LIST
            end = counts[nodes[node, FIRST_CHILD]] if container else sizes[node]
            _write_i32(arena, layout[node, 1] + 4 * counts[node], end)


@njit(cache=True, nogil=True)
def _begin(nodes, node, data, start, length):  # type: ignore[no-untyped-def]
    """Return the place of a container's first part, its end, and the number of parts (-1: malformed)."""
    op = nodes[node, OP]
    end = start + length
    if op in (TUPLE, UDT):
        # A null struct still gives each field a null.
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


@njit(cache=True, nogil=True)
def _emit_scalar(nodes, node, data, start, length, fill, arena, layout, counts, sizes):  # type: ignore[no-untyped-def]
    op = nodes[node, OP]
    count = counts[node]
    counts[node] = count + 1
    null = is_null(nodes, node, length)
    if fill:
        arena[layout[node, 0] + count] = not null
    at = layout[node, 2]
    end = start + length

    if op in (BOOLEAN, INT, DATE, FLOAT, BIGINT, TIME, DOUBLE, TIMESTAMP):
        width = 1 if op == BOOLEAN else 4 if op in (INT, DATE, FLOAT) else 8
        if not null and length != width:
            return np.int64(BAD_VALUE)
        if op == TIMESTAMP:
            value = np.int64(0) if null else read_i64(data, start)
            if value > _MAX_MILLISECONDS or value < -_MAX_MILLISECONDS:
                return np.int64(BAD_TIMESTAMP)
            if fill:
                _write_i64(arena, at + 8 * count, value * 1000)
        elif fill and not null:
            at += width * count
            for i in range(width):
                arena[at + width - 1 - i] = data[start + i]
            if op == DATE:
                arena[at + 3] ^= 0x80
            elif op == BOOLEAN:
                arena[at] = data[start] != 0
        return np.int64(OK)
    if op in (TINYINT, SMALLINT):
        if not null and length != (1 if op == TINYINT else 2):
            return np.int64(BAD_VALUE)
        if fill and not null:
            _write_i32(arena, at + 4 * count, read_signed(data, start, length))
        return np.int64(OK)
    if op == COUNTER:
        value = np.int64(0)
        if not null:
            valid, value = _counter(data, start, end)
            if not valid:
                return np.int64(BAD_VALUE)
        if fill:
            _write_i64(arena, at + 8 * count, value)
        return np.int64(OK)

    size = sizes[node]
    if fill:
        _write_i32(arena, layout[node, 1] + 4 * count, size)
    if null or length == 0 or op == EMPTY:
        return np.int64(OK)
    if op in (TEXT, BLOB, CUSTOM):
        if fill:
            arena[at + size : at + size + length] = data[start:end]
        sizes[node] = size + length
        return np.int64(OK)
    # While counting, the arena is empty and nothing is written.
    position = write_text(op, data, start, end, arena, at + size)
    if position < 0:
        return np.int64(BAD_VALUE)
    sizes[node] = position - at
    return np.int64(OK)


@njit(cache=True, nogil=True)
def _counter(data, start, end):  # type: ignore[no-untyped-def]
    """Return whether a counter is well-formed, and its total: a plain number, or a context of shards."""
    if end - start == 8:
        return True, read_i64(data, start)
    if end - start < 2:
        return False, np.int64(0)
    at = start + 2 + 2 * abs(read_signed(data, start, 2))
    if at > end or (end - at) % 32:
        return False, np.int64(0)
    total = np.int64(0)
    while at < end:
        total += read_i64(data, at + 24)
        at += 32
    return True, total


@njit(cache=True, nogil=True)
def _write_i32(arena, at, value):  # type: ignore[no-untyped-def]
    for i in range(4):
        arena[at + i] = (value >> (8 * i)) & 0xFF


@njit(cache=True, nogil=True)
def _write_i64(arena, at, value):  # type: ignore[no-untyped-def]
    for i in range(8):
        arena[at + i] = (value >> (8 * i)) & 0xFF
