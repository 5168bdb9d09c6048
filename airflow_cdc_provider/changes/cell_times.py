"""The greatest write time of each cell row (layout: :mod:`.cells`)."""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.changes.cells import (
    CELL_HEADER_BYTES,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.byte_kernels import load_little32, load_little64
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker


def latest_times(states: object) -> Ints:
    """Return the greatest write time in each cell row, in us; the time of its reading for a row without any.

    Args:
        states: Binary array of cell rows that a decoder wrote, none null.
    """
    data, starts, ends, _ = binary_slices(states)
    times = np.full(len(starts), np.iinfo(np.int64).min)
    _read_times(data, starts, ends, times)
    return times


@walker
def _read_times(data: Bytes, starts: Ints, ends: Ints, times: Bytes) -> None:
    for row in range(len(starts)):
        begin, end = starts[row], ends[row]
        flags = np.int64(data[begin + 1])
        latest = times[row]
        if flags & ROW_LIVENESS:
            latest = max(latest, load_little64(data, begin + 8))
        if flags & ROW_DELETION:
            latest = max(latest, load_little64(data, begin + 24))
        at = begin + ROW_HEADER_BYTES + load_little32(data, begin + 40)
        while at + CELL_HEADER_BYTES <= end:
            latest = max(latest, load_little64(data, at + 8))
            at += CELL_HEADER_BYTES + _content(data, at)
        if flags & ROW_UNCERTAIN and latest == times[row]:
            latest = load_little64(data, begin + 8)
        times[row] = latest


@walker
def _content(data: Bytes, at: Int) -> Int:
    return load_little32(data, at + 24) + load_little32(data, at + 28)
