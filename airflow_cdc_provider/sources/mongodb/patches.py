"""Updates without a document, applied to the document that they change, byte by byte as the server does it.

What an update did is the event's ``updateDescription``::

    updatedFields       {path: value ...}             set, replaced, or put at the end
    removedFields       [path ...]
    truncatedArrays     [{field: path, newSize: int32} ...]
    disambiguatedPaths  {path: [name or index ...]}   from 6.1 on, of paths that could be read in several ways

A field that is there keeps its place; a new one goes to the end of its document. A pipeline may move a field
to the end, and the server tells of it as of an update. It is known by standing after a new field of the same
document. One that is told with the value that it had may have been moved, or set once more (``$push`` with
``$slice``): such an update is refused. One that was moved with another value, and no new field before it,
keeps its place here: its value is right, the order of members is not.

A path is read by the document: in an array a component is an index, in a document a name. A name may have
dots itself (``{"a.b": 1}``, server 5.0); where a document leaves two ways to read a path, or none, the update
is refused, as it is where the document can't be the one that it changed. Nothing is guessed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.byte_kernels import load_little32, same, store_little32
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Ints, copy_bytes
from airflow_cdc_provider.changes.text_kernels import binary_slices, text_array
from airflow_cdc_provider.sources.mongodb.bson import (
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

_REFUSED: Final = -1
_NO_ROOM: Final = -2
_LARGEST_INDEX: Final = 16 * 1024 * 1024
"""More elements than any document can have."""


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
        documents: Sound documents (binary), null for none.
        patches: Sound ``updateDescription`` documents (binary), those of one document after each other in the
            order in which they happened.
        offsets: Which are whose: of document ``n`` those from ``offsets[n]`` to before ``offsets[n + 1]``.

    Returns:
        The documents after them (large binary); null where one of them can't be applied.
    """
    data, starts, ends, valid = binary_slices(documents)
    starts = np.where(valid, starts, -1)
    patch_data, patch_starts, patch_ends, _ = binary_slices(patches)
    count = len(starts)
    out = np.empty(int((ends - starts).sum() + (patch_ends - patch_starts).sum()) + 4096, np.uint8)
    out_offsets = np.zeros(count + 1, np.int64)
    applied = np.zeros(count, np.bool_)
    scratch = (np.zeros(MAX_DEPTH, np.int64), np.zeros((MAX_DEPTH, 3), np.int64), np.zeros(_TARGET, np.int64))
    done = 0
    while True:
        done = _apply_all(
            data,
            starts,
            ends,
            patch_data,
            patch_starts,
            patch_ends,
            offsets,
            out,
            out_offsets,
            applied,
            *scratch,
            done,
        )
        if done == count:
            break
        out = np.concatenate([out[: out_offsets[done]], np.empty(2 * len(out), np.uint8)])
    return text_array(out, out_offsets, applied, binary=True, wide=True)


@walker
def _apply_all(
    data: Any,
    starts: Any,
    ends: Any,
    patches: Any,
    patch_starts: Any,
    patch_ends: Any,
    offsets: Any,
    out: Any,
    out_offsets: Any,
    applied: Any,
    stack: Any,
    path: Any,
    target: Any,
    row: int,
) -> Any:
    """Apply from one row on; return the row for which there is no room, or how many there are."""
    while row < len(starts):
        begin = out_offsets[row]
        size = np.int64(_REFUSED)
        if starts[row] >= 0:
            if begin + ends[row] - starts[row] > len(out):
                return row
            copy_bytes(data, starts[row], ends[row], out, begin)
            size = ends[row] - starts[row]
        for patch in range(offsets[row], offsets[row + 1]):
            if size < 0:
                break
            size = _apply(
                out, begin, size, patches, patch_starts[patch], patch_ends[patch], stack, path, target
            )
        if size == _NO_ROOM:
            return row
        applied[row] = size >= 0
        out_offsets[row + 1] = begin + max(size, 0)
        row += 1
    return row


@walker
def _apply(
    out: Any, begin: int, size: int, patch: Any, start: int, end: int, stack: Any, path: Any, target: Any
) -> Any:
    """Apply one update to the document at ``begin``, the last thing in ``out``.

    Returns:
        Its size then; or what kept it from being applied, and the document is of no use.
    """
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
            size = _remove(
                out, begin, size, patch, stop + 5, after - 1, known, known_end, stack, path, target
            )
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
                out,
                begin,
                size,
                patch,
                field + 4,
                field_end - 1,
                length,
                known,
                known_end,
                stack,
                path,
                target,
            )
            if size < 0:
                return size
            pos = after
    kind, first, last = find(patch, start, end, _UPDATED)
    if kind != DOCUMENT:
        return size
    pos = first + 4
    added = np.int64(-1)  # the last new field: where its path begins, and where that of its document ends
    added_parent = np.int64(-1)
    while pos < last - 1:
        stop = name_end(patch, pos + 1, last - 1)
        after = value_end(patch, np.int64(patch[pos]), stop + 1, last - 1) if stop >= 0 else stop
        if after < 0:
            return np.int64(_REFUSED)
        if not _find_target(out, begin, patch, pos + 1, stop, known, known_end, stack, path, target):
            return np.int64(_REFUSED)
        parent = target[_NAME]
        follows = added >= 0 and _same_text(patch, added, added_parent, pos + 1, parent)
        if not target[_FOUND] and not target[_IN_ARRAY]:
            added = pos + 1
            added_parent = parent
        size = _set(out, begin, size, patch, np.int64(patch[pos]), stop + 1, after, follows, stack, target)
        if size < 0:
            return size
        pos = after
    return size


# What _find_target tells of a place in a document.
_FOUND: Final = 0
_IN_ARRAY: Final = 1
_DEPTH: Final = 2
_ELEMENT: Final = 3
_VALUE: Final = 4
_VALUE_END: Final = 5
_NAME: Final = 6
_NAME_END: Final = 7
_INDEX: Final = 8
_ELEMENTS: Final = 9
_TARGET: Final = 10

# Columns of a path: where a component begins and ends in the update's bytes, and its index.
_BEGIN: Final = 0
_END: Final = 1
_NUMBER: Final = 2
_A_NAME: Final = -1
"""In place of an index: the component is a name."""
_EITHER: Final = -2
"""The component is a name in a document and an index in an array."""


@walker
def _find_target(
    out: Any,
    begin: int,
    patch: Any,
    start: int,
    end: int,
    known: int,
    known_end: int,
    stack: Any,
    path: Any,
    target: Any,
) -> Any:
    """Find the member that a path names, or the place where it would be added.

    Fills ``stack`` with where the documents and arrays on the way begin, and ``target``.

    Returns:
        Whether there is exactly one way to read the path.
    """
    count = _read_path(patch, start, end, known, known_end, path)
    if count <= 0:
        return False
    depth = 0
    stack[0] = begin
    in_array = False
    step = 0
    while depth < MAX_DEPTH - 1:
        target[_DEPTH] = depth
        target[_IN_ARRAY] = in_array
        if in_array:
            index = _index(patch, path, step)
            if index < 0:
                return False
            taken = step
            target[_INDEX] = index
            target[_NAME], target[_NAME_END] = path[step, _BEGIN], path[step, _END]
            kind = _find_element(out, stack[depth], index, target)
        else:
            taken, kind = _find_member(out, stack[depth], patch, path, step, count, target)
            if taken < 0:
                return False
        if taken == count - 1:
            return True
        if kind not in (DOCUMENT, ARRAY):
            return False
        depth += 1
        stack[depth] = target[_VALUE]
        in_array = kind == ARRAY
        step = taken + 1
    return False


@walker
def _read_path(patch: Any, start: int, end: int, known: int, known_end: int, path: Any) -> Any:
    """Cut a path into components; return how many, or 0 if that can't be done."""
    if known >= 0:
        pos = known + 4
        while pos < known_end - 1:
            stop = name_end(patch, pos + 1, known_end - 1)
            after = value_end(patch, np.int64(patch[pos]), stop + 1, known_end - 1) if stop >= 0 else stop
            if after < 0:
                return 0
            if patch[pos] == ARRAY and _same_text(patch, pos + 1, stop, start, end):
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
def _read_components(patch: Any, start: int, end: int, path: Any) -> Any:
    """Read the components of a path that the server gives one by one."""
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
def _index(patch: Any, path: Any, step: int) -> Any:
    """Return a component as an index, -1 if it is none."""
    if path[step, _NUMBER] != _EITHER:
        return path[step, _NUMBER]
    start, end = path[step, _BEGIN], path[step, _END]
    if start == end or (patch[start] == 48 and end - start > 1):
        return np.int64(-1)
    index = np.int64(0)
    for pos in range(start, end):
        digit = np.int64(patch[pos]) - 48
        if digit < 0 or digit > 9 or index > _LARGEST_INDEX:
            return np.int64(-1)
        index = 10 * index + digit
    return index


@walker
def _find_element(out: Any, start: int, index: int, target: Any) -> Any:
    """Find an element of an array; return its type, or 0 and the number of elements."""
    limit = start + load_little32(out, start) - 1
    pos = start + 4
    number = np.int64(0)
    target[_FOUND] = 0
    while pos < limit:
        stop = name_end(out, pos + 1, limit)
        after = value_end(out, np.int64(out[pos]), stop + 1, limit) if stop >= 0 else stop
        if after < 0:
            break
        if number == index:
            target[_FOUND] = 1
            target[_ELEMENT] = pos
            target[_VALUE] = stop + 1
            target[_VALUE_END] = after
            return np.int64(out[pos])
        number += 1
        pos = after
    target[_ELEMENTS] = number
    return np.int64(0)


@walker
def _find_member(out: Any, start: int, patch: Any, path: Any, step: int, count: int, target: Any) -> Any:
    """Find the member of a document to which a path leads from a component on.

    Returns:
        The last component that its name takes, and its type. The last one of all and 0 if the path names a
        new member; -1 if it can be read in several ways, or in none.
    """
    limit = start + load_little32(out, start) - 1
    pos = start + 4
    taken = -1
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
            if taken >= 0:
                return -1, kind
            taken = last
            kind = np.int64(out[pos])
            target[_ELEMENT] = pos
            target[_VALUE] = stop + 1
            target[_VALUE_END] = after
            break
        pos = after
    target[_FOUND] = taken >= 0
    target[_NAME] = path[step, _BEGIN]
    if taken < 0:
        # A path through a document that isn't there: the server would have told of that document. So it is
        # one new name with dots.
        if plain and step < count - 1:
            return -1, kind
        taken = count - 1
    target[_NAME_END] = path[taken, _END]
    return taken, kind


@walker
def _same_text(data: Any, start: int, end: int, other: int, other_end: int) -> Any:
    return end - start == other_end - other and same(data, start, data, other, end - start)


@walker
def _remove(
    out: Any,
    begin: int,
    size: int,
    patch: Any,
    start: int,
    end: int,
    known: int,
    known_end: int,
    stack: Any,
    path: Any,
    target: Any,
) -> Any:
    if not _find_target(out, begin, patch, start, end, known, known_end, stack, path, target):
        return np.int64(_REFUSED)
    if not target[_FOUND] or target[_IN_ARRAY]:
        return np.int64(_REFUSED)
    return _resize(
        out, begin, size, target[_ELEMENT], target[_VALUE_END], target[_ELEMENT], stack, target[_DEPTH]
    )


@walker
def _truncate(
    out: Any,
    begin: int,
    size: int,
    patch: Any,
    start: int,
    end: int,
    length: int,
    known: int,
    known_end: int,
    stack: Any,
    path: Any,
    target: Any,
) -> Any:
    if not _find_target(out, begin, patch, start, end, known, known_end, stack, path, target):
        return np.int64(_REFUSED)
    if not target[_FOUND] or out[target[_ELEMENT]] != ARRAY or target[_DEPTH] + 1 >= len(stack):
        return np.int64(_REFUSED)
    depth = target[_DEPTH] + 1
    array, array_end = target[_VALUE], target[_VALUE_END]
    stack[depth] = array
    if not _find_element(out, array, length, target):
        return size if target[_ELEMENTS] == length else np.int64(_REFUSED)
    return _resize(out, begin, size, target[_ELEMENT], array_end - 1, target[_ELEMENT], stack, depth)


@walker
def _set(
    out: Any,
    begin: int,
    size: int,
    patch: Any,
    kind: int,
    start: int,
    end: int,
    follows: bool,
    stack: Any,
    target: Any,
) -> Any:
    """Set what a target names to a value of the update; ``follows``: it comes after a new one beside it."""
    depth = target[_DEPTH]
    length = end - start
    value = target[_VALUE]
    if target[_FOUND]:
        if target[_IN_ARRAY] or not follows:
            alike = out[target[_ELEMENT]] == kind and target[_VALUE_END] - value == length
            if alike and not target[_IN_ARRAY] and same(out, value, patch, start, length):
                return np.int64(_REFUSED)
            size = _resize(out, begin, size, value, target[_VALUE_END], value + length, stack, depth)
            if size >= 0:
                out[target[_ELEMENT]] = kind
                copy_bytes(patch, start, end, out, value)
            return size
        element = target[_ELEMENT]
        size = _resize(out, begin, size, element, target[_VALUE_END], element, stack, depth)
    at = stack[depth] + load_little32(out, stack[depth]) - 1
    if target[_IN_ARRAY]:
        first, index = target[_ELEMENTS], target[_INDEX]
        added = length + _digits(index) + 2
        for number in range(first, index):
            added += _digits(number) + 2
            if added > len(out):
                return np.int64(_NO_ROOM if index <= _LARGEST_INDEX else _REFUSED)
        size = _resize(out, begin, size, at, at, at + added, stack, depth)
        if size < 0:
            return size
        for number in range(first, index):
            out[at] = NULL
            at = _put_number(out, at + 1, number)
        out[at] = kind
        at = _put_number(out, at + 1, index)
    else:
        name, name_stop = target[_NAME], target[_NAME_END]
        size = _resize(out, begin, size, at, at, at + name_stop - name + 2 + length, stack, depth)
        if size < 0:
            return size
        out[at] = kind
        at = copy_bytes(patch, name, name_stop, out, at + 1)
        out[at] = 0
        at += 1
    copy_bytes(patch, start, end, out, at)
    return size


@walker
def _digits(number: int) -> Any:
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@walker
def _put_number(out: Any, at: int, number: int) -> Any:
    """Write a number in decimal digits and a zero; return the place after it."""
    count = _digits(number)
    for i in range(count):
        out[at + count - 1 - i] = 48 + number % 10
        number //= 10
    out[at + count] = 0
    return at + count + 1


@walker
def _resize(
    out: Any, begin: int, size: int, start: int, end: int, new_end: int, stack: Any, depth: int
) -> Any:
    """Give the bytes from ``start`` to ``end`` the room up to ``new_end``; what they hold then is undefined.

    Returns:
        The document's size then, or that there is no room; its documents and arrays on the way have theirs.
    """
    grown = new_end - end
    if begin + size + grown > len(out):
        return np.int64(_NO_ROOM)
    if grown > 0:
        for place in range(begin + size - 1, end - 1, -1):
            out[np.uint64(place + grown)] = out[np.uint64(place)]
    elif grown < 0:
        for place in range(end, begin + size):
            out[np.uint64(place + grown)] = out[np.uint64(place)]
    if grown != 0:
        for level in range(depth + 1):
            store_little32(out, stack[level], load_little32(out, stack[level]) + grown)
    return size + grown
