"""Changes that are decoded from a recorded log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.cassandra.payload import Position

KEY = b"\0\0\0\x01"


def changes(payloads: Sequence[bytes], keys: Sequence[bytes] | None = None, **columns: Any) -> pa.RecordBatch:
    """A batch of changes."""
    count = len(payloads)
    values = {
        "payload": payloads,
        "key": keys or [KEY] * count,
        "generation": [0] * count,
        "origin": ["node"] * count,
        "position": [Position(1, i + 1).pack() for i in range(count)],
        **columns,
    }
    rows = [{name: column[i] for name, column in values.items()} for i in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)
