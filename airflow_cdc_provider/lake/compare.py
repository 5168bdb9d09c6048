"""Comparing two tables of rows by column, to any nesting depth, without a Python object per row.

Rows are matched by key; each column is compared if both sides have the row. Null equals null, a float equals
one with the same bits (so NaN equals NaN, and 0.0 is not -0.0), and lists and maps are equal if their
elements are equal, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_SAMPLES = 20

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        equal: Rows that are the same on both sides.
        only_left: Rows whose key only the left side has.
        only_right: Rows whose key only the right side has.
        different: Rows on both sides that differ.
        samples: Some of the differences: ``key`` (hexadecimal if binary), and ``only`` or ``columns``.
        unreported: Rows on both sides that are equal in all values that one side reports, which are not all.
        not_compared: Rows whose present state one side doesn't report.
    """

    equal: int
    only_left: int
    only_right: int
    different: int
    samples: tuple[dict[str, Any], ...]
    unreported: int = 0
    not_compared: int = 0


def compare_tables(left: pa.Table, right: pa.Table, key: str) -> Comparison:
    """Compare two tables with the same columns.

    Args:
        left: One side; its keys are unique.
        right: The other side, likewise.
        key: The column that identifies a row, of a type that Arrow can look up (binary, string, integer).

    Returns:
        Counts and samples of the differences.
    """
    left_keys, right_keys = _one(left[key]), _one(right[key])
    index = pc.index_in(left_keys, value_set=right_keys)
    both = _flags(index.is_valid())
    matched_left = left.filter(pa.array(both))
    matched_right = right.take(index.filter(pa.array(both)))
    names = [name for name in left.column_names if name != key]
    same = {name: values_equal(_one(matched_left[name]), _one(matched_right[name])) for name in names}
    equal = np.logical_and.reduce(list(same.values())) if names else np.ones(int(both.sum()), np.bool_)
    only_left = left_keys.filter(pa.array(~both))
    only_right = right_keys.filter(pc.invert(pc.is_in(right_keys, value_set=left_keys)))

    samples: list[dict[str, Any]] = [
        {"key": _text(k), "only": side}
        for side, keys in (("left", only_left), ("right", only_right))
        for k in keys.slice(0, MOST_SAMPLES).to_pylist()
    ]
    keys = _one(matched_left[key])
    samples += [
        {"key": _text(keys[int(row)].as_py()), "columns": [name for name in names if not same[name][row]]}
        for row in np.flatnonzero(~equal)[:MOST_SAMPLES]
    ]
    return Comparison(
        equal=int(equal.sum()),
        only_left=len(only_left),
        only_right=len(only_right),
        different=int((~equal).sum()),
        samples=tuple(samples[:MOST_SAMPLES]),
    )


def values_equal(left: pa.Array, right: pa.Array) -> Flags:
    """Return for each row whether two arrays of one type and length hold the same value."""
    left_valid, right_valid = _flags(left.is_valid()), _flags(right.is_valid())
    both = left_valid & right_valid
    equal = left_valid == right_valid
    chosen = pa.array(both)
    equal[both] = _content_equal(left.filter(chosen), right.filter(chosen))
    return equal


def _content_equal(left: pa.Array, right: pa.Array) -> Flags:
    """Compare arrays without nulls at this level."""
    kind = left.type
    if pa.types.is_struct(kind):
        fields = [values_equal(left.field(i), right.field(i)) for i in range(kind.num_fields)]
        return np.logical_and.reduce(fields) if fields else np.ones(len(left), np.bool_)
    if pa.types.is_map(kind):
        listed = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
        return _lists_equal(left.cast(listed), right.cast(listed))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_equal(left, right)
    if pa.types.is_floating(kind):
        bits = np.dtype(f"u{kind.bit_width // 8}")
        return _numbers(left).view(bits) == _numbers(right).view(bits)
    return _flags(pc.equal(left, right))


def _lists_equal(left: pa.Array, right: pa.Array) -> Flags:
    left_lengths = _numbers(pc.list_value_length(left)).astype(np.int64)
    equal = left_lengths == _numbers(pc.list_value_length(right))
    chosen = pa.array(equal)
    lengths = left_lengths[equal]
    elements = values_equal(left.filter(chosen).flatten(), right.filter(chosen).flatten())
    wrong = np.concatenate([[0], np.cumsum(~elements)])
    ends = np.cumsum(lengths)
    equal[equal] = wrong[ends] == wrong[ends - lengths]
    return equal


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _flags(array: pa.Array) -> Flags:
    return np.array(array.to_numpy(zero_copy_only=False), np.bool_)


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False))


def _text(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
