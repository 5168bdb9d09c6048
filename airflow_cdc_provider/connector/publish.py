"""Options of published events, and validation of their combinations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.connector.publish_kafka import KafkaOptions, validate_kafka_options
from airflow_cdc_provider.connector.publish_merged import validate_merged_rows
from airflow_cdc_provider.connector.publish_mongodb import (
    MongodbPublishOptions,
    OutboxOptions,
    UnwrapOptions,
)
from airflow_cdc_provider.connector.publish_pulsar import PulsarOptions, validate_pulsar_options
from airflow_cdc_provider.connector.publish_registry import RegistryOptions, validate_registry_options
from airflow_cdc_provider.connector.publish_scylla import ScyllaPublishOptions, validate_scylla_options
from airflow_cdc_provider.connector.publish_slices import validate_slices
from airflow_cdc_provider.connector.publish_topics import TopicsOptions
from airflow_cdc_provider.connector.publish_vitess import VitessPublishOptions, validate_vitess_options
from airflow_cdc_provider.custom_classes import invalid_import_path
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.shapes import Shape, validate_transforms
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option


def _topic_pattern(value: str) -> str:
    names = re.findall(r"\{([^{}]*)\}", value)
    rest = re.sub(r"\{[^{}]*\}", "", value)
    known = {"prefix", "database", "table"}
    if not value or (names and set(names) <= known and re.fullmatch(r"[A-Za-z0-9._-]*", rest)):
        return ""
    return "letters, digits, . _ - and {prefix}, {database} or {table}"


def _delimiter(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value) else "letters, digits, . _ and -"


def _topic_part(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value) else "letters, digits, . _ and -"


def _optional_topic(value: str) -> str:
    return "" if not value else _topic_part(value)


def _operations(values: tuple[str, ...]) -> str:
    known = ("c", "i", "u", "d", "r", "t")
    return "" if set(values) <= set(known) else f"some of {', '.join(known)}"


def _column_paths(values: tuple[str, ...]) -> str:
    for value in values:
        if len(value.split(".")) < 3 or not all(value.split(".")):
            return f"keyspace.table.column, or keyspace.table.column.field ({value!r})"
    return ""


@dataclass(frozen=True)
class CassandraPublishOptions:
    """Event options of source cassandra."""

    operations: Literal["own", "common"] = option(
        "own: i, u, d and r, as Debezium for Cassandra; common: c, u, d and t, as Debezium's other "
        ""
        ""
        "connectors "
        "and its EnvelopeTransformation",
        "own",
    )
    source: Literal["current", "documented"] = option(
        "Source block. current: as in Debezium 3; documented: the nine fields in Debezium's documentation "
        ""
        ""
        "for "
        "Cassandra, with microseconds in ts_ms",
        "current",
    )
    decimals: Literal["double", "precise", "string"] = option(
        "Representation of decimals in envelope debezium (decimal.handling.mode)", "double"
    )
    varints: Literal["long", "precise", "string"] = option(
        "Representation of varints in envelope debezium (varint.handling.mode)", "long"
    )
    frozen: Literal["structured", "bytes"] = option(
        "Representation of frozen collections and user-defined types in envelope debezium. structured: "
        ""
        ""
        "arrays, "
        "maps and structs, as Debezium's code; bytes: Cassandra's serialized value, as Debezium's "
        "documentation",
        "structured",
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Custom converters of columns in envelope debezium: type (package.module:function), columns (a "
        "regular expression on keyspace.table.column), schema_name, and custom settings",
        {},
    )
    before: bool = option(
        "Add before to values of envelope debezium: the row before the change, as far as it is known from "
        ""
        ""
        "the "
        "captured changes or the mirror",
        False,
    )
    order: Literal["log", "write_time"] = option(
        "Order of events (event.order.guarantee.mode). log: node by node, in the order of the commit log; "
        "write_time: by write time, so that events of a partition are ordered across nodes; sorts all events "
        "of a command in memory",
        "log",
    )
    node_header: bool = option(
        "Add the header cdc.node, the host ID of the node that logged the change, to events of changes",
        True,
    )
    reread: bool = option(
        "Envelope datastax: read each changed row at the source once per command, as DataStax's connector "
        "does, at consistency ALL and limited by snapshot.rows_per_second. false: build rows from logged "
        "values",
        False,
    )
    key_in_value: bool = option(
        "Envelope datastax: include key columns in the value; deleted rows are {}. This is DataStax's "
        "JSON-only format",
        False,
    )


@dataclass(frozen=True)
class PublishOptions:
    """Options of published events: topics, envelope, converters, targets."""

    topic_prefix: str = option("Prefix of topics; default: the connector's name", "")
    topic_delimiter: str = option("Delimiter between the parts of topic names", ".", check=_delimiter)
    topic_pattern: str = option(
        "Pattern of topic names with {prefix}, {database} (the keyspace) and {table}, for example "
        "data-{database}.{table}; replaces prefix and delimiter",
        "",
        check=_topic_pattern,
    )
    topic_naming: str = option(
        "Custom topic naming strategy, package.module:Class", "", check=invalid_import_path
    )
    envelope: Literal["debezium", "datastax", "datastax-cells", "document", "cloudevents"] = option(
        "Format of events. debezium: Debezium's envelope; cloudevents: CloudEvents 1.0 in JSON with the "
        "attributes of Debezium's CloudEventsConverter; Cassandra: datastax: key and row after the change; "
        "datastax-cells: the format with cells in DataStax's documentation; MongoDB: document: the document "
        "after the change as Extended JSON, without an envelope",
        "debezium",
    )
    key: Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"] = option(
        "Converter of keys. json, avro, protobuf, json_schema: as Kafka's JsonConverter and Confluent's "
        "AvroConverter, ProtobufConverter and JsonSchemaConverter; string: Java's toString; bytes: bytes "
        "unchanged, other types fail",
        "json",
    )
    value: Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"] = option(
        "Converter of values; see key", "json"
    )
    schemas: bool = option(
        "Include schemas: JSON in each payload, as schemas.enable; Avro and Protobuf only in the output of "
        "airflow cdc events",
        False,
    )
    registry: RegistryOptions = option("Schema registry for Avro, Protobuf and JSON Schema", RegistryOptions)
    protobuf_nullables: Literal["optional", "wrapper", "plain"] = option(
        "Protobuf declaration of nullable fields. optional: keyword optional; wrapper: messages of "
        "google/protobuf/wrappers.proto; plain: no marker, so null equals 0 or an empty string, the default "
        "of ProtobufConverter",
        "optional",
    )
    tombstones: bool = option("Write a tombstone (null value) after each delete", True)
    headers: bool = option("Write Debezium's context headers", True)
    event_index: bool = option("Add the header cdc.index, the index of the event within its change", False)
    skipped_operations: tuple[str, ...] = option(
        "Operations whose events are skipped: c (or i), u, d, r, t", (), check=_operations
    )
    exclude_columns: tuple[str, ...] = option(
        "Columns to exclude from values, not from keys: keyspace.table.column, or "
        ""
        ""
        "keyspace.table.column.field "
        "for a field of a user-defined type",
        (),
        check=_column_paths,
    )
    schema_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "Adjustment of schema names for Avro; auto: avro with Avro or Protobuf, else none",
        "auto",
    )
    field_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "Adjustment of field names for Avro; see schema_names", "auto"
    )
    skip_unchanged: bool = option(
        "Skip updates whose before and after are equal. Requires the document before the change",
        False,
    )
    transactions: bool = option(
        "Add transaction metadata to events, and write BEGIN and END records of transactions "
        "(provide.transaction.metadata)",
        False,
    )
    transaction_topic: str = option(
        "Topic of transaction records, without the prefix", "transaction", check=_topic_part
    )
    schema_changes: bool = option(
        "Write records of schema changes: drop, rename, dropDatabase, invalidate, and with "
        "source.stream.expanded_events create, modify, createIndexes ...",
        False,
    )
    schema_changes_topic: str = option(
        "Topic of schema change records, without the prefix", "schema-changes", check=_topic_part
    )
    heartbeat_interval_seconds: float = option(
        "Maximum interval of heartbeats to Kafka while a stream runs; other runs send one at their end. "
        "0 disables heartbeats",
        0.0,
        minimum=0,
    )
    heartbeat_prefix: str = option(
        "Prefix of the heartbeat topic, before the topic prefix", "__debezium-heartbeat", check=_topic_part
    )
    heartbeat_topic: str = option(
        "Full name of the heartbeat topic, which connectors may share; overrides heartbeat_prefix",
        "",
        check=_optional_topic,
    )
    version: str = option(
        "Value of source.version; default: that of the emulated connector, 3.6.1.Final of Debezium or 2.0.4 "
        "of ScyllaDB",
        "",
    )
    task_id: str = option("Value of the header taskId", "0")
    cassandra: CassandraPublishOptions = option("Event options of source cassandra", CassandraPublishOptions)
    mongodb: MongodbPublishOptions = option("Event options of source mongodb", MongodbPublishOptions)
    vitess: VitessPublishOptions = option("Event options of source vitess", VitessPublishOptions)
    scylla: ScyllaPublishOptions = option("Event options of source scylla", ScyllaPublishOptions)
    unwrap: UnwrapOptions = option("Unwrapping of events to plain rows", UnwrapOptions)
    outbox: OutboxOptions = option("Outbox collections, whose documents are events", OutboxOptions)
    transforms: tuple[Any, ...] = option(
        "List of transforms, applied in order; each has a type",
        (),
        read=read_transforms,
    )
    kafka: KafkaOptions = option("Publishing to Kafka", KafkaOptions)
    pulsar: PulsarOptions = option("Publishing to Pulsar", PulsarOptions)
    topics: TopicsOptions = option("Creation of topics", TopicsOptions)

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return self.kafka.enabled or self.pulsar.enabled

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """Start of the first run."""
        return self.pulsar.start if self.pulsar.enabled else self.kafka.start


def validate_publish_options(kind: str, publish: PublishOptions) -> None:
    """Reject options without effect for the source or event format, and conflicting options.

    Args:
        kind: Type of the source.
        publish: The options.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if kind != "cassandra":
        _reject_cassandra_options(kind, publish)
    if kind != "mongodb":
        _reject_mongodb_options(kind, publish)
    if kind == "vitess":
        validate_vitess_options(publish.transactions, publish.vitess)
    elif publish.vitess != VitessPublishOptions():
        raise ConfigurationError(
            "option publish.vitess is only supported for source vitess",
            found=f"source {kind}",
            expected="its default",
        )
    if kind == "scylla":
        validate_scylla_options(publish.scylla, rows=publish.unwrap.enabled)
    elif publish.scylla != ScyllaPublishOptions():
        raise ConfigurationError(
            "option publish.scylla is only supported for source scylla",
            found=f"source {kind}",
            expected="its default",
        )
    validate_registry_options(publish.key, publish.value, publish.registry)
    _validate_formats(publish)
    _validate_envelope_options(publish)
    validate_kafka_options(publish.kafka, envelope=publish.envelope, reread=publish.cassandra.reread)
    validate_merged_rows(kind, publish)
    validate_slices(publish)
    validate_pulsar_options(publish)
    validate_transforms(publish.transforms, _shape(kind, publish))


def _shape(kind: str, publish: PublishOptions) -> Shape:
    """Return the shape of values that transforms process."""
    if publish.envelope in ("document", "cloudevents"):
        return "text"
    if publish.envelope.startswith("datastax") and "avro" in (publish.key, publish.value):
        return "avro"
    if kind == "cassandra" and publish.envelope == "debezium":
        return "cells"
    return "documents" if kind == "mongodb" and not publish.unwrap.enabled else "rows"


def _reject_cassandra_options(kind: str, publish: PublishOptions) -> None:
    """Reject options of source cassandra."""
    chosen = [
        f"publish.{name}"
        for name in ("exclude_columns", "event_index", "cassandra")
        if getattr(publish, name) != getattr(PublishOptions(), name)
    ]
    if publish.envelope.startswith("datastax"):
        chosen.append("publish.envelope")
    if chosen:
        raise ConfigurationError(
            f"option {chosen[0]} is only supported for source cassandra",
            found=f"source {kind}",
            expected="its default",
        )


def _reject_mongodb_options(kind: str, publish: PublishOptions) -> None:
    """Reject options of source mongodb, or of sources mongodb and vitess."""
    shared = (
        "skip_unchanged",
        "transactions",
        "transaction_topic",
        "schema_changes",
        "schema_changes_topic",
    )
    unwraps = () if kind == "scylla" else ("unwrap",)
    names = ("mongodb", *unwraps, "outbox", *(() if kind == "vitess" else shared))
    chosen = [
        f"publish.{name}" for name in names if getattr(publish, name) != getattr(PublishOptions(), name)
    ]
    if publish.envelope == "document":
        chosen.append("publish.envelope")
    if chosen:
        raise ConfigurationError(
            f"option {chosen[0]} is not supported for source {kind}",
            found=f"source {kind}",
            expected="its default",
        )


def _validate_formats(publish: PublishOptions) -> None:
    if publish.unwrap.enabled and publish.envelope in ("document", "cloudevents"):
        raise ConfigurationError(
            f"options publish.unwrap and publish.envelope: {publish.envelope} exclude each other",
            remedy="remove one of them",
        )
    if publish.envelope == "cloudevents" and publish.value != "json":
        raise ConfigurationError(
            "CloudEvents are written in JSON only", expected="publish.value: json", found=publish.value
        )
    if publish.envelope.startswith("datastax") and {publish.key, publish.value} - {"json", "avro"}:
        raise ConfigurationError(
            f"envelope {publish.envelope} supports only JSON and Avro",
            expected="json or avro as publish.key and publish.value",
            found=f"{publish.key} and {publish.value}",
        )
    if publish.envelope == "cloudevents" and publish.cassandra.source == "documented":
        raise ConfigurationError(
            "CloudEvents require the source block of Debezium 3",
            expected="publish.cassandra.source: current",
            found="documented",
        )
    if publish.topic_naming and publish.topic_pattern:
        raise ConfigurationError(
            "options publish.topic_naming and publish.topic_pattern exclude each other",
            remedy="remove one of them",
        )


def _validate_envelope_options(publish: PublishOptions) -> None:
    """Reject options without effect in the envelope; a column masked by a converter must not leak."""
    names = {
        "datastax": (
            "operations",
            "source",
            "decimals",
            "varints",
            "frozen",
            "converters",
            "before",
            "order",
        ),
        "datastax-cells": ("key_in_value", "reread", "before"),
    }
    for name in names.get(publish.envelope, ("key_in_value", "reread")):
        found = getattr(publish.cassandra, name)
        if found != getattr(CassandraPublishOptions(), name):
            raise ConfigurationError(
                f"option publish.cassandra.{name} has no effect in envelope {publish.envelope}",
                expected="its default, or another publish.envelope",
                found=found if isinstance(found, str) else "",  # a converter's settings may hold a salt
            )
