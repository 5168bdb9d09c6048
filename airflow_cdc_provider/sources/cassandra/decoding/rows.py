"""Parse rows and cells of an update to cell rows (reference §7, §8).

A row::

    flags | [extended flags] | clustering | [liveness: timestamp, [TTL, expiry]] | [deletion] |
    [uvint: which of the listed columns] | per column: a cell, or [deletion] uvint count, cells with paths

A cell::

    flags | [timestamp] | [deletion time or expiry] | [TTL] | [path] | [value]

Only the schema says whether a column has one cell or many, and how long its values are. Return values are as
in :mod:`.mutation`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_TOMBSTONE,
    FORMAT,
    NEVER,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_STATIC,
)
from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.formats.byte_kernels import (
    copy,
    load_little32,
    load_little64,
    store_little32,
    store_little64,
)
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, inlined, walker
from airflow_cdc_provider.sources.cassandra.decoding.times import (
    EXPIRED_TTL,
    read_deletion,
    read_local_time,
    read_ttl,
)
from airflow_cdc_provider.sources.cql.decoding.cell_rows import LIVE, put_cell_header
from airflow_cdc_provider.sources.cql.decoding.programs import DROPPED, MARKER, Program
from airflow_cdc_provider.sources.cql.decoding.sink import NOWHERE, STATES_AT, Sink, failed, put_row
from airflow_cdc_provider.sources.cql.decoding.sorting import compare_cells, order_cells
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_EXPIRY,
    BAD_FLAGS,
    BAD_SUBSET,
    NO_SPACE,
    SHADOWABLE,
    TRUNCATED,
)
from airflow_cdc_provider.sources.cql.wire import read_uvint

# Numba recompiles a function for each literal argument, but not for these.
STATIC_LINE: Final = np.int64(0)
"""Line of ``Sink.listed`` for static columns."""
REGULAR_LINE: Final = np.int64(1)


@inlined
def read_row(
    data: Bytes,
    at: Int,
    end: Int,
    header: tuple[Int, Int, Int, Int],
    change: Int,
    table: Int,
    program: Program,
    sink: Sink,
    line: Int,
    listed: Int,
) -> Int:
    """Read one row, of regular columns (line 1) or the static one (line 0), and append its contribution.

    A table WITH COMPACT STORAGE that has no clustering columns has its only row as the static one.
    """
    cursor, states = sink.cursor, sink.states
    static = line == 0 and program.first_clustering[table + 1] > program.first_clustering[table]
    row_at = at
    flags = np.int64(data[at])
    at += 1
    if flags & 0x80:
        if at >= end:
            return failed(cursor, at, TRUNCATED)
        if data[at] & 0x02:
            return failed(cursor, at, SHADOWABLE)
        if (data[at] & 0x01) != 1 - line:
            return failed(cursor, at, BAD_FLAGS)
        at += 1
    begin = cursor[STATES_AT]
    state_at = begin + ROW_HEADER_BYTES
    if state_at > len(states):
        return -NO_SPACE
    if line == 1:
        first = np.int64(program.first_clustering[table])
        count = np.int64(program.first_clustering[table + 1]) - first
        state_at, at = read_clustering(data, at, end, program, first, count, cursor, states, state_at)
        if at < 0:
            return at
    clustering_end = state_at

    row_flags = ROW_STATIC if static else 0
    timestamp, ttl, expiry = np.int64(LIVE), np.int64(0), np.int64(NEVER)
    if flags & 0x04:
        row_flags |= ROW_LIVENESS
        delta, after = read_uvint(data, at, end)
        if after >= 0 and flags & 0x08:
            ttl, after = read_ttl(data, after, end, header)
            if after >= 0:
                expiry, after = read_local_time(data, after, end, header)
                if after >= 0 and expiry < ttl and ttl != EXPIRED_TTL:
                    after = -BAD_EXPIRY
        if after < 0:
            return failed(cursor, at, -after)
        timestamp = delta + header[1]
        at = after
    deleted_at, deletion_time = np.int64(LIVE), np.int64(NEVER)
    if flags & 0x10:
        deleted_at, deletion_time, after = read_deletion(data, at, end, header)
        if after < 0:
            return failed(cursor, at, -after)
        at = after
        if deleted_at != LIVE:
            row_flags |= ROW_DELETION

    subset = np.int64(0)
    if not flags & 0x20:
        subset, after = read_uvint(data, at, end)
        if after < 0:
            return failed(cursor, at, TRUNCATED)
        if subset != 0 and listed >= 64:
            after = _read_large_subset(data, after, end, listed, subset, sink.present)
        elif listed < 64 and subset >> listed:
            after = -BAD_SUBSET
        if after < 0:
            return failed(cursor, at, -after)
        at = after

    cells = np.int64(0)
    ordered: Any = True
    before = np.int64(-1)
    last_id = np.int64(DROPPED)
    row_times = (timestamp, ttl, expiry)
    for i in range(listed):
        if subset != 0 and ((subset >> i) & 1 if listed < 64 else not sink.present[i]):
            continue
        column = np.int64(sink.listed[line, i])
        column_id = np.int64(program.column_id[column])
        size = np.int64(program.column_size[column])
        dropped_at = program.dropped_at[column]
        count = np.int64(1)
        path = np.int64(0)
        if program.column_complex[column]:
            path = np.int64(CELL_PATH)
            size = np.int64(-1)
            if flags & 0x40:
                marked_at, mark_time, after = read_deletion(data, at, end, header)
                if after < 0:
                    return failed(cursor, at, -after)
                at = after
                if marked_at != LIVE and marked_at > dropped_at and column_id != DROPPED:
                    if state_at + CELL_HEADER_BYTES > len(states):
                        return -NO_SPACE
                    put_cell_header(
                        states,
                        state_at,
                        column_id,
                        np.int64(CELL_COMPLEX_DELETION),
                        np.int64(0),
                        marked_at,
                        mark_time,
                    )
                    store_little64(states, state_at + 24, 0)
                    ordered = ordered and bool(column_id > last_id)
                    last_id = column_id
                    before = state_at
                    cells += 1
                    state_at += CELL_HEADER_BYTES
            count, after = read_uvint(data, at, end)
            if after < 0 or count < 0 or count > end - after:
                return failed(cursor, at, TRUNCATED)
            at = after
        for _ in range(count):
            cell_at = state_at
            state_at, after = _read_cell(
                data, at, end, header, row_times, column_id, size, path, dropped_at, states, state_at
            )
            if after < 0:
                return failed(cursor, at, -after)
            at = after
            if column_id == MARKER:
                state_at = cell_at
                marked_at, mark_time = load_little64(states, cell_at + 8), load_little64(states, cell_at + 16)
                marker_ttl = load_little32(states, cell_at + 4)
                if marker_ttl == 0 and mark_time != NEVER:  # it deletes the row
                    row_flags |= ROW_DELETION
                    deleted_at, deletion_time = marked_at, mark_time
                else:
                    row_flags |= ROW_LIVENESS
                    timestamp, ttl, expiry = marked_at, marker_ttl, mark_time
            if state_at != cell_at:
                if column_id <= last_id:
                    ordered = ordered and compare_cells(states, before, cell_at) < 0
                last_id = column_id
                before = cell_at
                cells += 1

    if not ordered:
        problem = order_cells(sink, clustering_end, state_at, cells)
        if problem < 0:
            return failed(cursor, row_at, -problem)
    if cells == 0 and not row_flags & (ROW_LIVENESS | ROW_DELETION):
        return at
    store_little32(states, begin, FORMAT | row_flags << 8)
    store_little32(states, begin + 4, ttl)
    store_little64(states, begin + 8, timestamp)
    store_little64(states, begin + 16, expiry)
    store_little64(states, begin + 24, deleted_at)
    store_little64(states, begin + 32, deletion_time)
    store_little32(states, begin + 40, clustering_end - begin - ROW_HEADER_BYTES)
    store_little32(states, begin + 44, cells)
    scope = np.int64(STATIC if static else ROW)
    return at if put_row(sink, change, scope, state_at, NOWHERE, NOWHERE) else -NO_SPACE


@inlined
def read_clustering(
    data: Bytes,
    at: Int,
    end: Int,
    program: Program,
    first: Int,
    count: Int,
    cursor: Ints,
    out: Bytes,
    out_at: Int,
) -> tuple[Int, Int]:
    """Read ``count`` clustering values (reference §8) and write them in the format of cell rows.

    Each group of 32 values starts with a number with two bits for each: empty, null; only others have bytes.

    Args:
        data: Array with the values.
        at: Offset of the first.
        end: Limit.
        program: Compiled schemas.
        first: The table's first clustering column in it.
        count: Number of values.
        cursor: Cursor of the sink.
        out: Receives an i32 length (-1: null) and the bytes of each.
        out_at: Offset at which to write.

    Returns:
        The offset after them in ``out``, and the one in ``data`` or a negative reason.
    """
    marks = np.int64(0)
    for i in range(count):
        if i % 32 == 0:
            marks, after = read_uvint(data, at, end)
            if after < 0:
                return 0, failed(cursor, at, TRUNCATED)
            at = after
        mark = (marks >> (2 * (i % 32))) & 3
        length = np.int64(program.clustering_size[first + i])
        if mark:
            length = np.int64(-1) if mark & 2 else np.int64(0)
        elif length < 0:
            length, after = read_uvint(data, at, end)
            if after < 0 or length < 0:
                return 0, failed(cursor, at, TRUNCATED)
            at = after
        if length > end - at:
            return 0, failed(cursor, at, TRUNCATED)
        taken = max(length, 0)
        if out_at + 4 + taken > len(out):
            return 0, -NO_SPACE
        store_little32(out, out_at, length)
        out_at = copy(data, at, taken, out, out_at + 4)
        at += taken
    return out_at, at


@walker
def _read_large_subset(data: Bytes, at: Int, end: Int, listed: Int, missing: Int, present: Flags) -> Int:
    """Read which of 64 or more listed columns a row has: indexes of present or of missing columns (§7)."""
    if missing < 0 or missing > listed:
        return -BAD_SUBSET
    named_are_present = listed - missing < listed // 2
    named = listed - missing if named_are_present else missing
    for i in range(listed):
        present[i] = not named_are_present
    for _ in range(named):
        index, after = read_uvint(data, at, end)
        if after < 0:
            return -TRUNCATED
        if index < 0 or index >= listed or present[index] == named_are_present:
            return -BAD_SUBSET
        present[index] = named_are_present
        at = after
    return at


@inlined
def _read_cell(
    data: Bytes,
    at: Int,
    end: Int,
    header: tuple[Int, Int, Int, Int],
    row_times: tuple[Int, Int, Int],
    column_id: Int,
    size: Int,
    path: Int,
    dropped_at: Int,
    states: Bytes,
    state_at: Int,
) -> tuple[Int, Int]:
    """Read one cell and write it unless its column was dropped after it.

    Args:
        data: Array with the cell.
        at: Offset of the cell.
        end: Limit.
        header: Version and least times of the update.
        row_times: Timestamp, TTL and expiry of the row's liveness.
        column_id: Id of its column.
        size: Length of its value, -1 if the length precedes it.
        path: ``CELL_PATH`` if its column is complex, else 0.
        dropped_at: Cells with write times up to this one are skipped.
        states: Receives the cell.
        state_at: Offset at which to write.

    Returns:
        The offset after it in ``states``, and the one in ``data`` or a negative reason.
    """
    if at >= end:
        return state_at, -TRUNCATED
    flags = data[at]
    if flags & 0xE0:
        return state_at, -BAD_FLAGS
    at += 1
    timestamp, ttl, local_time = row_times[0], np.int64(0), np.int64(NEVER)
    if not flags & 0x08:
        delta, at = read_uvint(data, at, end)
        if at < 0:
            return state_at, -TRUNCATED
        timestamp = delta + header[1]
    if flags & 0x10:
        ttl, local_time = row_times[1], row_times[2]
    elif flags & 0x03:
        local_time, at = read_local_time(data, at, end, header)
        if at >= 0 and flags & 0x02:
            ttl, at = read_ttl(data, at, end, header)
        if at < 0:
            return state_at, at
    if ttl != 0 and local_time < ttl:
        return state_at, -BAD_EXPIRY
    kind = path | (CELL_EXPIRING if ttl != 0 else CELL_TOMBSTONE if local_time != NEVER else 0)

    path_at, path_length = at, np.int64(0)
    if path:
        path_length, path_at = read_uvint(data, at, end)
        if path_at < 0 or path_length < 0 or path_length > end - path_at:
            return state_at, -TRUNCATED
        at = path_at + path_length
    length = np.int64(0)
    if not flags & 0x04:
        length = np.int64(size)
        if length < 0:
            length, at = read_uvint(data, at, end)
            if at < 0 or length < 0:
                return state_at, -TRUNCATED
    if length > end - at:
        return state_at, -TRUNCATED
    if column_id == DROPPED or timestamp <= dropped_at:
        return state_at, at + length

    if state_at + CELL_HEADER_BYTES + path_length + length > len(states):
        return state_at, -NO_SPACE
    put_cell_header(states, state_at, column_id, kind, ttl, timestamp, local_time)
    store_little32(states, state_at + 24, path_length)
    store_little32(states, state_at + 28, length)
    after = copy(data, path_at, path_length, states, state_at + CELL_HEADER_BYTES)
    return copy(data, at, length, states, after), at + length
