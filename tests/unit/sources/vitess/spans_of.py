"""Texts in one buffer, like the values of a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Ints


def spans_of(values: Sequence[bytes | None]) -> tuple[Bytes, Ints, Ints]:
    """Return a buffer and the byte range of each value in it, separated by other bytes."""
    data, starts, ends = bytearray(b"9"), [], []
    for value in values:
        starts.append(-1 if value is None else len(data))
        data += value or b""
        ends.append(-1 if value is None else len(data))
        data += b"7"
    return np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), np.array(ends, np.int64)
