"""Leaves out and renames fields in raw BSON, without decoding it.

A rule (:class:`~airflow_cdc_provider.events.field_paths.FieldRule`) is applied in three places:

* whole documents: the path is followed through documents and arrays of documents; the bytes before and after
  the field are copied, and the lengths of the enclosing documents are updated;
* ``updatedFields``, whose names are dotted paths: a name that equals the path or extends it is left out or
  renamed; if a name is a prefix of the path, the rest of the path is followed inside the value. Array indexes
  in a name are ignored (``a.0.b`` is ``a.b``), but two in a row denote an array in an array;
* ``removedFields`` and the fields of ``truncatedArrays``: names as above.

A renamed field moves to the end of its document, as in Debezium. A document that already has the new name
can't be rendered: its row is reported.

Two differences from Debezium 3.6: a name that extends an excluded path is left out of removedFields too, and
if several names are prefixes of the path, the values of all of them are searched, not only the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.field_paths import FieldRule
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.bson import ARRAY, DOCUMENT, name_end, value_end
from airflow_cdc_provider.formats.byte_kernels import copy, same, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker

Bits = np.ndarray

_CLASH: Final = -1
_BROKEN: Final = -2
_MAX_PARTS: Final = 256
"""Maximum number of parts of a dotted name; the server nests no deeper than 200."""


@dataclass(frozen=True)
class Rewritten:
    """Documents after applying rules.

    Args:
        data: The buffer.
        starts: Start of each document.
        ends: End of each document.
        clashes: Per row the number of the rule whose new name already exists, -1 for none.
    """

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    clashes: np.ndarray


class FieldRules:
    """Rules, in the order in which they are applied."""

    def __init__(self, rules: Sequence[FieldRule]) -> None:
        self._rules = tuple(rules)
        self._compiled = [_Compiled(rule) for rule in rules]

    def __bool__(self) -> bool:
        """Return whether there are any rules."""
        return bool(self._rules)

    def masks(self, databases: pa.Array, collections: pa.Array) -> list[Bits]:
        """Return per rule the rows of collections to which it applies (bool)."""
        names = pc.binary_join_element_wise(databases, collections, "\0").dictionary_encode()
        pairs = [name.split("\0") for name in names.dictionary.to_pylist()]
        codes = names.indices.to_numpy(zero_copy_only=False)
        return [np.array([rule.applies(*pair) for pair in pairs], np.bool_)[codes] for rule in self._rules]

    def rewrite(
        self,
        data: np.ndarray,
        present: Bits,
        starts: np.ndarray,
        ends: np.ndarray,
        masks: Sequence[Bits],
        *,
        dotted: bool,
    ) -> Rewritten:
        """Apply the rules to documents.

        Args:
            data: The buffer; all documents must be valid.
            present: Whether a row has a document.
            starts: Start of each document.
            ends: End of each document.
            masks: The result of :meth:`masks`.
            dotted: Whether names are dotted paths, as in ``updatedFields``.
        """
        clashes = np.full(len(present), -1, np.int64)
        touched = np.flatnonzero(present & np.logical_or.reduce(masks)) if masks else np.empty(0, np.int64)
        if not len(touched):
            return Rewritten(data, starts, ends, clashes)
        source, first, last = data, starts[touched], ends[touched]
        for number, (rule, mask) in enumerate(zip(self._compiled, masks, strict=True)):
            chosen = mask[touched] & (clashes[touched] < 0)
            if chosen.any():
                source, first, last, clashed = rule.rewrite(source, first, last, chosen, dotted=dotted)
                clashes[touched[clashed]] = number
        new_starts, new_ends = starts.copy(), ends.copy()
        new_starts[touched], new_ends[touched] = first + len(data), last + len(data)
        return Rewritten(np.concatenate([data, source]), new_starts, new_ends, clashes)

    def rename(self, paths: pa.Array, masks: Sequence[Bits]) -> tuple[pa.Array, Bits]:
        """Apply the rules to dotted paths.

        Args:
            paths: Strings without nulls.
            masks: Per rule, the paths to which it applies.

        Returns:
            The paths, and which of them are kept.
        """
        kept = np.ones(len(paths), np.bool_)
        for rule, mask in zip(self._compiled, masks, strict=True):
            if (mask & kept).any():
                paths, stays = rule.rename(paths, mask & kept)
                kept &= stays
        return paths, kept

    def reason(self, number: int) -> str:
        """Return why a row with this clash can't be rendered."""
        return f"publish.mongodb.rename_fields: {self._rules[number]}: the document already has this name"


class _Path(NamedTuple):
    """The path of a rule in the format of the kernels.

    ``names``    names of its nodes, concatenated
    ``offsets``  start of each, then the end of the last
    ``new``      the last node's new name; empty to remove it
    ``frames``   scratch: documents and arrays that are being copied, with the columns below
    ``parts``    scratch: start, end of the parts of a dotted name, and whether the part is a number
    """

    names: Bytes
    offsets: Ints
    new: Bytes
    frames: Ints
    parts: Ints


class _Compiled:
    """One rule in the format of the kernels."""

    def __init__(self, rule: FieldRule) -> None:
        parts = [part.encode() for part in rule.path]
        self._path = _Path(
            names=np.frombuffer(b"".join(parts), np.uint8),
            offsets=np.cumsum([0, *map(len, parts)]).astype(np.int64),
            new=np.frombuffer(rule.new_name.encode(), np.uint8),
            frames=np.zeros((2 * len(parts) + 2, _COLUMNS), np.int64),
            parts=np.zeros((_MAX_PARTS, 3), np.int64),
        )

    def _capacity(self, sizes: np.ndarray) -> np.ndarray:
        """Maximum bytes of the rewritten documents: each of their members can get the new name."""
        return sizes + (sizes // _SMALLEST_MEMBER + 1) * len(self._path.new) + 8

    def rewrite(
        self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray, chosen: Bits, *, dotted: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Bits]:
        sizes = ends - starts
        capacities = np.where(chosen, self._capacity(sizes), sizes)
        largest = int(capacities.max(initial=0))
        out = np.empty(int(sizes.sum()) + largest + 64, np.uint8)
        offsets = np.zeros(len(starts) + 1, np.int64)
        clashed = np.zeros(len(starts), np.bool_)
        row, at = 0, 0
        given = (data, starts, ends, chosen, capacities, self._path, dotted)
        while row < len(starts):
            row, at = _rewrite_rows(*given, out, offsets, clashed, row, at)
            if row < len(starts):
                grown = np.empty(2 * len(out) + largest, np.uint8)
                grown[:at] = out[:at]
                out = grown
        return out[:at], offsets[:-1], offsets[1:], clashed

    def rename(self, paths: pa.Array, chosen: Bits) -> tuple[pa.Array, Bits]:
        data, starts, ends, _ = binary_slices(paths)
        sizes = ends - starts
        out = np.empty(int(np.where(chosen, sizes + len(self._path.new), sizes).sum()), np.uint8)
        offsets = np.zeros(len(starts) + 1, np.int64)
        kept = np.ones(len(starts), np.bool_)
        _rename_paths(data, starts, ends, chosen, self._path, out, offsets, kept)
        return text_array(out, offsets, np.ones(len(starts), np.bool_)), kept


# Columns of a frame: a document or array that is being copied.
_NEXT: Final = 0
_END: Final = 1
_OUT_START: Final = 2
_NODE: Final = 3
_IN_ARRAY: Final = 4
_KIND: Final = 5
_VALUE: Final = 6
_VALUE_END: Final = 7
_TAKEN: Final = 8
_COLUMNS: Final = 9

_SMALLEST_MEMBER: Final = 2


@walker
def _is_node(data: Bytes, start: Int, end: Int, path: _Path, node: Int) -> bool:
    size = path.offsets[node + 1] - path.offsets[node]
    return end - start == size and same(data, start, path.names, path.offsets[node], size)


@walker
def _is_text(data: Bytes, start: Int, end: Int, text: Bytes) -> bool:
    return end - start == len(text) and same(data, start, text, 0, len(text))


@walker
def _open(frames: Ints, depth: Int, start: Int, end: Int, node: Int, in_array: Int, at: Int) -> Int:
    """Begin to copy a document or array to ``at``; return the offset after its length."""
    frames[depth, _NEXT] = start + 4
    frames[depth, _END] = end
    frames[depth, _OUT_START] = at
    frames[depth, _NODE] = node
    frames[depth, _IN_ARRAY] = in_array
    frames[depth, _KIND] = 0
    frames[depth, _TAKEN] = 0
    return at + 4


@walker
def _rewrite_document(
    data: Bytes, start: Int, end: Int, in_array: Int, first: Int, path: _Path, out: Bytes, at: Int
) -> Int:
    """Copy a document, or an array of documents, and apply the path from its node ``first`` on.

    Returns:
        The offset after it in ``out``, or a negative fault.
    """
    frames, new = path.frames, path.new
    last = len(path.offsets) - 2
    renames = len(new) > 0
    at = _open(frames, 0, start, end, first, in_array, at)
    depth = 1
    while depth > 0:
        top = depth - 1
        pos = frames[top, _NEXT]
        limit = frames[top, _END] - 1
        if pos >= limit:
            if frames[top, _KIND] > 0:
                if frames[top, _TAKEN]:
                    return _CLASH
                out[at] = frames[top, _KIND]
                at = copy(new, 0, len(new), out, at + 1)
                out[at] = 0
                at = copy(
                    data, frames[top, _VALUE], frames[top, _VALUE_END] - frames[top, _VALUE], out, at + 1
                )
            out[at] = 0
            at += 1
            store_little32(out, frames[top, _OUT_START], at - frames[top, _OUT_START])
            depth -= 1
            continue
        kind = np.int64(data[np.uint64(pos)])
        name = name_end(data, pos + 1, limit)
        if name < 0:
            return _BROKEN
        after = value_end(data, kind, name + 1, limit)
        if after < 0:
            return _BROKEN
        frames[top, _NEXT] = after
        node = frames[top, _NODE]
        inside = np.int64(-1)  # the node that is followed inside the value
        if frames[top, _IN_ARRAY]:
            if kind == DOCUMENT:
                inside = node
        elif _is_node(data, pos + 1, name, path, node):
            if node == last:
                if renames:  # of several members with the name the last counts
                    frames[top, _KIND] = kind
                    frames[top, _VALUE] = name + 1
                    frames[top, _VALUE_END] = after
                continue
            if kind in (DOCUMENT, ARRAY):
                inside = node + 1
        elif renames and node == last and _is_text(data, pos + 1, name, new):
            frames[top, _TAKEN] = 1
        if inside < 0:
            at = copy(data, pos, after - pos, out, at)
        else:
            at = copy(data, pos, name + 1 - pos, out, at)
            at = _open(frames, depth, name + 1, after, inside, 1 if kind == ARRAY else 0, at)
            depth += 1
    return at


@walker
def _split_name(data: Bytes, start: Int, end: Int, parts: Ints) -> Int:
    """Split a dotted name; return the number of parts, at most the capacity of ``parts``."""
    count = np.int64(0)
    begin = start
    number = end > start
    for i in range(start, end + 1):
        if i < end and data[i] != 46:
            if data[i] < 48 or data[i] > 57:
                number = False
            continue
        parts[count, 0] = begin
        parts[count, 1] = i
        parts[count, 2] = 1 if number and i > begin else 0
        count += 1
        if count == len(parts):
            return count
        begin = i + 1
        number = True
    return count


@walker
def _compare_parts(data: Bytes, path: _Path, count: Int, without_numbers: bool) -> tuple[Any, Any]:
    """Compare the parts of a name with the path, with or without array indexes.

    Returns:
        The number of matching nodes of the path, -1 for a mismatch; and the part that matched the last node.
    """
    parts = path.parts
    nodes = len(path.offsets) - 1
    agreed = np.int64(0)
    where = np.int64(0)
    for part in range(count):
        if without_numbers and parts[part, 2]:
            continue
        if agreed == nodes:
            break
        if not _is_node(data, parts[part, 0], parts[part, 1], path, agreed):
            return np.int64(-1), np.int64(0)
        agreed += 1
        where = np.int64(part)
    return agreed, where


@walker
def _match(data: Bytes, start: Int, end: Int, path: _Path) -> tuple[Int, Int, Int]:
    """Match a dotted name against the path.

    Returns:
        The number of matching nodes of the path, -1 for a mismatch; start and end of the part that matched
        the last node.
    """
    parts = path.parts
    count = _split_name(data, start, end, parts)
    # Indexes may be left out, unless the name is one, or goes through an array in an array.
    strip = count > 1
    for part in range(1, count):
        if parts[part, 2] and parts[part - 1, 2]:
            strip = False
    agreed = np.int64(-1)
    where = np.int64(0)
    if strip:
        agreed, where = _compare_parts(data, path, count, True)
    if agreed < len(path.offsets) - 1:
        exactly, last = _compare_parts(data, path, count, False)
        if exactly > agreed:
            agreed, where = exactly, last
    return agreed, parts[where, 0], parts[where, 1]


@walker
def _rewrite_dotted(data: Bytes, start: Int, end: Int, path: _Path, out: Bytes, at: Int) -> Int:
    """Rewrite like :func:`_rewrite_document` a document whose names are dotted paths."""
    new = path.new
    nodes = len(path.offsets) - 1
    renames = len(new) > 0
    document_start = at
    at += 4
    limit = end - 1
    for turn in range(2 if renames else 1):  # renamed members follow the others
        pos = start + 4
        while pos < limit:
            kind = np.int64(data[np.uint64(pos)])
            name = name_end(data, pos + 1, limit)
            if name < 0:
                return _BROKEN
            after = value_end(data, kind, name + 1, limit)
            if after < 0:
                return _BROKEN
            agreed, part, part_end = _match(data, pos + 1, name, path)
            if agreed == nodes:
                if turn == 1:
                    out[at] = kind
                    begin = at + 1
                    at = copy(data, pos + 1, part - pos - 1, out, begin)
                    at = copy(new, 0, len(new), out, at)
                    at = copy(data, part_end, name - part_end, out, at)
                    if _has_member(data, start, end, out, begin, at):
                        return _CLASH
                    out[at] = 0
                    at = copy(data, name + 1, after - name - 1, out, at + 1)
            elif turn == 0:
                if agreed > 0 and kind in (DOCUMENT, ARRAY):
                    at = copy(data, pos, name + 1 - pos, out, at)
                    in_array = 1 if kind == ARRAY else 0
                    at = _rewrite_document(data, name + 1, after, in_array, agreed, path, out, at)
                    if at < 0:
                        return at
                else:
                    at = copy(data, pos, after - pos, out, at)
            pos = after
    out[at] = 0
    at += 1
    store_little32(out, document_start, at - document_start)
    return at


@walker
def _has_member(data: Bytes, start: Int, end: Int, name: Bytes, name_start: Int, name_stop: Int) -> bool:
    """Return whether a valid document has a member with a name."""
    size = name_stop - name_start
    pos = start + 4
    limit = end - 1
    while pos < limit:
        stop = name_end(data, pos + 1, limit)
        if stop < 0:
            return False
        if stop - pos - 1 == size and same(data, pos + 1, name, name_start, size):
            return True
        pos = value_end(data, np.int64(data[np.uint64(pos)]), stop + 1, limit)
        if pos < 0:
            return False
    return False


@walker
def _rewrite_rows(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    chosen: Flags,
    capacities: Ints,
    path: _Path,
    dotted: Int,
    out: Bytes,
    out_offsets: Ints,
    clashed: Flags,
    row: Int,
    at: Int,
) -> tuple[Int, Int]:
    """Write rows from ``row`` on while the next one surely fits; return the next row and the offset."""
    while row < len(starts):
        if at + capacities[row] > len(out):
            return row, at
        stop = np.int64(_BROKEN)
        if chosen[row]:
            if dotted:
                stop = np.int64(_rewrite_dotted(data, starts[row], ends[row], path, out, at))
            else:
                stop = np.int64(_rewrite_document(data, starts[row], ends[row], 0, 0, path, out, at))
            clashed[row] = stop < 0
        if stop < 0:
            stop = np.int64(copy(data, starts[row], ends[row] - starts[row], out, at))
        at = stop
        out_offsets[row + 1] = at
        row += 1
    return row, at


@walker
def _rename_paths(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    chosen: Flags,
    path: _Path,
    out: Bytes,
    out_offsets: Ints,
    kept: Flags,
) -> None:
    new = path.new
    at = np.int64(0)
    nodes = len(path.offsets) - 1
    for row in range(len(starts)):
        begin, end = starts[row], ends[row]
        agreed = np.int64(-1)
        part = np.int64(0)
        part_end = np.int64(0)
        if chosen[row]:
            agreed, part, part_end = _match(data, begin, end, path)
        if agreed == nodes and len(new) > 0:
            at = copy(data, begin, part - begin, out, at)
            at = copy(new, 0, len(new), out, at)
            at = copy(data, part_end, end - part_end, out, at)
        else:
            at = copy(data, begin, end - begin, out, at)
            if agreed == nodes:
                kept[row] = False
        out_offsets[row + 1] = at
