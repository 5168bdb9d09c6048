"""Merging all cell rows that contribute to one row: the central kernel of :mod:`.cells`.

The four steps work on references to cells (their offsets) and copy nothing:

1. find the greatest row deletion and the greatest liveness of the headers; 2. merge the cells: each
contribution's cells are sorted already, so runs are merged in pairs until one remains,
   keeping the winner of each cell;
3. drop what deletions cover, and determine what is live;
4. write the remainder as one cell row.

A row known only from a SELECT (``ROW_UNCERTAIN``) has an unknown liveness with the time of the reading as its
write time. It competes with the known ones by time: a later known liveness replaces it, a later deletion
removes it, and until then the row is live. The greatest known liveness before the reading is stored too: if
it is the only one, the row ends when it expires.

A row that lives by its liveness alone (``ROW_STRICT``) is dead without one, whatever cells it has. Its cells
are kept, so that a later liveness makes them visible again; they are purged with its last deletion or
liveness, as by a compaction.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_TOMBSTONE,
    FORMAT,
    LATEST_EXPIRY,
    NEVER,
    NEVER_LIVED,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_STATIC,
    ROW_STRICT,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.changes.contribution import STATIC
from airflow_cdc_provider.formats.byte_kernels import (
    compare,
    copy,
    load_little32,
    load_little64,
    store_little32,
    store_little64,
)
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, inlined, walker
from airflow_cdc_provider.lake.reconcile.cell_row import (
    HOLDS_UNCERTAIN_CELL,
    HOLDS_UNCERTAIN_ROW,
    cell_column,
    cell_count,
    cell_end_time,
    cell_flags,
    cell_time,
    compare_cell_keys,
    compare_versions,
    first_cell,
    is_expired,
    is_live,
    next_cell,
    order_of,
    path_length,
    read_i32,
    row_flags,
    value_length,
)
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Deletion, Liveness, Scratch, Settings
from airflow_cdc_provider.lake.reconcile.synthetic_list_paths import drop_confirmed
from airflow_cdc_provider.lake.reconcile.unresolved import has_unresolved_cells

EXPIRED_LIVENESS_TTL: Final = 2147483647
"""TTL of a liveness that Cassandra's views write as a tombstone; it never lives."""


@walker
def no_liveness() -> Liveness:
    """Return the value for no liveness."""
    return Liveness(np.int64(0), np.int64(0), np.int64(0), np.int64(NEVER))


@walker
def no_deletion() -> Deletion:
    """Return the value for no deletion."""
    return Deletion(False, np.int64(0), np.int64(0))


@walker
def supersedes(present: bool, time_us: Int, seconds: Int, other: Deletion) -> bool:
    """Return whether a deletion is stronger than another one (section 16, rule 1)."""
    return present and (
        not other.present or time_us > other.time_us or (time_us == other.time_us and seconds > other.seconds)
    )


@walker
def read_deletion(data: Bytes, row: Int) -> Deletion:
    """Return the deletion in a cell row's header."""
    return Deletion(
        (row_flags(data, row) & ROW_DELETION) != 0,
        load_little64(data, row + 24),
        load_little64(data, row + 32),
    )


@walker
def greater_deletion(a: Deletion, b: Deletion) -> Deletion:
    """Return the stronger of two deletions."""
    return a if supersedes(a.present, a.time_us, a.seconds, b) else b


@walker
def covers(deletion: Deletion, time_us: Int) -> bool:
    """Return whether a deletion covers data written at a time."""
    return deletion.present and time_us <= deletion.time_us


@walker
def write_header(
    out: Bytes,
    at: Int,
    flags: Int,
    liveness: Liveness,
    deletion: Deletion,
    clustering_length: Int,
    cells: Int,
) -> None:
    """Write the 48-byte header of a cell row; unused fields get a fixed value."""
    out[np.uint64(at)] = np.uint8(FORMAT)
    out[np.uint64(at + 1)] = np.uint8(flags)
    out[np.uint64(at + 2)] = np.uint8(0)
    out[np.uint64(at + 3)] = np.uint8(0)
    store_little32(out, at + 4, liveness.ttl)
    store_little64(out, at + 8, liveness.time_us)
    store_little64(out, at + 16, liveness.expires)
    store_little64(out, at + 24, deletion.time_us if deletion.present else np.int64(0))
    store_little64(out, at + 32, deletion.seconds if deletion.present else np.int64(0))
    store_little32(out, at + 40, clustering_length)
    store_little32(out, at + 44, cells)


@walker
def write_deletion(out: Bytes, at: Int, deletion: Deletion) -> Int:
    """Write a cell row with only a deletion, and return its end."""
    write_header(out, at, np.int64(ROW_DELETION), no_liveness(), deletion, np.int64(0), np.int64(0))
    return at + ROW_HEADER_BYTES


@walker
def merge_row(
    batch: Batch,
    order: Ints,
    low: Int,
    high: Int,
    above: Deletion,
    settings: Settings,
    scratch: Scratch,
    out: Bytes,
    at: Int,
) -> tuple[Int, bool, Int, bool]:
    """Merge the cell rows ``order[low:high]`` of one row, or one static row, and write the result.

    Args:
        batch: The contributions (:class:`~airflow_cdc_provider.lake.reconcile.shapes.Batch`).
        order: Numbers of contributions.
        low: First of the row's.
        high: After the last of them.
        above: The deletion of the partition and of ranges over this row; it isn't written.
        settings: Time, purge limit and rules.
        scratch: Scratch buffers.
        out: Output buffer.
        at: Offset to write at.

    Returns:
        End of the written bytes (``at`` for none), whether the row is live, the second of its next expiry
        (NEVER for none), and whether the row is unresolved.
    """
    data = batch.state
    static = batch.scope[order[low]] == STATIC
    own = no_deletion()
    strict = np.int64(0)
    for index in range(low, high):
        own = greater_deletion(read_deletion(data, batch.row[order[index]]), own)
        strict |= row_flags(data, batch.row[order[index]]) & ROW_STRICT
    kept = supersedes(own.present, own.time_us, own.seconds, above)
    active = own if kept else above

    found = _greatest_liveness(data, batch.row, order, low, high)
    liveness = found
    if found.flag == 0 or covers(active, found.time_us) or (static and found.flag == ROW_LIVENESS):
        liveness = no_liveness()
    uncertain = liveness.flag == ROW_UNCERTAIN
    if uncertain and not static:
        liveness = _with_known(data, batch.row, order, low, high, liveness, active)

    cells = scratch.cells
    count = _merge_cells(batch, order, low, high, settings, scratch)

    contents = 0
    for index in range(low, high):
        contents |= batch.contents[order[index]]
    unresolved = False
    if contents & (HOLDS_UNCERTAIN_ROW | HOLDS_UNCERTAIN_CELL):
        unresolved = has_unresolved_cells(
            batch, order, low, high, cells, count, active, found, uncertain, settings, scratch
        )

    if contents & HOLDS_UNCERTAIN_CELL:
        count = drop_confirmed(batch, order, low, high, cells, count)

    had_cells = count > 0
    count, cell_lives, expires_at = _keep_uncovered(data, cells, count, active, settings.now_seconds)
    purge_before = settings.purge_seconds
    if uncertain and not static and not strict:
        ends = _known_end(liveness)
        if not cell_lives:
            ended = liveness.expires != NEVER and liveness.ttl == NEVER_LIVED
            hidden = (had_cells or active.present or ended) and not _lives_without_cells(liveness)
            unresolved = unresolved or hidden or ends <= settings.now_seconds
            if unresolved:
                purge_before = np.int64(-NEVER)
        if settings.now_seconds < ends:
            expires_at = min(expires_at, ends)

    row_lives = uncertain
    if liveness.flag == ROW_LIVENESS:
        if liveness.ttl == 0:
            row_lives = True
        elif liveness.ttl != EXPIRED_LIVENESS_TTL and settings.now_seconds < liveness.expires:
            row_lives = True
            expires_at = min(expires_at, liveness.expires)
        elif liveness.expires < purge_before:
            liveness = no_liveness()
    if uncertain and strict:
        row_lives, liveness, expires_at = _strictly_read(
            liveness, settings.now_seconds, purge_before, expires_at
        )
    if kept and own.seconds < purge_before:
        kept = False
    if strict and not row_lives and liveness.flag == 0 and not kept and purge_before != -NEVER:
        return at, False, np.int64(NEVER), unresolved

    named = _namer(data, batch.row, order, low, high)
    clustering_length = load_little32(data, named + 40)
    copy(data, named + ROW_HEADER_BYTES, clustering_length, out, at + ROW_HEADER_BYTES)
    end = at + ROW_HEADER_BYTES + clustering_length
    end, written = _write_cells(data, cells, count, settings.now_seconds, purge_before, out, end)
    flags = liveness.flag | (ROW_DELETION if kept else 0) | (ROW_STATIC if static else 0) | strict
    if written == 0 and (flags & ~(ROW_STATIC | ROW_STRICT)) == 0:
        return at, False, np.int64(NEVER), unresolved
    remaining = Deletion(kept, own.time_us, own.seconds)
    write_header(out, at, flags, liveness, remaining, clustering_length, written)
    return end, (cell_lives and not strict) or (row_lives and not static), expires_at, unresolved


@inlined
def _greatest_liveness(data: Bytes, rows: Ints, order: Ints, low: Int, high: Int) -> Liveness:
    best = no_liveness()
    for index in range(low, high):
        row = rows[order[index]]
        flags = row_flags(data, row)
        if flags & ROW_LIVENESS:
            ttl = read_i32(data, row + 4)
            # Without a TTL the expiry is unused, whatever its bytes.
            expires = np.int64(NEVER) if ttl == 0 else load_little64(data, row + 16)
            found = Liveness(np.int64(ROW_LIVENESS), load_little64(data, row + 8), ttl, expires)
        elif flags & ROW_UNCERTAIN:
            found = Liveness(
                np.int64(ROW_UNCERTAIN), load_little64(data, row + 8), np.int64(0), np.int64(NEVER)
            )
        else:
            continue
        if best.flag == 0 or _compare_liveness(found, best) > 0:
            best = found
    return best


@walker
def _with_known(
    data: Bytes, rows: Ints, order: Ints, low: Int, high: Int, reading: Liveness, active: Deletion
) -> Liveness:
    """Return the liveness of a reading with the greatest known one, if that isn't deleted."""
    end = np.int64(0)
    time_us = np.int64(NEVER)
    for index in range(low, high):
        row = rows[order[index]]
        flags = row_flags(data, row)
        if flags & ROW_LIVENESS:
            ttl = read_i32(data, row + 4)
            found_us = load_little64(data, row + 8)
            found_end = np.int64(0)
            if ttl == EXPIRED_LIVENESS_TTL:
                found_end = np.int64(NEVER_LIVED)
            elif ttl != 0:
                found_end = min(max(load_little64(data, row + 16), np.int64(1)), np.int64(LATEST_EXPIRY))
        elif flags & ROW_UNCERTAIN:
            found_us = load_little64(data, row + 16)
            found_end = load_little32(data, row + 4)
        else:
            continue
        known = found_us != NEVER and not covers(active, found_us)
        if known and (time_us == NEVER or found_us > time_us or (found_us == time_us and found_end > end)):
            time_us = found_us
            end = found_end
    return Liveness(reading.flag, reading.time_us, end, time_us)


@walker
def _known_end(reading: Liveness) -> Int:
    """Return the second at which a row that was read may expire; NEVER if unknown."""
    end = reading.ttl
    if end in (0, NEVER_LIVED) or end * 1_000_000 <= reading.time_us:
        return np.int64(NEVER)
    return end


@walker
def _strictly_read(
    reading: Liveness, now_seconds: Int, purge_before: Int, expires_at: Int
) -> tuple[bool, Liveness, Int]:
    """Return whether the liveness of a row that was read is live, the liveness to keep, and the next expiry.

    The known liveness is the only one: the reading returned it, or a later change wrote it.
    """
    end = reading.ttl
    if reading.expires == NEVER or end == NEVER_LIVED:
        is_purged = reading.expires == NEVER or reading.time_us < purge_before * 1_000_000
        return False, no_liveness() if is_purged and purge_before != -NEVER else reading, expires_at
    if end == 0:
        return True, reading, expires_at
    if now_seconds < end:
        return True, reading, min(expires_at, end)
    return False, no_liveness() if end < purge_before else reading, expires_at


@walker
def _lives_without_cells(reading: Liveness) -> bool:
    """Return whether a known liveness, covered by no known deletion, keeps the row alive."""
    return reading.expires != NEVER and (reading.ttl == 0 or _known_end(reading) != NEVER)


@walker
def _compare_liveness(a: Liveness, b: Liveness) -> Int:
    order = order_of(a.time_us, b.time_us)
    if order == 0:
        order = order_of(b.flag, a.flag)
    if order == 0:
        order = order_of(np.int64(a.ttl == EXPIRED_LIVENESS_TTL), np.int64(b.ttl == EXPIRED_LIVENESS_TTL))
    if order == 0:
        order = order_of(np.int64(a.ttl != 0), np.int64(b.ttl != 0))
    if order == 0:
        order = order_of(a.expires, b.expires)
    if order == 0:
        order = order_of(a.ttl, b.ttl)
    return order


@inlined
def _merge_cells(batch: Batch, order: Ints, low: Int, high: Int, settings: Settings, scratch: Scratch) -> Int:
    """Leave the winner of each cell in ``scratch.cells`` and return how many there are."""
    data = batch.state
    source = scratch.cells
    target = scratch.spare
    runs = scratch.runs
    filled = np.int64(0)
    for index in range(low, high):
        runs[index - low] = filled
        row = batch.row[order[index]]
        cell = first_cell(data, row)
        for _ in range(cell_count(data, row)):
            source[filled] = cell
            filled += 1
            cell = next_cell(data, cell)
    run_count = high - low
    runs[run_count] = filled
    swapped = False
    while run_count > 1:
        filled = np.int64(0)
        merged = 0
        for run in range(0, run_count, 2):
            begin = runs[run]
            middle = runs[run + 1]
            end = runs[run + 2] if run + 2 <= run_count else middle
            runs[merged] = filled
            merged += 1
            filled = _merge_two(data, source, begin, middle, end, target, filled, settings)
        runs[merged] = filled
        run_count = merged
        source, target = target, source
        swapped = not swapped
    if swapped:
        for number in range(filled):
            target[number] = source[number]
    return filled


@inlined
def _merge_two(
    data: Bytes,
    source: Ints,
    begin: Int,
    middle: Int,
    end: Int,
    target: Ints,
    filled: Int,
    settings: Settings,
) -> Int:
    i = begin
    j = middle
    while i < middle and j < end:
        order = compare_cell_keys(data, source[i], source[j])
        if order < 0:
            target[filled] = source[i]
            i += 1
        elif order > 0:
            target[filled] = source[j]
            j += 1
        else:
            wins = compare_versions(data, source[i], source[j], settings.now_seconds, settings.rules)
            target[filled] = source[i] if wins >= 0 else source[j]
            i += 1
            j += 1
        filled += 1
    while i < middle:
        target[filled] = source[i]
        filled += 1
        i += 1
    while j < end:
        target[filled] = source[j]
        filled += 1
        j += 1
    return filled


@inlined
def _keep_uncovered(
    data: Bytes, cells: Ints, count: Int, active: Deletion, now_seconds: Int
) -> tuple[Int, bool, Int]:
    kept = 0
    lives = False
    expires_at = np.int64(NEVER)
    column = np.int64(-1)
    deletion = active
    for number in range(count):
        cell = cells[number]
        if cell_column(data, cell) != column:
            column = cell_column(data, cell)
            deletion = active
        if cell_flags(data, cell) & CELL_COMPLEX_DELETION:
            if not supersedes(True, cell_time(data, cell), cell_end_time(data, cell), active):
                continue
            deletion = Deletion(True, cell_time(data, cell), cell_end_time(data, cell))
        elif covers(deletion, cell_time(data, cell)):
            continue
        cells[kept] = cell
        kept += 1
        if is_live(data, cell, now_seconds):
            lives = True
            expires_at = min(expires_at, cell_end_time(data, cell))
    return kept, lives, expires_at


@inlined
def _write_cells(
    data: Bytes, cells: Ints, count: Int, now_seconds: Int, purge_before: Int, out: Bytes, end: Int
) -> tuple[Int, Int]:
    written = np.int64(0)
    for number in range(count):
        cell = cells[number]
        expired = is_expired(data, cell, now_seconds)
        if not is_live(data, cell, now_seconds) and cell_end_time(data, cell) < purge_before:
            continue
        length = CELL_HEADER_BYTES + path_length(data, cell)
        if expired:
            copy(data, cell, length, out, end)
            out[np.uint64(end + 2)] = np.uint8(cell_flags(data, cell) | CELL_TOMBSTONE | CELL_EXPIRING)
            store_little32(out, end + 4, np.int64(0))
            store_little32(out, end + 28, np.int64(0))
        else:
            length += value_length(data, cell)
            copy(data, cell, length, out, end)
        end += length
        written += 1
    return end, written


@inlined
def _namer(data: Bytes, rows: Ints, order: Ints, low: Int, high: Int) -> Int:
    # Clusterings that the database considers equal can differ in bytes (decimal 1.0, 1.00): use the greatest.
    best = rows[order[low]]
    for index in range(low + 1, high):
        row = rows[order[index]]
        order_of_names = compare(
            data,
            row + ROW_HEADER_BYTES,
            load_little32(data, row + 40),
            data,
            best + ROW_HEADER_BYTES,
            load_little32(data, best + 40),
        )
        if order_of_names > 0:
            best = row
    return best
