"""Writing JSON in kernels: numbers, words and strings, as Kafka's JsonConverter shows them.

Callers make sure that there is room: :data:`SPARE` bytes for each but a string, which takes what
:func:`quoted_length` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints, column_of
from airflow_cdc_provider.sources.debezium.json_program import Program

SPARE: Final = 64
"""Room that any step but a text may take."""
MOST_BYTES: Final = 1 << 28
"""The most JSON that messages which are read together become; one alone that would be more is too large."""
BROKEN: Final = 1
TOO_LARGE: Final = 2
"""What is wrong with a message; 0 for nothing."""

_MOST_APIECE: Final = 1 << 20
_MOST_PER_BYTE: Final = 200
"""What a message may become, and more by so much for each byte that it has. Sound ones stay far below: most
of what is written are names, once, or behind a tag or mark of null."""

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
    """Have a kernel write messages as JSON, with more room whenever it finds none.

    Args:
        write: The kernel: takes data, starts, ends, nodes, edges, texts, stack, slots, output, offsets,
            what is wrong and the message to begin with; returns the one that found no room, or how many
            there are.
        program: What it follows.
        data: The buffer that messages stand in.
        starts: Where each begins, -1 for none.
        ends: Where each ends.
        stack: Rows and columns of the stack that it needs.
        slots: Further numbers that it needs.

    Returns:
        Binary; null where there is none or something is wrong with it; and what is: :data:`BROKEN`,
        :data:`TOO_LARGE` or 0.

    Raises:
        OverflowError: They become more than :data:`MOST_BYTES`.
    """
    count = len(starts)
    offsets = np.zeros(count + 1, np.int64)
    wrong = np.zeros(count, np.int64)
    work = np.zeros(stack, np.int64), np.zeros(slots, np.int64)
    sizes = np.where(starts >= 0, ends - starts, 0)
    room = int(sizes.sum()) * 3 + len(program.texts) * min(count, 1000) + 4096
    out = np.empty(min(MOST_BYTES, room), np.uint8)
    row = 0
    while True:
        tables = program.nodes, program.edges, program.texts
        row = write(data, starts, ends, *tables, *work, out, offsets, wrong, row)
        if row == count:
            break
        if len(out) >= MOST_BYTES:
            if count > 1:
                raise OverflowError(f"{count} messages become more than {MOST_BYTES} bytes of JSON")
            wrong[row] = TOO_LARGE
            offsets[row + 1] = offsets[row]
            break
        larger = np.empty(min(MOST_BYTES, len(out) * 2), np.uint8)
        larger[: offsets[row]] = out[: offsets[row]]
        out = larger
    used = out[: offsets[-1]].copy()
    return column_of(pa.binary(), used, offsets.astype(np.int32), (starts >= 0) & (wrong == 0)), wrong


@walker
def most_of(size: Any, texts: Any) -> Any:
    """Return the most bytes that a message may become, so that a small one can't take all memory."""
    return _MOST_APIECE + _MOST_PER_BYTE * size + len(texts)


@walker
def put_null(out: Any, to: Any) -> Any:
    """Write ``null``."""
    out[to], out[to + 1], out[to + 2], out[to + 3] = 0x6E, 0x75, 0x6C, 0x6C
    return to + 4


@walker
def put_flag(value: Any, out: Any, to: Any) -> Any:
    """Write ``true`` or ``false``."""
    if value:
        out[to], out[to + 1], out[to + 2], out[to + 3] = 0x74, 0x72, 0x75, 0x65
        return to + 4
    out[to], out[to + 1], out[to + 2], out[to + 3], out[to + 4] = 0x66, 0x61, 0x6C, 0x73, 0x65
    return to + 5


@walker
def put_integer(value: Any, out: Any, to: Any) -> Any:
    """Write a whole number of 64 bits."""
    if value < 0:
        out[to] = 0x2D
        to += 1
        return put_unsigned(np.uint64(0) - np.uint64(value), out, to)
    return put_unsigned(np.uint64(value), out, to)


@walker
def put_unsigned(value: Any, out: Any, to: Any) -> Any:
    """Write a whole number without sign."""
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
def put_special(bits: Any, single: Any, out: Any, to: Any) -> Any:
    """Write NaN and the infinities, which JSON doesn't have, as text."""
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
def quoted_length(data: Any, start: Any, end: Any) -> Any:
    """Return how many bytes a string of UTF-8 takes between its quotes."""
    length = end - start
    for at in range(start, end):
        byte = data[at & 0x7FFFFFFFFFFF]
        if byte < 0x20:
            length += 5
        elif byte in (0x22, 0x5C):
            length += 1
    return length


@walker
def put_quoted(data: Any, start: Any, end: Any, out: Any, to: Any) -> Any:
    """Write bytes of UTF-8 as a string."""
    out[to] = 0x22
    to += 1
    for at in range(start, end):
        byte = data[at & 0x7FFFFFFFFFFF]
        place = to & 0x7FFFFFFFFFFF
        if byte >= 0x20 and byte not in (0x22, 0x5C):
            out[place] = byte
            to += 1
        elif byte >= 0x20:
            out[place], out[place + 1] = 0x5C, byte
            to += 2
        else:
            out[place], out[place + 1], out[place + 2], out[place + 3] = 0x5C, 0x75, 0x30, 0x30
            out[place + 4], out[place + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            to += 6
    out[to] = 0x22
    return to + 1
