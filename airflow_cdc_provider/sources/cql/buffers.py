"""Convert Arrow binary arrays to NumPy arrays for kernels, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NOTHING = np.zeros(0, np.uint8)
_NOTHING.flags.writeable = False


class BinaryParts(NamedTuple):
    """The buffers of a binary array: value ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]


def binary_parts(array: Any) -> BinaryParts:
    """Return the buffers of a binary array or chunked array without copying bytes (but chunks are combined).

    Args:
        array: Of type binary, large_binary, string or large_string.

    Returns:
        Its bytes, offsets and validity.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if not (pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)):
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    count = len(array)
    value_offsets = (
        np.zeros(1, np.int64)
        if offsets is None or count == 0
        else np.frombuffer(offsets, np.int64, count + 1, 8 * array.offset)
    )
    content = _NOTHING if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
    content.flags.writeable = False
    return BinaryParts(content, value_offsets, array.is_valid().to_numpy(zero_copy_only=False))


def binary_array(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_] | None = None,
) -> Any:
    """Build a binary array of bytes and offsets, of at most 2 GiB.

    Args:
        data: The bytes; referenced, not copied.
        offsets: One more than values, starting from 0.
        valid: False for nulls.

    Returns:
        The array.
    """
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
