"""Write the fixed parts of cell rows (changes/cells.py)."""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.changes.cells import FORMAT, NEVER, ROW_DELETION, ROW_HEADER_BYTES
from airflow_cdc_provider.formats.byte_kernels import store_little32, store_little64
from airflow_cdc_provider.formats.kernels import Bytes, Int, inlined, walker
from airflow_cdc_provider.sources.cql.decoding.sink import STATES_AT, Sink, put_row

LIVE: Final = -(1 << 63)
"""Timestamp of a deletion that deletes nothing, and of a row without liveness."""


@inlined
def put_cell_header(
    states: Bytes, at: Int, column_id: Int, flags: Int, ttl: Int, timestamp: Int, local_time: Int
) -> None:
    """Write the first 24 bytes of a cell's header."""
    store_little32(states, at, column_id | flags << 16)
    store_little32(states, at + 4, ttl)
    store_little64(states, at + 8, timestamp)
    store_little64(states, at + 16, local_time)


@walker
def put_deletion(
    sink: Sink, change: Int, scope: Int, timestamp: Int, deletion_time: Int, lower: Int, upper: Int
) -> bool:
    """Append a contribution whose cell row is only a deletion; False if there is no space."""
    states = sink.states
    at = sink.cursor[STATES_AT]
    if at + ROW_HEADER_BYTES > len(states):
        return False
    store_little64(states, at, FORMAT | ROW_DELETION << 8)
    store_little64(states, at + 8, LIVE)
    store_little64(states, at + 16, NEVER)
    store_little64(states, at + 24, timestamp)
    store_little64(states, at + 32, deletion_time)
    store_little64(states, at + 40, 0)
    return put_row(sink, change, scope, at + ROW_HEADER_BYTES, lower, upper)
