"""Retries quarantined changes, with the operation codes that are known now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA
from airflow_cdc_provider.sources.scylla.log_pages import page_changes
from airflow_cdc_provider.sources.scylla.records import QUARANTINE_TAG


@dataclass(frozen=True)
class QuarantineReader:
    """Retries quarantined changes. Picklable.

    Args:
        columns: Number of columns of each schema, by its name.
    """

    columns: Mapping[str, int]

    def __call__(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the records, as changes if all their operation codes are known now."""
        yield pa.RecordBatch.from_pylist([self._reread(r) for r in records.to_pylist()], CHANGE_SCHEMA)

    def _reread(self, record: dict[str, Any]) -> dict[str, Any]:
        payload: bytes = record["payload"] or b""
        schema_id = payload[1:17].hex()
        if payload[:1] != QUARANTINE_TAG or schema_id not in self.columns:
            return record
        rows = list(payload_rows(payload[17:]))
        found, _, _ = page_changes(b"".join(rows), len(rows), self.columns[schema_id], more=False)
        if found.unknown_code.any():
            return record
        return record | {"kind": CHANGE, "schema_id": schema_id, "reason": None, "payload": payload[17:]}


def payload_rows(payload: bytes) -> Iterator[bytes]:
    """Yield the rows of a change's payload."""
    at = 1
    while at < len(payload):
        length = int.from_bytes(payload[at : at + 4], "little")
        yield payload[at + 4 : at + 4 + length]
        at += 4 + length
