"""Events of ScyllaDB as its source connector writes them, of log rows that the imitation's model makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.events.encoder import Converters
from server_kit.scylla.log_rows import Change, LogRow
from server_kit.scylla.statements import DeletePartition, DeleteRow, Insert, SetWhole, Statement, Update
from server_kit.scylla.tables import Column, Delta, Preimage, Table
from server_kit.scylla.values import CqlType
from tests.conftest import ROOT
from tests.unit.server_kit.scylla.item import INT, ITEM, TEXT, Server, T, i, server, t
from tests.unit.sources.scylla.events.published import encoded, published

SHOP = (i(7),)
ROW = (i(1),)

EXAMPLE = Table(
    "ks",
    "example",
    (Column("pk", INT),),
    (),
    (),
    tuple(Column(f"v{n}", INT) for n in (1, 2, 3)),
)
"""The table of the connector's first description: pk int PRIMARY KEY, v1, v2, v3 int."""


def insert(**values: bytes | None) -> Insert:
    return Insert(SHOP, ROW, values)


def update(**values: bytes | None) -> Update:
    return Update(SHOP, ROW, tuple(SetWhole(column, value) for column, value in values.items()))


def logged(database: Server, *statements: Statement) -> list[Change]:
    """Execute statements one microsecond after the other."""
    return [
        change for n, statement in enumerate(statements) for change in database.execute(statement, at=T + n)
    ]


def values(table: Table, changes: list[Change], **options: Any) -> list[dict[str, Any]]:
    return [r["value"] for r in published(table, changes, SHOP, **options) if r["value"]]


def rows(table: Table, changes: list[Change], **options: Any) -> list[tuple[str, Any, Any]]:
    """Return what is done, and the rows before and after."""
    return [(v["op"], v["before"], v["after"]) for v in values(table, changes, **options)]


def with_images(preimage: Preimage = Preimage.ON) -> Server:
    return server(preimage=preimage, postimage=True)


@pytest.mark.covers("SCY-EVT-02", "SCY-EVT-07", "SCY-EVT-08", "SCY-EVT-09", "SCY-EVT-10")
def test_legacy_cells_distinguish_values_nulls_and_unmodified_columns() -> None:
    database = Server(EXAMPLE)
    changes = logged(
        database,
        Insert(SHOP, (), {"v1": i(2), "v2": i(3), "v3": i(4)}),
        Insert(SHOP, (), {"v1": i(20), "v3": None}),
        Update(SHOP, (), (SetWhole("v2", i(5)),)),
        DeletePartition(SHOP),
    )
    nothing = {"v1": None, "v2": None, "v3": None}
    assert rows(EXAMPLE, changes) == [
        ("c", None, {"pk": 7, "v1": {"value": 2}, "v2": {"value": 3}, "v3": {"value": 4}}),
        ("c", None, {"pk": 7, "v1": {"value": 20}, "v2": None, "v3": {"value": None}}),
        ("u", None, {"pk": 7, **nothing, "v2": {"value": 5}}),
        ("d", {"pk": 7, **nothing}, None),
    ]


@pytest.mark.covers("SCY-EVT-03", "SCY-EVT-22", "SCY-EVT-23", "SCY-LOG-07")
def test_an_event_has_the_envelope_and_the_source_block_of_the_connector() -> None:
    (record,) = published(ITEM, logged(server(), update(qty=i(3))), SHOP)
    assert record["topic"] == "my.shop.item"
    assert record["key"] == {"shop": 7, "sku": 1}
    assert record["value"] == {
        "source": {
            "version": "2.0.4",
            "connector": "scylla",
            "name": "my",
            "ts_ms": T // 1000,
            "snapshot": "false",
            "db": "shop",
            "sequence": None,
            "ts_us": T,
            "ts_ns": T * 1000,
            "keyspace_name": "shop",
            "table_name": "item",
        },
        "before": None,
        "after": {"name": None, "owner": None, "qty": {"value": 3}, "shop": 7, "sku": 1},
        "op": "u",
        "ts_ms": 1_700_000_009_123,
        "transaction": None,
        "ts_us": 1_700_000_009_123_456,
        "ts_ns": 1_700_000_009_123_456_789,
    }


@pytest.mark.covers("SCY-EVT-24")
def test_a_tombstone_follows_each_delete_that_has_a_key() -> None:
    changes = logged(server(), DeleteRow(SHOP, ROW))
    first, second = published(ITEM, changes, SHOP)
    assert (first["value"]["op"], second["value"], second["key"]) == ("d", None, first["key"])
    assert len(published(ITEM, changes, SHOP, tombstones=False)) == 1
    assert len(published(ITEM, changes, SHOP, format="advanced", key_placement=("payload-key",))) == 1


@pytest.mark.covers("SCY-EVT-20")
def test_legacy_preimages_are_in_before_if_configured() -> None:
    changes = logged(with_images(), insert(name=t("tea")), update(name=None, qty=i(3)), DeleteRow(SHOP, ROW))
    key = {"name": None, "owner": None, "qty": None, "shop": 7, "sku": 1}
    before = [before for _, before, _ in rows(ITEM, changes, preimages=True)]
    assert before == [
        None,
        {**key, "name": {"value": "tea"}, "qty": {"value": None}},
        {**key, "name": {"value": None}, "qty": {"value": 3}},
    ]
    assert [before for _, before, _ in rows(ITEM, changes)] == [None, None, key]


def test_a_null_in_a_preimage_depends_on_its_own_flag_and_not_on_the_changes_flag() -> None:
    changes = logged(with_images(), insert(name=t("tea")), update(qty=i(3)), update(qty=None))
    cells = [before["qty"] for _, before, _ in rows(ITEM, changes, preimages=True) if before]
    assert cells == [{"value": None}, {"value": 3}]


@pytest.mark.covers("SCY-EVT-14", "SCY-EVT-17")
def test_advanced_values_are_plain_and_an_insert_has_its_own_without_postimages() -> None:
    changes = logged(server(), insert(name=t("tea"), qty=None), update(qty=i(3)), DeleteRow(SHOP, ROW))
    key = {"shop": 7, "sku": 1}
    assert rows(ITEM, changes, format="advanced") == [
        ("c", None, {"name": "tea", "owner": None, "qty": None, **key}),
        ("u", None, {"name": None, "owner": None, "qty": 3, **key}),
        ("d", None, None),
    ]


@pytest.mark.covers("SCY-IMG-02", "SCY-IMG-03", "SCY-EVT-15", "SCY-EVT-16")
@pytest.mark.parametrize("preimage", [Preimage.ON, Preimage.FULL])
def test_full_images_are_whole_rows_whichever_columns_preimages_show(preimage: Preimage) -> None:
    changes = logged(
        with_images(preimage), insert(name=t("tea"), qty=i(2)), update(qty=i(3)), DeleteRow(SHOP, ROW)
    )
    row = {"name": "tea", "owner": None, "shop": 7, "sku": 1}
    assert rows(ITEM, changes, format="advanced", before="full", after="full") == [
        ("c", None, {**row, "qty": 2}),
        ("u", {**row, "qty": 2}, {**row, "qty": 3}),
        ("d", {**row, "qty": 3}, None),
    ]


@pytest.mark.covers("SCY-EVT-15", "SCY-EVT-16")
def test_only_updated_images_of_an_update_show_what_it_says_something_of() -> None:
    changes = logged(
        with_images(Preimage.FULL), insert(name=t("tea"), qty=i(2)), update(qty=i(3)), DeleteRow(SHOP, ROW)
    )
    row = {"name": "tea", "owner": None, "shop": 7, "sku": 1}
    assert rows(ITEM, changes, format="advanced", before="only-updated", after="only-updated") == [
        ("c", None, {**row, "qty": 2}),
        ("u", {**row, "name": None, "qty": 2}, {**row, "name": None, "qty": 3}),
        ("d", {**row, "qty": 3}, None),
    ]


def test_a_row_that_was_not_there_has_no_before_and_its_update_is_not_dropped() -> None:
    changes = logged(with_images(), update(qty=i(3)))
    after = {"name": None, "owner": None, "qty": 3, "shop": 7, "sku": 1}
    assert rows(ITEM, changes, format="advanced", before="full", after="full") == [("u", None, after)]


@pytest.mark.covers("SCY-EVT-18", "SCY-EVT-19")
def test_the_key_has_the_configured_placement() -> None:
    changes = logged(with_images(), insert(name=t("tea")), update(name=t("rum")))
    plain = {"name": "rum", "owner": None, "qty": None}
    key = {"shop": 7, "sku": 1}

    def record(*places: str, **options: Any) -> tuple[Any, ...]:
        options = {
            "format": "advanced",
            "before": "full",
            "after": "full",
            "key_placement": places,
            **options,
        }
        last = published(ITEM, changes, SHOP, **options)[-1]
        value = last["value"]
        own = value.get(options.get("payload_key_name", "key"))
        return last["key"], value["before"], value["after"], own, last["headers"]

    before = {**plain, "name": "tea"}
    assert record("kafka-key") == (key, before, plain, None, [])
    assert record("payload-after") == (None, before, {**plain, **key}, None, [])
    assert record("payload-before") == (None, {**before, **key}, plain, None, [])
    assert record("payload-key") == (None, before, plain, key, [])
    assert record("payload-key", payload_key_name="pk") == (None, before, plain, key, [])
    headers = [["pk.shop", '"7"'], ["ck.sku", '"1"']]
    assert [[n, v] for n, v in record("kafka-headers")[4]] == headers


@pytest.mark.covers("SCY-EVT-26")
def test_static_columns_are_events_of_the_partition_and_not_of_a_row_with_a_null_key() -> None:
    changes = logged(server(), Update(SHOP, None, (SetWhole("owner", t("ann")),)))
    (record,) = published(ITEM, changes, SHOP, converters=Converters(schemas=True))
    assert record["key"]["payload"] == {"shop": 7}
    assert record["key"]["schema"]["name"] == "my.shop.item.PartitionKey"
    assert record["value"]["payload"]["after"]["owner"] == {"value": "ann"}
    (record,) = published(ITEM, changes, SHOP, static_keys="null")
    assert record["key"] == {"shop": 7, "sku": None}


def test_a_batch_of_a_static_column_and_rows_gives_its_events_in_order() -> None:
    changes = server().execute(insert(qty=i(9)), Update(SHOP, None, (SetWhole("owner", t("bob")),)))
    records = published(ITEM, changes, SHOP)
    assert [(r["key"], r["value"]["op"]) for r in records] == [
        ({"shop": 7}, "u"),
        ({"shop": 7, "sku": 1}, "c"),
    ]


@pytest.mark.covers("SCY-EVT-27")
def test_the_ttl_of_a_write_is_reported_and_its_nulls_are_no_second_event() -> None:
    statement = Insert(SHOP, ROW, {"name": t("jam"), "qty": None}, ttl=60)
    (change,) = server().execute(statement)
    assert len(change.rows) == 2
    (value,) = values(ITEM, [change], source_details=True)
    assert value["source"]["ttl"] == 60
    assert value["after"] == {
        "name": {"value": "jam"},
        "owner": None,
        "qty": {"value": None},
        "shop": 7,
        "sku": 1,
    }


@pytest.mark.covers("SCY-IMG-06")
def test_the_source_block_reports_which_part_is_an_image() -> None:
    changes = logged(with_images(), insert(name=t("tea")), update(qty=i(3)), DeleteRow(SHOP, ROW))
    found_values = values(ITEM, changes, format="advanced", before="full", after="full", source_details=True)
    images = [(v["source"]["before_is_image"], v["source"]["after_is_image"]) for v in found_values]
    assert images == [(False, True), (True, True), (True, False)]
    page = " ".join((ROOT / "docs" / "source-scylla.md").read_text().split())
    assert "reads images before the write without isolation: two concurrent writes to a row may log" in page
    plain = values(ITEM, changes, format="advanced", source_details=True)
    assert {(v["source"]["before_is_image"], v["source"]["after_is_image"]) for v in plain} == {
        (False, False)
    }


@pytest.mark.covers("SCY-LOG-14")
def test_source_details_name_a_change_for_good() -> None:
    (value,) = values(ITEM, logged(server(), insert(qty=i(1))), source_details=True)
    source = value["source"]
    assert source["stream_id"] == "c000000000000000aacd159e24000051"
    assert source["time"] == "04afc000-833b-11ee-8080-808080808080"
    assert (source["batch_seq_no"], source["by_service"]) == (0, False)
    (expired,) = values(ITEM, [Change(T, (LogRow(-3, ROW, end_of_batch=True),))], source_details=True)
    assert (expired["op"], expired["source"]["by_service"]) == ("d", True)


@pytest.mark.covers("SCY-LOG-17")
def test_a_log_of_keys_has_only_keys_without_images() -> None:
    changes = logged(server(delta=Delta.KEYS), insert(name=t("tea"), qty=i(2)))
    empty = {"name": None, "owner": None, "qty": None, "shop": 7, "sku": 1}
    assert rows(ITEM, changes) == [("c", None, empty)]
    changes = logged(server(delta=Delta.KEYS, postimage=True), insert(name=t("tea"), qty=i(2)))
    full = {**empty, "name": "tea", "qty": 2}
    assert rows(ITEM, changes, format="advanced", after="full") == [("c", None, full)]


@pytest.mark.covers("SCY-EVT-12")
def test_flattened_columns_are_in_the_envelope_without_their_structs() -> None:
    changes = logged(server(), insert(name=t("tea"), qty=None))
    assert rows(ITEM, changes, flatten_columns=True) == [
        ("c", None, {"name": "tea", "owner": None, "qty": None, "shop": 7, "sku": 1})
    ]


def test_legacy_skips_collections_unless_all_types_is_set() -> None:
    table = Table(
        "shop",
        "box",
        (Column("id", INT),),
        (),
        (),
        (Column("tags", CqlType("set", (TEXT,), frozen=True)), Column("n", INT)),
    )
    changes = logged(
        Server(table), Insert(SHOP, (), {"tags": bytes.fromhex("000000010000000161"), "n": i(1)})
    )
    assert rows(table, changes) == [("c", None, {"id": 7, "n": {"value": 1}})]
    shown = {"id": 7, "n": {"value": 1}, "tags": {"value": ["a"]}}
    assert rows(table, changes, all_types=True) == [("c", None, shown)]


def test_schemas_have_the_connectors_names_and_order() -> None:
    changes = logged(server(), insert(name=t("tea")))
    (record,) = published(ITEM, changes, SHOP, converters=Converters(schemas=True))
    schema = record["value"]["schema"]
    assert schema["name"] == "my.shop.item.Envelope"
    fields = [field["field"] for field in schema["fields"]]
    assert fields == ["source", "before", "after", "op", "ts_ms", "transaction", "ts_us", "ts_ns"]
    source, before, after = schema["fields"][:3]
    assert source["name"] == "com.scylladb.cdc.debezium.connector"
    assert (before["name"], after["name"]) == ("my.shop.item.Before", "my.shop.item.After")
    cell = after["fields"][0]
    assert cell == {
        "type": "struct",
        "fields": [{"type": "string", "optional": True, "field": "value"}],
        "optional": True,
        "name": "my.shop.item.name.Cell",
        "field": "name",
    }
    assert record["key"]["schema"]["name"] == "my.shop.item.Key"


def test_avro_takes_every_form() -> None:
    changes = logged(with_images(), insert(name=t("tea")), update(qty=i(3)), DeleteRow(SHOP, ROW))
    avro = Converters("avro", "avro", schemas=True)
    for options in ({}, {"format": "advanced", "before": "full", "after": "full", "source_details": True}):
        records = encoded(ITEM, changes, SHOP, avro, **options)
        schemas = {json.loads(text)["name"] for text in records["value_schema"].to_pylist()}
        assert (records.num_rows, schemas) == (4, {"Envelope"})
