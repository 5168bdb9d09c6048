"""Changes of ScyllaDB to records as a declaration configures them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, SchemaRejected
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas
from server_kit.scylla.log_rows import Change, LogRow
from server_kit.scylla.statements import DeletePartition, SetWhole, Update
from server_kit.scylla.tables import Preimage
from tests.unit.server_kit.scylla.item import ITEM, T, t
from tests.unit.sources.scylla.events.logged_changes import (
    DELETE,
    INSERT,
    NOW_NS,
    ROW,
    SHOP,
    UPDATE,
    connector,
    logged,
    made,
    records,
)
from tests.unit.sources.scylla.logged import STREAM, changes, record_of_change, schema_payload


@pytest.mark.covers("SCY-EVT-11")
def test_rows_without_an_envelope_have_plain_values() -> None:
    key = {"shop": 7, "sku": 1}
    rows = records(logged(INSERT, UPDATE, DELETE), unwrap={"enabled": True})
    assert [row["value"] for row in rows] == [
        {"name": "tea", "owner": None, "qty": None, **key},
        {"name": None, "owner": None, "qty": 3, **key},
        None,
    ]
    assert [row["key"] for row in rows] == [key] * 3


def test_records_of_a_table_whose_topic_is_another_ones_have_a_fault() -> None:
    schemas = LogSchemas([("shop.item", 0, schema_payload(ITEM))])
    declared = connector(kafka={"connection": "kafka"})
    skipped = SkippedRecords(strict=True)
    builder = ScyllaRecords(declared, NOW_NS, schemas, skipped, owners={"my.shop.item": "a.owner"})
    rows = builder.build(changes(record_of_change(ITEM, one, SHOP) for one in logged(INSERT)))
    assert rows.num_rows
    assert all("a.owner and shop.item would share" in text for text in rows["fault"].to_pylist())


@pytest.mark.covers("SCY-EVT-22")
def test_the_version_is_that_of_the_connector_whose_events_these_are() -> None:
    (plain,), (own,) = records(logged(INSERT)), records(logged(INSERT), version="9.9")
    versions = [record["value"]["source"]["version"] for record in (plain, own)]
    assert versions == ["2.0.4", "9.9"]


@pytest.mark.covers("SCY-EVT-13")
def test_debeziums_own_extraction_leaves_the_structs_around_values() -> None:
    rows = records(logged(INSERT), unwrap={"enabled": True}, scylla={"keep_cell_structs": True})
    assert rows[0]["value"]["name"] == {"value": "tea"}


def test_rewritten_deletes_show_the_row_before() -> None:
    rows = records(
        logged(INSERT, DELETE, preimage=Preimage.FULL),
        unwrap={"enabled": True, "deletes": "rewrite"},
        scylla={"format": "advanced", "before": "full"},
    )
    assert rows[1]["value"] == {
        "name": "tea",
        "owner": None,
        "qty": None,
        "shop": 7,
        "sku": 1,
        "__deleted": True,
    }


def test_events_come_in_the_order_of_their_changes_with_those_of_static_columns() -> None:
    static = Update(SHOP, None, (SetWhole("owner", t("ann")),))
    found = records(logged(INSERT, static, UPDATE))
    assert [(row["value"]["op"], len(row["key"])) for row in found] == [("c", 2), ("u", 1), ("u", 2)]


def test_deletes_that_no_event_shows_are_counted() -> None:
    skipped = SkippedRecords(strict=True)
    assert records(logged(DeletePartition(SHOP)), skipped) == []
    assert skipped.report() == ["skipped: 1 of kind partition delete"]


def test_an_insert_whose_postimage_is_missing_is_named_by_stream_and_time() -> None:
    skipped = SkippedRecords(strict=False)
    chosen = {"format": "advanced", "after": "full"}
    assert len(records(logged(INSERT, UPDATE), skipped, scylla=chosen)) == 1
    (place,) = skipped.undecodable
    assert place.startswith(f"shop.item, stream {STREAM.hex()}, time 04afc000-833b-11ee-8080-808080808080: ")
    with pytest.raises(CorruptInput, match="no postimage"):
        records(logged(INSERT), scylla=chosen)


@pytest.mark.covers("SCY-LOG-15")
def test_an_unknown_operation_is_reported_with_table_stream_and_time() -> None:
    unknown = Change(T, (LogRow(77, ROW, end_of_batch=True),))
    with pytest.raises(CorruptInput, match=r"shop\.item, stream c0.*, time 04afc0.*operation 77"):
        records([unknown])
    skipped = SkippedRecords(strict=False)
    assert len(records([*logged(INSERT), unknown], skipped)) == 1
    assert len(skipped.undecodable) == 1


def test_skipped_operations_are_left_out_and_counted() -> None:
    skipped = SkippedRecords(strict=True)
    found = records(logged(INSERT, UPDATE, DELETE), skipped, skipped_operations=["u"], tombstones=False)
    assert [row["value"]["op"] for row in found] == ["c", "d"]
    assert skipped.by_kind["update"] == 1


@pytest.mark.parametrize(
    ("publish", "named"),
    [
        ({"scylla": {"before": "full"}}, "publish.scylla.before has no effect in format legacy"),
        ({"scylla": {"format": "advanced", "preimages": True}}, "publish.scylla.preimages has no effect"),
        ({"scylla": {"key_placement": ["nowhere"]}}, "key_placement"),
        ({"scylla": {"format": "advanced", "payload_key_name": "after"}}, "payload_key_name"),
        ({"scylla": {"keep_cell_structs": True}}, "keep_cell_structs"),
        ({"envelope": "document"}, "publish.envelope"),
        ({"mongodb": {"json": "strict"}}, "publish.mongodb"),
    ],
)
def test_choices_that_say_nothing_are_refused(publish: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        connector(**publish)


def test_rows_in_which_an_added_field_would_replace_a_column_become_dead_letters() -> None:
    unwrap = {"enabled": True, "add_fields": ["op:qty"], "add_fields_prefix": ""}
    given = logged(INSERT, UPDATE)

    with pytest.raises(SchemaRejected, match=r"would be named 'qty'.*in topic my\.shop\.item"):
        records(given, unwrap=unwrap)

    kafka = {"connection": "kafka", "on_record_error": "dead_letters"}
    assert all("named 'qty'" in row["fault"] for row in made(given, unwrap=unwrap, kafka=kafka))
