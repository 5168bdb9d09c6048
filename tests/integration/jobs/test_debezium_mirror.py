"""Topics of Debezium's events: the mirror equals the rows that they describe, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from server_kit import KafkaServer, RegistryServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.debezium_workload import Message, Workload
from tests.unit.sources.debezium.registry_writers import as_avro

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


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


def test_mirror_equals_the_rows_that_events_describe(
    spark: SparkSession, run_stage: RunStage, kafka_server: KafkaServer, registry_server: RegistryServer
) -> None:
    tables = [
        Workload("dz1.shop.orders", 3, 1, schemas=True),
        Workload("dz1.shop.plain", 2, 2, schemas=False),
    ]
    for table in tables:
        kafka_server.create_topic(table.topic, table.partitions)
    kafka_server.create_topic("dz1.transaction")
    connector = declaration("dz1", [r"dz1\..*"], batch_messages=700, advanced={"slice_messages": 150})
    avro = InAvro("dza.shop.orders", SchemaRegistryClient({"url": registry_server.url}))
    for table in tables:
        made = table.messages(200)
        avro.take(made if table.schemas else [])
        send(kafka_server, made)
    first = run_stage("sync", connector, connection(kafka_server))
    assert first.ok
    assert all(not table.error for table in first.tables), first.tables

    for table in tables:
        table.version = 2
        made = table.messages(150)
        avro.take(made if table.schemas else [])
        send(kafka_server, made, transactional=f"{table.topic}-tx")
        aborted = Workload(table.topic, table.partitions, 9, schemas=table.schemas)
        send(kafka_server, aborted.messages(20), transactional=f"{table.topic}-tx", commit=False)
    marks = {"status": "BEGIN", "id": "1", "event_count": None, "data_collections": None, "ts_ms": 1}
    send(kafka_server, [("dz1.transaction", 0, b'{"id":"1"}', json.dumps(marks).encode())])
    broken = [("dz1.shop.plain", 1, b"{", b'{"op":"c"}'), ("dz1.shop.plain", 0, b"{}", b"\x00rubbish")]
    send(kafka_server, broken)
    second = run_stage("sync", connector, connection(kafka_server))

    assert sum(origin.errors for origin in second.origins) == 2
    assert second.skipped == {"transaction": 1}
    assert all(not table.error and not table.undecodable for table in second.tables), second.tables
    orders, plain = (mirror(spark, f"dz1.shop_{name}") for name in ("orders", "plain"))
    assert orders == expected(tables[0].rows, schemas=True)
    assert plain == expected(tables[1].rows, schemas=False)
    assert isinstance(next(row["amount"] for row in orders.values() if row["amount"]), Decimal)

    # The very same events, as a registry's converter writes them, give the very same mirror.
    same = declaration(
        "dza",
        [r"dza\..*"],
        key_converter="avro",
        value_converter="avro",
        registry={"url": registry_server.url},
        advanced={"slice_messages": 150},
    )
    kafka_server.create_topic("dza.shop.orders", 3)
    send(kafka_server, avro.messages)
    lost = b"\0\x7f\xff\xff\xff\2"
    send(kafka_server, [("dza.shop.orders", 0, lost, b"\0"), ("dza.shop.orders", 1, None, lost)])
    third = run_stage("sync", same, connection(kafka_server))
    assert sum(origin.errors for origin in third.origins) == 2
    assert mirror(spark, "dza.shop_orders") == orders

    run_stage("offsets", connector, connection(kafka_server), action="reset")
    run_stage("sync", connector, connection(kafka_server))
    assert mirror(spark, "dz1.shop_orders") == orders
    assert mirror(spark, "dz1.shop_plain") == plain
