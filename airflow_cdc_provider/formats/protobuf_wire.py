"""Protobuf's wire format: kernels that read messages in place, and messages with few fields in Python.

A message is a sequence of fields in any order, each preceded by its key
(https://protobuf.dev/programming-guides/encoding/)::

    key = number << 3 | wire type, a varint of 5 bytes at most

    0  VARINT   7 bits per byte, the lowest first; the upper bit: another byte follows; 10 bytes at most
    1  I64      8 bytes, little-endian
    2  LEN      length, a varint, then so many bytes: texts, messages, packed numbers
    5  I32      4 bytes, little-endian

Wire types 3 and 4 (groups) are deprecated and are rejected. No function reads outside ``[start, end)``, even
if the bytes are invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from airflow_cdc_provider.formats.byte_kernels import OFFSET
from airflow_cdc_provider.formats.kernels import Bytes, Int, walker

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

MAX_KEY_BYTES: Final = 5
MAX_VARINT_BYTES: Final = 10

Value = int | str | bytes
Fields = Mapping[int, Value]
"""Values of a message by field number; a nested message is given as its bytes."""


@walker
def read_varint(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Parse a varint.

    Returns:
        Its 64 bits as a signed number, and the offset after it, or a negated fault if it is invalid.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    for i in range(MAX_VARINT_BYTES):
        if at + i >= end:
            return np.int64(0), np.int64(-TRUNCATED)
        byte = np.uint64(data[(at + i) & OFFSET])
        if i == MAX_VARINT_BYTES - 1 and byte > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value), np.int64(at + i + 1)
        shift += np.uint64(7)
    return np.int64(0), np.int64(-TOO_LONG)


@walker
def read_key(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int]:
    """Parse the key of a field; return its number or a negated fault, its wire type, the offset after it."""
    key, after = read_varint(data, at, end)
    if after < 0:
        return after, np.int64(0), after
    number = key >> 3
    if number <= 0 or key >> 32 or after - at > MAX_KEY_BYTES:
        return np.int64(-NO_NUMBER), np.int64(0), after
    return number, key & 7, after


@walker
def read_value(data: Bytes, kind: Int, at: Int, end: Int) -> tuple[Int, Int, Int]:
    """Parse the value of a field.

    Returns:
        The value of a varint; the offset of its content (after the length); and the offset after it, or a
        negated fault.
    """
    value = np.int64(0)
    content = at
    after = at
    if kind == VARINT:
        value, after = read_varint(data, at, end)
    elif kind == LEN:
        value, content = read_varint(data, at, end)
        if content < 0:
            return value, content, content
        after = content + value if 0 <= value <= end - content else np.int64(-OUTSIDE)
    elif kind == I64:
        after = at + 8
    elif kind == I32:
        after = at + 4
    else:
        after = np.int64(-WIRE_TYPE)
    return value, content, after if after <= end else np.int64(-OUTSIDE)


@walker
def next_field(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Parse the field at an offset before ``end``.

    Returns:
        Its number, or a negated fault; its wire type; the value of a varint; the offset of its content (after
        the length); and the offset after the field.
    """
    zero = np.int64(0)
    number, kind, value_at = read_key(data, at, end)
    if number < 0:
        return number, zero, zero, zero, zero
    value, content, after = read_value(data, kind, value_at, end)
    if after < 0:
        return after, zero, zero, zero, zero
    return number, kind, value, content, after


@walker
def unzigzag(value: Int) -> Int:
    """Decode a varint of kind sint32 or sint64."""
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1)


@walker
def write_varint(number: Int, out: Bytes, at: Int) -> Int:
    """Write a varint of 64 bits; return the next position."""
    rest = np.uint64(number)
    while rest >= np.uint64(128):
        out[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return np.int64(at + 1)


def varint(number: int) -> bytes:
    """Encode a non-negative number."""
    written = bytearray()
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def message(fields: Fields) -> bytes:
    """Write a message of non-negative numbers, texts and bytes."""
    written = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            written += varint(number << 3 | VARINT) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            written += varint(number << 3 | LEN) + varint(len(data)) + data
    return bytes(written)


def read_message(data: bytes) -> dict[int, int | bytes]:
    """Read a message: non-negative numbers and bytes by field, the last of each.

    Raises:
        ValueError: It is invalid.
    """
    fields: dict[int, int | bytes] = {}
    content = np.frombuffer(data, np.uint8)
    at = 0
    while at < len(data):
        number, kind, value, start, at = next_field(content, at, len(data))
        if number < 0:
            raise ValueError(FAULTS[-number])
        fields[number] = value & (1 << 64) - 1 if kind == VARINT else data[start:at]
    return fields
