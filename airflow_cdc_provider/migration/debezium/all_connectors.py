"""Rules for the properties that all Debezium connectors share; used by :mod:`.properties`.

Names and defaults: Debezium 3.6. Rules of a single connector are in :mod:`.mongodb`, :mod:`.cassandra`
and so on.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.converters import CONVERTERS
from airflow_cdc_provider.migration.debezium.kafka_clients import OF_CONNECTION, client_rules
from airflow_cdc_provider.migration.debezium.signals import SIGNALS
from airflow_cdc_provider.migration.debezium.topic_creation import TOPIC_CREATION
from airflow_cdc_provider.migration.debezium.topic_naming import topic_naming
from airflow_cdc_provider.migration.debezium.transforms import check_predicate
from airflow_cdc_provider.migration.rules import (
    Draft,
    Rule,
    boolean,
    choice,
    custom_rule,
    flag,
    handled_elsewhere,
    ignored,
    invalid,
    name_option,
    number,
    seconds,
    split_list,
    unsupported,
    unsupported_error,
)


def include_tables(draft: Draft, name: str, value: str) -> None:
    """Select tables."""
    draft.include += draft.patterns(value)


def exclude_tables(draft: Draft, name: str, value: str) -> None:
    """Exclude tables."""
    draft.exclude += draft.patterns(value)


def include_databases(draft: Draft, name: str, value: str) -> None:
    """Select tables of databases or keyspaces."""
    draft.databases += draft.patterns(value)


def exclude_databases(draft: Draft, name: str, value: str) -> None:
    """Exclude tables of databases or keyspaces."""
    if draft.properties.get("database.include.list"):
        raise ConfigurationError("properties exclude each other", found="database.include.list and " + name)
    draft.excluded_databases += draft.patterns(value)


def consistency(*more: str) -> Rule:
    """Return the rule of a consistency level of CQL, of those that all databases have or ``more``."""
    levels: tuple[str, ...] = ("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM")
    levels += ("SERIAL", "LOCAL_SERIAL", "LOCAL_ONE", *more)

    def set_level(draft: Draft, name: str, value: str) -> None:
        if value.upper() not in levels:
            raise invalid(name, f"one of {', '.join(levels)}", value)
        draft.set("source.consistency", value.upper())

    return custom_rule("`source.consistency`, every level of CQL", set_level)


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value):
        raise invalid(name, "letters, digits, . _ and -", value)
    draft.set("publish.topic_delimiter", value)


def _heartbeat_topic(draft: Draft, name: str, value: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise invalid(name, "letters, digits, . _ and -", value)
    draft.set("publish.heartbeat_topic", value)


def _metric_tags(draft: Draft, name: str, value: str) -> None:
    tags = dict(part.partition("=")[::2] for part in split_list(value))
    if not all(tags.values()):
        raise invalid(name, "k1=v1,k2=v2", value)
    draft.set("metric_tags", {key.strip(): text.strip() for key, text in tags.items()})


def custom_converters(draft: Draft, value: str) -> dict[str, dict[str, str]]:
    """Return custom converters, which must be Python functions, with their settings.

    Raises:
        ConfigurationError: A converter is a Java class.
    """
    converters = {}
    for converter in split_list(value):
        prefix = f"{converter}."
        settings = {
            n.removeprefix(prefix): t.strip() for n, t in draft.properties.items() if n.startswith(prefix)
        }
        kind = settings.get("type", "")
        if ":" not in kind:
            raise unsupported_error(
                f"{prefix}type",
                kind,
                "Debezium's converters are Java classes: implement it as a Python function, and set "
                "package.module:function",
            )
        converters[converter] = settings
    return converters


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in split_list(value) if kind != "none"]
    if not set(kinds) <= {"c", "u", "d", "t", "r", "i"}:
        raise invalid(name, "some of c, u, d, t, or none", value)
    draft.set("publish.skipped_operations", kinds)


def _sanitize(draft: Draft, name: str, value: str) -> None:
    draft.set("publish.field_names", "avro" if boolean(name, value) else "none")


def _notification_function(draft: Draft, name: str, value: str) -> None:
    if "callback" not in split_list(draft.properties.get("notification.enabled.channels", "")):
        raise unsupported_error(name, value, "Add callback to notification.enabled.channels")
    if not re.fullmatch(r"[\w.]+:\w+", value):
        raise invalid(name, "package.module:function", value)
    draft.set("notifications.callback", value)


def _notification_channels(draft: Draft, name: str, value: str) -> None:
    """Import notification channels; the Airflow task replaces the JMX console."""
    known = {"log": "log", "jmx": "airflow", "callback": "callback", "sink": "sink"}
    channels = split_list(value)
    for channel in channels:
        if channel not in known:
            raise unsupported_error(
                name,
                channel,
                f"Custom channels are Java classes: use {', '.join(known)}; callback calls the Python "
                "function of notification.callback.function",
            )
    if channels:
        draft.set("notifications.channels", [known[channel] for channel in channels])


def _notification_topic(draft: Draft, name: str, value: str) -> None:
    if "sink" not in split_list(draft.properties.get("notification.enabled.channels", "")):
        draft.notes.append(f"property {name} is ignored: sink is not among the channels")
        return
    draft.set("notifications.topic", value)
    draft.notes.append(
        f"property {name}: the brokers are those of notifications.connection, by default "
        "publish.kafka.connection"
    )


CONNECTION: Final = ignored("it belongs in the Airflow connection of source.conn_id")

PROCESS: Final = ignored("it tunes Debezium's own process; Spark runs batches instead")

STATE: Final = ignored("offsets are stored in the lake, in the same commit as the data")

_REFERENCE: Final = ignored("addresses and secrets belong in Airflow connections")

_ADJUSTMENTS: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}

COMMON: Final[dict[str, Rule]] = {
    "connector.class": handled_elsewhere("`source.type`"),
    "name": name_option("name"),
    "tasks.max": ignored("Spark distributes the work"),
    "topic.prefix": name_option("publish.topic_prefix"),
    "topic.delimiter": custom_rule("`publish.topic_delimiter`", _delimiter),
    "topic.naming.strategy": custom_rule(
        "`publish.topic_naming`, for a Python class (package.module:Class). Debezium's "
        "DefaultTopicNamingStrategy (for Cassandra also SchemaTopicNamingStrategy) is the default here; "
        "other Java classes are not supported",
        topic_naming,
    ),
    "topic.cache.size": PROCESS,
    "topic.heartbeat.prefix": name_option("publish.heartbeat_prefix"),
    "topic.heartbeat.name": custom_rule("`publish.heartbeat_topic`", _heartbeat_topic),
    "heartbeat.interval.ms": seconds("publish.heartbeat_interval_seconds"),
    "heartbeat.action.query": unsupported("The source is never written to"),
    **TOPIC_CREATION,
    "tombstones.on.delete": flag("publish.tombstones"),
    "extended.headers.enabled": flag("publish.headers"),
    **CONVERTERS,
    "converters": unsupported("Custom converters are Java classes"),
    "predicates": handled_elsewhere("with `transforms`"),
    "predicates.*": custom_rule(
        "`when` of `publish.transforms`, for predicates of Kafka Connect", check_predicate
    ),
    "post.processors": unsupported("Post processors are Java classes"),
    "skipped.operations": custom_rule("`publish.skipped_operations`", _skipped),
    "skip.messages.without.change": unsupported("All changes are published", "false"),
    "provide.transaction.metadata": unsupported("Transaction metadata are not published", "false"),
    "topic.transaction": ignored("transaction metadata are not published"),
    "transaction.metadata.factory": unsupported(
        "Transaction metadata are not published",
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
    ),
    "schema.name.adjustment.mode": choice("publish.schema_names", _ADJUSTMENTS),
    "field.name.adjustment.mode": choice("publish.field_names", _ADJUSTMENTS),
    "sanitize.field.names": custom_rule("`publish.field_names`: avro or none", _sanitize),
    "field.exclude.list": unsupported("Excluding fields is not implemented"),
    "max.batch.size": PROCESS,
    "max.queue.size": PROCESS,
    "max.queue.size.in.bytes": PROCESS,
    "poll.interval.ms": PROCESS,
    "config.providers": _REFERENCE,
    "config.providers.*": _REFERENCE,
    "config.action.reload": PROCESS,
    "header.converter": ignored("headers are always JSON strings"),
    "errors.tolerance": ignored(
        "a record that can't be transformed or converted fails the run; see publish.kafka.on_record_error"
    ),
    "errors.log.enable": ignored("the task's log has all errors"),
    "errors.log.include.messages": ignored("the task's log has all errors, but never records"),
    "errors.deadletterqueue.*": ignored("only sink connectors have a dead letter queue"),
    "errors.retry.timeout": ignored("use retries of the Airflow task"),
    "exactly.once.support": ignored("publish.kafka.delivery is exactly_once by default"),
    "transaction.boundary": ignored("publish.kafka.records_per_commit sets the size of transactions"),
    "transaction.boundary.interval.ms": ignored(
        "publish.kafka.records_per_commit sets the size of transactions"
    ),
    "offsets.storage.topic": STATE,
    "errors.max.retries": ignored("use retries of the Airflow task"),
    "errors.retry.delay.initial.ms": ignored("use retries of the Airflow task"),
    "errors.retry.delay.max.ms": ignored("use retries of the Airflow task"),
    "retriable.restart.connector.wait.ms": ignored("use retries of the Airflow task"),
    "event.processing.failure.handling.mode": choice(
        "source.advanced.strict", {"fail": True, "warn": False, "skip": False, "ignore": False}
    ),
    "custom.metric.tags": custom_rule("`metric_tags`", _metric_tags),
    "statistics.metrics.enabled": flag("lag_statistics"),
    "advanced.metrics.enable": ignored("metrics are emitted through Airflow"),
    "custom.sanitize.pattern": ignored("it masks values in Debezium's log"),
    "snapshot.delay.ms": ignored("the DAG's schedule determines when a run starts"),
    "streaming.delay.ms": ignored("the DAG's schedule determines when a run starts"),
    **SIGNALS,
    "notification.enabled.channels": custom_rule(
        "`notifications.channels`: log and sink are kept, jmx becomes `airflow`; callback with "
        "`notification.callback.function`",
        _notification_channels,
    ),
    "notification.callback.function": custom_rule("`notifications.callback`", _notification_function),
    "notification.sink.topic.name": custom_rule("`notifications.topic`", _notification_topic),
    "incremental.snapshot.chunk.size": number("snapshot.incremental.chunk_size"),
    "incremental.snapshot.watermarking.strategy": ignored("no watermarks are needed"),
    "incremental.snapshot.*": ignored("chunks are always ordered by the primary key"),
    "read.only": ignored("the source is only written to if snapshot.incremental.watermarks is set"),
    "guardrail.collections.max": number("guardrail.max_tables"),
    "guardrail.collections.limit.action": choice("guardrail.action", {"warn": "warn", "fail": "fail"}),
    "connection.validation.timeout.ms": PROCESS,
    "executor.shutdown.timeout.ms": PROCESS,
    "openlineage.integration.*": ignored("lineage is emitted by Airflow"),
    "offset.storage": STATE,
    "offset.storage.*": STATE,
    "offset.flush.interval.ms": ignored(
        "offsets are stored in the lake, in the same commit as the data: the interval is "
        "commit_interval_seconds of CdcStreamOperator"
    ),
    "offset.flush.*": STATE,
    "internal.*": unsupported("Debezium's internal switches have no counterpart"),
    **client_rules("publish.kafka.producer", "producer."),
    **client_rules("publish.kafka.consumer", "consumer."),
    "bootstrap.servers": OF_CONNECTION,
}
