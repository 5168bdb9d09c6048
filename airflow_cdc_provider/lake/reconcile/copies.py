"""How many cell-level contributions say just what another one says.

Each replica logs its copy of a write, and a client or a node may write the same again. Copies are the same by
all that they hold: key, clustering, deletions, values, write times and expiries. Reconciliation needs no such
count; people want it, to know what reading every replica costs. It comes cheap where contributions to the
same row stand beside each other already: only these are compared, by their bytes, many of them by a hash
first. Where two different ones of a row have the same hash, copies of one of them may be missed, never made
up.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.byte_kernels import load_little64, same
from airflow_cdc_provider.changes.contribution import RANGE_DELETION
from airflow_cdc_provider.changes.kernels import kernel, walker
from airflow_cdc_provider.lake.reconcile.order import SAME_ROW
from airflow_cdc_provider.lake.reconcile.shapes import Bytes, Flags, Flat, Int, Numbers

_FEW: Final = 8
"""So many are compared each with each."""


class Copies(NamedTuple):
    """How many changes of rows there are, deletions and statics among them, and how many are copies."""

    row_changes: int = 0
    copies: int = 0


NO_CHANGES: Final = Copies()


def count_copies(
    states: Flat, clustering_end: Flat, scope: Bytes, changes: Flags, order: Numbers, levels: Bytes
) -> Copies:
    """Count changes of rows, and those of them that say just what another one says.

    Args:
        states: The cell rows of contributions, checked.
        clustering_end: The upper bounds of ranges.
        scope: Their scopes.
        changes: Which of them are to be counted.
        order: Numbers of those that count, as :func:`~.order.order_contributions` gives them.
        levels: Which of these begin a key or a row.
    """
    return Copies(*(int(count) for count in _count(states, clustering_end, scope, changes, order, levels)))


@kernel
def _count(
    states: Flat, end: Flat, scope: Bytes, changes: Flags, order: Numbers, levels: Bytes
) -> tuple[Int, Int]:
    row_changes = 0
    copies = 0
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
            copies += _copies_among_many(states, end, scope, members[:count])
        elif count > 1:
            copies += _copies_among_few(states, end, scope, members, count)
        low = high
    return row_changes, copies


@walker
def _copies_among_few(states: Flat, end: Flat, scope: Bytes, members: Numbers, count: Int) -> Int:
    copies = 0
    for place in range(1, count):
        for earlier in range(place):
            if _are_copies(states, end, scope, members[earlier], members[place]):
                copies += 1
                break
    return copies


@kernel
def _copies_among_many(states: Flat, end: Flat, scope: Bytes, members: Numbers) -> Int:
    hashes = np.empty(len(members), np.uint64)
    for place in range(len(members)):
        hashes[place] = _hash(states, members[place])
    by_hash = np.argsort(hashes)
    copies = 0
    first = by_hash[0]
    for place in by_hash[1:]:
        if hashes[place] != hashes[first]:
            first = place
        elif _are_copies(states, end, scope, members[first], members[place]):
            copies += 1
    return copies


@walker
def _are_copies(states: Flat, end: Flat, scope: Bytes, a: Int, b: Int) -> bool:
    """Compare two contributions to the same row, or two ranges of one key that begin at the same place."""
    return _equal(states, a, b) and (scope[a] != RANGE_DELETION or _equal(end, a, b))


@walker
def _equal(column: Flat, a: Int, b: Int) -> bool:
    length = column.ends[a] - column.starts[a]
    if column.ends[b] - column.starts[b] != length:
        return False
    return same(column.data, column.starts[a], column.data, column.starts[b], length)


@walker
def _hash(column: Flat, member: Int) -> Any:
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
def _mixed(value: Any) -> Any:
    value = value * np.uint64(0xD6E8FEB86659FD93)
    return value ^ (value >> np.uint64(32))
