"""Sends messages of Debezium to topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit import KafkaServer

if TYPE_CHECKING:
    pass


def send(server: KafkaServer, topic: str, *records: tuple[str, str | None]) -> None:
    """Write what no connector has."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server.bootstrap, "partitioner": "murmur2_random"})
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0
