"""A mirror, its tombstone and static columns tables in memory, merged into by the real kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import UPSERT
from airflow_cdc_provider.lake.merge_kernel import (
    DUPLICATES,
    FROM_MIRROR,
    FROM_STATIC_COLUMNS,
    FROM_TOMBSTONES,
    INPUT_SCHEMA,
    LIVE,
    LIVE_STATIC,
    PENDING,
    REMOVE,
    REMOVE_STATIC,
    TOMBSTONE,
    MergeKernel,
)
from tests.oracles import cassandra_read_path as oracle

COLUMNS = pa.schema([pa.field("shown", pa.binary()), pa.field("static_columns", pa.binary())])


def show(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Show a live row as its states, so that a stale row is seen."""
    return pa.RecordBatch.from_arrays([rows["state"], rows["static_state"]], schema=COLUMNS)


class Tables:
    """A mirror and its further tables as plain lists, merged into by the kernel as Spark would.

    ``duplicates`` has the number of changes of rows of the last merge, and of duplicates among them.
    """

    def __init__(self, model: str, *, static_columns_table: bool = False) -> None:
        self.model = model
        self.static_columns_table = static_columns_table
        self.mirror: dict[bytes, dict[str, Any]] = {}
        self.static_columns: dict[bytes, dict[str, Any]] = {}
        self.tombstones: list[dict[str, Any]] = []
        self.duplicates = 0, 0

    def merge(self, pending: Sequence[dict[str, Any]], now: int, **more: Any) -> Counter[int]:
        """Merge, and return the number of output rows of each kind, except the count of duplicates."""
        shown = [
            (source, row["_cdc"])
            for source, table in ((FROM_MIRROR, self.mirror), (FROM_STATIC_COLUMNS, self.static_columns))
            for row in table.values()
        ]
        keys = {row["key"] for row in pending} | {
            cdc["key"] for _, cdc in shown if cdc["expires_at"] is not None and cdc["expires_at"] <= now
        }
        rows = [{**row, "_from": PENDING, "_expires_at": None} for row in pending]
        for source, cdc in shown:
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
                        "_from": source,
                        "_expires_at": cdc["expires_at"],
                    }
                )
        rows += [
            {**row, "_from": FROM_TOMBSTONES, "_expires_at": None}
            for row in self.tombstones
            if row["key"] in keys
        ]
        kernel = MergeKernel(
            self.model, "4.0", COLUMNS, show, now, static_columns_table=self.static_columns_table, **more
        )
        batch = pa.RecordBatch.from_pylist(rows, schema=INPUT_SCHEMA)
        tables = {
            LIVE: self.mirror,
            REMOVE: self.mirror,
            LIVE_STATIC: self.static_columns,
            REMOVE_STATIC: self.static_columns,
        }
        added: list[tuple[int, dict[str, Any]]] = []
        counts: Counter[int] = Counter()
        self.duplicates = 0, 0
        for out in kernel(iter([batch])):
            assert out.schema.equals(kernel.output_schema)
            for row in out.to_pylist():
                kind = row["_cdc_kind"]
                if kind == DUPLICATES:
                    self.duplicates = row["_cdc"]["generation"], row["_cdc"]["expires_at"]
                    continue
                counts[kind] += 1
                if kind in (REMOVE, REMOVE_STATIC):
                    del tables[kind][row["_cdc"]["id"]]
                elif kind in (LIVE, LIVE_STATIC):
                    added.append((kind, row))
                elif kind == TOMBSTONE:
                    self.tombstones.append(row["_cdc_tombstone"])
        for kind, row in added:
            assert row["_cdc"]["id"] not in tables[kind], "the row is in the table already"
            tables[kind][row["_cdc"]["id"]] = row
        return counts


def shown_rows(tables: Tables, now: int) -> dict[Any, Any]:
    shown = {}
    for row in tables.mirror.values():
        cdc = row["_cdc"]
        shown[cdc["key"], cdc["clustering"]] = (_cells(row["shown"], now), _cells(row["static_columns"], now))
    return shown


def joined_rows(tables: Tables, now: int) -> dict[Any, Any]:
    """Return the rows of the mirror, each with the row of its partition in the static columns table."""
    rows = shown_rows(tables, now)
    assert not any(
        clustering is None or static_columns for (_, clustering), (_, static_columns) in rows.items()
    )
    of_key = {
        row["_cdc"]["key"]: _cells(row["static_columns"], now) for row in tables.static_columns.values()
    }
    assert all(of_key.values()), "no partition without static columns has a row in their table"
    joined = {(key, c): (cells, of_key.get(key, {})) for (key, c), (cells, _) in rows.items()}
    alone = of_key.keys() - {key for key, _ in rows}
    return joined | {(key, None): ({}, of_key[key]) for key in alone}


def _cells(state: bytes | None, now: int) -> dict[tuple[int, bytes | None], bytes]:
    cells = () if state is None else oracle.read(state).cells
    return {(c.column, c.path): c.value for c in cells if c.live(now)}
