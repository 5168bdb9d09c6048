"""The payload of a change of ScyllaDB, written plainly: what the reader of log pages stores of log rows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from airflow_cdc_provider.sources.scylla.payload import CHANGE_TAG


def change_payload(rows: Iterable[Sequence[bytes | None]]) -> bytes:
    """Encode the payload of a change.

    Args:
        rows: Its log rows: per column its native bytes, in the order of the schema record.
    """
    parts = [bytes([CHANGE_TAG])]
    for row in rows:
        written = b"".join(
            b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value for value in row
        )
        parts += [struct.pack("<I", len(written)), written]
    return b"".join(parts)
