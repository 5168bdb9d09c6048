"""Parses log rows in the payloads of changes and groups them into events.

A change's payload::

    byte 'L', then per row: u32 little-endian length of the row, the row
    a row, per column:      i32 big-endian length (-1: null), the value's bytes

Events of the rows of a change, by ``cdc$operation``:

============ =====================================================================================
1, 2         u, c. Rows of one key form one event (an INSERT with a TTL and a null, or a TTL and a
             collection, is logged as several rows), unless two of them modify the same column
             or have different TTLs
3, -3        d
4, -4        d if the table has no clustering columns; else no event
5 to 8       no event: a pair is a range delete
0, 9         no event: preimage and postimage of the events of the same key
============ =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, span_column
from airflow_cdc_provider.formats.byte_kernels import load_little32
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cql.wire import read_i32
from airflow_cdc_provider.sources.scylla.events.tables import EventTable
from airflow_cdc_provider.sources.scylla.payload import BATCH_SEQ_NO, CHANGE_TAG, END_OF_BATCH, OPERATION, TTL

PREIMAGE: Final = 0
UPDATE: Final = 1
INSERT: Final = 2
ROW_DELETE: Final = 3
PARTITION_DELETE: Final = 4
RANGE_STARTS: Final = (5, 6)
RANGE_ENDS: Final = (7, 8)
POSTIMAGE: Final = 9
SERVICE_ROW_DELETE: Final = -3
SERVICE_PARTITION_DELETE: Final = -4

RANGE: Final = "range delete"
"""Kind under which range deletes are counted, which have no event."""
PARTITION: Final = "partition delete"
"""Kind of deletes of partitions with clustering columns, which have no event."""

_KNOWN: Final = (
    PREIMAGE,
    UPDATE,
    INSERT,
    ROW_DELETE,
    PARTITION_DELETE,
    *RANGE_STARTS,
    *RANGE_ENDS,
    POSTIMAGE,
    SERVICE_ROW_DELETE,
    SERVICE_PARTITION_DELETE,
)
_ROW_HEADER_BYTES: Final = 4


@dataclass(frozen=True, eq=False)
class LogRows:
    """Log rows of one table and schema.

    Args:
        data: A buffer with their values.
        starts: Offset of the value, by column of the log and row.
        lengths: Length of the value, by column and row; -1 for null.
        records: Index of the change of each row, ascending.
    """

    data: Bytes
    starts: Ints
    lengths: Ints
    records: Ints

    def numbers(self, column: int) -> Ints:
        """Read a column of integers of any size; null is the smallest integer."""
        found = np.full(len(self.records), np.iinfo(np.int64).min)
        _read_numbers(self.data, self.starts[column], self.lengths[column], found)
        return found

    def codes(self, column: int) -> Ints:
        """Number the distinct values of a column; null is -1."""
        starts = np.where(self.lengths[column] < 0, -1, self.starts[column])
        values = span_column(pa.binary(), self.data, starts, starts + self.lengths[column])
        return values.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)


@dataclass(frozen=True, eq=False)
class Grouped:
    """Events of log rows, in the order of their rows. One entry per event, except ``owner``.

    ``op``          ``c``, ``u`` or ``d``.
    ``first``       Index of its first row.
    ``owner``       Per row: the event that it belongs to, -1 for none.
    ``before``      Index of its preimage row, -1 for none.
    ``after``       Index of its postimage row, -1 for none.
    ``static``      Whether it is of static columns.
    ``by_service``  Whether the server's expiry service issued the delete.
    ``ttl``         TTL of the write in s, -1 for none.
    """

    op: npt.NDArray[Any]
    first: Ints
    owner: Ints
    before: Ints
    after: Ints
    static: Flags
    by_service: Flags
    ttl: Ints


def read_rows(payloads: pa.Array, columns: int) -> tuple[LogRows, Ints]:
    """Locate the values of log rows.

    Args:
        payloads: Payloads of changes.
        columns: Number of columns per row.

    Returns:
        The rows, and the indexes of malformed changes, which have none.
    """
    data, starts, ends = binary_buffer(payloads)
    counts = np.zeros(len(starts), np.int64)
    _count_rows(data, starts, ends, np.int64(columns), counts)
    broken = np.flatnonzero(counts < 0)
    counts = np.maximum(counts, 0)
    total = int(counts.sum())
    starts_of_values = np.zeros((columns, total), np.int64)
    lengths = np.full((columns, total), -1, np.int64)
    _locate(data, starts, counts, starts_of_values, lengths)
    return LogRows(data, starts_of_values, lengths, np.repeat(np.arange(len(starts)), counts)), broken


def check_changes(rows: LogRows, table: EventTable) -> dict[int, str]:
    """Return why changes can't become events, by the index of the change."""
    operations = rows.numbers(table.indexes[OPERATION])
    numbers = rows.numbers(table.indexes[BATCH_SEQ_NO])
    ends = rows.numbers(table.indexes[END_OF_BATCH]) > 0
    records = rows.records
    last = np.append(records[1:] != records[:-1], True)[: len(records)]
    reasons: dict[int, str] = {}
    for row in np.flatnonzero(~np.isin(operations, _KNOWN)).tolist():
        reasons.setdefault(int(records[row]), f"cdc$operation {operations[row]} is unknown")
    for row in np.flatnonzero(last & ~ends).tolist():
        reasons.setdefault(int(records[row]), "its last row has no cdc$end_of_batch: it is incomplete")
    same = records[1:] == records[:-1]
    for row in np.flatnonzero(same & (numbers[1:] <= numbers[:-1])).tolist():
        reasons.setdefault(int(records[row]), "its rows aren't ordered by cdc$batch_seq_no")
    opened = np.isin(operations, RANGE_STARTS)
    closed = np.isin(operations, RANGE_ENDS)
    unpaired = opened & ~np.append(closed[1:] & same, False)[: len(records)]
    unpaired |= closed & ~np.insert(opened[:-1] & same, 0, False)[: len(records)]
    for row in np.flatnonzero(unpaired).tolist():
        reasons.setdefault(int(records[row]), "a range delete has only one bound")
    for row in np.flatnonzero(_lacks_key(rows, table, operations)).tolist():
        reasons.setdefault(
            int(records[row]), "it lacks the value of a key column, as after a rename of the column"
        )
    return reasons


def _lacks_key(rows: LogRows, table: EventTable, operations: Ints) -> Flags:
    """Return which rows that change rows of the table have a null in their key."""

    def has(names: Iterable[str]) -> Ints:
        flags = [rows.lengths[table.indexes[name]] >= 0 for name in names]
        return np.sum([np.zeros(len(rows.records), np.int64), *flags], axis=0)

    bound, count = has(table.clustering), len(table.clustering)

    def has_data(*, static: bool) -> Any:
        own = [c for c in table.cells if c.name in table.cells_of(static=static)]
        numbers = [n for c in own for n in (c.value, c.deleted, c.removed) if n >= 0]
        return np.logical_or.reduce(rows.lengths[numbers] >= 0)

    of_row = (bound > 0) | has_data(static=False)
    if table.log.renamed_us:  # without any data it may be of a row that lost its key, or of static columns
        of_row |= ~has_data(static=True)
    lacking = np.isin(operations, (INSERT, ROW_DELETE, SERVICE_ROW_DELETE)) | (operations == UPDATE) & of_row
    keyed = np.isin(operations, (UPDATE, INSERT, ROW_DELETE, SERVICE_ROW_DELETE))
    partition = table.log.partition_key
    return (lacking & (bound < count)) | (keyed & (has(partition) < len(partition)))


def group(rows: LogRows, table: EventTable, valid: Flags) -> Grouped:
    """Group rows into events.

    Args:
        rows: The rows.
        table: Their table.
        valid: Which rows may belong to events: those of complete changes.
    """
    operations = rows.numbers(table.indexes[OPERATION])
    operations = np.where(valid, operations, RANGE_STARTS[0])  # yields no event
    key = _keys(rows, table)
    deltas = np.isin(operations, (UPDATE, INSERT))
    deletes = np.isin(operations, (ROW_DELETE, SERVICE_ROW_DELETE))
    if not table.clustering:
        deletes |= np.isin(operations, (PARTITION_DELETE, SERVICE_PARTITION_DELETE))
    ttls = rows.numbers(table.indexes[TTL])
    separate = _separate_keys(rows, table, key, deltas, ttls)
    count = len(rows.records)
    # Temporary number of an event: its key, or the row itself for deletes and separate rows.
    names = np.where(deletes | (deltas & separate[key]), 2 * count + np.arange(count), key)
    has_event = deltas | deletes
    _, first, which = np.unique(names[has_event], return_index=True, return_inverse=True)
    first_rows = np.flatnonzero(has_event)[first]
    order = np.argsort(first_rows)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    owner = np.full(count, -1, np.int64)
    owner[has_event] = rank[which.reshape(-1)]
    first = first_rows[order]
    inserts = np.zeros(len(first), np.bool_)
    inserts[owner[operations == INSERT]] = True
    ttl = np.full(len(first), -1, np.int64)
    timed = deltas & (ttls >= 0)
    ttl[owner[timed]] = ttls[timed]
    clustered = np.zeros(count, np.bool_)
    for name in table.clustering:
        clustered |= rows.lengths[table.indexes[name]] >= 0
    return Grouped(
        op=np.where(deletes[first], "d", np.where(inserts, "c", "u")),
        first=first,
        owner=owner,
        before=_image(key, operations == PREIMAGE)[key[first]],
        after=np.where(deletes[first], -1, _image(key, operations == POSTIMAGE)[key[first]]),
        static=~clustered[first] & bool(table.clustering),
        by_service=operations[first] < 0,
        ttl=ttl,
    )


def count_others(rows: LogRows, table: EventTable, valid: Flags) -> dict[str, int]:
    """Count the deletes that have no event, by kind."""
    operations = rows.numbers(table.indexes[OPERATION])[valid]
    found = {RANGE: int(np.isin(operations, RANGE_STARTS).sum())}
    if table.clustering:
        found[PARTITION] = int(np.isin(operations, (PARTITION_DELETE, SERVICE_PARTITION_DELETE)).sum())
    return {kind: number for kind, number in found.items() if number}


def _keys(rows: LogRows, table: EventTable) -> Ints:
    """Number the rows' keys: equal keys of one change have the same number, less than the number of rows."""
    codes = [rows.records, *(rows.codes(table.indexes[name]) for name in table.clustering)]
    if len(rows.records) == 0:
        return np.zeros(0, np.int64)
    _, key = np.unique(np.stack(codes), axis=1, return_inverse=True)
    return key.reshape(-1).astype(np.int64)


def _image(key: Ints, images: Flags) -> Ints:
    """Return the image row of each key, -1 for none."""
    found = np.full(len(key), -1, np.int64)
    found[key[images]] = np.flatnonzero(images)
    return found


def _separate_keys(rows: LogRows, table: EventTable, key: Ints, deltas: Flags, ttls: Ints) -> Flags:
    """Return which keys have rows that can't form one event: a column is modified twice, or TTLs differ."""
    count = len(key)
    separate = np.zeros(count, np.bool_)
    for column in table.cells:
        for number in (column.value, column.removed):
            if number >= 0:
                has_value = deltas & (rows.lengths[number] >= 0)
                separate |= np.bincount(key[has_value], minlength=count)[:count] > 1
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.full(count, -1, np.int64)
    timed = deltas & (ttls >= 0)
    np.minimum.at(least, key[timed], ttls[timed])
    np.maximum.at(most, key[timed], ttls[timed])
    return separate | (most > least)


@walker
def _count_rows(data: Bytes, starts: Ints, ends: Ints, columns: Int, counts: Ints) -> None:
    """Count the rows of each payload; -1 for a malformed one."""
    for record in range(len(starts)):
        at, end = starts[record], ends[record]
        if at < 0 or at >= end or data[at] != CHANGE_TAG:
            counts[record] = -1
            continue
        at += 1
        while at < end and counts[record] >= 0:
            if end - at < _ROW_HEADER_BYTES:
                counts[record] = -1
                continue
            stop = at + _ROW_HEADER_BYTES + load_little32(data, at)
            at += _ROW_HEADER_BYTES
            if stop > end:
                counts[record] = -1
                continue
            for _ in range(columns):
                if stop - at < 4:
                    at = stop + 1
                    break
                length = np.int64(read_i32(data, at))
                at += 4
                if length > stop - at:
                    at = stop + 1
                    break
                at += max(length, np.int64(0))
            if at == stop:
                counts[record] += 1
            else:
                counts[record] = -1
        if counts[record] == 0:
            counts[record] = -1


@walker
def _locate(data: Bytes, starts: Ints, counts: Ints, offsets: Ints, lengths: Ints) -> None:
    """Store the offsets and lengths of the values of counted rows."""
    row = np.int64(0)
    for record in range(len(starts)):
        at = starts[record] + 1
        for _ in range(counts[record]):
            at += _ROW_HEADER_BYTES
            for column in range(len(offsets)):
                length = np.int64(read_i32(data, at))
                at += 4
                offsets[column, row] = at
                lengths[column, row] = max(length, np.int64(-1))
                at += max(length, np.int64(0))
            row += 1


@walker
def _read_numbers(data: Bytes, starts: Ints, lengths: Ints, out: Bytes) -> None:
    """Read big-endian signed integers of one to eight bytes; other entries of ``out`` are unchanged."""
    for row in range(len(starts)):
        length = lengths[row]
        if 1 <= length <= 8:
            value = np.int64(np.int8(data[starts[row]]))
            for i in range(1, length):
                value = (value << 8) | np.int64(data[starts[row] + i])
            out[row] = value
