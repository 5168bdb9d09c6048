"""Notifications: their text is Debezium's, and a channel that fails stops nothing."""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events import notifications as topic_records
from airflow_cdc_provider.events.encoder import Converters, encode, text_of, to_lines
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.notifications.channels import CallbackChannel, FileChannel, LogChannel
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.notifications.snapshot_events import ScanStatus, SnapshotEvent, SnapshotEventKind
from airflow_cdc_provider.notifications.snapshots import (
    InitialSnapshot,
    incremental_notification,
)

EVENTS = Path(__file__).resolve().parents[2] / "fixtures" / "mongodb" / "events"
PROPERTIES = {"topic.prefix": "shop", "connector.class": "io.debezium.connector.mongodb.MongoDbConnector"}

STATUSES = [status for status in get_args(ScanStatus) if status]

called: list[dict[str, Any]] = []


def note(notification: dict[str, Any]) -> None:
    """A user's function."""
    called.append(notification)


@dataclass
class Kept:
    """A channel that keeps what it gets."""

    name: str = "kept"
    waiting: int = 0
    notifications: list[Notification] = field(default_factory=list)
    flushed: int = 0

    def send(self, notification: Notification) -> None:
        self.notifications.append(notification)

    def flush(self) -> None:
        self.flushed += 1


class Broken:
    """A channel that can do nothing."""

    name = "broken"
    waiting = 2

    def send(self, notification: Notification) -> None:
        raise OSError("no way")

    def flush(self) -> None:
        raise RuntimeError("no way either")


def happening(
    kind: SnapshotEventKind, tables: tuple[str, ...] = (), table: str = "", **more: Any
) -> SnapshotEvent:
    values: dict[str, Any] = {"snapshot": "incremental", "request_id": "ad-hoc-1", "at_us": 7_000, **more}
    return SnapshotEvent(kind, tables=tables, table=table, **values)


def debeziums() -> list[dict[str, Any]]:
    """The notifications that Debezium wrote to a topic while it took an initial snapshot."""
    with gzip.open(EVENTS / "notif.jsonl.gz", "rt") as lines:
        records = [json.loads(line) for line in lines]
    return [record for record in records if record["topic"] == "notes"]


@pytest.mark.recorded
@pytest.mark.covers("MDB-XD-08", "MDB-XD-09")
def test_an_initial_snapshot_notifies_byte_for_byte_as_debezium() -> None:
    their = debeziums()
    kept = Kept()
    notices = InitialSnapshot(Notifier([kept]), "notif", row_counts=False)
    notices.started()
    for table in ("shop.flat", "shop.orders"):
        notices.in_progress(table)
        notices.table_completed(table, 7)
    notices.completed()

    assert len(their) == len(kept.notifications) == 6
    for ours, record in zip(kept.notifications, their, strict=True):
        value = json.loads(record["value"])
        same = Notification(
            value["id"], ours.type, ours.aggregate_type, ours.additional_data, value["timestamp"]
        )
        assert same.to_json() == record["value"]
        assert json.dumps(same.key(), separators=(",", ":")) == record["key"]
        assert Notification.from_json(record["value"]) == same
    assert len({n.id for n in kept.notifications}) == 6
    assert all(n.timestamp_ms > 1_700_000_000_000 for n in kept.notifications)


@pytest.mark.recorded
@pytest.mark.covers("MDB-XD-08")
def test_records_of_a_topic_are_debeziums_with_and_without_schemas() -> None:
    their = debeziums()
    parsed = [Notification.from_json(record["value"]) for record in their]
    with gzip.open(EVENTS / "notif.schemas.json.gz", "rt") as file:
        key_schema, value_schema = file.read().splitlines()[1:3]
    for schemas in (False, True):
        records = encode(topic_records.build("notes", parsed), Converters(schemas=schemas))
        lines = [json.loads(line) for line in text_of(to_lines(records, [("h", '"x"')])).splitlines()]
        for line, record in zip(lines, their, strict=True):
            assert line["topic"] == "notes"
            assert line["headers"] == []
            key, value = record["key"], record["value"]
            if schemas:
                key = f'{{"schema":{key_schema.rstrip(",")},"payload":{key}}}'
                value = f'{{"schema":{value_schema.rstrip(",")},"payload":{value}}}'
            assert (line["key"], line["value"]) == (key, value)


@pytest.mark.covers("MDB-XD-09")
def test_an_initial_snapshot_reports_rows_unless_configured_not_to_and_how_it_ended() -> None:
    kept = Kept()
    notices = InitialSnapshot(Notifier([kept]), "shop")
    notices.skipped()
    notices.skipped()
    notices.started()
    notices.table_completed("shop.orders", 12)
    notices.table_completed("shop.carts", None)
    notices.aborted()
    notices.skipped()

    found = [(n.type, dict(n.additional_data)) for n in kept.notifications]
    shop = {"connector_name": "shop"}
    scanned = {**shop, "status": "SUCCEEDED"}
    assert found == [
        ("SKIPPED", shop),
        ("STARTED", shop),
        (
            "TABLE_SCAN_COMPLETED",
            {**scanned, "scanned_collection": "shop.orders", "total_rows_scanned": "12"},
        ),
        ("TABLE_SCAN_COMPLETED", {**scanned, "scanned_collection": "shop.carts"}),
        ("ABORTED", shop),
    ]
    assert {n.aggregate_type for n in kept.notifications} == {"Initial Snapshot"}
    assert kept.flushed == 2


@pytest.mark.covers("MDB-XD-10")
def test_incremental_snapshots_are_reported_with_the_id_of_their_signal() -> None:
    tables = ("shop.orders", "shop.carts")
    events = [
        happening("started", tables),
        happening("in_progress", tables, "shop.orders", chunk_to='"b"', maximum_key='"z"', rows=2),
        happening("in_progress", tables, "shop.orders", maximum_key='"z"', rows=1),
        happening("paused", tables),
        happening("resumed", tables),
        *(happening("table_scanned", tables, "shop.orders", rows=9, status=status) for status in STATUSES),
        happening("in_progress", tables[1:], "shop.carts", chunk_to="1"),
        happening("tables_stopped", tables[1:]),
        happening("aborted", tables[1:]),
        happening("aborted"),
        happening("completed"),
    ]
    notifications = [incremental_notification(event, "shop") for event in events]

    assert {(n.id, n.timestamp_ms, n.aggregate_type) for n in notifications if n} == {
        ("ad-hoc-1", 7, "Incremental Snapshot")
    }
    found = [
        (n.type, {name: text for name, text in n.additional_data.items() if name != "connector_name"})
        for n in notifications
        if n
    ]
    both = {"data_collections": "shop.orders,shop.carts"}
    scanned = {**both, "scanned_collection": "shop.orders", "total_rows_scanned": "9"}
    orders = {
        **both,
        "current_collection_in_progress": "shop.orders",
        "maximum_key": '"z"',
        "last_processed_key": '"b"',
    }
    carts = {
        "data_collections": "shop.carts",
        "current_collection_in_progress": "shop.carts",
        "maximum_key": '"<null>"',
        "last_processed_key": "1",
    }
    assert found == [
        ("STARTED", both),
        ("IN_PROGRESS", orders),
        ("IN_PROGRESS", {**orders, "last_processed_key": '"z"'}),
        ("PAUSED", both),
        ("RESUMED", both),
        *(("TABLE_SCAN_COMPLETED", {**scanned, "status": status}) for status in STATUSES),
        ("IN_PROGRESS", carts),
        ("ABORTED", {"data_collections": "shop.carts"}),
        ("ABORTED", {"data_collections": "shop.carts"}),
        ("ABORTED", {}),
        ("COMPLETED", {}),
    ]
    assert all(n is not None and n.additional_data["connector_name"] == "shop" for n in notifications)


def test_a_snapshot_of_another_kind_is_reported_by_who_takes_it_and_one_without_id_gets_one() -> None:
    assert incremental_notification(happening("started", snapshot="blocking"), "shop") is None
    nameless = incremental_notification(happening("completed", request_id="", at_us=0), "shop")
    assert nameless is not None
    assert len(nameless.id) == 36
    assert nameless.timestamp_ms > 1_700_000_000_000


def test_a_channel_that_fails_is_logged_and_counted_and_the_others_get_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept()
    notifier = Notifier([Broken(), kept])
    with caplog.at_level(logging.WARNING):
        InitialSnapshot(notifier, "shop").started()
        notifier.flush()
    assert [n.type for n in kept.notifications] == ["STARTED"]
    assert (notifier.sent, notifier.failed) == (1, {"broken": 3})
    assert "channel broken: STARTED of Initial Snapshot could not be sent: no way" in caplog.text


def test_log_file_and_function_get_the_same(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    called.clear()
    path = tmp_path / "notifications.jsonl"
    function = CallbackChannel.load(f"{__name__}:note")
    with caplog.at_level(logging.INFO):
        InitialSnapshot(Notifier([LogChannel(), FileChannel(path), function]), "shop").started()
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == called[0]
    assert called[0]["type"] == "STARTED"
    assert f"notification {line}" in caplog.text


@pytest.mark.parametrize("place", ["no.such.module:note", f"{__name__}:nobody", f"{__name__}:EVENTS"])
def test_a_function_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="the notification function"):
        CallbackChannel.load(place)


def declared(**options: Any) -> Connector:
    return Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "notifications": options} if options else {}
    )


def test_a_function_and_its_channel_go_together() -> None:
    assert declared(channels=["callback"], callback="shop.notes:notify").notifications.callback
    for options in ({"channels": ["callback"]}, {"callback": "shop.notes:notify"}):
        with pytest.raises(ConfigurationError, match="require each other"):
            declared(**options)
    with pytest.raises(ConfigurationError, match=r"package\.module:function"):
        declared(channels=["callback"], callback="no function")
    assert declared(channels=["sink"], topic="notes", connection="k").notifications.to_topic
    for wrong in ({"channels": ["sink"]}, {"topic": "notes"}, {"connection": "k"}):
        with pytest.raises(ConfigurationError, match="require each other"):
            declared(**wrong)
    with pytest.raises(ConfigurationError, match="letters, digits"):
        declared(channels=["sink"], topic="no topic")


@pytest.mark.covers("MDB-NOT-01", "MDB-NOT-02")
def test_debeziums_channels_are_taken_over() -> None:
    taken = from_debezium(
        {
            **PROPERTIES,
            "notification.enabled.channels": "log,jmx,callback,sink",
            "notification.callback.function": "shop.notes:notify",
            "notification.sink.topic.name": "notes",
        }
    ).connector.notifications
    assert taken.channels == ("log", "airflow", "callback", "sink")
    assert (taken.callback, taken.topic) == ("shop.notes:notify", "notes")
    assert from_debezium(PROPERTIES).connector.notifications.channels == ()
    for channel, reason in (("sink", "found no topic"), ("com.shop.Channel", "Java classes")):
        with pytest.raises(ConfigurationError, match=reason):
            from_debezium({**PROPERTIES, "notification.enabled.channels": channel})
    unused = from_debezium({**PROPERTIES, "notification.sink.topic.name": "notes"})
    assert unused.connector.notifications.topic == ""
    assert any("sink is not among the channels" in note for note in unused.notes)
