"""Kernels that walk BSON in place: validate, find fields, split batches, without Python objects.

A document (https://bsonspec.org, all little-endian)::

    i32 length of the whole document | elements ... | 00
    element: u8 type | name, NUL-terminated | value

====== ==================== ======================================================================
type   name                 value
====== ==================== ======================================================================
01     double               8 bytes
02     string               i32 length with NUL, UTF-8, NUL (also 0D code, 0E symbol)
03 04  document, array      a document; an array's names are ``0``, ``1`` ...
05     binary               i32 length, u8 subtype, bytes; subtype 2 has an i32 inner length first
06 0A  undefined, null      nothing (also 7F maxKey, FF minKey)
07     ObjectId             12 bytes
08     boolean              00 or 01
09     date                 i64 ms since 1970
0B     regular expression   two NUL-terminated texts: pattern, options
0C     DBPointer            a string, then 12 bytes
0F     code with scope      i32 length of the whole value, a string, a document
10     int32                4 bytes
11     timestamp            u32 increment, u32 seconds
12     int64                8 bytes
13     decimal128           16 bytes, IEEE 754-2008, binary integer significand
====== ==================== ======================================================================

The kernels never read outside ``[start, end)``, whatever the bytes are. :func:`validate` checks a document to
its leaves; the other kernels check the lengths that they follow and return "missing" or :data:`BROKEN` if a
length is invalid. UTF-8 is not checked, as on the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

DOUBLE: Final = 0x01
STRING: Final = 0x02
DOCUMENT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
UNDEFINED: Final = 0x06
OBJECT_ID: Final = 0x07
BOOLEAN: Final = 0x08
DATE: Final = 0x09
NULL: Final = 0x0A
REGEX: Final = 0x0B
DB_POINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
TIMESTAMP: Final = 0x11
INT64: Final = 0x12
DECIMAL128: Final = 0x13
MAX_KEY: Final = 0x7F
MIN_KEY: Final = 0xFF

MAX_DEPTH: Final = 256
"""Maximum nesting depth; the server's own limit is 180 for users, 200 internally."""

BROKEN: Final = -1
"""Result of a kernel for a length that exceeds its bounds."""

_ONES: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)

FAULTS: Final[Sequence[str]] = (
    "",
    "the length of a document is wrong",
    "a document doesn't end with a zero byte",
    "a name isn't terminated",
    "a value leaves its document",
    "an unknown element type",
    "a boolean is neither 0 nor 1",
    "documents are nested too deep",
)
"""Texts of the fault numbers that :func:`validate` returns."""

_LENGTH: Final = 1
_TERMINATOR: Final = 2
_NAME: Final = 3
_VALUE: Final = 4
_TYPE: Final = 5
_BOOLEAN: Final = 6
_DEPTH: Final = 7


@dataclass(frozen=True)
class Spans:
    """Documents inside a buffer.

    Args:
        starts: First byte of each.
        ends: Byte after each.
        stopped_at: Offset at which splitting stopped because of an invalid length; otherwise the buffer's
            length.
    """

    starts: Ints
    ends: Ints
    stopped_at: int

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.starts)


def as_bytes(data: bytes | bytearray | memoryview | Bytes) -> Bytes:
    """View bytes as the array type of the kernels, without a copy."""
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)


def split_documents(data: Bytes) -> Spans:
    """Split concatenated documents by their length prefixes.

    Contents are not checked. Splitting stops at an invalid length: later documents can't be located.
    """
    ends = np.empty(max(16, len(data) // 64), np.int64)
    count, stopped = _cut_documents(data, 0, 0, ends)
    while stopped < 0:
        ends = np.concatenate([ends, np.empty(len(ends), np.int64)])
        count, stopped = _cut_documents(data, count, int(ends[count - 1]), ends)
    ends = ends[:count]
    starts = np.zeros(count, np.int64)
    starts[1:] = ends[:-1]
    return Spans(starts, ends, stopped)


def split_array(data: Bytes, start: int, end: int) -> Spans:
    """Split an array of documents (``firstBatch``, ``nextBatch``) into its elements."""
    capacity = max(16, (end - start) // 64)
    while True:
        starts = np.empty(capacity, np.int64)
        ends = np.empty(capacity, np.int64)
        count, stopped = _cut_array(data, start, end, starts, ends)
        if count <= capacity:
            return Spans(starts[:count], ends[:count], stopped)
        capacity = count


def find_in_all(data: Bytes, starts: Ints, ends: Ints, name: bytes) -> tuple[Ints, Ints, Ints]:
    """Find a top-level member in many documents: type (0: none), first byte and byte after of each."""
    kinds, value_starts, value_ends = (np.zeros(len(starts), np.int64) for _ in range(3))
    _find_in_all(data, starts, ends, np.frombuffer(name, np.uint8), kinds, value_starts, value_ends)
    return kinds, value_starts, value_ends


def validate_all(data: Bytes, starts: Ints, ends: Ints, faults: Ints, offsets: Ints) -> int:
    """Validate documents (start -1: none); fill fault numbers and offsets, return the number of faults."""
    return int(_validate_all(data, starts, ends, faults, offsets, np.empty(MAX_DEPTH, np.int64)))


@walker
def read_i32(data: Bytes, pos: int) -> Int:
    """Read a signed 32-bit number; the caller has checked the bounds."""
    at = np.uint64(pos)  # unsigned, so that the four reads become one
    return np.int64(
        np.int32(
            np.uint32(data[at])
            | (np.uint32(data[at + np.uint64(1)]) << np.uint32(8))
            | (np.uint32(data[at + np.uint64(2)]) << np.uint32(16))
            | (np.uint32(data[at + np.uint64(3)]) << np.uint32(24))
        )
    )


@walker
def read_u64(data: Bytes, pos: int) -> Int:
    """Read an unsigned 64-bit number; the caller has checked the bounds."""
    at = np.uint64(pos)
    value = np.uint64(0)
    for i in range(8):
        value |= np.uint64(data[at + np.uint64(i)]) << np.uint64(8 * i)
    return value


@walker
def name_end(data: Bytes, pos: int, end: int) -> Int:
    """Return the offset of the NUL that ends a name (or a regular expression's text), or BROKEN."""
    at = np.uint64(pos)
    stop = np.uint64(end) if end > pos else at
    while stop - at >= np.uint64(8):
        word = read_u64(data, at)
        zeros = (word - _ONES) & ~word & _HIGH_BITS  # the lowest bit set is that of the first zero byte
        if zeros != 0:
            below = ((zeros & (~zeros + np.uint64(1))) - np.uint64(1)) & _HIGH_BITS
            return np.int64(at + (((below >> np.uint64(7)) * _ONES) >> np.uint64(56)))
        at += np.uint64(8)
    while at < stop:
        if data[at] == 0:
            return np.int64(at)
        at += np.uint64(1)
    return np.int64(BROKEN)


@walker
def _string_end(data: Bytes, pos: int, end: int) -> Int:
    if end - pos < 5:
        return np.int64(BROKEN)
    length = read_i32(data, pos)
    if length < 1 or length > end - pos - 4:
        return np.int64(BROKEN)
    stop = np.int64(pos + 4 + length)
    return stop if data[np.uint64(stop - 1)] == 0 else np.int64(BROKEN)


@walker
def _document_end(data: Bytes, pos: int, end: int) -> Int:
    if end - pos < 5:
        return np.int64(BROKEN)
    length = read_i32(data, pos)
    if length < 5 or length > end - pos or data[np.uint64(pos + length - 1)] != 0:
        return np.int64(BROKEN)
    return np.int64(pos + length)


def _fixed_sizes() -> npt.NDArray[np.int8]:
    sizes = np.full(256, _UNKNOWN, np.int8)
    sizes[[DOUBLE, DATE, TIMESTAMP, INT64]] = 8
    sizes[[INT32, OBJECT_ID, BOOLEAN, DECIMAL128]] = (4, 12, 1, 16)
    sizes[[NULL, UNDEFINED, MAX_KEY, MIN_KEY]] = 0
    sizes[[STRING, CODE, SYMBOL, DOCUMENT, ARRAY, BINARY, REGEX, DB_POINTER, CODE_WITH_SCOPE]] = _VARIABLE
    return sizes


_UNKNOWN: Final = -1
_VARIABLE: Final = -2
_SIZES: Final = _fixed_sizes()


@walker
def value_end(data: Bytes, kind: int, pos: int, end: int) -> Int:
    """Return the byte after a value, or BROKEN if its type is unknown or it doesn't fit before ``end``.

    Documents are measured by their length alone.
    """
    size = np.int64(_SIZES[np.uint8(kind)])
    if size >= 0:
        return np.int64(pos + size) if end - pos >= size else np.int64(BROKEN)
    if size == _UNKNOWN:
        return np.int64(BROKEN)
    if kind in (DOCUMENT, ARRAY):
        return _document_end(data, pos, end)
    if kind in (STRING, CODE, SYMBOL):
        return _string_end(data, pos, end)
    return np.int64(_other_end(data, kind, pos, end))


@walker
def _other_end(data: Bytes, kind: int, pos: int, end: int) -> Int:
    if kind == BINARY:
        if end - pos < 5:
            return BROKEN
        length = read_i32(data, pos)
        if length < 0 or length > end - pos - 5:
            return BROKEN
        if data[pos + 4] == 2 and (length < 4 or read_i32(data, pos + 5) != length - 4):
            return BROKEN
        return pos + 5 + length
    if kind == REGEX:
        stop = name_end(data, pos, end)
        if stop < 0:
            return BROKEN
        stop = name_end(data, stop + 1, end)
        return stop + 1 if stop >= 0 else BROKEN
    if kind == DB_POINTER:
        stop = _string_end(data, pos, end)
        return stop + 12 if stop >= 0 and end - stop >= 12 else BROKEN
    if end - pos < 14:
        return BROKEN
    length = read_i32(data, pos)
    if length < 14 or length > end - pos:
        return BROKEN
    stop = _string_end(data, pos + 4, pos + length)
    if stop < 0 or _document_end(data, stop, pos + length) != pos + length:
        return BROKEN
    return pos + length


@walker
def is_known_type(kind: int) -> bool:
    """Return whether a type byte is valid BSON."""
    return _SIZES[np.uint8(kind)] != _UNKNOWN


@walker
def scope_start(data: Bytes, pos: int) -> Int:
    """Return the start of the document of a code with scope; :func:`value_end` has checked the value."""
    return pos + 8 + read_i32(data, pos + 4)


@walker
def validate(data: Bytes, start: Int, end: Int, stack: Ints) -> tuple[Int, Int]:  # one return per fault
    """Validate a document to its leaves.

    Args:
        data: The buffer.
        start: Start of the document.
        end: Required end of the document.
        stack: Scratch space, int64, of length MAX_DEPTH.

    Returns:
        Fault number (0 for none) and the offset of the fault.
    """
    if end - start < 5 or read_i32(data, start) != end - start:
        return _LENGTH, start
    if data[end - 1] != 0:
        return _TERMINATOR, end - 1
    depth = 0
    stack[0] = end - 1
    pos: Any = start + 4
    while True:
        limit = stack[depth]
        if pos == limit:
            if depth == 0:
                return 0, end
            depth -= 1
            pos += 1
            continue
        kind = np.int64(data[np.uint64(pos)])
        if not is_known_type(kind):
            return _TYPE, pos
        name = name_end(data, pos + 1, limit)
        if name < 0:
            return _NAME, pos
        value = name + 1
        stop = value_end(data, kind, value, limit)
        if stop < 0:
            return _VALUE, value
        if kind == BOOLEAN and data[np.uint64(value)] > 1:
            return _BOOLEAN, value
        inner = np.int64(-1)
        if kind in (DOCUMENT, ARRAY):
            inner = value
        elif kind == CODE_WITH_SCOPE:
            inner = scope_start(data, value)
        if inner >= 0:
            depth += 1
            if depth >= MAX_DEPTH:
                return _DEPTH, value
            stack[depth] = stop - 1
            pos = inner + 4
        else:
            pos = stop


@walker
def _validate_all(data: Bytes, starts: Ints, ends: Ints, faults: Ints, offsets: Ints, stack: Ints) -> Int:
    broken = 0
    for i in range(len(starts)):
        if starts[i] < 0:
            continue
        fault, offset = validate(data, starts[i], ends[i], stack)
        faults[i] = fault
        offsets[i] = offset
        if fault != 0:
            broken += 1
    return broken


@walker
def find(data: Bytes, start: int, end: int, name: Bytes) -> tuple[Int, Int, Int]:
    """Find a member of a document by name; of several with the name, the last.

    Args:
        data: The buffer.
        start: Start of the document.
        end: End of the document.
        name: The name's bytes.

    Returns:
        Type, first byte and byte after the value; type 0 if there is no such member, or the bytes are broken.
    """
    kind_found = np.int64(0)
    value_found = np.int64(0)
    end_found = np.int64(0)
    pos = start + 4
    limit = end - 1
    size = len(name)
    while pos < limit:
        kind = np.int64(data[pos])
        stop = name_end(data, pos + 1, limit)
        if stop < 0:
            return np.int64(0), np.int64(0), np.int64(0)
        after = value_end(data, kind, stop + 1, limit)
        if after < 0:
            return np.int64(0), np.int64(0), np.int64(0)
        if stop - pos - 1 == size:
            same = True
            for i in range(size):
                if data[pos + 1 + i] != name[i]:
                    same = False
                    break
            if same:
                kind_found = kind
                value_found = stop + 1
                end_found = np.int64(after)
        pos = after
    return kind_found, value_found, end_found


@walker
def _find_in_all(
    data: Bytes, starts: Ints, ends: Ints, name: Bytes, kinds: Ints, value_starts: Ints, value_ends: Ints
) -> None:
    for i in range(len(starts)):
        if starts[i] >= 0 and value_end(data, DOCUMENT, starts[i], ends[i]) == ends[i]:
            kinds[i], value_starts[i], value_ends[i] = find(data, starts[i], ends[i], name)


@walker
def _cut_documents(data: Bytes, count: int, pos: int, ends: Ints) -> tuple[Int, Int]:
    """Fill ends from ``count`` and ``pos`` on; return their number and stop offset, -1 if ends is full."""
    size = len(data)
    while size - pos >= 5:
        length = read_i32(data, pos)
        if length < 5 or length > size - pos:
            break
        if count == len(ends):
            return count, -1
        pos += length
        ends[count] = pos
        count += 1
    return count, pos


@walker
def _cut_array(data: Bytes, start: int, end: int, starts: Ints, ends: Ints) -> tuple[Int, Int]:
    if start < 0 or end > len(data) or end - start < 5:
        return 0, start
    pos = start + 4
    limit = end - 1
    count = 0
    while pos < limit:
        name = name_end(data, pos + 1, limit)
        if data[pos] != DOCUMENT or name < 0:
            return count, pos
        stop = value_end(data, DOCUMENT, name + 1, limit)
        if stop < 0:
            return count, pos
        if count < len(starts):
            starts[count] = name + 1
            ends[count] = stop
        count += 1
        pos = stop
    return count, end
