"""What a check says of the topics of signals and notifications."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_cdc_provider.connections.channel_topics import channel_findings
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.topic_facts import TopicFacts

DECLARED = {
    "name": "shop",
    "source": {"type": "mongodb"},
    "signals": {"channels": ["kafka"]},
    "notifications": {"channels": ["sink"], "topic": "notes"},
    "publish": {"kafka": {"connection": "broker"}},
}
SOUND = TopicFacts("", 1, "delete", frozenset({"READ", "WRITE", "DESCRIBE"}))


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps(values))


def levels(signals: TopicFacts, notifications: TopicFacts) -> list[tuple[str, str, str]]:
    facts = {"shop-signal": signals, "notes": notifications}

    def ask(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
        assert values == {"bootstrap.servers": "broker:9092"}
        assert partitions == (1 if topic == "shop-signal" else -1)
        return replace(facts[topic], topic=topic)

    found = channel_findings(Connector.from_dict(DECLARED), ask)
    assert all(bool(one.remedy) == (one.level != "ok") for one in found)
    return [(one.level, one.subject.rpartition(" ")[2], one.message) for one in found]


def test_topics_that_are_right_are_ok() -> None:
    found = levels(SOUND, replace(SOUND, partitions=3))
    assert [(level, subject) for level, subject, _ in found] == [("ok", "signals"), ("ok", "notifications")]


@pytest.mark.parametrize(
    ("change", "level", "message"),
    [
        ({"partitions": 2}, "error", "has 2 partitions"),
        ({"operations": frozenset({"DESCRIBE"})}, "error", "no permission to read"),
        ({"policy": "compact,delete"}, "warning", "is compacted"),
        ({"partitions": None, "policy": None, "operations": None}, "warning", "there is no topic"),
        (
            {"partitions": None, "refusal": "TOPIC_AUTHORIZATION_FAILED: no"},
            "error",
            "can't create it either",
        ),
    ],
)
def test_a_topic_of_signals_that_is_wrong_is_reported(
    change: dict[str, Any], level: str, message: str
) -> None:
    (first, *rest) = levels(replace(SOUND, **change), SOUND)
    assert first[:2] == (level, "signals")
    assert message in first[2]
    assert [one[0] for one in rest] == ["ok"]


@pytest.mark.parametrize(
    ("change", "level", "message"),
    [
        ({"operations": frozenset({"READ"})}, "error", "no permission to write to"),
        ({"policy": "compact"}, "warning", "is compacted"),
        ({"partitions": None}, "warning", "there is no topic notes"),
    ],
)
def test_a_topic_of_notifications_that_is_wrong_is_reported(
    change: dict[str, Any], level: str, message: str
) -> None:
    found = levels(SOUND, replace(SOUND, **change))
    assert found[1][:2] == (level, "notifications")
    assert message in found[1][2]


def test_what_brokers_do_not_report_is_no_fault() -> None:
    unknown = replace(SOUND, policy=None, operations=None)
    assert [level for level, _, _ in levels(unknown, unknown)] == ["ok", "ok"]


def test_brokers_that_do_not_answer_are_a_warning_and_a_refused_login_is_an_error() -> None:
    def away(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
        raise BrokersUnavailable("asking failed", found="_TIMED_OUT")

    def refused(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
        raise ConfigurationError("asking failed", remedy="correct the login")

    connector = Connector.from_dict(DECLARED)
    assert [one.level for one in channel_findings(connector, away)] == ["warning", "warning"]
    assert [one.level for one in channel_findings(connector, refused)] == ["error", "error"]


def test_a_connector_without_such_topics_asks_nobody() -> None:
    def nobody(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
        raise AssertionError(topic)

    assert channel_findings(Connector.from_dict({"name": "a", "source": {"type": "mongodb"}}), nobody) == []
