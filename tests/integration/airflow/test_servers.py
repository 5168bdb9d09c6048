"""Hooks and sensors against real servers."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
from airflow_cdc_provider.sensors.mongodb import MongodbLagSensor, MongodbNewsSensor
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from server_kit import MongoServer
from tests.unit.airflow_context import TaskContext
from tests.unit.sensors.sensor_runs import WAYS, wait_plain

if TYPE_CHECKING:
    from pymongo import MongoClient

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

DECLARATION: dict[str, Any] = {
    "name": "news",
    "source": {"type": "mongodb", "conn_id": "mongo_news"},
    "tables": [r"news\.orders"],
}


@pytest.fixture
def deployment(
    mongo_server: MongoServer, mongo_client: MongoClient, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The database ``news`` and the connection to it."""
    values = {
        "conn_type": "cdc_mongodb",
        "host": "127.0.0.1",
        "port": mongo_server.port,
        "extra": {"replicaSet": "rs0", "uri_options": "retryReads=true&maxPoolSize=3"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_MONGO_NEWS", json.dumps(values))
    yield mongo_client["news"]
    mongo_client.drop_database("news")


@pytest.fixture
def captured(deployment: Any) -> TaskContext:
    """A context whose asset state holds the head's offset, as a sync leaves it."""
    deployment["orders"].insert_one({"before": True})
    connector = Connector.from_dict(DECLARATION)
    source = MongodbCdcHook("mongo_news").source(connector)
    offset = dict(source.head())
    source.close()
    context = TaskContext()
    context.assets[changes_asset("news")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "mongodb", "offset": offset}
    )
    return context


def news(**how: Any) -> ObservingSensor:
    return MongodbNewsSensor(task_id="news", connector=DECLARATION, **how)


@pytest.mark.covers("MDB-FAULT-11")
@pytest.mark.parametrize("wait", WAYS)
def test_news_sensor_ends_when_a_selected_collection_changed(
    wait: Any, deployment: Any, captured: TaskContext
) -> None:
    deployment["others"].insert_one({"not": "selected"})
    value = wait(news, captured, lambda: deployment["orders"].insert_one({"new": True}) and None)
    assert (value["news"], value["table"]) == (True, "news.orders")
    assert 0 <= value["lag_seconds"] < 60


def test_news_have_the_age_of_the_oldest_change_and_the_time_that_the_oplog_holds(
    deployment: Any, captured: TaskContext
) -> None:
    deployment["orders"].insert_one({"new": 1})
    time.sleep(2.1)
    deployment["orders"].insert_one({"new": 2})
    value = news(deferrable=False, poke_interval=0.2, timeout=10).execute(captured)
    assert 2 <= value["lag_seconds"] < 60
    assert value["window_seconds"] >= 2


def test_what_is_not_selected_is_no_news(deployment: Any, captured: TaskContext) -> None:
    deployment["others"].insert_one({"not": "selected"})
    with pytest.raises(AirflowSensorTimeout):
        news(deferrable=False, poke_interval=0.2, timeout=0.5).execute(captured)


@pytest.mark.parametrize("wait", WAYS)
def test_lag_sensor_ends_when_nothing_old_is_left(wait: Any, deployment: Any, captured: TaskContext) -> None:
    def make(**how: Any) -> ObservingSensor:
        return MongodbLagSensor(task_id="lag", connector=DECLARATION, max_lag_seconds=0, **how)

    assert wait(make, captured, lambda: None)["lag_seconds"] == 0


def test_news_sensor_needs_no_right_but_those_of_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Managed deployments let nobody read ``local``; the window is then tried out."""
    with MongoServer(auth=True) as server, server.client() as admin:
        admin["news"]["orders"].insert_one({"before": True})
        rights = {"resource": {"db": "news", "collection": "orders"}, "actions": ["find", "changeStream"]}
        admin.admin.command("createRole", "orders", privileges=[rights], roles=[])
        admin.admin.command("createUser", "reader", pwd="secret", roles=["orders"])
        values = {
            "conn_type": "cdc_mongodb",
            "host": server.host,
            "port": server.port,
            "login": "reader",
            "password": "secret",
            "schema": "admin",
            "extra": {"replicaSet": "rs0"},
        }
        monkeypatch.setenv("AIRFLOW_CONN_MONGO_NEWS", json.dumps(values))
        declaration = {
            **DECLARATION,
            "source": {**DECLARATION["source"], "scope": "collection", "target": "news.orders"},
        }
        source = MongodbCdcHook("mongo_news").source(Connector.from_dict(declaration))
        context = TaskContext()
        context.assets[changes_asset("news")].set(
            "offset", {"layout": STATE_LAYOUT, "source": "mongodb", "offset": dict(source.head())}
        )
        source.close()
        admin["news"]["orders"].insert_one({"new": True})
        value = MongodbNewsSensor(task_id="news", connector=declaration, deferrable=False).execute(context)
    assert (value["news"], value["table"]) == (True, "news.orders")
    assert value["window_seconds"] > 0


def test_an_offset_of_another_form_fails_at_once(deployment: Any) -> None:
    context = TaskContext()
    context.assets[changes_asset("news")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "mongodb", "offset": {"stream": {"v": 9}}}
    )
    with pytest.raises(AirflowFailException, match="not a valid MongoDB offset"):
        wait_plain(news, context, lambda: None)


def test_mongodb_hook_tests_its_connection(deployment: Any) -> None:
    good, text = MongodbCdcHook("mongo_news").test_connection()
    assert good, text
    assert "replica set rs0" in text


def test_cassandra_hook_tests_its_connection(
    cassandra_server: CassandraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"conn_type": "cassandra", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_CASSANDRA_SHOP", json.dumps(values))
    good, text = CassandraCdcHook("cassandra_shop").test_connection()
    assert good, text
    assert text.startswith("Cassandra 5.0")
    with CassandraCdcHook("cassandra_shop") as session:
        assert session.execute("SELECT key FROM system.local").one() is not None


@pytest.mark.parametrize("hook", [MongodbCdcHook, CassandraCdcHook])
def test_a_failed_test_shows_no_secret(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "conn_type": hook.conn_type,
        "host": "127.0.0.1",
        "port": 9,
        "login": "capture",
        "password": "s3cr3t-word",
        "extra": {"uri_options": "serverSelectionTimeoutMS=300"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", json.dumps(values))
    good, text = hook("nobody").test_connection()
    assert not good
    assert text
    assert "s3cr3t-word" not in text
