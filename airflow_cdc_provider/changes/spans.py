"""Conversion between spans of a buffer, as kernels of row formats return them, and Arrow columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import walker

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_LARGEST: Final = int(np.iinfo(np.int32).max)


def column_of(
    kind: pa.DataType, data: Bytes, offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Build a string or binary array from bytes, offsets and a validity mask (None: all valid)."""
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def fixed_column(
    kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Build an array of fixed-width values from their bits."""
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), pa.py_buffer(values)])


def span_column(kind: pa.DataType, data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Build a string or binary array from spans; null where a start is negative.

    Adjacent spans are not copied.
    """
    if len(starts) and starts[0] >= 0 and ends[-1] <= _LARGEST and np.array_equal(starts[1:], ends[:-1]):
        return column_of(kind, data, np.append(starts, ends[-1]).astype(np.int32), None)
    out, offsets = gather(data, starts, ends)
    return column_of(kind, out, offsets, starts >= 0)


def binary_buffer(column: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """View a binary array as one buffer with the start and end of each value; both are -1 for a null."""
    if len(column) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    starts = offsets[:-1].astype(np.int64)
    ends = offsets[1:].astype(np.int64)
    if column.null_count:
        absent = column.is_null().to_numpy(zero_copy_only=False)
        starts[absent] = -1
        ends[absent] = -1
    return (np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)), starts, ends


def fixed_width_binary(values: npt.NDArray[np.uint8]) -> pa.Array:
    """Build a binary array from a matrix of bytes, one row per value."""
    count, width = values.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return column_of(pa.binary(), np.ascontiguousarray(values).reshape(-1), offsets, None)


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def gather(data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Copy spans into one buffer with the layout of an Arrow binary column.

    A negative start marks an absent value, for which nothing is copied.

    Returns:
        The bytes, and int32 offsets, one more than there are spans.

    Raises:
        OverflowError: The spans take 2 GiB or more.
    """
    offsets = np.empty(len(starts) + 1, np.int64)
    total = _span_offsets(starts, ends, offsets)
    if total > np.iinfo(np.int32).max:
        raise OverflowError(f"{total} bytes don't fit one Arrow binary column")
    out = np.empty(total, np.uint8)
    _copy_spans(data, starts, ends, offsets, out)
    return out, offsets.astype(np.int32)


@walker
def copy_bytes(data: Any, start: int, end: int, out: Any, at: int) -> Any:
    """Copy ``data[start:end]`` to ``out`` at an offset; return the offset after it. Checks no bounds."""
    # Unsigned indexes make this a memory copy: signed ones need a check for negative values at each byte.
    first = np.uint64(start)
    target = np.uint64(at)
    for i in range(np.uint64(end - start)):
        out[target + i] = data[first + i]
    return at + end - start


@walker
def _span_offsets(starts: Any, ends: Any, offsets: Any) -> Any:
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(starts)):
        if starts[i] >= 0:
            total += ends[i] - starts[i]
        offsets[i + 1] = total
    return total


@walker
def _copy_spans(data: Any, starts: Any, ends: Any, offsets: Any, out: Any) -> None:
    for i in range(len(starts)):
        if starts[i] >= 0:
            copy_bytes(data, starts[i], ends[i], out, offsets[i])


def without_first_bytes(values: pa.Array, count: int) -> pa.Array:
    """Return binary values without their first ``count`` bytes; each must have as many."""
    data, starts, ends = binary_buffer(values)
    return span_column(pa.binary(), data, starts + count, ends)
