"""What is asked of brokers about a topic, and what becomes of their answers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation

from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topic_facts import TopicFacts, TopicInspector
from tests.unit.kafka.fake_admin import future_of


@dataclass
class Admin:
    """Stands in for an administrator's client; an answer that is a number is an error's code."""

    topic: Any
    config: Any = field(default_factory=lambda: {"cleanup.policy": SimpleNamespace(value="delete")})
    made: Any = None

    def describe_topics(self, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        assert options["include_authorized_operations"]
        return {"t": future_of(self.topic)}

    def describe_configs(self, resources: Any, **options: Any) -> dict[Any, Future[Any]]:
        return {resources[0]: future_of(self.config)}

    def create_topics(self, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        assert options["validate_only"]
        assert [(one.topic, one.num_partitions) for one in topics] == [("t", 1)]
        return {"t": future_of(self.made)}


def facts(admin: Admin) -> TopicFacts:
    settings = ClientSettings({"bootstrap.servers": "broker:9092"})
    return TopicInspector(settings, lambda values: admin).facts("t", 1)


def test_a_topic_is_described_with_the_permitted_operations() -> None:
    described = SimpleNamespace(partitions=[1, 2], authorized_operations=[AclOperation.READ])
    found = facts(Admin(described))
    assert found == TopicFacts("t", 2, "delete", frozenset({"READ"}))
    assert (found.may("READ"), found.may("WRITE"), found.compacts) == (True, False, False)


def test_what_brokers_keep_to_themselves_is_not_known() -> None:
    described = SimpleNamespace(partitions=[1], authorized_operations=None)
    found = facts(Admin(described, config=KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert (found.policy, found.compacts, found.may("READ")) == (None, False, None)


def test_a_missing_topic_is_described_with_the_reason_it_cannot_be_created() -> None:
    assert facts(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART)) == TopicFacts("t")
    refused = facts(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART, made=KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert refused.refusal.startswith("TOPIC_AUTHORIZATION_FAILED")
    unseen = facts(Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert (unseen.partitions, unseen.refusal[:26]) == (None, "TOPIC_AUTHORIZATION_FAILED")


def test_brokers_that_do_not_answer_are_an_error() -> None:
    with pytest.raises(BrokersUnavailable):
        facts(Admin(KafkaError._TIMED_OUT))


def test_brokers_in_trouble_refuse_no_topic() -> None:
    with pytest.raises(BrokersUnavailable, match="validating the creation"):
        facts(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART, made=KafkaError.REQUEST_TIMED_OUT))
