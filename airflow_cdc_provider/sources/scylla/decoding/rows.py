"""Decodes log rows that write or delete one row, or write static columns, to cell rows.

A single-cell column has a value, or a flag that means a tombstone. For a multi-cell column, the flag is a
deletion at T - 1, the value has a cell per element, and each removed element is a tombstone. A null without a
flag means that the column is unchanged.

Functions that advance return the offset after the bytes read, or a negative reason.
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
from airflow_cdc_provider.formats.byte_kernels import copy, store_little32, store_little64
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cql.decoding.cell_rows import LIVE, put_cell_header
from airflow_cdc_provider.sources.cql.decoding.programs import DROPPED
from airflow_cdc_provider.sources.cql.decoding.sink import NOWHERE, STATES_AT, Sink, put_row
from airflow_cdc_provider.sources.cql.decoding.sorting import compare_cells, order_cells
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_EXPIRY,
    BAD_LOG_ROW,
    BAD_VALUE,
    NO_SPACE,
    UNKNOWN_COLUMN,
)
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_i64
from airflow_cdc_provider.sources.scylla.decoding.fields import meta_at, put_clustering, put_unresolved
from airflow_cdc_provider.sources.scylla.decoding.programs import (
    DELETED_FLAG,
    ELEMENTS,
    FIELDS,
    FORM,
    ID,
    LIFE_AT,
    LOG_TTL,
    ONE_CELL,
    PAIRS,
    TTL_ALTERED,
    TTL_AT,
    UNKNOWN,
    VALUE,
    LogProgram,
)
from airflow_cdc_provider.sources.scylla.decoding.programs import STATIC as STATIC_COLUMN

CLOCK_TOLERANCE_SECONDS: Final = 10
"""A write time within this distance of the coordinator's clock is assumed to be that clock.

The clock is only known as exactly as the time at which the log row was read.
"""

UNKNOWN_READ_TIME: Final = -1
_GREATEST_TTL: Final = 0x7FFFFFFE


@walker
def read_row(
    data: Bytes,
    fields: Ints,
    log: LogProgram,
    version: Int,
    change: Int,
    operation: Int,
    static: bool,
    time_us: Int,
    read_at: Int,
    sink: Sink,
) -> Int:
    """Read a log row that writes or deletes a row, or writes static columns; append its contribution."""
    cursor, states = sink.cursor, sink.states
    begin = cursor[STATES_AT]
    first_cell = begin + ROW_HEADER_BYTES
    if first_cell > len(states):
        return np.int64(-NO_SPACE)
    if not static:
        first_cell = put_clustering(data, fields, log, version, log.clustering.shape[1], states, first_cell)
        if first_cell < 0:
            return first_cell
    seconds = time_us // 1_000_000
    ttl, expiry, unresolved = np.int64(0), np.int64(NEVER), False
    ttl_at = meta_at(fields, log, version, TTL_AT, 8)
    if ttl_at >= 0:
        ttl = read_i64(data, ttl_at)
        if ttl < 0 or ttl > _GREATEST_TTL:
            return np.int64(-BAD_EXPIRY)
    if ttl > 0:
        written, unresolved = _written_at(data, fields, log, version, time_us, read_at)
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
            value, flag = log.columns[column, VALUE], log.columns[column, DELETED_FLAG]
            removed = log.columns[column, ELEMENTS]
            length = fields[value, 1]
            deleted = flag >= 0 and fields[flag, 1] == 1 and data[fields[flag, 0]] != 0
            if length < 0 and not deleted and (removed < 0 or fields[removed, 1] < 0):
                continue
            column_id = log.columns[column, ID]
            if column_id == DROPPED or time_us <= log.dropped_at[column]:
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
    return put_unresolved(sink, change) if unresolved else np.int64(0)


@walker
def _read_elements(
    data: Bytes,
    fields: Ints,
    log: LogProgram,
    column: Int,
    deleted: bool,
    times: tuple[Int, Int, Int],
    sink: Sink,
    begin: Int,
) -> tuple[Int, Int]:
    """Read a multi-cell column and write its cells in sorted order.

    Args:
        data: Array with the row.
        fields: Offsets and lengths of its columns.
        log: The log's versions, compiled.
        column: The column's index in the program.
        deleted: The column's deletion flag.
        times: Write time in us, TTL and expiry in seconds.
        sink: Its ``states`` receive the cells.
        begin: The offset to write at.

    Returns:
        The offset after the cells or a negative reason, and the number of cells.
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
    ordered: Any = True
    before = np.int64(-1)
    for which in range(2):
        index = log.columns[column, VALUE] if which == 0 else log.columns[column, ELEMENTS]
        if index < 0 or fields[index, 1] < 0:
            continue
        at, end = fields[index, 0], fields[index, 0] + fields[index, 1]
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


@walker
def _written_at(
    data: Bytes, fields: Ints, log: LogProgram, version: Int, time_us: Int, read_at: Int
) -> tuple[Int, bool]:
    """Return the second from which a row's TTLs count, and whether it is unresolved.

    TTLs count from the coordinator's clock, which is also the start of the log row's own TTL. A write time
    far behind that clock was set by a client. The server rejects write times far ahead of it: if one is
    found, the log row's TTL is not the one in the schema.
    """
    seconds = time_us // 1_000_000
    life_at = meta_at(fields, log, version, LIFE_AT, 4)
    log_ttl = log.versions[version, LOG_TTL]
    if life_at < 0 or log_ttl == 0 or read_at == UNKNOWN_READ_TIME:
        return seconds, False
    written = read_at - log_ttl + read_i32(data, life_at)
    if abs(written - seconds) <= CLOCK_TOLERANCE_SECONDS:
        return seconds, False
    if log.versions[version, TTL_ALTERED] or written > read_at + CLOCK_TOLERANCE_SECONDS or written < seconds:
        return seconds, True
    return written, False
