"""The stage publish with a schema registry: stock deserialisers read what the events command prints."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from airflow_cdc_provider.exceptions import TransientError
from server_kit import KafkaServer, RegistryServer
from server_kit.ports import free_port
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.publishing import declaration, make_topics, read, with_broker

if TYPE_CHECKING:
    from pymongo.database import Database

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
