"""Finds members of documents by name, and reads simple values as columns.

The documents must be valid to their leaves, unless a kernel's docstring says how it reports broken ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import gather_text
from airflow_cdc_provider.formats.bson import name_end, read_i32, read_u64, value_end
from airflow_cdc_provider.formats.byte_kernels import same
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, kernel


def as_name(text: str) -> np.ndarray:
    """Return a name in the format of :func:`find_member`."""
    return np.frombuffer(text.encode() + b"\0", np.uint8)


@kernel
def equals(data: Bytes, at: int, end: int, name: Bytes) -> bool:
    """Compare a NUL-terminated name or text."""
    if end - at != len(name):
        return False
    same = True
    for i in range(len(name)):
        same &= data[at + i] == name[i]
    return same


@kernel
def find_member(data: Bytes, start: int, end: int, name: Bytes) -> tuple[int, int, int]:
    """Find a member of a document: its type (0: none, -1: broken), start and end of its value."""
    at = start + 4
    while at < end - 1:
        kind = int(data[at])
        stop = name_end(data, at + 1, end - 1)
        if stop < 0:
            return -1, 0, 0
        following = value_end(data, kind, stop + 1, end - 1)
        if following < 0:
            return -1, 0, 0
        if equals(data, at + 1, stop + 1, name):
            return kind, stop + 1, following
        at = following
    return 0, 0, 0


def as_names(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return names in the format of :func:`find_members`: concatenated, and the end of each."""
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(name) for name in encoded])


@kernel
def find_members(
    data: Bytes, start: int, end: int, names: Bytes, name_ends: Ints, kinds: Ints, first: Ints, last: Ints
) -> None:
    """Find several members of a valid document in one walk; of several with one name, the first.

    Args:
        data: The buffer.
        start: Start of the document.
        end: End of the document.
        names: Names from :func:`as_names`.
        name_ends: Their ends from :func:`as_names`.
        kinds: Output: types, 0 for no such member.
        first: Output: starts of the values.
        last: Output: ends of the values.
    """
    kinds[:] = 0
    at = start + 4
    while at < end - 1:
        stop = name_end(data, at + 1, end - 1)
        following = value_end(data, data[at], stop + 1, end - 1)
        if stop < 0 or following < 0:
            return
        size = stop - at - 1
        begin = 0
        for slot in range(len(name_ends)):
            if name_ends[slot] - begin == size and not kinds[slot] and same(data, at + 1, names, begin, size):
                kinds[slot], first[slot], last[slot] = data[at], stop + 1, following
                break
            begin = name_ends[slot]
        at = following


@kernel
def keep_member(kinds: Ints, first: Ints, last: Ints, slot: int, found: tuple[int, int, int]) -> None:
    """Store a member in a slot; null counts as missing."""
    if found[0] not in (0, -1, 10):
        kinds[slot], first[slot], last[slot] = found[0], found[1], found[2]


def strings(data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> pa.Array:
    """Read strings; null for values that are not strings."""
    valid = kinds == 2
    return gather_text(data, first + 4, last - 1, valid)


@kernel
def numbers(data: Bytes, valid: Flags, first: Ints, width: int) -> np.ndarray:
    """Read integers of 4 or 8 bytes; those of 4 are sign-extended."""
    values = np.zeros(len(valid), np.int64)
    for row in range(len(valid)):
        if valid[row]:
            values[row] = read_i32(data, first[row]) if width == 4 else np.int64(read_u64(data, first[row]))
    return values
