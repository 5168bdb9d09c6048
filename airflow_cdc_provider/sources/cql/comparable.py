"""Byte-comparable encoding of CQL values: memcmp of two encodings agrees with Cassandra's comparators.

It identifies a row inside its partition and encodes the bounds of range deletions. Equal values (``1.0`` and
``1.00``, all NaNs, tuples that differ in trailing nulls) have equal bytes, so the encoding is also the
identity by which Cassandra merges rows. Rules follow ``AbstractType.compare`` of 4.0 to 5.0.

A value is a marker, then content that is not a prefix of any other value's content::

    marker       1 null   2 empty (zero bytes)   3 a value follows
    boolean      1 byte, 0 or 1
    integers     big-endian, sign bit flipped (tinyint, smallint, int, bigint, timestamp)
    date, time   unchanged
    float        IEEE bits, all flipped if negative, else the sign flipped; one NaN, the greatest
    uuid         version, then for version 1 the time's fields from high to low, else the bytes
    timeuuid     the time's fields from high to low, then the other half with each byte's sign flipped
    varint       sign and length in a byte (0x80 + n, or 0x7F - n; n >= 127: four bytes more), then the bytes
    decimal      1 negative, 2 zero, 3 positive; then exponent (8 bytes, sign flipped), digits + 1, 0;
                 all after the first flipped if negative
    others       bytes, 00 as 00 FF, terminated by 00 00
    list, set    each element as a value, terminated by 00; a map's keys and values alternate
    tuple, UDT   each field as a value up to the last that isn't null, terminated by 00
    vector       each element as a value

Clustering columns are concatenated. A column in descending order has all its bits flipped, except that a null
(which only compact tables have) always sorts first. No marker of a column, flipped or not, is 00 or FF; so
all rows with a prefix are between the prefix and the prefix followed by :data:`AFTER`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cql.digits import write_digits
from airflow_cdc_provider.sources.cql.programs import (
    BIGINT,
    BOOLEAN,
    CHILDREN,
    DATE,
    DECIMAL,
    DIMENSIONS,
    DOUBLE,
    FIRST_CHILD,
    FIXED_LENGTH,
    FLOAT,
    INT,
    LEXICALUUID,
    LIST,
    MAP,
    MAX_DEPTH,
    OP,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMEUUID,
    TINYINT,
    TUPLE,
    UDT,
    UUID,
    VARINT,
    VECTOR,
    Nodes,
    Programs,
)
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_i64, read_uvint

AFTER: Final = 0xFF
"""Appended to a prefix: greater than every row with the prefix."""

MALFORMED: Final = -1
"""Result for bytes that are not a valid value of their type."""

_NULL = 1
_EMPTY = 2
_VALUE = 3


@walker
def encode_component(
    nodes: Nodes,
    root: Int,
    descending: Int,
    data: Bytes,
    start: Int,
    length: Int,
    scratch: Int,
    out: Bytes,
    position: Int,
) -> Int:
    """Encode one clustering column's value.

    Args:
        nodes: Type program.
        root: The column's node.
        descending: Whether the column's order is DESC (0 or 1).
        data: uint8 array with the value.
        start: Its offset.
        length: Its length, -1 for null.
        scratch: Scratch arrays for values of that length.
        out: uint8 array to write to. Bytes beyond its end are counted but not written, as in snprintf: if the
            result is greater than ``out.size``, repeat with a larger array.
        position: Offset at which to write.

    Returns:
        The offset after the bytes that were (or would be) written, or :data:`MALFORMED`.
    """
    if length < 0:
        return _put(out, position, _NULL)
    mask = np.int64(0xFF if descending else 0)
    return encode_value(nodes, root, data, start, length, scratch, out, position, mask)


@walker
def encode_clustering(
    nodes: Nodes,
    roots: npt.NDArray[np.int32],
    descending: Bytes,
    count: Int,
    data: Bytes,
    start: Int,
    end: Int,
    scratch: Int,
    out: Bytes,
    position: Int,
) -> Int:
    """Encode the clustering of a cell row: per column a little-endian i32 length (-1: null), then the value.

    Args:
        nodes: Type program.
        roots: Node of each clustering column.
        descending: Order of each.
        count: Number of columns to encode; fewer than all encode a prefix.
        data: uint8 array.
        start: Offset of the clustering.
        end: End of the clustering.
        scratch: Scratch arrays for values of its whole length.
        out: As for :func:`encode_component`.
        position: As for :func:`encode_component`.

    Returns:
        As :func:`encode_component`.
    """
    at = start
    for column in range(count):
        if at + 4 > end:
            return MALFORMED
        length = np.int64(
            np.int32(
                np.uint32(data[at])
                | (np.uint32(data[at + 1]) << np.uint32(8))
                | (np.uint32(data[at + 2]) << np.uint32(16))
                | (np.uint32(data[at + 3]) << np.uint32(24))
            )
        )
        at += 4
        if length > end - at:
            return MALFORMED
        position = encode_component(
            nodes, roots[column], descending[column], data, at, length, scratch, out, position
        )
        if position < 0:
            return MALFORMED
        if length > 0:
            at += length
    return position


@walker
def encode_value(
    nodes: Nodes,
    node: Int,
    data: Bytes,
    start: Int,
    length: Int,
    scratch: Int,
    out: Bytes,
    position: Int,
    mask: Int,
) -> Int:
    """Encode a value of any type, each byte xor-ed with ``mask``; otherwise as :func:`encode_component`."""
    # Open containers: op, first child, offset, end, index of the next part, number of parts.
    # (Not recursion: Numba's cache of a function that calls itself crashes when it is loaded.)
    stack = scratch.stack
    depth = 0
    position = np.int64(position)
    start = np.int64(start)
    length = np.int64(length)
    node = np.int64(node)
    while True:
        op = nodes[node, OP]
        if length < 0:
            position = _put(out, position, _NULL ^ mask)
        elif length == 0:
            position = _put(out, position, _EMPTY ^ mask)
        elif op < LIST:
            position = _put(out, position, _VALUE ^ mask)
            position = _encode_scalar(op, data, start, length, scratch, out, position, mask)
            if position < 0:
                return np.int64(MALFORMED)
        else:
            position = _put(out, position, _VALUE ^ mask)
            if depth == MAX_DEPTH:
                return np.int64(MALFORMED)
            at, count = _open_container(nodes, node, data, start, start + length)
            if at < 0:
                return np.int64(MALFORMED)
            stack[depth, 0] = op
            stack[depth, 1] = nodes[node, FIRST_CHILD]
            stack[depth, 2] = at
            stack[depth, 3] = start + length
            stack[depth, 4] = 0
            stack[depth, 5] = count
            depth += 1

        while depth > 0 and stack[depth - 1, 4] == stack[depth - 1, 5]:
            depth -= 1
            if stack[depth, 0] != VECTOR:
                position = _put(out, position, mask)
        if depth == 0:
            return position

        top = stack[depth - 1]
        node = top[1]
        if top[0] == MAP:
            node += top[4] % 2
        elif top[0] in (TUPLE, UDT):
            node += top[4]
        if top[0] != VECTOR:
            start, length, after = next_part(data, top[2], top[3])
        elif nodes[node, FIXED_LENGTH] >= 0:
            start = top[2]
            length = np.int64(nodes[node, FIXED_LENGTH])
            after = start + length
        else:
            length, start = read_uvint(data, top[2], top[3])
            after = start + length if start >= 0 and length >= 0 else np.int64(-1)
        if after < 0 or after > top[3]:
            return np.int64(MALFORMED)
        top[2] = after
        top[4] += 1


@walker
def _open_container(nodes: Ints, node: Int, data: Bytes, start: Int, end: Int) -> tuple[Int, Int]:
    """Return the offset of a container's first part, -1 if malformed, and the number of parts to encode."""
    op = nodes[node, OP]
    if op == VECTOR:
        return start, np.int64(nodes[node, DIMENSIONS])
    if op in (TUPLE, UDT):
        last = np.int64(0)
        at = start
        for field in range(nodes[node, CHILDREN]):
            if at >= end:
                break
            _, size, at = next_part(data, at, end)
            if at < 0:
                return np.int64(-1), np.int64(0)
            if size >= 0:
                last = np.int64(field + 1)
        return start, last
    if start + 4 > end:
        return np.int64(-1), np.int64(0)
    count = read_i32(data, start)
    if count < 0:
        return np.int64(-1), np.int64(0)
    return np.int64(start + 4), np.int64(count * 2 if op == MAP else count)


@walker
def _encode_scalar(
    op: Int, data: Bytes, start: Int, length: Int, scratch: Int, out: Bytes, position: Int, mask: Int
) -> Int:
    end = start + length
    if op in (INT, BIGINT, TIMESTAMP, TINYINT, SMALLINT):
        if length != (4 if op == INT else 1 if op == TINYINT else 2 if op == SMALLINT else 8):
            return np.int64(MALFORMED)
        position = _put(out, position, data[start] ^ 0x80 ^ mask)
        return _copy(out, position, data, start + 1, end, mask)
    if op in (DATE, TIME):
        if length != (4 if op == DATE else 8):
            return np.int64(MALFORMED)
        return _copy(out, position, data, start, end, mask)
    if op == BOOLEAN:
        return _put(out, position, (1 if data[start] else 0) ^ mask)
    if op in (UUID, TIMEUUID, LEXICALUUID):
        if length != 16:
            return np.int64(MALFORMED)
        return _encode_uuid(op, data, start, out, position, mask)
    if op in (FLOAT, DOUBLE):
        if length != (4 if op == FLOAT else 8):
            return np.int64(MALFORMED)
        return _encode_float(op, data, start, out, position, mask)
    if op == VARINT:
        return _encode_varint(data, start, end, out, position, mask)
    if op == DECIMAL:
        if length < 5:
            return np.int64(MALFORMED)
        return _encode_decimal(data, start, end, scratch, out, position, mask)
    for at in range(start, end):
        byte = data[at]
        position = _put(out, position, byte ^ mask)
        if byte == 0:
            position = _put(out, position, 0xFF ^ mask)
    position = _put(out, position, mask)
    return _put(out, position, mask)


def comparable_bytes(
    programs: Programs, root: int, value: bytes | None, *, descending: bool = False
) -> bytes:
    """Encode one value; for tests and rare calls.

    Args:
        programs: Compiled types.
        root: Number of the value's type.
        value: The value, None for null.
        descending: Whether the column's order is DESC.

    Returns:
        The encoding.

    Raises:
        CorruptInput: The bytes are not a valid value of the type.
    """
    data = np.frombuffer(value or b"\0", np.uint8)
    length = -1 if value is None else len(value)
    out = np.empty(64, np.uint8)
    scratch = new_scratch(len(data))
    node = int(programs.roots[root])
    while True:
        end = encode_component(programs.nodes, node, int(descending), data, 0, length, scratch, out, 0)
        if end == MALFORMED:
            raise CorruptInput("invalid value of a CQL type", found=(value or b"")[:40].hex())
        if end <= out.size:
            return bytes(out[:end])
        out = np.empty(end, np.uint8)


@walker
def _put(out: Bytes, position: Int, byte: Int) -> Int:
    if position < out.size:
        out[position] = np.uint8(byte)
    return np.int64(position + 1)


@walker
def _copy(out: Bytes, position: Int, data: Bytes, start: Int, end: Int, mask: Int) -> Int:
    for at in range(start, end):
        position = _put(out, position, data[at] ^ mask)
    return np.int64(position)


@walker
def _encode_uuid(op: Int, data: Bytes, start: Int, out: Bytes, position: Int, mask: Int) -> Int:
    version = data[start + 6] >> 4
    if op == UUID:
        position = _put(out, position, version ^ mask)
    if op == TIMEUUID or (op == UUID and version == 1):
        position = _copy(out, position, data, start + 6, start + 8, mask)
        position = _copy(out, position, data, start + 4, start + 6, mask)
        position = _copy(out, position, data, start, start + 4, mask)
    else:
        flip = 0x80 if op == LEXICALUUID else 0
        position = _put(out, position, data[start] ^ flip ^ mask)
        position = _copy(out, position, data, start + 1, start + 8, mask)
    for i in range(8, 16):
        flip = 0x80 if op == TIMEUUID or (op == LEXICALUUID and i == 8) else 0
        position = _put(out, position, data[start + i] ^ flip ^ mask)
    return np.int64(position)


@walker
def _encode_float(op: Int, data: Bytes, start: Int, out: Bytes, position: Int, mask: Int) -> Int:
    if op == FLOAT:
        size = 4
        bits = read_i32(data, start)
        if (bits & 0x7FFFFFFF) > 0x7F800000:
            bits = np.int64(0x7FC00000)
    else:
        size = 8
        bits = read_i64(data, start)
        if (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000:
            bits = np.int64(0x7FF8000000000000)
    bits = ~bits if bits < 0 else bits ^ (np.int64(1) << (8 * size - 1))
    for i in range(size):
        position = _put(out, position, ((bits >> (8 * (size - 1 - i))) & 0xFF) ^ mask)
    return np.int64(position)


@walker
def _encode_varint(data: Bytes, start: Int, end: Int, out: Bytes, position: Int, mask: Int) -> Int:
    fill = 0xFF if data[start] & 0x80 else 0
    while start + 1 < end and data[start] == fill and (data[start + 1] & 0x80) == (fill & 0x80):
        start += 1
    length = end - start
    flip = fill ^ mask
    if length < 127:
        position = _put(out, position, (0x80 + length) ^ flip)
    else:
        position = _put(out, position, 0xFF ^ flip)
        for shift in (24, 16, 8, 0):
            position = _put(out, position, ((length >> shift) & 0xFF) ^ flip)
    return _copy(out, position, data, start, end, mask)


@walker
def _encode_decimal(
    data: Bytes, start: Int, end: Int, scratch: Int, out: Bytes, position: Int, mask: Int
) -> Int:
    scale = read_i32(data, start)
    digits = scratch.digits
    count = write_digits(data, start + 4, end, scratch)
    if count == 1 and digits[0] == 0:
        return _put(out, position, 2 ^ mask)
    negative = data[start + 4] >= 128
    position = _put(out, position, (1 if negative else 3) ^ mask)
    flip = mask ^ (0xFF if negative else 0)
    exponent = np.int64(count - scale)
    for i in range(8):
        byte = (exponent >> (8 * (7 - i))) & 0xFF
        position = _put(out, position, (byte ^ (0x80 if i == 0 else 0)) ^ flip)
    while digits[count - 1] == 0:
        count -= 1
    for i in range(count):
        position = _put(out, position, (np.int64(digits[i]) + 1) ^ flip)
    return _put(out, position, flip)
