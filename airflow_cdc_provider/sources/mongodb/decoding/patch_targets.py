"""Resolves the paths of an update in the document that it changes.

The document determines how a path is read: in an array a component is an index, in a document a name. A name
may contain dots (``{"a.b": 1}``, server 5.0). ``disambiguatedPaths``, from 6.1 on, has the components of such
paths; without it, a path that is ambiguous in the document, or doesn't match it, can't be resolved.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.formats.bson import (
    ARRAY,
    DOCUMENT,
    INT32,
    MAX_DEPTH,
    STRING,
    name_end,
    read_i32,
    value_end,
)
from airflow_cdc_provider.formats.byte_kernels import load_little32, same
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

LARGEST_INDEX: Final = 16 * 1024 * 1024
"""A bound that exceeds the number of elements of any document."""

# Columns of a target, which find_target fills.
FOUND: Final = 0
IN_ARRAY: Final = 1
DEPTH: Final = 2
ELEMENT: Final = 3
VALUE: Final = 4
VALUE_END: Final = 5
NAME: Final = 6
NAME_END: Final = 7
INDEX: Final = 8
ELEMENTS: Final = 9
TARGET: Final = 10

# Columns of a path: start and end of a component in the update's bytes, and its index.
_BEGIN: Final = 0
_END: Final = 1
_NUMBER: Final = 2
_A_NAME: Final = -1
"""Used instead of an index: the component is a name."""
_EITHER: Final = -2
"""The component is a name in a document and an index in an array."""


class Walk(NamedTuple):
    """The way to a target.

    ``stack``   starts of the enclosing documents and arrays
    ``path``    scratch: the components of its path
    ``target``  see above
    """

    stack: Ints
    path: Ints
    target: Ints


@walker
def find_target(
    out: Bytes, begin: int, patch: Bytes, start: int, end: int, known: int, known_end: int, walk: Walk
) -> bool:
    """Find the member that a path names, or the offset at which it would be added; fills ``walk``.

    Returns:
        Whether the path is unambiguous.
    """
    stack, path, target = walk.stack, walk.path, walk.target
    count = _read_path(patch, start, end, known, known_end, path)
    if count <= 0:
        return False
    depth = 0
    stack[0] = begin
    in_array = False
    step = 0
    while depth < MAX_DEPTH - 1:
        target[DEPTH] = depth
        target[IN_ARRAY] = in_array
        if in_array:
            index = _index(patch, path, step)
            if index < 0:
                return False
            matched = step
            target[INDEX] = index
            target[NAME], target[NAME_END] = path[step, _BEGIN], path[step, _END]
            kind = find_element(out, stack[depth], index, target)
        else:
            matched, kind = _find_member(out, stack[depth], patch, path, step, count, target)
            if matched < 0:
                return False
        if matched == count - 1:
            return True
        if kind not in (DOCUMENT, ARRAY):
            return False
        depth += 1
        stack[depth] = target[VALUE]
        in_array = kind == ARRAY
        step = matched + 1
    return False


@walker
def _read_path(patch: Bytes, start: int, end: int, known: int, known_end: int, path: Ints) -> Int:
    """Split a path into components; return their number, or 0 if the path is invalid."""
    if known >= 0:
        pos = known + 4
        while pos < known_end - 1:
            stop = name_end(patch, pos + 1, known_end - 1)
            after = value_end(patch, np.int64(patch[pos]), stop + 1, known_end - 1) if stop >= 0 else stop
            if after < 0:
                return 0
            if patch[pos] == ARRAY and same_text(patch, pos + 1, stop, start, end):
                return _read_components(patch, stop + 1, after, path)
            pos = after
    count = 0
    pos = start
    path[0, _BEGIN] = start
    while pos <= end:
        if pos == end or patch[pos] == 46:
            if count == len(path) - 1:
                return 0
            path[count, _END] = pos
            path[count, _NUMBER] = _EITHER
            count += 1
            path[count, _BEGIN] = pos + 1
        pos += 1
    return count


@walker
def _read_components(patch: Bytes, start: int, end: int, path: Ints) -> Int:
    """Read the components of a path from ``disambiguatedPaths``."""
    count = 0
    pos = start + 4
    while pos < end - 1:
        stop = name_end(patch, pos + 1, end - 1)
        after = value_end(patch, np.int64(patch[pos]), stop + 1, end - 1) if stop >= 0 else stop
        if after < 0 or count == len(path):
            return 0
        if patch[pos] == STRING:
            path[count, _BEGIN] = stop + 5
            path[count, _END] = after - 1
            path[count, _NUMBER] = _A_NAME
        elif patch[pos] == INT32:
            path[count, _BEGIN] = stop
            path[count, _END] = stop
            path[count, _NUMBER] = read_i32(patch, stop + 1)
            if path[count, _NUMBER] < 0:
                return 0
        else:
            return 0
        count += 1
        pos = after
    return count


@walker
def _index(patch: Bytes, path: Ints, step: int) -> Int:
    """Return a component as an index, -1 if it is not an index."""
    if path[step, _NUMBER] != _EITHER:
        return path[step, _NUMBER]
    start, end = path[step, _BEGIN], path[step, _END]
    if start == end or (patch[start] == 48 and end - start > 1):
        return np.int64(-1)
    index = np.int64(0)
    for pos in range(start, end):
        digit = np.int64(patch[pos]) - 48
        if digit < 0 or digit > 9 or index > LARGEST_INDEX:
            return np.int64(-1)
        index = 10 * index + digit
    return index


@walker
def find_element(out: Bytes, start: int, index: int, target: Ints) -> Int:
    """Find an element of an array; return its type, or 0 and the number of elements."""
    limit = start + load_little32(out, start) - 1
    pos = start + 4
    number = np.int64(0)
    target[FOUND] = 0
    while pos < limit:
        stop = name_end(out, pos + 1, limit)
        after = value_end(out, np.int64(out[pos]), stop + 1, limit) if stop >= 0 else stop
        if after < 0:
            break
        if number == index:
            target[FOUND] = 1
            target[ELEMENT] = pos
            target[VALUE] = stop + 1
            target[VALUE_END] = after
            return np.int64(out[pos])
        number += 1
        pos = after
    target[ELEMENTS] = number
    return np.int64(0)


@walker
def _find_member(
    out: Bytes, start: int, patch: Bytes, path: Ints, step: int, count: int, target: Ints
) -> tuple[Int, Int]:
    """Find the member of a document that a path names from a component on.

    Returns:
        The last component in the member's name, and the member's type. The path's last component and 0 if the
        path names a new member; -1 if it is ambiguous or doesn't match.
    """
    limit = start + load_little32(out, start) - 1
    pos = start + 4
    matched = -1
    kind = np.int64(0)
    plain = path[step, _NUMBER] != _EITHER
    if path[step, _NUMBER] >= 0:
        return -1, kind
    while pos < limit:
        stop = name_end(out, pos + 1, limit)
        after = value_end(out, np.int64(out[pos]), stop + 1, limit) if stop >= 0 else stop
        if after < 0:
            return -1, kind
        size = stop - pos - 1
        for last in range(step, step + 1 if plain else count):
            if path[last, _END] - path[step, _BEGIN] != size:
                continue
            if not same(out, pos + 1, patch, path[step, _BEGIN], size):
                break
            if last < count - 1 and out[pos] not in (DOCUMENT, ARRAY):
                break
            if matched >= 0:
                return -1, kind
            matched = last
            kind = np.int64(out[pos])
            target[ELEMENT] = pos
            target[VALUE] = stop + 1
            target[VALUE_END] = after
            break
        pos = after
    target[FOUND] = matched >= 0
    target[NAME] = path[step, _BEGIN]
    if matched < 0:
        # For a path through a missing document the server would have reported that document, so this is a
        # single new name with dots.
        if plain and step < count - 1:
            return -1, kind
        matched = count - 1
    target[NAME_END] = path[matched, _END]
    return matched, kind


@walker
def same_text(data: Bytes, start: int, end: int, other: int, other_end: int) -> bool:
    """Return whether two spans of a buffer have equal bytes."""
    return end - start == other_end - other and same(data, start, data, other, end - start)
