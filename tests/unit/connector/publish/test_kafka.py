"""What a declaration may say of publishing, and what becomes of Debezium's settings of Kafka's clients."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.migration.debezium.properties import from_debezium


def connector(kafka: dict[str, Any], kind: str = "mongodb", **publish: Any) -> Connector:
    source = {"cdc_raw": "/x"} if kind == "cassandra" else {}
    return Connector.from_dict(
        {"name": "shop", "source": {"type": kind, **source}, "publish": {**publish, "kafka": kafka}}
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sasl.password", "belongs in the connection's extra"),
        ("ssl.key.pem", "belongs in the connection's extra"),
        ("bootstrap.servers", "belongs in the connection's extra"),
        ("sasl.oauthbearer.client.secret", "belongs in the connection's extra"),
        ("transactional.id", "settings other than transactional.id, which the delivery guarantee determines"),
        ("error_cb", "tuning settings of librdkafka, not 'error_cb'"),
        ("plugin.library.paths", "tuning settings of librdkafka, not 'plugin.library.paths'"),
        ("linger_ms", "not 'linger_ms'; the nearest one is linger.ms"),
    ],
)
def test_tuning_carries_no_secret_and_no_code(name: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as error:
        connector({"connection": "kafka", "producer": {name: "s3cret"}})
    assert "s3cret" not in str(error.value)


@pytest.mark.covers("CAS-DEPLOY-05", "VIT-QUE-06")
def test_settings_go_to_clients_as_they_are() -> None:
    kafka = connector(
        {"connection": "k", "producer": {"linger.ms": 5, "client.rack": "as it is"}}
    ).publish.kafka
    settings = ClientSettings(
        {"bootstrap.servers": "b:1", "group.id": "of another DAG", "ssl.ca.location": "/ca", "linger.ms": 1},
        kafka.producer,
        {"fetch.min.bytes": 7},
        retry_interval_seconds=2.5,
    )
    producer = settings.of_producer("shop.0")
    assert producer["client.rack"] == "as it is"
    assert (producer["linger.ms"], producer["ssl.ca.location"]) == (5, "/ca")
    assert (producer["enable.idempotence"], producer["transactional.id"]) == (True, "shop.0")
    assert "group.id" not in producer
    assert producer["reconnect.backoff.max.ms"] == 2500
    assert ClientSettings({"bootstrap.servers": "b"}).of_producer()["reconnect.backoff.max.ms"] == 1000
    consumer = settings.of_consumer("g")
    assert (consumer["fetch.min.bytes"], consumer["isolation.level"]) == (7, "read_committed")
    assert "transactional.id" not in settings.of_producer()


def test_connections_without_brokers_or_with_code_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the Kafka connection has no brokers"):
        ClientSettings({})
    with pytest.raises(ConfigurationError, match="a setting that isn't allowed: 'error_cb'"):
        ClientSettings({"bootstrap.servers": "b:1", "error_cb": "os.system"})


def test_what_cannot_be_published_batch_after_batch_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="envelope datastax requires the complete history"):
        connector({"connection": "k"}, "cassandra", envelope="datastax")
    assert connector({"connection": "k"}, "cassandra", envelope="datastax", cassandra={"reread": True})
    assert connector({"connection": "k"}, schema_changes=True)
    assert not connector({}).publish.kafka.enabled


@pytest.mark.covers("CAS-DEPLOY-05", "VIT-QUE-06")
@pytest.mark.parametrize(("kind", "prefix"), [("Vitess", ""), ("MongoDb", ""), ("Cassandra", "kafka.")])
def test_debeziums_settings_of_clients_are_imported(kind: str, prefix: str) -> None:
    properties = {
        "connector.class": f"io.debezium.connector.{kind.lower()}.{kind}Connector",
        "topic.prefix": "shop",
        f"{prefix}producer.linger.ms": "7",
        f"{prefix}producer.buffer.memory": "2097152",
        f"{prefix}producer.max.request.size": "5000000",
        f"{prefix}producer.acks": "all",
        f"{prefix}producer.bootstrap.servers": "b:9092",
        f"{prefix}producer.ssl.key.password": "s3cret",
        f"{prefix}producer.value.serializer": "org.example.Serializer",
        f"{prefix}consumer.fetch.min.bytes": "3",
    }
    if kind == "Cassandra":
        properties["cassandra.password"] = "x"
    if kind == "Vitess":
        properties["vitess.keyspace"] = "shop"
    imported = from_debezium(properties)
    kafka = imported.connector.publish.kafka
    assert kafka.producer == {
        "linger.ms": "7",
        "queue.buffering.max.kbytes": 2048,
        "message.max.bytes": "5000000",
        "acks": "all",
    }
    assert kafka.consumer == {"fetch.min.bytes": "3"}
    notes = "\n".join(imported.notes)
    for name in ("bootstrap.servers", "ssl.key.password", "value.serializer"):
        assert f"property {prefix}producer.{name} is ignored" in notes
    assert "s3cret" not in notes
