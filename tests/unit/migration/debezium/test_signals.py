"""Options of the signal topic, in a declaration and in Debezium's properties."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.channels.signal_topic import topic_of_signals
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.rules import Imported

CLASSES = {
    "mongodb": "io.debezium.connector.mongodb.MongoDbConnector",
    "vitess": "io.debezium.connector.vitess.VitessConnector",
    "cassandra": "io.debezium.connector.cassandra.CassandraConnector",
}


def declared(channels: tuple[str, ...] = ("kafka",), published: str = "", **kafka: Any) -> Connector:
    publish = {"topic_prefix": "shop", "kafka": {"connection": published}}
    signals = {"channels": channels, "kafka": kafka}
    return Connector.from_dict(
        {"name": "c", "source": {"type": "mongodb"}, "signals": signals, "publish": publish}
    )


def imported(**properties: str) -> Imported:
    given = {f"signal.{name.replace('_', '.')}": value for name, value in properties.items()}
    first = {"connector.class": CLASSES["mongodb"], "topic.prefix": "shop"}
    return from_debezium({**first, "signal.enabled.channels": "source,kafka", **given})


@pytest.mark.covers("MDB-SIG-02")
@pytest.mark.parametrize("source", CLASSES)
def test_channels_of_debezium_are_imported(source: str) -> None:
    properties = {"connector.class": CLASSES[source], "topic.prefix": "shop", "vitess.keyspace": "k"}
    if source != "vitess":
        del properties["vitess.keyspace"]
    servers = {"signal.kafka.bootstrap.servers": "b:9092"}
    channels = {"signal.enabled.channels": "source, kafka,file,jmx"}
    built = from_debezium({**properties, **channels, **servers})
    assert built.connector.signals.channels == ("source", "kafka", "file", "airflow")
    assert any("jmx becomes channel airflow" in note for note in built.notes)
    assert from_debezium(properties).connector.signals.channels == ("source", "airflow")
    with pytest.raises(ConfigurationError, match=r"Python classes: add them to signals\.channels"):
        from_debezium({**properties, "signal.enabled.channels": "com.shop.Channel"})


@pytest.mark.covers("MDB-SIG-06", "MDB-SIG-07", "MDB-SIG-09")
def test_properties_of_the_topic_have_debeziums_defaults() -> None:
    built = imported(kafka_bootstrap_servers="b:9092").connector
    settings = topic_of_signals(built, {})._settings
    assert (settings.topic, settings.key, settings.group_id) == ("shop-signal", "shop", "kafka-signal")
    assert settings.poll_timeout_seconds == 0.1
    own = imported(
        kafka_bootstrap_servers="b:9092,c:9092",
        kafka_topic="asked",
        kafka_groupId="mine",
        kafka_poll_timeout_ms="0",
    )
    settings = topic_of_signals(own.connector, {})._settings
    assert (settings.topic, settings.group_id, settings.poll_timeout_seconds) == ("asked", "mine", 0.0)
    assert settings.client.servers == "b:9092,c:9092"
    with pytest.raises(ConfigurationError, match=r"signal\.kafka\.poll\.timeout\.ms: expected"):
        imported(kafka_bootstrap_servers="b:9092", kafka_poll_timeout_ms="soon")


@pytest.mark.covers("MDB-SIG-08")
def test_a_broker_is_required_where_signals_come_by_kafka() -> None:
    with pytest.raises(ConfigurationError, match=r"signal\.kafka\.bootstrap\.servers: expected host"):
        imported()
    with pytest.raises(ConfigurationError, match="channel kafka has no brokers"):
        declared()
    assert declared(published="k").signals.conn_id("k") == "k"
    assert declared(published="k", connection="own").signals.conn_id("k") == "own"
    assert declared(bootstrap_servers="b:9092").signals.conn_id("") == ""


@pytest.mark.covers("MDB-SIG-10")
def test_settings_of_the_consumer_are_passed_through_and_secrets_are_left_to_the_connection() -> None:
    built = imported(
        kafka_bootstrap_servers="b:9092",
        kafka_groupId="loses",
        consumer_fetch_min_bytes="7",
        consumer_auto_offset_reset="latest",
        consumer_group_id="wins",
        consumer_max_poll_records="5",
        consumer_sasl_jaas_config="hunter2",
    )
    options = built.connector.signals.kafka
    assert options.consumer == {"fetch.min.bytes": "7", "auto.offset.reset": "latest"}
    assert options.group_id == "wins"
    reported = " ".join(built.notes)
    assert "signal.consumer.sasl.jaas.config is ignored: it belongs in the extra" in reported
    assert "signals.kafka.connection" in reported
    assert "signal.consumer.max.poll.records is ignored" in reported
    assert "hunter2" not in repr(built)
    assert topic_of_signals(built.connector, {})._settings.client.consumer == options.consumer
    with pytest.raises(
        ConfigurationError, match=r"invalid value for option signals\.kafka\.consumer"
    ) as refused:
        declared(published="k", consumer={"sasl.password": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_properties_of_a_channel_that_is_not_named_are_reported_without_their_values() -> None:
    built = imported(enabled_channels="source", kafka_topic="t", consumer_sasl_jaas_config="hunter2")
    assert built.connector.signals.kafka.topic == ""
    assert sum("kafka is not among signal.enabled.channels" in note for note in built.notes) == 2
    assert "hunter2" not in repr(built)


def test_options_of_the_topic_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="have no effect without their channel"):
        declared(("airflow",), topic="t")
    with pytest.raises(ConfigurationError, match="exclude each other"):
        declared(connection="k", bootstrap_servers="b:9092")
    for wrong in ("http://b:9092", "me:secret@b:9092", "b:9092 c:9092"):
        with pytest.raises(ConfigurationError, match="comma-separated host:port"):
            declared(bootstrap_servers=wrong)
    for right in ("b", "b:9092, c.example.org:9093", "[::1]:9092"):
        assert declared(bootstrap_servers=right)
    with pytest.raises(ConfigurationError, match=r"signals\.kafka\.group_id"):
        declared(published="k", group_id=" ")
