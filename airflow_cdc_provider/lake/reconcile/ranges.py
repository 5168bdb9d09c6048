"""Disjoint range deletions of one partition: the strongest deletion of each interval of clusterings.

This is what Cassandra's ``RangeTombstoneList`` holds after all deletions are added. The result doesn't depend
on how the deletions were split or ordered, so it can be stored and merged again. A bound is given by number:
numbers below the number of contributions refer to a ``clustering``, the others to a ``clustering_end``;
:data:`OPEN` is an open end.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.byte_kernels import compare
from airflow_cdc_provider.formats.kernels import Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.row_merge import no_deletion, read_deletion, supersedes
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Deletion, Ranges

OPEN: Final = np.int64(-1)


@walker
def compare_bounds(batch: Batch, a: Int, b: Int) -> Int:
    """Compare two bounds by their bytes; an open end is greater than all."""
    if a == OPEN:
        return np.int64(b != OPEN)
    if b == OPEN:
        return np.int64(-1)
    count = len(batch.row)
    a_column = batch.clustering if a < count else batch.clustering_end
    b_column = batch.clustering if b < count else batch.clustering_end
    i = a if a < count else a - count
    j = b if b < count else b - count
    return compare(
        a_column.data,
        a_column.starts[i],
        a_column.ends[i] - a_column.starts[i],
        b_column.data,
        b_column.starts[j],
        b_column.ends[j] - b_column.starts[j],
    )


@walker
def end_of(batch: Batch, member: Int) -> Int:
    """Return the upper bound of a contribution's range."""
    return np.int64(len(batch.row) + member) if batch.has_end[member] else OPEN


@walker
def disjoint_ranges(
    batch: Batch, order: Ints, low: Int, high: Int, partition: Deletion, ranges: Ranges
) -> Int:
    """Split the range deletions ``order[low:high]``, sorted by start, into disjoint intervals.

    Args:
        batch: The contributions.
        order: Their numbers.
        low: First of the partition's range deletions.
        high: After the last.
        partition: Deletion of the whole partition; ranges that are not stronger are dropped.
        ranges: Filled with the intervals, ascending.

    Returns:
        The number of intervals.
    """
    members, heap = ranges.members, ranges.heap
    starts, ends, times, seconds = ranges.starts, ranges.ends, ranges.times, ranges.seconds
    count = 0
    for index in range(low, high):
        member = order[index]
        deletion = read_deletion(batch.state, batch.row[member])
        if supersedes(deletion.present, deletion.time_us, deletion.seconds, partition):
            members[count] = member
            count += 1
    by_end = ranges.by_end
    _sort_by_end(batch, count, ranges)
    open_count = np.int64(0)
    started = np.int64(0)
    ended = np.int64(0)
    interval_count = np.int64(0)
    current = no_deletion()
    while started < count or ended < count:
        point = end_of(batch, by_end[ended])
        if started < count and compare_bounds(batch, members[started], point) < 0:
            point = members[started]
        if point == OPEN:
            break
        while started < count and compare_bounds(batch, members[started], point) == 0:
            open_count = _push(batch, heap, open_count, members[started])
            started += 1
        while ended < count and compare_bounds(batch, end_of(batch, by_end[ended]), point) <= 0:
            ended += 1
        while open_count > 0 and compare_bounds(batch, end_of(batch, heap[0]), point) <= 0:
            open_count = _pop(batch, heap, open_count)
        strongest = no_deletion()
        if open_count > 0:
            strongest = read_deletion(batch.state, batch.row[heap[0]])
        if current.present and strongest != current:
            ends[interval_count] = point
            interval_count += 1
        if strongest.present and strongest != current:
            starts[interval_count] = point
            times[interval_count] = strongest.time_us
            seconds[interval_count] = strongest.seconds
        current = strongest
    if current.present:
        ends[interval_count] = OPEN
        interval_count += 1
    return interval_count


@walker
def _stronger(batch: Batch, a: Int, b: Int) -> bool:
    deletion = read_deletion(batch.state, batch.row[a])
    return supersedes(
        deletion.present, deletion.time_us, deletion.seconds, read_deletion(batch.state, batch.row[b])
    )


@walker
def _push(batch: Batch, heap: Ints, count: Int, member: Int) -> Int:
    at = count
    while at > 0 and _stronger(batch, member, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = member
    return count + 1


@walker
def _pop(batch: Batch, heap: Ints, count: Int) -> Int:
    count -= 1
    member = heap[count]
    at = 0
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and _stronger(batch, heap[child + 1], heap[child]):
            child += 1
        if not _stronger(batch, heap[child], member):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = member
    return count


@walker
def _sort_by_end(batch: Batch, count: Int, ranges: Ranges) -> None:
    source, target = ranges.by_end, ranges.spare
    for i in range(count):
        source[i] = ranges.members[i]
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle = min(begin + width, count)
            end = min(begin + 2 * width, count)
            i = begin
            j = middle
            for at in range(begin, end):
                left = j >= end or (
                    i < middle
                    and compare_bounds(batch, end_of(batch, source[i]), end_of(batch, source[j])) <= 0
                )
                if left:
                    target[at] = source[i]
                    i += 1
                else:
                    target[at] = source[j]
                    j += 1
        source, target = target, source
        width *= 2
    for i in range(count):
        ranges.by_end[i] = source[i]
