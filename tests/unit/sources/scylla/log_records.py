"""Log rows as records hold them, written by hand or by the imitation's model."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from server_kit.scylla.log_rows import Change
from server_kit.scylla.schemas import log_columns
from server_kit.scylla.tables import Table
from server_kit.scylla.values import CqlType, Native

STREAM = bytes.fromhex("c000000000000000aacd159e24000051")
UUID_EPOCH = 0x01B21DD213814000
TTL_LEFT = "ttl(cdc$operation)"


def time_uuid(microseconds: int, rest: int = 0x80) -> bytes:
    """Make ``cdc$time``: a UUID of version 1, all its random bytes alike."""
    ticks = microseconds * 10 + UUID_EPOCH
    low, middle, high = ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, ticks >> 48
    return struct.pack(">IHH", low, middle, high | 0x1000) + bytes([rest]) * 8


def columns_of(table: Table) -> list[tuple[str, CqlType]]:
    """List the log's columns as the capture selects them: its own first, then the others by name."""
    columns = log_columns(table)
    own = columns[:6]
    return [*own, (TTL_LEFT, CqlType("int")), *sorted(columns[6:])]


def schema_payload(table: Table, delta: str = "full") -> bytes:
    """Make the payload of a record of kind ``schema``."""
    base = (*table.partition, *table.clustering, *table.statics, *table.regular)
    types: dict[str, Any] = {}
    for column in base:
        _note_types(column.type, types)
    told = {
        "v": 1,
        "keyspace": table.keyspace,
        "table": table.name,
        "id": "5a1c395be41f11e98f5ac2d2e0a1e4c6",
        "partition_key": [c.name for c in table.partition],
        "clustering": [[c.name, "desc" if c.name in table.descending else "asc"] for c in table.clustering],
        "static": [c.name for c in table.statics],
        "columns": [[name, _cql(kind)] for name, kind in columns_of(table)],
        "base": {c.name: _cql(c.type) for c in base},
        "types": types,
        "log_ttl": 86400,
        "delta": delta,
    }
    return json.dumps(told).encode()


def payload(rows: Iterable[Sequence[Native]]) -> bytes:
    """Make the payload of a change of rows, each of the values of all columns."""
    found = b"L"
    for row in rows:
        data = b"".join(
            struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in row
        )
        found += struct.pack("<I", len(data)) + data
    return found


def change_payload(table: Table, change: Change, partition: Sequence[bytes], rest: int = 0x80) -> bytes:
    """Make the payload of a change of the model.

    Args:
        table: The base table.
        change: What was logged.
        partition: Values of the partition key.
        rest: The random bytes of ``cdc$time``.
    """
    names = [name for name, _ in columns_of(table)]
    rows = []
    for number, row in enumerate(change.rows):
        told: dict[str, Native] = {
            "cdc$stream_id": STREAM,
            "cdc$time": time_uuid(change.time, rest),
            "cdc$batch_seq_no": struct.pack(">i", number),
            "cdc$operation": struct.pack(">b", row.operation),
            "cdc$ttl": None if row.ttl is None else struct.pack(">q", row.ttl),
            "cdc$end_of_batch": b"\1" if row.end_of_batch else None,
            TTL_LEFT: struct.pack(">i", 86400),
            **dict(zip((c.name for c in table.partition), partition, strict=True)),
            **dict(zip((c.name for c in table.clustering), row.clustering, strict=False)),
            **row.values,
            **{f"cdc$deleted_{name}": b"\1" for name in row.deleted},
            **{f"cdc$deleted_elements_{name}": value for name, value in row.deleted_elements.items()},
        }
        rows.append([told.get(name) for name in names])
    return payload(rows)


def payloads(*given: bytes) -> pa.Array:
    """Put payloads into a column."""
    return pa.array(given, pa.binary())


def _note_types(kind: CqlType, types: dict[str, Any]) -> None:
    for inside in kind.parameters:
        _note_types(inside, types)
    if kind.name == "udt":
        types[kind.udt_name] = [
            [name, _cql(inside)] for name, inside in zip(kind.fields, kind.parameters, strict=True)
        ]


def _cql(kind: CqlType) -> str:
    return kind.cql("shop").replace("shop.", "")
