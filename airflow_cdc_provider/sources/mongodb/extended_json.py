"""MongoDB's Extended JSON from raw BSON bytes, in the format of the Java driver, in four profiles.

========== ============================================================= =========================
profile    form                                                          separator of members
========== ============================================================= =========================
KEY        version 2, relaxed: keys of Debezium's events                 ``,``
DOCUMENT   version 1, strict: before, after, lsid                        ``,``
UPDATED    version 2, relaxed: updatedFields                             ``, ``
CANONICAL  version 2, canonical                                          ``,``
========== ============================================================= =========================

A colon and one space follow a member name, also inside the wrappers. Source of the rules:
``docs/formats/mongodb-events.md``, section 6. One kernel walks the bytes in place with its own stack, without
Python objects. The layout it walks (little-endian)::

    document   i32 length, elements, 00
    element    u8 type, name, 00, value      (bsonspec.org; sizes by type in value_end)

Every length is checked against the enclosing value; an invalid value results in :data:`BROKEN` for its row
and doesn't affect the others. Bytes that are not UTF-8 are replaced by U+FFFD, as in the driver.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.byte_kernels import load_little64
from airflow_cdc_provider.formats.kernels import kernel
from airflow_cdc_provider.sources.mongodb.bson import name_end, scope_start, value_end
from airflow_cdc_provider.sources.mongodb.extended_json_values import (
    CODE,
    SCOPE,
    UPDATED,
    put,
    write_characters,
    write_scalar,
    write_separator,
)

ABSENT: Final = 0
DONE: Final = 1
BROKEN: Final = 2

MAX_DEPTH: Final = 1000
"""Maximum nesting depth; the server stores 200."""

_GROWTH: Final = 16
"""Maximum ratio of an element's text to its bytes: the 4 bytes of an empty regular expression become 60."""
_SLACK: Final = 64


@cache
def _escaped_units() -> np.ndarray:
    r"""Return per UTF-16 unit whether it is written as ``\uxxxx``.

    Characters of the general categories that the driver lists are not escaped. Unicode 14 and 15 (Python 3.11
    and 3.12, JDK 21) agree on them for the whole BMP.
    """
    kept = {"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Zs"}
    kept |= {"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So"}
    return np.fromiter((unicodedata.category(chr(u)) not in kept for u in range(65536)), np.bool_, 65536)


def render(
    data: np.ndarray, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray, profile: int
) -> tuple[pa.StringArray, np.ndarray]:
    """Write values as Extended JSON.

    Args:
        data: The buffer (``uint8``).
        kinds: BSON type of each value (``uint8``; 3 for a document), 0 for none.
        starts: Start of each value in ``data`` (``int64``).
        ends: End of the enclosing bytes (``int64``), which the value must not exceed.
        profile: One of the four above.

    Returns:
        The texts, null for missing and broken values; and :data:`ABSENT`, :data:`DONE` or :data:`BROKEN` per
        row (``uint8``).
    """
    count = len(kinds)
    data = np.ascontiguousarray(data, np.uint8)
    sizes = np.where(kinds != 0, np.maximum(ends - starts, 0), 0)
    largest = int(sizes.max(initial=0)) * _GROWTH + _SLACK
    out = np.empty(2 * int(sizes.sum()) + largest, np.uint8)
    offsets = np.zeros(count + 1, np.int64)
    status = np.zeros(count, np.uint8)
    row, at = 0, 0
    while row < count:
        row, at = _render(data, kinds, starts, ends, profile, out, offsets, status, row, at, _escaped_units())
        if row < count:
            grown = np.empty(len(out) * 2 + largest, np.uint8)
            grown[:at] = out[:at]
            out = grown
    return text_array(out, offsets, status == DONE), status


def render_documents(documents: pa.Array, profile: int) -> tuple[pa.StringArray, np.ndarray]:
    """Write whole documents, one a row of a binary array, null for none; see :func:`render`."""
    data, starts, ends, valid = binary_slices(documents)
    return render(data, np.where(valid, 3, 0).astype(np.uint8), starts, ends, profile)


_FRAME_DOCUMENT: Final = 0
_FRAME_ARRAY: Final = 1
_FRAME_SCOPE: Final = 2


_PRIME: Final = np.uint64(1099511628211)


@kernel
def _same(data: np.ndarray, a: int, b: int) -> bool:
    """Compare two NUL-terminated names."""
    while data[a] == data[b]:
        if data[a] == 0:
            return True
        a += 1
        b += 1
    return False


@kernel
def may_repeat(data: np.ndarray, start: int, end: int) -> bool:
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


@kernel
def last_of_name(data: np.ndarray, name: int, start: int, end: int) -> int:
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


@kernel
def _value(
    data: np.ndarray,
    kind: int,
    start: int,
    limit: int,
    profile: int,
    out: np.ndarray,
    at: int,
    escaped: np.ndarray,
    frames: np.ndarray,
) -> int:
    """Write one value of any type; return -1 if it is broken.

    ``frames`` is the stack: per level start and end of the document, next element, kind, whether names may
    repeat, elements written.
    """
    depth = 0
    spaced = profile == UPDATED
    while True:
        end = value_end(data, kind, start, limit)
        if end < 0:
            return -1
        if kind in (3, 4, 15):
            if depth == len(frames):
                return -1
            frame = frames[depth]
            frame[3] = _FRAME_ARRAY if kind == 4 else _FRAME_DOCUMENT
            if kind == 15:
                code = scope_start(data, start)
                at = write_characters(data, start + 8, code - 1, out, put(out, at, CODE), escaped)
                out[at] = 34
                at = put(out, write_separator(out, at + 1, spaced), SCOPE)
                start = code
                frame[3] = _FRAME_SCOPE
            out[at] = 91 if kind == 4 else 123
            at += 1
            frame[0], frame[1], frame[2], frame[5] = start, end, start + 4, 0
            frame[4] = kind != 4 and may_repeat(data, start, end)
            depth += 1
        else:
            at = write_scalar(data, kind, start, end, out, at, profile, escaped)
        descended = False
        while depth > 0 and not descended:
            frame = frames[depth - 1]
            element, inner_end = frame[2], frame[1]
            if element == inner_end - 1:
                out[at] = 93 if frame[3] == _FRAME_ARRAY else 125
                at += 1
                if frame[3] == _FRAME_SCOPE:
                    out[at] = 125
                    at += 1
                depth -= 1
                continue
            name = name_end(data, element + 1, inner_end - 1)
            if name < 0:
                return -1
            following = value_end(data, data[element], name + 1, inner_end - 1)
            if following < 0:
                return -1
            frame[2] = following
            source = element
            if frame[4]:
                source = last_of_name(data, element + 1, frame[0], inner_end)
                if source < 0:
                    continue
            if frame[5]:
                at = write_separator(out, at, spaced)
            frame[5] = 1
            if frame[3] != _FRAME_ARRAY:
                out[at] = 34
                at = write_characters(data, element + 1, name, out, at + 1, escaped)
                out[at], out[at + 1], out[at + 2] = 34, 58, 32
                at += 3
            kind = data[source]
            start = name_end(data, source + 1, inner_end - 1) + 1
            limit = inner_end - 1
            descended = True
        if depth == 0:
            return at


@kernel
def _render(
    data: np.ndarray,
    kinds: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    profile: int,
    out: np.ndarray,
    offsets: np.ndarray,
    status: np.ndarray,
    row: int,
    at: int,
    escaped: np.ndarray,
) -> tuple[int, int]:
    """Write rows from ``row`` on while the next one surely fits; return the next row and the offset."""
    frames = np.zeros((MAX_DEPTH, 6), np.int64)
    while row < len(kinds):
        if kinds[row] == 0:
            status[row] = ABSENT
        elif starts[row] < 0 or ends[row] > len(data) or starts[row] > ends[row]:
            status[row] = BROKEN
        else:
            if at + (ends[row] - starts[row]) * _GROWTH + _SLACK > len(out):
                return row, at
            end = _value(data, kinds[row], starts[row], ends[row], profile, out, at, escaped, frames)
            status[row] = BROKEN if end < 0 else DONE
            at = max(at, end)
        offsets[row + 1] = at
        row += 1
    return row, at
