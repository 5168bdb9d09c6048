"""Arrow's binary and string arrays as the flat arrays that kernels walk, and back.

A kernel gets the bytes of an array and either the offsets and validity of its values (:func:`binary_parts`,
:func:`binary_slices`) or spans, whose start is -1 for a null (:func:`binary_buffer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker

_LARGEST: Final = int(np.iinfo(np.int32).max)


class BinaryParts(NamedTuple):
    """The buffers of a binary array: value ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: Bytes
    offsets: Ints
    valid: Flags


def binary_parts(array: pa.Array | pa.ChunkedArray) -> BinaryParts:
    """View a binary or string array without copying its bytes, but the chunks of a chunked one are combined.

    Returns:
        Its bytes, which are read-only, offsets and validity.
    """
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    _, offsets, content = array.buffers()
    # Kernels are compiled per type, and the type includes whether an array is writable.
    data = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
    data.flags.writeable = False
    if offsets is None or len(array) == 0:
        return BinaryParts(data, np.zeros(1, np.int64), np.empty(0, np.bool_))
    kind = np.int64 if _is_large(array.type) else np.int32
    places = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return BinaryParts(data, places.astype(np.int64, copy=False), valid)


def binary_slices(array: pa.Array | pa.ChunkedArray) -> tuple[Bytes, Ints, Ints, Flags]:
    """View an array like :func:`binary_parts`, with the start and end of each value instead of offsets."""
    data, offsets, valid = binary_parts(array)
    return data, offsets[:-1], offsets[1:], valid


def binary_buffer(array: pa.Array | pa.ChunkedArray) -> tuple[Bytes, Ints, Ints]:
    """View an array like :func:`binary_slices`; start and end are -1 for a null."""
    data, starts, ends, valid = binary_slices(array)
    return data, np.where(valid, starts, -1), np.where(valid, ends, -1)


def column_of(
    kind: pa.DataType, data: Bytes, offsets: npt.NDArray[Any], valid: Flags | None = None
) -> pa.Array:
    """Build a binary or string array without copying its bytes.

    Args:
        kind: Its type.
        data: The bytes; those after the last offset are ignored.
        offsets: One more than values.
        valid: Which values are not null; None: all.

    Raises:
        OverflowError: The bytes take 2 GiB or more, and the type isn't large.
    """
    if not _is_large(kind) and offsets[-1] > _LARGEST:
        raise OverflowError(f"{offsets[-1]} bytes don't fit one Arrow column of type {kind}")
    places = offsets.astype(np.int64 if _is_large(kind) else np.int32, copy=False)
    buffers = [_bitmap(valid), pa.py_buffer(places), pa.py_buffer(data[: offsets[-1]])]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def text_array(
    out: Bytes, offsets: Ints, valid: Flags | None, *, binary: bool = False, wide: bool = False
) -> pa.Array:
    """Build an array like :func:`column_of`; its type is the large one above 2 GiB, or if ``wide``."""
    if wide or offsets[-1] > _LARGEST:
        return column_of(pa.large_binary() if binary else pa.large_utf8(), out, offsets, valid)
    return column_of(pa.binary() if binary else pa.utf8(), out, offsets, valid)


def fixed_column(kind: pa.DataType, values: npt.NDArray[Any], valid: Flags | None) -> pa.Array:
    """Build an array of fixed-width values from their bits."""
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), pa.py_buffer(values)])


def fixed_width_binary(values: Bytes) -> pa.Array:
    """Build a binary array from a matrix of bytes, one row per value."""
    count, width = values.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return column_of(pa.binary(), np.ascontiguousarray(values).reshape(-1), offsets)


def span_column(kind: pa.DataType, data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Build a binary or string array from spans; null where a start is negative.

    Adjacent spans are not copied.
    """
    if len(starts) and starts[0] >= 0 and ends[-1] <= _LARGEST and np.array_equal(starts[1:], ends[:-1]):
        return column_of(kind, data, np.append(starts, ends[-1]))
    return column_of(kind, *gather(data, starts, ends), starts >= 0)


def without_first_bytes(values: pa.Array, count: int) -> pa.Array:
    """Return binary values without their first ``count`` bytes; each must have as many."""
    data, starts, ends = binary_buffer(values)
    return span_column(pa.binary(), data, starts + count, ends)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def gather(data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Copy spans into one buffer with the layout of an Arrow binary array.

    A negative start marks an absent value, for which nothing is copied.

    Returns:
        The bytes, and int32 offsets, one more than there are spans.

    Raises:
        OverflowError: The spans take 2 GiB or more.
    """
    offsets = _offsets(np.where(starts >= 0, ends - starts, 0))
    if offsets[-1] > _LARGEST:
        raise OverflowError(f"{offsets[-1]} bytes don't fit one Arrow binary column")
    out = np.empty(int(offsets[-1]), np.uint8)
    _gather(data, starts, offsets, out)
    return out, offsets.astype(np.int32)


def gather_text(data: Bytes, starts: Ints, ends: Ints, valid: Flags) -> pa.Array:
    """Copy slices that should be UTF-8 to a string array; invalid bytes become U+FFFD."""
    offsets = _offsets(np.where(valid, ends - starts, 0))
    out = np.empty(int(offsets[-1]), np.uint8)
    _gather(data, starts, offsets, out)
    raw = text_array(out, offsets, valid, binary=True)
    text = pa.large_utf8() if _is_large(raw.type) else pa.utf8()
    try:
        return raw.cast(text)
    except pa.ArrowInvalid:
        return pa.array([v if v is None else v.decode("utf-8", "replace") for v in raw.to_pylist()], text)


def _offsets(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


@walker
def _gather(data: Bytes, starts: Ints, offsets: Ints, out: Bytes) -> None:
    for row in range(len(starts)):
        copy(data, starts[row], offsets[row + 1] - offsets[row], out, offsets[row])


def join(*parts: pa.Array | str) -> pa.LargeStringArray:
    """Concatenate columns of text, at least one, and constants; a null in any makes the row null.

    Arrow's ``binary_join_element_wise`` does the same, but looks up the type of each part in each row.
    """
    return _joined([part.encode() if isinstance(part, str) else part for part in parts], binary=False)


def join_bytes(*parts: pa.Array | bytes) -> pa.LargeBinaryArray:
    """Concatenate bytes like :func:`join`; columns may also be text."""
    return _joined(parts, binary=True)


def _joined(parts: Sequence[pa.Array | bytes], *, binary: bool) -> pa.Array:
    columns, constants = [], [b""]
    for part in parts:
        if isinstance(part, bytes):
            constants[-1] += part
        else:
            columns.append(part)
            constants.append(b"")
    count = len(columns[0])
    if not count:
        return pa.array([], pa.large_binary() if binary else pa.large_utf8())
    pieces = []
    piece_bounds = np.empty((len(columns), count + 1), np.int64)
    valid = np.ones(count, np.bool_)
    before = 0
    for number, column in enumerate(columns):
        data, starts, ends, present = binary_slices(column)
        pieces.append(data[starts[0] : ends[-1]])
        piece_bounds[number, 0] = before
        np.add(ends, before - starts[0], out=piece_bounds[number, 1:])
        before = piece_bounds[number, -1]
        if column.null_count:
            valid &= present
    sizes = np.diff(piece_bounds, axis=1).sum(axis=0) + sum(map(len, constants))
    offsets = _offsets(np.where(valid, sizes, 0))
    # Arrow's pool reuses memory; NumPy's memory must often be mapped first.
    out = np.frombuffer(pa.allocate_buffer(int(offsets[-1])), np.uint8)
    bounds = np.cumsum([0, *map(len, constants)])
    between = np.frombuffer(b"".join(constants), np.uint8)
    _write_joined(np.concatenate(pieces), piece_bounds, between, bounds, valid, out)
    return text_array(out, offsets, valid, binary=binary, wide=True)


@walker
def _write_joined(
    data: Bytes, piece_bounds: Ints, between: Bytes, bounds: Ints, valid: Flags, out: Bytes
) -> None:
    """Write constants and pieces of the row alternately, with a constant first and last."""
    at = np.int64(0)
    last = len(piece_bounds)
    for row in range(len(valid)):
        if not valid[row]:
            continue
        for piece in range(last):
            at = copy(between, bounds[piece], bounds[piece + 1] - bounds[piece], out, at)
            start = piece_bounds[piece, row]
            at = copy(data, start, piece_bounds[piece, row + 1] - start, out, at)
        at = copy(between, bounds[last], bounds[last + 1] - bounds[last], out, at)
