"""What a real broker returns of a topic to the check of a declaration."""

from __future__ import annotations

import random

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topic_facts import TopicInspector
from server_kit import KafkaServer

pytestmark = pytest.mark.integration


def test_a_topic_is_described_and_a_missing_one_is_not_created(kafka_server: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = ClientSettings({"bootstrap.servers": kafka_server.bootstrap})
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    topic, missing = (f"facts-{random.randrange(10**9)}" for _ in range(2))
    new = NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(30)

    inspector = TopicInspector(settings)
    found = inspector.facts(topic)
    assert (found.partitions, found.policy, found.compacts, found.refusal) == (2, "compact", True, "")
    assert found.may("READ") in (True, None)
    assert found.may("WRITE") in (True, None)

    absent = inspector.facts(missing, 1)
    assert (absent.partitions, absent.refusal) == (None, ""), "it could be made"
    assert inspector.facts(missing, 1).partitions is None
    assert missing not in admin.list_topics(timeout=30).topics
    with pytest.raises(ConfigurationError, match="describing topic not a name failed"):
        inspector.facts("not a name", 1)
