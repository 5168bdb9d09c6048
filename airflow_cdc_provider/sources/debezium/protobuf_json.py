"""A kernel that converts Protobuf's binary encoding (:mod:`.protobuf_wire`) to JSON by a writer's schema.

A message is scanned once for the offsets of its fields, and once more for each list. The last
occurrence of a singular field wins, and the last field of a choice (``oneof``). Two occurrences of an
embedded message would have to be merged, which no writer uses: such a message counts as broken.

The guarantees are those of :mod:`.avro_json`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.base64_text import write_quoted_base64
from airflow_cdc_provider.formats.byte_kernels import copy, load_little32, load_little64
from airflow_cdc_provider.formats.dates import days_since_1970
from airflow_cdc_provider.formats.java_floats import write_number
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, kernel, walker
from airflow_cdc_provider.formats.protobuf_wire import (
    I64,
    LEN,
    VARINT,
    read_key,
    read_value,
    read_varint,
    unzigzag,
)
from airflow_cdc_provider.sources.debezium.json_program import (
    ABSENT_END,
    ABSENT_START,
    DEEPEST,
    LARGEST,
    LEAD_END,
    LEAD_START,
    NUMBER,
    REPEATED,
    Program,
)
from airflow_cdc_provider.sources.debezium.json_writing import (
    BROKEN,
    SPARE,
    TOO_LARGE,
    most_of,
    put_flag,
    put_integer,
    put_quoted,
    put_special,
    put_unsigned,
    quoted_length,
    write_growing,
)
from airflow_cdc_provider.sources.debezium.protobuf_wire import (
    BOOL,
    BYTES,
    DECIMAL,
    FIXED32,
    FIXED64,
    FLOAT,
    INT32,
    INT64,
    MESSAGE,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
    STRING,
    TIME_OF_DAY,
    TIMESTAMP,
    UINT32,
    UINT64,
    find_fields,
    signed32,
    wire_of,
)

_MOST_SECONDS: Final = 9_000_000_000_000


def protobuf_to_json(program: Program, data: Bytes, starts: Ints, ends: Ints) -> tuple[pa.Array, Any]:
    """Convert messages to JSON; see :func:`.avro_json.avro_to_json`."""
    return write_growing(_write, program, data, starts, ends, (DEEPEST + 1, _FRAME), LARGEST + 1)


@kernel
def _put_scalar(
    kind: Int,
    node: Int,
    nodes: Ints,
    edges: Ints,
    texts: Bytes,
    data: Bytes,
    at: Int,
    end: Int,
    out: Bytes,
    to: Int,
) -> tuple[Int, Int]:
    """Write a scalar; return its end in input and output: -1 if it is broken, -2 if the output is full."""
    if kind in (STRING, BYTES):
        length, at, after = read_value(data, LEN, at, end)
        if after < 0:
            return np.int64(-1), to
        capacity = len(out) - to
        if kind == STRING:
            if capacity < 6 * length + SPARE and capacity < quoted_length(data, at, after) + SPARE:
                return np.int64(-2), to
            return after, put_quoted(data, at, after, out, to)
        if capacity < 4 * (length // 3) + SPARE:
            return np.int64(-2), to
        return after, write_quoted_base64(data, at, after, out, to)
    wire = wire_of(kind)
    if wire == VARINT:
        value, at = read_varint(data, at, end)
        if at < 0:
            return np.int64(-1), to
        if kind == BOOL:
            return at, put_flag(value != 0, out, to)
        if kind == INT32:
            return at, put_integer(signed32(value), out, to)
        if kind == INT64:
            return at, put_integer(value, out, to)
        if kind == UINT32:
            return at, put_unsigned(np.uint64(value & 0xFFFFFFFF), out, to)
        if kind == UINT64:
            return at, put_unsigned(np.uint64(value), out, to)
        if kind == SINT32:
            return at, put_integer(unzigzag(value & 0xFFFFFFFF), out, to)
        if kind == SINT64:
            return at, put_integer(unzigzag(value), out, to)
        number = signed32(value)
        for edge in range(nodes[node, 2], nodes[node, 2] + nodes[node, 3]):
            if edges[edge, NUMBER] == number:
                return at, _put_text(texts, edges[edge, LEAD_START], edges[edge, LEAD_END], out, to)
        out[to] = 0x22
        to = put_integer(number, out, to + 1)
        out[to] = 0x22
        return at, to + 1
    width = np.int64(8) if wire == I64 else np.int64(4)
    if end - at < width:
        return np.int64(-1), to
    raw = np.uint64(load_little64(data, at)) if wire == I64 else np.uint64(load_little32(data, at))
    after = at + width
    if kind in (FIXED32, FIXED64):
        return after, put_unsigned(raw, out, to)
    if kind == SFIXED32:
        return after, put_integer(signed32(np.int64(raw)), out, to)
    if kind == SFIXED64:
        return after, put_integer(np.int64(raw), out, to)
    single = kind == FLOAT
    ones = np.uint64(0xFF) if single else np.uint64(0x7FF)
    if raw >> (np.uint64(23) if single else np.uint64(52)) & ones == ones:
        return after, put_special(raw, single, out, to)
    return after, np.int64(write_number(raw, single, out, to))


@walker
def _put_text(texts: Bytes, start: Int, end: Int, out: Bytes, to: Int) -> Int:
    """Write a text of the program; return -1 if the output is full."""
    if len(out) - to < end - start + SPARE:
        return np.int64(-1)
    return copy(texts, start, end - start, out, to)


@walker
def _number(data: Bytes, slots: Ints, slot: Int, end: Int) -> Int:
    """Return an integer field of a well-known message, 0 if it is missing."""
    if slots[slot] < 0:
        return np.int64(0)
    value, _ = read_varint(data, slots[slot], end)
    return value


@walker
def _put_micros(seconds: Int, nanos: Int, out: Bytes, to: Int) -> Int:
    """Write seconds and nanoseconds as microseconds."""
    micros = seconds * 1_000_000 + nanos // 1000
    rest = nanos % 1000
    if micros < 0 and rest:  # the digits after the point count away from zero
        micros += 1
        rest = 1000 - rest
        if micros == 0:
            out[to] = 0x2D
            to += 1
    to = put_integer(micros, out, to)
    if rest:
        # After a decimal point, so that no column takes it as exact and it is stored in the rest.
        out[to] = 0x2E
        for i in range(3):
            out[to + 3 - i] = 48 + rest % 10
            rest //= 10
        to += 4
    return to


@kernel
def _put_known(
    kind: Int, scale: Int, data: Bytes, end: Int, slots: Ints, base: Int, out: Bytes, to: Int
) -> Int:
    """Write a well-known message with a Connect type; return -1 if it is broken, -2 if the output is full."""
    if kind == DECIMAL:
        if _number(data, slots, base + 2, end) != scale:
            return np.int64(-1)
        length, at = np.int64(0), np.int64(0)
        if slots[base] >= 0:
            length, at = read_varint(data, slots[base], end)
        if len(out) - to < 2 * length + SPARE:
            return np.int64(-2)
        return write_quoted_base64(data, at, at + length, out, to)
    first, second = _number(data, slots, base, end), _number(data, slots, base + 1, end)
    if kind == TIMESTAMP:
        if not -_MOST_SECONDS <= first <= _MOST_SECONDS or not 0 <= second < 1_000_000_000:
            return np.int64(-1)
        return _put_micros(first, second, out, to)
    third = _number(data, slots, base + 2, end)
    if kind == TIME_OF_DAY:
        nanos = _number(data, slots, base + 3, end)
        if not (0 <= first <= 24 and 0 <= second < 60 and 0 <= third <= 60 and 0 <= nanos < 1_000_000_000):
            return np.int64(-1)
        return _put_micros((first * 60 + second) * 60 + third, nanos, out, to)
    if 1 <= first <= 9999 and 1 <= second <= 12 and 1 <= third <= 31:
        return put_integer(days_since_1970(first, second, third), out, to)
    if not (0 <= first <= 9999 and 0 <= second <= 99 and 0 <= third <= 99):
        return np.int64(-1)
    out[to] = 0x22
    to = put_integer(first, out, to + 1)
    out[to] = 0x2D
    to = put_integer(second, out, to + 1)
    out[to] = 0x2D
    to = put_integer(third, out, to + 1)
    out[to] = 0x22
    return to + 1


_NODE: Final = 0
_END: Final = 1
_STEP: Final = 2
"""The current field, -1 before the first one."""
_CURSOR: Final = 3
"""In a list: the offset to search its next element from; else -1."""
_PACKED: Final = 4
"""In a packed value: its end; else -1."""
_BASE: Final = 5
"""The first slot of the message."""
_ELEMENTS: Final = 6
_BEGIN: Final = 7
_FRAME: Final = 8


@walker
def _open(stack: Ints, depth: Int, node: Int, at: Int, end: Int, base: Int) -> None:
    frame = stack[depth]
    frame[_NODE], frame[_END], frame[_STEP], frame[_CURSOR] = node, end, -1, -1
    frame[_PACKED], frame[_BASE], frame[_ELEMENTS], frame[_BEGIN] = -1, base, 0, at


@walker
def _next_element(data: Bytes, frame: Ints, number: Int, expected: Int) -> Int:
    """Return the offset of the next element of a list, -1 for none. Tags were validated before."""
    end = frame[_END]
    while frame[_CURSOR] < end:
        found, wire, at = read_key(data, frame[_CURSOR], end)
        length, content, after = read_value(data, wire, at, end)
        frame[_CURSOR] = after
        if found == number:
            if wire == expected:
                return at
            if length != 0:
                at = content
                frame[_PACKED] = after
                return at
    return np.int64(-1)


@kernel
def _put_message(
    data: Bytes,
    at: Int,
    end: Int,
    nodes: Ints,
    edges: Ints,
    texts: Bytes,
    stack: Ints,
    slots: Ints,
    out: Bytes,
    to: Int,
) -> Int:
    """Write one message; return the end of its output, -1 if it is broken, -2 if the output is full."""
    depth = 0
    _open(stack, 0, np.int64(len(nodes) - 1), at, end, 0)
    while depth >= 0:
        if len(out) - to < SPARE:
            return np.int64(-2)
        frame = stack[depth]
        node, base, stop = frame[_NODE], frame[_BASE], frame[_END]
        kind, first, count = nodes[node, 0], nodes[node, 2], nodes[node, 3]
        if frame[_STEP] < 0:
            if not find_fields(data, frame[_BEGIN], stop, nodes, edges, node, slots, base):
                return np.int64(-1)
            if kind != MESSAGE:
                to = _put_known(kind, nodes[node, 1], data, stop, slots, base, out, to)
                if to < 0:
                    return to
                depth -= 1
                continue
            if count == 0:
                out[to], out[to + 1] = 0x7B, 0x7D
                to += 2
                depth -= 1
                continue
        if frame[_CURSOR] < 0:
            frame[_STEP] += 1
            if frame[_STEP] == count:
                if nodes[node, 1]:
                    out[to] = nodes[node, 1]
                    to += 1
                depth -= 1
                continue
        step = frame[_STEP]
        edge = first + step
        child = edges[edge, 0]
        value = slots[base + step]
        if edges[edge, REPEATED]:
            brackets = edges[edge, REPEATED]
            if frame[_CURSOR] < 0:
                to = _put_text(texts, edges[edge, LEAD_START], edges[edge, LEAD_END], out, to)
                if to < 0:
                    return np.int64(-2)
                out[to] = 0x5B if brackets == 1 else 0x7B
                to += 1
                frame[_CURSOR] = value if value >= 0 else stop
                frame[_ELEMENTS], frame[_PACKED] = 0, -1
            if frame[_PACKED] >= 0:
                value = frame[_BEGIN]
            else:
                value = _next_element(data, frame, edges[edge, NUMBER], wire_of(nodes[child, 0]))
            if value < 0:
                out[to] = 0x5D if brackets == 1 else 0x7D
                to += 1
                frame[_CURSOR] = -1
                continue
            if frame[_ELEMENTS]:
                out[to] = 0x2C
                to += 1
            frame[_ELEMENTS] = 1
        else:
            to = _put_text(texts, edges[edge, LEAD_START], edges[edge, LEAD_END], out, to)
            if to < 0:
                return np.int64(-2)
            if value < 0:
                to = _put_text(texts, edges[edge, ABSENT_START], edges[edge, ABSENT_END], out, to)
                if to < 0:
                    return np.int64(-2)
                continue
        if nodes[child, 0] >= MESSAGE:
            length, begin = read_varint(data, value, stop)
            depth += 1
            _open(stack, depth, child, begin, begin + length, base + count)
            continue
        packed = frame[_PACKED]
        limit = packed if packed >= 0 else stop
        after, to = _put_scalar(nodes[child, 0], child, nodes, edges, texts, data, value, limit, out, to)
        if after < 0:
            return after
        if to < 0:
            return np.int64(-2)
        if packed >= 0:
            frame[_BEGIN] = after
            if after == packed:
                frame[_PACKED] = -1
    return to


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
        offsets[row + 1] = offsets[row]
        if starts[row] < 0:
            continue
        limit = offsets[row] + most_of(ends[row] - starts[row], texts)
        output = out[: min(limit, len(out))]
        to = _put_message(
            data, starts[row], ends[row], nodes, edges, texts, stack, slots, output, offsets[row]
        )
        if to == -2:
            if limit > len(out):
                return row
            wrong[row] = TOO_LARGE
        elif to < 0:
            wrong[row] = BROKEN
        else:
            offsets[row + 1] = to
    return len(starts)
