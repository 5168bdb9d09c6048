"""Rows of a table of ScyllaDB as a snapshot reads them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, write_cell_row
from airflow_cdc_provider.changes.cells import NEVER, ROW_STATIC, ROW_UNCERTAIN
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas
from server_kit.scylla.tables import Table
from tests.unit.server_kit.scylla.item import ITEM, T, i, t
from tests.unit.sources.scylla.logged import TABLE_ID, schema_payload

READ_US = T + 5_000_000
SHOP = i(7)


def cell(column: int, value: bytes, at: int = T, flags: int = 0, path: bytes = b"") -> Cell:
    return Cell(column, flags, 0, at, NEVER, path, value)


def row_of(
    table: Table,
    columns: Sequence[str],
    cells: Sequence[Cell] = (),
    sku: int | None = 1,
    flags: int = ROW_UNCERTAIN,
    **more: Any,
) -> dict[str, Any]:
    """Build the record of a row that a SELECT returned; of static columns without ``sku``."""
    static = sku is None
    clustering = b"" if sku is None else b"\4\0\0\0" + i(sku)
    row = CellRow(
        flags | (ROW_STATIC if static else 0), liveness_us=READ_US, clustering=clustering, cells=tuple(cells)
    )
    return {
        "source_table": table.full_name,
        "kind": "snapshot",
        "origin": "",
        "position": bytes(56),
        "generation": 0,
        "key": SHOP,
        "captured_at": datetime.fromtimestamp(READ_US / 1e6, UTC),
        "schema_id": TABLE_ID,
        "payload": snapshot_prefix(columns, static=static) + write_cell_row(row),
        **more,
    }


def schemas_of(*tables: tuple[Table, int]) -> LogSchemas:
    return LogSchemas([(table.full_name, read_us, schema_payload(table)) for table, read_us in tables])


ITEMS = schemas_of((ITEM, 0))
TEA = row_of(ITEM, ["name", "qty"], [cell(0, t("tea"), T + 3), cell(1, i(5), T)])
OWNER = row_of(ITEM, ["owner"], [cell(0, t("ann"))], sku=None)
