"""Protobuf's wire format: primitives for kernels that parse VStream's messages in place.

A message is a sequence of fields in any order, each preceded by its key
(https://protobuf.dev/programming-guides/encoding/)::

    key = number << 3 | wire type, a varint of 5 bytes at most

    0  VARINT   7 bits per byte, the lowest first; the upper bit: another byte follows; 10 bytes at most
    1  I64      8 bytes
    2  LEN      length, a varint, then so many bytes: texts, messages, packed numbers
    5  I32      4 bytes

Wire types 3 and 4 (groups) predate Vitess and are rejected. No function reads outside ``[start, end)``, even
if the bytes are invalid.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.kernels import walker

VARINT: Final = 0
I64: Final = 1
LEN: Final = 2
I32: Final = 5

FAULTS: Final = (
    "",
    "a number is truncated",
    "a number of more than 10 bytes",
    "a field leaves its message",
    "a field without a number",
    "an unknown wire type",
    "a singular message field occurs twice",
)
"""Texts of the fault numbers that :func:`next_field` returns, negated."""

TRUNCATED: Final = 1
TOO_LONG: Final = 2
OUTSIDE: Final = 3
NO_NUMBER: Final = 4
WIRE_TYPE: Final = 5
TWICE: Final = 6

_MAX_KEY_BYTES: Final = 5
_MAX_VARINT_BYTES: Final = 10


@walker
def read_varint(data: Any, at: Any, end: Any) -> Any:
    """Parse a varint.

    Returns:
        Its 64 bits as a signed number, and the offset after it, or a negated fault if it is invalid.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    for i in range(_MAX_VARINT_BYTES):
        if at + i >= end:
            return np.int64(0), np.int64(-TRUNCATED)
        byte = np.uint64(data[at + i])
        if i == _MAX_VARINT_BYTES - 1 and byte > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value), np.int64(at + i + 1)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-TOO_LONG)


@walker
def next_field(data: Any, at: Any, end: Any) -> Any:
    """Parse the field at an offset before ``end``.

    Returns:
        Its number, or a negated fault; its wire type; the value of a varint; the offset of its content (after
        the length); and the offset after the field.
    """
    zero = np.int64(0)
    key, content = read_varint(data, at, end)
    if content < 0:
        return content, zero, zero, zero, zero
    number = key >> 3
    if number <= 0 or key >> 32 or content - at > _MAX_KEY_BYTES:
        return np.int64(-NO_NUMBER), zero, zero, zero, zero
    kind = key & 7
    value = zero
    after = content
    if kind == VARINT:
        value, after = read_varint(data, content, end)
    elif kind == LEN:
        value, content = read_varint(data, content, end)
        if content < 0:
            return content, zero, zero, zero, zero
        if value < 0 or value > end - content:
            return np.int64(-OUTSIDE), zero, zero, zero, zero
        after = content + value
    elif kind == I64:
        after = content + 8
    elif kind == I32:
        after = content + 4
    else:
        return np.int64(-WIRE_TYPE), zero, zero, zero, zero
    if after < 0:
        return after, zero, zero, zero, zero
    if after > end:
        return np.int64(-OUTSIDE), zero, zero, zero, zero
    return number, kind, value, content, after
