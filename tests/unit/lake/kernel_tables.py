"""A mirror and its side table in memory, merged into by the real kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import UPSERT
from airflow_cdc_provider.lake.merge_kernel import (
    COPIES,
    FROM_MIRROR,
    FROM_SIDE,
    INPUT_SCHEMA,
    LIVE,
    PENDING,
    REMOVE,
    SIDE,
    MergeKernel,
)
from tests.oracles import cassandra_read_path as oracle

COLUMNS = pa.schema([pa.field("shown", pa.binary()), pa.field("statics", pa.binary())])


def show(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Show a live row as its states, so that a stale row is seen."""
    return pa.RecordBatch.from_arrays([rows["state"], rows["static_state"]], schema=COLUMNS)


class Tables:
    """A mirror and its side table as plain lists, merged into by the kernel as Spark would.

    ``copies`` has the changes of rows of the last merge, and how many of them were copies.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.mirror: dict[bytes, dict[str, Any]] = {}
        self.side: list[dict[str, Any]] = []
        self.copies = 0, 0

    def merge(self, pending: Sequence[dict[str, Any]], now: int, **more: Any) -> None:
        keys = {row["key"] for row in pending} | {
            row["_cdc"]["key"]
            for row in self.mirror.values()
            if row["_cdc"]["expires_at"] is not None and row["_cdc"]["expires_at"] <= now
        }
        rows = [{**row, "_from": PENDING, "_expires_at": None} for row in pending]
        for row in self.mirror.values():
            cdc = row["_cdc"]
            if cdc["key"] in keys:
                rows.append(
                    {
                        "key": cdc["key"],
                        "scope": 0,
                        "clustering": cdc["clustering"],
                        "generation": cdc["generation"],
                        "version": cdc["version"],
                        "op": UPSERT,
                        "state": cdc["state"],
                        "_from": FROM_MIRROR,
                        "_expires_at": cdc["expires_at"],
                    }
                )
        rows += [{**row, "_from": FROM_SIDE, "_expires_at": None} for row in self.side if row["key"] in keys]
        kernel = MergeKernel(self.model, "4.0", COLUMNS, show, now, **more)
        batch = pa.RecordBatch.from_pylist(rows, schema=INPUT_SCHEMA)
        added = {}
        self.copies = 0, 0
        for out in kernel(iter([batch])):
            assert out.schema.equals(kernel.output_schema)
            for row in out.to_pylist():
                if row["_cdc_kind"] == REMOVE:
                    del self.mirror[row["_cdc"]["id"]]
                elif row["_cdc_kind"] == LIVE:
                    added[row["_cdc"]["id"]] = row
                elif row["_cdc_kind"] == SIDE:
                    self.side.append(row["_cdc_side"])
                elif row["_cdc_kind"] == COPIES:
                    self.copies = row["_cdc"]["generation"], row["_cdc"]["expires_at"]
        assert not set(added) & set(self.mirror), "a row would stand in the mirror twice"
        self.mirror |= added


def shown_rows(tables: Tables, now: int) -> dict[Any, Any]:
    shown = {}
    for row in tables.mirror.values():
        cdc = row["_cdc"]
        shown[cdc["key"], cdc["clustering"]] = (_cells(row["shown"], now), _cells(row["statics"], now))
    return shown


def _cells(state: bytes | None, now: int) -> dict[tuple[int, bytes | None], bytes]:
    cells = () if state is None else oracle.read(state).cells
    return {(c.column, c.path): c.value for c in cells if c.live(now)}
