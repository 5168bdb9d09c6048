"""Sorting contributions: by key, then scope, then clustering.

Keys are ordered by a 64-bit hash, since equal keys only need to be adjacent, and by their bytes if hashes are
equal. Within a key come its deletion, its static row, its range deletions by start, its rows by clustering.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION, ROW, STATIC
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, Words, kernel, walker
from airflow_cdc_provider.lake.reconcile.cell_row import compare_values_at
from airflow_cdc_provider.lake.reconcile.shapes import Flat

SAME_ROW: Final = 0
NEW_ROW: Final = 1
NEW_KEY: Final = 2

_RANKS = np.empty(4, np.uint64)
_RANKS[[PARTITION_DELETION, STATIC, RANGE_DELETION, ROW]] = (0, 1, 2, 3)
_SHORT_RUN: Final = 12
_LONG_RUN: Final = 100
"""Run length above which sorting all by two numbers is faster than sorting each key's rows by bytes."""


def order_contributions(
    key: Flat, clustering: Flat, scope: Bytes, chosen: Ints, *, hash_bits: int = 64
) -> tuple[Ints, Bytes]:
    """Order contributions.

    Args:
        key: Their keys.
        clustering: Their clusterings.
        scope: Their scopes, each one of the four.
        chosen: Numbers of the contributions to order.
        hash_bits: Number of hash bits to use; fewer only make it slower.

    Returns:
        Numbers of the chosen ones in order, and for each whether it begins a new key (``NEW_KEY``), begins a
        new row of the same key (``NEW_ROW``) or belongs to the same row (``SAME_ROW``).
    """
    hashes = np.empty(len(chosen), np.uint64)
    ranks = np.empty(len(chosen), np.uint64)
    _hash_keys(key, chosen, np.uint64(64 - hash_bits), hashes)
    _rank_clusterings(clustering, scope, chosen, ranks)
    by_hash = np.argsort(hashes)
    if _longest_run(hashes[by_hash]) > _LONG_RUN:
        by_hash = np.lexsort((ranks, hashes))
    order = chosen[by_hash]
    levels = np.empty(len(chosen), np.uint8)
    _settle(key, clustering, hashes[by_hash], ranks[by_hash], order, levels)
    return order, levels


def _longest_run(hashes: Words) -> int:
    begins = np.flatnonzero(hashes[1:] != hashes[:-1])
    return int(np.diff(begins, prepend=-1, append=len(hashes) - 1).max(initial=0))


@walker
def _hash_keys(key: Flat, chosen: Ints, shift: Int, hashes: Words) -> None:
    for index in range(len(chosen)):
        at = np.uint64(key.starts[chosen[index]])
        end = np.uint64(key.ends[chosen[index]])
        value = np.uint64(0x9E3779B97F4A7C15) ^ (end - at)
        while at < end:
            word = np.uint64(0)
            for k in range(min(np.uint64(8), end - at)):
                word |= np.uint64(key.data[at + np.uint64(k)]) << np.uint64(8 * k)
            value = (value ^ word) * np.uint64(0xD6E8FEB86659FD93)
            value ^= value >> np.uint64(32)
            at += np.uint64(8)
        value = value * np.uint64(0xD6E8FEB86659FD93)
        hashes[index] = (value ^ (value >> np.uint64(29))) >> shift


@walker
def _rank_clusterings(clustering: Flat, scope: Bytes, chosen: Ints, ranks: Words) -> None:
    # Two bits of scope, then 62 bits of the clustering; for rows, without the prefix that all of them share.
    shared = _shared_prefix(clustering, scope, chosen)
    for index in range(len(chosen)):
        member = chosen[index]
        rank = np.uint64(0)
        if _RANKS[scope[member]] >= _RANKS[RANGE_DELETION]:
            skipped = shared if scope[member] == ROW else np.int64(0)
            at = np.uint64(clustering.starts[member] + skipped)
            length = clustering.ends[member] - clustering.starts[member] - skipped
            for k in range(8):
                rank <<= np.uint64(8)
                if k < length:
                    rank |= np.uint64(clustering.data[at + np.uint64(k)])
        ranks[index] = (rank >> np.uint64(2)) | (_RANKS[scope[member]] << np.uint64(62))


@walker
def _shared_prefix(clustering: Flat, scope: Bytes, chosen: Ints) -> Int:
    shared = np.int64(-1)
    at = np.int64(0)
    for index in range(len(chosen)):
        member = chosen[index]
        if scope[member] != ROW:
            continue
        start = clustering.starts[member]
        length = clustering.ends[member] - start
        if shared < 0:
            at = start
            shared = length
        shared = min(shared, length)
        for k in range(shared):
            if clustering.data[np.uint64(start + k)] != clustering.data[np.uint64(at + k)]:
                shared = np.int64(k)
                break
    return max(shared, np.int64(0))


@kernel
def _settle(key: Flat, clustering: Flat, hashes: Words, ranks: Words, order: Ints, levels: Bytes) -> None:
    spare_order = np.empty(len(order), np.int64)
    spare_ranks = np.empty(len(order), np.uint64)
    low = np.int64(0)
    while low < len(order):
        high = low + 1
        one_key = True
        while high < len(order) and hashes[high] == hashes[low]:
            one_key = one_key and compare_values_at(key, order[low], order[high]) == 0
            high += 1
        if not one_key:
            high = _least_key_first(key, ranks, order, low, high)
        _sort(clustering, ranks, order, low, high, spare_ranks, spare_order)
        levels[low] = NEW_KEY
        for index in range(low + 1, high):
            same = ranks[index] == ranks[index - 1] and (
                not _has_clustering(ranks[index])
                or compare_values_at(clustering, order[index - 1], order[index]) == 0
            )
            levels[index] = SAME_ROW if same else NEW_ROW
        low = high


@walker
def _has_clustering(rank: Int) -> bool:
    return (rank >> np.uint64(63)) != 0


@walker
def _least_key_first(key: Flat, ranks: Words, order: Ints, low: Int, high: Int) -> Int:
    # Different keys with one hash: contributions of the least key move to the front, the others follow later.
    least = order[low]
    for index in range(low + 1, high):
        if compare_values_at(key, order[index], least) < 0:
            least = order[index]
    end = low
    for index in range(low, high):
        if compare_values_at(key, order[index], least) == 0:
            order[index], order[end] = order[end], order[index]
            ranks[index], ranks[end] = ranks[end], ranks[index]
            end += 1
    return end


@kernel
def _sort(
    clustering: Flat, ranks: Words, order: Ints, low: Int, high: Int, spare_ranks: Words, spare_order: Ints
) -> None:
    # Short runs by insertion, then runs merged two at a time.
    for begin in range(low, high, _SHORT_RUN):
        for index in range(begin + 1, min(begin + _SHORT_RUN, high)):
            rank = ranks[index]
            member = order[index]
            at = index
            while at > begin and _precedes(clustering, rank, member, ranks[at - 1], order[at - 1]):
                ranks[at] = ranks[at - 1]
                order[at] = order[at - 1]
                at -= 1
            ranks[at] = rank
            order[at] = member
    width = np.int64(_SHORT_RUN)
    while width < high - low:
        for begin in range(low, high - width, 2 * width):
            middle = begin + width
            end = min(middle + width, high)
            if _precedes(clustering, ranks[middle], order[middle], ranks[middle - 1], order[middle - 1]):
                spare_ranks[begin:middle] = ranks[begin:middle]
                spare_order[begin:middle] = order[begin:middle]
                _merge(clustering, ranks, order, begin, middle, end, spare_ranks, spare_order)
        width *= 2


@walker
def _merge(
    clustering: Flat,
    ranks: Words,
    order: Ints,
    begin: Int,
    middle: Int,
    end: Int,
    spare_ranks: Words,
    spare_order: Ints,
) -> None:
    i = begin
    j = middle
    at = begin
    while i < middle:
        if j < end and _precedes(clustering, ranks[j], order[j], spare_ranks[i], spare_order[i]):
            ranks[at] = ranks[j]
            order[at] = order[j]
            j += 1
        else:
            ranks[at] = spare_ranks[i]
            order[at] = spare_order[i]
            i += 1
        at += 1


@walker
def _precedes(clustering: Flat, a_rank: Int, a: Int, b_rank: Int, b: Int) -> bool:
    if a_rank != b_rank:
        return a_rank < b_rank
    return _has_clustering(a_rank) and compare_values_at(clustering, a, b) < 0
