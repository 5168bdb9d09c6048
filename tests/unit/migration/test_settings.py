"""Every setting of Debezium's connector for Cassandra and of DataStax's CDC has a known outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.datastax import RULES as DATASTAX
from airflow_cdc_provider.migration.datastax import from_datastax, setting_name
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.settings_file import load_connector_file
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from tools import settings_tables

DEBEZIUM_CLASS = "io.debezium.connector.cassandra.Cassandra5Connector"
AVRO = "io.confluent.connect.avro.AvroConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"

# Name, and Debezium's default or an example of its page.
DEBEZIUM = {
    "snapshot.mode": "INITIAL",
    "snapshot.consistency": "ALL",
    "http.port": "8000",
    "cassandra.config": "/none/cassandra.yaml",
    "cassandra.hosts": "localhost",
    "cassandra.port": "9042",
    "cassandra.username": "user",
    "cassandra.password": "secret",
    "cassandra.ssl.enabled": "false",
    "cassandra.ssl.config.path": "/ssl.properties",
    "cassandra.driver.config.file": "application.conf",
    "cassandra.node.id": "node",
    "cassandra.cluster.name": "Test Cluster",
    "commit.log.relocation.dir": "/relocation",
    "commit.log.post.processing.enabled": "true",
    "commit.log.relocation.dir.poll.interval.ms": "10000",
    "commit.log.transfer.class": "io.debezium.connector.cassandra.BlackHoleCommitLogTransfer",
    "commit.log.error.reprocessing.enabled": "false",
    "commit.log.real.time.processing.enabled": "false",
    "commit.log.marked.complete.poll.interval.ms": "10000",
    "commit.log.processor.shutdown.timeout.seconds": "5",
    "poll.dispatch.interval.ms": "0",
    "converters": "",
    "offset.backing.store.dir": "/offsets",
    "offset.flush.interval.ms": "0",
    "max.offset.flush.size": "100",
    "max.queue.size": "8192",
    "max.batch.size": "2048",
    "max.queue.size.in.bytes": "0",
    "poll.interval.ms": "1000",
    "schema.refresh.interval.ms": "10000",
    "cdc.dir.poll.interval.ms": "10000",
    "snapshot.scan.interval.ms": "10000",
    "tombstones.on.delete": "false",
    "field.exclude.list": "",
    "num.of.change.event.queues": "1",
    "sanitize.field.names": "false",
    "skipped.operations": "t",
    "connector.name": "test_connector",
    "kafka.topic.prefix": "test_prefix",
    "topic.prefix": "test_prefix",
    "topic.delimiter": ".",
    "topic.naming.strategy": "io.debezium.schema.SchemaTopicNamingStrategy",
    "topic.cache.size": "10000",
    "topic.heartbeat.prefix": "__debezium-heartbeat",
    "heartbeat.interval.ms": "0",
    "latest.commit.log.only": "false",
    "key.converter": AVRO,
    "key.converter.schema.registry.url": "http://localhost:8081",
    "value.converter": AVRO,
    "value.converter.schema.registry.url": "http://localhost:8081",
    "event.order.guarantee.mode": "commitlog_file",
    "varint.handling.mode": "long",
    "decimal.handling.mode": "double",
    "schema.name.adjustment.mode": "none",
    "field.name.adjustment.mode": "none",
    "custom.metric.tags": "k1=v1",
    "custom.sanitize.pattern": ".*password.*",
    "errors.max.retries": "-1",
    "extended.headers.enabled": "true",
    "tracing.enabled": "false",
    "sourceinfo.struct.maker": "io.debezium.connector.cassandra.CassandraSourceInfoStructMaker",
    "kafka.producer.bootstrap.servers": "127.0.0.1:9092",
    "kafka.producer.ssl.keystore.password": "test1234",
    "kafka.consumer.security.protocol": "SSL",
}
DATASTAX_SETTINGS = {
    "topicPrefix": "events-",
    "cdcWorkingDir": "cdc",
    "cdcPollIntervalMs": "60000",
    "errorCommitLogReprocessEnabled": "false",
    "cdcConcurrentProcessors": "-1",
    "maxInflightMessagesPerTask": "16384",
    "pulsarServiceUrl": "pulsar://localhost:6650",
    "pulsarBatchDelayInMs": "-1",
    "pulsarKeyBasedBatcher": "false",
    "pulsarMaxPendingMessages": "1000",
    "pulsarMaxPendingMessagesAcrossPartitions": "50000",
    "pulsarMemoryLimitBytes": "0",
    "pulsarAuthPluginClassName": "",
    "pulsarAuthParams": "token:secret",
    "sslProvider": "",
    "sslTruststorePath": "/trust",
    "sslTruststorePassword": "secret",
    "sslTruststoreType": "JKS",
    "sslKeystorePath": "/key",
    "sslKeystorePassword": "secret",
    "sslCipherSuites": "",
    "sslEnabledProtocols": "TLSv1.2,TLSv1.1,TLSv1",
    "sslAllowInsecureConnection": "false",
    "sslHostnameVerificationEnable": "false",
    "tlsTrustCertsFilePath": "",
    "useKeyStoreTls": "false",
    "keyspace": "shop",
    "table": "orders",
    "columns": ".*",
    "column.exclude.list": "",
    "outputFormat": "key-value-avro",
    "key.converter": "null",
    "value.converter": "null",
    "events.topic": "events-shop.orders",
    "events.subscription.name": "sub",
    "events.subscription.type": "Key_Shared",
    "batch.size": "200",
    "query.executors": "10",
    "query.maxMobileAvgLatency": "100",
    "query.minMobileAvgLatency": "10",
    "query.backoffInMs": "100",
    "query.maxBackoffInSec": "3600",
    "cache.max.digest": "3",
    "cache.max.capacity": "32767",
    "cache.expire.after.ms": "60000",
    "cache.only_if_coordinator_match": "true",
    "contactPoints": "host",
    "port": "9042",
    "loadBalancing.localDc": "dc1",
    "cloud.secureConnectBundle": "",
    "compression": "None",
    "connectionPoolLocalSize": "4",
    "maxConcurrentRequests": "500",
    "queryExecutionTimeout": "30",
    "auth.provider": "None",
    "auth.password": "secret",
    "ssl.provider": "None",
    "ssl.truststore.path": "",
    "ignoreErrors": "None",
    "jmx": "true",
    "jmxConnectorDomain": "com.datastax.oss.cdc",
    "metricsHighestLatency": "35",
}


NOTED_OF_DEBEZIUM = {
    # the Airflow connections
    "cassandra.hosts",
    "cassandra.port",
    "cassandra.username",
    "cassandra.password",
    "cassandra.ssl.enabled",
    "cassandra.ssl.config.path",
    "kafka.producer.bootstrap.servers",
    "kafka.producer.ssl.keystore.password",
    "kafka.consumer.security.protocol",
    # the transfer of segments, and Airflow's operators and sensors
    "commit.log.relocation.dir",
    "commit.log.relocation.dir.poll.interval.ms",
    "commit.log.post.processing.enabled",
    "commit.log.transfer.class",
    "commit.log.error.reprocessing.enabled",
    "cdc.dir.poll.interval.ms",
    "errors.max.retries",
    "http.port",
    # what is so in any case
    "commit.log.real.time.processing.enabled",
    "extended.headers.enabled",
    "offset.backing.store.dir",
    "offset.flush.interval.ms",
    "max.offset.flush.size",
    "schema.refresh.interval.ms",
    "snapshot.scan.interval.ms",
    "custom.sanitize.pattern",
    # threads and queues
    "commit.log.marked.complete.poll.interval.ms",
    "commit.log.processor.shutdown.timeout.seconds",
    "poll.dispatch.interval.ms",
    "poll.interval.ms",
    "max.queue.size",
    "max.queue.size.in.bytes",
    "max.batch.size",
    "num.of.change.event.queues",
    "topic.cache.size",
    # its file doesn't exist here
    "cassandra.config",
}
IMPORTED_OF_DATASTAX = {
    "topicPrefix",
    "columns",
    "outputFormat",
    "column.exclude.list",
    "key.converter",
    "value.converter",
    "ignoreErrors",
}


@pytest.mark.covers("CAS-CFG-02", "CAS-CFG-32")
def test_each_property_of_debezium_at_its_default_is_imported_or_noted() -> None:
    """Queues, polls and offsets are Debezium's own affairs; a note says so for each of them."""
    noted = set()
    for name, value in DEBEZIUM.items():
        converter = {f"{name.partition('.')[0]}.converter": AVRO} if "schema.registry" in name else {}
        imported = from_debezium({"connector.class": DEBEZIUM_CLASS, **converter, name: value})
        notes = [note for note in imported.notes if note.startswith(f"property {name} ")]
        assert len(notes) <= 1, name
        if notes:
            noted.add(name)
        assert "secret" not in repr(imported)
    assert noted == NOTED_OF_DEBEZIUM
    imported = from_debezium({"connector.class": DEBEZIUM_CLASS, **DEBEZIUM})
    assert isinstance(imported.connector.source, CassandraOptions)
    assert imported.connector.source.consistency == "ALL"
    assert imported.connector.name == "test_connector"
    assert imported.connector.tags["connector"] == "test_connector", "of metrics"
    assert changes_asset(imported.connector).name == "cdc/test_connector/changes", "which holds the state"


@pytest.mark.covers("DSX-AGT-02")
def test_each_setting_of_datastax_at_its_default_is_imported_or_noted() -> None:
    for name, value in DATASTAX_SETTINGS.items():
        if name in ("keyspace", "table"):
            continue
        imported = from_datastax({name: value})
        assert len(imported.notes) == (name not in IMPORTED_OF_DATASTAX), name
        assert "secret" not in repr(imported)
    built = from_datastax(DATASTAX_SETTINGS).connector
    assert (built.publish.envelope, built.publish.key, built.publish.value) == ("datastax", "avro", "avro")
    assert built.publish.topic_pattern == "events-{database}.{table}"
    assert built.selects("shop.orders")
    assert not built.selects("shop.orders2")


@pytest.mark.covers("DSX-AGT-03")
@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("pulsarServiceUrl", "`service_url` of the Airflow connection in `publish.pulsar.connection`"),
        ("pulsarBatchDelayInMs", "for Kafka use `linger.ms` of the producer"),
        ("pulsarKeyBasedBatcher", "Kafka batches per partition"),
        ("pulsarMaxPendingMessages", "for Kafka use `queue.buffering.max.messages`"),
        ("pulsarMemoryLimitBytes", "use `queue.buffering.max.kbytes` of the Kafka connection"),
        ("pulsarAuthPluginClassName", "of Kafka's, `sasl.*`"),
        ("pulsarAuthParams", "of Kafka's, `sasl.*`"),
    ],
)
def test_settings_of_pulsar_are_noted_with_those_of_kafka(setting: str, instead: str) -> None:
    (note,) = from_datastax({setting: DATASTAX_SETTINGS[setting]}).notes
    assert f"property {setting} is ignored" in note
    assert instead in note


def test_every_rule_of_datastax_is_one_of_its_settings() -> None:
    assert {name for name in DATASTAX if not name.endswith("*")} <= set(DATASTAX_SETTINGS)


@pytest.mark.parametrize(
    ("value", "publish"),
    [
        ("key-value-avro", ("avro", "avro", False)),
        ("key-value-json", ("json", "json", False)),
        ("json", ("json", "json", True)),
    ],
)
def test_datastaxs_output_formats_become_converters(value: str, publish: tuple[str, str, bool]) -> None:
    built = from_datastax({"outputFormat": value}).connector.publish
    assert (built.key, built.value, built.cassandra.key_in_value) == publish


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": "a|b"}, r"columns is not supported.*exclude_columns"),
        ({"outputFormat": "xml"}, "outputFormat: expected"),
        ({"keyspace": "shop"}, "require each other"),
        ({"key.converter": "com.x.Own"}, "Converters are Java classes"),
        ({"query.executor": "3"}, r"Did you mean query\.executors"),
    ],
)
def test_settings_of_datastax_that_are_wrong_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_datastax(settings)


def test_environment_variables_are_the_agents_options() -> None:
    names = ["CDC_PULSAR_SERVICE_URL", "CDC_WORKING_DIR", "CDC_SSL_TRUSTSTORE_PATH", "CDC_USE_KEYSTORE_TLS"]
    assert [setting_name(name) for name in names] == [
        "pulsarServiceUrl",
        "cdcWorkingDir",
        "sslTruststorePath",
        "useKeyStoreTls",
    ]


def test_a_file_of_datastaxs_settings_is_known_by_its_names(tmp_path: Path) -> None:
    file = tmp_path / "agent.properties"
    file.write_text("CDC_TOPIC_PREFIX=events-\nCDC_PULSAR_SERVICE_URL=pulsar://host:6650\n")
    imported = load_connector_file(file)
    assert imported.connector.publish.envelope == "datastax"
    assert len(imported.notes) == 1


def debezium(**properties: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return {"connector.class": DEBEZIUM_CLASS, "topic.prefix": "p", **named}


@pytest.mark.covers("CAS-CFG-27", "CAS-CFG-28", "CAS-CFG-30", "CAS-CFG-31", "CAS-D3X-05", "CAS-D3X-07")
def test_choices_of_debeziums_events_are_imported() -> None:
    built = from_debezium(
        debezium(
            tombstones_on_delete="true",
            field_exclude_list="k.t.a,k.t.b.c",
            skipped_operations="u,d",
            topic_delimiter="-",
            varint_handling_mode="PRECISE",
            decimal_handling_mode="string",
            schema_name_adjustment_mode="avro_unicode",
            sanitize_field_names="true",
            cassandra_cluster_name="blue",
            key_converter=JSON,
            value_converter=AVRO,
        )
    ).connector
    publish = built.publish
    assert (publish.tombstones, publish.exclude_columns) == (True, ("k.t.a", "k.t.b.c"))
    assert (publish.skipped_operations, publish.topic_delimiter) == (("u", "d"), "-")
    assert (publish.cassandra.varints, publish.cassandra.decimals) == ("precise", "string")
    assert (publish.schema_names, publish.field_names) == ("avro_unicode", "avro")
    assert (publish.key, publish.value) == ("json", "avro")
    assert isinstance(built.source, CassandraOptions)
    assert built.source.cluster == "blue"


@pytest.mark.covers("CAS-D3X-10")
def test_the_envelope_transformation_is_followed() -> None:
    kind = "io.debezium.connector.cassandra.transforms.EnvelopeTransformation"
    built = from_debezium(debezium(transforms="env", transforms_env_type=kind)).connector
    assert built.publish.cassandra.operations == "common"
    with pytest.raises(ConfigurationError, match=r"Supported are .*EnvelopeTransformation"):
        from_debezium(debezium(transforms="env,x", transforms_env_type=kind, transforms_x_type="X"))


def test_converters_of_debezium_are_refused_with_what_to_do() -> None:
    named = {"converters": "isbn", "isbn.type": "com.x.IsbnConverter"}
    with pytest.raises(ConfigurationError, match=r"isbn\.type .*com\.x\.IsbnConverter.*Python function"):
        from_debezium({**debezium(), **named})
    with pytest.raises(ConfigurationError, match=r"unknown property isbn\.type"):
        from_debezium({**debezium(), "isbn.type": "m:f"})


@pytest.mark.covers("CAS-CFG-02")
@pytest.mark.parametrize("level", ["ONE", "local_quorum", "EACH_QUORUM", "NODE_LOCAL", "ALL"])
def test_every_consistency_level_is_accepted(level: str) -> None:
    built = from_debezium(debezium(snapshot_consistency=level)).connector
    assert isinstance(built.source, CassandraOptions)
    assert built.source.consistency == level.upper()
    with pytest.raises(ConfigurationError, match=r"snapshot\.consistency: expected one of ANY"):
        from_debezium(debezium(snapshot_consistency=f"{level}S"))


@pytest.mark.covers("CAS-CFG-02")
def test_the_default_consistency_is_reported() -> None:
    imported = from_debezium(debezium())
    (note,) = imported.notes
    assert "read at ALL" in note
    assert "QUORUM" in note
    assert isinstance(imported.connector.source, CassandraOptions)
    assert imported.connector.source.consistency == "ALL"


@pytest.mark.covers("CAS-CFG-04", "CAS-D3X-05")
def test_the_nodes_configuration_gives_folder_and_cluster(tmp_path: Path) -> None:
    file = tmp_path / "cassandra.yaml"
    file.write_text("cdc_enabled: true\ncdc_raw_directory: /data/cdc_raw\ncluster_name: blue\n")
    built = from_debezium(debezium(cassandra_config=str(file))).connector
    assert isinstance(built.source, CassandraOptions)
    assert (built.source.cdc_raw, built.source.cluster) == ("/data/cdc_raw", "blue")
    file.write_text("cdc_enabled: false\n")
    with pytest.raises(ConfigurationError, match="doesn't enable CDC"):
        from_debezium(debezium(cassandra_config=str(file)))
    file.write_text("cdc_enabled: [\n")
    with pytest.raises(
        ConfigurationError, match=r"cassandra\.yaml is not valid YAML: found a syntax error in line 2"
    ):
        from_debezium(debezium(cassandra_config=str(file)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("value.converter", "com.x.MineConverter"),
        ("tracing.enabled", "true"),
        ("topic.naming.strategy", "com.x.Mine"),
    ],
)
def test_what_can_not_be_followed_is_refused_with_the_reason(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"property {name} is not supported") as refused:
        from_debezium({**debezium(), name: value})
    assert refused.value.remedy


@pytest.mark.parametrize(
    "name",
    ["value.converter.ssl.keystore.password", "predicates.mine.token"],
)
def test_what_is_refused_whatever_it_says_is_not_shown_as_it_may_be_a_secret(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"property {name} is not supported") as refused:
        from_debezium({**debezium(), name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_the_tables_in_the_docs_are_those_of_the_rules() -> None:
    for page in settings_tables.PAGES:
        assert settings_tables.written(page.read_text()) == page.read_text()
