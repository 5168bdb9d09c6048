"""What tests of publishing share: declarations, topics, a workload, and events as they are shown."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_kit import KafkaServer

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pymongo.database import Database
    from pyspark.sql import SparkSession

    from tests.integration.jobs.conftest import RunStage

Sequences = dict[tuple[str, str | None], list[tuple[str | None, list[list[str]]]]]
"""By topic and key, values and headers in order."""


def declaration(database: Database, kafka: dict[str, Any] | None = None, **publish: Any) -> dict[str, Any]:
    return {
        "name": f"shop_{database.name}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
        "publish": {
            "topic_prefix": database.name,
            "transactions": True,
            **publish,
            "kafka": {"connection": "kafka", **(kafka or {})},
        },
    }


def with_catalog(spark: SparkSession, declared: dict[str, Any]) -> dict[str, Any]:
    """Declare the lake's catalog too, as a process that doesn't share the tests' Spark needs it."""
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    lake = {**declared["lake"], "catalog_options": {"type": "hadoop", "warehouse": warehouse}}
    return {**declared, "lake": lake}


def topic_of(database: Database, name: str) -> str:
    return f"{database.name}.{database.name}.{name}"


def with_broker(connection: dict[str, Any], server: KafkaServer) -> dict[str, Any]:
    return {**connection, "kafka": {"bootstrap.servers": server.bootstrap}}


def make_topics(server: KafkaServer, database: Database, *names: str) -> list[str]:
    topics = [f"{database.name}.transaction", *(topic_of(database, name) for name in names)]
    for topic in topics:
        server.create_topic(topic, 1 if topic.endswith("transaction") else 3)
    return topics


def partitions_and_policies(server: KafkaServer, *topics: str) -> dict[str, tuple[int, str]]:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    there = admin.list_topics(timeout=30).topics
    configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics])
    policies = {
        resource.name: future.result(30)["cleanup.policy"].value for resource, future in configs.items()
    }
    return {topic: (len(there[topic].partitions), policies[topic]) for topic in topics}


def plain(text: str | None) -> str | None:
    """Leave out when the event was made, and by which run."""
    if text is None:
        return None
    value = json.loads(text)
    if isinstance(value, dict):
        source = value.get("source", {})
        for part in (value, source) if source.get("snapshot", "false") != "false" else (value,):
            for name in ("ts_ms", "ts_us", "ts_ns"):
                part.pop(name, None)
    return json.dumps(value, ensure_ascii=False)


def plain_headers(headers: list[Any]) -> list[list[str]]:
    return [[name, "" if name.endswith("runId") else text] for name, text in headers]


def sequences_of(messages: list[Message]) -> Sequences:
    found: Sequences = defaultdict(list)
    for message in messages:
        key, value = message.key(), message.value()
        headers = [[name, text.decode()] for name, text in message.headers() or []]
        found[message.topic() or "", key.decode() if key else None].append(
            (plain(value.decode() if value is not None else None), plain_headers(headers))
        )
    return dict(found)


def read(server: KafkaServer, topics: list[str]) -> list[Message]:
    return [message for topic in topics for message in server.read(topic)]


def records_of(server: KafkaServer, topics: list[str]) -> Callable[[], set[tuple[str, int, int]]]:
    """Return a function that lists the ends of the partitions of topics, open transactions included.

    It takes a while: who calls it again and again would keep the broker from its work.
    """
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "ends",
            "isolation.level": "read_uncommitted",
        }
    )
    partitions = [
        TopicPartition(name, number)
        for name in topics
        for number in consumer.list_topics(name, timeout=30).topics[name].partitions
    ]

    def ends() -> set[tuple[str, int, int]]:
        time.sleep(0.05)
        found = [(one, consumer.get_watermark_offsets(one, timeout=30)[1]) for one in partitions]
        return {(one.topic, one.partition, end) for one, end in found}

    return ends


def printed(run_stage: RunStage, declared: dict[str, Any], folder: Path) -> Sequences:
    path = folder / "events.jsonl"
    assert run_stage("events", declared, {}, path=str(path)).ok
    found: Sequences = defaultdict(list)
    for line in path.read_text().splitlines():
        event = json.loads(line)
        shown = plain(event["value"]), plain_headers(event["headers"])
        found[event["topic"], event["key"]].append(shown)
    return dict(found)


def write(database: Database, turn: int) -> None:
    orders = database.orders
    orders.insert_many([{"_id": f"{turn}-{n}", "n": n} for n in range(30)])
    orders.update_many({"n": {"$lt": 10}}, {"$set": {"turn": turn}})
    orders.delete_many({"n": 20})
    with database.client.start_session() as session, session.start_transaction():
        orders.insert_one({"_id": f"{turn}-t"}, session=session)
        database.customers.insert_one({"_id": turn}, session=session)
    database.customers.insert_one({"_id": f"{turn}-after"})
