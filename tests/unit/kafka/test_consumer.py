from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.settings import ClientSettings
from tests.unit.kafka.fake_consumer import FakeConsumer, FakeMessage, end_at

SETTINGS = ClientSettings({"bootstrap.servers": "localhost:1"}, retry_timeout_seconds=0.01)
RANGE = MessageRange("orders", 2, 5, 9)


def offsets(consumer: FakeConsumer, wanted: MessageRange = RANGE) -> list[int]:
    found = [message.offset() for some in read_range(SETTINGS, wanted, build=consumer) for message in some]
    assert consumer.closed
    return found


def failure(code: int) -> FakeMessage:
    return FakeMessage(-1, failure=KafkaError(code))


def test_a_range_ends_at_its_end_offset() -> None:
    consumer = FakeConsumer([[FakeMessage(5), FakeMessage(6)], [FakeMessage(8), FakeMessage(9)]])
    assert offsets(consumer) == [5, 6, 8]
    (assigned,) = consumer.assigned
    assert (assigned.topic, assigned.partition, assigned.offset) == ("orders", 2, 5)
    assert consumer.settings["isolation.level"] == "read_committed"
    assert consumer.settings["auto.offset.reset"] == "error"
    assert consumer.settings["enable.auto.commit"] is False


@pytest.mark.parametrize("after", [[end_at(9)], [FakeMessage(12)], [end_at(20)]])
def test_holes_at_the_end_of_a_range_are_passed(after: list[FakeMessage]) -> None:
    assert offsets(FakeConsumer([[FakeMessage(6)], after])) == [6]


def test_the_end_of_a_replica_that_is_behind_is_not_the_end() -> None:
    assert offsets(FakeConsumer([[FakeMessage(5), end_at(6)], [FakeMessage(6), end_at(9)]])) == [5, 6]


def test_deleted_messages_raise_position_lost() -> None:
    with pytest.raises(PositionLost, match="partition 2 of topic orders"):
        offsets(FakeConsumer([[failure(KafkaError._AUTO_OFFSET_RESET)]]))


def test_a_refused_login_is_a_matter_of_configuration() -> None:
    consumer = FakeConsumer([[failure(KafkaError.TOPIC_AUTHORIZATION_FAILED)]])
    with pytest.raises(ConfigurationError):
        offsets(consumer)
    assert consumer.closed


def test_that_the_group_of_no_use_may_not_be_joined_is_ignored() -> None:
    refused = failure(KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert offsets(FakeConsumer([[refused, FakeMessage(5)], [refused], [FakeMessage(8)]])) == [5, 8]


def test_silence_ends_with_a_reason_to_come_again() -> None:
    with pytest.raises(TransientError, match="reading partition 2"):
        offsets(FakeConsumer([[failure(KafkaError._ALL_BROKERS_DOWN)]]))


def test_nothing_is_read_of_an_empty_range() -> None:
    consumer = FakeConsumer([])
    assert offsets(consumer, MessageRange("orders", 2, 5, 5)) == []
    assert consumer.calls == 0
