"""Log rows, walked in place to contributions (``docs/design/scylla.md``, *How changes become cells*).

A change is the log rows of one write to one partition. Layout of its payload: :mod:`..payload`; what its
columns mean: :mod:`..log_table`. T is ``cdc$time`` in us.

============ ========================================================================================
``cdc$op..`` contribution
============ ========================================================================================
1, 2         ``ROW``, with liveness at T for 2; ``STATIC`` if all clustering columns are null
3, -3        ``ROW`` with a deletion at T
4, -4        ``PARTITION_DELETION`` at T
5, 6         begins a range, which the next row ends
7, 8         ``RANGE_DELETION`` at T
0, 9         none: images are read without isolation, and tell nothing that the other rows don't
============ ========================================================================================

A column that is one cell has a value or a flag: a tombstone. The flag of any other is a deletion at T - 1,
its value a cell per element, its removed elements a tombstone each. A null without flag says nothing.

With ``delta = keys`` a 1 or 2 tells that the partition is to be read again: ``DOUBT``.

Functions that walk return the offset after what they read, or a negative reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.changes.byte_kernels import (
    Bytes,
    Int,
    copy,
    load_little32,
    same,
    store_little32,
    store_little64,
)
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
from airflow_cdc_provider.changes.contribution import DOUBT, PARTITION_DELETION, RANGE_DELETION, ROW, STATIC
from airflow_cdc_provider.changes.kernels import inlined, walker
from airflow_cdc_provider.sources.cql.decoding.cell_rows import LIVE, put_cell_header, put_deletion
from airflow_cdc_provider.sources.cql.decoding.programs import GONE
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUND_HEADER_BYTES,
    BOUNDS_AT,
    NOWHERE,
    RANGE_START,
    STATES_AT,
    Sink,
    failed,
    put_row,
)
from airflow_cdc_provider.sources.cql.decoding.sorting import compare_cells, order_cells
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_CLUSTERING,
    BAD_EXPIRY,
    BAD_KEY,
    BAD_LOG_ROW,
    BAD_MARKER,
    BAD_VALUE,
    NO_SPACE,
    TRUNCATED,
    UNFINISHED_CHANGE,
    UNKNOWN_COLUMN,
    UNKNOWN_OPERATION,
)
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_i64
from airflow_cdc_provider.sources.scylla.decoding.programs import (
    COLUMNS,
    DELETED_FLAG,
    ELEMENTS,
    END_AT,
    FIELDS,
    FORM,
    ID,
    KEYS_ONLY,
    LIFE_AT,
    LOG_TTL,
    NUMBER_AT,
    ONE_CELL,
    OPERATION_AT,
    PAIRS,
    TIME_AT,
    TTL_ALTERED,
    TTL_AT,
    UNKNOWN,
    VALUE,
    LogProgram,
)
from airflow_cdc_provider.sources.scylla.decoding.programs import (
    STATIC as STATIC_COLUMN,
)
from airflow_cdc_provider.sources.scylla.payload import EPOCH_100NS

APART_SECONDS: Final = 10
"""A write time that is no further than this from the coordinator's clock is taken for it.

The clock is known no better than the moment at which the log row was read."""

UNKNOWN_MOMENT: Final = -1
_GREATEST_TTL: Final = 0x7FFFFFFE
_GREATEST_KEY_PART: Final = 0xFFFF


class Keys(NamedTuple):
    """The partition key of each change, as the partitioner has it.

    ``data``    keys, one after the other; as long as all payloads, which is enough
    ``ends``    per change where its key ends, after a leading 0
    """

    data: Bytes
    ends: NDArray[np.int64]


@walker
def read_change(
    data: Bytes,
    at: Int,
    end: Int,
    change: Int,
    version: Int,
    read_at: Int,
    log: LogProgram,
    sink: Sink,
    keys: Keys,
    fields: NDArray[np.int64],
) -> Int:
    """Read one change and append its contributions.

    Args:
        data: Array that holds it.
        at: Where its first row begins.
        end: Where it ends.
        change: Number to note with each contribution.
        version: Of the log, a number in the program.
        read_at: When its rows were read, in epoch seconds, or :data:`UNKNOWN_MOMENT`.
        log: The log's versions, compiled.
        sink: Gets the contributions. After a failure the caller resets its cursors.
        keys: Gets the partition key.
        fields: Scratch: begin and length of each column of a row.

    Returns:
        ``end``, or a negative reason; then ``FAILED_AT`` tells where.
    """
    cursor = sink.cursor
    cursor[RANGE_START] = -1
    number = np.int64(-1)
    ended = False
    while at < end:
        row_at = at
        if ended:
            return failed(cursor, row_at, UNFINISHED_CHANGE)
        at = _read_fields(data, at, end, log.versions[version, COLUMNS], fields)
        if at < 0:
            return failed(cursor, row_at, -at)
        found = _meta(fields, log, version, NUMBER_AT, 4)
        operation_at = _meta(fields, log, version, OPERATION_AT, 1)
        time_at = _meta(fields, log, version, TIME_AT, 16)
        if found < 0 or operation_at < 0 or time_at < 0:
            return failed(cursor, row_at, BAD_LOG_ROW)
        before, number = number, read_i32(data, found)
        if number <= before or (before < 0 and number != 0):
            return failed(cursor, found, UNFINISHED_CHANGE)
        found = _meta(fields, log, version, END_AT, 1)
        ended = found >= 0 and data[found] != 0
        if before < 0:
            problem = _put_key(data, fields, log, version, keys, change)
        else:
            problem = _check_key(data, fields, log, version, keys, change)
        if problem < 0:
            return failed(cursor, row_at, -problem)

        operation = np.int64(data[operation_at])
        if operation >= 128:
            operation -= 256
        if (cursor[RANGE_START] >= 0) != (operation in (7, 8)):
            return failed(cursor, operation_at, BAD_MARKER)
        bound = _clustering_count(fields, log, version)
        if bound < 0:
            return failed(cursor, row_at, BAD_CLUSTERING)
        time_us = _time_us(data, time_at)
        if operation in (1, 2, 3, -3):
            whole = bound == log.clustering.shape[1]
            if not whole and (bound > 0 or operation not in (1, 2)):
                return failed(cursor, row_at, BAD_CLUSTERING)
            if operation in (1, 2) and log.versions[version, KEYS_ONLY]:
                problem = _doubt(sink, change)
            else:
                problem = _read_row(
                    data, fields, log, version, change, operation, not whole, time_us, read_at, sink
                )
        elif operation in (4, -4):
            seconds = time_us // 1_000_000
            scope = np.int64(PARTITION_DELETION)
            done = put_deletion(sink, change, scope, time_us, seconds, NOWHERE, NOWHERE)
            problem = np.int64(0) if done else np.int64(-NO_SPACE)
        elif 5 <= operation <= 8:
            problem = _read_bound(data, fields, log, version, change, operation, bound, time_us, sink)
        elif operation in (0, 9):
            problem = np.int64(0)
        else:
            return failed(cursor, operation_at, UNKNOWN_OPERATION)
        if problem == -NO_SPACE:
            return problem
        if problem < 0:
            return failed(cursor, row_at, -problem)
    if not ended:
        return failed(cursor, end, UNFINISHED_CHANGE)
    if cursor[RANGE_START] >= 0:
        return failed(cursor, end, BAD_MARKER)
    return end


@walker
def _read_fields(data: Bytes, at: Int, end: Int, count: Int, fields: NDArray[np.int64]) -> Int:
    """Note where each column of a row is; return the row's end."""
    if end - at < 4:
        return np.int64(-TRUNCATED)
    length = load_little32(data, at)
    at += 4
    if length > end - at:
        return np.int64(-TRUNCATED)
    row_end = at + length
    for column in range(count):
        begin, length, at = next_part(data, at, row_end)
        if at < 0:
            return np.int64(-TRUNCATED)
        fields[column, 0] = begin
        fields[column, 1] = length
    return row_end if at == row_end else np.int64(-BAD_LOG_ROW)


@inlined
def _meta(fields: NDArray[np.int64], log: LogProgram, version: Int, which: Int, length: Int) -> Int:
    """Return where the value of one of the log's own columns is, -1 if it is null or of another length."""
    place = log.meta[version, which]
    if place < 0 or fields[place, 1] != length:
        return np.int64(-1)
    return fields[place, 0]


@inlined
def _time_us(data: Bytes, at: Int) -> Int:
    """Return the write time of a ``cdc$time``."""
    high = read_i64(data, at)
    ticks = (high & 0x0FFF) << 48 | (high >> 16 & 0xFFFF) << 32 | (high >> 32 & 0xFFFFFFFF)
    return (ticks - EPOCH_100NS) // 10


@walker
def _put_key(
    data: Bytes, fields: NDArray[np.int64], log: LogProgram, version: Int, keys: Keys, change: Int
) -> Int:
    """Write a row's partition key: one value as it is, several each with u16 length before and a 0 behind."""
    count = log.partition.shape[1]
    at = keys.ends[change]
    for i in range(count):
        start, length = fields[log.partition[version, i], 0], fields[log.partition[version, i], 1]
        if length < 0 or length > _GREATEST_KEY_PART:
            return np.int64(-BAD_KEY)
        if count > 1:
            keys.data[at] = np.uint8(length >> 8)
            keys.data[at + 1] = np.uint8(length & 0xFF)
            at += 2
        at = copy(data, start, length, keys.data, at)
        if count > 1:
            keys.data[at] = np.uint8(0)
            at += 1
    keys.ends[change + 1] = at
    return np.int64(0)


@walker
def _check_key(
    data: Bytes, fields: NDArray[np.int64], log: LogProgram, version: Int, keys: Keys, change: Int
) -> Int:
    """Compare a row's partition key with that of the change's first row."""
    count = log.partition.shape[1]
    at, end = keys.ends[change], keys.ends[change + 1]
    for i in range(count):
        start, length = fields[log.partition[version, i], 0], fields[log.partition[version, i], 1]
        there = end - at
        if count > 1:
            there = np.int64(keys.data[at]) << 8 | np.int64(keys.data[at + 1])
            at += 2
        if length != there or not same(data, start, keys.data, at, length):
            return np.int64(-BAD_KEY)
        at += length + (1 if count > 1 else 0)
    return np.int64(0)


@inlined
def _clustering_count(fields: NDArray[np.int64], log: LogProgram, version: Int) -> Int:
    """Return how many clustering columns aren't null; -1 if one follows a null one."""
    count = np.int64(0)
    for i in range(log.clustering.shape[1]):
        if fields[log.clustering[version, i], 1] >= 0:
            if count != i:
                return np.int64(-1)
            count += 1
    return count


@walker
def _put_clustering(
    data: Bytes, fields: NDArray[np.int64], log: LogProgram, version: Int, count: Int, out: Bytes, at: Int
) -> Int:
    """Write the first clustering values as a cell row has them; return the offset after them."""
    for i in range(count):
        place = log.clustering[version, i]
        length = fields[place, 1]
        if at + 4 + length > len(out):
            return np.int64(-NO_SPACE)
        store_little32(out, at, length)
        at = copy(data, fields[place, 0], length, out, at + 4)
    return at


@inlined
def _doubt(sink: Sink, change: Int) -> Int:
    """Say that the partition is to be read again."""
    done = put_row(sink, change, np.int64(DOUBT), sink.cursor[STATES_AT], NOWHERE, NOWHERE)
    return np.int64(0) if done else np.int64(-NO_SPACE)


@walker
def _read_bound(
    data: Bytes,
    fields: NDArray[np.int64],
    log: LogProgram,
    version: Int,
    change: Int,
    operation: Int,
    count: Int,
    time_us: Int,
    sink: Sink,
) -> Int:
    """Read one end of a range; the second one appends the range.

    A bound of fewer values than there are clustering columns lies before or behind all rows that begin with
    them: behind for 6 (they are left out) and 7 (they are taken in). No values are no bound, which must be
    inclusive.
    """
    cursor, bounds = sink.cursor, sink.bounds
    behind = operation in (6, 7)
    if count == 0 and operation in (6, 8):
        return np.int64(-BAD_MARKER)
    bound = cursor[BOUNDS_AT]
    if bound + BOUND_HEADER_BYTES > len(bounds):
        return np.int64(-NO_SPACE)
    store_little32(bounds, bound, count | (1 if behind else 0) << 16)
    at = _put_clustering(data, fields, log, version, count, bounds, bound + BOUND_HEADER_BYTES)
    if at < 0:
        return at
    cursor[BOUNDS_AT] = at
    if operation < 7:
        cursor[RANGE_START] = bound
        return np.int64(0)
    lower = cursor[RANGE_START]
    cursor[RANGE_START] = -1
    upper = bound if count > 0 else NOWHERE
    seconds = time_us // 1_000_000
    done = put_deletion(sink, change, np.int64(RANGE_DELETION), time_us, seconds, lower, upper)
    return np.int64(0) if done else np.int64(-NO_SPACE)


@walker
def _written_at(
    data: Bytes,
    fields: NDArray[np.int64],
    log: LogProgram,
    version: Int,
    time_us: Int,
    read_at: Int,
) -> tuple[Int, bool]:
    """Return the second from which a row's TTLs count, and whether that is in doubt.

    They count from the coordinator's clock, by which the log row's own life began too. Where the write time
    isn't near that clock, a client has chosen it.
    """
    seconds = time_us // 1_000_000
    life_at = _meta(fields, log, version, LIFE_AT, 4)
    log_ttl = log.versions[version, LOG_TTL]
    if life_at < 0 or log_ttl == 0 or read_at == UNKNOWN_MOMENT:
        return seconds, False
    written = read_at - log_ttl + read_i32(data, life_at)
    if abs(written - seconds) <= APART_SECONDS:
        return seconds, False
    if log.versions[version, TTL_ALTERED] or written > read_at + APART_SECONDS:
        return seconds, True
    return written, False


@walker
def _read_row(
    data: Bytes,
    fields: NDArray[np.int64],
    log: LogProgram,
    version: Int,
    change: Int,
    operation: Int,
    static: bool,
    time_us: Int,
    read_at: Int,
    sink: Sink,
) -> Int:
    """Read a row that writes or deletes one row, or writes statics, and append its contribution."""
    cursor, states = sink.cursor, sink.states
    begin = cursor[STATES_AT]
    first_cell = begin + ROW_HEADER_BYTES
    if first_cell > len(states):
        return np.int64(-NO_SPACE)
    if not static:
        first_cell = _put_clustering(data, fields, log, version, log.clustering.shape[1], states, first_cell)
        if first_cell < 0:
            return first_cell
    seconds = time_us // 1_000_000
    ttl, expiry, doubtful = np.int64(0), np.int64(NEVER), False
    ttl_at = _meta(fields, log, version, TTL_AT, 8)
    if ttl_at >= 0:
        ttl = read_i64(data, ttl_at)
        if ttl < 0 or ttl > _GREATEST_TTL:
            return np.int64(-BAD_EXPIRY)
    if ttl > 0:
        written, doubtful = _written_at(data, fields, log, version, time_us, read_at)
        expiry = written + ttl

    flags = np.int64(ROW_STATIC) if static else np.int64(0)
    liveness, deletion, cells = np.int64(LIVE), np.int64(LIVE), np.int64(0)
    state_at = first_cell
    if operation == 2 and not static:
        flags |= ROW_LIVENESS
        liveness = time_us
    if operation in (3, -3):
        flags |= ROW_DELETION
        deletion = time_us
    else:
        times = (time_us, ttl, expiry)
        for column in range(log.first_column[version], log.first_column[version + 1]):
            value, mark = log.columns[column, VALUE], log.columns[column, DELETED_FLAG]
            removed = log.columns[column, ELEMENTS]
            length = fields[value, 1]
            deleted = mark >= 0 and fields[mark, 1] == 1 and data[fields[mark, 0]] != 0
            if length < 0 and not deleted and (removed < 0 or fields[removed, 1] < 0):
                continue
            column_id = log.columns[column, ID]
            if column_id == GONE or time_us <= log.dropped_at[column]:
                continue
            if column_id == UNKNOWN:
                return np.int64(-UNKNOWN_COLUMN)
            if (log.columns[column, STATIC_COLUMN] != 0) != static:
                return np.int64(-BAD_LOG_ROW)
            if log.columns[column, FORM] == ONE_CELL:
                if length < 0:
                    kind, length = np.int64(CELL_TOMBSTONE), np.int64(0)
                    local, own_ttl = seconds, np.int64(0)
                else:
                    kind = np.int64(CELL_EXPIRING if ttl > 0 else 0)
                    local, own_ttl = expiry, ttl
                if state_at + CELL_HEADER_BYTES + length > len(states):
                    return np.int64(-NO_SPACE)
                put_cell_header(states, state_at, column_id, kind, own_ttl, time_us, local)
                store_little64(states, state_at + 24, length << 32)
                state_at = copy(data, fields[value, 0], length, states, state_at + CELL_HEADER_BYTES)
                cells += 1
                continue
            state_at, added = _read_elements(data, fields, log, column, deleted, times, sink, state_at)
            if state_at < 0:
                return state_at
            cells += added

    if cells == 0 and not flags & (ROW_LIVENESS | ROW_DELETION):
        return np.int64(0)
    store_little32(states, begin, FORMAT | flags << 8)
    store_little32(states, begin + 4, ttl if flags & ROW_LIVENESS else np.int64(0))
    store_little64(states, begin + 8, liveness)
    store_little64(states, begin + 16, expiry if flags & ROW_LIVENESS else np.int64(NEVER))
    store_little64(states, begin + 24, deletion)
    store_little64(states, begin + 32, seconds if flags & ROW_DELETION else np.int64(NEVER))
    store_little32(states, begin + 40, first_cell - begin - ROW_HEADER_BYTES)
    store_little32(states, begin + 44, cells)
    scope = np.int64(STATIC if static else ROW)
    if not put_row(sink, change, scope, state_at, NOWHERE, NOWHERE):
        return np.int64(-NO_SPACE)
    return _doubt(sink, change) if doubtful else np.int64(0)


@walker
def _read_elements(
    data: Bytes,
    fields: NDArray[np.int64],
    log: LogProgram,
    column: Int,
    deleted: bool,
    times: tuple[Int, Int, Int],
    sink: Sink,
    begin: Int,
) -> tuple[Int, Int]:
    """Read a multi-cell column and write its cells in their order.

    Args:
        data: Array that holds the row.
        fields: Its columns.
        log: The log's versions, compiled.
        column: The column's number in the program.
        deleted: Its flag.
        times: Write time in us, TTL and expiry in seconds.
        sink: Its ``states`` get the cells.
        begin: Where to write.

    Returns:
        The offset after the cells or a negative reason, and how many there are.
    """
    states = sink.states
    column_id, form = log.columns[column, ID], log.columns[column, FORM]
    time_us = times[0]
    seconds = time_us // 1_000_000
    state_at, cells = begin, np.int64(0)
    if deleted:
        if state_at + CELL_HEADER_BYTES > len(states):
            return np.int64(-NO_SPACE), cells
        kind = np.int64(CELL_COMPLEX_DELETION)
        put_cell_header(states, state_at, column_id, kind, np.int64(0), time_us - 1, seconds)
        store_little64(states, state_at + 24, 0)
        state_at += CELL_HEADER_BYTES
        cells += 1
    ordered = True
    before = np.int64(-1)
    for which in range(2):
        place = log.columns[column, VALUE] if which == 0 else log.columns[column, ELEMENTS]
        if place < 0 or fields[place, 1] < 0:
            continue
        at, end = fields[place, 0], fields[place, 0] + fields[place, 1]
        named = which == 1 or form != FIELDS
        paired = which == 0 and form == PAIRS
        left = np.int64(-1)
        if named:
            if end - at < 4:
                return np.int64(-BAD_VALUE), cells
            left = read_i32(data, at)
            at += 4
            if left < 0:
                return np.int64(-BAD_VALUE), cells
        field = np.int64(0)
        while left > 0 if named else at < end:
            path, path_length, value, value_length = at, np.int64(2), at, np.int64(0)
            if named:
                path, path_length, at = next_part(data, at, end)
                if at < 0 or path_length < 0:
                    return np.int64(-BAD_VALUE), cells
                left -= 1
            if paired or not named:
                value, value_length, at = next_part(data, at, end)
                if at < 0 or (named and value_length < 0):
                    return np.int64(-BAD_VALUE), cells
            field += 1
            if value_length < 0:
                continue
            after = state_at + CELL_HEADER_BYTES + path_length + value_length
            if after > len(states):
                return np.int64(-NO_SPACE), cells
            if which == 1:
                kind, ttl, local = np.int64(CELL_PATH | CELL_TOMBSTONE), np.int64(0), seconds
            else:
                kind = np.int64(CELL_PATH | (CELL_EXPIRING if times[1] > 0 else 0))
                ttl, local = times[1], times[2]
            put_cell_header(states, state_at, column_id, kind, ttl, time_us, local)
            store_little32(states, state_at + 24, path_length)
            store_little32(states, state_at + 28, value_length)
            path_at = state_at + CELL_HEADER_BYTES
            if named:
                copy(data, path, path_length, states, path_at)
            else:
                states[path_at] = np.uint8((field - 1) >> 8)
                states[path_at + 1] = np.uint8((field - 1) & 0xFF)
            copy(data, value, value_length, states, path_at + path_length)
            ordered = ordered and (before < 0 or compare_cells(states, before, state_at) < 0)
            before = state_at
            state_at = after
            cells += 1
        if at != end:
            return np.int64(-BAD_VALUE), cells
    if not ordered:
        problem = order_cells(sink, begin, state_at, cells)
        if problem < 0:
            return np.int64(problem), cells
    return state_at, cells
