"""Rows of mirrors of ScyllaDB as events of a snapshot: live rows, static columns, nothing that expired."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, write_cell_row
from airflow_cdc_provider.changes.cells import CELL_EXPIRING, NEVER, ROW_LIVENESS, ROW_STATIC
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.comparing.cql_topics import row_form
from airflow_cdc_provider.jobs.comparing.reported_rows import reported_by
from airflow_cdc_provider.sources.cql.events.rows import MirrorCells
from airflow_cdc_provider.sources.cql.schema import number_columns
from airflow_cdc_provider.sources.row_events import as_json
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec
from airflow_cdc_provider.sources.scylla.events.rows import ScyllaRows
from tests.unit.server_kit.scylla.item import ITEM, T, i, t
from tests.unit.sources.scylla.events.snapshot_rows import ITEMS, SHOP

NOW_US = T + 100_000_000


def mirrored(**publish: Any) -> tuple[Connector, ScyllaCodec, list[dict[str, Any]]]:
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "scylla"}, "publish": {"topic_prefix": "my", **publish}}
    )
    log = ITEMS.of_row(ITEM.full_name, "", ["name", "qty"], static=False, read_us=T)
    # A mirror's ids are its own: here not those of the log's schema.
    schema = number_columns(log.schema, {"qty": 9, "name": 4, "owner": 6})
    codec = ScyllaCodec(schema, "scylla")
    ids = {column.name: column.id for column in schema.columns}

    def cell(name: str, value: bytes, ends: int = NEVER) -> Cell:
        return Cell(ids[name], CELL_EXPIRING if ends != NEVER else 0, int(ends != NEVER), T, ends, b"", value)

    def row(sku: int, *cells: Cell) -> dict[str, Any]:
        clustering = b"\4\0\0\0" + i(sku)
        ordered = tuple(sorted(cells))
        state = CellRow(ROW_LIVENESS, liveness_us=T, clustering=clustering, cells=ordered)
        return {"scope": ROW, "clustering": i(sku), "state": write_cell_row(state)}

    past = NOW_US // 1_000_000 - 1
    rows = [
        row(1, cell("name", t("tea")), cell("qty", i(5))),
        row(2, cell("name", t("old"), past)),
        {"scope": STATIC, "state": write_cell_row(CellRow(ROW_STATIC, cells=(cell("owner", t("ann")),)))},
    ]
    common = {"key": SHOP, "clustering": b"", "generation": 0, "op": 0}
    found = pa.RecordBatch.from_pylist([{**common, **one} for one in rows], CONTRIBUTION_SCHEMA)
    rows_of_mirror = ScyllaRows(connector=as_json(connector), codec=codec, schemas=ITEMS)
    build = pickle.loads(pickle.dumps(MirrorCells(rows_of_mirror, 0, NOW_US)))
    events = pa.Table.from_batches(build(iter([found])))
    return connector, codec, events.to_pylist()


def test_rows_and_static_columns_are_events_with_live_cells() -> None:
    _, _, events = mirrored()
    shown = {event["key"]: json.loads(event["value"])["after"] for event in events}
    assert shown == {
        b'{"shop":7,"sku":1}': {
            "shop": 7,
            "sku": 1,
            "name": {"value": "tea"},
            "qty": {"value": 5},
            "owner": None,
        },
        b'{"shop":7,"sku":2}': {
            "shop": 7,
            "sku": 2,
            "name": {"value": None},
            "qty": {"value": None},
            "owner": None,
        },
        b'{"shop":7}': {"shop": 7, "sku": None, "name": None, "qty": None, "owner": {"value": "ann"}},
    }


@pytest.mark.parametrize("advanced", [False, True])
def test_comparisons_read_their_events(advanced: bool) -> None:
    publish = {"scylla": {"format": "advanced", "after": "full"}} if advanced else {}
    connector, codec, events = mirrored(**publish)
    keys, values = (pa.array([event[name] for event in events], pa.binary()) for name in ("key", "value"))
    form = row_form(connector, codec.schema)
    reported = reported_by(keys, values, np.arange(len(keys)), form, of_mirror=True).to_pylist()
    assert sorted((row["static"], json.loads(row["key"])["shop"]) for row in reported) == [
        (False, 7),
        (False, 7),
        (True, 7),
    ]
