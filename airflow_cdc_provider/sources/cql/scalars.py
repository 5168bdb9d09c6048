"""Decode values of one scalar type to an Arrow array, with one kernel call per column.

A value is ``data[start : start + length]``, null if the length is negative. An empty value is null too,
except for types of text or bytes. The lake types are in :mod:`.lake_types`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cql.programs import (
    BIGINT,
    BLOB,
    BOOLEAN,
    COUNTER,
    CUSTOM,
    DATE,
    DOUBLE,
    EMPTY,
    FLOAT,
    INT,
    SMALLINT,
    TEXT,
    TIME,
    TIMESTAMP,
    TINYINT,
)
from airflow_cdc_provider.sources.cql.scratch import Scratch, new_scratch
from airflow_cdc_provider.sources.cql.text import write_text
from airflow_cdc_provider.sources.cql.wire import read_i32, read_i64, read_signed

_MOST_BYTES: Final = (1 << 31) - 1
"""Maximum bytes of an Arrow array with 32-bit offsets."""

_WIDTHS: Final = {
    **dict.fromkeys((BOOLEAN, TINYINT), 1),
    SMALLINT: 2,
    **dict.fromkeys((INT, DATE, FLOAT), 4),
    **dict.fromkeys((BIGINT, TIME, DOUBLE, TIMESTAMP), 8),
}
_MAX_MILLISECONDS: Final = ((1 << 63) - 1) // 1000
_TEXT_BYTES: Final = 36
"""Bytes of a uuid, the longest of the common values that become text."""


def scalar_array(
    op: int, lake_type: pa.DataType, data: Bytes, starts: Ints, lengths: Ints, where: str
) -> pa.Array:
    """Decode values to an Arrow array.

    Args:
        op: Op of their CQL type (:mod:`.programs`).
        lake_type: Type of the array.
        data: Bytes with the values.
        starts: Offset of each value.
        lengths: Their lengths, -1 for null.
        where: The column, for errors.

    Returns:
        The array.

    Raises:
        CorruptInput: Bytes are not a valid value of the type.
        ConfigurationError: A value can't be represented exactly, or the array would exceed 2 GiB.
    """
    if op in (TEXT, BLOB, CUSTOM):
        return _array(lake_type, lengths >= 0, *_copied(data, starts, lengths, where))
    valid = lengths > 0
    if op == EMPTY:
        return pa.nulls(len(starts), lake_type)
    if op in _WIDTHS:
        return _array(lake_type, valid, _numbers(op, data, starts, lengths, where))
    if op == COUNTER:
        totals = np.empty(len(starts), np.int64)
        _check(_read_counters(data, starts, lengths, totals), where)
        return _array(lake_type, valid, totals)
    return _array(lake_type, valid, *_texts(op, data, starts, lengths, where))


def bitmap(valid: Flags) -> pa.Buffer | None:
    """Pack flags to Arrow's validity bitmap, None if all are set."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _array(lake_type: pa.DataType, valid: Flags, *buffers: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(lake_type, len(valid), [bitmap(valid), *map(pa.py_buffer, buffers)])


def _check(malformed: int, where: str) -> None:
    if malformed >= 0:
        raise CorruptInput(f"{where} can't be decoded: value {malformed} of a batch violates its format")


def check_size(size: int, where: str) -> None:
    """Reject an array that exceeds 32-bit offsets."""
    if size > _MOST_BYTES:
        raise ConfigurationError(
            f"{where} is too large for one batch",
            expected="less than 2 GiB in a column",
            remedy="use smaller batches (spark.sql.execution.arrow.maxRecordsPerBatch)",
        )


def _numbers(op: int, data: Bytes, starts: Ints, lengths: Ints, where: str) -> npt.NDArray[Any]:
    """Decode values of fixed size to Arrow's representation."""
    width = _WIDTHS[op]
    numbers: npt.NDArray[Any] = np.empty(len(starts), np.int64 if width == 8 else np.int32)
    _check(_read_numbers(data, starts, lengths, np.int64(width), numbers), where)
    if op == TIMESTAMP:
        return _microseconds(numbers, where)
    if op == DATE:  # unsigned, with 1970 at the center
        return numbers ^ np.int32(-(1 << 31))
    return np.packbits(numbers != 0, bitorder="little") if op == BOOLEAN else numbers


def _microseconds(milliseconds: Ints, where: str) -> Ints:
    if ((milliseconds > _MAX_MILLISECONDS) | (milliseconds < -_MAX_MILLISECONDS)).any():
        raise ConfigurationError(
            f"{where} has a timestamp out of range of the lake's type",
            expected="at most 292,277 years before or after 1970",
            remedy="set source.advanced.timestamps to milliseconds and rebuild the mirror",
        )
    return milliseconds * 1000


def _copied(data: Bytes, starts: Ints, lengths: Ints, where: str) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return offsets and bytes of values that are copied verbatim."""
    size = int(np.maximum(lengths, 0).sum())
    check_size(size, where)
    offsets, out = np.empty(len(starts) + 1, np.int32), np.empty(size, np.uint8)
    _copy_values(data, starts, lengths, offsets, out)
    return offsets, out


def _texts(
    op: int, data: Bytes, starts: Ints, lengths: Ints, where: str
) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return offsets and bytes of values that are formatted as text."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    out = np.empty(_TEXT_BYTES * len(starts), np.uint8)
    scratch = new_scratch(int(lengths.max(initial=0)))
    done = _write_texts(np.int64(op), data, starts, lengths, scratch, 0, offsets, out)
    while 0 <= done < len(starts):
        longer = np.empty(2 * len(out) + int(offsets[done + 1]), np.uint8)
        longer[: offsets[done]] = out[: offsets[done]]
        out = longer
        done = _write_texts(np.int64(op), data, starts, lengths, scratch, done, offsets, out)
    _check(-1 - done, where)
    check_size(int(offsets[-1]), where)
    return offsets.astype(np.int32), out[: offsets[-1]]


@walker
def _read_numbers(data: Bytes, starts: Ints, lengths: Ints, width: Int, out: npt.NDArray[Any]) -> Int:
    """Read big-endian numbers of one width; return the index of the first malformed value, or -1."""
    for i in range(len(starts)):
        if lengths[i] == width:
            if width == 8:
                out[i] = read_i64(data, starts[i])
            elif width == 4:
                out[i] = read_i32(data, starts[i])
            else:
                out[i] = read_signed(data, starts[i], width)
        elif lengths[i] <= 0:
            out[i] = 0
        else:
            return i
    return -1


@walker
def _read_counters(data: Bytes, starts: Ints, lengths: Ints, out: Ints) -> Int:
    """Add up counters: plain numbers, or contexts of shards; returns as :func:`_read_numbers`."""
    for i in range(len(starts)):
        at, end = starts[i], starts[i] + lengths[i]
        out[i] = 0
        if lengths[i] <= 0:
            continue
        if lengths[i] == 8:
            out[i] = read_i64(data, at)
            continue
        if lengths[i] < 2:
            return i
        at += 2 + 2 * abs(read_signed(data, at, np.int64(2)))
        if at > end or (end - at) % 32:
            return i
        while at < end:
            out[i] += read_i64(data, at + 24)
            at += 32
    return -1


@walker
def _copy_values(
    data: Bytes, starts: Ints, lengths: Ints, offsets: npt.NDArray[np.int32], out: Bytes
) -> None:
    at = np.int64(0)
    for i in range(len(starts)):
        offsets[i] = at
        if lengths[i] > 0:
            at = copy(data, starts[i], lengths[i], out, at)
    offsets[len(starts)] = at


@walker
def _write_texts(
    op: Int, data: Bytes, starts: Ints, lengths: Ints, scratch: Scratch, first: Int, offsets: Ints, out: Bytes
) -> Int:
    """Format values as text, from number ``first`` until all are done or ``out`` is full.

    Returns:
        Number of the first value that is not done, its end already in ``offsets``; for a malformed value, -1
        minus its number.
    """
    at = offsets[first]
    for i in range(first, len(starts)):
        if lengths[i] > 0:
            at = write_text(op, data, starts[i], starts[i] + lengths[i], scratch, out, at)
            if at < 0:
                return -1 - i
        offsets[i + 1] = at
        if at > len(out):
            return i
    return len(starts)
