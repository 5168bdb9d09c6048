"""Protobuf walked in place by kernels: varints, tags, fields that are passed over.

A message (https://protobuf.dev/programming-guides/encoding) is a run of fields, each a tag and a value::

    tag: varint of number << 3 | wire type
    wire type 0 varint | 1 eight bytes | 2 varint length, bytes | 5 four bytes

A varint has seven bits per byte, the lowest first; the high bit says that more follow; ten bytes at most.
Groups (wire types 3 and 4) are no part of what Vitess sends and count as broken.

No function reads outside ``[at, end)``. All answer a place, :data:`BROKEN` where the bytes don't fit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.kernels import walker

BROKEN: Final = -1
"""The place after what can't be read."""

VARINT: Final = 0
EIGHT_BYTES: Final = 1
LENGTH_DELIMITED: Final = 2
FOUR_BYTES: Final = 5


@walker
def read_varint(data: Any, at: Any, end: Any) -> Any:
    """Read an unsigned number of 64 bits.

    Returns:
        The number as int64 (its bits), and the place after it or :data:`BROKEN`.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value), np.int64(at)
        shift += np.uint64(7)
    return np.int64(0), np.int64(BROKEN)


@walker
def read_tag(data: Any, at: Any, end: Any) -> Any:
    """Read a tag: number of the field, wire type, and the place after it or :data:`BROKEN`."""
    value, after = read_varint(data, at, end)
    if after < 0 or value < 8 or value > 0xFFFF_FFFF:
        return np.int64(0), np.int64(0), np.int64(BROKEN)
    return value >> 3, value & 7, after


@walker
def read_length(data: Any, at: Any, end: Any) -> Any:
    """Read the length before bytes: first byte and place after the last one, both :data:`BROKEN` if amiss."""
    length, start = read_varint(data, at, end)
    if start < 0 or length < 0 or length > end - start:
        return np.int64(BROKEN), np.int64(BROKEN)
    return start, start + length


@walker
def skip_value(data: Any, at: Any, end: Any, wire_type: Any) -> Any:
    """Return the place after a value of a wire type, or :data:`BROKEN`."""
    if wire_type == VARINT:
        _, after = read_varint(data, at, end)
        return after
    if wire_type == LENGTH_DELIMITED:
        _, after = read_length(data, at, end)
        return after
    if wire_type == EIGHT_BYTES and end - at >= 8:
        return np.int64(at + 8)
    if wire_type == FOUR_BYTES and end - at >= 4:
        return np.int64(at + 4)
    return np.int64(BROKEN)
