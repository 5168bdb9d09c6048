"""Decode varint, decimal and duration from the bytes that the database stores to typed Arrow columns.

======== ============================================== ========================================
CQL      stored                                         here
======== ============================================== ========================================
varint   big-endian two's complement number             the same in the fewest bytes, like Java's
                                                        ``BigInteger.toByteArray``
decimal  int32 scale, then such a number                scale (int32) and number
duration three zig-zag vints: months, days, nanoseconds int32, int32, int64
======== ============================================== ========================================

An empty value is null.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import BinaryParts, binary_parts, span_column
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cql.wire import read_i32, read_svint

_SCALE_BYTES: Final = 4


def integers(column: pa.Array) -> pa.Array:
    """Convert varints (binary) to binary numbers of the fewest bytes."""
    return _shortest(binary_parts(column), 0)


def low_64_bits(column: pa.Array) -> pa.Array:
    """Convert varints (binary) to int64 by their low 64 bits, like Java's ``BigInteger.longValue``."""
    parts = binary_parts(column)
    valid = parts.valid & (parts.offsets[1:] > parts.offsets[:-1])
    numbers = np.zeros(len(valid), np.int64)
    _read_low_bits(parts.data, parts.offsets, valid, numbers)
    return pa.array(numbers, mask=~valid)


def decimals(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Split decimals (binary) into scales (int32) and unscaled numbers (binary).

    Raises:
        CorruptInput: A value has no bytes after its scale.
    """
    parts = binary_parts(column)
    count = len(parts.valid)
    scales = np.zeros(count, np.int32)
    lengths = parts.offsets[1:] - parts.offsets[:-1]
    broken = parts.valid & (lengths > 0) & (lengths <= _SCALE_BYTES)
    if broken.any():
        raise CorruptInput(f"value {int(broken.argmax())} of a batch is not a decimal")
    valid = parts.valid & (lengths > 0)
    _read_scales(parts.data, parts.offsets, valid, scales)
    return pa.array(scales, mask=~valid), _shortest(parts, _SCALE_BYTES)


def durations(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Split durations (binary) into months (int32), days (int32) and nanoseconds (int64).

    Raises:
        CorruptInput: A value isn't three vints.
    """
    parts = binary_parts(column)
    valid = parts.valid & (parts.offsets[1:] > parts.offsets[:-1])
    numbers = np.zeros((3, len(valid)), np.int64)
    broken = _read_durations(parts.data, parts.offsets, valid, numbers)
    if broken >= 0:
        raise CorruptInput(f"value {broken} of a batch is not a duration")
    months, days = (pa.array(numbers[i].astype(np.int32), mask=~valid) for i in range(2))
    return months, days, pa.array(numbers[2], mask=~valid)


def _shortest(parts: BinaryParts, skipped: int) -> pa.Array:
    """Copy numbers without a prefix of ``skipped`` bytes and without redundant sign bytes."""
    valid = parts.valid & (parts.offsets[1:] - parts.offsets[:-1] > skipped)
    starts = np.full(len(valid), -1, np.int64)
    _find_starts(parts.data, parts.offsets, valid, np.int64(skipped), starts)
    return span_column(pa.binary(), parts.data, starts, parts.offsets[1:])


@walker
def _read_low_bits(data: Bytes, value_offsets: Ints, valid: Flags, numbers: Ints) -> None:
    for row in range(len(valid)):
        if valid[row]:
            start, end = value_offsets[row], value_offsets[row + 1]
            number = np.int64(-1) if data[start] >= 128 else np.int64(0)
            for at in range(max(start, end - 8), end):
                number = (number << 8) | np.int64(data[at])
            numbers[row] = number


@walker
def _find_starts(data: Bytes, value_offsets: Ints, valid: Flags, skipped: Int, starts: Ints) -> None:
    for row in range(len(valid)):
        if valid[row]:
            start, end = value_offsets[row] + skipped, value_offsets[row + 1]
            while start + 1 < end and (
                (data[start] == 0 and data[start + 1] < 128)
                or (data[start] == 255 and data[start + 1] >= 128)
            ):
                start += 1
            starts[row] = start


@walker
def _read_scales(data: Bytes, value_offsets: Ints, valid: Flags, scales: npt.NDArray[np.int32]) -> None:
    for row in range(len(valid)):
        if valid[row]:
            scales[row] = read_i32(data, value_offsets[row])


@walker
def _read_durations(data: Bytes, value_offsets: Ints, valid: Flags, numbers: Ints) -> Int:
    for row in range(len(valid)):
        if valid[row]:
            at, end = value_offsets[row], value_offsets[row + 1]
            for part in range(3):
                if at >= 0:
                    numbers[part, row], at = read_svint(data, at, end)
            if at != end:
                return np.int64(row)
    return np.int64(-1)
