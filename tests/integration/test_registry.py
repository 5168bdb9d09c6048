"""Schemas in a real registry, and bytes that stock deserialisers read."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from airflow_cdc_provider.events.connect import INT64, OPTIONAL_STRING, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import ConverterName, Converters, Destination, Envelope, encode
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.kafka.registry import RegisteredSchema, Registry, RegistrySettings
from airflow_cdc_provider.sources.debezium.avro_program import compile_avro
from airflow_cdc_provider.sources.debezium.converters import FramedConverter
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from airflow_cdc_provider.sources.vitess.events.decode import Stream, split_stream
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.recordings import read_recording
from server_kit import RegistryServer
from server_kit.ports import free_port
from tests.integration.registry_events import events, settings_of
from tests.unit.events.protobuf_messages import message_class
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, declared

pytestmark = pytest.mark.integration


@pytest.fixture
def client(registry_server: RegistryServer) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry_server.url})


@pytest.fixture
def topic() -> str:
    return f"shop.t{uuid4().hex[:8]}"


def converters(name: ConverterName, registry: Registry) -> Converters:
    return Converters(name, name, registrar=registry)


def test_confluents_deserialiser_reads_avro(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str
) -> None:
    made = encode(events(topic), converters("avro", Registry(settings_of(registry_server))))
    keys, values = (
        [reader(encoded, SerializationContext(topic, side)) for encoded in made[name].to_pylist()]
        for name, side, reader in (
            ("key", MessageField.KEY, AvroDeserializer(client)),
            ("value", MessageField.VALUE, AvroDeserializer(client)),
        )
    )
    assert keys == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 1}]
    assert [value and (value["id"], value["name"], str(value["amount"])) for value in values] == [
        (1, "ä", "2.56"),
        (2, None, "None"),
        None,
        None,
    ]
    assert values[0]["tags"] == {"x": 1, "y": -2}
    assert {f"{topic}-key", f"{topic}-value"} <= set(client.get_subjects())


def test_confluents_deserialiser_reads_protobuf(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str
) -> None:
    """Apicurio doesn't hand out compiled schemas, so that the reader's class is compiled of its text."""
    made = encode(events(topic), converters("protobuf", Registry(settings_of(registry_server))))
    registered = client.get_latest_version(f"{topic}-value")
    assert made["value"][0].as_py()[:6] == b"\0" + registered.schema_id.to_bytes(4, "big") + b"\0"
    kind = message_class(registered.schema.schema_str, f"{topic}.Value")
    reader = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    first, second, *deleted = (
        reader(encoded, SerializationContext(topic, MessageField.VALUE))
        for encoded in made["value"].to_pylist()
    )
    assert (first.id, first.name, first.snapshot) == (1, "ä", "last")
    assert (first.amount.value, first.amount.precision, first.amount.scale) == (b"\x01\x00", 3, 2)
    assert [(entry.key, entry.value) for entry in first.tags] == [("x", 1), ("y", -2)]
    assert not second.HasField("name")
    assert second.snapshot == "false"
    assert deleted == [None, None]


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_schema_has_one_id_however_often_it_is_registered(
    registry_server: RegistryServer, topic: str, name: ConverterName
) -> None:
    registry = Registry(settings_of(registry_server))
    first = encode(events(topic), converters(name, registry))
    assert encode(events(topic), converters(name, pickle.loads(pickle.dumps(registry)))) == first
    known = Registry(settings_of(registry_server, auto_register=False, normalize=True))
    assert encode(events(topic), converters(name, known)) == first


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_without_leave_to_register_a_missing_schema_fails(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str, name: ConverterName
) -> None:
    registry = Registry(settings_of(registry_server, auto_register=False))
    with pytest.raises(ConfigurationError, match=f"doesn't have the schema.* under subject {topic}-key"):
        encode(events(topic), converters(name, registry))
    assert f"{topic}-key" not in client.get_subjects()


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_compatible_changes_get_a_new_id_and_others_are_refused_with_the_reason(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str, name: ConverterName
) -> None:
    registry = Registry(settings_of(registry_server))
    before = encode(events(topic), converters(name, registry))
    client.set_compatibility(f"{topic}-value", level="BACKWARD")
    added = encode(events(topic, ("more", OPTIONAL_STRING)), converters(name, registry))
    assert before["key"] == added["key"]
    assert before["value"][0].as_py()[:5] != added["value"][0].as_py()[:5]
    versions = client.get_versions(f"{topic}-value")
    changed = events(topic)
    (own,) = changed.destinations
    fields = [(n, OPTIONAL_STRING if n == "id" else s) for n, s in own.value.fields]
    ids = pa.array(["1", "2", None])
    values = pa.StructArray.from_arrays(
        [ids, *changed.value.flatten()[1:]], [n for n, _ in fields], mask=changed.value.is_null()
    )
    value = struct(own.value.name, *fields, ("needed", INT64))
    values = pa.StructArray.from_arrays(
        [*values.flatten(), pa.array([1, 1, 1])], [n for n, _ in value.fields], mask=changed.value.is_null()
    )
    changed = replace(changed, destinations=[replace(own, value=value)], value=values)
    with pytest.raises(ConfigurationError, match=r"it is incompatible with those of subject .* Incompatible"):
        encode(changed, converters(name, registry))
    assert client.get_versions(f"{topic}-value") == versions


def test_subjects_by_record_are_shared_by_topics(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str
) -> None:
    by_record = settings_of(registry_server, key_subjects="record", value_subjects="topic_record")
    encode(events(topic), converters("protobuf", Registry(by_record)))
    assert {f"{topic}.Key", f"{topic}-{topic}.Value"} <= set(client.get_subjects())


def test_single_values_are_messages_of_googles_wrappers(registry_server: RegistryServer, topic: str) -> None:
    one = Envelope(
        [Destination(topic, ConnectSchema("string"), ConnectSchema("int64"))],
        np.zeros(1, np.int64),
        pa.array(["a"]),
        pa.array([-1]),
        np.zeros(1, np.bool_),
    )
    made = encode(one, converters("protobuf", Registry(settings_of(registry_server))))
    assert made["key"][0].as_py()[5:] == b"\2\x0e\x0a\1a"
    assert made["value"][0].as_py()[5:] == b"\2\4\x08" + b"\xff" * 9 + b"\1"


def test_readers_refuse_ids_that_nobody_gave(client: SchemaRegistryClient, topic: str) -> None:
    with pytest.raises((SchemaRegistryError, SerializationError), match="404"):
        AvroDeserializer(client)(b"\0\x7f\xff\xff\xff\2", SerializationContext(topic, MessageField.VALUE))


def test_a_wrong_schema_is_refused_with_the_reason(registry_server: RegistryServer, topic: str) -> None:
    schema = TopicSchema(topic, "value", "", "AVRO", '{"type":"record"}')
    with pytest.raises(ConfigurationError, match="rejects the schema of the value of topic"):
        Registry(settings_of(registry_server)).schema_id(schema)


def test_an_address_without_a_registry_is_reported(registry_server: RegistryServer, topic: str) -> None:
    wrong = RegistrySettings({"url": registry_server.url.replace("/apis/ccompat/v7", "/no/such")})
    with pytest.raises(ConfigurationError):
        Registry(wrong).schema_id(TopicSchema(topic, "value", "", "AVRO", '"string"'))


@pytest.mark.parametrize("name", ["avro", "protobuf", "json_schema"])
def test_what_is_written_with_a_registry_is_read_back_by_its_ids(
    registry_server: RegistryServer, topic: str, name: Literal["avro", "protobuf", "json_schema"]
) -> None:
    given = events(topic)
    made = encode(given, converters(name, Registry(settings_of(registry_server))))
    reader = FramedConverter(RegisteredSchemas(Registry(settings_of(registry_server)), name))
    keys, faults = reader.keys(made["key"].cast(pa.binary()))
    assert keys.to_pylist() == [b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":1}']
    assert not faults.any()
    values = reader.values(made["value"].cast(pa.binary()), unwrapped=True)
    assert not values.faults.any()
    (schema,) = (json.loads(one) for one in values.schemas.values())
    own = json.loads(given.destinations[0].value.to_json())
    assert [(one["field"], one["type"]) for one in schema["fields"]] == [
        (one["field"], one["type"]) for one in own["fields"]
    ]
    starts, ends = values.spans.starts, values.spans.ends
    shown: list[Any] = [
        None if start < 0 else json.loads(values.data[start:end].tobytes())
        for start, end in zip(starts, ends, strict=True)
    ]
    assert shown[2:] == [None, None]
    assert (shown[0]["name"], shown[0]["amount"], shown[0]["tags"]) == ("ä", "AQA=", {"x": 1, "y": -2})
    assert (shown[1]["id"], shown[1]["name"], shown[1]["amount"]) == (2, None, None)


def test_an_id_leads_to_its_schema_with_all_that_it_refers_to(
    registry_server: RegistryServer, client: SchemaRegistryClient, topic: str
) -> None:
    def registered(subject: str, text: str, *references: SchemaReference) -> int:
        return int(client.register_schema(subject, Schema(text, "AVRO", list(references))))

    leaf = '{"type":"record","name":"Leaf","namespace":"n","fields":[{"name":"v","type":"int"}]}'
    middle = '{"type":"record","name":"Middle","namespace":"n","fields":[{"name":"leaf","type":"n.Leaf"}]}'
    whole = (
        '{"type":"record","name":"Whole","namespace":"n","fields":'
        '[{"name":"leaf","type":"n.Leaf"},{"name":"middle","type":"n.Middle"}]}'
    )
    of_leaf = SchemaReference("n.Leaf", f"{topic}.leaf", 1)
    of_middle = SchemaReference("n.Middle", f"{topic}.middle", 1)
    registered(of_leaf.subject, leaf)
    registered(of_middle.subject, middle, of_leaf)
    number = registered(f"{topic}-value", whole, of_middle, of_leaf)
    waited: list[float] = []
    registry = Registry(settings_of(registry_server), waited.append)
    found = registry.schema_of(number)
    assert isinstance(found, RegisteredSchema)
    assert found.type == "AVRO"
    assert [name for name, _ in found.references] == ["n.Leaf", "n.Middle"]
    _, shown = compile_avro(found.text, [text for _, text in found.references])
    assert [one["field"] for one in shown["fields"]] == ["leaf", "middle"]
    assert not waited
    assert registry.schema_of(2_000_000_000) is None
    assert waited  # for a replica that may not have it yet


def test_ids_are_not_looked_up_where_no_registry_is(registry_server: RegistryServer) -> None:
    elsewhere = RegistrySettings({"url": registry_server.url.replace("/apis/ccompat/v7", "/no/such")})
    with pytest.raises(ConfigurationError):
        Registry(elsewhere).schema_of(1)
    nowhere = RegistrySettings({"url": f"http://127.0.0.1:{free_port()}", "max.retries": 0})
    with pytest.raises(TransientError):
        Registry(nowhere).schema_of(1)


@pytest.mark.covers("VIT-EVT-13")
def test_events_of_a_recorded_vstream_are_read_by_the_schema_that_their_id_leads_to(
    registry_server: RegistryServer, client: SchemaRegistryClient
) -> None:
    received = read_recording((FIXTURES / "vstream" / "default.vstream").read_bytes()).events
    stream = Stream(received)
    connector = declared("default", key="avro", value="avro", registry={"connection": "r"})
    registry = Registry(settings_of(registry_server))
    builder = VitessRecords(connector, 0, lambda keyspace, _: keyspace == "shop", registrar=registry)
    read = AvroDeserializer(client)

    batches = [builder.records(stream, *section)[0] for section in split_stream(received, 10_000)]

    records = [record for batch in batches for record in batch.to_pylist()]
    lines = gzip.decompress((FIXTURES / "events" / "default.events.jsonl.gz").read_bytes()).splitlines()
    for record, line in zip(records, lines, strict=True):
        theirs = json.loads(line)
        assert record["topic"] == theirs["topic"]
        for side in (MessageField.KEY, MessageField.VALUE):
            expected = theirs[side] and theirs[side]["payload"]
            encoded = record[side]
            assert (encoded is None) == (expected is None)
            if encoded is None:
                continue
            found = read(encoded, SerializationContext(record["topic"], side))
            assert without_build_time(as_json(found)) == without_build_time(avro_named(expected))
            schema = client.get_schema(int.from_bytes(encoded[1:5], "big")).schema_str
            assert [one["name"] for one in json.loads(schema)["fields"]] == list(expected)


def as_json(value: Any) -> Any:
    """Show bytes as Connect's JSON does."""
    if isinstance(value, dict):
        return {name: as_json(member) for name, member in value.items()}
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def avro_named(value: Any) -> Any:
    """Adjust the names of fields as Debezium does for Avro."""
    if isinstance(value, dict):
        return {re.sub(r"\W", "_", name, flags=re.ASCII): avro_named(one) for name, one in value.items()}
    return value


def without_build_time(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("ts_ms", "ts_us", "ts_ns")}


class _Troubled(BaseHTTPRequestHandler):
    """A registry in trouble, or behind a proxy that wants a login: it answers what its path says."""

    def do_POST(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))  # type: ignore[attr-defined]
        status = int(self.path.split("/")[1])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"<html>" if status == 200 else b'{"error_code": 1, "message": "no"}')

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def troubled() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Troubled)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (500, TransientError, "reports an error: found HTTP 500"),
        (429, TransientError, "reports an error: found HTTP 429"),
        (401, ConfigurationError, "denies access"),
        (403, ConfigurationError, "denies access"),
        (422, ConfigurationError, "rejects the schema"),
        (200, ConfigurationError, "doesn.t answer like"),
    ],
)
def test_errors_of_the_registry_have_a_remedy(
    troubled: HTTPServer, status: int, kind: type[Exception], words: str
) -> None:
    url = f"http://127.0.0.1:{troubled.server_port}/{status}"
    settings = {"url": url, "basic.auth.user.info": "me:hush", "max.retries": 0}
    with pytest.raises(kind, match=words) as caught:
        Registry(RegistrySettings(settings)).schema_id(TopicSchema("t", "value", "", "AVRO", '"string"'))
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError if status == 422 else kind):
        Registry(RegistrySettings(settings)).schema_of(1)
    assert troubled.seen[:1] == ["Basic bWU6aHVzaA=="]  # type: ignore[attr-defined]
