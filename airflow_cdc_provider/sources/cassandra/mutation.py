"""The grammar of a PartitionUpdate, walked in place to cell rows (reference §5 to §10).

An update, after its table id and key::

    uvint length, key | flags | uvint x 3: least timestamp, deletion time, TTL | [static column names] |
    regular column names | [partition deletion] | [static row] | [uvint row estimate] |
    rows and range tombstone markers ... | 01

A row::

    flags | [extended flags] | clustering | [liveness: timestamp, [TTL, expiry]] | [deletion] |
    [uvint: which of the listed columns] | per column: a cell, or [deletion] uvint count, cells with paths

Everything is read with the compiled schema (:mod:`.programs`): whether a column has one cell or many, and how
long its values are, stands nowhere in the update. What comes out are contributions in a :class:`~.sink.Sink`.

Functions that walk return the offset after what they read, or a negative reason (``-TRUNCATED`` is the -1
that :mod:`airflow_cdc_provider.sources.cql.wire` returns). Every length is compared with what is left before
a byte of it is read; the limits of an update are given by ``at`` and ``end`` alone.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION, ROW, STATIC
from airflow_cdc_provider.sources.cassandra.buffers import (
    Bytes,
    Int,
    copy,
    same,
    store_little32,
    store_little64,
    walker,
)
from airflow_cdc_provider.sources.cassandra.programs import GONE, Program, find_column
from airflow_cdc_provider.sources.cassandra.reasons import (
    BAD_EXPIRY,
    BAD_FLAGS,
    BAD_MARKER,
    BAD_SUBSET,
    NO_SPACE,
    SHADOWABLE,
    TRUNCATED,
    UNKNOWN_COLUMN,
)
from airflow_cdc_provider.sources.cassandra.sink import (
    BOUND_HEADER_BYTES,
    BOUNDS_AT,
    CHANGE,
    FAILED_AT,
    LIST_COUNT,
    LIST_LENGTH,
    LIST_START,
    LIST_TABLE,
    LOWER,
    RANGE_DELETION_TIME,
    RANGE_START,
    RANGE_TIMESTAMP,
    ROWS_AT,
    SCOPE,
    STATE_END,
    STATES_AT,
    UPPER,
    Sink,
)
from airflow_cdc_provider.sources.cassandra.sorting import compare_cells, order_cells
from airflow_cdc_provider.sources.cql.wire import read_uvint

# Numba compiles a function anew for each literal argument; these are plain numbers to it.
_STATIC_LINE: Final = np.int64(0)
_REGULAR_LINE: Final = np.int64(1)
_NOWHERE: Final = np.int64(-1)

_TABLE_ID_BYTES: Final = 16
_EPOCH_US: Final = 1442880000000000
_EPOCH_S: Final = 1442880000
_LIVE: Final = -(1 << 63)
"""Timestamp of a deletion that deletes nothing, and of a row without liveness."""
_EXPIRED_TTL: Final = 0x7FFFFFFF
"""TTL of the liveness by which a view's row is dead."""


@walker
def read_update(
    data: Bytes, at: Int, end: Int, version: Int, change: Int, table: Int, program: Program, sink: Sink
) -> Int:
    """Read one update and append its contributions.

    Args:
        data: Array that holds it.
        at: Where it begins, at its table id.
        end: Where what may belong to it ends.
        version: Of the segment.
        change: Number to note with each contribution.
        table: Its table's number in the program.
        program: Compiled schemas.
        sink: Gets the contributions. After a failure the caller resets ``ROWS_AT``, ``STATES_AT`` and
            ``BOUNDS_AT``.

    Returns:
        The offset after it, or a negative reason; then ``FAILED_AT`` tells where.
    """
    cursor = sink.cursor
    if end - at < _TABLE_ID_BYTES:
        return _failed(cursor, at, TRUNCATED)
    at += _TABLE_ID_BYTES
    length, after = read_uvint(data, at, end)
    if after < 0 or length < 0 or length >= end - after:
        return _failed(cursor, at, TRUNCATED)
    at = after + length
    flags = data[at]
    if flags == 0x01:
        return at + 1
    if flags & ~0x1C & 0xFF:
        return _failed(cursor, at, BAD_FLAGS)
    at += 1
    least_deletion_time = least_ttl = np.int64(0)
    least_timestamp, after = read_uvint(data, at, end)
    if after >= 0:
        least_deletion_time, after = read_uvint(data, after, end)
    if after >= 0:
        least_ttl, after = read_uvint(data, after, end)
    if after < 0:
        return _failed(cursor, at, TRUNCATED)
    at = after
    header = (version, least_timestamp + _EPOCH_US, least_deletion_time + _EPOCH_S, least_ttl)

    statics = np.int64(0)
    if flags & 0x08:
        statics, at = _read_columns(data, at, end, table, program, sink, _STATIC_LINE)
        if at < 0:
            return at
    regulars, at = _read_columns(data, at, end, table, program, sink, _REGULAR_LINE)
    if at < 0:
        return at
    if flags & 0x04:
        timestamp, deletion_time, after = _read_deletion(data, at, end, header)
        if after < 0:
            return _failed(cursor, at, -after)
        at = after
        if timestamp != _LIVE and not _put_deletion(
            sink, change, np.int64(PARTITION_DELETION), timestamp, deletion_time, _NOWHERE, _NOWHERE
        ):
            return -NO_SPACE
    if flags & 0x08:
        if end - at < 2 or data[at] & 0x83 != 0x80 or data[at + 1] != 0x01:
            return _failed(cursor, at, BAD_FLAGS)
        at = _read_row(data, at, end, header, change, table, program, sink, _STATIC_LINE, statics)
        if at < 0:
            return at
    if flags & 0x10:
        _, after = read_uvint(data, at, end)
        if after < 0:
            return _failed(cursor, at, TRUNCATED)
        at = after

    cursor[RANGE_START] = -1
    while at < end:
        flags = data[at]
        if flags & 0x01:
            if cursor[RANGE_START] >= 0:
                return _failed(cursor, at, BAD_MARKER)
            return at + 1
        if flags & 0x02:
            at = _read_marker(data, at, end, header, change, table, program, sink)
        else:
            at = _read_row(data, at, end, header, change, table, program, sink, _REGULAR_LINE, regulars)
        if at < 0:
            return at
    return _failed(cursor, at, TRUNCATED)


@walker
def _failed(cursor: NDArray[np.int64], at: Int, reason: Int) -> Int:
    cursor[FAILED_AT] = at
    return -reason


@walker
def _read_columns(
    data: Bytes, at: Int, end: Int, table: Int, program: Program, sink: Sink, line: Int
) -> tuple[Int, Int]:
    """Read column names and look them up: their count, and the offset after or a negative reason."""
    cursor = sink.cursor
    length = cursor[LIST_LENGTH]
    if (
        line == _REGULAR_LINE
        and table == cursor[LIST_TABLE]
        and 0 < length <= end - at
        and same(data, at, data, cursor[LIST_START], length)
    ):
        return cursor[LIST_COUNT], at + length
    start = at
    count, after = read_uvint(data, at, end)
    if after < 0 or count < 0 or count > end - after:
        return 0, _failed(cursor, at, TRUNCATED)
    at = after
    if line == _REGULAR_LINE:
        cursor[LIST_LENGTH] = 0
    likely = np.int64(program.first_column[table])
    for i in range(count):
        length, after = read_uvint(data, at, end)
        if after < 0 or length < 0 or length > end - after:
            return 0, _failed(cursor, at, TRUNCATED)
        column = find_column(program, table, likely, data, after, length)
        if column < 0 or i >= sink.listed.shape[1]:
            return 0, _failed(cursor, at, UNKNOWN_COLUMN)
        sink.listed[line, i] = column
        likely = column + 1
        at = after + length
    if line == _REGULAR_LINE:
        cursor[LIST_START], cursor[LIST_LENGTH] = start, at - start
        cursor[LIST_COUNT], cursor[LIST_TABLE] = count, table
    return count, at


@walker
def _read_row(
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
    """Read one row, of regular columns (line 1) or the static one (line 0), and append its contribution."""
    cursor, states = sink.cursor, sink.states
    row_at = at
    flags = np.int64(data[at])
    at += 1
    if flags & 0x80:
        if at >= end:
            return _failed(cursor, at, TRUNCATED)
        if data[at] & 0x02:
            return _failed(cursor, at, SHADOWABLE)
        if (data[at] & 0x01) != 1 - line:
            return _failed(cursor, at, BAD_FLAGS)
        at += 1
    begin = cursor[STATES_AT]
    state_at = begin + ROW_HEADER_BYTES
    if state_at > len(states):
        return -NO_SPACE
    if line == 1:
        first = np.int64(program.first_clustering[table])
        count = np.int64(program.first_clustering[table + 1]) - first
        state_at, at = _read_clustering(data, at, end, program, first, count, cursor, states, state_at)
        if at < 0:
            return at
    clustering_end = state_at

    row_flags = ROW_STATIC if line == 0 else 0
    timestamp, ttl, expiry = np.int64(_LIVE), np.int64(0), np.int64(NEVER)
    if flags & 0x04:
        row_flags |= ROW_LIVENESS
        delta, after = read_uvint(data, at, end)
        if after >= 0 and flags & 0x08:
            ttl, after = _read_ttl(data, after, end, header)
            if after >= 0:
                expiry, after = _read_local_time(data, after, end, header)
                if after >= 0 and expiry < ttl and ttl != _EXPIRED_TTL:
                    after = -BAD_EXPIRY
        if after < 0:
            return _failed(cursor, at, -after)
        timestamp = delta + header[1]
        at = after
    deleted_at, deletion_time = np.int64(_LIVE), np.int64(NEVER)
    if flags & 0x10:
        deleted_at, deletion_time, after = _read_deletion(data, at, end, header)
        if after < 0:
            return _failed(cursor, at, -after)
        at = after
        if deleted_at != _LIVE:
            row_flags |= ROW_DELETION

    subset = np.int64(0)
    if not flags & 0x20:
        subset, after = read_uvint(data, at, end)
        if after < 0:
            return _failed(cursor, at, TRUNCATED)
        if subset != 0 and listed >= 64:
            after = _read_large_subset(data, after, end, listed, subset, sink.present)
        elif listed < 64 and subset >> listed:
            after = -BAD_SUBSET
        if after < 0:
            return _failed(cursor, at, -after)
        at = after

    cells = np.int64(0)
    ordered: Any = True
    before = np.int64(-1)
    last_id = np.int64(GONE)
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
                marked_at, mark_time, after = _read_deletion(data, at, end, header)
                if after < 0:
                    return _failed(cursor, at, -after)
                at = after
                if marked_at != _LIVE and marked_at > dropped_at and column_id != GONE:
                    if state_at + CELL_HEADER_BYTES > len(states):
                        return -NO_SPACE
                    _put_cell(
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
                return _failed(cursor, at, TRUNCATED)
            at = after
        for _ in range(count):
            cell_at = state_at
            state_at, after = _read_cell(
                data, at, end, header, row_times, column_id, size, path, dropped_at, states, state_at
            )
            if after < 0:
                return _failed(cursor, at, -after)
            at = after
            if state_at != cell_at:
                if column_id <= last_id:
                    ordered = ordered and compare_cells(states, before, cell_at) < 0
                last_id = column_id
                before = cell_at
                cells += 1

    if not ordered:
        problem = order_cells(sink, clustering_end, state_at, cells)
        if problem < 0:
            return _failed(cursor, row_at, -problem)
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
    scope = np.int64(STATIC if line == 0 else ROW)
    return at if put_row(sink, change, scope, state_at, _NOWHERE, _NOWHERE) else -NO_SPACE


@walker
def _read_clustering(
    data: Bytes,
    at: Int,
    end: Int,
    program: Program,
    first: Int,
    count: Int,
    cursor: NDArray[np.int64],
    out: Bytes,
    out_at: Int,
) -> tuple[Int, Int]:
    """Read ``count`` clustering values (reference §8) and write them as a cell row has them.

    Each 32 values are led by a number with two bits for each: empty, null; only the others take bytes.

    Args:
        data: Array that holds them.
        at: Where they begin.
        end: Limit.
        program: Compiled schemas.
        first: The table's first clustering column in it.
        count: How many values there are.
        cursor: Of the sink.
        out: Gets an i32 length (-1: null) and the bytes of each.
        out_at: Where to write.

    Returns:
        The offset after them in ``out``, and that in ``data`` or a negative reason.
    """
    marks = np.int64(0)
    for i in range(count):
        if i % 32 == 0:
            marks, after = read_uvint(data, at, end)
            if after < 0:
                return 0, _failed(cursor, at, TRUNCATED)
            at = after
        mark = (marks >> (2 * (i % 32))) & 3
        length = np.int64(program.clustering_size[first + i])
        if mark:
            length = np.int64(-1) if mark & 2 else np.int64(0)
        elif length < 0:
            length, after = read_uvint(data, at, end)
            if after < 0 or length < 0:
                return 0, _failed(cursor, at, TRUNCATED)
            at = after
        if length > end - at:
            return 0, _failed(cursor, at, TRUNCATED)
        taken = max(length, 0)
        if out_at + 4 + taken > len(out):
            return 0, -NO_SPACE
        store_little32(out, out_at, length)
        out_at = copy(data, at, taken, out, out_at + 4)
        at += taken
    return out_at, at


@walker
def _read_large_subset(
    data: Bytes, at: Int, end: Int, listed: Int, missing: Int, present: NDArray[np.bool_]
) -> Int:
    """Read which of 64 or more listed columns a row has: indexes of those, or of the others (§7)."""
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


@walker
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
    """Read one cell and write it unless its column is gone or was dropped after it.

    Args:
        data: Array that holds it.
        at: Where it begins.
        end: Limit.
        header: Version and least times of the update.
        row_times: Timestamp, TTL and expiry of the row's liveness.
        column_id: Of its column.
        size: Length of its value, -1 if that stands before it.
        path: ``CELL_PATH`` if its column is complex, else 0.
        dropped_at: Write times up to this one are left out.
        states: Gets it.
        state_at: Where to write.

    Returns:
        The offset after it in ``states``, and that in ``data`` or a negative reason.
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
        local_time, at = _read_local_time(data, at, end, header)
        if at >= 0 and flags & 0x02:
            ttl, at = _read_ttl(data, at, end, header)
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
    if column_id == GONE or timestamp <= dropped_at:
        return state_at, at + length

    if state_at + CELL_HEADER_BYTES + path_length + length > len(states):
        return state_at, -NO_SPACE
    _put_cell(states, state_at, column_id, kind, ttl, timestamp, local_time)
    store_little32(states, state_at + 24, path_length)
    store_little32(states, state_at + 28, length)
    after = copy(data, path_at, path_length, states, state_at + CELL_HEADER_BYTES)
    return copy(data, at, length, states, after), at + length


@walker
def _read_deletion(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int, Int]:
    """Read write time and deletion time of a deletion, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    if at < 0:
        return _LIVE, NEVER, at
    timestamp = delta + header[1]
    delta, at = read_uvint(data, at, end)
    if at < 0 or timestamp == _LIVE:
        # The deletion time of what deletes nothing differs by writer.
        return _LIVE, NEVER, at
    seconds = _local_time(delta, header)
    return timestamp, seconds, at if seconds >= 0 else -BAD_EXPIRY


@walker
def _read_local_time(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int]:
    """Read a time in seconds, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    seconds = _local_time(delta, header)
    return seconds, -BAD_EXPIRY if at >= 0 and seconds < 0 else at


@walker
def _local_time(delta: Int, header: tuple[Int, Int, Int, Int]) -> Int:
    """Return a time in seconds, signed before version 8 and unsigned since, or -1 for none that can be."""
    seconds = (delta + header[2]) & 0xFFFFFFFF
    return seconds if seconds <= (0x7FFFFFFF if header[0] < 8 else 0xFFFFFFFD) else np.int64(-1)


@walker
def _read_ttl(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int]:
    """Read a TTL in seconds, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    ttl = (delta + header[3]) & 0xFFFFFFFF
    return ttl, -BAD_EXPIRY if at >= 0 and not 0 < ttl <= 0x7FFFFFFF else at


@walker
def _read_marker(
    data: Bytes,
    at: Int,
    end: Int,
    header: tuple[Int, Int, Int, Int],
    change: Int,
    table: Int,
    program: Program,
    sink: Sink,
) -> Int:
    """Read one range tombstone marker (reference §9); one that closes a range appends its contribution.

    ======== ====================================== ========= ==============================================
    kind     name                                   memcmp    does
    ======== ====================================== ========= ==============================================
    0, 6     EXCL_END, INCL_END                     p, p FF   closes
    1, 7     INCL_START, EXCL_START                 p, p FF   opens
    2, 5     EXCL_END_INCL_START, INCL_END_EXCL_... p, p FF   closes one range and opens the next
    ======== ====================================== ========= ==============================================
    """
    cursor, bounds = sink.cursor, sink.bounds
    marker_at = at
    if end - at < 4:
        return _failed(cursor, at, TRUNCATED)
    kind = np.int64(data[at + 1])
    count = np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    first = np.int64(program.first_clustering[table])
    closes = kind in (0, 2, 5, 6)
    opens = kind in (1, 2, 5, 7)
    if (
        data[at] != 0x02
        or not (closes or opens)
        or count > program.first_clustering[table + 1] - first
        or (count == 0 and kind not in (1, 6))
        or closes != (cursor[RANGE_START] >= 0)
    ):
        return _failed(cursor, at, BAD_MARKER)
    bound = cursor[BOUNDS_AT]
    if bound + BOUND_HEADER_BYTES > len(bounds):
        return -NO_SPACE
    store_little32(bounds, bound, count | (1 if kind >= 5 else 0) << 16)
    bound_end, at = _read_clustering(
        data, at + 4, end, program, first, count, cursor, bounds, bound + BOUND_HEADER_BYTES
    )
    if at < 0:
        return at
    cursor[BOUNDS_AT] = bound_end
    timestamp, deletion_time, after = _read_deletion(data, at, end, header)
    if after < 0:
        return _failed(cursor, at, -after)
    at = after
    if closes:
        if timestamp != cursor[RANGE_TIMESTAMP] or deletion_time != cursor[RANGE_DELETION_TIME]:
            return _failed(cursor, marker_at, BAD_MARKER)
        upper = bound if count > 0 else _NOWHERE
        if not _put_deletion(
            sink,
            change,
            np.int64(RANGE_DELETION),
            timestamp,
            deletion_time,
            cursor[RANGE_START],
            upper,
        ):
            return -NO_SPACE
        cursor[RANGE_START] = -1
    if opens:
        if closes:
            timestamp, deletion_time, after = _read_deletion(data, at, end, header)
            if after < 0:
                return _failed(cursor, at, -after)
            at = after
        if timestamp == _LIVE:
            return _failed(cursor, marker_at, BAD_MARKER)
        cursor[RANGE_START] = bound
        cursor[RANGE_TIMESTAMP] = timestamp
        cursor[RANGE_DELETION_TIME] = deletion_time
    return at


@walker
def _put_cell(
    states: Bytes, at: Int, column_id: Int, flags: Int, ttl: Int, timestamp: Int, local_time: Int
) -> None:
    """Write the first 24 bytes of a cell's header."""
    store_little32(states, at, column_id | flags << 16)
    store_little32(states, at + 4, ttl)
    store_little64(states, at + 8, timestamp)
    store_little64(states, at + 16, local_time)


@walker
def _put_deletion(
    sink: Sink,
    change: Int,
    scope: Int,
    timestamp: Int,
    deletion_time: Int,
    lower: Int,
    upper: Int,
) -> bool:
    """Append a contribution whose cell row is nothing but a deletion; False if there is no space."""
    states = sink.states
    at = sink.cursor[STATES_AT]
    if at + ROW_HEADER_BYTES > len(states):
        return False
    store_little64(states, at, FORMAT | ROW_DELETION << 8)
    store_little64(states, at + 8, _LIVE)
    store_little64(states, at + 16, NEVER)
    store_little64(states, at + 24, timestamp)
    store_little64(states, at + 32, deletion_time)
    store_little64(states, at + 40, 0)
    return put_row(sink, change, scope, at + ROW_HEADER_BYTES, lower, upper)


@walker
def put_row(
    sink: Sink,
    change: Int,
    scope: Int,
    state_end: Int,
    lower: Int,
    upper: Int,
) -> bool:
    """Append a contribution whose cell row is written already; False if there is no space."""
    cursor, rows = sink.cursor, sink.rows
    row = cursor[ROWS_AT]
    if row >= len(rows):
        return False
    rows[row, CHANGE] = change
    rows[row, SCOPE] = scope
    rows[row, STATE_END] = state_end
    rows[row, LOWER] = lower
    rows[row, UPPER] = upper
    cursor[ROWS_AT] = row + 1
    cursor[STATES_AT] = state_end
    return True
