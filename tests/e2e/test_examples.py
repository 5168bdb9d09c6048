"""Each example DAG, as it stands, in a real Airflow with real databases and Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.feeds.cassandra import list_segments
from tests.e2e.conftest import Airflow, Outcome

if TYPE_CHECKING:
    from server_kit import CassandraServer, KafkaServer, VitessServer
    from server_kit.scylla import ImitatedScylla

pytestmark = [pytest.mark.e2e, pytest.mark.integration]


def test_news_start_a_sync_and_then_the_lag_is_small(airflow: Airflow, synced: Outcome) -> None:
    outcome = synced

    assert outcome.value("news")["news"] is True
    value = outcome.value("sync")
    assert value["tables"]["store.orders"]["rows_written"] == 100
    assert value["tables"]["store.customers"]["rows_written"] == 10
    assert value["offset"]["stream"]["v"] == 1
    assert outcome.value("near")["lag_seconds"] is not None, "the stored offset reached the sensor"
    events = outcome.events()
    assert events["cdc/store/changes"]["run_id"]
    assert events["cdc/store/mirror/store.orders"]["rows_written"] == 100
    assert not list(airflow.work.rglob("connection.json"))


@pytest.mark.long
def test_a_table_is_read_again_on_demand(airflow: Airflow, synced: Outcome) -> None:
    outcome = airflow.run("snapshot_on_demand", table="store.customers", mode="replace").succeeded()
    assert list(outcome.value("snapshot")["tables"]) == ["store.customers"]
    assert outcome.value("verify")["tables"]["store.customers"]["note"] == "equal"


def test_scheduled_snapshots_make_mirrors_equal_to_the_source_again(
    airflow: Airflow, store: Any, synced: Outcome
) -> None:
    store["customers"].insert_one({"_id": 10, "name": "new"})
    store["customers"].delete_one({"_id": 10})
    store["orders"].update_one({"_id": 2}, {"$set": {"amount": -2}})

    outcome = airflow.run("scheduled_snapshots", warm=True).succeeded()

    assert outcome.value("snapshot")["snapshot"]["rows_by_table"] == {
        "store.orders": 100,
        "store.customers": 10,
    }
    assert outcome.value("snapshot")["tables"]["store.orders"]["rows_written"] >= 1
    compared = outcome.value("verify")["tables"]
    assert {table: found["note"] for table, found in compared.items()} == dict.fromkeys(compared, "equal")
    assert set(compared) == {"store.orders", "store.customers"}
    after = airflow.command("dags", "next-execution", "scheduled_snapshots")
    assert re.search(r"[T ]03:00:00", after.stdout), after


def test_a_table_that_is_not_there_is_refused_by_the_form(airflow: Airflow, store: Any) -> None:
    outcome = airflow.run("snapshot_on_demand", table="store.nothing", mode="replace")
    assert outcome.state == "refused"
    assert "'store.nothing' is not one of ['store.orders', 'store.customers']" in outcome.result["error"]


@pytest.mark.long
def test_a_signal_is_followed_by_the_next_run_of_the_connector(airflow: Airflow, synced: Outcome) -> None:
    airflow.run(
        "signal_a_stream",
        signal="execute-snapshot",
        tables=r"store\.customers",
        data={"type": "incremental"},
    ).succeeded()
    merged = airflow.run("capture_often").succeeded()
    assert merged.state == "success"
    assert not list((airflow.work / "store" / "signals").glob("*"))
    outcome = airflow.run("merge_at_leisure").succeeded()
    assert outcome.value("merge")["tables"]["store.customers"]["snapshot_rows"] == 10


@pytest.mark.long
def test_stages_run_separately(airflow: Airflow, store: Any, synced: Outcome) -> None:
    store["orders"].update_one({"_id": 1}, {"$set": {"amount": -1}})
    captured = airflow.run("capture_often").succeeded()
    assert captured.value("capture")["changes"] >= 1
    assert list(captured.events()) == ["cdc/store/changes"]
    merged = airflow.run("merge_at_leisure").succeeded()
    assert merged.value("merge")["tables"]["store.orders"]["rows_written"] == 1


@pytest.mark.long
def test_a_continuous_application_is_started_adopted_and_watched(airflow: Airflow, store: Any) -> None:
    first = airflow.run("continuous_stream", watch_seconds=1).succeeded()
    started = first.value("start")
    try:
        assert (started["adopted"], first.value("watch")["status"]) == (False, "running")
        assert Path(f"/proc/{started['pid']}").exists(), "it outlives its task"
        second = airflow.run("continuous_stream", watch_seconds=1).succeeded()
        assert second.value("start")["adopted"] is True
        assert second.value("start")["pid"] == started["pid"]
    finally:
        os.kill(started["pid"], signal.SIGTERM)
    state = airflow.work / "store" / "stream" / "state.json"
    deadline = time.monotonic() + 90
    while json.loads(state.read_text())["status"] == "running":
        assert time.monotonic() < deadline, "SIGTERM ends it after its current commit"
        time.sleep(0.2)
    assert json.loads(state.read_text())["status"] == "stopped"


def test_events_are_published_at_once_and_separately_behind_a_sensor(
    airflow: Airflow, store: Any, topics: KafkaServer
) -> None:
    outcome = airflow.run("publish_events", warm=True).succeeded()
    assert outcome.value("topics") == {
        "created": ["store.store.customers", "store.store.orders"],
        "existing": [],
    }
    sent = outcome.value("sync")["published"]["records"]
    assert sent == store["orders"].count_documents({}) + store["customers"].count_documents({})
    seen = outcome.value("published")
    assert seen["batch"] == seen["newest_batch"] > 0, "the runs' batches reached the sensor"
    assert (seen["pending_batches"], seen["lag_seconds"]) == (0, 0)

    gated = airflow.run("publish_separately", warm=True).succeeded()
    assert gated.value("read") == {"lag": 0, "topics": {}}, "nobody has read yet, and the gate is open"
    assert gated.value("publish")["published"]["records"] == 0


@pytest.mark.long
def test_a_vitess_keyspace_is_synced_and_a_table_read_again(
    airflow: Airflow, vitess_shop: VitessServer
) -> None:
    outcome = airflow.run("sync_vitess", warm=True, again="shop.items").succeeded()

    assert outcome.value("news")["news"] is True
    synced = outcome.value("sync")
    assert {name: table["rows_written"] for name, table in synced["tables"].items()} == {
        "shop.orders": 50,
        "shop.items": 50,
    }
    assert set(synced["offset"]) == {"shop/-80", "shop/80-"}
    assert outcome.value("near")["lag_seconds"] is not None, "the stored offset reached the sensor"
    assert outcome.value("settled") == {
        "serving": ["shop/-80", "shop/80-"],
        "resharding": [],
        "missing": [],
    }
    assert list(outcome.value("snapshot")["tables"]) == ["shop.items"]
    assert outcome.value("copied") == {"done": ["shop.items"], "remaining": []}
    assert not list(airflow.work.rglob("connection.json"))


@pytest.mark.long
def test_a_scylla_keyspace_is_synced_and_a_joining_node_is_reported(
    airflow: Airflow, scylla_shop: ImitatedScylla
) -> None:
    outcome = airflow.run("sync_scylla").succeeded()

    synced = outcome.value("sync")
    tables = ["shop_of_scylla.items", "shop_of_scylla.orders"]
    assert {name: table["rows_written"] for name, table in synced["tables"].items()} == dict.fromkeys(
        tables, 50
    )
    assert synced["changes"] == 100, "the log was read too"
    assert 30 <= outcome.value("near")["lag_seconds"] < 300
    assert sorted(outcome.value("near")["tables"]) == tables, "the stored offset reached the sensor"
    joins_ms = scylla_shop.generations.sets[-1].time_ms
    assert outcome.value("moved")["tables"][tables[0]]["newest"] == joins_ms
    assert sorted(outcome.value("report")) == tables
    assert not list(airflow.work.rglob("connection.json"))


def test_a_scheduled_sync_makes_mirrors_that_equal_the_source(
    airflow: Airflow, shop: Any, landed: Callable[[], None]
) -> None:
    landed()
    outcome = airflow.run("scheduled_sync", warm=True).succeeded()
    assert outcome.value("cdc_shop.check")["error"] == []
    assert outcome.value("cdc_shop.sync")["tables"]["shop.orders"]["rows_written"] == 50
    assert outcome.value("cdc_shop.verify")["tables"]["shop.orders"]["note"] == "equal"


def test_a_filling_cdc_raw_is_brought_captured_and_cleared(
    airflow: Airflow, shop: Any, cassandra_server: CassandraServer
) -> None:
    for number in range(1000, 1040):
        shop.execute("INSERT INTO shop.orders (id, amount) VALUES (%s, %s)", (number, number))
    cassandra_server.roll_segment(shop)
    outcome = airflow.run(
        "sync_when_cdc_raw_fills",
        cdc_raw=str(cassandra_server.cdc_raw),
        host_id=cassandra_server.host_id,
        max_used_ratio=0.000001,
    ).succeeded()
    assert outcome.value("filling")["used_bytes"] > 0
    assert outcome.value("bring")["copied"] >= 1
    assert outcome.value("bring")["deleted"] >= 1, "finished segments leave cdc_raw"
    assert outcome.value("sync")["changes"] >= 40
    assert outcome.value("clear")["deleted"] >= 1, "captured segments leave the landing folder"
    landing = airflow.home / "landing" / cassandra_server.host_id
    left = [segment for segment in list_segments(str(landing.parent)) if segment.complete]
    assert left == [], "what is finished was captured, and went"


@pytest.mark.long
def test_a_cdc_raw_that_will_soon_be_full_is_brought_away(
    airflow: Airflow, shop: Any, cassandra_server: CassandraServer
) -> None:
    for number in range(2000, 2002):
        shop.execute("INSERT INTO shop.orders (id, amount) VALUES (%s, %s)", (number, number))
        cassandra_server.roll_segment(shop)
    outcome = airflow.run(
        "transfer_early",
        cdc_raw=str(cassandra_server.cdc_raw),
        host_id=cassandra_server.host_id,
        min_seconds_to_full=10**9,
    ).succeeded()
    assert 0 < outcome.value("filling")["seconds_to_full"] < 10**9
    assert outcome.value("bring")["deleted"] >= 2
    left = list_segments(str(cassandra_server.cdc_raw))
    assert not any(segment.complete for segment in left), "the node has its room back"


@pytest.mark.long
def test_a_capture_is_restarted_on_demand(airflow: Airflow, shop: Any, landed: Callable[[], None]) -> None:
    landed()
    airflow.run("scheduled_sync").succeeded()
    # The server is shared: segments may hold changes of other tests' tables.
    outcome = airflow.run("rebootstrap_cassandra", clear_segments=False).succeeded()
    assert outcome.value("again")["rebootstrapped"] == ["shop.customers", "shop.orders"]
    snapshot = outcome.value("sync")["snapshot"]
    assert snapshot["rows_by_table"]["shop.orders"] >= 50, "a new snapshot"
