"""Read big-endian numbers and variable-length integers in byte arrays. Callers check bounds first.

For unrolled bytes and masked offsets see :mod:`airflow_cdc_provider.formats.byte_kernels`.
"""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.formats.byte_kernels import OFFSET
from airflow_cdc_provider.formats.kernels import Bytes, Int, walker


@walker
def read_i32(data: Bytes, at: Int) -> Int:
    """Read a signed 32-bit number as int64."""
    at &= OFFSET
    value = (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )
    return np.int64(value - ((value & 0x80000000) << 1))


@walker
def read_i64(data: Bytes, at: Int) -> Int:
    """Read a signed 64-bit number."""
    at &= OFFSET
    return (
        (np.int64(data[at]) << 56)
        | (np.int64(data[at + 1]) << 48)
        | (np.int64(data[at + 2]) << 40)
        | (np.int64(data[at + 3]) << 32)
        | (np.int64(data[at + 4]) << 24)
        | (np.int64(data[at + 5]) << 16)
        | (np.int64(data[at + 6]) << 8)
        | np.int64(data[at + 7])
    )


@walker
def read_signed(data: Bytes, at: Int, length: Int) -> Int:
    """Read a two's complement number of 1 to 8 bytes as int64."""
    value = np.int64(-1) if data[at] & 0x80 else np.int64(0)
    for i in range(length):
        value = (value << 8) | np.int64(data[at + i])
    return value


@walker
def read_uvint(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Read an unsigned variable-length integer (``VIntCoding``).

    Returns:
        The value, its 64 bits as int64, and the offset after it; offset -1 if the bytes are truncated.
    """
    if at >= end:
        return np.int64(0), np.int64(-1)
    at &= OFFSET
    first = np.int64(data[at])
    if first < 0x80:
        return first, np.int64(at + 1)
    extra = 1
    while extra < 8 and first & (0x80 >> extra):
        extra += 1
    if at + 1 + extra > end:
        return np.int64(0), np.int64(-1)
    value = first & (0xFF >> (extra + 1)) if extra < 8 else np.int64(0)
    for i in range(extra):
        value = (value << 8) | np.int64(data[at + 1 + i])
    return np.int64(value), np.int64(at + 1 + extra)


@walker
def read_svint(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Read a zig-zag variable-length integer; returns as :func:`read_uvint`."""
    value, after = read_uvint(data, at, end)
    low = value & 1
    half = (value >> 1) & 0x7FFFFFFFFFFFFFFF
    return np.int64(half ^ -low), after


@walker
def next_part(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int]:
    """Locate one part of a frozen value: int32 length, then its bytes.

    Returns:
        The offset of its bytes, its length (-1: null), and the offset after it, -1 if the bytes are
        malformed.
    """
    if at + 4 > end:
        return np.int64(0), np.int64(0), np.int64(-1)
    length = read_i32(data, at)
    begin = np.int64(at + 4)
    if length < 0:
        return begin, np.int64(-1), begin
    if length > end - begin:
        return np.int64(0), np.int64(0), np.int64(-1)
    return begin, length, np.int64(begin + length)
