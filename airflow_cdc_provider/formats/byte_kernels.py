"""Reading and writing numbers in byte arrays: the primitives of kernels over cell rows.

All functions take offsets that their callers have checked. Numbers are little-endian, as in cell rows
(:mod:`.cells`).

The bytes of a number are written out one by one on purpose: LLVM turns eight of them into one move, whatever
the alignment, but not a loop over them. It can do so only if it can prove that no offset is negative
(Python's negative indexes count from the end), which ``& OFFSET`` guarantees.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker

OFFSET: Final = (1 << 47) - 1
"""Mask of all possible offsets."""


@walker
def load_little16(data: Bytes, at: Int) -> Int:
    """Read a little-endian unsigned 16-bit number."""
    at &= OFFSET
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@walker
def load_little32(data: Bytes, at: Int) -> Int:
    """Read a little-endian unsigned 32-bit number."""
    at &= OFFSET
    return (
        np.int64(data[at])
        | (np.int64(data[at + 1]) << 8)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 24)
    )


@walker
def load_little64(data: Bytes, at: Int) -> Int:
    """Read a little-endian signed 64-bit number."""
    at &= OFFSET
    return (
        np.int64(data[at])
        | (np.int64(data[at + 1]) << 8)
        | (np.int64(data[at + 2]) << 16)
        | (np.int64(data[at + 3]) << 24)
        | (np.int64(data[at + 4]) << 32)
        | (np.int64(data[at + 5]) << 40)
        | (np.int64(data[at + 6]) << 48)
        | (np.int64(data[at + 7]) << 56)
    )


@walker
def store_little16(out: Bytes, at: Int, value: Int) -> None:
    """Write a little-endian 16-bit number."""
    at &= OFFSET
    out[at] = np.uint8(value & 0xFF)
    out[at + 1] = np.uint8((value >> 8) & 0xFF)


@walker
def store_little32(out: Bytes, at: Int, value: Int) -> None:
    """Write a little-endian 32-bit number."""
    at &= OFFSET
    out[at] = np.uint8(value & 0xFF)
    out[at + 1] = np.uint8((value >> 8) & 0xFF)
    out[at + 2] = np.uint8((value >> 16) & 0xFF)
    out[at + 3] = np.uint8((value >> 24) & 0xFF)


@walker
def store_little64(out: Bytes, at: Int, value: Int) -> None:
    """Write a little-endian 64-bit number."""
    store_little32(out, at, value)
    store_little32(out, at + 4, value >> 32)


@walker
def copy(data: Bytes, start: Int, length: Int, out: Bytes, at: Int) -> Int:
    """Copy bytes from one array to another and return the offset after them in ``out``."""
    start &= OFFSET
    at &= OFFSET
    # The last move may overlap the one before, which is faster than a loop over the rest.
    if length >= 32:
        done = 0
        while length - done > 32:
            _copy32(data, start + done, out, at + done)
            done += 32
        _copy32(data, start + length - 32, out, at + length - 32)
    elif length >= 8:
        done = 0
        while length - done > 8:
            store_little64(out, at + done, load_little64(data, start + done))
            done += 8
        store_little64(out, at + length - 8, load_little64(data, start + length - 8))
    elif length >= 4:
        store_little32(out, at, load_little32(data, start))
        store_little32(out, at + length - 4, load_little32(data, start + length - 4))
    else:
        for i in range(length):
            out[at + i] = data[start + i]
    return at + length


@walker
def _copy32(data: Bytes, start: Int, out: Bytes, at: Int) -> None:
    # All are read before one is written, otherwise LLVM must assume that they overlap.
    a, b = load_little64(data, start), load_little64(data, start + 8)
    c, d = load_little64(data, start + 16), load_little64(data, start + 24)
    store_little64(out, at, a)
    store_little64(out, at + 8, b)
    store_little64(out, at + 16, c)
    store_little64(out, at + 24, d)


@walker
def same(a: Bytes, a_start: Int, b: Bytes, b_start: Int, length: Int) -> bool:
    """Return whether two byte ranges of equal length hold the same bytes."""
    a_start &= OFFSET
    b_start &= OFFSET
    done = 0
    while length - done >= 8:
        if load_little64(a, a_start + done) != load_little64(b, b_start + done):
            return False
        done += 8
    while done < length:
        if a[a_start + done] != b[b_start + done]:
            return False
        done += 1
    return True


@walker
def compare(left: Bytes, a: Int, a_length: Int, right: Bytes, b: Int, b_length: Int) -> Int:
    """Compare two ranges of unsigned bytes: -1, 0 or 1. A prefix is less than the longer range."""
    i = np.uint64(a)
    j = np.uint64(b)
    both = min(a_length, b_length)
    equal = np.int64(0)
    while equal + 8 <= both and load_little64(left, a + equal) == load_little64(right, b + equal):
        equal += 8
    for k in range(equal, both):
        x = left[i + np.uint64(k)]
        y = right[j + np.uint64(k)]
        if x != y:
            return -1 if x < y else 1
    return -1 if a_length < b_length else (1 if a_length > b_length else 0)
