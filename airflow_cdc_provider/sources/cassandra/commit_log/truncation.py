"""TRUNCATE in the log: a cell of ``system.local`` (reference §13).

A truncation writes nothing to the table itself. Each node records it in its own ``system.local``, in the map
``truncated_at``: under the table's id, the log position up to which data were removed, and when::

    0    i64  segment id
    8    i32  position
    12   i64  milliseconds since 1970

A node may delete the segment, and this record with it, before it is read, unless the segment is kept for CDC.
So :mod:`airflow_cdc_provider.sources.cassandra.nodes` also queries the nodes for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from airflow_cdc_provider.changes.cells import CELL_HEADER_BYTES, CELL_TOMBSTONE, ROW_HEADER_BYTES
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import LOCAL_TABLE, system_table
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.payload import Truncation

log = logger(__name__)

_MARK: Final = b"truncated_at"
_CELL: Final = struct.Struct("<HB21xII")
_RECORD: Final = struct.Struct(">qi")
_LATEST_MS: Final = (2**63 - 1) // 1000
"""A column of timestamps counts microseconds in 64 bits."""


class LocalUpdate(NamedTuple):
    """The truncations in an update of ``system.local``.

    ``truncations``  table id (32 hex digits) and truncation
    ``problem``      why it could not be decoded, empty if it could or has no truncation
    """

    truncations: Sequence[tuple[str, Truncation]]
    problem: str = ""


def read_local_updates(payloads: Sequence[bytes]) -> list[LocalUpdate]:
    """Decode updates of ``system.local``.

    Args:
        payloads: Each as the payload of a change: version, then the update.

    Returns:
        The truncations of each payload.
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
    # The generation carries the number of the update that a contribution is from.
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
    """Parse a value of ``truncated_at``; None without a valid time.

    Versions before 2.0 wrote no time. A node that had logged nothing when it truncated writes segment -1:
    no data of its log were removed.
    """
    if len(value) < _RECORD.size:
        return None
    segment, end = _RECORD.unpack_from(value)
    millis = int.from_bytes(value[_RECORD.size :], "big", signed=True)
    if millis > _LATEST_MS:
        log.warning("skipped a truncation at %d ms since 1970: the time is out of range", millis)
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
        # A deleted record belongs to a table that was dropped.
        if column != column_id or flags & CELL_TOMBSTONE or path_length != 16:
            continue
        if (truncation := read_truncation(state[value : value + length])) is not None:
            yield state[path:value].hex(), truncation
