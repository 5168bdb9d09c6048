"""Kafka Connect's converters in Debezium's files, with the settings of their registry."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.connector.publish.registry import RegistryOptions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
URL = "http://registry:8081"
CLASSES = {
    "cassandra": "io.debezium.connector.cassandra.Cassandra4Connector",
    "mongodb": "io.debezium.connector.mongodb.MongoDbConnector",
    "scylla": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
    "vitess": "io.debezium.connector.vitess.VitessConnector",
}


def publish(kind: str = "mongodb", **settings: str) -> tuple[PublishOptions, list[str]]:
    """Import a file; two underscores stand for a dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    own = {"scylla": {"scylla.name": "p"}, "vitess": {"vitess.keyspace": "k"}}.get(kind, {})
    base = {"connector.class": CLASSES[kind], "topic.prefix": "p", **own}
    imported = from_debezium({**base, **named})
    return imported.connector.publish, list(imported.notes)


@pytest.mark.covers("CAS-CFG-34")
@pytest.mark.parametrize(
    ("converter", "name"),
    [
        (JSON, "json"),
        (AVRO, "avro"),
        (PROTOBUF, "protobuf"),
        (JSON_SCHEMA, "json_schema"),
        (STRING, "string"),
        ("org.apache.kafka.connect.converters.ByteArrayConverter", "bytes"),
        ("io.debezium.converters.BinaryDataConverter", "bytes"),
    ],
)
def test_classes_become_converters_and_the_registrys_address_is_honoured(converter: str, name: str) -> None:
    built, notes = publish(
        "cassandra",
        key__converter=converter,
        value__converter=converter,
        key__converter__schema__registry__url=URL,
        value__converter__schema__registry__url=URL,
    )
    assert (built.key, built.value) == (name, name)
    registered = name in ("avro", "protobuf", "json_schema")
    assert built.registry == (RegistryOptions(url=URL) if registered else RegistryOptions())
    assert registered or any("its converter uses no registry" in note for note in notes)


@pytest.mark.parametrize("kind", ["mongodb", "vitess"])
def test_settings_of_the_registry_are_imported(kind: str) -> None:
    strategy = "io.confluent.kafka.serializers.subject"
    built, notes = publish(
        kind,
        key__converter=STRING,
        value__converter=AVRO,
        value__converter__schema__registry__url=URL,
        value__converter__auto__register__schemas="false",
        value__converter__normalize__schemas="true",
        value__converter__value__subject__name__strategy=f"{strategy}.TopicRecordNameStrategy",
        value__converter__key__subject__name__strategy=f"{strategy}.RecordNameStrategy",
        value__converter__enhanced__avro__schema__support="true",
        value__converter__connect__meta__data="true",
        value__converter__basic__auth__user__info="me:hush",
        value__converter__schema__registry__ssl__truststore__location="/t.jks",
    )
    assert built.registry == RegistryOptions(
        url=URL, value_subjects="topic_record", auto_register=False, normalize=True
    )
    assert "hush" not in repr(notes)
    ignored = [note for note in notes if "is ignored" in note]
    assert len(ignored) == 4
    assert sum("publish.registry.connection" in note for note in ignored) == 2


@pytest.mark.parametrize(
    ("settings", "nullables"),
    [
        ({}, "plain"),
        ({"value__converter__optional__for__nullables": "true"}, "optional"),
        ({"value__converter__wrapper__for__nullables": "true"}, "wrapper"),
    ],
)
def test_nulls_in_protobuf_are_as_confluents_converter_has_them(
    settings: dict[str, str], nullables: str
) -> None:
    address = {"value__converter__schema__registry__url": URL}
    built, notes = publish(value__converter=PROTOBUF, **address, **settings)
    assert built.protobuf_nullables == nullables
    assert any("can't distinguish null from 0" in note for note in notes) == (nullables == "plain")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"value__converter": "com.x.Own"}, r"value\.converter is not supported: found 'com\.x\.Own'"),
        ({"value__converter__schema__registry__url": "http://me:hush@r"}, "Credentials belong in"),
        ({"value__converter__schema__registry__url": "http://a,http://me:hush@b"}, "Credentials belong in"),
        (
            {"value__converter__schema__registry__url": "http://a,b"},
            "url can't be imported.*http://host:port",
        ),
        ({"key__converter__schema__registry__url": "http://other"}, "Keys and values share one registry"),
        ({"value__converter__auto__register__schemas": "maybe"}, "expected true or false"),
        ({"value__converter__use__latest__version": "true"}, "with their own schema"),
        ({"value__converter__value__subject__name__strategy": "com.x.Own"}, "Supported are"),
        ({"value__converter__ssl__keystore__password": "hush"}, "converter setting is unknown"),
    ],
)
def test_what_can_not_be_followed_is_refused_by_name(settings: dict[str, str], words: str) -> None:
    base = {"key__converter": AVRO, "value__converter": AVRO, "value__converter__schema__registry__url": URL}
    with pytest.raises(ConfigurationError, match=words) as refused:
        publish(**{**base, **settings})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry": {"url": "http://r"}}, "expected avro, protobuf or json_schema as publish.key"),
        ({"registry": {"auto_register": False}}, "has options but no address"),
        ({"value": "avro", "registry": {"url": "http://me:hush@r"}}, "without credentials"),
        ({"value": "avro", "registry": {"url": "registry:8081"}}, "http://host:port"),
    ],
)
def test_declarations_without_sense_are_refused(options: dict[str, Any], words: str) -> None:
    source = {"type": "mongodb", "conn_id": "m"}
    with pytest.raises(ConfigurationError, match=words):
        Connector.from_dict({"name": "c", "source": source, "publish": options})
