"""The registry's connection on its way to jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.connections.kafka import with_kafka
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.encoding import registry_settings

REGISTRY = {
    "conn_type": "http",
    "schema": "https",
    "host": "registry",
    "port": 8081,
    "login": "me",
    "password": "hush",
    "extra": {"path": "/apis/ccompat/v7", "ssl.ca.location": "/ca.pem"},
}


def connector(**registry: Any) -> Connector:
    publish = {"key": "avro", "value": "avro", "kafka": {"connection": "broker"}, "registry": registry}
    return Connector.from_dict({"name": "c", "source": {"type": "mongodb"}, "publish": publish})


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = {"conn_type": "kafka", "extra": {"bootstrap.servers": "b:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps(broker))
    monkeypatch.setenv("AIRFLOW_CONN_REG", json.dumps(REGISTRY))


def test_a_connection_reaches_jobs_that_publish_and_no_others() -> None:
    declared = connector(connection="reg", value_subjects="record", normalize=True)
    values = with_kafka(declared, "publish", {"host": "db"})
    assert values["registry"] == {name: value for name, value in REGISTRY.items() if name != "conn_type"}
    assert "registry" not in with_kafka(declared, "events", {"host": "db"})
    settings = registry_settings(declared, values["registry"])
    assert settings is not None
    assert settings.client == {
        "url": "https://registry:8081/apis/ccompat/v7",
        "basic.auth.user.info": "me:hush",
        "ssl.ca.location": "/ca.pem",
        "timeout": 10,
    }
    assert (settings.key_subjects, settings.value_subjects) == ("topic", "record")
    assert (settings.auto_register, settings.normalize) == (True, True)
    assert settings.urls == ["https://registry:8081/apis/ccompat/v7"]
    assert "hush" not in repr(settings) + repr(declared)


def test_a_connection_reaches_jobs_that_notify_a_topic_and_publish_nothing() -> None:
    publish = {"key": "avro", "value": "avro", "registry": {"connection": "reg"}}
    notifications = {"channels": ["sink"], "topic": "notes", "connection": "broker"}
    declared = Connector.from_dict(
        {"name": "c", "source": {"type": "mongodb"}, "publish": publish, "notifications": notifications}
    )
    assert set(with_kafka(declared, "snapshot", {})) == {"notifications_kafka", "registry"}
    assert with_kafka(declared, "merge", {}) == {}


def test_an_address_alone_needs_no_connection() -> None:
    declared = connector(url="http://registry:8081")
    assert "registry" not in with_kafka(declared, "publish", {})
    settings = registry_settings(declared, {})
    assert settings is not None
    assert settings.client["url"] == "http://registry:8081"
    assert registry_settings(connector(), {}) is None


def test_a_missing_connection_or_one_of_another_type_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="there is no connection nowhere"):
        with_kafka(connector(connection="nowhere"), "publish", {})
    with pytest.raises(ConfigurationError, match="wrong type: expected http, found kafka"):
        with_kafka(connector(connection="broker"), "publish", {})
