"""Between Arrow's binary columns and the byte arrays that kernels walk, without copies."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.buffers import Bytes

_MOST_BYTES: Final = np.iinfo(np.int32).max


def binary_buffers(column: pa.BinaryArray) -> tuple[Bytes, NDArray[np.int32]]:
    """Return the bytes of a binary column and where each value begins, then where the last ends.

    Nulls are empty stretches.
    """
    _, offsets, data = column.buffers()
    if len(column) == 0:
        return np.zeros(1, np.uint8), np.zeros(1, np.int32)
    begins = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), begins


def binary_array(
    data: Bytes, offsets: NDArray[np.int64], present: NDArray[np.bool_] | None = None
) -> pa.BinaryArray:
    """Make a binary column of stretches that follow each other.

    Args:
        data: The bytes; what lies behind the last offset doesn't matter.
        offsets: Where each value begins, then where the last ends.
        present: False for nulls; None if there are none.

    Raises:
        ConfigurationError: There are more bytes than a column can hold.
    """
    if offsets[-1] > _MOST_BYTES:
        raise ConfigurationError(
            "a batch of changes makes too many bytes for one Arrow column",
            expected=f"at most {_MOST_BYTES}",
            found=str(offsets[-1]),
            remedy="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[: offsets[-1]])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
