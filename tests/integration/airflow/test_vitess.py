"""Hook and sensors of Vitess against a real server."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import time
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.hooks._of_connector import hook_for
from airflow_cdc_provider.hooks.vitess import VitessCdcHook
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sensors.vitess import VitessLagSensor, VitessNewsSensor, VitessReshardSensor
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from server_kit import VitessServer
from tests.unit.airflow_context import TaskContext
from tests.unit.sensors.sensor_runs import WAYS, wait_plain

pytestmark = pytest.mark.integration

DECLARATION: dict[str, Any] = {
    "name": "news",
    "source": {"type": "vitess", "conn_id": "vitess_news", "keyspace": "shop"},
    "tables": [r"shop\.news_orders"],
}
FOREIGN = "MySQL56/abababab-abab-abab-abab-abababababab:1-9"


class Shop:
    """Tables ``news_orders``, which is captured, and ``news_others``."""

    def __init__(self, server: VitessServer) -> None:
        self.server = server
        self._next = 0

    def insert(self, table: str) -> None:
        self._next += 1
        self._execute(f"INSERT INTO {table} (id) VALUES ({self._next})")
        self.update(table, "x")

    def update(self, table: str, note: str) -> None:
        """Change the row that was inserted last, so in the same shard."""
        self._execute(f"UPDATE {table} SET note = '{note}' WHERE id = {self._next}")

    def _execute(self, statement: str) -> None:
        with self.server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute(statement)


@pytest.fixture(scope="module")
def shop(vitess_server: VitessServer) -> Shop:
    tables = ("news_orders", "news_others")
    statements = [
        f"CREATE TABLE {table} (id bigint AUTO_INCREMENT PRIMARY KEY, note text)" for table in tables
    ]
    vitess_server.define("shop", *statements, shard_by=dict.fromkeys(tables, "id"))
    return Shop(vitess_server)


@pytest.fixture(autouse=True)
def connection(vitess_server: VitessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"tls": False, "tls_ca_file": None, "headers": "x-env:test", "max_message_bytes": "8388608"}
    values = {"conn_type": "cdc_vitess", **vitess_server.connection, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_VITESS_NEWS", json.dumps(values))


@pytest.fixture
def captured(shop: Shop) -> TaskContext:
    """A context whose asset state holds the head's offset, as a sync leaves it."""
    shop.insert("news_orders")
    source = VitessSource(
        VitessOptions(keyspace="shop"), VitessCdcHook("vitess_news").connection_values(), str.isascii
    )
    offset = dict(source.head())
    source.close()
    return context_of(offset)


def context_of(offset: Any) -> TaskContext:
    context = TaskContext()
    context.assets[changes_asset("news")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "vitess", "offset": offset}
    )
    return context


def news(**how: Any) -> ObservingSensor:
    return VitessNewsSensor(task_id="news", connector=how.pop("connector", DECLARATION), **how)


@pytest.mark.parametrize("wait", WAYS)
def test_news_sensor_ends_when_a_selected_table_changed(wait: Any, shop: Shop, captured: TaskContext) -> None:
    shop.insert("news_others")
    value = wait(news, captured, lambda: shop.insert("news_orders"))
    assert (value["news"], value["table"], value["lost"]) == (True, "shop.news_orders", False)
    assert 0 <= value["lag_seconds"] < 60
    assert set(value["shards"]) == {"shop/-80", "shop/80-"}
    assert all(count >= 2 for count in value["shards"].values())
    assert value["resharding"] == []


def test_news_have_the_age_of_the_oldest_change(shop: Shop, captured: TaskContext) -> None:
    shop.insert("news_orders")
    time.sleep(2.1)
    shop.update("news_orders", "later")
    value = news(deferrable=False, poke_interval=0.2, timeout=10).execute(captured)
    assert 1 <= value["lag_seconds"] < 60


def test_runs_and_the_sensor_report_the_same_lag(shop: Shop, captured: TaskContext) -> None:
    """The lag of a connector is that of its own tables, however much else is written."""
    offset = captured.assets[changes_asset("news")].get("offset")["offset"]
    source = VitessSource(
        VitessOptions(keyspace="shop"),
        VitessCdcHook("vitess_news").connection_values(),
        Connector.from_dict(DECLARATION).selects,
    )
    try:
        shop.insert("news_others")
        idle = source.lag(offset)
        assert idle.seconds == 0
        assert any(shard["transactions"] for shard in idle.details.values())
        shop.insert("news_orders")
        lag = source.lag(offset).seconds
        value = news(deferrable=False, poke_interval=0.2, timeout=10).execute(captured)
        assert lag is not None
        assert 0 <= lag <= value["lag_seconds"] + 1 < 60
    finally:
        source.close()


@pytest.mark.parametrize("wait", WAYS)
def test_reshard_sensor_waits_for_the_capture_of_each_serving_shard(wait: Any, captured: TaskContext) -> None:
    store = captured.assets[changes_asset("news")]
    whole = store.get("offset")
    half = {**whole, "offset": {"shop/-80": whole["offset"]["shop/-80"]}}
    context = context_of(half["offset"])

    def make(**how: Any) -> ObservingSensor:
        return VitessReshardSensor(task_id="settled", connector=DECLARATION, **how)

    if wait is wait_plain:
        value = wait(make, context, lambda: context.assets[changes_asset("news")].set("offset", whole))
    else:
        value = wait(make, captured, lambda: None)
    assert value == {"serving": ["shop/-80", "shop/80-"], "resharding": [], "missing": []}


def test_unselected_tables_are_no_news(shop: Shop, captured: TaskContext) -> None:
    shop.insert("news_others")
    with pytest.raises(AirflowSensorTimeout):
        news(deferrable=False, poke_interval=0.2, timeout=0.5).execute(captured)


@pytest.mark.parametrize("wait", WAYS)
def test_lag_sensor_ends_when_nothing_old_is_left(wait: Any, shop: Shop, captured: TaskContext) -> None:
    def make(**how: Any) -> ObservingSensor:
        return VitessLagSensor(task_id="lag", connector=DECLARATION, max_lag_seconds=0, **how)

    shop.insert("news_others")
    assert wait(make, captured, lambda: None)["lag_seconds"] == 0


def test_lost_offset_fails_the_sensor_unless_runs_make_it_good(captured: TaskContext) -> None:
    """Another cluster's transactions, which VTGate itself would wait for without a word."""
    store = captured.assets[changes_asset("news")]
    places = store.get("offset")["offset"]
    lost = context_of({shard: {**place, "gtid": FOREIGN} for shard, place in places.items()})
    with pytest.raises(AirflowFailException, match="lacks transactions of the stored offset"):
        wait_plain(news, lost, lambda: None)
    mending = {**DECLARATION, "snapshot": {"on_lost_position": "snapshot"}}
    value = news(connector=mending, deferrable=False).execute(lost)
    assert (value["news"], value["lost"], value["lag_seconds"]) == (True, True, None)


def test_first_capture_is_news_and_a_wrong_offset_fails_at_once(shop: Shop) -> None:
    value = news(deferrable=False).execute(TaskContext())
    assert (value["news"], value["lag_seconds"]) == (True, None)
    with pytest.raises(AirflowFailException, match="not a valid Vitess offset"):
        wait_plain(news, context_of({"stream": {"v": 9}}), lambda: None)
    mongo = {"name": "news", "source": {"type": "mongodb", "conn_id": "m"}}
    with pytest.raises(AirflowFailException, match="connector news has the wrong source"):
        wait_plain(lambda **how: news(connector=mongo, **how), TaskContext(), lambda: None)


def test_hook_tests_its_connection_and_runs_statements() -> None:
    good, text = VitessCdcHook("vitess_news").test_connection()
    assert good, text
    assert text == "Vitess 24.0.4, keyspaces lookup, shop"
    hook = hook_for(Connector.from_dict(DECLARATION))
    assert isinstance(hook, VitessCdcHook)
    with hook as client:
        assert ["shop/-80"] in client.execute("SHOW VITESS_SHARDS").texts()


def test_failed_test_contains_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "conn_type": "cdc_vitess",
        "host": "127.0.0.1",
        "port": 9,
        "login": "capture",
        "password": "s3cr3t-word",
    }
    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", json.dumps(values))
    good, text = VitessCdcHook("nobody").test_connection()
    assert not good
    assert "refused" in text
    assert "s3cr3t-word" not in text
