"""Fields of Protobuf messages (:mod:`~airflow_cdc_provider.formats.protobuf_wire`): kinds and offsets.

Fields may have any order, and numbers in lists may be packed (one value of wire type 2) or separate.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import (
    I32,
    I64,
    LEN,
    VARINT,
    read_key,
    read_value,
    read_varint,
    unzigzag,
)
from airflow_cdc_provider.sources.debezium.json_program import CHOICE, NUMBER, REPEATED

BOOL: Final = 1
INT32: Final = 2
INT64: Final = 3
UINT32: Final = 4
UINT64: Final = 5
SINT32: Final = 6
SINT64: Final = 7
FIXED32: Final = 8
FIXED64: Final = 9
SFIXED32: Final = 10
SFIXED64: Final = 11
FLOAT: Final = 12
DOUBLE: Final = 13
STRING: Final = 14
BYTES: Final = 15
ENUM: Final = 16
"""Edges: its names, by number."""
MESSAGE: Final = 17
"""Argument: the byte to write after its fields, 0 for none."""
TIMESTAMP: Final = 18
"""``google.protobuf.Timestamp``: microseconds, with a fraction for remaining nanoseconds."""
TIME_OF_DAY: Final = 19
"""``google.type.TimeOfDay``: microseconds, with a fraction for remaining nanoseconds."""
DATE: Final = 20
"""``google.type.Date``: days since 1970; text for an incomplete date."""
DECIMAL: Final = 21
"""``confluent.type.Decimal``: its bytes; argument: the common scale."""

DEEPEST_PATH: Final = 8
"""Maximum nesting depth of a message type in its file."""


def read_paths(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Read the message type of each message, which Confluent's converter writes before the bytes.

    Returns:
        Per message the indexes of its type and of the enclosing types, outermost first, padded with -1 (all
        are -1 if it is broken); and the start of the bytes.
    """
    paths = np.full((len(starts), DEEPEST_PATH), -1, np.int64)
    bodies = starts.copy()
    _read_paths(data, starts, ends, paths, bodies)
    return paths, bodies


@walker
def signed32(value: Int) -> Int:
    """Return the lower 32 bits of a varint as a signed number."""
    low = value & 0xFFFFFFFF
    return low - (np.int64(1) << 32) if low >= 0x80000000 else low


@walker
def _read_paths(data: Bytes, starts: Ints, ends: Ints, paths: Ints, bodies: Ints) -> None:
    for row in range(len(starts)):
        raw, at = read_varint(data, starts[row], ends[row])
        count = unzigzag(raw)
        if at < 0 or count < 0 or count > DEEPEST_PATH:
            continue
        if count == 0:
            paths[row, 0] = 0
        for i in range(count):
            raw, at = read_varint(data, at, ends[row])
            index = unzigzag(raw)
            if at < 0 or index < 0:
                paths[row, :] = -1
                break
            paths[row, i] = index
        if paths[row, 0] >= 0:
            bodies[row] = at


@walker
def wire_of(kind: Int) -> Int:
    """Return the wire type of a value of a kind."""
    if kind in (FIXED64, SFIXED64, DOUBLE):
        return np.int64(I64)
    if kind in (FIXED32, SFIXED32, FLOAT):
        return np.int64(I32)
    return np.int64(VARINT) if kind < STRING or kind == ENUM else np.int64(LEN)


@walker
def find_fields(
    data: Bytes, at: Int, end: Int, nodes: Ints, edges: Ints, node: Int, slots: Ints, base: Int
) -> bool:
    """Fill in the offset of each field: the first tag of lists, else the last value; -1 for none.

    Returns:
        Whether the message is valid.
    """
    first, count = nodes[node, 2], nodes[node, 3]
    for i in range(count):
        slots[base + i] = -1
    last_index = np.int64(0)
    while at < end:
        tag_at = at
        number, wire, at = read_key(data, at, end)
        if number < 0:
            return False
        _, _, after = read_value(data, wire, at, end)
        if after < 0:
            return False
        # Fields are usually in order: search from the last one.
        step = np.int64(-1)
        for i in range(count):
            index = last_index + i if last_index + i < count else last_index + i - count
            if edges[first + index, NUMBER] == number:
                step = index
                break
        if step >= 0:
            last_index = step
            edge = first + step
            kind = nodes[edges[edge, 0], 0]
            expected = wire_of(kind)
            if edges[edge, REPEATED]:
                if wire not in (expected, LEN):
                    return False
                if slots[base + step] < 0:
                    slots[base + step] = tag_at
            else:
                if wire != expected or (kind >= MESSAGE and slots[base + step] >= 0):
                    return False
                if edges[edge, CHOICE]:
                    for i in range(count):
                        if edges[first + i, CHOICE] == edges[edge, CHOICE]:
                            slots[base + i] = -1
                slots[base + step] = at
        at = after
    return True
