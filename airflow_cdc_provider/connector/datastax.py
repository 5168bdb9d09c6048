"""Settings of DataStax's CDC for Apache Cassandra as a declaration: those of its agent and of its connector.

Agent: names as in its ``-javaagent`` option, or as environment variables (``CDC_TOPIC_PREFIX``). Connector:
names as in its configuration; ``datastax-java-driver.*`` too. Names and defaults: version 2.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.connector.imported import (
    Draft,
    Imported,
    Rule,
    choice,
    find_rule,
    left_out,
    read_elsewhere,
    refusal,
    refused,
    taken,
    wrong,
)
from airflow_cdc_provider.exceptions import ConfigurationError

_MARKS: Final = ("topicPrefix", "pulsarServiceUrl", "cdcWorkingDir", "events.topic", "outputFormat")


def is_datastax(settings: Mapping[str, str]) -> bool:
    """Tell whether settings are DataStax's, by names that only it has."""
    return any(setting_name(name) in _MARKS for name in settings)


def from_datastax(settings: Mapping[str, str]) -> Imported:
    """Make a declaration of DataStax's settings, of its agent, its connector or both.

    Raises:
        ConfigurationError: Names the setting, what was found and what was expected.
    """
    named = {setting_name(name): str(value).strip() for name, value in settings.items()}
    draft = Draft("cassandra", named)
    draft.set("source.type", "cassandra")
    draft.set("publish.envelope", "datastax")
    for name, value in named.items():
        find_rule(name, RULES).apply(draft, name, value)
    if "outputFormat" not in named:
        _set_format(draft, "key-value-avro")
    keyspace, table = named.get("keyspace", ""), named.get("table", "")
    if bool(keyspace) != bool(table):
        raise ConfigurationError("settings keyspace and table go together", found=keyspace or table)
    if keyspace:
        draft.set("tables", [rf"{re.escape(keyspace)}\.{re.escape(table)}"])
        draft.values.setdefault("name", f"{keyspace}.{table}")
    draft.values.setdefault("name", "cassandra")
    return Imported(Connector.from_dict(draft.values), tuple(draft.notes))


def setting_name(name: str) -> str:
    """Return a setting's name: an environment variable's becomes that of the agent's option."""
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
        raise wrong(name, f"one of {', '.join(_FORMATS)}", value)
    _set_format(draft, value)


def _set_format(draft: Draft, value: str) -> None:
    draft.set("publish.key", _FORMATS[value])
    draft.set("publish.value", _FORMATS[value])
    if value == "json":
        draft.set("publish.cassandra.key_in_value", True)


def _topic_prefix(draft: Draft, name: str, value: str) -> None:
    """Name topics as the agent names those of its events; the connector's data topics are named freely."""
    draft.set("publish.topic_pattern", f"{value}{{database}}.{{table}}")


def _columns(draft: Draft, name: str, value: str) -> None:
    if value not in ("", ".*"):
        raise refusal(name, value, "List the columns to leave out in publish.exclude_columns")


_PULSAR: Final = left_out(
    "`service_url` of the Airflow connection that `publish.pulsar.connection` names does it"
)
_KAFKA_TLS: Final = left_out("TLS belongs to the Airflow connection of Pulsar (`tls_*`) or Kafka (`ssl.*`)")
_LOGIN: Final = left_out("the password of the Airflow connection is Pulsar's token; of Kafka's, `sasl.*`")
_DRIVER: Final = left_out("it belongs into the Airflow connection that source.conn_id names")
_NO_QUERIES: Final = left_out(
    "rows come from the logged values; `publish.cassandra.reread` asks for queries, and needs no tuning"
)
_NO_CACHE: Final = left_out("copies of a change end in the same row, so none is cached")
_SPARK: Final = left_out("Spark divides the work")

RULES: Final[Mapping[str, Rule]] = {
    "topicPrefix": taken("`publish.topic_pattern`", _topic_prefix),
    "cdcWorkingDir": left_out("positions are kept in the lake, in the commit of their data"),
    "cdcPollIntervalMs": left_out("the sensor's poke interval or the DAG's schedule does it"),
    "errorCommitLogReprocessEnabled": left_out("a segment is read again from the stored offset"),
    "cdcConcurrentProcessors": _SPARK,
    "maxInflightMessagesPerTask": left_out("messages in flight are bounded by themselves"),
    "pulsarServiceUrl": _PULSAR,
    "pulsarBatchDelayInMs": left_out(
        "to Pulsar messages go one by one; to Kafka `linger.ms` of the producer does it"
    ),
    "pulsarKeyBasedBatcher": left_out("Kafka's batches are of one partition, and keys keep to theirs"),
    "pulsarMaxPendingMessages": left_out("to Kafka `queue.buffering.max.messages` of the producer does it"),
    "pulsarMaxPendingMessagesAcrossPartitions": left_out(
        "`queue.buffering.max.messages` of the Kafka connection does it"
    ),
    "pulsarMemoryLimitBytes": left_out("`queue.buffering.max.kbytes` of the Kafka connection does it"),
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
    "keyspace": read_elsewhere("`tables`, with `table`"),
    "table": read_elsewhere("`tables`, with `keyspace`"),
    "columns": taken("`.*` only; leave columns out by `publish.exclude_columns`", _columns),
    "outputFormat": taken("`publish.key`, `publish.value`, `publish.cassandra.key_in_value`", _format),
    "key.converter": refused("Converters are Java classes; use outputFormat", "null"),
    "value.converter": refused("Converters are Java classes; use outputFormat", "null"),
    "events.topic": left_out("there is no topic between log and rows"),
    "events.subscription.name": left_out("there is no topic between log and rows"),
    "events.subscription.type": left_out("there is no topic between log and rows"),
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
    "ignoreErrors": choice(
        "source.advanced.strict", {"none": True, "false": True, "all": False, "true": False, "driver": True}
    ),
    "jmx": left_out("metrics are Airflow's"),
    "jmxConnectorDomain": left_out("metrics are Airflow's"),
    "metricsHighestLatency": left_out("metrics are Airflow's"),
}
"""What becomes of each setting."""
