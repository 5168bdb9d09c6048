"""Snapshot rows of ScyllaDB, and changes of former schemas, to records as a declaration configures them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_cdc_provider.changes.cells import CELL_PATH, CELL_UNCERTAIN, ROW_LIVENESS
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cql.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas
from server_kit.scylla.statements import Insert
from server_kit.scylla.tables import Column, Table
from tests.unit.server_kit.scylla.item import INT, ITEM, TEXT, THINGS, Server, T, i, t
from tests.unit.sources.scylla.events.snapshot_rows import (
    ITEMS,
    OWNER,
    READ_US,
    SHOP,
    TEA,
    cell,
    row_of,
    schemas_of,
)
from tests.unit.sources.scylla.logged import changes, record_of_change, time_uuid

SECOND = 1_000_000


def records(
    given: Sequence[dict[str, Any]],
    schemas: LogSchemas,
    skipped: SkippedRecords | None = None,
    **publish: Any,
) -> list[dict[str, Any]]:
    publish_options = {"topic_prefix": "my", **publish}
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "scylla"}, "publish": publish_options}
    )
    maker = ScyllaRecords(connector, 1, schemas, skipped or SkippedRecords(strict=True))
    made = maker.build(changes(given))
    return [{"key": json.loads(r["key"]), "value": json.loads(r["value"])} for r in made.to_pylist()]


def test_a_row_has_all_its_columns_and_static_columns_are_an_event_of_their_own() -> None:
    null = row_of(ITEM, ["name", "qty"], sku=2)
    found = records([TEA, OWNER, null], ITEMS)
    assert [record["key"] for record in found] == [{"shop": 7, "sku": 1}, {"shop": 7}, {"shop": 7, "sku": 2}]
    assert [record["value"]["after"] for record in found] == [
        {"shop": 7, "sku": 1, "name": {"value": "tea"}, "qty": {"value": 5}, "owner": None},
        {"shop": 7, "sku": None, "name": None, "qty": None, "owner": {"value": "ann"}},
        {"shop": 7, "sku": 2, "name": {"value": None}, "qty": {"value": None}, "owner": None},
    ]
    assert {(r["value"]["op"], r["value"]["before"]) for r in found} == {("r", None)}
    assert [r["value"]["source"]["ts_us"] for r in found] == [T + 3, T, READ_US]


@pytest.mark.parametrize("after", ["none", "full", "only-updated"])
def test_snapshot_rows_have_values_and_no_images_whatever_is_configured(after: str) -> None:
    chosen = {"format": "advanced", "before": "full", "after": after, "source_details": True}
    (found,) = records([TEA], ITEMS, scylla=chosen)
    value = found["value"]
    assert (value["before"], value["after"]) == (
        None,
        {"shop": 7, "sku": 1, "name": "tea", "qty": 5, "owner": None},
    )
    details = ("stream_id", "time", "batch_seq_no", "ttl", "by_service", "before_is_image", "after_is_image")
    assert [value["source"][name] for name in details] == [None, None, None, None, False, False, False]


def test_rows_of_incremental_snapshots_are_incremental() -> None:
    incremental = {**TEA, "request": "1"}
    found = records([TEA, incremental], ITEMS)
    assert [r["value"]["source"]["snapshot"] for r in found] == ["true", "incremental"]


def test_records_that_resolve_keys_are_no_events() -> None:
    settled = row_of(ITEM, ["qty"], [cell(0, i(5))], flags=0)
    lived = row_of(ITEM, ["name", "qty"], flags=ROW_LIVENESS)
    assert records([settled, lived], ITEMS) == []


def test_collections_are_whole_and_say_nothing_of_changes() -> None:
    names = sorted(column.name for column in THINGS.regular)
    tags, log = names.index("tags"), names.index("log")
    uncertain = CELL_PATH | CELL_UNCERTAIN
    cells = [
        cell(log, i(3), UNKNOWN_TIME, uncertain, time_uuid(T)),
        cell(log, i(1), UNKNOWN_TIME, uncertain, time_uuid(T + 1)),
        cell(tags, b"", UNKNOWN_TIME, uncertain, b"a"),
        cell(tags, b"", UNKNOWN_TIME, uncertain, b"b"),
    ]
    row = row_of(THINGS, names, sorted(cells, key=lambda c: c.column))
    chosen = {"format": "advanced", "collection_changes": True}
    (found,) = records([row], schemas_of((THINGS, 0)), scylla=chosen)
    value = found["value"]
    assert value["after"] == {
        "id": 7, "part": 1, "tags": ["a", "b"], "log": [3, 1], "attr": None, "addr": None, "qty": None,
        "labels": None,
    }  # fmt: skip
    assert set(value["collections"].values()) == {None}
    assert value["source"]["ts_us"] == READ_US  # elements that show no write time


def test_an_undecodable_row_is_reported_with_its_key() -> None:
    broken = {**TEA, "payload": TEA["payload"][:-3]}
    with pytest.raises(CorruptInput, match=r"shop\.item, snapshot, key 00000007"):
        records([broken], ITEMS)
    skipped = SkippedRecords(strict=False)
    assert len(records([TEA, broken, OWNER], ITEMS, skipped)) == 2
    assert len(skipped.undecodable) == 1


def test_reads_can_be_left_out() -> None:
    skipped = SkippedRecords(strict=True)
    assert records([TEA, OWNER], ITEMS, skipped, skipped_operations=["r"]) == []
    assert skipped.by_kind["read"] == 2


def test_a_row_is_read_by_the_schema_of_its_time() -> None:
    """Names alone can't identify a column that was dropped and added again with another type."""
    without = replace(ITEM, regular=(Column("name", TEXT),))
    again = replace(ITEM, regular=(Column("name", TEXT), Column("qty", TEXT)))
    history = schemas_of((ITEM, T), (without, T + 20 * SECOND), (again, T + 40 * SECOND))
    moments = {5: ["name", "qty"], 25: ["name"], 45: ["name", "qty"]}
    values = {5: i(5), 25: None, 45: t("five")}
    given = []
    for second, names in moments.items():
        value = values[second]
        cells = [cell(0, t("tea"))] + ([] if value is None else [cell(1, value)])
        at = datetime.fromtimestamp(T / 1e6 + second, UTC)
        given.append(row_of(ITEM, names, cells, captured_at=at))
    found = [row for one in given for row in records([one], history)]
    shown = [{n: v for n, v in r["value"]["after"].items() if n in ("name", "qty")} for r in found]
    assert shown == [
        {"name": {"value": "tea"}, "qty": {"value": 5}},
        {"name": {"value": "tea"}},
        {"name": {"value": "tea"}, "qty": {"value": "five"}},
    ]


def test_rows_of_a_table_whose_schema_is_not_recorded_are_refused() -> None:
    with pytest.raises(CorruptInput, match=r"no schema of the log of shop\.item"):
        records([{**TEA, "schema_id": "0" * 32}], ITEMS)


@pytest.mark.covers("SCY-CFG-13")
def test_changes_of_one_batch_are_read_each_by_its_own_schema() -> None:
    """Of a table whose column qty was dropped and came again as text."""
    again = replace(ITEM, regular=(Column("name", TEXT), Column("qty", TEXT), Column("price", INT)))

    def change(table: Table, at: int, **values: bytes) -> dict[str, Any]:
        (logged,) = Server(table).execute(Insert((SHOP,), (i(1),), values), at=at)
        return record_of_change(table, logged, (SHOP,))

    given = [
        change(ITEM, T, qty=i(5)),
        change(again, T + 1, qty=t("five"), price=i(9)),
        change(ITEM, T + 2, qty=i(6)),
    ]
    found = records(given, schemas_of((ITEM, 0), (again, 1)), scylla={"format": "advanced"})
    common = {"shop": 7, "sku": 1, "name": None, "owner": None}
    assert [r["value"]["after"] for r in found] == [
        {**common, "qty": 5},
        {**common, "qty": "five", "price": 9},
        {**common, "qty": 6},
    ]


def test_cloud_events_of_rows_of_snapshots_have_ids_of_their_own() -> None:
    found = records([TEA, OWNER, row_of(ITEM, ["name", "qty"], sku=2)], ITEMS, envelope="cloudevents")
    ids = [record["value"]["id"] for record in found]
    assert ids[0] == f'name:my;topic:my.shop.item;key:{{"shop":7,"sku":1}};ts_us:{T + 3}'
    assert len(set(ids)) == 3
