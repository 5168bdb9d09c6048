"""Convert rows of a SELECT, as received from the server, to payloads of snapshot changes.

This is the kernel of :mod:`.snapshot`. A page is ``rows`` times the values of the query's columns, each
an int32 length (-1: null) and its bytes. The query selects the partition key, the clustering, and each static
and regular column, followed by its WRITETIME and TTL if it has them; for a multi-cell column these are lists
with one entry per element (Cassandra 5.0).

A SELECT doesn't return all metadata, which affects the cells (:mod:`airflow_cdc_provider.changes.cells`):

* Row liveness and tombstones: each row is ``ROW_UNCERTAIN`` as of the time of reading. The liveness is only
  known for a view with a liveness column (``ROW_STRICT``): that column's WRITETIME and TTL in the base, which
  the query selects last. A row of the base without that column is not in the view.
* Expiry: the second of reading plus the remaining TTL; it can be off by one second.
* Write times of elements before 5.0, and of counters: ``CELL_UNCERTAIN``.
* Paths of list elements, in any version: they are synthetic, have a mark, and are ``CELL_UNCERTAIN``.

A synthetic path contains a time that preserves the list's order, derived from the element's write time if
that has the same order, and a hash of the value; so reading a list again usually yields the same paths. It
sorts after the paths of elements that can be prepended and before those of elements that can be appended
after the read. If write times are unavailable (before 5.0), a list is encoded as if it had been overwritten
at the time of reading: a deletion of the whole, then elements one microsecond later.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_PATH,
    CELL_UNCERTAIN,
    FORMAT,
    LATEST_EXPIRY,
    NEVER,
    ROW_HEADER_BYTES,
    ROW_STATIC,
    ROW_STRICT,
    ROW_UNCERTAIN,
    SYNTHETIC_PATH_MARK,
)
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, kernel
from airflow_cdc_provider.sources.cql.programs import LIST, MAP, SET, UDT
from airflow_cdc_provider.sources.cql.wire import next_part, read_i32, read_i64

UNKNOWN_TIME: Final = -(1 << 63) + 1
"""Write time of cells with an unknown one: the least."""

PLAIN: Final = 0
"""Shape of a single-cell column with WRITETIME and TTL."""
COUNTER: Final = 1
"""Shape of a counter column: a value without either."""
ELEMENTS: Final = 2
"""Shape of a multi-cell column whose elements have WRITETIME and TTL."""
UNTIMED_ELEMENTS: Final = 3
"""Shape of a multi-cell column before Cassandra 5.0: a value without either."""

_HUNDRED_NS_TO_1970: Final = 12_219_292_800 * 10_000_000
_HUNDRED_NS_TO_2010: Final = _HUNDRED_NS_TO_1970 + 1_262_304_000 * 10_000_000
"""Cassandra's paths of appended elements are later; those of prepended ones are mirrored at this time."""
_MARK: Final = np.frombuffer(SYNTHETIC_PATH_MARK, np.uint8)
_PATH_BYTES: Final = 16


class SelectProgram(NamedTuple):
    """A query compiled for the kernel.

    ``partition``    number of partition key columns
    ``clustering``   number of clustering columns
    ``static_count`` number of static columns, which come first
    ``shapes``       shape of each static and regular column
    ``kinds``        LIST, SET, MAP or UDT for those with elements, else -1
    ``strict``       whether the query ends with WRITETIME and TTL of the liveness column
    ``row_prefix``   bytes before the cell row in the payload of a row
    ``static_prefix``   bytes before the cell row in the payload of a static row
    """

    partition: int
    clustering: int
    static_count: int
    shapes: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int32]
    strict: bool
    row_prefix: Bytes
    static_prefix: Bytes


class Records(NamedTuple):
    """Output of the kernel: bytes of keys and payloads, and their end offsets for each record.

    ``totals`` has the number of records, the bytes of keys and the bytes of payloads, written or not: bytes
    beyond the capacity are only counted, and then the page is read again with larger arrays.
    """

    keys: Bytes
    key_ends: Ints
    payloads: Bytes
    payload_ends: Ints
    totals: Ints


@kernel
def read_page(program: Int, data: Bytes, rows: Int, read_us: Int, read_seconds: Int, records: Int) -> Int:
    """Convert a page to records.

    Args:
        program: SelectProgram.
        data: The page's bytes.
        rows: Number of rows in it.
        read_us: Time of reading, by the server's clock.
        read_seconds: Second from which TTLs count.
        records: Receives the records; ``totals`` is overwritten.

    Returns:
        -1, or the number of the first malformed row.
    """
    columns = program.partition + program.clustering
    for shape in program.shapes:
        columns += 3 if shape in (PLAIN, ELEMENTS) else 1
    if program.strict:
        columns += 2
    starts = np.empty(columns, np.int64)
    lengths = np.empty(columns, np.int64)
    records.totals[:] = 0
    end = np.int64(data.size)
    at = np.int64(0)
    key_from = np.int64(0)
    key_to = np.int64(-1)
    for row in range(rows):
        for column in range(columns):
            starts[column], lengths[column], at = next_part(data, at, end)
            if at < 0:
                return np.int64(row)
        if program.strict and lengths[columns - 2] < 0:
            continue
        last = program.partition - 1
        begins, ends = starts[0] - 4, starts[last] + max(lengths[last], 0)
        new_partition = key_to < 0 or not _same(data, key_from, key_to, begins, ends)
        key_from, key_to = begins, ends
        ok = True
        if program.static_count > 0 and new_partition:
            ok = _put_record(program, data, starts, lengths, True, read_us, read_seconds, records)
        # A partition without rows is returned as a row whose clustering is null.
        if ok and (program.clustering == 0 or lengths[program.partition] >= 0):
            ok = _put_record(program, data, starts, lengths, False, read_us, read_seconds, records)
        if not ok:
            return np.int64(row)
    return np.int64(-1) if at == end else np.int64(rows)


@kernel
def _put_record(
    program: Int,
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    static: Int,
    read_us: Int,
    read_seconds: Int,
    records: Int,
) -> bool:
    """Append one record, unless it is a static row without values; returns False for malformed bytes."""
    out = records.payloads
    prefix = program.static_prefix if static else program.row_prefix
    begin = records.totals[2]
    header = _put_bytes(out, begin, prefix, 0, prefix.size)
    at = header + ROW_HEADER_BYTES
    if not static:
        for column in range(program.partition, program.partition + program.clustering):
            length = lengths[column]
            at = _put_number(out, at, length, 4)
            at = _put_bytes(out, at, data, starts[column], length)
    clustering_length = at - header - ROW_HEADER_BYTES

    cells = 0
    value_index = program.partition + program.clustering
    for column in range(program.shapes.size):
        shape = program.shapes[column]
        if (column < program.static_count) == static and lengths[value_index] >= 0:
            number = column if static else column - program.static_count
            if shape in (PLAIN, COUNTER):
                at = _put_cell(
                    data, starts, lengths, value_index, shape, number, read_us, read_seconds, out, at
                )
                cells += 1
            else:
                at, added = _put_elements(
                    data,
                    starts,
                    lengths,
                    value_index,
                    shape,
                    program.kinds[column],
                    number,
                    read_us,
                    read_seconds,
                    out,
                    at,
                )
                if added < 0:
                    return False
                cells += added
        value_index += 3 if shape in (PLAIN, ELEMENTS) else 1
    if static and cells == 0:
        return True

    known_us, known_end = np.int64(NEVER), np.int64(0)
    flags = ROW_UNCERTAIN | (ROW_STATIC if static else 0)
    if program.strict:
        flags |= ROW_STRICT
        if lengths[value_index] == 8:
            known_us = read_i64(data, starts[value_index])
        if lengths[value_index + 1] == 4:
            known_end = min(read_seconds + read_i32(data, starts[value_index + 1]), np.int64(LATEST_EXPIRY))
    if header + ROW_HEADER_BYTES <= out.size:
        out[header] = FORMAT
        out[header + 1] = flags
        _put_number(out, header + 2, 0, 2)
        _put_number(out, header + 4, known_end, 4)
        _put_number(out, header + 8, read_us, 8)
        _put_number(out, header + 16, known_us, 8)
        _put_number(out, header + 24, 0, 16)
        _put_number(out, header + 40, clustering_length, 4)
        _put_number(out, header + 44, cells, 4)
    number = records.totals[0]
    key_end = records.totals[1]
    for column in range(program.partition):
        length = lengths[column]
        if length < 0:
            return False
        if program.partition > 1:
            if key_end + 2 <= records.keys.size:
                records.keys[key_end] = (length >> 8) & 0xFF
                records.keys[key_end + 1] = length & 0xFF
            key_end += 2
        key_end = _put_bytes(records.keys, key_end, data, starts[column], length)
        if program.partition > 1:
            key_end = _put_number(records.keys, key_end, 0, 1)
    if number < records.key_ends.size:
        records.key_ends[number] = key_end
        records.payload_ends[number] = at
    records.totals[0] = number + 1
    records.totals[1] = key_end
    records.totals[2] = at
    return True


@kernel
def _put_cell(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    value_index: Int,
    shape: Int,
    column: Int,
    read_us: Int,
    read_seconds: Int,
    out: Bytes,
    at: Int,
) -> Int:
    flags = 0
    ttl = np.int64(0)
    time_us = read_us
    if shape == COUNTER:
        flags = CELL_UNCERTAIN
    else:
        if lengths[value_index + 1] == 8:
            time_us = read_i64(data, starts[value_index + 1])
        if lengths[value_index + 2] == 4:
            ttl = read_i32(data, starts[value_index + 2])
    expiry = np.int64(NEVER)
    if ttl > 0:
        flags |= CELL_EXPIRING
        expiry = read_seconds + ttl
    at = _put_header(out, at, column, flags, ttl, time_us, expiry, 0, lengths[value_index])
    return _put_bytes(out, at, data, starts[value_index], lengths[value_index])


@kernel
def _put_elements(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    value_index: Int,
    shape: Int,
    kind: Int,
    column: Int,
    read_us: Int,
    read_seconds: Int,
    out: Bytes,
    at: Int,
) -> tuple[Int, Int]:
    """Append a multi-cell column's cells; returns the offset after them and their number, -1 if malformed."""
    value_at, value_end = starts[value_index], starts[value_index] + lengths[value_index]
    time_at, time_end, ttl_at, ttl_end = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if shape == ELEMENTS:
        time_at, time_end = starts[value_index + 1] + 4, starts[value_index + 1] + lengths[value_index + 1]
        ttl_at, ttl_end = starts[value_index + 2] + 4, starts[value_index + 2] + lengths[value_index + 2]
    cells = np.int64(0)
    count = np.int64(1) << 40
    if kind != UDT:
        if value_end - value_at < 4:
            return at, np.int64(-1)
        count = read_i32(data, value_at)
        value_at += 4
    path_time = np.int64(_HUNDRED_NS_TO_2010)
    if kind == LIST and shape == UNTIMED_ELEMENTS:
        flags = CELL_COMPLEX_DELETION
        at = _put_header(out, at, column, flags, np.int64(0), read_us, read_seconds, 0, 0)
        cells += 1
    for index in range(count):
        if kind == UDT and value_at >= value_end:
            break
        key_at, key_length, value_at = next_part(data, value_at, value_end)
        if value_at < 0:
            return at, np.int64(-1)
        begin, length = key_at, key_length
        if kind == MAP:
            begin, length, value_at = next_part(data, value_at, value_end)
            if value_at < 0:
                return at, np.int64(-1)
        time_us, time_at = _next_number(data, time_at, time_end, 8, np.int64(UNKNOWN_TIME))
        ttl, ttl_at = _next_number(data, ttl_at, ttl_end, 4, np.int64(0))
        if length < 0 or key_length < 0:
            if kind == UDT:
                continue
            return at, np.int64(-1)
        flags = CELL_PATH
        if kind == LIST:
            flags |= CELL_UNCERTAIN
            if shape == UNTIMED_ELEMENTS:
                time_us = read_us + 1
            # In the order of the list, not after the read, and at the write time if possible.
            latest = read_us - (count - index)
            written = min(max(time_us, np.int64(0)), latest) * 10 + _HUNDRED_NS_TO_1970
            path_time = max(path_time + 1, written)
        elif shape == UNTIMED_ELEMENTS or time_us == UNKNOWN_TIME:
            flags |= CELL_UNCERTAIN
        expiry = np.int64(NEVER)
        if ttl > 0:
            flags |= CELL_EXPIRING
            expiry = read_seconds + ttl
        path = 2 if kind == UDT else key_length if kind in (SET, MAP) else _PATH_BYTES
        at = _put_header(out, at, column, flags, ttl, time_us, expiry, path, 0 if kind == SET else length)
        if kind == UDT:
            at = _put_number(out, at, ((index & 0xFF) << 8) | (index >> 8), 2)
        elif kind == LIST:
            at = _put_synthetic_path(out, at, path_time, data, begin, length)
        else:
            at = _put_bytes(out, at, data, key_at, key_length)
        if kind != SET:
            at = _put_bytes(out, at, data, begin, length)
        cells += 1
    return at, cells


@kernel
def _next_number(data: Bytes, at: Int, end: Int, size: Int, missing: Int) -> tuple[Int, Int]:
    """Read one number of a list, ``missing`` if it is null or absent; and the next offset."""
    if at >= end:
        return missing, end
    begin, length, after = next_part(data, at, end)
    if after < 0:
        return missing, end
    if length != size:
        return missing, after
    return (read_i64(data, begin) if size == 8 else read_i32(data, begin)), after


@kernel
def _put_header(
    out: Bytes, at: Int, column: Int, flags: Int, ttl: Int, time_us: Int, seconds: Int, path: Int, value: Int
) -> Int:
    """Append a cell's header (:mod:`airflow_cdc_provider.changes.cells`)."""
    if at + CELL_HEADER_BYTES <= out.size:
        _put_number(out, at, column, 2)
        _put_number(out, at + 2, flags, 2)
        _put_number(out, at + 4, ttl, 4)
        _put_number(out, at + 8, time_us, 8)
        _put_number(out, at + 16, seconds, 8)
        _put_number(out, at + 24, path, 4)
        _put_number(out, at + 28, value, 4)
    return np.int64(at + CELL_HEADER_BYTES)


@kernel
def _put_synthetic_path(out: Bytes, at: Int, time: Int, data: Bytes, begin: Int, length: Int) -> Int:
    """Write a time UUID: its time in 100 ns since 1582, the mark, and a hash of the value."""
    if at + _PATH_BYTES <= out.size:
        for i in range(4):
            out[at + i] = (time >> (8 * (3 - i))) & 0xFF
        for i in range(2):
            out[at + 4 + i] = (time >> (40 - 8 * i)) & 0xFF
            out[at + 6 + i] = (time >> (56 - 8 * i)) & 0xFF
        out[at + 6] = 0x10 | (out[at + 6] & 0x0F)
        for i in range(_MARK.size):
            out[at + 8 + i] = _MARK[i]
        digest = np.uint32(2166136261)  # FNV-1a
        for i in range(begin, begin + length):
            digest = np.uint32((digest ^ np.uint32(data[i])) * np.uint32(16777619))
        for i in range(3):
            out[at + 13 + i] = (digest >> np.uint32(8 * i)) & np.uint32(0xFF)
    return np.int64(at + _PATH_BYTES)


@kernel
def _put_number(out: Bytes, at: Int, number: Int, size: Int) -> Int:
    """Write a little-endian number; bytes beyond the eighth are zero."""
    if at + size <= out.size:
        for i in range(size):
            out[at + i] = (number >> (8 * i)) & 0xFF if i < 8 else 0
    return np.int64(at + size)


@kernel
def _put_bytes(out: Bytes, at: Int, data: Bytes, start: Int, length: Int) -> Int:
    """Copy bytes, none for a negative length."""
    if length <= 0:
        return np.int64(at)
    if at + length <= out.size:
        out[at : at + length] = data[start : start + length]
    return np.int64(at + length)


@kernel
def _same(data: Bytes, a: Int, a_end: Int, b: Int, b_end: Int) -> Int:
    same = a_end - a == b_end - b
    at = 0
    while same and at < a_end - a:
        same = data[a + at] == data[b + at]
        at += 1
    return same
