"""MongoDB's Extended JSON from raw BSON bytes, as the Java driver and PyMongo write it.

========== =================================================== ================ ======
profile    form                                                between members  driver
========== =================================================== ================ ======
KEY        version 2, relaxed: keys of Debezium's events       ``,``            Java
DOCUMENT   version 1, strict: before, after, lsid              ``,``            Java
UPDATED    version 2, relaxed: updatedFields                   ``, ``           Java
CANONICAL  version 2, canonical                                ``,``            Java
LINES      version 2, canonical, two spaces per level          a line break     Java
MIRROR     version 2, canonical: texts in mirrors              ``, ``           PyMongo
JSON_UTIL  as MIRROR, other characters than ASCII escaped      ``, ``           PyMongo
========== =================================================== ================ ======

A colon and one space follow a member name, also inside the wrappers. Source of the rules of the Java driver:
``docs/formats/mongodb-events.md``, section 6; JSON_UTIL equals ``json_util.dumps`` in canonical mode. The
drivers differ in more: of members with the same name, the Java driver writes the last at the position of the
first, PyMongo's profiles all. The Java driver sorts options of regular expressions, has upper-case subtypes
of binary and Java's layout of doubles, and replaces several bytes that aren't UTF-8 by one U+FFFD, not each.

The text is written from the bytes, without Python objects, so it also contains what Python's types can't
hold: symbols, DBPointers, undefined, dates of any year. One kernel walks the bytes in place with its own
stack. The layout it walks (little-endian)::

    document   i32 length, elements, 00
    element    u8 type, name, 00, value      (bsonspec.org; sizes by type in value_end)

Every length is checked against the enclosing value; an invalid value results in :data:`BROKEN` for its row
and doesn't affect the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats import bson
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.bson import ARRAY, CODE_WITH_SCOPE, name_end, scope_start, value_end
from airflow_cdc_provider.formats.bson import DOCUMENT as _DOCUMENT
from airflow_cdc_provider.formats.byte_kernels import copy, load_little64
from airflow_cdc_provider.formats.extended_json_numbers import put
from airflow_cdc_provider.formats.extended_json_text import escapes_of_java, escapes_of_python, write_string
from airflow_cdc_provider.formats.extended_json_values import (
    ASCII,
    CODE_OPENS,
    INDENTED,
    PYTHON,
    SCOPE,
    SPACED,
    VERSION_1,
    WRAPPED,
    close,
    write_scalar,
    write_separator,
)
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, kernel, walker

KEY: Final = 0
DOCUMENT: Final = VERSION_1
UPDATED: Final = SPACED
CANONICAL: Final = WRAPPED
LINES: Final = WRAPPED | INDENTED
MIRROR: Final = WRAPPED | SPACED | PYTHON
JSON_UTIL: Final = MIRROR | ASCII

ABSENT: Final = 0
DONE: Final = 1
BROKEN: Final = 2

MAX_DEPTH: Final = 1000
"""Maximum nesting depth of the Java driver's profiles; the server stores 200."""

_GROWTH: Final = 16
"""Maximum ratio of an element's text to its bytes: the 4 bytes of an empty regular expression become 62."""
_SLACK: Final = 64


class Texts(NamedTuple):
    """Texts of many values.

    Args:
        column: A string array; null for missing and broken values.
        status: :data:`ABSENT`, :data:`DONE` or :data:`BROKEN` per value.
        inexact: Whether each value has bytes that are not UTF-8, which U+FFFD replaces.
    """

    column: pa.StringArray
    status: npt.NDArray[np.uint8]
    inexact: npt.NDArray[np.bool_]

    @property
    def not_utf8(self) -> int:
        """Number of values with bytes that are not UTF-8."""
        return int(np.count_nonzero(self.inexact))


def write_values(
    data: Bytes, kinds: npt.NDArray[np.integer], starts: Ints, ends: Ints, profile: int
) -> Texts:
    """Write values as Extended JSON.

    Args:
        data: The buffer.
        kinds: BSON type of each value, 3 for a document, 0 for none.
        starts: First byte of each value.
        ends: End of the enclosing bytes, which the value must not exceed; in the profiles of PyMongo, the
            byte after the value.
        profile: One of the profiles above.
    """
    python = profile & PYTHON != 0
    kinds = kinds.astype(np.uint8)
    count = len(kinds)
    sizes = np.where(kinds != 0, np.maximum(ends - starts, 0), 0)
    largest = int(sizes.max(initial=0)) * _GROWTH + _SLACK
    out = np.empty(3 * int(sizes.sum()) + largest, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    status = np.zeros(count, np.uint8)
    flaws = np.zeros(count, np.uint8)
    frames = np.zeros((bson.MAX_DEPTH if python else MAX_DEPTH, 6), np.int64)
    escapes = escapes_of_python(ascii_only=profile & ASCII != 0) if python else escapes_of_java()
    row = 0
    while True:
        row = _write_rows(
            data, kinds, starts, ends, profile, out, offsets, status, flaws, row, escapes, frames
        )
        if row == count:
            break
        grown = np.empty(len(out) * 2 + largest, np.uint8)
        grown[: offsets[row]] = out[: offsets[row]]
        out = grown
    column = text_array(out, offsets, status == DONE)
    inexact = (flaws != 0) & (status == DONE)
    return Texts(_indented(column) if profile & INDENTED else column, status, inexact)


@kernel
def _write_rows(
    data: Bytes,
    kinds: npt.NDArray[np.uint8],
    starts: Ints,
    ends: Ints,
    profile: Int,
    out: Bytes,
    offsets: Ints,
    status: npt.NDArray[np.uint8],
    flaws: npt.NDArray[np.uint8],
    row: Int,
    escapes: Flags,
    frames: Ints,
) -> Int:
    """Write rows from ``row`` on while the next one surely fits; return the next row."""
    while row < len(kinds):
        at = offsets[row]
        if kinds[row]:
            start, end = starts[row], ends[row]
            after: Int = -1
            if 0 <= start <= end <= len(data):
                if at + (end - start) * _GROWTH + _SLACK > len(out):
                    return row
                kind = np.int64(kinds[row])
                if not profile & PYTHON or value_end(data, kind, start, end) == end:
                    flaw = flaws[row : row + 1]
                    after = _write_value(data, kind, start, end, profile, out, at, escapes, flaw, frames)
            status[row] = BROKEN if after < 0 else DONE
            at = max(at, after)
        offsets[row + 1] = at
        row += 1
    return row


# Columns of a frame: a document that is being written.
_NEXT: Final = 0
_LAST: Final = 1
_START: Final = 2
_KIND: Final = 3
_REPEATS: Final = 4
_WRITTEN: Final = 5


@kernel
def _write_value(
    data: Bytes,
    kind: Int,
    start: Int,
    limit: Int,
    profile: Int,
    out: Bytes,
    at: Int,
    escapes: Flags,
    flaws: Bytes,
    frames: Ints,
) -> Int:
    """Write one value of any type; return -1 if it is broken.

    A frame has the next element, the last byte and the first one of the document, its kind, whether names may
    repeat, whether an element is written.
    """
    python = profile & PYTHON != 0
    end = value_end(data, kind, start, limit)
    if end < 0:
        return -1
    depth = 0
    while True:
        if kind in (_DOCUMENT, ARRAY, CODE_WITH_SCOPE):
            if depth == len(frames):
                return -1
            if kind == CODE_WITH_SCOPE:
                scope = scope_start(data, start)
                at = put(CODE_OPENS, out, at)
                at = write_string(data, start + 8, scope - 1, out, at, escapes, python, flaws)
                at = put(SCOPE, out, write_separator(profile, out, at))
                start = scope
            out[at] = 91 if kind == ARRAY else 123
            at += 1
            frames[depth, _NEXT] = start + 4
            frames[depth, _LAST] = end - 1
            frames[depth, _START] = start
            frames[depth, _KIND] = kind
            frames[depth, _REPEATS] = not python and kind != ARRAY and may_repeat(data, start, end)
            frames[depth, _WRITTEN] = 0
            depth += 1
        else:
            at = write_scalar(data, kind, start, end, profile, out, at, escapes, flaws)
        kind = np.int64(0)
        while kind == 0:
            if depth == 0:
                return at
            top = depth - 1
            element, last = frames[top, _NEXT], frames[top, _LAST]
            if element == last:
                if frames[top, _KIND] == ARRAY:
                    out[at] = 93
                    at += 1
                else:
                    at = close(2 if frames[top, _KIND] == CODE_WITH_SCOPE else 1, out, at)
                depth -= 1
                continue
            name = name_end(data, element + 1, last)
            if name < 0:
                return -1
            start = name + 1
            end = value_end(data, np.int64(data[element]), start, last)
            if end < 0:
                return -1
            frames[top, _NEXT] = end
            source = element
            if frames[top, _REPEATS]:
                source = last_of_name(data, element + 1, frames[top, _START], last + 1)
                if source < 0:
                    continue
                start = name_end(data, source + 1, last) + 1
                end = value_end(data, np.int64(data[source]), start, last)
                if end < 0:
                    return -1
            if frames[top, _WRITTEN]:
                at = write_separator(profile, out, at)
            frames[top, _WRITTEN] = 1
            if frames[top, _KIND] != ARRAY:
                at = write_string(data, element + 1, name, out, at, escapes, python, flaws)
                out[at], out[at + 1] = 58, 32
                at += 2
            kind = np.int64(data[source])


_PRIME: Final = np.uint64(1099511628211)


@walker
def _same(data: Bytes, a: Int, b: Int) -> bool:
    """Compare two NUL-terminated names."""
    while data[a] == data[b]:
        if data[a] == 0:
            return True
        a += 1
        b += 1
    return False


@kernel
def may_repeat(data: Bytes, start: Int, end: Int) -> bool:
    """Return whether two names of a document have the same hash; false for a broken one, detected later."""
    hashes = np.empty(32, np.uint64)
    count = 0
    at = start + 4
    while at < end - 1:
        kind = data[at]
        name = at + 1
        at = name_end(data, name, end)
        if at < 0:
            return False
        value = np.uint64(at - name)
        while at - name >= 8:
            value = (value ^ np.uint64(load_little64(data, name))) * _PRIME
            name += 8
        for i in range(name, at):
            value = (value ^ np.uint64(data[np.uint64(i)])) * _PRIME
        at = value_end(data, kind, at + 1, end - 1)
        if at < 0:
            return False
        if count == len(hashes):
            more = np.empty(2 * count, np.uint64)
            more[:count] = hashes
            hashes = more
        hashes[count] = value
        count += 1
    if count <= 16:
        for i in range(1, count):
            for j in range(i):
                if hashes[i] == hashes[j]:
                    return True
        return False
    ordered = np.sort(hashes[:count])
    repeats = 0
    for i in range(1, count):
        repeats += ordered[i] == ordered[i - 1]
    return repeats > 0


@walker
def last_of_name(data: Bytes, name: Int, start: Int, end: Int) -> Int:
    """Return the last element with this name, or -1 if an element before ``name`` has it."""
    at = start + 4
    last = name - 1
    while at < end - 1:
        if _same(data, at + 1, name):
            if at + 1 < name:
                return -1
            last = at
        at = value_end(data, data[at], name_end(data, at + 1, end) + 1, end - 1)
        if at < 0:
            break
    return last


def _indented(texts: pa.StringArray) -> pa.StringArray:
    """Break texts without spaces after commas into lines."""
    data, starts, ends, valid = binary_slices(texts)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _break_lines(data, starts, ends, np.empty(0, np.uint8), offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _break_lines(data, starts, ends, out, offsets)
    return text_array(out, offsets, valid)


@walker
def _break_lines(data: Bytes, starts: Ints, ends: Ints, out: Bytes, offsets: Ints) -> None:
    """Write the texts; with an empty ``out`` only measure them."""
    writes = len(out) > 0
    at = np.int64(0)
    for row in range(len(starts)):
        level = 0
        i = starts[row]
        while i < ends[row]:
            size, breaks = 1, False
            if data[i] == 34:
                while data[i + size] != 34:
                    size += 2 if data[i + size] == 92 else 1
                size += 1
            elif data[i] in (123, 91):
                breaks = data[i + 1] not in (125, 93)
                size = 1 if breaks else 2  # an empty one stays on its line
                level += breaks
            elif data[i] in (125, 93):
                level -= 1
                at = _break_line(out, at, level, writes)
            else:
                breaks = data[i] == 44
            if writes:
                copy(data, i, size, out, at)
            at += size
            if breaks:
                at = _break_line(out, at, level, writes)
            i += size
        offsets[row + 1] = at


@walker
def _break_line(out: Bytes, at: Int, level: Int, writes: bool) -> Int:
    size = 1 + 2 * level
    if writes:
        out[at] = 10
        for k in range(1, size):
            out[at + k] = 32
    return at + size
