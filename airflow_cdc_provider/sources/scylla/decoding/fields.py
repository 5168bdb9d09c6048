"""The fields of a log row: their byte offsets, and the columns that all log rows have.

Functions that advance return the offset after the bytes read, or a negative reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.contribution import UNRESOLVED
from airflow_cdc_provider.formats.byte_kernels import copy, load_little32, same, store_little32
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, inlined, walker
from airflow_cdc_provider.sources.cql.decoding.sink import NOWHERE, STATES_AT, Sink, put_row
from airflow_cdc_provider.sources.cql.reasons import BAD_KEY, BAD_LOG_ROW, NO_SPACE, TRUNCATED
from airflow_cdc_provider.sources.cql.wire import next_part, read_i64
from airflow_cdc_provider.sources.scylla.decoding.programs import DELETED_FLAG, ELEMENTS, VALUE, LogProgram
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS

_GREATEST_KEY_PART: Final = 0xFFFF


class Keys(NamedTuple):
    """The partition key of each change, in the partitioner's encoding.

    ``data``    concatenated keys; as large as all payloads, which suffices
    ``ends``    the end of each change's key, after a leading 0
    """

    data: Bytes
    ends: Ints


@walker
def read_fields(data: Bytes, at: Int, end: Int, count: Int, fields: Ints) -> Int:
    """Store the offset and length of each column of a row; return the row's end."""
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
def meta_at(fields: Ints, log: LogProgram, version: Int, which: Int, length: Int) -> Int:
    """Return the offset of the value of a metadata column, -1 if it is null or has another length."""
    index = log.meta[version, which]
    if index < 0 or fields[index, 1] != length:
        return np.int64(-1)
    return fields[index, 0]


@inlined
def read_time_us(data: Bytes, at: Int) -> Int:
    """Return the write time of a ``cdc$time``."""
    high = read_i64(data, at)
    ticks = (high & 0x0FFF) << 48 | (high >> 16 & 0xFFFF) << 32 | (high >> 32 & 0xFFFFFFFF)
    return (ticks - EPOCH_TICKS) // 10


@walker
def put_key(data: Bytes, fields: Ints, log: LogProgram, version: Int, keys: Keys, change: Int) -> Int:
    """Write a row's partition key: a single value as it is, several values as u16 length, value, 0."""
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
def check_key(data: Bytes, fields: Ints, log: LogProgram, version: Int, keys: Keys, change: Int) -> Int:
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
def clustering_count(fields: Ints, log: LogProgram, version: Int) -> Int:
    """Return how many clustering columns aren't null; -1 if one follows a null one."""
    count = np.int64(0)
    for i in range(log.clustering.shape[1]):
        if fields[log.clustering[version, i], 1] >= 0:
            if count != i:
                return np.int64(-1)
            count += 1
    return count


@inlined
def has_column_data(fields: Ints, log: LogProgram, version: Int) -> bool:
    """Return whether a row has a value, flag or elements of any column, or the log has no such columns."""
    first, end = log.first_column[version], log.first_column[version + 1]
    for column in range(first, end):
        for which in (VALUE, DELETED_FLAG, ELEMENTS):
            index = log.columns[column, which]
            if index >= 0 and fields[index, 1] >= 0:
                return True
    return bool(first == end)


@walker
def put_clustering(
    data: Bytes, fields: Ints, log: LogProgram, version: Int, count: Int, out: Bytes, at: Int
) -> Int:
    """Write the first clustering values in cell row encoding; return the offset after them."""
    for i in range(count):
        index = log.clustering[version, i]
        length = fields[index, 1]
        if at + 4 + length > len(out):
            return np.int64(-NO_SPACE)
        store_little32(out, at, length)
        at = copy(data, fields[index, 0], length, out, at + 4)
    return at


@inlined
def put_unresolved(sink: Sink, change: Int) -> Int:
    """Append a contribution that marks the partition as unresolved, to be read again."""
    done = put_row(sink, change, np.int64(UNRESOLVED), sink.cursor[STATES_AT], NOWHERE, NOWHERE)
    return np.int64(0) if done else np.int64(-NO_SPACE)
