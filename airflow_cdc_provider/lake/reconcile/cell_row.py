"""Reading, checking and comparing cell rows in place: the byte kernels used by :mod:`.cells`.

The layout is documented in :mod:`airflow_cdc_provider.changes.cells`. A cell row is identified by its start
and end in one array of bytes, a cell by its start, so nothing is unpacked. :func:`check_cell_rows` walks
every length once; all other kernels rely on it and never read bytes that it hasn't checked.

One rule set decides which version of a cell wins (``docs/formats/cassandra-commit-log.md``, section 16, rule
3; ``docs/design/scylla.md``, *Ties*). All are total orders, so any order of merging gives the same winner:

======= ===============================================================================================
4.0     write time; tombstone or expiring over plain; tombstone over expiring; later local deletion time
        or expiry; greater value, bytes unsigned
3.11    write time; not live now over live; greater value, bytes signed; later local deletion time
scylla  as 4.0, but after the expiry the shorter TTL, then the value
======= ===============================================================================================

An expired cell competes by its expiry, without TTL and value: two cells that differed only in these while
they were live are the same once expired, whenever they are merged. A write time that is a lower bound wins
over an equal exact one before values (ScyllaDB: TTLs) are compared. TTL decides the remaining ties, which no
reader of the database can observe.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    CELL_UNCERTAIN,
    FORMAT,
    NEVER,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_STATIC,
    ROW_STRICT,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.formats.byte_kernels import compare, load_little16, load_little32, load_little64
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.lake.reconcile.shapes import Flat

RULES_4_0: Final = 0
RULES_3_11: Final = 1
RULES_SCYLLA: Final = 2

HOLDS_NOTHING: Final = 0
HOLDS_SOMETHING: Final = 1
HOLDS_UNCERTAIN_ROW: Final = 2
HOLDS_UNCERTAIN_CELL: Final = 4

FAULTS: Final = (
    "",
    "shorter than its header",
    "unknown format or row flags",
    "clustering ends after the state",
    "cell ends after the state",
    "unknown cell flags",
    "path or value not allowed here",
    "cells out of order",
    "bytes after the last cell",
)

_ROW_FLAGS = ROW_STATIC | ROW_LIVENESS | ROW_DELETION | ROW_UNCERTAIN | ROW_STRICT
_CELL_FLAGS = CELL_TOMBSTONE | CELL_EXPIRING | CELL_PATH | CELL_COMPLEX_DELETION | CELL_UNCERTAIN


@walker
def read_i32(data: Bytes, at: Int) -> Int:
    """Read four bytes as a signed number."""
    return (load_little32(data, at) ^ np.int64(0x80000000)) - np.int64(0x80000000)


@walker
def compare_values_at(column: Flat, a: Int, b: Int) -> Int:
    """Compare two values of a column by their bytes."""
    return compare(
        column.data,
        column.starts[a],
        column.ends[a] - column.starts[a],
        column.data,
        column.starts[b],
        column.ends[b] - column.starts[b],
    )


@walker
def compare_signed_bytes(data: Bytes, a: Int, a_length: Int, b: Int, b_length: Int) -> Int:
    """Compare as Java's ``ByteBuffer.compareTo`` does: as :func:`compare`, but 0x80 is the least."""
    i = np.uint64(a)
    j = np.uint64(b)
    for k in range(min(a_length, b_length)):
        x = data[i + np.uint64(k)] ^ np.uint8(0x80)
        y = data[j + np.uint64(k)] ^ np.uint8(0x80)
        if x != y:
            return -1 if x < y else 1
    return order_of(a_length, b_length)


@walker
def order_of(a: Int, b: Int) -> Int:
    """Return -1, 0 or 1 as ``a`` is less than, equal to or greater than ``b``."""
    return -1 if a < b else (1 if a > b else 0)


@walker
def row_flags(data: Bytes, row: Int) -> Int:
    """Return the ``ROW_*`` flags of a cell row."""
    return np.int64(data[np.uint64(row + 1)])


@walker
def first_cell(data: Bytes, row: Int) -> Int:
    """Return the offset of the first cell of a row."""
    return row + ROW_HEADER_BYTES + load_little32(data, row + 40)


@walker
def cell_count(data: Bytes, row: Int) -> Int:
    """Return the number of cells of a row."""
    return load_little32(data, row + 44)


@walker
def cell_column(data: Bytes, cell: Int) -> Int:
    """Return the column id of a cell."""
    return load_little16(data, cell)


@walker
def cell_flags(data: Bytes, cell: Int) -> Int:
    """Return the ``CELL_*`` flags of a cell."""
    return np.int64(data[np.uint64(cell + 2)])


@walker
def cell_ttl(data: Bytes, cell: Int) -> Int:
    """Return the TTL of a cell in seconds, 0 for none."""
    return read_i32(data, cell + 4)


@walker
def cell_time(data: Bytes, cell: Int) -> Int:
    """Return the write time of a cell in us."""
    return load_little64(data, cell + 8)


@walker
def cell_end_time(data: Bytes, cell: Int) -> Int:
    """Return a cell's local deletion time or expiry in epoch seconds, NEVER for a plain cell."""
    if cell_flags(data, cell) & (CELL_TOMBSTONE | CELL_EXPIRING | CELL_COMPLEX_DELETION):
        return load_little64(data, cell + 16)
    return np.int64(NEVER)


@walker
def path_length(data: Bytes, cell: Int) -> Int:
    """Return the length of a cell's path."""
    return load_little32(data, cell + 24)


@walker
def value_length(data: Bytes, cell: Int) -> Int:
    """Return the length of a cell's value."""
    return load_little32(data, cell + 28)


@walker
def next_cell(data: Bytes, cell: Int) -> Int:
    """Return the offset of the next cell."""
    return cell + CELL_HEADER_BYTES + path_length(data, cell) + value_length(data, cell)


@walker
def is_expired(data: Bytes, cell: Int, now_seconds: Int) -> bool:
    """Return whether an expiring cell has expired, now or when an earlier merge marked it."""
    flags = cell_flags(data, cell)
    return (flags & CELL_EXPIRING) != 0 and (
        (flags & CELL_TOMBSTONE) != 0 or cell_end_time(data, cell) <= now_seconds
    )


@walker
def is_live(data: Bytes, cell: Int, now_seconds: Int) -> bool:
    """Return whether the database returns this cell to readers."""
    if cell_flags(data, cell) & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
        return False
    return not is_expired(data, cell, now_seconds)


@walker
def compare_cell_keys(data: Bytes, a: Int, b: Int) -> Int:
    """Compare the cells that two versions belong to: by column, complex deletion first, then path."""
    order = order_of(cell_column(data, a), cell_column(data, b))
    if order != 0:
        return order
    order = order_of(cell_flags(data, b) & CELL_COMPLEX_DELETION, cell_flags(data, a) & CELL_COMPLEX_DELETION)
    if order != 0:
        return order
    return compare(
        data,
        a + CELL_HEADER_BYTES,
        path_length(data, a),
        data,
        b + CELL_HEADER_BYTES,
        path_length(data, b),
    )


@walker
def compare_values(data: Bytes, a: Int, b: Int, now_seconds: Int, rules: Int) -> Int:
    """Compare the values of two versions of one cell in the order of the rule set."""
    a_length = np.int64(0) if is_expired(data, a, now_seconds) else value_length(data, a)
    b_length = np.int64(0) if is_expired(data, b, now_seconds) else value_length(data, b)
    a_value = a + CELL_HEADER_BYTES + path_length(data, a)
    b_value = b + CELL_HEADER_BYTES + path_length(data, b)
    if rules == RULES_3_11:
        return compare_signed_bytes(data, a_value, a_length, b_value, b_length)
    return compare(data, a_value, a_length, data, b_value, b_length)


@walker
def compare_versions(data: Bytes, a: Int, b: Int, now_seconds: Int, rules: Int) -> Int:
    """Compare two versions of one cell: positive if ``a`` wins, 0 if they are equal."""
    order = order_of(cell_time(data, a), cell_time(data, b))
    if order != 0:
        return order
    a_flags = cell_flags(data, a)
    b_flags = cell_flags(data, b)
    a_end = cell_end_time(data, a)
    b_end = cell_end_time(data, b)
    a_tombstone = np.int64((a_flags & (CELL_TOMBSTONE | CELL_EXPIRING)) == CELL_TOMBSTONE)
    b_tombstone = np.int64((b_flags & (CELL_TOMBSTONE | CELL_EXPIRING)) == CELL_TOMBSTONE)
    a_uncertain = a_flags & CELL_UNCERTAIN
    b_uncertain = b_flags & CELL_UNCERTAIN
    a_ttl = np.int64(0) if is_expired(data, a, now_seconds) else cell_ttl(data, a)
    b_ttl = np.int64(0) if is_expired(data, b, now_seconds) else cell_ttl(data, b)
    if rules == RULES_3_11:
        a_live = np.int64(is_live(data, a, now_seconds))
        b_live = np.int64(is_live(data, b, now_seconds))
        order = order_of(b_live, a_live)
        if order == 0:
            order = order_of(a_uncertain, b_uncertain)
        if order == 0:
            order = compare_values(data, a, b, now_seconds, rules)
        if order == 0:
            order = order_of(a_end, b_end)
        if order == 0:
            order = order_of(a_tombstone, b_tombstone)
    else:
        a_has_end = np.int64((a_flags & (CELL_TOMBSTONE | CELL_EXPIRING)) != 0)
        b_has_end = np.int64((b_flags & (CELL_TOMBSTONE | CELL_EXPIRING)) != 0)
        order = order_of(a_has_end, b_has_end)
        if order == 0:
            order = order_of(a_tombstone, b_tombstone)
        if order == 0:
            order = order_of(a_end, b_end)
        if order == 0:
            order = order_of(a_uncertain, b_uncertain)
        if order == 0 and rules == RULES_SCYLLA:
            order = order_of(b_ttl, a_ttl)
        if order == 0:
            order = compare_values(data, a, b, now_seconds, rules)
    if order == 0:
        order = order_of(a_ttl, b_ttl)
    return order


@walker
def check_cell_rows(data: Bytes, starts: Ints, ends: Ints, cells: Ints, contents: Bytes) -> tuple[Int, Int]:
    """Check every length of every cell row.

    Args:
        data: All cell rows, concatenated.
        starts: Start of each.
        ends: End of each, within ``data``.
        cells: Filled with the number of cells of each.
        contents: Filled with the ``HOLDS_*`` bits of each.

    Returns:
        The number of the first invalid row and its index in :data:`FAULTS`; (-1, 0) if all are valid.
    """
    for number in range(len(starts)):
        fault, count, holds = _check(data, starts[number], ends[number])
        if fault != 0:
            return number, fault
        cells[number] = count
        contents[number] = holds
    return -1, 0


@walker
def _check(data: Bytes, row: Int, end: Int) -> tuple[Int, Int, Int]:
    if end - row < ROW_HEADER_BYTES:
        return 1, 0, 0
    flags = row_flags(data, row)
    if data[np.uint64(row)] != FORMAT or (flags & ~_ROW_FLAGS) != 0:
        return 2, 0, 0
    at = first_cell(data, row)
    if at > end:
        return 3, 0, 0
    count = cell_count(data, row)
    holds = HOLDS_NOTHING
    if count > 0 or (flags & (ROW_LIVENESS | ROW_DELETION | ROW_UNCERTAIN)) != 0:
        holds = HOLDS_SOMETHING
    if flags & ROW_UNCERTAIN:
        holds |= HOLDS_UNCERTAIN_ROW
    before = np.int64(-1)
    for _ in range(count):
        if end - at < CELL_HEADER_BYTES or next_cell(data, at) > end:
            return 4, 0, 0
        flags = cell_flags(data, at)
        if (flags & ~_CELL_FLAGS) != 0:
            return 5, 0, 0
        if flags & CELL_COMPLEX_DELETION:
            if path_length(data, at) + value_length(data, at) > 0:
                return 6, 0, 0
        elif (flags & CELL_PATH) == 0 and path_length(data, at) > 0:
            return 6, 0, 0
        if before >= 0 and compare_cell_keys(data, before, at) >= 0:
            return 7, 0, 0
        if flags & CELL_UNCERTAIN:
            holds |= HOLDS_UNCERTAIN_CELL
        before = at
        at = next_cell(data, at)
    return (8 if at != end else 0), count, holds
