"""Arrow columns of what the kernels give: bytes and offsets, spans of a buffer, and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.sources.mongodb.bson import Bytes, Ints, gather

_LARGEST: Final = int(np.iinfo(np.int32).max)


def column_of(
    kind: pa.DataType, data: Bytes, offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Make a string or binary array of bytes, offsets and which values are there (None: all)."""
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def fixed_column(
    kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    """Make an array of values of fixed width, given as their bits."""
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), pa.py_buffer(values)])


def span_column(kind: pa.DataType, data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Make a string or binary array of spans; null where a start is negative.

    Spans that follow each other without a gap are not copied.
    """
    if len(starts) and starts[0] >= 0 and ends[-1] <= _LARGEST and np.array_equal(starts[1:], ends[:-1]):
        return column_of(kind, data, np.append(starts, ends[-1]).astype(np.int32), None)
    out, offsets = gather(data, starts, ends)
    return column_of(kind, out, offsets, starts >= 0)


def binary_buffer(column: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """View a binary array as one buffer with the start and end of each value; both -1 where it is null."""
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
    """Make a binary array of a matrix of bytes, one row per value."""
    count, width = values.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return column_of(pa.binary(), np.ascontiguousarray(values).reshape(-1), offsets, None)


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
