"""The stage publish with a schema registry: stock deserialisers read what the events command prints."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from airflow_cdc_provider.exceptions import TransientError
from server_kit import KafkaServer, RegistryServer
from server_kit.ports import free_port
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.publishing import declaration, make_topics, read, topic_of, with_broker

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def registry_at(port: int) -> dict[str, Any]:
    """Return values of a connection of type http."""
    return {"host": "127.0.0.1", "port": port, "extra": {"path": "/apis/ccompat/v7", "max.retries": 0}}


def test_published_avro_has_its_schemas_in_the_registry_and_waits_for_it(
    run_stage: RunStage,
    database: Database,
    connection: dict[str, Any],
    kafka_server: KafkaServer,
    registry_server: RegistryServer,
    tmp_path: Path,
) -> None:
    both = with_broker(connection, kafka_server)
    topics = make_topics(kafka_server, database, "orders")
    declared = declaration(
        database,
        {"retry_timeout_seconds": 1.0},
        key="avro",
        value="avro",
        transactions=False,
        registry={"connection": "r"},
    )
    database.orders.insert_many([{"_id": n, "name": f"é{n}"} for n in range(3)])
    silent = {**declared, "publish": {**declared["publish"], "kafka": {}}}
    assert run_stage("sync", silent, both).ok

    with pytest.raises(TransientError, match=r"the registry at 127\.0\.0\.1:.* doesn't answer"):
        run_stage("publish", declared, {**both, "registry": registry_at(free_port())})
    assert read(kafka_server, topics) == []

    there = {**both, "registry": registry_at(registry_server.port)}
    published = run_stage("publish", declared, there).published
    assert published is not None
    assert published.records == 3
    path = tmp_path / "events.jsonl"
    assert run_stage("events", declared, {}, path=str(path)).ok
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    messages = read(kafka_server, topics)
    client = SchemaRegistryClient({"url": registry_server.url})
    reader = AvroDeserializer(client)
    sent = sorted((message.key() or b"")[5:] for message in messages)
    assert sent == sorted(base64.b64decode(line["key"]) for line in lines), "what follows the id is shown"
    keys = []
    for message in messages:
        keys.append(reader(message.key() or b"", SerializationContext(topics[-1], MessageField.KEY)))
        value = message.value() or b""
        event: Any = reader(value, SerializationContext(topics[-1], MessageField.VALUE))
        assert event["source"]["collection"] == "orders"
        assert json.loads(event["after"])["_id"] == int(json.loads(keys[-1]["id"]))
    assert sorted(key["id"] for key in keys) == ["0", "1", "2"]
    assert {f"{topics[-1]}-key", f"{topics[-1]}-value"} <= set(client.get_subjects())

    same = run_stage("compare_topics", declared, there)
    assert (same.ok, [(one.note, one.mirror_rows) for one in same.tables]) == (True, [("equal", 3)]), (
        same.error
    )


@pytest.mark.parametrize("slices", [1, 2])
def test_topics_schemas_and_records_that_are_refused_or_cannot_be_built_stop_no_other(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    connection: dict[str, Any],
    kafka_server: KafkaServer,
    registry_server: RegistryServer,
    slices: int,
) -> None:
    there = {**with_broker(connection, kafka_server), "registry": registry_at(registry_server.port)}
    make_topics(kafka_server, database, "a", "faulty", "rejected", "z")
    kafka_server.create_topic(topic_of(database, "large"), 1, max_message_bytes=1000)
    registry = SchemaRegistryClient({"url": registry_server.url})
    subject = f"{topic_of(database, 'rejected')}-value"
    registry.register_schema(
        subject,
        Schema('{"type": "record", "name": "other", "fields": [{"name": "x", "type": "int"}]}', "AVRO"),
    )
    registry.set_compatibility(subject, level="BACKWARD")
    declared = declaration(
        database,
        {"slices": slices, "records_per_commit": 4},
        key="json",
        value="avro",
        transactions=False,
        unwrap={"enabled": True},
        registry={"connection": "r"},
        topics={"create": False},
    )
    names = ("a", "faulty", "large", "missing", "rejected", "z")
    large = random.Random(0).randbytes(2000).hex()
    dead: set[tuple[str, str]] = set()

    def write(turn: int) -> None:
        for name in names:
            texts = dict.fromkeys(names, "x" * 9) | {"large": large}
            bad = {"$id": 1} if name == "faulty" else {"text": texts[name]}
            database[name].insert_many(
                [{"_id": f"{turn}-{n}", **(bad if n == 2 else {"text": "x"})} for n in range(4)]
            )
        whole = {(name, f"{turn}-{n}") for name in ("missing", "rejected") for n in range(4)}
        dead.update(whole | {(name, f"{turn}-2") for name in ("faulty", "large")})

    def published(name: str) -> list[str]:
        messages = kafka_server.read(topic_of(database, name))
        return sorted(json.loads(m.key() or b"")["id"].strip('"') for m in messages)

    def dead_letters() -> set[tuple[str, str]]:
        rows = spark.table(f"lake.{database.name}.shop_{database.name}_dead_letters").collect()
        return {(row["topic"].rpartition(".")[2], json.loads(row["key"])["id"].strip('"')) for row in rows}

    turns = 2 if slices == 1 else 1
    for turn in range(turns):
        write(turn)
        outcome = run_stage("sync", declared, there)
        assert (outcome.ok, outcome.error_code) == (False, "CONFIGURATION")
        assert outcome.error.startswith(
            "[CDC-CONFIGURATION] topics are refused, all other events are published"
        )
        assert "missing rejects records" in outcome.error
        assert "rejects the schema of the value of topic" in outcome.error
        assert not [table for table in outcome.tables if table.error]
        assert outcome.published is not None
        assert (outcome.published.dead_letters, outcome.published.pending_batches) == (10, 0)
        every = [f"{one}-{n}" for one in range(turn + 1) for n in range(4)]
        assert published("a") == published("z") == every
        assert published("faulty") == published("large") == [one for one in every if one[-1] != "2"]
        assert dead_letters() == dead

    kafka_server.create_topic(topic_of(database, "missing"), 1)
    registry.set_compatibility(subject, level="NONE")
    assert run_stage("offsets", declared, there, action="publish", batch=1).ok
    outcome = run_stage("publish", declared, there)
    assert outcome.ok, outcome.error
    assert (
        published("missing")
        == published("rejected")
        == [f"{one}-{n}" for one in range(turns) for n in range(4)]
    )
