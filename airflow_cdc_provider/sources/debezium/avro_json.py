"""A kernel that converts Avro's binary encoding to JSON according to a writer's schema.

Layout (Avro 1.12, "Binary encoding")::

    int, long       zigzag varint            float, double   4, 8 bytes, little-endian
    boolean         one byte, 0 or 1         fixed           its bytes
    bytes, string   length (long), bytes     enum            index of the symbol (int)
    record          its fields in order      union           index of the branch (long), value
    array, map      blocks: count (long), items; a negative count is followed by the block's size in
                    bytes; a block of 0 ends it

Guarantees: no read outside a message and no write outside the output, for any input. A message that is too
short or too long, or doesn't match its schema, is *broken* and yields no output. The JSON has the format of
Kafka's JsonConverter: bytes in base64, NaN and the infinities as text, maps with non-string keys as pairs.
Readers of the JSON must check that strings are UTF-8.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.base64_text import write_quoted_base64
from airflow_cdc_provider.formats.byte_kernels import copy, load_little32, load_little64
from airflow_cdc_provider.formats.java_floats import write_number
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, kernel, walker
from airflow_cdc_provider.sources.debezium.json_program import DEEPEST, Program
from airflow_cdc_provider.sources.debezium.json_writing import (
    BROKEN,
    SPARE,
    TOO_LARGE,
    most_of,
    put_flag,
    put_integer,
    put_null,
    put_quoted,
    put_special,
    quoted_length,
    write_growing,
)

NULL: Final = 0
BOOLEAN: Final = 1
INT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
BYTES: Final = 6
STRING: Final = 7
FIXED: Final = 8
"""Argument: number of bytes."""
ENUM: Final = 9
"""Edges: its symbols as text."""
RECORD: Final = 10
"""Argument: the byte to write after its fields."""
ARRAY: Final = 11
MAP: Final = 12
NULLABLE: Final = 13
"""A union of null and one other branch; argument: the index of null."""
CHOICE: Final = 14
"""Any other union: an object with a member per non-null branch, of which one has a value."""


_MOST_EMPTY: Final = 1000
"""Maximum number of zero-byte elements in a block."""


def avro_to_json(program: Program, data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Any]:
    """Convert messages to JSON.

    Args:
        program: Compiled from the writer's schema.
        data: The buffer with the messages.
        starts: Start of each message, -1 for none.
        ends: End of each message.

    Returns:
        Binary array, null for a missing or broken message; and which messages are broken.

    Raises:
        OverflowError: The JSON is too large for one batch.
    """
    return write_growing(_write, program, data, starts, ends, (DEEPEST + 1, 3), 1)


@walker
def read_long(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Read a zigzag varint; return it and the offset after it, or offset -1 if it is broken."""
    value = np.uint64(0)
    for i in range(10):
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = data[at & 0x7FFFFFFFFFFF]
        at += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * i)
        if byte < 0x80:
            if i == 9 and byte > 1:
                return np.int64(0), np.int64(-1)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
    return np.int64(0), np.int64(-1)


@kernel
def _put_scalar(
    kind: Int, argument: Int, data: Bytes, at: Int, end: Int, out: Bytes, to: Int
) -> tuple[Int, Int]:
    """Write a scalar value.

    Returns:
        The offset after it in the data, -1 if it is broken, -2 if the output is full; and the offset in the
        output.
    """
    capacity = len(out) - to
    if kind == NULL:
        return at, put_null(out, to)
    if kind == BOOLEAN:
        if at >= end or data[at] > 1:
            return np.int64(-1), to
        return at + 1, put_flag(data[at] == 1, out, to)
    if kind in (INT, LONG):
        number, at = read_long(data, at, end)
        if at < 0 or (kind == INT and not -0x80000000 <= number <= 0x7FFFFFFF):
            return np.int64(-1), to
        return at, put_integer(number, out, to)
    if kind in (FLOAT, DOUBLE):
        width = np.int64(4) if kind == FLOAT else np.int64(8)
        if end - at < width:
            return np.int64(-1), to
        bits = np.uint64(load_little32(data, at) if kind == FLOAT else load_little64(data, at))
        single = kind == FLOAT
        if (
            (bits >> np.uint64(23) & np.uint64(0xFF) == np.uint64(0xFF))
            if single
            else (bits >> np.uint64(52) & np.uint64(0x7FF) == np.uint64(0x7FF))
        ):
            return at + width, put_special(bits, single, out, to)
        return at + width, np.int64(write_number(bits, single, out, to))
    length = np.int64(argument)
    if kind != FIXED:
        length, at = read_long(data, at, end)
    if at < 0 or length < 0 or length > end - at:
        return np.int64(-1), to
    if kind == STRING:
        if capacity < 6 * length + SPARE and capacity < quoted_length(data, at, at + length) + SPARE:
            return np.int64(-2), to
        return at + length, put_quoted(data, at, at + length, out, to)
    if capacity < 4 * (length // 3) + SPARE:
        return np.int64(-2), to
    return at + length, write_quoted_base64(data, at, at + length, out, to)


@kernel
def _write(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    nodes: Ints,
    edges: Ints,
    texts: Bytes,
    stack: Ints,
    slots: Ints,
    out: Bytes,
    offsets: Ints,
    wrong: Ints,
    first: Int,
) -> Int:
    """Write messages from ``first`` on; return the first that didn't fit, or the number of messages."""
    for row in range(first, len(starts)):
        to = offsets[row]
        at = starts[row]
        offsets[row + 1] = to
        if at < 0:
            continue
        limit = to + most_of(ends[row] - at, texts)
        output = out[: min(limit, len(out))]
        at, to = _put_message(data, at, ends[row], nodes, edges, texts, stack, output, to)
        if at == -2:
            if limit > len(out):
                return row
            wrong[row] = TOO_LARGE
        elif at != ends[row]:
            wrong[row] = BROKEN
        else:
            offsets[row + 1] = to
    return len(starts)


@kernel
def _put_message(
    data: Bytes, at: Int, end: Int, nodes: Ints, edges: Ints, texts: Bytes, stack: Ints, out: Bytes, to: Int
) -> tuple[Int, Int]:
    """Write one message; return the same as :func:`_put_scalar`.

    A stack entry has an open node, its current edge, and the number of remaining elements in its block.
    """
    depth = 0
    node = np.int64(len(nodes) - 1)
    while True:
        if len(out) - to < SPARE:
            return np.int64(-2), to
        kind = nodes[node, 0]
        if kind in (NULLABLE, CHOICE):
            branch, at = read_long(data, at, end)
            if at < 0 or branch < 0 or branch >= nodes[node, 3]:
                return np.int64(-1), to
            child = edges[nodes[node, 2] + branch, 0]
            if child < 0:
                to = put_null(out, to)
            elif kind == NULLABLE:
                node = child
                continue
            else:
                stack[depth, 0], stack[depth, 1] = node, branch
                depth += 1
                to = _put_others(nodes, edges, texts, node, 0, branch, out, to)
                if to < 0:
                    return np.int64(-2), to
                node = child
                continue
        elif kind == ENUM:
            branch, at = read_long(data, at, end)
            if at < 0 or branch < 0 or branch >= nodes[node, 3]:
                return np.int64(-1), to
            to = _put_lead(edges, texts, nodes[node, 2] + branch, out, to)
            if to < 0:
                return np.int64(-2), to
        elif kind == RECORD and nodes[node, 3] > 0:
            stack[depth, 0], stack[depth, 1] = node, 0
            depth += 1
            to = _put_lead(edges, texts, nodes[node, 2], out, to)
            if to < 0:
                return np.int64(-2), to
            node = edges[nodes[node, 2], 0]
            continue
        elif kind == RECORD:
            out[to], out[to + 1] = 0x7B, 0x7D
            to += 2
        elif kind in (ARRAY, MAP):
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = node, 0, 0
            depth += 1
            out[to] = 0x5B if kind == ARRAY else 0x7B
            to += 1
        else:
            at, to = _put_scalar(kind, nodes[node, 1], data, at, end, out, to)
            if at < 0:
                return at, to
        # A value is complete, or a list was opened: continue with the enclosing node.
        node = np.int64(-1)
        while depth > 0 and node < 0:
            if len(out) - to < SPARE:
                return np.int64(-2), to
            owner = stack[depth - 1, 0]
            kind = nodes[owner, 0]
            edge = nodes[owner, 2]
            if kind == RECORD:
                step = stack[depth - 1, 1] + 1
                if step < nodes[owner, 3]:
                    stack[depth - 1, 1] = step
                    to = _put_lead(edges, texts, edge + step, out, to)
                    if to < 0:
                        return np.int64(-2), to
                    node = edges[edge + step, 0]
                else:
                    out[to] = nodes[owner, 1]
                    to += 1
                    depth -= 1
            elif kind == CHOICE:
                branch = stack[depth - 1, 1]
                to = _put_others(nodes, edges, texts, owner, branch + 1, nodes[owner, 3], out, to)
                if to < 0 or len(out) - to < SPARE:
                    return np.int64(-2), to
                out[to] = 0x7D
                to += 1
                depth -= 1
            else:
                left = stack[depth - 1, 2]
                if left == 0:
                    left, at = read_long(data, at, end)
                    if at >= 0 and left < 0:
                        left = -left
                        _, at = read_long(data, at, end)
                    # The number of zero-byte elements isn't limited by the message size.
                    if at < 0 or left < 0 or left > max(end - at, _MOST_EMPTY):
                        return np.int64(-1), to
                    if left == 0:
                        out[to] = 0x5D if kind == ARRAY else 0x7D
                        to += 1
                        depth -= 1
                        continue
                stack[depth - 1, 2] = left - 1
                if stack[depth - 1, 1] > 0:
                    out[to] = 0x2C
                    to += 1
                stack[depth - 1, 1] = 1
                if kind == MAP:
                    at, to = _put_scalar(STRING, 0, data, at, end, out, to)
                    if at < 0:
                        return at, to
                    out[to] = 0x3A
                    to += 1
                node = edges[edge, 0]
        if node < 0:
            return at, to


@walker
def _put_lead(edges: Ints, texts: Bytes, edge: Int, out: Bytes, to: Int) -> Int:
    """Write the lead of a part; return -1 if the output is full."""
    start, length = edges[edge, 1], edges[edge, 2] - edges[edge, 1]
    if len(out) - to < length + SPARE:
        return np.int64(-1)
    return copy(texts, start, length, out, to)


@walker
def _put_others(
    nodes: Ints, edges: Ints, texts: Bytes, node: Int, first: Int, last: Int, out: Bytes, to: Int
) -> Int:
    """Write null members of a choice, and the lead of the member after them."""
    count = nodes[node, 3]
    for branch in range(first, min(last + 1, count)):
        edge = nodes[node, 2] + branch
        if edges[edge, 0] < 0:
            continue
        to = _put_lead(edges, texts, edge, out, to)
        if to < 0:
            return to
        if branch < last:
            to = put_null(out, to)
    return to
