"""Rows with unavailable values, which are filled in from the previous row.

PostgreSQL doesn't send unchanged large values (TOAST), nor does Oracle send unchanged LOBs. Debezium writes a
placeholder instead. Such a row is a patch of the previous row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, column_of
from airflow_cdc_provider.formats.byte_kernels import copy, same
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.debezium.states import HEAD_BYTES, read_states, rows_of


def apply_patches(
    states: pa.Array, patches: pa.Array, offsets: Ints, placeholder: tuple[bytes, ...]
) -> pa.Array:
    """Apply the patches of each row to its state.

    Args:
        states: One state per row.
        patches: States with placeholders.
        offsets: Index of each row's first patch, and one more.
        placeholder: The spellings of an unavailable value.

    Returns:
        The patched states.
    """
    counts = np.diff(offsets)
    kind = states.type
    current, patches = states.cast(pa.binary()), patches.cast(pa.binary())
    for step in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > step)
        chosen = pa.array(rows)
        filled = _filled(current.take(chosen), patches.take(pa.array(offsets[:-1][rows] + step)), placeholder)
        if len(rows) == len(current):
            current = filled
        else:
            source = np.arange(len(current))
            source[rows] = len(current) + np.arange(len(rows))
            current = pa.concat_arrays([current, filled]).take(pa.array(source))
    return current.cast(kind)


def _filled(states: pa.Array, patches: pa.Array, placeholder: tuple[bytes, ...]) -> pa.Array:
    """Fill in unavailable values of each patch from the previous state, if it has them."""
    before, _ = rows_of(read_states(states)[1], ())
    after, missing = rows_of(read_states(patches)[1], placeholder)
    data, starts, _ = binary_buffer(patches)
    heads = data[starts[:, None] + np.arange(HEAD_BYTES)].reshape(-1)
    first_of = np.searchsorted(before.owners, np.arange(before.count + 1))
    capacity = int(_sizes(states).sum() + _sizes(patches).sum()) + 4 * len(after.owners)
    out = np.empty(capacity + (HEAD_BYTES + 2) * len(states), np.uint8)
    ends = np.zeros(len(states) + 1, np.int64)
    _fill(
        before.data,
        first_of,
        before.names,
        before.values.starts,
        before.values.ends,
        after.data,
        after.owners,
        after.names,
        after.values.starts,
        after.values.ends,
        missing,
        heads,
        out,
        ends,
    )
    return column_of(pa.binary(), out[: ends[-1]].copy(), ends)


def _sizes(states: pa.Array) -> Any:
    return pc.binary_length(states).to_numpy(zero_copy_only=False)


@walker
def _same_name(before: Bytes, old: Int, names: Ints, after: Bytes, new: Int, new_names: Ints) -> Int:
    size = names[1, old] - names[0, old]
    return size == new_names[1, new] - new_names[0, new] and same(
        before, names[0, old], after, new_names[0, new], size
    )


@walker
def _fill(
    before: Bytes,
    first_of: Ints,
    old_names: Ints,
    old_starts: Ints,
    old_ends: Ints,
    after: Bytes,
    owners: Ints,
    names: Ints,
    starts: Ints,
    ends: Ints,
    missing: Flags,
    heads: Bytes,
    out: Bytes,
    out_ends: Ints,
) -> None:
    to = np.int64(0)
    member = np.int64(0)
    for row in range(len(out_ends) - 1):
        to = copy(heads, row * HEAD_BYTES, HEAD_BYTES, out, to)
        out[to] = 0x7B
        to += 1
        first = True
        while member < len(owners) and owners[member] == row:
            if not first:
                out[to] = 0x2C
                to += 1
            first = False
            to = copy(after, names[0, member] - 1, names[1, member] - names[0, member] + 2, out, to)
            out[to] = 0x3A
            to += 1
            if missing[member]:
                known = np.int64(-1)
                for old in range(first_of[row], first_of[row + 1]):
                    if _same_name(before, old, old_names, after, member, names):
                        known = np.int64(old)
                if known >= 0:
                    to = copy(before, old_starts[known], old_ends[known] - old_starts[known], out, to)
                else:
                    to = copy(after, starts[member], ends[member] - starts[member], out, to)
            else:
                to = copy(after, starts[member], ends[member] - starts[member], out, to)
            member += 1
        out[to] = 0x7D
        to += 1
        out_ends[row + 1] = to
