"""A schema registry that fails in mid-run: events are published once, and messages are read, all the same."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit import KafkaServer, RegistryServer
from tests.integration.jobs import debezium_mirrors, publishing
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.debezium_mirrors import InAvro, expected, mirror, send
from tests.integration.jobs.debezium_workload import Workload
from tests.integration.jobs.publishing import make_topics, read, with_broker
from tests.integration.jobs.registry_proxy import RegistryProxy

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def registry(registry_server: RegistryServer) -> Iterator[RegistryProxy]:
    """The shared registry behind a proxy that fails on demand."""
    with RegistryProxy(registry_server) as proxy:
        yield proxy


def test_publishing_waits_for_a_registry_that_fails_in_mid_run_and_sends_each_event_once(
    run_stage: RunStage,
    database: Database,
    connection: dict[str, Any],
    kafka_server: KafkaServer,
    registry: RegistryProxy,
    tmp_path: Path,
) -> None:
    topics = make_topics(kafka_server, database, "orders", "customers")[1:]
    kafka = {"records_per_commit": 5, "retry_timeout_seconds": 60, "retry_interval_seconds": 0.05}
    avro = {"key": "avro", "value": "avro", "transactions": False, "registry": {"connection": "r"}}
    declared = publishing.declaration(database, kafka, **avro)
    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    both = {**with_broker(connection, kafka_server), "registry": registry.connection}
    database.create_collection("orders")
    assert run_stage("sync", silent, both).ok
    database.orders.insert_many([{"_id": n} for n in range(20)])
    assert run_stage("capture", silent, both).ok
    database.orders.update_many({}, {"$set": {"seen": True}})
    database.customers.insert_many([{"_id": n} for n in range(20)])
    assert run_stage("capture", silent, both).ok

    # The schemas of orders, then, when those of customers are needed, all that can go wrong.
    registry.fail("", "", "hang_up", "error", "slow", "cut", "", "", "", "error")
    outcome = run_stage("publish", declared, both)
    assert outcome.ok, outcome.error
    assert not registry.troubles, "it was asked in mid-run"
    path = tmp_path / "events.jsonl"

    def published() -> dict[tuple[str, bytes], int]:
        found: dict[tuple[str, bytes], int] = defaultdict(int)
        for message in read(kafka_server, topics):
            found[message.topic() or "", (message.key() or b"")[5:]] += 1
        return found

    def printed() -> dict[tuple[str, bytes], int]:
        assert run_stage("events", declared, {}, path=str(path)).ok
        found: dict[tuple[str, bytes], int] = defaultdict(int)
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found[event["topic"], base64.b64decode(event["key"])] += 1
        return found

    assert sum(printed().values()) == 60
    assert published() == printed(), "each once"

    # What answers otherwise than a registry is for a person; nothing is sent, and nothing lost.
    database.orders.insert_one({"_id": "later"})
    assert run_stage("capture", silent, both).ok
    registry.fail("page")
    with pytest.raises(ConfigurationError, match="doesn't answer like Confluent's REST interface"):
        run_stage("publish", declared, both)
    assert sum(published().values()) == 60
    assert run_stage("publish", declared, both).ok
    assert sum(published().values()) == 61
    assert published() == printed()


def test_messages_wait_for_their_schemas_and_a_registry_that_fails_and_land_in_order(
    spark: SparkSession,
    run_stage: RunStage,
    kafka_server: KafkaServer,
    registry_server: RegistryServer,
    registry: RegistryProxy,
) -> None:
    topic = "dzw.shop.orders"
    kafka_server.create_topic(topic, 2)
    workload = Workload(topic, 2, 11, schemas=True)
    avro = InAvro(topic, SchemaRegistryClient({"url": registry_server.url}))
    avro.take(workload.messages(60))
    known = _ids(avro)
    workload.version = 2
    avro.take(workload.messages(60))
    registry.hidden = _ids(avro) - known
    assert registry.hidden, "columns were added, by another schema"
    send(kafka_server, avro.messages)
    declared = debezium_mirrors.declaration(
        "dzw",
        [r"dzw\..*"],
        key_converter="avro",
        value_converter="avro",
        registry={"connection": "r"},
        advanced={"schema_lookup_timeout_seconds": 0.3, "slice_messages": 40},
    )
    values = {**debezium_mirrors.connection(kafka_server), "source_registry": registry.connection}

    registry.fail("hang_up", "error", "slow", "cut", "error")
    first = run_stage("sync", declared, values)
    assert first.ok, first.error
    assert not registry.troubles
    waiting = sum(origin.errors for origin in first.origins)
    assert waiting > 20, "their schema is nowhere yet"

    registry.down = True
    again = run_stage("sync", declared, values)
    assert again.ok, "what waits holds up no run"
    registry.down = False
    registry.hidden.clear()
    last = run_stage("sync", declared, values)
    assert last.ok, last.error
    assert last.changes >= waiting
    assert mirror(spark, "dzw.shop_orders") == expected(workload.rows, schemas=True)
    kinds = spark.table("lake.dzw.dzw_changes").groupBy("kind").count().collect()
    counted = {row["kind"]: row["count"] for row in kinds}
    assert "quarantine" not in counted
    assert counted["change"] == len(avro.messages), "each once"


def _ids(avro: InAvro) -> set[int]:
    """Return the ids of the values' schemas."""
    return {int.from_bytes(value[1:5], "big") for _, _, _, value in avro.messages if value}
