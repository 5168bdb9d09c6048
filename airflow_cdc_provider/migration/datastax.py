"""Import of the settings of DataStax CDC for Apache Cassandra, agent and connector.

Agent: names as in its ``-javaagent`` option, or as environment variables (``CDC_TOPIC_PREFIX``). Connector:
names as in its configuration; ``datastax-java-driver.*`` too. Names and defaults: version 2.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.rules import Draft, Rule

_MARKS: Final = ("topicPrefix", "pulsarServiceUrl", "cdcWorkingDir", "events.topic", "outputFormat")


def is_datastax(settings: Mapping[str, str]) -> bool:
    """Return whether settings are DataStax's, by names unique to it."""
    return any(setting_name(name) in _MARKS for name in settings)


def from_datastax(settings: Mapping[str, str]) -> rules.Imported:
    """Translate settings of DataStax's agent, its connector or both to a declaration.

    Raises:
        ConfigurationError: Names the setting, the value found and what was expected.
    """
    named = {setting_name(name): str(value).strip() for name, value in settings.items()}
    draft = Draft("cassandra", named, {"source": {"type": "cassandra"}})
    draft.set("publish.envelope", "datastax")
    for name, value in named.items():
        draft.apply(rules.find_rule(name, RULES), name, value)
    if "outputFormat" not in named:
        _set_format(draft, "key-value-avro")
    keyspace, table = named.get("keyspace", ""), named.get("table", "")
    if bool(keyspace) != bool(table):
        raise ConfigurationError("settings keyspace and table require each other", found=keyspace or table)
    if keyspace:
        draft.set("tables", [rf"{re.escape(keyspace)}\.{re.escape(table)}"])
        draft.values.setdefault("name", f"{keyspace}.{table}")
    draft.values.setdefault("name", "cassandra")
    return rules.Imported(Connector.from_dict(draft.values), tuple(draft.notes))


def setting_name(name: str) -> str:
    """Return the name of a setting; environment variables are mapped to the agent's option."""
    if not re.fullmatch(r"CDC_[A-Z0-9_]+", name):
        return name
    if name in _ENVIRONMENT:
        return _ENVIRONMENT[name]
    first, *rest = name.removeprefix("CDC_").lower().split("_")
    return first + "".join(part.capitalize() for part in rest)


_ENVIRONMENT: Final = {
    "CDC_WORKING_DIR": "cdcWorkingDir",
    "CDC_DIR_POLL_INTERVAL_MS": "cdcPollIntervalMs",
    "CDC_ERROR_COMMITLOG_REPROCESS_ENABLED": "errorCommitLogReprocessEnabled",
    "CDC_CONCURRENT_PROCESSORS": "cdcConcurrentProcessors",
    "CDC_USE_KEYSTORE_TLS": "useKeyStoreTls",
}
_FORMATS: Final = {"key-value-avro": "avro", "key-value-json": "json", "json": "json"}


def _format(draft: Draft, name: str, value: str) -> None:
    if value not in _FORMATS:
        raise rules.invalid(name, f"one of {', '.join(_FORMATS)}", value)
    _set_format(draft, value)


def _set_format(draft: Draft, value: str) -> None:
    draft.set("publish.key", _FORMATS[value])
    draft.set("publish.value", _FORMATS[value])
    if value == "json":
        draft.set("publish.cassandra.key_in_value", True)


def _topic_prefix(draft: Draft, name: str, value: str) -> None:
    """Name topics like the agent's event topics; names of the connector's data topics are arbitrary."""
    draft.set("publish.topic_pattern", f"{value}{{database}}.{{table}}")


def _columns(draft: Draft, name: str, value: str) -> None:
    if value not in ("", ".*"):
        raise rules.unsupported_error(name, value, "Use publish.exclude_columns")


_PULSAR: Final = rules.ignored("use `service_url` of the Airflow connection in `publish.pulsar.connection`")
_KAFKA_TLS: Final = rules.ignored(
    "TLS belongs in the Airflow connection of Pulsar (`tls_*`) or Kafka (`ssl.*`)"
)
_LOGIN: Final = rules.ignored(
    "the password of the Airflow connection is Pulsar's token; of Kafka's, `sasl.*`"
)
_DRIVER: Final = rules.ignored("it belongs in the Airflow connection of source.conn_id")
_NO_QUERIES: Final = rules.ignored(
    "rows are built from logged values; `publish.cassandra.reread` queries rows and needs no tuning"
)
_NO_CACHE: Final = rules.ignored("replica duplicates merge into the same row, so nothing is cached")
_SPARK: Final = rules.ignored("Spark distributes the work")

RULES: Final[Mapping[str, Rule]] = {
    "topicPrefix": rules.custom_rule("`publish.topic_pattern`", _topic_prefix),
    "cdcWorkingDir": rules.ignored("offsets are stored in the lake, in the same commit as the data"),
    "cdcPollIntervalMs": rules.ignored("use the sensor's poke interval or the DAG's schedule"),
    "errorCommitLogReprocessEnabled": rules.ignored("a segment is read again from the stored offset"),
    "cdcConcurrentProcessors": _SPARK,
    "maxInflightMessagesPerTask": rules.ignored("messages in flight are bounded automatically"),
    "pulsarServiceUrl": _PULSAR,
    "pulsarBatchDelayInMs": rules.ignored(
        "Pulsar messages are not batched; for Kafka use `linger.ms` of the producer"
    ),
    "pulsarKeyBasedBatcher": rules.ignored("Kafka batches per partition, and keys determine the partition"),
    "pulsarMaxPendingMessages": rules.ignored("for Kafka use `queue.buffering.max.messages` of the producer"),
    "pulsarMaxPendingMessagesAcrossPartitions": rules.ignored(
        "use `queue.buffering.max.messages` of the Kafka connection"
    ),
    "pulsarMemoryLimitBytes": rules.ignored("use `queue.buffering.max.kbytes` of the Kafka connection"),
    "pulsarAuthPluginClassName": _LOGIN,
    "pulsarAuthParams": _LOGIN,
    "sslProvider": _KAFKA_TLS,
    "sslTruststorePath": _KAFKA_TLS,
    "sslTruststorePassword": _KAFKA_TLS,
    "sslTruststoreType": _KAFKA_TLS,
    "sslKeystorePath": _KAFKA_TLS,
    "sslKeystorePassword": _KAFKA_TLS,
    "sslCipherSuites": _KAFKA_TLS,
    "sslEnabledProtocols": _KAFKA_TLS,
    "sslAllowInsecureConnection": _KAFKA_TLS,
    "sslHostnameVerificationEnable": _KAFKA_TLS,
    "tlsTrustCertsFilePath": _KAFKA_TLS,
    "useKeyStoreTls": _KAFKA_TLS,
    "keyspace": rules.handled_elsewhere("`tables`, with `table`"),
    "table": rules.handled_elsewhere("`tables`, with `keyspace`"),
    "columns": rules.custom_rule("`.*` only; use `publish.exclude_columns`", _columns),
    "column.exclude.list": rules.EXCLUDED_COLUMNS,
    "outputFormat": rules.custom_rule(
        "`publish.key`, `publish.value`, `publish.cassandra.key_in_value`", _format
    ),
    "key.converter": rules.unsupported("Converters are Java classes; use outputFormat", "null"),
    "value.converter": rules.unsupported("Converters are Java classes; use outputFormat", "null"),
    "events.topic": rules.ignored("there is no intermediate topic"),
    "events.subscription.name": rules.ignored("there is no intermediate topic"),
    "events.subscription.type": rules.ignored("there is no intermediate topic"),
    "batch.size": _SPARK,
    "query.executors": _NO_QUERIES,
    "query.maxMobileAvgLatency": _NO_QUERIES,
    "query.minMobileAvgLatency": _NO_QUERIES,
    "query.backoffInMs": _NO_QUERIES,
    "query.maxBackoffInSec": _NO_QUERIES,
    "cache.max.digest": _NO_CACHE,
    "cache.max.capacity": _NO_CACHE,
    "cache.expire.after.ms": _NO_CACHE,
    "cache.only_if_coordinator_match": _NO_CACHE,
    "contactPoints": _DRIVER,
    "port": _DRIVER,
    "loadBalancing.localDc": _DRIVER,
    "cloud.secureConnectBundle": _DRIVER,
    "compression": _DRIVER,
    "connectionPoolLocalSize": _DRIVER,
    "maxConcurrentRequests": _NO_QUERIES,
    "queryExecutionTimeout": _NO_QUERIES,
    "auth.*": _DRIVER,
    "ssl.*": _DRIVER,
    "datastax-java-driver.*": _DRIVER,
    "ignoreErrors": rules.choice(
        "source.advanced.strict", {"none": True, "false": True, "all": False, "true": False, "driver": True}
    ),
    "jmx": rules.ignored("metrics are emitted through Airflow"),
    "jmxConnectorDomain": rules.ignored("metrics are emitted through Airflow"),
    "metricsHighestLatency": rules.ignored("metrics are emitted through Airflow"),
}
"""Rules by setting."""
