"""Splits pages of a log into changes.

A page is a sequence of rows, each with the values of the query's columns: an int32 length (-1: null) and that
many bytes. Rows of a stream are ordered by ``cdc$time`` and ``cdc$batch_seq_no``; rows of the same time are
one change, whose last row has ``cdc$end_of_batch``. A change may continue in the next page.

The payload of a change::

    byte 'L', then per row: u32 little-endian length of the row, the row's bytes in the page
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cql.wire import next_part

PAYLOAD_TAG: Final = ord("L")
_TIME, _OPERATION, _END_OF_BATCH = 1, 3, 5
_TIME_BYTES: Final = 16
_LEAST_CODE, _GREATEST_CODE = -4, 9


class PageChanges(NamedTuple):
    """The changes of a page.

    ``payloads``      The concatenated payloads.
    ``ends``          The end of each payload.
    ``times``         16 bytes each: ``cdc$time`` in a byte order that sorts as the database does.
    ``complete``         Whether the last row of each change has ``cdc$end_of_batch``.
    ``unknown_code``  The first unknown operation code of each change, else 0.
    ``rows``          Number of rows of each change.
    """

    payloads: Bytes
    ends: Ints
    times: Bytes
    complete: Flags
    unknown_code: npt.NDArray[np.int8]
    rows: Ints


class MalformedPage(ValueError):
    """A page doesn't match the columns of its query."""


def page_changes(data: bytes, rows: int, columns: int, *, more: bool) -> tuple[PageChanges, int, int]:
    """Split a page into changes.

    Args:
        data: Its bytes, preceded by the rest of the previous page.
        rows: Number of rows in it.
        columns: Number of columns of the query.
        more: Whether another page follows: then an incomplete last change is left for it.

    Returns:
        The changes; the offset of the rest in ``data``; and the number of rows in the rest.

    Raises:
        MalformedPage: The page is malformed.
    """
    if 4 * rows * columns > len(data):
        raise MalformedPage(f"{rows} rows of a page of {len(data)} bytes")
    content = np.frombuffer(data, np.uint8)
    found = PageChanges(
        np.empty(len(data) + 5 * rows, np.uint8),
        np.zeros(rows, np.int64),
        np.zeros((rows, _TIME_BYTES), np.uint8),
        np.zeros(rows, np.bool_),
        np.zeros(rows, np.int8),
        np.zeros(rows, np.int64),
    )
    count, rest, rest_rows, broken = _split(content, rows, columns, more, found)
    if broken >= 0:
        raise MalformedPage(f"row {broken} of a page")
    size = int(found.ends[count - 1]) if count else 0
    changes = PageChanges(
        found.payloads[:size],
        found.ends[:count],
        found.times[:count],
        found.complete[:count],
        found.unknown_code[:count],
        found.rows[:count],
    )
    return changes, int(rest), int(rest_rows)


@walker
def _split(data: Bytes, rows: Int, columns: Int, more: Int, found: Int) -> tuple[Int, Int, Int, Int]:
    """Fill ``found``; return the number of changes, offset and rows of the rest, a malformed row or -1."""
    size = np.int64(len(data))
    at = np.int64(0)
    count = np.int64(0)  # complete changes
    out = np.int64(0)
    change_start = np.int64(0)  # start of the unfinished change
    change_row = np.int64(0)
    for row in range(rows):
        start = at
        fresh = row == change_row
        end_of_batch = False
        code = np.int64(0)
        time_at = np.int64(0)
        for column in range(columns):
            begin, length, after = next_part(data, at, size)
            if after < 0:
                return count, change_start, rows - change_row, np.int64(row)
            if column == _TIME:
                if length != _TIME_BYTES:
                    return count, change_start, rows - change_row, np.int64(row)
                time_at = begin
            elif column == _OPERATION:
                if length != 1:
                    return count, change_start, rows - change_row, np.int64(row)
                code = np.int64(np.int8(data[begin]))
            elif column == _END_OF_BATCH:
                end_of_batch = length == 1 and data[begin] != 0
            at = after
        if not fresh and not _same_time(data, time_at, found.times, count):
            # The previous change has no end.
            found.ends[count] = out
            found.rows[count] = row - change_row
            count += 1
            change_start, change_row, fresh = start, np.int64(row), True
        if fresh:
            _sortable(data, time_at, found.times, count)
            found.payloads[out] = PAYLOAD_TAG
            out += 1
        length = at - start
        for i in range(4):
            found.payloads[out + i] = (length >> (8 * i)) & 0xFF
        out = copy(data, start, at - start, found.payloads, out + 4)
        if (code < _LEAST_CODE or code > _GREATEST_CODE or code in (-2, -1)) and found.unknown_code[
            count
        ] == 0:
            found.unknown_code[count] = code
        if end_of_batch:
            found.complete[count] = True
            found.ends[count] = out
            found.rows[count] = row + 1 - change_row
            count += 1
            change_start, change_row = at, np.int64(row + 1)
    if at != size:
        return count, change_start, rows - change_row, np.int64(rows)
    if change_row < rows and not more:
        found.ends[count] = out
        found.rows[count] = rows - change_row
        count += 1
        change_start, change_row = at, np.int64(rows)
    elif change_row < rows:
        found.unknown_code[count] = 0
    return count, change_start, rows - change_row, np.int64(-1)


@walker
def _sortable(data: Bytes, at: Int, times: Ints, row: Int) -> None:
    """Write a timeuuid in a byte order that sorts as the database does."""
    times[row, 0] = data[at + 6] & 0x0F
    times[row, 1] = data[at + 7]
    times[row, 2] = data[at + 4]
    times[row, 3] = data[at + 5]
    for i in range(4):
        times[row, 4 + i] = data[at + i]
    for i in range(8, 16):
        times[row, i] = data[at + i] ^ 0x80


@walker
def _same_time(data: Bytes, at: Int, times: Ints, row: Int) -> bool:
    """Return whether a row's time is that of the unfinished change."""
    for i in range(8, 16):
        if times[row, i] != data[at + i] ^ 0x80:
            return False
    for i in range(4):
        if times[row, 4 + i] != data[at + i]:
            return False
    return (
        times[row, 0] == data[at + 6] & 0x0F
        and times[row, 1] == data[at + 7]
        and times[row, 2] == data[at + 4]
        and times[row, 3] == data[at + 5]
    )
