"""Reads the lists of an update's description: removed fields and truncated arrays.

Both are arrays inside a change event::

    removedFields     [string ...]
    truncatedArrays   [{field: string, newSize: int32} ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.bson import name_end, value_end
from airflow_cdc_provider.formats.kernels import Bytes, Ints, kernel
from airflow_cdc_provider.sources.mongodb.events.field_rules import FieldRules
from airflow_cdc_provider.sources.mongodb.events.members import (
    as_name,
    find_member,
    keep_member,
    numbers,
    strings,
)

_N_FIELD: Final = as_name("field")
_N_SIZE: Final = as_name("newSize")


def removed_fields(
    data: np.ndarray,
    kinds: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    rules: FieldRules,
    masks: Sequence[np.ndarray],
) -> tuple[pa.Array, np.ndarray]:
    """Read arrays of paths.

    Args:
        data: The buffer.
        kinds: 4 for an array (``uint8``).
        first: Start of each array.
        last: End of each array.
        rules: Paths to leave out or rename.
        masks: Per rule, the rows to which it applies.

    Returns:
        Lists of strings, null for a missing or empty array; and whether a row's array is broken.
    """
    count = count_elements(data, kinds, first, last)
    offsets, total = list_offsets(count)
    inner_kinds, inner_first, inner_last = elements(data, kinds, first, last, total)
    bad = _rows_of(offsets, inner_kinds != 2) | (count < 0)
    texts = strings(data, inner_kinds, inner_first, inner_last)
    if not rules or not total:
        return _lists(offsets, texts), bad
    texts, kept = _ruled(texts, offsets, rules, masks)
    return _lists(_kept_offsets(offsets, kept), texts.filter(pa.array(kept))), bad


def truncated_arrays(
    data: np.ndarray,
    kinds: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    rules: FieldRules,
    masks: Sequence[np.ndarray],
) -> tuple[pa.Array, np.ndarray]:
    """Read arrays of ``{field, newSize}`` as lists of ``{field, size}``; see :func:`removed_fields`."""
    count = count_elements(data, kinds, first, last)
    offsets, total = list_offsets(count)
    inner_kinds, inner_first, inner_last = elements(data, kinds, first, last, total)
    fields = np.zeros((total, 2), np.uint8)
    at = np.zeros((total, 2), np.int64)
    end = np.zeros((total, 2), np.int64)
    _truncations(data, inner_kinds, inner_first, inner_last, fields, at, end)
    bad = _rows_of(offsets, (fields[:, 0] != 2) | (fields[:, 1] != 16)) | (count < 0)
    names = strings(data, fields[:, 0], at[:, 0], end[:, 0])
    sizes = pa.array(numbers(data, fields[:, 1] == 16, at[:, 1], 4).astype(np.int32))
    if rules and total:
        names, kept = _ruled(names, offsets, rules, masks)
        names, sizes = names.filter(pa.array(kept)), sizes.filter(pa.array(kept))
        offsets = _kept_offsets(offsets, kept)
    return _lists(offsets, pa.StructArray.from_arrays([names, sizes], names=["field", "size"])), bad


def _ruled(
    texts: pa.Array, offsets: np.ndarray, rules: FieldRules, masks: Sequence[np.ndarray]
) -> tuple[pa.Array, np.ndarray]:
    """Apply rules to the paths in lists; null paths of broken rows are kept."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    return rules.rename(texts.fill_null(""), [mask[rows] & present for mask in masks])


def _kept_offsets(offsets: np.ndarray, kept: np.ndarray) -> np.ndarray:
    before = np.concatenate([[0], np.cumsum(kept)])
    return before[offsets].astype(np.int32)


def list_offsets(count: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the offsets of lists with these numbers of elements, and the total number."""
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(np.maximum(count, 0), out=offsets[1:])
    return offsets, int(offsets[-1])


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.Array:
    empty = offsets[1:] == offsets[:-1]
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(empty))


def _rows_of(offsets: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Return which lists have a flagged element."""
    before = np.concatenate([[0], np.cumsum(flags)])
    return before[offsets[1:]] != before[offsets[:-1]]


@kernel
def count_elements(data: Bytes, kinds: Ints, first: Ints, last: Ints) -> np.ndarray:
    """Count the elements of arrays; -1 for a broken one."""
    counts = np.zeros(len(kinds), np.int64)
    for row in range(len(kinds)):
        if kinds[row] != 4:
            continue
        at, end = first[row] + 4, last[row]
        while at < end - 1:
            stop = name_end(data, at + 1, end - 1)
            at = value_end(data, data[at], stop + 1, end - 1) if stop >= 0 else -1
            if at < 0:
                counts[row] = -1
                break
            counts[row] += 1
    return counts


@kernel
def elements(
    data: Bytes, kinds: Ints, first: Ints, last: Ints, total: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the elements that :func:`count_elements` counted."""
    inner_kinds = np.zeros(total, np.uint8)
    inner_first = np.zeros(total, np.int64)
    inner_last = np.zeros(total, np.int64)
    counts = count_elements(data, kinds, first, last)
    n = 0
    for row in range(len(kinds)):
        at = first[row] + 4
        for _ in range(counts[row]):
            value = name_end(data, at + 1, last[row]) + 1
            following = value_end(data, data[at], value, last[row])
            inner_kinds[n], inner_first[n], inner_last[n] = data[at], value, following
            n += 1
            at = following
    return inner_kinds, inner_first, inner_last


@kernel
def _truncations(
    data: Bytes, kinds: Ints, first: Ints, last: Ints, fields: Ints, at: Ints, end: Ints
) -> None:
    for row in range(len(kinds)):
        if kinds[row] == 3:
            keep_member(fields[row], at[row], end[row], 0, find_member(data, first[row], last[row], _N_FIELD))
            keep_member(fields[row], at[row], end[row], 1, find_member(data, first[row], last[row], _N_SIZE))
