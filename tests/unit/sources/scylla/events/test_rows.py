"""Rows of mirrors of ScyllaDB as events, without Spark: those of a snapshot, or what became of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, write_cell_row
from airflow_cdc_provider.changes.cells import NEVER, ROW_LIVENESS, ROW_STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.cql.events.known_static_columns import NEVER_WRITTEN, KnownStaticColumns
from airflow_cdc_provider.sources.cql.events.rows import KnownOf
from airflow_cdc_provider.sources.cql.schema import number_columns
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.rows import ScyllaRows
from tests.unit.server_kit.scylla.item import ITEM, T, i, t
from tests.unit.sources.scylla.events.snapshot_rows import ITEMS, OWNER, SHOP, TEA
from tests.unit.sources.scylla.logged import changes

NOW_US = T + 100_000_000
IDS = {"qty": 9, "name": 4, "owner": 6}
"""A mirror's ids are its own: here not those of the log's schema."""


def known(static: bytes | None) -> KnownOf:
    """Return static cells as if from the tombstone table: of each partition the same."""
    written = NEVER_WRITTEN if static is None else T

    def known_of(keys: pa.Array, now_seconds: int) -> KnownStaticColumns:
        return KnownStaticColumns(pa.array([static] * len(keys), pa.binary()), np.full(len(keys), written))

    return known_of


def cell(name: str, value: bytes, at: int = T) -> Cell:
    return Cell(IDS[name], 0, 0, at, NEVER, b"", value)


LIVES = CellRow(
    ROW_LIVENESS,
    liveness_us=T,
    clustering=b"\4\0\0\0" + i(1),
    cells=(cell("name", t("tea"), T + 3), cell("qty", i(5))),
)
STATIC_ROW = CellRow(ROW_STATIC, cells=(cell("owner", t("ann")),))


def declared(**publish: Any) -> Connector:
    return Connector.from_dict(
        {"name": "shop", "source": {"type": "scylla"}, "publish": {"topic_prefix": "my", **publish}}
    )


def merged(
    connector: Connector, *rows_by_op: tuple[str, CellRow | None], static_row: CellRow | None = STATIC_ROW
) -> list[dict[str, Any]]:
    """Return the events of rows, or of the partition's static columns, with the given operations."""
    log = ITEMS.of_row(ITEM.full_name, "", ["name", "qty"], static=False, read_us=T)
    codec = ScyllaCodec(number_columns(log.schema, IDS), "scylla")
    static = static_row and write_cell_row(static_row)
    events = ScyllaRows(connector=connector, codec=codec, schemas=ITEMS, known_of=known(static))
    assert events.columns == ("owner",)
    rows = pa.RecordBatch.from_pydict(
        {
            "op": pa.array([op for op, _ in rows_by_op]),
            "key": pa.array([SHOP] * len(rows_by_op), pa.binary()),
            "state": pa.array([row and write_cell_row(row) for _, row in rows_by_op], pa.binary()),
        }
    )
    made = events.builder(NOW_US * 1000, None, SkippedRecords(strict=True))(rows)
    return [{"key": one["key"], "value": one["value"]} for one in made.to_pylist()]


def values(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(event["value"]) for event in events]


@pytest.mark.parametrize(
    "publish",
    [
        {},
        {"scylla": {"all_types": True, "flatten_columns": True, "static_keys": "null"}},
        {"scylla": {"format": "advanced", "key_placement": ["kafka-key", "payload-key"]}},
        {"key": "avro", "value": "avro", "unwrap": {"enabled": True}},
    ],
)
def test_rows_that_are_read_are_published_as_snapshot_rows(publish: dict[str, Any]) -> None:
    connector = declared(**publish)
    maker = ScyllaRecords(connector, NOW_US * 1000, ITEMS, SkippedRecords(strict=True))
    expected = [
        {"key": one["key"], "value": one["value"]} for one in maker.build(changes([TEA, OWNER])).to_pylist()
    ]
    assert merged(connector, ("r", LIVES), ("r", None)) == expected


@pytest.mark.parametrize("form", ["legacy", "advanced"])
def test_changed_rows_are_complete_and_missing_rows_are_deletes(form: str) -> None:
    bare = LIVES._replace(cells=())
    events = merged(declared(scylla={"format": form}), ("c", LIVES), ("u", bare), ("d", LIVES))
    created, updated, deleted = values(events[:3])
    plain = form == "advanced"
    shown = {"name": "tea", "qty": 5} if plain else {"name": {"value": "tea"}, "qty": {"value": 5}}
    empty = {"name": None, "qty": None} if plain else {"name": {"value": None}, "qty": {"value": None}}
    assert created["after"] == {"shop": 7, "sku": 1, "owner": None, **shown}
    assert updated["after"] == {"shop": 7, "sku": 1, "owner": None, **empty}
    assert deleted["after"] is None
    keys_alone = None if plain else {"shop": 7, "sku": 1, "name": None, "qty": None, "owner": None}
    assert [one["before"] for one in (created, updated, deleted)] == [None, None, keys_alone]
    assert [one["op"] for one in (created, updated, deleted)] == ["c", "u", "d"]
    assert {one["source"]["snapshot"] for one in (created, updated, deleted)} == {"false"}
    assert [one["source"]["ts_us"] for one in (created, updated, deleted)] == [T + 3, T, T + 3]
    assert {event["key"] for event in events} == {'{"shop":7,"sku":1}'}
    assert [event["value"] for event in events[3:]] == [None]


def test_static_columns_are_an_event_of_their_partition_that_ends_with_it() -> None:
    there = merged(declared(), ("c", None))
    emptied, deleted, tombstone = merged(declared(), ("u", None), ("d", None), static_row=None)
    (shown, none, ended) = values([*there, emptied, deleted])
    assert shown["after"] == {"shop": 7, "sku": None, "name": None, "qty": None, "owner": {"value": "ann"}}
    assert none["after"]["owner"] == {"value": None}
    assert (ended["op"], ended["after"]) == ("d", None)
    assert [one["source"]["ts_us"] for one in (shown, none, ended)] == [T, NOW_US, NOW_US]
    assert {one["key"] for one in (*there, emptied, deleted, tombstone)} == {'{"shop":7}'}
    assert tombstone["value"] is None
