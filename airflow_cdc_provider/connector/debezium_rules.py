"""Debezium's properties that all connectors have, and what becomes of each: tables behind :mod:`.debezium`.

Names and defaults: Debezium 3.6. What only one connector has is in :mod:`.debezium_mongodb` and
:mod:`.debezium_cassandra`.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.connector.debezium_chain import take_predicate
from airflow_cdc_provider.connector.debezium_clients import OF_CONNECTION, client_rules
from airflow_cdc_provider.connector.debezium_converters import CONVERTERS
from airflow_cdc_provider.connector.debezium_signals import SIGNALS
from airflow_cdc_provider.connector.debezium_topic_creation import TOPIC_CREATION
from airflow_cdc_provider.connector.debezium_topics import topic_naming
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    boolean,
    choice,
    flag,
    left_out,
    name_option,
    number,
    read_elsewhere,
    refusal,
    refused,
    seconds,
    split_list,
    taken,
    wrong,
)
from airflow_cdc_provider.exceptions import ConfigurationError


def take_included(draft: Draft, name: str, value: str) -> None:
    """Select tables."""
    draft.include += draft.patterns(value)


def take_excluded(draft: Draft, name: str, value: str) -> None:
    """Leave out tables."""
    draft.exclude += draft.patterns(value)


def take_included_databases(draft: Draft, name: str, value: str) -> None:
    """Select tables of databases or keyspaces."""
    draft.databases += draft.patterns(value)


def take_excluded_databases(draft: Draft, name: str, value: str) -> None:
    """Leave out tables of databases or keyspaces."""
    if draft.properties.get("database.include.list"):
        raise ConfigurationError("properties exclude each other", found="database.include.list and " + name)
    draft.excluded_databases += draft.patterns(value)


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value):
        raise wrong(name, "letters, digits, . _ and -", value)
    draft.set("publish.topic_delimiter", value)


def _heartbeat_topic(draft: Draft, name: str, value: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise wrong(name, "letters, digits, . _ and -", value)
    draft.set("publish.heartbeat_topic", value)


def _metric_tags(draft: Draft, name: str, value: str) -> None:
    tags = dict(part.partition("=")[::2] for part in split_list(value))
    if not all(tags.values()):
        raise wrong(name, "k1=v1,k2=v2", value)
    draft.set("metric_tags", {key.strip(): text.strip() for key, text in tags.items()})


def own_converters(draft: Draft, value: str) -> dict[str, dict[str, str]]:
    """Return converters with their settings, whose type is a function that can be called from here.

    Raises:
        ConfigurationError: It is a Java class.
    """
    converters = {}
    for converter in split_list(value):
        lead = f"{converter}."
        settings = {
            n.removeprefix(lead): t.strip() for n, t in draft.properties.items() if n.startswith(lead)
        }
        kind = settings.get("type", "")
        if ":" not in kind:
            raise refusal(
                f"{lead}type",
                kind,
                "Debezium's converters are Java classes: write it as a Python function, and name that as "
                "package.module:function",
            )
        converters[converter] = settings
    return converters


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in split_list(value) if kind != "none"]
    if not set(kinds) <= {"c", "u", "d", "t", "r", "i"}:
        raise wrong(name, "some of c, u, d, t, or none", value)
    draft.set("publish.skipped_operations", kinds)


def _sanitize(draft: Draft, name: str, value: str) -> None:
    draft.set("publish.field_names", "avro" if boolean(name, value) else "none")


def _notification_function(draft: Draft, name: str, value: str) -> None:
    if "callback" not in split_list(draft.properties.get("notification.enabled.channels", "")):
        raise refusal(name, value, "Name callback in notification.enabled.channels too")
    if not re.fullmatch(r"[\w.]+:\w+", value):
        raise wrong(name, "package.module:function", value)
    draft.set("notifications.callback", value)


def _notification_channels(draft: Draft, name: str, value: str) -> None:
    """Take over Debezium's channels; what a JMX console shows there, the task shows here."""
    known = {"log": "log", "jmx": "airflow", "callback": "callback", "sink": "sink"}
    channels = split_list(value)
    for channel in channels:
        if channel not in known:
            raise refusal(
                name,
                channel,
                f"Channels of one's own are Java classes: name {', '.join(known)}; callback calls a Python "
                "function, notification.callback.function",
            )
    if channels:
        draft.set("notifications.channels", [known[channel] for channel in channels])


def _notification_topic(draft: Draft, name: str, value: str) -> None:
    if "sink" not in split_list(draft.properties.get("notification.enabled.channels", "")):
        draft.notes.append(f"property {name} is left out: sink is none of the channels")
        return
    draft.set("notifications.topic", value)
    draft.notes.append(
        f"property {name}: the broker of the topic is that of publish.kafka.connection, or of "
        "notifications.connection"
    )


CONNECTION: Final = left_out("it belongs into the Airflow connection that source.conn_id names")

PROCESS: Final = left_out("it sizes or paces Debezium's own process; here Spark's batches do")

STATE: Final = left_out("positions are kept in the lake, in the commit of their data")

_LOOKED_UP: Final = left_out("addresses and secrets belong into Airflow connections")

_ADJUSTMENTS: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}

COMMON: Final[dict[str, Rule]] = {
    "connector.class": read_elsewhere("names the source"),
    "name": name_option("name"),
    "tasks.max": left_out("Spark divides the work"),
    "topic.prefix": name_option("publish.topic_prefix"),
    "topic.delimiter": taken("`publish.topic_delimiter`", _delimiter),
    "topic.naming.strategy": taken(
        "`publish.topic_naming`, where it is a Python class (package.module:Class). Of Debezium's, "
        "DefaultTopicNamingStrategy names topics as is done here (for Cassandra SchemaTopicNamingStrategy "
        "does too); other Java classes are refused",
        topic_naming,
    ),
    "topic.cache.size": PROCESS,
    "topic.heartbeat.prefix": name_option("publish.heartbeat_prefix"),
    "topic.heartbeat.name": taken("`publish.heartbeat_topic`", _heartbeat_topic),
    "heartbeat.interval.ms": seconds("publish.heartbeat_interval_seconds"),
    "heartbeat.action.query": refused("Nothing is written to the source"),
    **TOPIC_CREATION,
    "tombstones.on.delete": flag("publish.tombstones"),
    "extended.headers.enabled": flag("publish.headers"),
    **CONVERTERS,
    "converters": refused("Custom converters are Java classes"),
    "predicates": read_elsewhere("with `transforms`"),
    "predicates.*": taken("`when` of `publish.transforms`, for those of Kafka Connect", take_predicate),
    "post.processors": refused("Post processors are Java classes"),
    "skipped.operations": taken("`publish.skipped_operations`", _skipped),
    "skip.messages.without.change": refused("All changes are written", "false"),
    "provide.transaction.metadata": refused("Transaction metadata are not written", "false"),
    "topic.transaction": left_out("transaction metadata are not written"),
    "transaction.metadata.factory": refused(
        "Transaction metadata are not written",
        "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory",
    ),
    "schema.name.adjustment.mode": choice("publish.schema_names", _ADJUSTMENTS),
    "field.name.adjustment.mode": choice("publish.field_names", _ADJUSTMENTS),
    "sanitize.field.names": taken("`publish.field_names`: avro or none", _sanitize),
    "field.exclude.list": refused("Fields can't be left out yet"),
    "max.batch.size": PROCESS,
    "max.queue.size": PROCESS,
    "max.queue.size.in.bytes": PROCESS,
    "poll.interval.ms": PROCESS,
    "config.providers": _LOOKED_UP,
    "config.providers.*": _LOOKED_UP,
    "config.action.reload": PROCESS,
    "header.converter": left_out("headers are JSON texts, whatever the converter of Kafka Connect is"),
    "errors.tolerance": left_out(
        "a record that a transform or a converter fails at ends the run: none is skipped"
    ),
    "errors.log.enable": left_out("the task's log has all errors"),
    "errors.log.include.messages": left_out("the task's log has all errors, never records"),
    "errors.deadletterqueue.*": left_out("only sinks of Kafka Connect have one"),
    "errors.retry.timeout": left_out("Airflow's retries of the task do this"),
    "exactly.once.support": left_out("publish.kafka.delivery is exactly_once by itself"),
    "transaction.boundary": left_out("publish.kafka.records_at_once sizes transactions"),
    "transaction.boundary.interval.ms": left_out("publish.kafka.records_at_once sizes transactions"),
    "offsets.storage.topic": STATE,
    "errors.max.retries": left_out("Airflow's retries of the task do this"),
    "errors.retry.delay.initial.ms": left_out("Airflow's retries of the task do this"),
    "errors.retry.delay.max.ms": left_out("Airflow's retries of the task do this"),
    "retriable.restart.connector.wait.ms": left_out("Airflow's retries of the task do this"),
    "event.processing.failure.handling.mode": choice(
        "source.advanced.strict", {"fail": True, "warn": False, "skip": False, "ignore": False}
    ),
    "custom.metric.tags": taken("`metric_tags`", _metric_tags),
    "statistics.metrics.enabled": flag("lag_statistics"),
    "advanced.metrics.enable": left_out("metrics are Airflow's"),
    "custom.sanitize.pattern": left_out("it hides values in Debezium's log"),
    "snapshot.delay.ms": left_out("the DAG's schedule decides when a run starts"),
    "streaming.delay.ms": left_out("the DAG's schedule decides when a run starts"),
    **SIGNALS,
    "notification.enabled.channels": taken(
        "`notifications.channels`: log and sink as they are, jmx becomes `airflow`; callback with "
        "`notification.callback.function`",
        _notification_channels,
    ),
    "notification.callback.function": taken("`notifications.callback`", _notification_function),
    "notification.sink.topic.name": taken("`notifications.topic`", _notification_topic),
    "incremental.snapshot.chunk.size": number("snapshot.incremental.chunk_size"),
    "incremental.snapshot.watermarking.strategy": left_out("no marks are needed"),
    "incremental.snapshot.*": left_out("there is nothing to choose: chunks go by the primary key"),
    "read.only": left_out("nothing is written to the source, unless snapshot.incremental.watermarks asks"),
    "guardrail.collections.max": number("guardrail.max_tables"),
    "guardrail.collections.limit.action": choice("guardrail.action", {"warn": "warn", "fail": "fail"}),
    "connection.validation.timeout.ms": PROCESS,
    "executor.shutdown.timeout.ms": PROCESS,
    "openlineage.integration.*": left_out("lineage is Airflow's"),
    "offset.storage": STATE,
    "offset.storage.*": STATE,
    "offset.flush.interval.ms": left_out(
        "positions are kept in the lake, in the commit of their data: commit_interval_seconds of "
        "CdcStreamOperator is the interval"
    ),
    "offset.flush.*": STATE,
    "internal.*": refused("Debezium's internal switches have no counterpart"),
    **client_rules("publish.kafka.producer", "producer."),
    **client_rules("publish.kafka.consumer", "consumer."),
    "bootstrap.servers": OF_CONNECTION,
}
