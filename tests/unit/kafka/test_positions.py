"""Positions read by consumers that say what brokers say while they start, move or are made known a topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka import positions as positions_module
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.settings import ClientSettings
from tests.unit.kafka.fake_consumer import FakeMessage

STORED = PublishPosition("shop", 7, 3)
UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


@dataclass
class Broker:
    """Builds consumers of a partition with one position; refuses to return its end with the codes given."""

    refuses: list[int] = field(default_factory=list)
    hidden: bool = False
    open: int = 0

    def __call__(self, settings: dict[str, Any]) -> Broker:
        self.open += 1
        return self

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        if self.refuses:
            raise KafkaException(KafkaError(self.refuses.pop(0)))
        return 0, 1

    def list_topics(self, topic: str, timeout: float) -> Any:
        hidden = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if self.hidden else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=hidden)})

    def assign(self, partitions: list[Any]) -> None:
        assert [(one.topic, one.partition, one.offset) for one in partitions] == [("p", 0, 0)]

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        return [FakeMessage(0, STORED.to_json(), STORED.key)]

    def poll(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        self.open -= 1


def topic_of(broker: Broker) -> PositionsTopic:
    return PositionsTopic(ClientSettings({"bootstrap.servers": "b:1"}), "p", "shop", build=broker)


@pytest.mark.parametrize("code", UNKNOWN)
def test_a_missing_topic_has_no_position(code: int) -> None:
    broker = Broker([code])
    assert topic_of(broker).read() is None
    assert topic_of(Broker([code])).slowest() is None
    assert broker.open == 0, "closed"


@pytest.mark.parametrize("code", UNKNOWN)
def test_reading_an_existing_topic_is_retried_until_the_broker_knows_it(code: int) -> None:
    broker = Broker([code, code])
    assert topic_of(broker).read(must_exist=True) == STORED
    assert (broker.refuses, broker.open) == ([], 0)


@pytest.mark.parametrize("code", UNKNOWN)
def test_an_existing_topic_that_stays_unknown_is_an_error(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions_module, "_PROPAGATION_SECONDS", 0.3)
    broker = Broker([code] * 100)
    with pytest.raises(BrokersUnavailable, match="don't know partition 0 of topic p"):
        topic_of(broker).read(must_exist=True)
    assert len(broker.refuses) < 100
    assert broker.open == 0


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize("code", UNKNOWN)
def test_a_topic_that_may_not_be_seen_is_not_taken_for_one_without_a_position(
    code: int, must_exist: bool
) -> None:
    broker = Broker([code], hidden=True)
    with pytest.raises(ConfigurationError, match="READ on topic p"):
        topic_of(broker).read(must_exist=must_exist)
    assert (broker.refuses, broker.open) == ([], 0)
