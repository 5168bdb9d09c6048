"""Decodes log rows in place to contributions (``docs/design/scylla.md``, *How changes become cells*).

A change is the log rows of one write to one partition. :mod:`..payload` has the layout of its payload,
:mod:`..log_table` the meaning of its columns. T is ``cdc$time`` in us.

============ ========================================================================================
code         contribution
============ ========================================================================================
1, 2         ``ROW``, with liveness at T for 2; ``STATIC`` for 1 if all clustering columns are null
3, -3        ``ROW`` with a deletion at T
4, -4        ``PARTITION_DELETION`` at T
5, 6         starts a range, which the next row ends
7, 8         ``RANGE_DELETION`` at T
0, 9         none: images are read without isolation, and add nothing to the other rows
============ ========================================================================================

With ``delta = keys``, a 1 or 2 marks the partition as unresolved: ``UNRESOLVED``. If it is unknown whether a
log contains keys only, so does a 1 or 2 without data of any column, in addition to its row.

A null in the key of a row or bound is undecodable where it can't mean that: no range is open at both ends,
and up to the time of a rename of a key column it may be a value that the log lost.

Functions that advance return the offset after the bytes read, or a negative reason.
"""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION
from airflow_cdc_provider.formats.byte_kernels import load_little32, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cql.decoding.cell_rows import put_deletion
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUND_HEADER_BYTES,
    BOUNDS_AT,
    NOWHERE,
    RANGE_START,
    Sink,
    failed,
)
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_CLUSTERING,
    BAD_LOG_ROW,
    BAD_MARKER,
    NO_SPACE,
    RENAMED_KEY,
    UNFINISHED_CHANGE,
    UNKNOWN_OPERATION,
)
from airflow_cdc_provider.sources.cql.wire import read_i32
from airflow_cdc_provider.sources.scylla.decoding.fields import (
    Keys,
    check_key,
    clustering_count,
    has_column_data,
    meta_at,
    put_clustering,
    put_key,
    put_unresolved,
    read_fields,
    read_time_us,
)
from airflow_cdc_provider.sources.scylla.decoding.programs import (
    COLUMNS,
    END_AT,
    KEYS_ONLY,
    KEYS_ONLY_UNKNOWN,
    NUMBER_AT,
    OPERATION_AT,
    RENAMED_US,
    TIME_AT,
    LogProgram,
)
from airflow_cdc_provider.sources.scylla.decoding.rows import read_row


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
    fields: Ints,
) -> Int:
    """Read one change and append its contributions.

    Args:
        data: Array with the change.
        at: Offset of its first row.
        end: Offset of its end.
        change: Index of the change, stored with each contribution.
        version: Number of the log's version in the program.
        read_at: When its rows were read, in epoch seconds, or :data:`~.rows.UNKNOWN_READ_TIME`.
        log: The log's versions, compiled.
        sink: Receives the contributions. After a failure the caller resets its cursors.
        keys: Receives the partition key.
        fields: Scratch space for offset and length of each column of a row.

    Returns:
        ``end``, or a negative reason; then ``FAILED_AT`` is the offset of the failure.
    """
    cursor = sink.cursor
    cursor[RANGE_START] = -1
    number = np.int64(-1)
    ended = False
    while at < end:
        row_at = at
        if ended:
            return failed(cursor, row_at, UNFINISHED_CHANGE)
        at = read_fields(data, at, end, log.versions[version, COLUMNS], fields)
        if at < 0:
            return failed(cursor, row_at, -at)
        found = meta_at(fields, log, version, NUMBER_AT, 4)
        operation_at = meta_at(fields, log, version, OPERATION_AT, 1)
        time_at = meta_at(fields, log, version, TIME_AT, 16)
        if found < 0 or operation_at < 0 or time_at < 0:
            return failed(cursor, row_at, BAD_LOG_ROW)
        before, number = number, read_i32(data, found)
        if number <= before or (before < 0 and number != 0):
            return failed(cursor, found, UNFINISHED_CHANGE)
        found = meta_at(fields, log, version, END_AT, 1)
        ended = found >= 0 and data[found] != 0
        if before < 0:
            problem = put_key(data, fields, log, version, keys, change)
        else:
            problem = check_key(data, fields, log, version, keys, change)
        if problem < 0:
            return failed(cursor, row_at, -problem)

        operation = np.int64(data[operation_at])
        if operation >= 128:
            operation -= 256
        if (cursor[RANGE_START] >= 0) != (operation in (7, 8)):
            return failed(cursor, operation_at, BAD_MARKER)
        bound = clustering_count(fields, log, version)
        time_us = read_time_us(data, time_at)
        is_full_key = bound == log.clustering.shape[1]
        has_key = is_full_key or operation in (0, 4, -4, 9) or (bound == 0 and operation == 1)
        if not has_key and time_us <= log.versions[version, RENAMED_US]:
            return failed(cursor, row_at, RENAMED_KEY)
        if bound < 0:
            return failed(cursor, row_at, BAD_CLUSTERING)
        if operation in (1, 2, 3, -3):
            if not has_key:
                return failed(cursor, row_at, BAD_CLUSTERING)
            keys_only = log.versions[version, KEYS_ONLY]
            has_values = operation not in (1, 2) or keys_only == 0
            if keys_only == KEYS_ONLY_UNKNOWN:
                has_values = has_values or has_column_data(fields, log, version)
            problem = np.int64(0)
            if has_values or keys_only == KEYS_ONLY_UNKNOWN:
                problem = read_row(
                    data, fields, log, version, change, operation, not is_full_key, time_us, read_at, sink
                )
            if problem >= 0 and not has_values:
                problem = put_unresolved(sink, change)
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
def _read_bound(
    data: Bytes,
    fields: Ints,
    log: LogProgram,
    version: Int,
    change: Int,
    operation: Int,
    count: Int,
    time_us: Int,
    sink: Sink,
) -> Int:
    """Read one bound of a range; the second one appends the range.

    A bound with fewer values than clustering columns is before or after all rows with that prefix: after them
    for 6 (exclusive start) and 7 (inclusive end). A bound without values is open and must be inclusive.
    """
    cursor, bounds = sink.cursor, sink.bounds
    is_after = operation in (6, 7)
    if count == 0 and operation in (6, 8):
        return np.int64(-BAD_MARKER)
    bound = cursor[BOUNDS_AT]
    if bound + BOUND_HEADER_BYTES > len(bounds):
        return np.int64(-NO_SPACE)
    store_little32(bounds, bound, count | (1 if is_after else 0) << 16)
    at = put_clustering(data, fields, log, version, count, bounds, bound + BOUND_HEADER_BYTES)
    if at < 0:
        return at
    cursor[BOUNDS_AT] = at
    if operation < 7:
        cursor[RANGE_START] = bound
        return np.int64(0)
    lower = cursor[RANGE_START]
    if count == 0 and load_little32(bounds, lower) & 0xFFFF == 0:
        return np.int64(-BAD_MARKER)
    cursor[RANGE_START] = -1
    upper = bound if count > 0 else NOWHERE
    seconds = time_us // 1_000_000
    done = put_deletion(sink, change, np.int64(RANGE_DELETION), time_us, seconds, lower, upper)
    return np.int64(0) if done else np.int64(-NO_SPACE)
