"""Connections of signals and notifications on their way to jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.connections.kafka import with_kafka
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError


def connector(published: str = "", **sections: Any) -> Connector:
    publish = {"publish": {"kafka": {"connection": published}}} if published else {}
    return Connector.from_dict({"name": "c", "source": {"type": "mongodb"}, **publish, **sections})


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        values = {"conn_type": "kafka", "extra": {"bootstrap.servers": f"{name}:9092"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(values))


def brokers(declared: Connector, stage: str) -> dict[str, str]:
    values = with_kafka(declared, stage, {})
    return {name: settings["bootstrap.servers"] for name, settings in values.items()}


def test_signals_come_by_their_own_connection_or_by_that_of_events() -> None:
    own = connector("one", signals={"channels": ["kafka"], "kafka": {"connection": "other"}})
    assert brokers(own, "sync") == {"kafka": "one:9092", "signals_kafka": "other:9092"}
    assert brokers(own, "capture") == {"signals_kafka": "other:9092"}
    assert brokers(own, "publish") == {"kafka": "one:9092"}
    same = connector("one", signals={"channels": ["kafka"]})
    assert brokers(same, "stream")["signals_kafka"] == "one:9092"
    address = {"bootstrap_servers": "b:9092"}
    assert brokers(connector(signals={"channels": ["kafka"], "kafka": address}), "sync") == {}
    assert brokers(connector("one"), "capture") == {}


def test_notifications_go_by_their_own_connection_or_by_that_of_events() -> None:
    sink = {"channels": ["sink"], "topic": "notes"}
    assert brokers(connector("one", notifications=sink), "snapshot") == {"notifications_kafka": "one:9092"}
    own = connector("one", notifications={**sink, "connection": "other"})
    assert brokers(own, "capture") == {"notifications_kafka": "other:9092"}
    assert brokers(own, "merge") == {}
    with pytest.raises(ConfigurationError, match="no connection is named for the notification topic notes"):
        brokers(connector(notifications=sink), "sync")


def test_the_option_that_names_a_missing_connection_is_reported() -> None:
    signals = {"channels": ["kafka"], "kafka": {"connection": "nowhere"}}
    with pytest.raises(ConfigurationError, match=r"nowhere: expected one of type kafka, as signals\.kafka"):
        brokers(connector(signals=signals), "sync")
