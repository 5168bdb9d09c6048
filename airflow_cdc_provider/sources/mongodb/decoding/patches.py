"""Applies updates without a document to the document that they change, byte for byte as the server does.

The event's ``updateDescription`` describes an update::

    updatedFields       {path: value ...}             set, replaced, or appended
    removedFields       [path ...]
    truncatedArrays     [{field: path, newSize: int32} ...]
    disambiguatedPaths  {path: [name or index ...]}   from 6.1 on, for ambiguous paths

An existing field keeps its position; a new one is appended to its document. An update with a pipeline may
move a field to the end, which the server reports like any update. A move is detected if the field follows a
new field of the same document. A field with an unchanged value may have been moved, or set again (``$push``
with
``$slice``): such an update is refused. A field that was moved with a different value, without a new field
before it, keeps its position here: its value is right, the order of members is not.

The document determines how a path is read (:mod:`.patch_targets`). If the path is ambiguous or doesn't match,
or the document can't be the one that was updated, the update is refused. Nothing is guessed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.bson import (
    ARRAY,
    DOCUMENT,
    INT32,
    MAX_DEPTH,
    NULL,
    STRING,
    find,
    name_end,
    read_i32,
    value_end,
)
from airflow_cdc_provider.formats.byte_kernels import copy, load_little32, same, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.mongodb.decoding.patch_targets import (
    DEPTH,
    ELEMENT,
    ELEMENTS,
    FOUND,
    IN_ARRAY,
    INDEX,
    LARGEST_INDEX,
    NAME,
    NAME_END,
    TARGET,
    VALUE,
    VALUE_END,
    Walk,
    find_element,
    find_target,
    same_text,
)

_SMALLEST: Final = 5
"""Bytes of a document without members."""
_REFUSED: Final = -1
_BUFFER_FULL: Final = -2


def _name(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)


_UPDATED: Final = _name("updatedFields")
_REMOVED: Final = _name("removedFields")
_TRUNCATED: Final = _name("truncatedArrays")
_KNOWN_PATHS: Final = _name("disambiguatedPaths")
_FIELD: Final = _name("field")
_NEW_SIZE: Final = _name("newSize")


def apply_patches(documents: pa.Array, patches: pa.Array, offsets: Ints) -> pa.Array:
    """Apply updates to documents.

    Args:
        documents: Documents (binary), null for none. Documents with a wrong length are refused.
        patches: Valid ``updateDescription`` documents (binary), grouped by document, in the order of the
            changes.
        offsets: Document ``n`` has the patches from ``offsets[n]`` to before ``offsets[n + 1]``.

    Returns:
        The updated documents (large binary); null if a patch can't be applied.
    """
    data, starts, ends, valid = binary_slices(documents)
    starts = np.where(valid, starts, -1)
    patch_data, patch_starts, patch_ends, _ = binary_slices(patches)
    count = len(starts)
    out = np.empty(int((ends - starts).sum() + (patch_ends - patch_starts).sum()) + 4096, np.uint8)
    out_offsets = np.zeros(count + 1, np.int64)
    applied = np.zeros(count, np.bool_)
    walk = Walk(np.zeros(MAX_DEPTH, np.int64), np.zeros((MAX_DEPTH, 3), np.int64), np.zeros(TARGET, np.int64))
    given = (data, starts, ends, patch_data, patch_starts, patch_ends, offsets)
    done = 0
    while True:
        done = _apply_all(*given, out, out_offsets, applied, walk, done)
        if done == count:
            break
        out = np.concatenate([out[: out_offsets[done]], np.empty(2 * len(out), np.uint8)])
    return text_array(out, out_offsets, applied, binary=True, wide=True)


@walker
def _apply_all(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    patches: Bytes,
    patch_starts: Ints,
    patch_ends: Ints,
    offsets: Ints,
    out: Bytes,
    out_offsets: Ints,
    applied: Flags,
    walk: Walk,
    row: int,
) -> Int:
    """Apply patches from one row on; return the row that didn't fit into ``out``, or the number of rows."""
    while row < len(starts):
        begin = out_offsets[row]
        size = np.int64(_REFUSED)
        if starts[row] >= 0:
            if begin + ends[row] - starts[row] > len(out):
                return row
            copy(data, starts[row], ends[row] - starts[row], out, begin)
            size = ends[row] - starts[row]
            # All lengths inside a document are checked against this length.
            if size < _SMALLEST or load_little32(out, begin) != size:
                size = np.int64(_REFUSED)
        for patch in range(offsets[row], offsets[row + 1]):
            if size < 0:
                break
            size = _apply(out, begin, size, patches, patch_starts[patch], patch_ends[patch], walk)
        if size == _BUFFER_FULL:
            return row
        applied[row] = size >= 0
        out_offsets[row + 1] = begin + max(size, 0)
        row += 1
    return row


@walker
def _apply(out: Bytes, begin: int, size: int, patch: Bytes, start: int, end: int, walk: Walk) -> Int:
    """Apply one update to the document at ``begin``, the last one in ``out``.

    Returns:
        Its new size; or why the update can't be applied, which leaves the document invalid.
    """
    target = walk.target
    kind, known, known_end = find(patch, start, end, _KNOWN_PATHS)
    if kind != DOCUMENT:
        known, known_end = np.int64(-1), np.int64(-1)
    kind, first, last = find(patch, start, end, _REMOVED)
    if kind == ARRAY:
        pos = first + 4
        while pos < last - 1:
            stop = name_end(patch, pos + 1, last - 1)
            after = value_end(patch, np.int64(patch[pos]), stop + 1, last - 1) if stop >= 0 else stop
            if after < 0 or patch[pos] != STRING:
                return np.int64(_REFUSED)
            size = _remove(out, begin, size, patch, stop + 5, after - 1, known, known_end, walk)
            if size < 0:
                return size
            pos = after
    kind, first, last = find(patch, start, end, _TRUNCATED)
    if kind == ARRAY:
        pos = first + 4
        while pos < last - 1:
            stop = name_end(patch, pos + 1, last - 1)
            after = value_end(patch, np.int64(patch[pos]), stop + 1, last - 1) if stop >= 0 else stop
            if after < 0 or patch[pos] != DOCUMENT:
                return np.int64(_REFUSED)
            kind, field, field_end = find(patch, stop + 1, after, _FIELD)
            size_kind, new_size, _ = find(patch, stop + 1, after, _NEW_SIZE)
            if kind != STRING or size_kind != INT32:
                return np.int64(_REFUSED)
            length = read_i32(patch, new_size)
            size = _truncate(
                out, begin, size, patch, field + 4, field_end - 1, length, known, known_end, walk
            )
            if size < 0:
                return size
            pos = after
    kind, first, last = find(patch, start, end, _UPDATED)
    if kind != DOCUMENT:
        return size
    pos = first + 4
    added = np.int64(-1)  # the last new field: start of its path, end of its document's path
    added_parent = np.int64(-1)
    while pos < last - 1:
        stop = name_end(patch, pos + 1, last - 1)
        after = value_end(patch, np.int64(patch[pos]), stop + 1, last - 1) if stop >= 0 else stop
        if after < 0:
            return np.int64(_REFUSED)
        if not find_target(out, begin, patch, pos + 1, stop, known, known_end, walk):
            return np.int64(_REFUSED)
        parent = target[NAME]
        follows = added >= 0 and same_text(patch, added, added_parent, pos + 1, parent)
        if not target[FOUND] and not target[IN_ARRAY]:
            added = pos + 1
            added_parent = parent
        size = _set(out, begin, size, patch, np.int64(patch[pos]), stop + 1, after, follows, walk)
        if size < 0:
            return size
        pos = after
    return size


@walker
def _remove(
    out: Bytes,
    begin: int,
    size: int,
    patch: Bytes,
    start: int,
    end: int,
    known: int,
    known_end: int,
    walk: Walk,
) -> Int:
    stack, target = walk.stack, walk.target
    if not find_target(out, begin, patch, start, end, known, known_end, walk):
        return np.int64(_REFUSED)
    if not target[FOUND] or target[IN_ARRAY]:
        return np.int64(_REFUSED)
    return _resize(
        out, begin, size, target[ELEMENT], target[VALUE_END], target[ELEMENT], stack, target[DEPTH]
    )


@walker
def _truncate(
    out: Bytes,
    begin: int,
    size: int,
    patch: Bytes,
    start: int,
    end: int,
    length: int,
    known: int,
    known_end: int,
    walk: Walk,
) -> Int:
    stack, target = walk.stack, walk.target
    if not find_target(out, begin, patch, start, end, known, known_end, walk):
        return np.int64(_REFUSED)
    if not target[FOUND] or out[target[ELEMENT]] != ARRAY or target[DEPTH] + 1 >= len(stack):
        return np.int64(_REFUSED)
    depth = target[DEPTH] + 1
    array, array_end = target[VALUE], target[VALUE_END]
    stack[depth] = array
    if not find_element(out, array, length, target):
        return size if target[ELEMENTS] == length else np.int64(_REFUSED)
    return _resize(out, begin, size, target[ELEMENT], array_end - 1, target[ELEMENT], stack, depth)


@walker
def _set(
    out: Bytes,
    begin: int,
    size: int,
    patch: Bytes,
    kind: int,
    start: int,
    end: int,
    follows: bool,
    walk: Walk,
) -> Int:
    """Set a target to a value of the update; ``follows``: it comes after a new field of the same document."""
    stack, target = walk.stack, walk.target
    depth = target[DEPTH]
    length = end - start
    value = target[VALUE]
    if target[FOUND]:
        if target[IN_ARRAY] or not follows:
            alike = out[target[ELEMENT]] == kind and target[VALUE_END] - value == length
            if alike and not target[IN_ARRAY] and same(out, value, patch, start, length):
                return np.int64(_REFUSED)
            size = _resize(out, begin, size, value, target[VALUE_END], value + length, stack, depth)
            if size >= 0:
                out[target[ELEMENT]] = kind
                copy(patch, start, end - start, out, value)
            return size
        element = target[ELEMENT]
        size = _resize(out, begin, size, element, target[VALUE_END], element, stack, depth)
    at = stack[depth] + load_little32(out, stack[depth]) - 1
    if target[IN_ARRAY]:
        first, index = target[ELEMENTS], target[INDEX]
        added = length + _digits(index) + 2
        for number in range(first, index):
            added += _digits(number) + 2
            if added > len(out):
                return np.int64(_BUFFER_FULL if index <= LARGEST_INDEX else _REFUSED)
        size = _resize(out, begin, size, at, at, at + added, stack, depth)
        if size < 0:
            return size
        for number in range(first, index):
            out[at] = NULL
            at = _put_number(out, at + 1, number)
        out[at] = kind
        at = _put_number(out, at + 1, index)
    else:
        name, name_stop = target[NAME], target[NAME_END]
        size = _resize(out, begin, size, at, at, at + name_stop - name + 2 + length, stack, depth)
        if size < 0:
            return size
        out[at] = kind
        at = copy(patch, name, name_stop - name, out, at + 1)
        out[at] = 0
        at += 1
    copy(patch, start, end - start, out, at)
    return size


@walker
def _digits(number: int) -> Int:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@walker
def _put_number(out: Bytes, at: int, number: int) -> Int:
    """Write a number in decimal digits and a NUL; return the offset after it."""
    count = _digits(number)
    for i in range(count):
        out[at + count - 1 - i] = 48 + number % 10
        number //= 10
    out[at + count] = 0
    return at + count + 1


@walker
def _resize(
    out: Bytes, begin: int, size: int, start: int, end: int, new_end: int, stack: Ints, depth: int
) -> Int:
    """Resize the bytes from ``start`` to ``end`` so that they end at ``new_end``; their content is undefined.

    Returns:
        The document's new size, or _BUFFER_FULL; the lengths of enclosing documents and arrays are updated.
    """
    grown = new_end - end
    if begin + size + grown > len(out):
        return np.int64(_BUFFER_FULL)
    if grown > 0:
        for index in range(begin + size - 1, end - 1, -1):
            out[np.uint64(index + grown)] = out[np.uint64(index)]
    elif grown < 0:
        for index in range(end, begin + size):
            out[np.uint64(index + grown)] = out[np.uint64(index)]
    if grown != 0:
        for level in range(depth + 1):
            store_little32(out, stack[level], load_little32(out, stack[level]) + grown)
    return size + grown
