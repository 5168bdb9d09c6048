"""Parse a PartitionUpdate in place to contributions (reference §5, §9).

An update, after its table id::

    uvint length, key | flags | uvint x 3: least timestamp, deletion time, TTL | [static column names] |
    regular column names | [partition deletion] | [static row] | [uvint row estimate] |
    rows (:mod:`.rows`) and range tombstone markers ... | 01

Parsing uses the compiled schema (:mod:`.programs`) and writes contributions to a :class:`~.sink.Sink`.

Functions that parse return the offset after what they read, or a negative reason (``-TRUNCATED`` is the -1
that :mod:`airflow_cdc_provider.sources.cql.wire` returns). Every length is checked against the remaining
bytes before any of them is read; the limits of an update are ``at`` and ``end``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION
from airflow_cdc_provider.formats.byte_kernels import load_little32, same, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, inlined, walker
from airflow_cdc_provider.sources.cassandra.decoding.rows import (
    REGULAR_LINE,
    STATIC_LINE,
    read_clustering,
    read_row,
)
from airflow_cdc_provider.sources.cassandra.decoding.times import read_deletion
from airflow_cdc_provider.sources.cql.decoding.cell_rows import LIVE, put_deletion
from airflow_cdc_provider.sources.cql.decoding.programs import Program, find_column
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUND_HEADER_BYTES,
    BOUNDS_AT,
    LIST_COUNT,
    LIST_LENGTH,
    LIST_START,
    LIST_TABLE,
    NOWHERE,
    RANGE_DELETION_TIME,
    RANGE_START,
    RANGE_TIMESTAMP,
    Sink,
    failed,
)
from airflow_cdc_provider.sources.cql.programs import CUSTOM, OP
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_FLAGS,
    BAD_MARKER,
    NO_SPACE,
    TRUNCATED,
    UNKNOWN_COLUMN,
    UNORDERED_TYPE,
)
from airflow_cdc_provider.sources.cql.wire import read_uvint

_TABLE_ID_BYTES: Final = 16
_NULL: Final = 0xFFFFFFFF
EPOCH_US: Final = 1442880000000000
_EPOCH_S: Final = 1442880000


@walker
def read_update(
    data: Bytes, at: Int, end: Int, version: Int, change: Int, table: Int, program: Program, sink: Sink
) -> Int:
    """Read one update and append its contributions.

    Args:
        data: Array with the update.
        at: Offset of the update, at its table id.
        end: Limit.
        version: Format version of the segment.
        change: Number to store with each contribution.
        table: Its table's number in the program.
        program: Compiled schemas.
        sink: Receives the contributions. After a failure the caller resets ``ROWS_AT``, ``STATES_AT`` and
            ``BOUNDS_AT``.

    Returns:
        The offset after it, or a negative reason; then ``FAILED_AT`` has the offset of the error.
    """
    cursor = sink.cursor
    if end - at < _TABLE_ID_BYTES:
        return failed(cursor, at, TRUNCATED)
    at += _TABLE_ID_BYTES
    length, after = read_uvint(data, at, end)
    if after < 0 or length < 0 or length >= end - after:
        return failed(cursor, at, TRUNCATED)
    at = after + length
    flags = data[at]
    if flags == 0x01:
        return at + 1
    if flags & ~0x1C & 0xFF:
        return failed(cursor, at, BAD_FLAGS)
    at += 1
    least_deletion_time = least_ttl = np.int64(0)
    least_timestamp, after = read_uvint(data, at, end)
    if after >= 0:
        least_deletion_time, after = read_uvint(data, after, end)
    if after >= 0:
        least_ttl, after = read_uvint(data, after, end)
    if after < 0:
        return failed(cursor, at, TRUNCATED)
    at = after
    header = (version, least_timestamp + EPOCH_US, least_deletion_time + _EPOCH_S, least_ttl)

    static_count = np.int64(0)
    if flags & 0x08:
        static_count, at = _read_columns(data, at, end, table, program, sink, STATIC_LINE)
        if at < 0:
            return at
    regular_count, at = _read_columns(data, at, end, table, program, sink, REGULAR_LINE)
    if at < 0:
        return at
    if flags & 0x04:
        timestamp, deletion_time, after = read_deletion(data, at, end, header)
        if after < 0:
            return failed(cursor, at, -after)
        at = after
        if timestamp != LIVE and not put_deletion(
            sink, change, np.int64(PARTITION_DELETION), timestamp, deletion_time, NOWHERE, NOWHERE
        ):
            return -NO_SPACE
    if flags & 0x08:
        if end - at < 2 or data[at] & 0x83 != 0x80 or data[at + 1] != 0x01:
            return failed(cursor, at, BAD_FLAGS)
        at = _read_static_row(data, at, end, header, change, table, program, sink, static_count)
        if at < 0:
            return at
    if flags & 0x10:
        _, after = read_uvint(data, at, end)
        if after < 0:
            return failed(cursor, at, TRUNCATED)
        at = after

    cursor[RANGE_START] = -1
    while at < end:
        flags = data[at]
        if flags & 0x01:
            if cursor[RANGE_START] >= 0:
                return failed(cursor, at, BAD_MARKER)
            return at + 1
        if flags & 0x02:
            at = _read_marker(data, at, end, header, change, table, program, sink)
        else:
            at = read_row(data, at, end, header, change, table, program, sink, REGULAR_LINE, regular_count)
        if at < 0:
            return at
    return failed(cursor, at, TRUNCATED)


@walker
def _read_static_row(
    data: Bytes,
    at: Int,
    end: Int,
    header: tuple[Int, Int, Int, Int],
    change: Int,
    table: Int,
    program: Program,
    sink: Sink,
    listed: Int,
) -> Int:
    """Read a static row; separate, so that this rare case isn't inlined in :func:`read_update`."""
    return read_row(data, at, end, header, change, table, program, sink, STATIC_LINE, listed)


@inlined
def _read_columns(
    data: Bytes, at: Int, end: Int, table: Int, program: Program, sink: Sink, line: Int
) -> tuple[Int, Int]:
    """Read column names and look them up; return their count, and the offset after or a negative reason."""
    cursor = sink.cursor
    length = cursor[LIST_LENGTH]
    if (
        line == REGULAR_LINE
        and table == cursor[LIST_TABLE]
        and 0 < length <= end - at
        and same(data, at, data, cursor[LIST_START], length)
    ):
        return cursor[LIST_COUNT], at + length
    start = at
    count, after = read_uvint(data, at, end)
    if after < 0 or count < 0 or count > end - after:
        return 0, failed(cursor, at, TRUNCATED)
    at = after
    if line == REGULAR_LINE:
        cursor[LIST_LENGTH] = 0
    likely = np.int64(program.first_column[table])
    for i in range(count):
        length, after = read_uvint(data, at, end)
        if after < 0 or length < 0 or length > end - after:
            return 0, failed(cursor, at, TRUNCATED)
        column = find_column(program, table, likely, data, after, length)
        if column < 0 or i >= sink.listed.shape[1]:
            return 0, failed(cursor, at, UNKNOWN_COLUMN)
        sink.listed[line, i] = column
        likely = column + 1
        at = after + length
    if line == REGULAR_LINE:
        cursor[LIST_START], cursor[LIST_LENGTH] = start, at - start
        cursor[LIST_COUNT], cursor[LIST_TABLE] = count, table
    return count, at


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
    """Read a range tombstone marker (reference §9); one that closes a range appends its contribution.

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
        return failed(cursor, at, TRUNCATED)
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
        return failed(cursor, at, BAD_MARKER)
    bound = cursor[BOUNDS_AT]
    if bound + BOUND_HEADER_BYTES > len(bounds):
        return -NO_SPACE
    store_little32(bounds, bound, count | (1 if kind >= 5 else 0) << 16)
    bound_end, at = read_clustering(
        data, at + 4, end, program, first, count, cursor, bounds, bound + BOUND_HEADER_BYTES
    )
    if at < 0:
        return at
    cursor[BOUNDS_AT] = bound_end
    timestamp, deletion_time, after = read_deletion(data, at, end, header)
    if after < 0:
        return failed(cursor, at, -after)
    at = after
    if closes:
        if timestamp != cursor[RANGE_TIMESTAMP] or deletion_time != cursor[RANGE_DELETION_TIME]:
            return failed(cursor, marker_at, BAD_MARKER)
        if not _has_order(program, first, bounds, cursor[RANGE_START], bound):
            return failed(cursor, marker_at, UNORDERED_TYPE)
        upper = bound if count > 0 else NOWHERE
        if not put_deletion(
            sink, change, np.int64(RANGE_DELETION), timestamp, deletion_time, cursor[RANGE_START], upper
        ):
            return -NO_SPACE
        cursor[RANGE_START] = -1
    if opens:
        if closes:
            timestamp, deletion_time, after = read_deletion(data, at, end, header)
            if after < 0:
                return failed(cursor, at, -after)
            at = after
        if timestamp == LIVE:
            return failed(cursor, marker_at, BAD_MARKER)
        cursor[RANGE_START] = bound
        cursor[RANGE_TIMESTAMP] = timestamp
        cursor[RANGE_DELETION_TIME] = deletion_time
    return at


@walker
def _has_order(program: Program, first: Int, bounds: Bytes, lower: Int, upper: Int) -> bool:
    """Return whether bounds have no value of a custom type, whose order is unknown, where they differ."""
    counts = load_little32(bounds, lower) & 0xFFFF, load_little32(bounds, upper) & 0xFFFF
    lower, upper = lower + BOUND_HEADER_BYTES, upper + BOUND_HEADER_BYTES
    equal = True
    for column in range(max(counts[0], counts[1])):
        equal = equal and column < min(counts[0], counts[1])
        if equal:
            length = load_little32(bounds, lower)
            size = 4 + (length if length < _NULL else 0)
            equal = length == load_little32(bounds, upper) and same(bounds, lower, bounds, upper, size)
            lower, upper = lower + size, upper + size
        if not equal and program.types[program.clustering_root[first + column], OP] == CUSTOM:
            return False
    return True
