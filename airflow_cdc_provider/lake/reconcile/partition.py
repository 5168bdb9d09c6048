"""Reconciliation partition by partition: the loop that :mod:`.cells` runs over ordered contributions."""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import NEVER
from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION, ROW, STATIC
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, inlined, walker
from airflow_cdc_provider.lake.reconcile.order import NEW_KEY, SAME_ROW
from airflow_cdc_provider.lake.reconcile.ranges import OPEN, compare_bounds, disjoint_ranges
from airflow_cdc_provider.lake.reconcile.row_merge import (
    greater_deletion,
    merge_row,
    no_deletion,
    read_deletion,
    write_deletion,
)
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Deletion, Outcome, Ranges, Scratch, Settings

NONE: Final = np.int64(-1)


def outcome_for(row_count: int, range_count: int, state_bytes: int) -> Outcome:
    """Allocate the largest possible output of a batch; unused pages cost nothing.

    Merging never makes cell rows larger, and n ranges split each other into fewer than 2n.
    """

    def numbers(size: int) -> Ints:
        return np.empty(size, np.int64)

    tombstone_rows = row_count + range_count
    return Outcome(
        live=np.empty(state_bytes, np.uint8),
        live_at=numbers(row_count + 1),
        live_member=numbers(row_count),
        live_static=numbers(row_count),
        live_expires=numbers(row_count),
        live_static_expires=numbers(row_count),
        live_generation=numbers(row_count),
        tombstones=np.empty(state_bytes + 48 * range_count, np.uint8),
        tombstone_at=numbers(tombstone_rows + 1),
        tombstone_scope=np.empty(tombstone_rows, np.uint8),
        tombstone_member=numbers(tombstone_rows),
        tombstone_start=numbers(tombstone_rows),
        tombstone_end=numbers(tombstone_rows),
        tombstone_generation=numbers(tombstone_rows),
        unresolved=numbers(row_count),
        counts=np.zeros(3, np.int64),
    )


def reconcile_partitions(
    batch: Batch, order: Ints, levels: Bytes, cells: Ints, settings: Settings, out: Outcome
) -> None:
    """Reconcile all partitions of a batch.

    Args:
        batch: The contributions.
        order: Numbers of the valid ones, as returned by :func:`~.order.order_contributions`.
        levels: Which of them begin a key or a row.
        cells: Number of cells of each contribution.
        settings: Time, purge limit and rules.
        out: Filled with the outcome.
    """
    most_cells, most_members = _largest_row(order, levels, cells)
    _reconcile(batch, order, levels, settings, _scratch_for(batch, most_cells, most_members), out)


def _scratch_for(batch: Batch, most_cells: int, most_members: int) -> Scratch:
    most_ranges = int((batch.scope == RANGE_DELETION).sum())
    return Scratch(
        cells=np.empty(most_cells, np.int64),
        spare=np.empty(most_cells, np.int64),
        runs=np.empty(most_members + 1, np.int64),
        covered=np.empty(most_cells, np.bool_),
        covering_us=np.empty(most_cells, np.int64),
        confirmed=np.empty(most_cells, np.bool_),
        # Ranges split each other into fewer than twice as many intervals.
        ranges=Ranges(
            *(np.empty(most_ranges, np.int64) for _ in range(4)),
            *(np.empty(2 * most_ranges, np.int64) for _ in range(4)),
        ),
    )


@walker
def _reconcile(
    batch: Batch, order: Ints, levels: Bytes, settings: Settings, scratch: Scratch, out: Outcome
) -> None:
    out.live_at[0] = 0
    out.tombstone_at[0] = 0
    low = np.int64(0)
    while low < len(order):
        high = low + 1
        generation = batch.generation[order[low]]
        while high < len(order) and levels[high] != NEW_KEY:
            generation = max(generation, batch.generation[order[high]])
            high += 1
        if _reconcile_partition(batch, order, levels, low, high, generation, settings, scratch, out):
            out.unresolved[out.counts[2]] = order[low]
            out.counts[2] += 1
        low = high


@walker
def _largest_row(order: Ints, levels: Bytes, cells: Ints) -> tuple[Int, Int]:
    most_cells = np.int64(0)
    most_members = np.int64(0)
    row_cells = np.int64(0)
    row_members = np.int64(0)
    for index in range(len(order)):
        if levels[index] != SAME_ROW:
            row_cells = np.int64(0)
            row_members = np.int64(0)
        row_cells += cells[order[index]]
        row_members += 1
        most_cells = max(most_cells, row_cells)
        most_members = max(most_members, row_members)
    return most_cells, most_members


@inlined
def _reconcile_partition(
    batch: Batch,
    order: Ints,
    levels: Bytes,
    low: Int,
    high: Int,
    generation: Int,
    settings: Settings,
    scratch: Scratch,
    out: Outcome,
) -> bool:
    index = low
    partition = no_deletion()
    while index < high and batch.scope[order[index]] == PARTITION_DELETION:
        partition = greater_deletion(read_deletion(batch.state, batch.row[order[index]]), partition)
        index += 1
    if partition.present and partition.seconds >= settings.purge_seconds:
        end = write_deletion(out.tombstones, out.tombstone_at[out.counts[1]], partition)
        _add_tombstone(out, np.int64(PARTITION_DELETION), order[low], NONE, NONE, generation, end)

    begin = index
    while index < high and batch.scope[order[index]] == STATIC:
        index += 1
    static = NONE
    static_lives = False
    static_expires = np.int64(NEVER)
    unresolved = False
    if index > begin:
        at = out.tombstone_at[out.counts[1]]
        end, static_lives, static_expires, unresolved = merge_row(
            batch, order, begin, index, partition, settings, scratch, out.tombstones, at
        )
        if static_lives:
            static = out.counts[1]
        if end > at:
            _add_tombstone(out, np.int64(STATIC), order[low], NONE, NONE, generation, end)

    begin = index
    while index < high and batch.scope[order[index]] == RANGE_DELETION:
        index += 1
    starts, ends = scratch.ranges.starts, scratch.ranges.ends
    times, seconds = scratch.ranges.times, scratch.ranges.seconds
    interval_count = np.int64(0)
    if index > begin:
        interval_count = disjoint_ranges(batch, order, begin, index, partition, scratch.ranges)
    for number in range(interval_count):
        if seconds[number] >= settings.purge_seconds:
            end = write_deletion(
                out.tombstones,
                out.tombstone_at[out.counts[1]],
                Deletion(True, times[number], seconds[number]),
            )
            _add_tombstone(
                out, np.int64(RANGE_DELETION), order[low], starts[number], ends[number], generation, end
            )

    interval = 0
    live_before = out.counts[0]
    while index < high:
        begin = index
        index += 1
        while index < high and levels[index] == SAME_ROW:
            index += 1
        row = order[begin]
        above = partition
        while interval < interval_count and compare_bounds(batch, ends[interval], row) <= 0:
            interval += 1
        if interval < interval_count and compare_bounds(batch, starts[interval], row) <= 0:
            above = Deletion(True, times[interval], seconds[interval])
        at = out.live_at[out.counts[0]]
        end, lives, expires, row_unresolved = merge_row(
            batch, order, begin, index, above, settings, scratch, out.live, at
        )
        unresolved = unresolved or row_unresolved
        if lives:
            _add_live(out, row, static, expires, static_expires, generation, end)
        elif end > at:
            target = out.tombstone_at[out.counts[1]]
            copy(out.live, at, end - at, out.tombstones, target)
            _add_tombstone(out, np.int64(ROW), row, row, NONE, generation, target + end - at)
    if static_lives and out.counts[0] == live_before:
        end = out.live_at[out.counts[0]]
        _add_live(out, order[low], static, np.int64(NEVER), static_expires, generation, end)
    return unresolved


@inlined
def _add_live(
    out: Outcome, member: Int, static: Int, expires: Int, static_expires: Int, generation: Int, end: Int
) -> None:
    number = out.counts[0]
    out.live_member[number] = member
    out.live_static[number] = static
    out.live_expires[number] = expires
    out.live_static_expires[number] = static_expires
    out.live_generation[number] = generation
    out.live_at[number + 1] = end
    out.counts[0] = number + 1


@walker
def _add_tombstone(
    out: Outcome, scope: Int, member: Int, start: Int, end_bound: Int, generation: Int, end: Int
) -> None:
    number = out.counts[1]
    out.tombstone_scope[number] = scope
    out.tombstone_member[number] = member
    out.tombstone_start[number] = start
    out.tombstone_end[number] = end_bound if end_bound != OPEN else NONE
    out.tombstone_generation[number] = generation
    out.tombstone_at[number + 1] = end
    out.counts[1] = number + 1
