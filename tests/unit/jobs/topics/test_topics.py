"""By what rules topics of a connector are made, those of heartbeats and transactions among them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.publishing.publication import form_of
from airflow_cdc_provider.jobs.publishing.targets.kafka import positions_topic
from airflow_cdc_provider.jobs.topics.rules import topic_maker, topic_rules
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import rule_of

SETTINGS = ClientSettings({"bootstrap.servers": "b:1"})
GROUP = {"include": [r"shop\.db\..*"], "exclude": [r".*\.big"], "partitions": 9, "settings": {"a": "b"}}


def declared(kind: str = "mongodb", topics: dict[str, Any] | None = None, **publish: Any) -> Connector:
    source: dict[str, Any] = {"type": kind}
    if kind == "vitess":
        source["keyspace"] = "shop"
    kafka = {"connection": "kafka"}
    return Connector.from_dict(
        {"name": "shop", "source": source, "publish": {**publish, "kafka": kafka, "topics": topics or {}}}
    )


def made_with(connector: Connector, topic: str) -> tuple[str, int, int, dict[str, Any]]:
    rule = rule_of(topic, topic_rules(connector))
    return rule.name, rule.partitions, rule.replication, dict(rule.settings)


def test_without_options_all_is_as_the_brokers_have_it_and_other_kinds_have_one_partition() -> None:
    connector = declared()
    assert made_with(connector, "shop.db.a") == ("default", -1, -1, {})
    for topic in ("__debezium-heartbeat.shop", "shop.transaction", "shop.schema-changes"):
        assert made_with(connector, topic)[1:] == (1, -1, {})
    assert topic_maker(connector, SETTINGS) is not None
    assert topic_maker(declared(topics={"create": False}), SETTINGS) is None


def test_groups_come_first_and_have_what_they_do_not_say_from_the_rest() -> None:
    policy = {"cleanup.policy": "compact", "retention.ms": 7}
    topics = {"partitions": 4, "replication": 3, "settings": policy, "groups": [GROUP, {"include": ["x.*"]}]}
    connector = declared(topics=topics)
    assert made_with(connector, "shop.db.a") == ("group 1", 9, 3, {"a": "b"})
    assert made_with(connector, "xy") == ("group 2", 4, 3, {})
    assert made_with(connector, "shop.db.big") == ("default", 4, 3, policy)
    assert made_with(connector, "__debezium-heartbeat.shop") == ("heartbeats", 1, 3, policy)
    kept = {"cleanup.policy": "delete", "retention.ms": 7}
    assert made_with(connector, "shop.transaction")[1:] == (1, 3, kept), "each record stays"
    of_all = declared(topics={"groups": [{"include": [".*"], "partitions": 5, "name": "all"}]})
    assert made_with(of_all, "shop.transaction") == ("group all", 5, -1, {})


def test_topics_of_other_kinds_are_known_by_their_declared_names() -> None:
    named = declared(
        "mongodb",
        topic_delimiter="_",
        transaction_topic="tx",
        schema_changes_topic="ddl",
        heartbeat_topic="beats",
    )
    assert [made_with(named, topic)[1] for topic in ("shop_tx", "shop_ddl", "beats", "shop.tx")] == [
        1,
        1,
        1,
        -1,
    ]
    vitess = declared("vitess")
    assert made_with(vitess, "shop")[1] == 1, "schema changes of Vitess go to the prefix itself"
    assert made_with(vitess, "shop.shop.t")[1] == -1


def test_the_positions_have_as_many_copies_and_topics_are_no_part_of_a_positions_form() -> None:
    connector = declared(topics={"replication": 3})
    assert positions_topic(connector, SETTINGS).replication == 3
    assert form_of(connector) == form_of(declared()) == form_of(declared(heartbeat_interval_seconds=5))


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (
            {"partitions": 0},
            r"invalid value for option publish\.topics\.partitions: expected a positive integer, or -1",
        ),
        ({"groups": [{"include": []}]}, r"groups\[0\]\.include: expected at least one"),
        ({"groups": [{"include": ["a("]}]}, r"expected regular expressions \('a\('"),
        ({"groups": [{"partitions": 3}]}, r"groups\[0\]\.include is missing"),
        ({"settings": {"partitions": 3}}, "partitions is a separate option"),
        ({"settings": {"cleanup.policy": ["compact"]}}, "a string, number or boolean for cleanup.policy"),
    ],
)
def test_wrong_rules_are_refused_with_their_place(topics: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declared(topics=topics)
