"""Rows of Vitess walked in place by kernels: from messages to the places of each column's values.

Layouts (``protocol/binlogdata.proto``, ``protocol/query.proto``)::

    RowChange  1 before: Row | 2 after: Row | 3 data_columns: Bitmap | 4 json_partial_values: Bitmap
    Bitmap     1 count: varint | 2 cols: bytes, bit i in byte i / 8, lowest first
    Row        1 lengths: sint64, packed | 2 values: bytes, all values back to back

``lengths[i]`` is how many bytes of ``values`` belong to column i; a negative one is NULL and takes none.

What is guaranteed: no read outside a message, whatever its bytes say. A message is sound or has one of
:data:`FAULTS`; of one that isn't nothing is shown. A row must have used up its values at its last length, and
no message may hold a part twice.

Places are those of the buffer that was walked; of what isn't there they are :data:`NULL` or :data:`UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.sources.vitess.protobuf import LEN, VARINT, next_field, read_varint

NULL: Final = -1
"""Start and end of a value that is NULL, and of a row or bitmap that isn't there."""

UNKNOWN: Final = -2
"""Start and end of a value that was not in the binlog (``binlog_row_image`` other than ``full``)."""

FAULTS: Final[Sequence[str]] = (
    "",
    "a field leaves its message",
    "a part of a change stands there twice",
    "a length leaves the row's values",
    "the row's values are longer than their lengths tell",
    "a bitmap is shorter than its count",
)
"""Texts of fault numbers, 0 for a sound message."""

_FIELD: Final = 1
_TWICE: Final = 2
_LENGTH: Final = 3
_LEFT_OVER: Final = 4
_BITMAP: Final = 5

_BEFORE: Final = 0
_AFTER: Final = 1
_DATA_COLUMNS: Final = 2
_JSON_PARTIAL: Final = 3


@dataclass(frozen=True, eq=False)
class RowSpans:
    """Where ``Row`` messages stand; both :data:`NULL` where there is none."""

    starts: Ints
    ends: Ints


@dataclass(frozen=True, eq=False)
class Bitmaps:
    """Bitmaps of messages, one per message.

    Args:
        starts: First byte of the bits, :data:`NULL` where the message has no bitmap.
        counts: How many bits count.
    """

    starts: Ints
    counts: Ints

    @property
    def present(self) -> np.ndarray:
        """Whether a message has one."""
        present: np.ndarray = self.starts >= 0
        return present


@dataclass(frozen=True, eq=False)
class Changes:
    """What ``RowChange`` messages hold.

    An insert has only an after, a delete only a before, an update both.

    Args:
        before: Rows before.
        after: Rows after.
        data_columns: Which columns of ``after`` were in the binlog, if not all.
        json_partial: Which JSON columns of ``after``, counted among those, hold an expression over the old
            value, if any.
        faults: A number of :data:`FAULTS` per message.
    """

    before: RowSpans
    after: RowSpans
    data_columns: Bitmaps
    json_partial: Bitmaps
    faults: Ints


@dataclass(frozen=True, eq=False)
class Values:
    """Where the values of rows stand.

    Args:
        starts: Matrix of columns by rows: first byte of each value, :data:`NULL` or :data:`UNKNOWN`.
        ends: Likewise, the byte after each.
        counts: How many values each row has; :data:`NULL` where there is no row, or it is broken. A row with
            another number than columns were asked for shows only NULL.
        faults: A number of :data:`FAULTS` per row.
    """

    starts: Ints
    ends: Ints
    counts: Ints
    faults: Ints


def read_changes(data: Bytes, starts: Ints, ends: Ints) -> Changes:
    """Find the parts of ``RowChange`` messages.

    Args:
        data: A buffer.
        starts: First byte of each message in it; negative for none, which gives nothing.
        ends: Byte after each.
    """
    count = len(starts)
    firsts = np.full((4, count), NULL, np.int64)
    lasts = np.full((4, count), NULL, np.int64)
    bits = np.zeros((2, count), np.int64)
    faults = np.zeros(count, np.int64)
    _read_changes(data, starts, ends, firsts, lasts, bits, faults)
    return Changes(
        RowSpans(firsts[_BEFORE], lasts[_BEFORE]),
        RowSpans(firsts[_AFTER], lasts[_AFTER]),
        Bitmaps(firsts[_DATA_COLUMNS], bits[0]),
        Bitmaps(firsts[_JSON_PARTIAL], bits[1]),
        faults,
    )


def read_rows(data: Bytes, starts: Ints, ends: Ints, columns: int) -> Values:
    """Find the values of ``Row`` messages.

    Args:
        data: A buffer.
        starts: First byte of each message in it; negative for none, all whose values are NULL.
        ends: Byte after each.
        columns: How many values a row must have.
    """
    count = len(starts)
    firsts = np.full((columns, count), NULL, np.int64)
    lasts = np.full((columns, count), NULL, np.int64)
    counts = np.full(count, NULL, np.int64)
    faults = np.zeros(count, np.int64)
    _read_rows(data, starts, ends, firsts, lasts, counts, faults)
    return Values(firsts, lasts, counts, faults)


def mark_unknown(data: Bytes, values: Values, data_columns: Bitmaps) -> Ints:
    """Mark, in place, the values that were not in the binlog.

    Args:
        data: The buffer that the bitmaps stand in.
        values: Of the rows after, from :func:`read_rows`.
        data_columns: Of the same changes.

    Returns:
        How many values of each row are unknown. Where a bitmap has another number of bits than the row has
        columns, all are.
    """
    unknown = np.zeros(values.starts.shape[1], np.int64)
    if data_columns.present.any():
        _mark_unknown(data, data_columns.starts, data_columns.counts, values.starts, values.ends, unknown)
    return unknown


def bit_of_each(data: Bytes, bitmaps: Bitmaps, number: int) -> np.ndarray:
    """Tell of each bitmap whether it has a bit; not, where there is no bitmap or it is shorter."""
    out = np.zeros(len(bitmaps.starts), np.bool_)
    if bitmaps.present.any():
        _bit_of_each(data, bitmaps.starts, bitmaps.counts, number, out)
    return out


@walker
def _read_changes(data: Any, starts: Any, ends: Any, firsts: Any, lasts: Any, bits: Any, faults: Any) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        fault = _read_change(data, starts[row], ends[row], firsts[:, row], lasts[:, row])
        for number in range(2):
            if fault == 0 and firsts[_DATA_COLUMNS + number, row] >= 0:
                fault, first, count = _read_bitmap(
                    data, firsts[_DATA_COLUMNS + number, row], lasts[_DATA_COLUMNS + number, row]
                )
                firsts[_DATA_COLUMNS + number, row] = first
                bits[number, row] = count
        if fault != 0:
            firsts[:, row] = NULL
            lasts[:, row] = NULL
            faults[row] = fault


@walker
def _read_change(data: Any, at: Any, end: Any, firsts: Any, lasts: Any) -> Any:
    """Find the four parts of a message; return a fault."""
    if end > len(data):
        return _FIELD
    while at < end:
        number, kind, _, content, at = next_field(data, at, end)
        if number <= 0:
            return _FIELD
        if kind == LEN and number <= 4:
            if firsts[number - 1] >= 0:
                return _TWICE
            firsts[number - 1] = content
            lasts[number - 1] = at
    return 0


@walker
def _read_bitmap(data: Any, at: Any, end: Any) -> Any:
    """Find the bits of a bitmap: fault, first byte, how many."""
    count = np.int64(0)
    # Without ``cols`` the bits are no bytes, which stand anywhere.
    first = np.int64(at)
    last = np.int64(at)
    while at < end:
        number, kind, value, content, at = next_field(data, at, end)
        if number <= 0:
            return _FIELD, np.int64(NULL), np.int64(0)
        if number == 1 and kind == VARINT:
            count = value
        elif number == 2 and kind == LEN:
            first = content
            last = at
    if count < 0 or (count >> 3) + np.int64((count & 7) != 0) > last - first:
        return _BITMAP, np.int64(NULL), np.int64(0)
    return 0, first, count


@walker
def _read_rows(data: Any, starts: Any, ends: Any, firsts: Any, lasts: Any, counts: Any, faults: Any) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        count, fault = _read_row(data, starts[row], ends[row], firsts[:, row], lasts[:, row])
        if fault != 0:
            faults[row] = fault
        else:
            counts[row] = count
        if fault != 0 or count != len(firsts):
            firsts[:, row] = NULL
            lasts[:, row] = NULL


@walker
def _read_row(data: Any, start: Any, end: Any, firsts: Any, lasts: Any) -> Any:
    """Find a row's values; return how many it has, and a fault."""
    nothing = np.int64(0)
    if end > len(data):
        return nothing, _FIELD
    # Values may stand before lengths, so they are found first.
    value = np.int64(0)
    limit = np.int64(0)
    seen = False
    at = np.int64(start)
    while at < end:
        number, kind, _, content, at = next_field(data, at, end)
        if number <= 0:
            return nothing, _FIELD
        if number == 2 and kind == LEN:
            if seen:
                return nothing, _TWICE
            seen = True
            value = content
            limit = at
    count = np.int64(0)
    at = np.int64(start)
    while at < end:
        number, kind, bits, content, at = next_field(data, at, end)
        if number != 1 or kind not in (VARINT, LEN):
            continue
        while content < at:
            if kind == LEN:
                bits, content = read_varint(data, content, at)
                if content < 0:
                    return nothing, _FIELD
            else:
                content = at
            length = np.int64(np.uint64(bits) >> np.uint64(1)) ^ -(bits & 1)
            if length > limit - value:
                return nothing, _LENGTH
            if length >= 0:
                if count < len(firsts):
                    firsts[count] = value
                    lasts[count] = value + length
                value += length
            count += 1
    if value != limit:
        return nothing, _LEFT_OVER
    return count, 0


@walker
def _mark_unknown(data: Any, starts: Any, counts: Any, firsts: Any, lasts: Any, unknown: Any) -> None:
    columns = len(firsts)
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        for column in range(columns):
            known = counts[row] == columns and (data[starts[row] + (column >> 3)] >> (column & 7)) & 1
            if not known:
                firsts[column, row] = UNKNOWN
                lasts[column, row] = UNKNOWN
                unknown[row] += 1


@walker
def _bit_of_each(data: Any, starts: Any, counts: Any, number: Any, out: Any) -> None:
    for row in range(len(starts)):
        if starts[row] >= 0 and number < counts[row]:
            out[row] = (data[starts[row] + (number >> 3)] >> (number & 7)) & 1 != 0
