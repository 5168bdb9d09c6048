"""Options of events: how changes become events, and which choices exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.connector.publish_kafka import KafkaOptions, refuse_clashing_kafka
from airflow_cdc_provider.connector.publish_merged import refuse_clashing_merged
from airflow_cdc_provider.connector.publish_mongodb import (
    MongodbPublishOptions,
    OutboxOptions,
    UnwrapOptions,
)
from airflow_cdc_provider.connector.publish_pulsar import PulsarOptions, refuse_clashing_pulsar
from airflow_cdc_provider.connector.publish_registry import RegistryOptions, refuse_clashing_registry
from airflow_cdc_provider.connector.publish_scylla import ScyllaPublishOptions, refuse_clashing_scylla
from airflow_cdc_provider.connector.publish_slices import refuse_clashing_slices
from airflow_cdc_provider.connector.publish_topics import TopicsOptions
from airflow_cdc_provider.connector.publish_vitess import VitessPublishOptions, refuse_clashing_vitess
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.shapes import Shape, refuse_impossible
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option
from airflow_cdc_provider.plugins import wrong_place


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
            return f"keyspace.table.column each, with .field for a field of it ({value!r})"
    return ""


@dataclass(frozen=True)
class CassandraPublishOptions:
    """Choices that only events of Cassandra have."""

    operations: Literal["own", "common"] = option(
        "own: i, u, d and r as Debezium for Cassandra writes them; common: c, u, d and t as its other "
        "connectors do, which its EnvelopeTransformation makes of them",
        "own",
    )
    source: Literal["current", "documented"] = option(
        "The source block: current: that of Debezium 3; documented: the nine fields that its page for "
        "Cassandra shows, with microseconds in ts_ms",
        "current",
    )
    decimals: Literal["double", "precise", "string"] = option(
        "How decimals are shown in envelope debezium (decimal.handling.mode)", "double"
    )
    varints: Literal["long", "precise", "string"] = option(
        "How varints are shown in envelope debezium (varint.handling.mode)", "long"
    )
    frozen: Literal["structured", "bytes"] = option(
        "How columns of frozen lists, sets, maps and user-defined types are shown in envelope debezium: by "
        "their parts, as Debezium's code writes them; or as bytes, which its page says: the value as "
        "Cassandra stores it",
        "structured",
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Functions that show columns of envelope debezium otherwise: type (package.module:function), "
        "columns (a regular expression on keyspace.table.column), schema_name, and settings of its own",
        {},
    )
    before: bool = option(
        "Values of envelope debezium have a field before: the row as it stood before the change, as far as "
        "the changes that are read, or the mirror, tell",
        False,
    )
    order: Literal["log", "write_time"] = option(
        "log: events of each node in the order of its commit log, one node after the other; write_time: in "
        "the order of their write times, so that those of a partition come in order whichever nodes logged "
        "them (event.order.guarantee.mode). All that one command reads is ordered, and kept in memory for it",
        "log",
    )
    node_header: bool = option(
        "A header cdc.node on each event of a change: the host id of the node whose commit log tells it; "
        "rows of snapshots are the cluster's and have none",
        True,
    )
    reread: bool = option(
        "In envelope datastax rows are read again at the source, at consistency ALL and no faster than "
        "snapshot.rows_per_second, as DataStax's connector reads them: each row that was changed once per "
        "command, as it is then. Otherwise they are made of the logged values",
        False,
    )
    key_in_value: bool = option(
        "In envelope datastax the value holds the key columns too, and {} stands for a row that is gone: "
        "DataStax's JSON-only form",
        False,
    )


@dataclass(frozen=True)
class PublishOptions:
    """How changes become events (topic prefix, envelope and converters)."""

    topic_prefix: str = option("Leads each topic; default: the connector's name", "")
    topic_delimiter: str = option("Stands between the parts of a topic's name", ".", check=_delimiter)
    topic_pattern: str = option(
        "Names topics instead, with {prefix}, {database} (the keyspace) and {table}, for example "
        "data-{database}.{table}",
        "",
        check=_topic_pattern,
    )
    topic_naming: str = option(
        "A class of your own that names topics instead, as package.module:Class", "", check=wrong_place
    )
    envelope: Literal["debezium", "datastax", "datastax-cells", "document", "cloudevents"] = option(
        "Form of the events. debezium; for Cassandra also datastax: key and whole row after the change; "
        "datastax-cells: the form with cells that DataStax's documents show; for MongoDB also document: the "
        "document after the change as Extended JSON, without an envelope; cloudevents: CloudEvents 1.0 in "
        "JSON, with the attributes of Debezium's CloudEventsConverter",
        "debezium",
    )
    key: Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"] = option(
        "Converter of keys: json, avro, protobuf and json_schema as Kafka's JsonConverter and Confluent's "
        "AvroConverter, ProtobufConverter and JsonSchemaConverter write them; string: what Java's toString "
        "gives; bytes: bytes as they are, and nothing else",
        "json",
    )
    value: Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"] = option(
        "Converter of values, likewise", "json"
    )
    schemas: bool = option(
        "Show the schema: beside each payload, as schemas.enable does; with Avro and Protobuf beside the "
        "record, where airflow cdc events shows it",
        False,
    )
    registry: RegistryOptions = option(
        "Where schemas of Avro, Protobuf and JSON Schema are registered", RegistryOptions
    )
    protobuf_nullables: Literal["optional", "wrapper", "plain"] = option(
        "How Protobuf declares fields that may be null. optional: with the keyword; wrapper: as messages of "
        "google/protobuf/wrappers.proto; plain: like any other, so that null can't be told from 0 or an "
        "empty text, which is the ProtobufConverter's own default",
        "optional",
    )
    tombstones: bool = option("A null value after each delete", True)
    headers: bool = option("Debezium's context headers", True)
    event_index: bool = option(
        "A header cdc.index on each event: its number among those of one change, from 0", False
    )
    skipped_operations: tuple[str, ...] = option(
        "Kinds of events to leave out: c (or i), u, d, r, t", (), check=_operations
    )
    exclude_columns: tuple[str, ...] = option(
        "Columns to leave out of values: keyspace.table.column, or keyspace.table.column.field for a field "
        "of a user-defined type; keys keep theirs",
        (),
        check=_column_paths,
    )
    schema_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "How names of schemas are made fit for Avro; auto: avro where Avro or Protobuf is written, else none",
        "auto",
    )
    field_names: Literal["auto", "none", "avro", "avro_unicode"] = option(
        "How names of fields are made fit for Avro, likewise", "auto"
    )
    skip_unchanged: bool = option(
        "Leave out updates that changed nothing of what the event shows: before and after are equal. Needs "
        "the document before the change",
        False,
    )
    transactions: bool = option(
        "Events tell the transaction that they are part of, and a record stands at the beginning and at the "
        "end of each (provide.transaction.metadata)",
        False,
    )
    transaction_topic: str = option(
        "Topic of those records, after the prefix", "transaction", check=_topic_part
    )
    schema_changes: bool = option(
        "A record for each change of a collection or database that the source tells of: drop, rename, "
        "dropDatabase, invalidate, and with source.stream.expanded_events create, modify, createIndexes ...",
        False,
    )
    schema_changes_topic: str = option(
        "Topic of those records, after the prefix", "schema-changes", check=_topic_part
    )
    heartbeat_interval_seconds: float = option(
        "With publish.kafka: a heartbeat at least that often while a stream runs, and at the end of each "
        "other run that publishes, also when nothing has changed; 0: none",
        0.0,
        minimum=0,
    )
    heartbeat_prefix: str = option(
        "Leads the topic of heartbeats, before the prefix", "__debezium-heartbeat", check=_topic_part
    )
    heartbeat_topic: str = option(
        "Topic of heartbeats, whatever the prefix; connectors may share it", "", check=_optional_topic
    )
    version: str = option(
        "Text of source.version; empty: that of the connector whose events these are, Debezium's 3.6.1.Final "
        "or ScyllaDB's 2.0.4",
        "",
    )
    task_id: str = option("Text of the header taskId", "0")
    cassandra: CassandraPublishOptions = option(
        "Choices that only events of Cassandra have", CassandraPublishOptions
    )
    mongodb: MongodbPublishOptions = option("Choices that only events of MongoDB have", MongodbPublishOptions)
    vitess: VitessPublishOptions = option("Choices that only events of Vitess have", VitessPublishOptions)
    scylla: ScyllaPublishOptions = option("Choices that only events of ScyllaDB have", ScyllaPublishOptions)
    unwrap: UnwrapOptions = option("Events as plain rows, without an envelope", UnwrapOptions)
    outbox: OutboxOptions = option("Collections whose documents are events to be routed", OutboxOptions)
    transforms: tuple[Any, ...] = option(
        "What records undergo, one after the other: a list of transforms, each with its type",
        (),
        read=read_transforms,
    )
    kafka: KafkaOptions = option("Where and how events are published", KafkaOptions)
    pulsar: PulsarOptions = option("Where and how events are published to Pulsar instead", PulsarOptions)
    topics: TopicsOptions = option("Whether topics are made, and with what", TopicsOptions)

    @property
    def enabled(self) -> bool:
        """Whether events are published anywhere."""
        return self.kafka.enabled or self.pulsar.enabled

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """What the first run publishes."""
        return self.pulsar.start if self.pulsar.enabled else self.kafka.start


def refuse_what_clashes(kind: str, publish: PublishOptions) -> None:
    """Refuse choices that say nothing for a source, or in the events' form: silence would be consent.

    Args:
        kind: The source's type.
        publish: The choices.

    Raises:
        ConfigurationError: Names the first one.
    """
    if kind != "cassandra":
        _refuse_cassandras(kind, publish)
    if kind != "mongodb":
        _refuse_mongodbs(kind, publish)
    if kind == "vitess":
        refuse_clashing_vitess(publish.transactions, publish.vitess)
    elif publish.vitess != VitessPublishOptions():
        raise ConfigurationError(
            "option publish.vitess is for source vitess", found=f"source {kind}", expected="its default"
        )
    if kind == "scylla":
        refuse_clashing_scylla(publish.scylla, rows=publish.unwrap.enabled)
    elif publish.scylla != ScyllaPublishOptions():
        raise ConfigurationError(
            "option publish.scylla is for source scylla", found=f"source {kind}", expected="its default"
        )
    refuse_clashing_registry(publish.key, publish.value, publish.registry)
    _refuse_clashing_forms(publish)
    _refuse_other_envelopes(publish)
    refuse_clashing_kafka(publish.kafka, envelope=publish.envelope, reread=publish.cassandra.reread)
    refuse_clashing_merged(kind, publish)
    refuse_clashing_slices(publish)
    refuse_clashing_pulsar(publish)
    refuse_impossible(publish.transforms, _shape(kind, publish))


def _shape(kind: str, publish: PublishOptions) -> Shape:
    """Tell what transforms find in values."""
    if publish.envelope in ("document", "cloudevents"):
        return "text"
    if publish.envelope.startswith("datastax") and "avro" in (publish.key, publish.value):
        return "avro"
    if kind == "cassandra" and publish.envelope == "debezium":
        return "cells"
    return "documents" if kind == "mongodb" and not publish.unwrap.enabled else "rows"


def _refuse_cassandras(kind: str, publish: PublishOptions) -> None:
    """Refuse choices that only Cassandra has: silence would be taken for consent."""
    chosen = [
        f"publish.{name}"
        for name in ("exclude_columns", "event_index", "cassandra")
        if getattr(publish, name) != getattr(PublishOptions(), name)
    ]
    if publish.envelope.startswith("datastax"):
        chosen.append("publish.envelope")
    if chosen:
        raise ConfigurationError(
            f"option {chosen[0]} is for source cassandra",
            found=f"source {kind}",
            expected="its default",
        )


def _refuse_mongodbs(kind: str, publish: PublishOptions) -> None:
    """Refuse choices that only MongoDB has, or MongoDB and Vitess."""
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
            f"option {chosen[0]} is for source mongodb", found=f"source {kind}", expected="its default"
        )


def _refuse_clashing_forms(publish: PublishOptions) -> None:
    if publish.unwrap.enabled and publish.envelope in ("document", "cloudevents"):
        raise ConfigurationError(
            f"options publish.unwrap and publish.envelope: {publish.envelope} exclude each other",
            remedy="unwrap gives the document's fields, envelope document its Extended JSON, cloudevents "
            "events with attributes; keep one",
        )
    if publish.envelope == "cloudevents" and publish.value != "json":
        raise ConfigurationError(
            "CloudEvents are written in JSON alone", expected="publish.value: json", found=publish.value
        )
    if publish.envelope.startswith("datastax") and {publish.key, publish.value} - {"json", "avro"}:
        raise ConfigurationError(
            f"envelope {publish.envelope} is written in JSON or Avro",
            expected="json or avro as publish.key and publish.value",
            found=f"{publish.key} and {publish.value}",
        )
    if publish.envelope == "cloudevents" and publish.cassandra.source == "documented":
        raise ConfigurationError(
            "attributes of CloudEvents are those of Debezium 3's source block",
            expected="publish.cassandra.source: current",
            found="documented",
        )
    if publish.topic_naming and publish.topic_pattern:
        raise ConfigurationError(
            "options publish.topic_naming and publish.topic_pattern exclude each other", remedy="keep one"
        )


def _refuse_other_envelopes(publish: PublishOptions) -> None:
    """Refuse choices that the events' form doesn't know: who hides a column by a converter counts on it."""
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
                f"option publish.cassandra.{name} says nothing in envelope {publish.envelope}",
                expected="its default, or another publish.envelope",
                found=found if isinstance(found, str) else "",  # a converter's settings may hold a salt
            )
