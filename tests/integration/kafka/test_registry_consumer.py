"""Events with a registry's ids through a real broker, read by the deserialisers that others have."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import DeserializingConsumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

from airflow_cdc_provider.events.encoder import ConverterName, Converters, Envelope, encode
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from server_kit import KafkaServer, RegistryServer
from tests.integration.registry_events import events, settings_of
from tests.unit.events.protobuf_messages import message_class

pytestmark = pytest.mark.integration


def without_bytes(envelope: Envelope) -> Envelope:
    """Leave out the column of bytes, which have no text."""
    (own,) = envelope.destinations
    fields = tuple((name, schema) for name, schema in own.value.fields if schema.type != "bytes")
    columns = [envelope.value.field(name) for name, _ in fields]
    values = pa.StructArray.from_arrays(columns, [name for name, _ in fields], mask=envelope.value.is_null())
    return replace(
        envelope, destinations=[replace(own, value=replace(own.value, fields=fields))], value=values
    )


def published(
    broker: KafkaServer, registry: RegistryServer, topic: str, key: ConverterName, value: ConverterName
) -> None:
    """Send a create, an update, a delete and its tombstone."""
    broker.create_topic(topic)
    settings = ClientSettings({"bootstrap.servers": broker.bootstrap})
    positions = PositionsTopic(settings, f"{topic}.positions", topic)
    positions.make(1)
    made = encode(
        without_bytes(events(topic)), Converters(key, value, registrar=Registry(settings_of(registry)))
    )
    producer = RecordProducer(settings, positions, transactional_id=topic)
    try:
        producer.take_over()
        producer.publish([made], [("run", '"1"')], PublishPosition(topic, 1))
    finally:
        producer.close()


def consumed(broker: KafkaServer, topic: str, key: Any, value: Any) -> list[tuple[Any, Any]]:
    """Read keys and values of four records."""
    consumer = DeserializingConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "key.deserializer": key,
            "value.deserializer": value,
        }
    )
    consumer.subscribe([topic])
    found: list[tuple[Any, Any]] = []
    try:
        for _ in range(60):
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                assert message.headers() == [("run", b'"1"')]
                found.append((message.key(), message.value()))
            if len(found) == 4:
                break
    finally:
        consumer.close()
    return found


def test_stock_deserialisers_read_avro_from_a_topic(
    kafka_server: KafkaServer, registry_server: RegistryServer
) -> None:
    topic = f"avro.t{uuid.uuid4().hex[:8]}"
    published(kafka_server, registry_server, topic, "avro", "avro")
    client = SchemaRegistryClient({"url": registry_server.url})
    read = consumed(kafka_server, topic, AvroDeserializer(client), AvroDeserializer(client))
    assert [key["id"] for key, _ in read] == [1, 2, 1, 1]
    assert [value and value["name"] for _, value in read] == ["ä", None, None, None]
    assert [value is None for _, value in read] == [False, False, True, True]


@pytest.mark.covers("CAS-DEPLOY-04")
@pytest.mark.parametrize(
    ("key", "value"), [("protobuf", "avro"), ("string", "protobuf"), ("json", "string"), ("avro", "json")]
)
def test_keys_and_values_have_each_a_converter_of_their_own(
    kafka_server: KafkaServer, registry_server: RegistryServer, key: ConverterName, value: ConverterName
) -> None:
    client = SchemaRegistryClient({"url": registry_server.url})
    topic = f"mixed.t{uuid.uuid4().hex[:8]}"
    published(kafka_server, registry_server, topic, key, value)

    def text(data: bytes | None, context: Any) -> str | None:
        return None if data is None else data.decode()

    def reader(side: str, name: ConverterName) -> Any:
        if name == "avro":
            return AvroDeserializer(client)
        if name in ("json", "string"):
            return text
        registered = client.get_latest_version(f"{topic}-{side}").schema.schema_str
        kind = message_class(registered, f"{topic}.{side.capitalize()}")
        return ProtobufDeserializer(kind, {"use.deprecated.format": False})

    def shown(read: Any) -> Any:
        if read is None or isinstance(read, (str, dict)):
            return read
        return {"id": read.id}

    read = consumed(kafka_server, topic, reader("key", key), reader("value", value))
    keys = {
        "string": [f"Struct{{id={n}}}" for n in (1, 2, 1, 1)],
        "json": [f'{{"id":{n}}}' for n in (1, 2, 1, 1)],
    }
    assert [shown(k) for k, _ in read] == keys.get(key, [{"id": n} for n in (1, 2, 1, 1)])
    first, second, *deleted = (shown(v) for _, v in read)
    assert deleted == [None, None]
    wanted: dict[str, Any] = {
        "avro": {"id": 1, "name": "ä", "tags": {"x": 1, "y": -2}, "snapshot": "last"},
        "protobuf": {"id": 1},
        "json": '{"id":1,"name":"ä","tags":{"x":1,"y":-2},"snapshot":"last"}',
        "string": "Struct{id=1,name=ä,tags={x=1, y=-2},snapshot=last}",
    }
    assert first == wanted[value]
    assert value != "string" or second == "Struct{id=2,tags={}}"
