"""How BSON lies in memory: lengths and ends, checked, for kernels that walk it in place.

Little-endian; sizes by type as in bsonspec.org::

    document   i32 length, elements, 00
    element    u8 type, name, 00, value

Nothing here reads at or beyond the limit that it is given.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def int32(data: np.ndarray, at: int) -> int:
    """Read a little-endian signed number of 4 bytes."""
    return int(
        np.int32(
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
    )


@njit(cache=True)
def int64(data: np.ndarray, at: int) -> int:
    """Read a little-endian signed number of 8 bytes."""
    return int(np.int64(uint64(data, at)))


@njit(cache=True)
def uint64(data: np.ndarray, at: int) -> np.uint64:
    """Read a little-endian unsigned number of 8 bytes."""
    value = np.uint64(0)
    for i in range(8):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@njit(cache=True)
def name_end(data: np.ndarray, at: int, limit: int) -> int:
    """Return the place of the zero byte that ends a name, -1 if there is none before ``limit``."""
    while at < limit:
        if data[at] == 0:
            return at
        at += 1
    return -1


@njit(cache=True)
def string_end(data: np.ndarray, at: int, limit: int) -> int:
    """Return where a string (i32 length, bytes, 00) ends, -1 if it is broken."""
    if at + 5 > limit:
        return -1
    size = int32(data, at)
    if size < 1 or size > limit - at - 4 or data[at + 3 + size] != 0:
        return -1
    return at + 4 + size


@njit(cache=True)
def document_end(data: np.ndarray, at: int, limit: int) -> int:
    """Return where a document or array ends by its length, -1 if that is broken."""
    if at + 5 > limit:
        return -1
    size = int32(data, at)
    if size < 5 or size > limit - at or data[at + size - 1] != 0:
        return -1
    return at + size


@njit(cache=True)
def value_end(data: np.ndarray, kind: int, at: int, limit: int) -> int:
    """Return where a value ends, -1 if it doesn't fit before ``limit`` or its type is unknown."""
    end = -1
    if kind in (6, 10, 127, 255):
        end = at
    elif kind == 8:
        end = at + 1
    elif kind == 16:
        end = at + 4
    elif kind in (1, 9, 17, 18):
        end = at + 8
    elif kind == 7:
        end = at + 12
    elif kind == 19:
        end = at + 16
    elif kind in (2, 13, 14):
        end = string_end(data, at, limit)
    elif kind in (3, 4):
        end = document_end(data, at, limit)
    elif kind == 5:
        if at + 5 > limit:
            return -1
        size = int32(data, at)
        if size < 0 or size > limit - at - 5:
            return -1
        if data[at + 4] == 2 and (size < 4 or int32(data, at + 5) != size - 4):
            return -1
        end = at + 5 + size
    elif kind == 11:
        pattern = name_end(data, at, limit)
        if pattern < 0:
            return -1
        options = name_end(data, pattern + 1, limit)
        end = options + 1 if options >= 0 else -1
    elif kind == 12:
        name = string_end(data, at, limit)
        end = name + 12 if name >= 0 else -1
    elif kind == 15:
        if at + 14 > limit:
            return -1
        size = int32(data, at)
        if size < 14 or size > limit - at:
            return -1
        code = string_end(data, at + 4, at + size)
        if code < 0 or document_end(data, code, at + size) != at + size:
            return -1
        end = at + size
    return end if end <= limit else -1
