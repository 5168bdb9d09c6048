"""Rules for the properties that all Debezium connectors share; used by :mod:`.properties`.

Names and defaults: Debezium 3.6. Rules of a single connector are in :mod:`.mongodb`, :mod:`.cassandra`
and so on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.converters import CONVERTERS
from airflow_cdc_provider.migration.debezium.kafka_clients import OF_CONNECTION, client_rules
from airflow_cdc_provider.migration.debezium.signals import SIGNALS
from airflow_cdc_provider.migration.debezium.topic_creation import TOPIC_CREATION
from airflow_cdc_provider.migration.debezium.topic_naming import topic_naming
from airflow_cdc_provider.migration.debezium.transforms import check_predicate
from airflow_cdc_provider.migration.rules import Draft, Rule


def include_tables(draft: Draft, name: str, value: str) -> None:
    """Select tables."""
    draft.include += draft.patterns(name, value)


def exclude_tables(draft: Draft, name: str, value: str) -> None:
    """Exclude tables."""
    draft.exclude += draft.patterns(name, value)


def include_databases(draft: Draft, name: str, value: str) -> None:
    """Select tables of databases or keyspaces."""
    draft.databases += draft.patterns(name, value)


def exclude_databases(draft: Draft, name: str, value: str) -> None:
    """Exclude tables of databases or keyspaces."""
    if draft.properties.get("database.include.list"):
        raise ConfigurationError("properties exclude each other", found="database.include.list and " + name)
    draft.excluded_databases += draft.patterns(name, value)


def consistency(*more: str) -> Rule:
    """Return the rule of a consistency level of CQL, of those that all databases have or ``more``."""
    levels: tuple[str, ...] = ("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM")
    levels += ("SERIAL", "LOCAL_SERIAL", "LOCAL_ONE", *more)

    def set_level(draft: Draft, name: str, value: str) -> None:
        if value.upper() not in levels:
            raise rules.invalid(name, f"one of {', '.join(levels)}", value)
        draft.set("source.consistency", value.upper())

    return rules.custom_rule("`source.consistency`, every level of CQL", set_level)


def _snapshot_include(draft: Draft, name: str, value: str) -> None:
    if patterns := rules.java_patterns(name, value):
        draft.set("snapshot.include", patterns)


def older_prefix(rule: Rule) -> Rule:
    """Return the rule of an older release's prefix, which ``topic.prefix`` replaces."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if "topic.prefix" in draft.properties:
            draft.notes.append(f"property {name} is ignored: topic.prefix replaces it")
        else:
            rule.apply(draft, name, value)

    return rules.custom_rule(f"{rule.text}, if topic.prefix isn't set", apply)


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value):
        raise rules.invalid(name, "letters, digits, . _ and -", value)
    draft.set("publish.topic_delimiter", value)


def _heartbeat_topic(draft: Draft, name: str, value: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise rules.invalid(name, "letters, digits, . _ and -", value)
    draft.set("publish.heartbeat_topic", value)


def _metric_tags(draft: Draft, name: str, value: str) -> None:
    tags = dict(part.partition("=")[::2] for part in rules.split_list(value))
    if not all(tags.values()):
        raise rules.invalid(name, "k1=v1,k2=v2", value)
    draft.set("metric_tags", {key.strip(): text.strip() for key, text in tags.items()})


def custom_converters(path: str) -> Rule:
    """Return the rule of custom converters, which must be Python functions, with their settings."""

    def apply(draft: Draft, name: str, value: str) -> None:
        converters = {}
        for converter in rules.split_list(value):
            prefix = f"{converter}."
            settings = {
                n.removeprefix(prefix): t.strip() for n, t in draft.properties.items() if n.startswith(prefix)
            }
            kind = settings.get("type", "")
            if ":" not in kind:
                raise rules.unsupported_error(
                    f"{prefix}type",
                    kind,
                    "Debezium's converters are Java classes: implement it as a Python function, and set "
                    "package.module:function",
                )
            if not settings.get("columns"):
                raise ConfigurationError(
                    f"property {prefix}columns is missing",
                    expected="a regular expression on keyspace.table.column: the columns to convert",
                )
            if "schema.name" in settings:
                settings["schema_name"] = settings.pop("schema.name")
            converters[converter] = settings
        if converters:
            draft.set(path, converters)

    return rules.custom_rule(
        f"`{path}`, with `<name>.type`, a Python function (Java classes are not supported), "
        "`<name>.columns`, `<name>.schema.name` and all other `<name>.*`",
        apply,
    )


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in rules.split_list(value.lower()) if kind != "none"]
    if not set(kinds) <= {"c", "u", "d", "t", "r", "i"}:
        raise rules.invalid(name, "some of c, u, d, t, or none", value)
    draft.set("publish.skipped_operations", kinds)


def _sanitize(draft: Draft, name: str, value: str) -> None:
    draft.set("publish.field_names", "avro" if rules.boolean(name, value) else "none")


def _notification_function(draft: Draft, name: str, value: str) -> None:
    if "callback" not in rules.split_list(draft.properties.get("notification.enabled.channels", "")):
        raise rules.unsupported_error(name, value, "Add callback to notification.enabled.channels")
    if not re.fullmatch(r"[\w.]+:\w+", value):
        raise rules.invalid(name, "package.module:function", value)
    draft.set("notifications.callback", value)


def _notification_channels(draft: Draft, name: str, value: str) -> None:
    """Import notification channels; the Airflow task replaces the JMX console."""
    known = {"log": "log", "jmx": "airflow", "callback": "callback", "sink": "sink"}
    channels = rules.split_list(value)
    for channel in channels:
        if channel not in known:
            raise rules.unsupported_error(
                name,
                channel,
                f"Custom channels are Java classes: use {', '.join(known)}; callback calls the Python "
                "function of notification.callback.function",
            )
    if channels:
        draft.set("notifications.channels", [known[channel] for channel in channels])


def _notification_topic(draft: Draft, name: str, value: str) -> None:
    if "sink" not in rules.split_list(draft.properties.get("notification.enabled.channels", "")):
        draft.notes.append(f"property {name} is ignored: sink is not among the channels")
        return
    draft.set("notifications.topic", value)
    draft.notes.append(
        f"property {name}: the brokers are those of notifications.connection, by default "
        "publish.kafka.connection"
    )


SNAPSHOT_INCLUDE: Final = rules.custom_rule("`snapshot.include`", _snapshot_include)

OLD_PREFIX: Final = older_prefix(rules.name_option("publish.topic_prefix"))

CONNECTION: Final = rules.ignored("it belongs in the Airflow connection of source.conn_id")

PROCESS: Final = rules.ignored("it tunes Debezium's own process; Spark runs batches instead")

STATE: Final = rules.ignored("offsets are stored in the lake, in the same commit as the data")

_REFERENCE: Final = rules.ignored("addresses and secrets belong in Airflow connections")

_ADJUSTMENTS: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}

COMMON: Final[dict[str, Rule]] = {
    "connector.class": rules.handled_elsewhere("`source.type`"),
    "name": rules.name_option("name"),
    "tasks.max": rules.ignored("Spark distributes the work"),
    "topic.prefix": rules.name_option("publish.topic_prefix"),
    "topic.delimiter": rules.custom_rule("`publish.topic_delimiter`", _delimiter),
    "topic.naming.strategy": rules.custom_rule(
        "`publish.topic_naming`, for a Python class (package.module:Class). Debezium's "
        "DefaultTopicNamingStrategy (for Cassandra also SchemaTopicNamingStrategy) is the default here; "
        "other Java classes are not supported",
        topic_naming,
    ),
    "topic.cache.size": PROCESS,
    "topic.heartbeat.prefix": rules.name_option("publish.heartbeat_prefix"),
    "topic.heartbeat.name": rules.custom_rule("`publish.heartbeat_topic`", _heartbeat_topic),
    "heartbeat.interval.ms": rules.seconds("publish.heartbeat_interval_seconds"),
    "heartbeat.action.query": rules.unsupported("The source is never written to"),
    **TOPIC_CREATION,
    "tombstones.on.delete": rules.flag("publish.tombstones"),
    "extended.headers.enabled": rules.flag("publish.headers"),
    **CONVERTERS,
    "converters": rules.unsupported("Custom converters are Java classes"),
    "predicates": rules.handled_elsewhere("with `transforms`"),
    "predicates.*": rules.custom_rule(
        "`when` of `publish.transforms`, for predicates of Kafka Connect", check_predicate
    ),
    "post.processors": rules.unsupported("Post processors are Java classes"),
    "skipped.operations": rules.custom_rule("`publish.skipped_operations`", _skipped),
    "skip.messages.without.change": rules.unsupported("All changes are published", "false"),
    "provide.transaction.metadata": rules.unsupported("Transaction metadata are not published", "false"),
    "topic.transaction": rules.ignored("transaction metadata are not published"),
    "transaction.metadata.factory": rules.unsupported(
        "Transaction metadata are not published",
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
    ),
    "schema.name.adjustment.mode": rules.choice("publish.schema_names", _ADJUSTMENTS),
    "field.name.adjustment.mode": rules.choice("publish.field_names", _ADJUSTMENTS),
    "sanitize.field.names": rules.custom_rule("`publish.field_names`: avro or none", _sanitize),
    "field.exclude.list": rules.unsupported("Excluding fields is not implemented"),
    "max.batch.size": PROCESS,
    "max.queue.size": PROCESS,
    "max.queue.size.in.bytes": PROCESS,
    "poll.interval.ms": PROCESS,
    "config.providers": _REFERENCE,
    "config.providers.*": _REFERENCE,
    "config.action.reload": PROCESS,
    "header.converter": rules.ignored("headers are always JSON strings"),
    "errors.tolerance": rules.choice(
        "publish.kafka.on_record_error", {"none": "fail", "all": "dead_letters"}
    ),
    "errors.log.enable": rules.ignored("the task's log has all errors"),
    "errors.log.include.messages": rules.ignored("the task's log has all errors, but never records"),
    "errors.deadletterqueue.*": rules.ignored("only sink connectors have a dead letter queue"),
    "errors.retry.timeout": rules.ignored("use retries of the Airflow task"),
    "exactly.once.support": rules.ignored("publish.kafka.delivery is exactly_once by default"),
    "transaction.boundary": rules.ignored("publish.kafka.records_per_commit sets the size of transactions"),
    "transaction.boundary.interval.ms": rules.ignored(
        "publish.kafka.records_per_commit sets the size of transactions"
    ),
    "offsets.storage.topic": STATE,
    "errors.max.retries": rules.ignored("use retries of the Airflow task"),
    "errors.retry.delay.initial.ms": rules.ignored("use retries of the Airflow task"),
    "errors.retry.delay.max.ms": rules.ignored("use retries of the Airflow task"),
    "retriable.restart.connector.wait.ms": rules.ignored("use retries of the Airflow task"),
    "event.processing.failure.handling.mode": rules.choice(
        "source.advanced.strict", {"fail": True, "warn": False, "skip": False, "ignore": False}
    ),
    "custom.metric.tags": rules.custom_rule("`metric_tags`", _metric_tags),
    "statistics.metrics.enabled": rules.flag("lag_statistics"),
    "advanced.metrics.enable": rules.ignored("metrics are emitted through Airflow"),
    "custom.sanitize.pattern": rules.ignored("it masks values in Debezium's log"),
    "snapshot.delay.ms": rules.ignored("the DAG's schedule determines when a run starts"),
    "streaming.delay.ms": rules.ignored("the DAG's schedule determines when a run starts"),
    **SIGNALS,
    "notification.enabled.channels": rules.custom_rule(
        "`notifications.channels`: log and sink are kept, jmx becomes `airflow`; callback with "
        "`notification.callback.function`",
        _notification_channels,
    ),
    "notification.callback.function": rules.custom_rule("`notifications.callback`", _notification_function),
    "notification.sink.topic.name": rules.custom_rule("`notifications.topic`", _notification_topic),
    "incremental.snapshot.chunk.size": rules.ignored(
        "tables are read in ranges of their keys, not in chunks"
    ),
    "incremental.snapshot.watermarking.strategy": rules.ignored("no watermarks are needed"),
    "incremental.snapshot.*": rules.ignored("chunks are always ordered by the primary key"),
    "read.only": rules.ignored("the source is only written to if snapshot.incremental.watermarks is set"),
    "guardrail.collections.max": rules.number("guardrail.max_tables"),
    "guardrail.collections.limit.action": rules.choice("guardrail.action", {"warn": "warn", "fail": "fail"}),
    "connection.validation.timeout.ms": PROCESS,
    "executor.shutdown.timeout.ms": PROCESS,
    "openlineage.integration.*": rules.ignored("lineage is emitted by Airflow"),
    "offset.storage": STATE,
    "offset.storage.*": STATE,
    "offset.flush.interval.ms": rules.ignored(
        "offsets are stored in the lake, in the same commit as the data: the interval is "
        "commit_interval_seconds of CdcStreamOperator"
    ),
    "offset.flush.*": STATE,
    "internal.*": rules.unsupported("Debezium's internal switches have no counterpart"),
    **client_rules("publish.kafka.producer", "producer."),
    **client_rules("publish.kafka.consumer", "consumer."),
    "partitioner.class": replace(
        client_rules("publish.kafka.producer", "")["*"],
        text="`partitioner` in `publish.kafka.producer`: murmur2_random by key, else random",
    ),
    "bootstrap.servers": OF_CONNECTION,
}
