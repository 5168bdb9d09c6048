"""Kernels that parse rows of Vitess in place: from messages to the byte ranges of each column's values.

Layouts (``protocol/binlogdata.proto``, ``protocol/query.proto``)::

    RowChange  1 before: Row | 2 after: Row | 3 data_columns: Bitmap | 4 json_partial_values: Bitmap
    Bitmap     1 count: varint | 2 cols: bytes, bit i in byte i / 8, lowest first
    Row        1 lengths: sint64, packed | 2 values: bytes, all values back to back

``lengths[i]`` is the number of bytes of column i in ``values``; a negative length means NULL and no bytes.

Kernels never read outside a message, even if its bytes are invalid. A message is either valid or has one of
:data:`FAULTS`, and then has no results. The lengths of a row must add up to its values, and no message may
contain a part twice.

Offsets refer to the input buffer; absent values have :data:`NULL` or :data:`UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import LEN, VARINT, next_field, read_varint

NULL: Final = -1
"""Start and end of a NULL value, and of an absent row or bitmap."""

UNKNOWN: Final = -2
"""Start and end of a value that the binlog omits (``binlog_row_image`` other than ``full``)."""

FAULTS: Final[Sequence[str]] = (
    "",
    "a field leaves its message",
    "a part of a change occurs twice",
    "a length exceeds the row's values",
    "the row's values are longer than the sum of their lengths",
    "a bitmap is shorter than its count",
)
"""Texts of fault numbers; 0 for a valid message."""

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
    """Byte ranges of ``Row`` messages; :data:`NULL` for absent ones."""

    starts: Ints
    ends: Ints


@dataclass(frozen=True, eq=False)
class Bitmaps:
    """Bitmaps of messages, one per message.

    Args:
        starts: First byte of the bits, :data:`NULL` where the message has no bitmap.
        counts: Number of bits.
    """

    starts: Ints
    counts: Ints

    @property
    def present(self) -> np.ndarray:
        """Which messages have a bitmap."""
        present: np.ndarray = self.starts >= 0
        return present


@dataclass(frozen=True, eq=False)
class Changes:
    """Contents of ``RowChange`` messages.

    An insert has only an after-image, a delete only a before-image, an update both.

    Args:
        before: Before-images.
        after: After-images.
        data_columns: Columns of ``after`` in the binlog, if not all.
        json_partial: JSON columns of ``after``, counted among JSON columns, that contain a partial update of
            the old value, if any.
        faults: Index in :data:`FAULTS` per message.
    """

    before: RowSpans
    after: RowSpans
    data_columns: Bitmaps
    json_partial: Bitmaps
    faults: Ints


@dataclass(frozen=True, eq=False)
class Values:
    """Byte ranges of the values of rows.

    Args:
        starts: Matrix of columns by rows: first byte of each value, :data:`NULL` or :data:`UNKNOWN`.
        ends: Likewise, the byte after each.
        counts: Number of values of each row; :data:`NULL` for an absent or invalid row. If it isn't the
            requested number of columns, all values are NULL.
        faults: Index in :data:`FAULTS` per row.
    """

    starts: Ints
    ends: Ints
    counts: Ints
    faults: Ints


def read_changes(data: Bytes, starts: Ints, ends: Ints) -> Changes:
    """Find the parts of ``RowChange`` messages.

    Args:
        data: A buffer.
        starts: First byte of each message in it; negative for none.
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
        starts: First byte of each message in it; negative for none: then all values are NULL.
        ends: Byte after each.
        columns: Expected number of values.
    """
    count = len(starts)
    firsts = np.full((columns, count), NULL, np.int64)
    lasts = np.full((columns, count), NULL, np.int64)
    counts = np.full(count, NULL, np.int64)
    faults = np.zeros(count, np.int64)
    _read_rows(data, starts, ends, firsts, lasts, counts, faults)
    return Values(firsts, lasts, counts, faults)


def mark_unknown(data: Bytes, values: Values, data_columns: Bitmaps) -> Ints:
    """Mark, in place, the values that the binlog omits.

    Args:
        data: The buffer of the bitmaps.
        values: Values of the after-images, from :func:`read_rows`.
        data_columns: Bitmaps of the same changes.

    Returns:
        The number of unknown values of each row; all, if the number of bits isn't the number of columns.
    """
    unknown = np.zeros(values.starts.shape[1], np.int64)
    if data_columns.present.any():
        _mark_unknown(data, data_columns.starts, data_columns.counts, values.starts, values.ends, unknown)
    return unknown


def bit_of_each(data: Bytes, bitmaps: Bitmaps, number: int) -> np.ndarray:
    """Return a bit of each bitmap; False if there is no bitmap or it is shorter."""
    out = np.zeros(len(bitmaps.starts), np.bool_)
    if bitmaps.present.any():
        _bit_of_each(data, bitmaps.starts, bitmaps.counts, number, out)
    return out


@walker
def _read_changes(
    data: Bytes, starts: Ints, ends: Ints, firsts: Ints, lasts: Ints, bits: Ints, faults: Ints
) -> None:
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
def _read_change(data: Bytes, at: Int, end: Int, firsts: Ints, lasts: Ints) -> Int:
    """Find the four parts of a message; return a fault or 0."""
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
def _read_bitmap(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int]:
    """Find the bits of a bitmap; return a fault or 0, the first byte, and the number of bits."""
    count = np.int64(0)
    # Without ``cols`` there are no bytes, so any offset is valid.
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
def _read_rows(
    data: Bytes, starts: Ints, ends: Ints, firsts: Ints, lasts: Ints, counts: Ints, faults: Ints
) -> None:
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
def _read_row(data: Bytes, start: Int, end: Int, firsts: Ints, lasts: Ints) -> tuple[Int, Int]:
    """Find a row's values; return their number, and a fault or 0."""
    nothing = np.int64(0)
    if end > len(data):
        return nothing, _FIELD
    # ``values`` may precede ``lengths``, so find it first.
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
def _mark_unknown(data: Bytes, starts: Ints, counts: Ints, firsts: Ints, lasts: Ints, unknown: Ints) -> None:
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
def _bit_of_each(data: Bytes, starts: Ints, counts: Ints, number: Int, out: Flags) -> None:
    for row in range(len(starts)):
        if starts[row] >= 0 and number < counts[row]:
            out[row] = (data[starts[row] + (number >> 3)] >> (number & 7)) & 1 != 0
