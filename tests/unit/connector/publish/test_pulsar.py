"""What a declaration may say of publishing to Pulsar."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.publishing.publication import form_of
from airflow_cdc_provider.jobs.publishing.targets.pulsar import as_published
from airflow_cdc_provider.sources.encoding import topics_of

DATASTAX: dict[str, Any] = {
    "envelope": "datastax",
    "key": "avro",
    "value": "avro",
    "cassandra": {"reread": True},
    "pulsar": {"connection": "pulsar"},
}


def connector(**publish: Any) -> Connector:
    source = {"type": "cassandra", "cdc_raw": "/x"}
    return Connector.from_dict({"name": "shop", "source": source, "publish": {**DATASTAX, **publish}})


def test_topics_are_called_as_datastax_calls_them() -> None:
    assert topics_of(as_published(connector())).topic("ks", "t") == "data-ks.t"
    other = connector(pulsar={"connection": "pulsar", "topic_prefix": "x."})
    assert topics_of(as_published(other)).topic("ks", "t") == "x.ks.t"


def test_connections_and_patience_are_no_part_of_the_form_but_names_of_topics_are() -> None:
    patient = connector(pulsar={"connection": "other", "retry_timeout_seconds": 9})
    renamed = connector(pulsar={"connection": "pulsar", "topic_prefix": "x."})
    assert form_of(as_published(patient)) == form_of(as_published(connector()))
    assert form_of(as_published(renamed)) != form_of(as_published(connector()))


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ({"envelope": "debezium", "cassandra": {}}, "publish.envelope"),
        ({"value": "json"}, "publish.key and publish.value"),
        ({"cassandra": {}}, "publish.cassandra.reread"),
        ({"cassandra": {"reread": True, "key_in_value": True}}, "publish.cassandra.key_in_value"),
        ({"kafka": {"connection": "kafka"}}, "publish.kafka.connection"),
        ({"kafka": {"mode": "after_merge"}}, "publish.kafka"),
        ({"registry": {"connection": "registry"}}, "publish.registry"),
        ({"topic_pattern": "x-{database}.{table}"}, "publish.topic_pattern"),
        ({"topics": {"partitions": 3}}, "publish.topics"),
        ({"heartbeat_interval_seconds": 5}, "publish.heartbeat_interval_seconds"),
    ],
)
def test_what_readers_of_pulsar_do_not_expect_is_refused(publish: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {expected} can't be combined with publish.pulsar"):
        connector(**publish)
    connector(
        **{**publish, "pulsar": {}, **({"cassandra": {"reread": True}} if "cassandra" in expected else {})}
    )


@pytest.mark.parametrize(
    "wrong", [{"namespace": "default"}, {"topic_prefix": "a/b"}, {"delivery": "at_most_once"}]
)
def test_wrong_values_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        connector(pulsar={"connection": "pulsar", **wrong})
