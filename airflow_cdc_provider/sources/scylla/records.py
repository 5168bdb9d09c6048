"""Converts the changes of a page of a log to change records: one per stream and ``cdc$time``.

Layouts of ``position`` and ``payload``: :mod:`.payload`. A change with an unknown ``cdc$operation`` is
quarantined.
"""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, QUARANTINE, change_batch
from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_width_binary
from airflow_cdc_provider.sources.scylla.capture import GroupRead
from airflow_cdc_provider.sources.scylla.log_pages import PageChanges
from airflow_cdc_provider.sources.scylla.schema_history import LoggedTable
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS, timeuuid

UNKNOWN_OPERATION: Final = "unknown-operation"
"""Code of the reason for which a change is quarantined."""
QUARANTINE_TAG: Final = b"Q"


def to_records(found: PageChanges, read: GroupRead, stream: bytes, table: LoggedTable) -> pa.RecordBatch:
    """Convert a stream's changes to change records."""
    count = len(found.ends)
    positions = np.empty((count, 40), np.uint8)
    positions[:, :8] = np.frombuffer(read.generation_ms.to_bytes(8, "big"), np.uint8)
    positions[:, 8:24] = found.times
    positions[:, 24:] = np.frombuffer(stream, np.uint8)
    ticks = np.ascontiguousarray(found.times[:, :8]).view(">u8").ravel().astype(np.int64)
    columns = {
        "kind": CHANGE,
        "schema_id": table.schema_id,
        "payload": column_of(pa.binary(), found.payloads, np.append(0, found.ends)),
    }
    if found.unknown_code.any():
        columns |= _quarantined(found, stream, table, columns["payload"])
    return change_batch(
        count,
        source_table=table.name,
        origin=f"{table.name}/{read.group}",
        committed_at=pa.array((ticks - EPOCH_TICKS) // 10, pa.int64()),
        position=fixed_width_binary(positions),
        captured_at=time.time_ns() // 1000,
        **columns,
    )


def _quarantined(
    found: PageChanges, stream: bytes, table: LoggedTable, payloads: pa.Array
) -> dict[str, pa.Array]:
    """Return the columns that differ for quarantined changes."""
    kinds: list[str] = []
    reasons: list[str | None] = []
    contents: list[bytes] = []
    for number, (code, payload) in enumerate(
        zip(found.unknown_code.tolist(), payloads.to_pylist(), strict=True)
    ):
        known = code == 0
        moment = UUID(bytes=timeuuid(found.times[number].tobytes()))
        kinds.append(CHANGE if known else QUARANTINE)
        reasons.append(
            None
            if known
            else f"{UNKNOWN_OPERATION}: cdc$operation {code} in the log of {table.name}, stream "
            f"0x{stream.hex()}, cdc$time {moment}"
        )
        contents.append(payload if known else QUARANTINE_TAG + bytes.fromhex(table.schema_id) + payload)
    return {
        "kind": pa.array(kinds, pa.string()),
        "schema_id": pa.array([None if reason else table.schema_id for reason in reasons], pa.string()),
        "reason": pa.array(reasons, pa.string()),
        "payload": pa.array(contents, pa.binary()),
    }
