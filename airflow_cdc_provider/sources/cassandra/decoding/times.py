"""Times of an update: each is encoded as its difference from the least of its kind (reference §10).

Functions return the offset after what they read, or a negative reason
(:mod:`airflow_cdc_provider.sources.cql.reasons`; ``-TRUNCATED`` is the -1 that
:mod:`airflow_cdc_provider.sources.cql.wire` returns). ``header`` is the version of the segment and the
update's least timestamp (us), deletion time and TTL (s).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.cells import NEVER
from airflow_cdc_provider.formats.kernels import Bytes, Int, walker
from airflow_cdc_provider.sources.cql.decoding.cell_rows import LIVE
from airflow_cdc_provider.sources.cql.reasons import BAD_EXPIRY
from airflow_cdc_provider.sources.cql.wire import read_uvint

EXPIRED_TTL: Final = 0x7FFFFFFF
"""TTL of the liveness that marks a view's row as dead."""


@walker
def read_deletion(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int, Int]:
    """Read write time and deletion time of a deletion, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    if at < 0:
        return LIVE, NEVER, at
    timestamp = delta + header[1]
    delta, at = read_uvint(data, at, end)
    if at < 0 or timestamp == LIVE:
        # The deletion time of an empty deletion differs by writer.
        return LIVE, NEVER, at
    seconds = _local_time(delta, header)
    return timestamp, seconds, at if seconds >= 0 else -BAD_EXPIRY


@walker
def read_local_time(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int]:
    """Read a time in seconds, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    seconds = _local_time(delta, header)
    return seconds, -BAD_EXPIRY if at >= 0 and seconds < 0 else at


@walker
def _local_time(delta: Int, header: tuple[Int, Int, Int, Int]) -> Int:
    """Return a time in seconds, signed before version 8 and unsigned since, or -1 if it is invalid."""
    seconds = (delta + header[2]) & 0xFFFFFFFF
    return seconds if seconds <= (0x7FFFFFFF if header[0] < 8 else 0xFFFFFFFD) else np.int64(-1)


@walker
def read_ttl(data: Bytes, at: Int, end: Int, header: tuple[Int, Int, Int, Int]) -> tuple[Int, Int]:
    """Read a TTL in seconds, and the offset after it or a negative reason."""
    delta, at = read_uvint(data, at, end)
    ttl = (delta + header[3]) & 0xFFFFFFFF
    return ttl, -BAD_EXPIRY if at >= 0 and not 0 < ttl <= 0x7FFFFFFF else at
