"""TRUNCATE as the log shows it: a cell of ``system.local`` (reference §13).

A truncation writes nothing of the table itself. Each node notes for itself, in ``system.local``, in the map
``truncated_at``: under the table's id, up to where its log holds data that are gone, and when::

    0    i64  segment id
    8    i32  position
    12   i64  milliseconds since 1970

A node that is not asked to keep the segment for CDC may drop it, and this record with it, before it is seen;
:mod:`airflow_cdc_provider.sources.cassandra.nodes` asks the nodes for it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from airflow_cdc_provider.changes.cells import CELL_HEADER_BYTES, CELL_TOMBSTONE, ROW_HEADER_BYTES
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import LOCAL_TABLE, system_table
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.payload import Truncation

log = logging.getLogger(__name__)

_MARK: Final = b"truncated_at"
_CELL: Final = struct.Struct("<HB21xII")
_RECORD: Final = struct.Struct(">qi")
_LATEST_MS: Final = (2**63 - 1) // 1000
"""A column of timestamps counts microseconds in 64 bits."""


class LocalUpdate(NamedTuple):
    """What an update of ``system.local`` tells.

    ``truncations``  table id (32 hex digits) and what of it is gone
    ``problem``      why it could not be read, empty if it could or has nothing to do with truncation
    """

    truncations: Sequence[tuple[str, Truncation]]
    problem: str = ""


def read_local_updates(payloads: Sequence[bytes]) -> list[LocalUpdate]:
    """Read updates of ``system.local``.

    Args:
        payloads: Each as the payload of a change: version, then the update.
    """
    marked = [number for number, payload in enumerate(payloads) if _MARK in payload]
    found = [LocalUpdate(())] * len(payloads)
    if not marked:
        return found
    count = len(marked)
    decoded = _decoder().decode(
        pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"local"] * count, pa.binary()),
                "generation": pa.array(range(count), pa.int64()),
                "payload": pa.array([payloads[number] for number in marked], pa.binary()),
            }
        ),
        (),
    )
    for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
        found[marked[row]] = LocalUpdate((), reason)
    # The generation says which update a contribution is from.
    numbers = decoded.contributions.column("generation").to_pylist()
    states = decoded.contributions.column("state").to_pylist()
    for row, state in zip(numbers, states, strict=True):
        before = found[marked[row]].truncations
        found[marked[row]] = LocalUpdate((*before, *_truncations(state)))
    return found


@cache
def _decoder() -> UpdateDecoder:
    return UpdateDecoder(system_table(LOCAL_TABLE))


def read_truncation(value: bytes) -> Truncation | None:
    """Read a value of ``truncated_at``; None for one without a time that can be.

    Versions before 2.0 wrote none.
    A node that had logged nothing when it truncated names segment -1: nothing of its log is gone.
    """
    if len(value) < _RECORD.size:
        return None
    segment, end = _RECORD.unpack_from(value)
    millis = int.from_bytes(value[_RECORD.size :], "big", signed=True)
    if millis > _LATEST_MS:
        log.warning("a truncation at %d ms since 1970 is passed over: there is no such time", millis)
        return None
    if segment < 0 or end < 0:
        segment, end = 0, 0
    return Truncation(segment, end, max(millis, 0))


def _truncations(state: bytes) -> Iterator[tuple[str, Truncation]]:
    column_id = next(c.id for c in _decoder().schema.regular if c.name == "truncated_at")
    at = ROW_HEADER_BYTES + int.from_bytes(state[40:44], "little")
    while at < len(state):
        column, flags, path_length, length = _CELL.unpack_from(state, at)
        path = at + CELL_HEADER_BYTES
        value = path + path_length
        at = value + length
        # A removed record belongs to a table that was dropped.
        if column != column_id or flags & CELL_TOMBSTONE or path_length != 16:
            continue
        if (truncation := read_truncation(state[value : value + length])) is not None:
            yield state[path:value].hex(), truncation
