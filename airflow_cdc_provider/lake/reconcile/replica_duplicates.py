"""The number of cell-level contributions that duplicate another one.

Each replica logs its copy of a write, and a client or a node may repeat a write. Duplicates are equal in all
that they hold: key, clustering, deletions, values, write times and expiries. Reconciliation doesn't need the
count; it is reported to show what reading every replica costs. It is cheap, because contributions to the same
row are adjacent already. Only these are compared, by their bytes; many of them by a hash first. If two
different contributions to a row have the same hash, duplicates of one may be missed, but none is counted
wrongly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.contribution import RANGE_DELETION
from airflow_cdc_provider.formats.byte_kernels import load_little64, same
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, kernel, walker
from airflow_cdc_provider.lake.reconcile.order import SAME_ROW
from airflow_cdc_provider.lake.reconcile.shapes import Flat

_FEW: Final = 8
"""Up to this number, each is compared with each."""


class ReplicaDuplicates(NamedTuple):
    """Number of changes of rows, including deletions and static columns, and of duplicates among them."""

    row_changes: int = 0
    duplicates: int = 0


NO_CHANGES: Final = ReplicaDuplicates()


def count_duplicates(
    states: Flat, clustering_end: Flat, scope: Bytes, changes: Flags, order: Ints, levels: Bytes
) -> ReplicaDuplicates:
    """Count changes of rows, and duplicates among them.

    Args:
        states: The cell rows of contributions, checked.
        clustering_end: The upper bounds of ranges.
        scope: Their scopes.
        changes: Which of them to count.
        order: Numbers of the valid ones, as returned by :func:`~.order.order_contributions`.
        levels: Which of these begin a key or a row.

    Returns:
        The counts.
    """
    return ReplicaDuplicates(
        *(int(count) for count in _count(states, clustering_end, scope, changes, order, levels))
    )


@kernel
def _count(
    states: Flat, end: Flat, scope: Bytes, changes: Flags, order: Ints, levels: Bytes
) -> tuple[Int, Int]:
    row_changes = 0
    duplicates = 0
    members = np.empty(len(order), np.int64)
    low = 0
    while low < len(order):
        high = low
        count = 0
        while high < len(order) and (high == low or levels[high] == SAME_ROW):
            if changes[order[high]]:
                members[count] = order[high]
                count += 1
            high += 1
        row_changes += count
        if count > _FEW:
            duplicates += _duplicates_among_many(states, end, scope, members[:count])
        elif count > 1:
            duplicates += _duplicates_among_few(states, end, scope, members, count)
        low = high
    return row_changes, duplicates


@walker
def _duplicates_among_few(states: Flat, end: Flat, scope: Bytes, members: Ints, count: Int) -> Int:
    duplicates = 0
    for index in range(1, count):
        for earlier in range(index):
            if _are_duplicates(states, end, scope, members[earlier], members[index]):
                duplicates += 1
                break
    return duplicates


@kernel
def _duplicates_among_many(states: Flat, end: Flat, scope: Bytes, members: Ints) -> Int:
    hashes = np.empty(len(members), np.uint64)
    for index in range(len(members)):
        hashes[index] = _hash(states, members[index])
    by_hash = np.argsort(hashes)
    duplicates = 0
    first = by_hash[0]
    for index in by_hash[1:]:
        if hashes[index] != hashes[first]:
            first = index
        elif _are_duplicates(states, end, scope, members[first], members[index]):
            duplicates += 1
    return duplicates


@walker
def _are_duplicates(states: Flat, end: Flat, scope: Bytes, a: Int, b: Int) -> bool:
    """Compare two contributions to the same row, or two ranges of one key with the same start."""
    return _equal(states, a, b) and (scope[a] != RANGE_DELETION or _equal(end, a, b))


@walker
def _equal(column: Flat, a: Int, b: Int) -> bool:
    length = column.ends[a] - column.starts[a]
    if column.ends[b] - column.starts[b] != length:
        return False
    return same(column.data, column.starts[a], column.data, column.starts[b], length)


@walker
def _hash(column: Flat, member: Int) -> Int:
    at = column.starts[member]
    stop = column.ends[member]
    value = np.uint64(0x9E3779B97F4A7C15)
    while stop - at >= 8:
        value = _mixed(value ^ np.uint64(load_little64(column.data, at)))
        at += 8
    rest = np.uint64(0)
    while at < stop:
        rest = (rest << np.uint64(8)) | np.uint64(column.data[at])
        at += 1
    return _mixed(value ^ rest)


@walker
def _mixed(value: Int) -> Int:
    value = value * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))
