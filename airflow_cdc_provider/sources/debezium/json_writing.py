"""Kernels that write JSON numbers, literals and strings in the format of Kafka's JsonConverter.

Callers must ensure enough capacity: :data:`SPARE` bytes per value, and :func:`quoted_length` for a string.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import column_of
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.debezium.json_program import Program

SPARE: Final = 64
"""Capacity for any value except a text."""
MOST_BYTES: Final = 1 << 28
"""Maximum JSON size of messages that are read together, and of a single message."""
BROKEN: Final = 1
TOO_LARGE: Final = 2
"""Faults of a message; 0 for none."""

_MOST_APIECE: Final = 1 << 20
_MOST_PER_BYTE: Final = 200
"""Maximum JSON size of a message: a constant, plus a factor per byte. Valid messages stay far below it: most
output consists of names, which are written once, or per tag or null marker."""

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def write_growing(
    write: Callable[..., int],
    program: Program,
    data: Bytes,
    starts: Ints,
    ends: Ints,
    stack: tuple[int, int],
    slots: int,
) -> tuple[pa.Array, Ints]:
    """Convert messages to JSON with a kernel, growing the output as needed.

    Args:
        write: The kernel: takes data, starts, ends, nodes, edges, texts, stack, slots, output, offsets,
            faults and the first message; returns the first message that didn't fit, or the number of
            messages.
        program: The program to run.
        data: The buffer with the messages.
        starts: Start of each message, -1 for none.
        ends: End of each message.
        stack: Rows and columns of the required stack.
        slots: Number of further integers that the kernel needs.

    Returns:
        Binary array, null for a missing or faulty message; and the faults: :data:`BROKEN`, :data:`TOO_LARGE`
        or 0.

    Raises:
        OverflowError: The JSON exceeds :data:`MOST_BYTES`.
    """
    count = len(starts)
    offsets = np.zeros(count + 1, np.int64)
    wrong = np.zeros(count, np.int64)
    work = np.zeros(stack, np.int64), np.zeros(slots, np.int64)
    sizes = np.where(starts >= 0, ends - starts, 0)
    capacity = int(sizes.sum()) * 3 + len(program.texts) * min(count, 1000) + 4096
    out = np.empty(min(MOST_BYTES, capacity), np.uint8)
    row = 0
    while True:
        tables = program.nodes, program.edges, program.texts
        row = write(data, starts, ends, *tables, *work, out, offsets, wrong, row)
        if row == count:
            break
        if len(out) >= MOST_BYTES:
            if count > 1:
                raise OverflowError(f"the JSON of {count} messages exceeds {MOST_BYTES} bytes")
            wrong[row] = TOO_LARGE
            offsets[row + 1] = offsets[row]
            break
        larger = np.empty(min(MOST_BYTES, len(out) * 2), np.uint8)
        larger[: offsets[row]] = out[: offsets[row]]
        out = larger
    used = out[: offsets[-1]].copy()
    return column_of(pa.binary(), used, offsets, (starts >= 0) & (wrong == 0)), wrong


@walker
def most_of(size: Int, texts: Bytes) -> Int:
    """Return the maximum JSON size of a message, so that a small message can't exhaust memory."""
    return _MOST_APIECE + _MOST_PER_BYTE * size + len(texts)


@walker
def put_null(out: Bytes, to: Int) -> Int:
    """Write ``null``."""
    out[to], out[to + 1], out[to + 2], out[to + 3] = 0x6E, 0x75, 0x6C, 0x6C
    return to + 4


@walker
def put_flag(value: bool, out: Bytes, to: Int) -> Int:
    """Write ``true`` or ``false``."""
    if value:
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x74, 0x72, 0x75, 0x65
        return to + 4
    out[to], out[to + 1], out[to + 2], out[to + 3], out[to + 4] = 0x66, 0x61, 0x6C, 0x73, 0x65
    return to + 5


@walker
def put_integer(value: Int, out: Bytes, to: Int) -> Int:
    """Write a 64-bit integer."""
    if value < 0:
        out[to] = 0x2D
        to += 1
        return put_unsigned(np.uint64(0) - np.uint64(value), out, to)
    return put_unsigned(np.uint64(value), out, to)


@walker
def put_unsigned(value: Int, out: Bytes, to: Int) -> Int:
    """Write an unsigned integer."""
    count = 1
    rest = value // np.uint64(10)
    while rest != np.uint64(0):
        rest //= np.uint64(10)
        count += 1
    for i in range(count):
        out[to + count - 1 - i] = np.uint8(value % np.uint64(10)) + np.uint8(48)
        value //= np.uint64(10)
    return to + count


@walker
def put_special(bits: Int, single: bool, out: Bytes, to: Int) -> Int:
    """Write NaN and the infinities, which JSON doesn't support, as text."""
    fraction = np.uint64((1 << 23) - 1) if single else np.uint64((1 << 52) - 1)
    sign = np.uint64(31) if single else np.uint64(63)
    out[to] = 0x22
    to += 1
    if bits & fraction != np.uint64(0):
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x4E, 0x61, 0x4E, 0x22
        return to + 4
    if bits >> sign != np.uint64(0):
        out[to] = 0x2D
        to += 1
    out[to], out[to + 1], out[to + 2], out[to + 3] = 0x49, 0x6E, 0x66, 0x69
    out[to + 4], out[to + 5], out[to + 6], out[to + 7] = 0x6E, 0x69, 0x74, 0x79
    out[to + 8] = 0x22
    return to + 9


@walker
def quoted_length(data: Bytes, start: Int, end: Int) -> Int:
    """Return the escaped length of a UTF-8 string, without quotes."""
    length = end - start
    for at in range(start, end):
        byte = data[at & 0x7FFFFFFFFFFF]
        if byte < 0x20:
            length += 5
        elif byte in (0x22, 0x5C):
            length += 1
    return length


@walker
def put_quoted(data: Bytes, start: Int, end: Int, out: Bytes, to: Int) -> Int:
    """Write UTF-8 bytes as a JSON string."""
    out[to] = 0x22
    to += 1
    for at in range(start, end):
        byte = data[at & 0x7FFFFFFFFFFF]
        target = to & 0x7FFFFFFFFFFF
        if byte >= 0x20 and byte not in (0x22, 0x5C):
            out[target] = byte
            to += 1
        elif byte >= 0x20:
            out[target], out[target + 1] = 0x5C, byte
            to += 2
        else:
            out[target], out[target + 1], out[target + 2], out[target + 3] = 0x5C, 0x75, 0x30, 0x30
            out[target + 4], out[target + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            to += 6
    out[to] = 0x22
    return to + 1
