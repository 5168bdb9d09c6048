"""Declarations and mirrors of topics with Debezium's events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from server_kit import KafkaServer
from tests.integration.jobs.debezium_workload import Message
from tests.unit.sources.debezium.registry_writers import as_avro

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def declaration(name: str, topics: list[str], **source: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "debezium", "conn_id": "kafka_shop", "topics": topics, **source},
        "lake": {"catalog": "lake", "namespace": name},
    }


def connection(server: KafkaServer) -> dict[str, Any]:
    return {"extra": {"bootstrap.servers": server.bootstrap}}


def send(
    server: KafkaServer, messages: Iterable[Message], *, transactional: str = "", commit: bool = True
) -> None:
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": server.bootstrap, "linger.ms": 5}
    if transactional:
        settings["transactional.id"] = transactional
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    for topic, partition, key, value in messages:
        producer.produce(topic, value, key, partition)
        producer.poll(0)
    assert producer.flush(30) == 0
    if transactional:
        (producer.commit_transaction if commit else producer.abort_transaction)(30)


class InAvro:
    """Messages in Avro, their schemas in a registry.

    Args:
        topic: Where they go.
        client: Of the registry.
    """

    def __init__(self, topic: str, client: SchemaRegistryClient) -> None:
        self.messages: list[Message] = []
        self._topic = topic
        self._client = client

    def take(self, messages: Iterable[Message]) -> None:
        """Add messages that JsonConverter wrote."""
        for _, partition, key, value in messages:
            self.messages.append((self._topic, partition, as_avro(key, self), as_avro(value, self)))

    def add(self, kind: str, text: str) -> int:
        """Register a schema and return its id."""
        return int(self._client.register_schema(f"{self._topic}-{len(text)}", Schema(text, kind)))


def mirror(spark: SparkSession, name: str) -> dict[int, dict[str, Any]]:
    rows = [row.asDict() for row in spark.table(f"lake.{name}").drop("_cdc").collect()]
    found = {row.pop("id"): row for row in rows}
    assert len(found) == len(rows)
    return found


def expected(rows: Mapping[int, Mapping[str, Any]], *, schemas: bool) -> dict[int, dict[str, Any]]:
    found = {}
    for row_id, row in rows.items():
        shown = {"stars": None, "_rest": None, **{name: value for name, value in row.items() if name != "id"}}
        if not schemas:
            shown["amount"] = None if row["amount"] is None else float(row["amount"])
            shown["seen_at"] = row["seen_at"].isoformat()
        found[row_id] = shown
    return found
