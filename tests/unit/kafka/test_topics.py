"""Topics made by rule: what is planned, and what an administrator's client is asked."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_cdc_provider.exceptions import ConfigurationError, RecordsRejected
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import TopicCreator, TopicFound, TopicRule, plan, rule_of
from tests.unit.kafka.fake_admin import Admin

COMPACT = TopicRule(
    "group orders", (r"shop\.orders\..*",), (r".*_log",), 6, 3, {"cleanup.policy": "compact,delete"}
)
REST = TopicRule("default", partitions=2, settings={"retention.ms": 1000, "preallocate": True})
RULES = (COMPACT, REST)


def test_the_first_rule_that_matches_the_whole_name_decides_unless_it_excludes_it() -> None:
    wanted = {
        "shop.orders.a": COMPACT,
        "shop.orders.a_log": REST,
        "my.shop.orders.a": REST,
        "shop.orders": REST,
    }
    assert {topic: rule_of(topic, RULES) for topic in wanted} == wanted
    first = TopicRule("first", ("shop.*",))
    assert rule_of("shop.orders.a", (first, *RULES)) is first


def test_missing_topics_are_planned_and_differences_are_reported() -> None:
    found = {
        "shop.orders.same": TopicFound(6, 3, {"cleanup.policy": "delete, compact"}),
        "shop.orders.other": TopicFound(1, 3, {"cleanup.policy": "delete"}),
        "shop.orders.unseen": TopicFound(6, 3, None),
        "rest": TopicFound(2, 7, {"retention.ms": "1000", "preallocate": "true"}),
    }
    planned = plan([*found, "shop.orders.new", "shop.orders.new", "new"], found, RULES)
    assert planned.missing == {"shop.orders.new": COMPACT, "new": REST}
    assert planned.differences == (
        "topic shop.orders.other is not changed: partitions 1 where the declaration says 6, cleanup.policy "
        "delete where the declaration says compact,delete (group orders)",
    )


def maker(topics: dict[str, int], **fails: int) -> tuple[TopicCreator, list[Admin]]:
    built: list[Admin] = []

    def build(values: dict[str, Any]) -> Admin:
        built.append(Admin(values, topics, fails))
        return built[-1]

    return TopicCreator(ClientSettings({"bootstrap.servers": "b:1"}), RULES, build), built


def test_missing_topics_are_created_by_their_rules(caplog: pytest.LogCaptureFixture) -> None:
    made, clients = maker({"there": 2})
    with caplog.at_level(logging.WARNING):
        names = made.create_missing(["shop.orders.a", "there", "b"])
        made.create_missing(["there"])
    assert names == ("b", "shop.orders.a")
    (client,) = clients
    assert client.asked == [["b", "shop.orders.a", "there"], ["there"]]
    assert client.made == {
        "shop.orders.a": (6, 3, {"cleanup.policy": "compact,delete"}),
        "b": (2, -1, {"retention.ms": "1000", "preallocate": "true"}),
    }
    assert [record.message for record in caplog.records] == [
        "topic there is not changed: retention.ms 7 where the declaration says 1000 (default)"
    ], "logged once"


def test_records_for_a_topic_without_a_name_are_refused_and_no_fault_of_ours() -> None:
    made, clients = maker({"there": 2})
    with pytest.raises(RecordsRejected, match="the transform that names the topic") as raised:
        made.create_missing(["there", ""])
    assert (raised.value.topic, raised.value.whole_topic) == ("", True)
    assert not clients


def test_settings_that_may_not_be_read_are_ignored() -> None:
    made, _ = maker({"unseen": 2}, configs=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert made.create_missing(["unseen"]) == ()


def test_a_topic_that_another_run_created_concurrently_exists() -> None:
    made, _ = maker({}, create=KafkaError.TOPIC_ALREADY_EXISTS)
    assert made.create_missing(["a"]) == ()


@pytest.mark.parametrize(
    ("call", "code", "error", "text"),
    [
        ("create", KafkaError.INVALID_REPLICATION_FACTOR, ConfigurationError, r"correct publish\.topics"),
        (
            "create",
            KafkaError.INVALID_CONFIG,
            ConfigurationError,
            "topic a can't be created: expected partitions",
        ),
        ("create", KafkaError.POLICY_VIOLATION, ConfigurationError, "found POLICY_VIOLATION"),
        (
            "create",
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            RecordsRejected,
            "create it, or grant the connection's",
        ),
        (
            "describe",
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            RecordsRejected,
            "DESCRIBE on topic",
        ),
        ("create", KafkaError.TOPIC_EXCEPTION, RecordsRejected, "topic names have letters"),
        ("describe", KafkaError.TOPIC_EXCEPTION, RecordsRejected, "or the transform that names the topic"),
        ("create", KafkaError._TIMED_OUT, BrokersUnavailable, "creating topic a failed"),
        ("describe", KafkaError._TRANSPORT, BrokersUnavailable, "describing topic a failed"),
    ],
)
def test_topics_that_cannot_be_created_are_reported_with_a_remedy(
    call: str, code: int, error: type[Exception], text: str
) -> None:
    made, _ = maker({}, **{call: code})
    with pytest.raises(error, match=text) as raised:
        made.create_missing(["a"])
    assert type(raised.value) is error
