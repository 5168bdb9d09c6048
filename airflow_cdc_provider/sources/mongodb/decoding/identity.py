"""Canonical keys of ``_id`` values, equal exactly if MongoDB's ``_id`` index finds the values equal.

The index compares numbers by value whatever their type, symbols as strings, documents member by member in
their order, and arrays without their names; all other values by type and bytes. The key is built
accordingly::

    key      = u8 tag | payload
    document = 03 | (tag | name | 00 | payload) ... | 00
    array    = 04 | (tag | payload) ... | 00

A tag is the BSON type. A number's tag is the first of double (01), int64 (12), decimal128 (13) that holds its
value exactly: ``1``, ``1.0`` and ``NumberDecimal("1.00")`` have one key, and so have 0.0 and -0.0, and all
NaNs. Payload of 01 and 12: 8 bytes; of 13: sign, i32 exponent and 16-byte coefficient without trailing zeros;
of a
symbol: a string's. Other payloads are the value's BSON bytes, which include their length. Keys can be tested
for equality only; their order has no meaning.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.bson import (
    ARRAY,
    BROKEN,
    CODE_WITH_SCOPE,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MAX_DEPTH,
    STRING,
    SYMBOL,
    name_end,
    read_i32,
    read_u64,
    scope_start,
    value_end,
)
from airflow_cdc_provider.formats.bson_numbers import (
    FINITE,
    INFINITE,
    INFINITY_BITS,
    NAN_BITS,
    SIGN_BIT,
    decimal_as_double,
    decimal_parts,
    integer_as_double,
    reduced_decimal,
    scaled_decimal,
)
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

_MARGIN: Final = 32


def canonical_keys(data: Bytes, kinds: Ints, starts: Ints, ends: Ints) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Build the keys of many ``_id`` values.

    Args:
        data: The buffer.
        kinds: BSON type of each value, 0 for a missing value, whose key is empty.
        starts: First byte of each value.
        ends: Byte after each value.

    Returns:
        The keys' bytes, and int32 offsets, one more than there are values. The key of broken bytes is empty.
    """
    sizes = np.where(kinds > 0, ends - starts, 0)
    capacity = int(2 * sizes.sum() + _MARGIN * len(kinds))  # an int32 in an array: 7 bytes, as a key 9
    out = np.empty(capacity, np.uint8)
    offsets = np.empty(len(kinds) + 1, np.int64)
    scratch = (np.empty(MAX_DEPTH, np.int64), np.empty(MAX_DEPTH, np.bool_))
    used = _keys(data, kinds, starts, ends, out, offsets, *scratch)
    return out[:used], offsets.astype(np.int32)


@walker
def _keys(
    data: Bytes, kinds: Ints, starts: Ints, ends: Ints, out: Bytes, offsets: Ints, stack: Ints, in_array: Ints
) -> Int:
    used = np.int64(0)
    offsets[0] = 0
    for i in range(len(kinds)):
        if kinds[i] > 0:
            after = append_key(data, kinds[i], starts[i], ends[i], out, used, stack, in_array)
            if after >= 0:
                used = after
        offsets[i + 1] = used
    return used


@walker
def append_key(
    data: Bytes, kind: int, start: int, end: int, out: Bytes, used: int, stack: Ints, in_array: Ints
) -> Int:
    """Append the key of one value; return the bytes used, or BROKEN.

    ``out`` must have a capacity of twice the value plus 32 bytes; ``stack`` and ``in_array`` are scratch
    space of length MAX_DEPTH.
    """
    if value_end(data, kind, start, end) != end:
        return BROKEN
    out[used] = _tag(kind)
    used += 1
    if kind not in (DOCUMENT, ARRAY, CODE_WITH_SCOPE):
        return _append_scalar(data, kind, start, end, out, used - 1)
    pos = start + 4
    if kind == CODE_WITH_SCOPE:
        used = copy(data, start + 4, scope_start(data, start) - start - 4, out, used)
        pos = scope_start(data, start) + 4
    depth = 0
    stack[0] = end - 1
    in_array[0] = kind == ARRAY
    while True:
        if pos == stack[depth]:
            out[used] = 0
            used += 1
            pos += 1
            if depth == 0:
                return used
            depth -= 1
            continue
        inner = np.int64(data[pos])
        name = name_end(data, pos + 1, stack[depth])
        if name < 0:
            return BROKEN
        stop = value_end(data, inner, name + 1, stack[depth])
        if stop < 0:
            return BROKEN
        tag_at = used
        out[used] = _tag(inner)
        used += 1
        if not in_array[depth]:
            used = copy(data, pos + 1, name - pos, out, used)
        if inner in (DOCUMENT, ARRAY, CODE_WITH_SCOPE):
            pos = name + 1
            if inner == CODE_WITH_SCOPE:
                used = copy(data, pos + 4, scope_start(data, pos) - pos - 4, out, used)
                pos = scope_start(data, pos)
            depth += 1
            if depth >= MAX_DEPTH:
                return BROKEN
            stack[depth] = stop - 1
            in_array[depth] = inner == ARRAY
            pos += 4
        else:
            used = _append_member(data, inner, name + 1, stop, out, tag_at, used)
            pos = stop


@walker
def _tag(kind: int) -> Int:
    return STRING if kind == SYMBOL else kind


@walker
def _append_scalar(data: Bytes, kind: int, start: int, end: int, out: Bytes, tag_at: int) -> Int:
    return _append_member(data, kind, start, end, out, tag_at, tag_at + 1)


@walker
def _append_member(data: Bytes, kind: int, start: int, end: int, out: Bytes, tag_at: int, used: int) -> Int:
    """Write a payload at ``used``; a number also sets its tag."""
    if kind == DOUBLE:
        bits = read_u64(data, start)
        size = bits & ~SIGN_BIT
        if size > INFINITY_BITS:
            bits = NAN_BITS
        elif size == 0:
            bits = np.uint64(0)
        return _put_u64(bits, out, used)
    if kind in (INT32, INT64):
        value = read_i32(data, start) if kind == INT32 else np.int64(read_u64(data, start))
        exact, bits = integer_as_double(value)
        out[tag_at] = DOUBLE if exact else INT64
        return _put_u64(bits if exact else np.uint64(value), out, used)
    if kind == DECIMAL128:
        return _append_decimal(read_u64(data, start + 8), read_u64(data, start), out, tag_at, used)
    return copy(data, start, end - start, out, used)


@walker
def _append_decimal(high: Int, low: Int, out: Bytes, tag_at: int, used: int) -> Int:
    kind, negative, high, low, exponent = decimal_parts(high, low)
    sign = SIGN_BIT if negative else np.uint64(0)
    out[tag_at] = DOUBLE
    if kind == INFINITE:
        return _put_u64(INFINITY_BITS | sign, out, used)
    if kind != FINITE:
        return _put_u64(NAN_BITS, out, used)
    if high == 0 and low == 0:
        return _put_u64(np.uint64(0), out, used)
    exact, bits = decimal_as_double(high, low, exponent)
    if exact:
        return _put_u64(bits | sign, out, used)
    whole, whole_high, whole_low = scaled_decimal(high, low, exponent, 0)
    if whole and whole_high == 0 and whole_low < SIGN_BIT:  # -2^63 is a double
        out[tag_at] = INT64
        return _put_u64(~whole_low + np.uint64(1) if negative else whole_low, out, used)
    out[tag_at] = DECIMAL128
    high, low, exponent = reduced_decimal(high, low, exponent)
    out[used] = 1 if negative else 0
    for i in range(4):
        out[used + 1 + i] = (exponent >> (8 * i)) & 0xFF
    return _put_u64(low, out, _put_u64(high, out, used + 5))


@walker
def _put_u64(value: Int, out: Bytes, used: int) -> Int:
    for i in range(8):
        out[used + i] = (value >> np.uint64(56 - 8 * i)) & np.uint64(0xFF)
    return used + 8
