"""Options of published events: topics, envelope, converters, targets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.connector.publish.cassandra import CassandraPublishOptions
from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.connector.publish.mongodb import MongodbPublishOptions
from airflow_cdc_provider.connector.publish.pulsar import PulsarOptions
from airflow_cdc_provider.connector.publish.registry import RegistryOptions
from airflow_cdc_provider.connector.publish.scylla import ScyllaPublishOptions
from airflow_cdc_provider.connector.publish.topics import TopicsOptions
from airflow_cdc_provider.connector.publish.vitess import VitessPublishOptions
from airflow_cdc_provider.custom_classes import invalid_import_path
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.row_options import OutboxOptions, UnwrapOptions
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
        if not re.fullmatch(r"[^.]+\.[^.]+\..+", value, re.DOTALL):
            return f"keyspace.table.column, or keyspace.table.column.field ({value!r})"
    return ""


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
    tombstones: bool | None = option(
        "Write a tombstone (null value) after each delete; default: true, for source cassandra only in "
        "envelope datastax-cells: events of a key may have different columns, which compaction loses",
        None,
    )
    headers: bool = option("Write Debezium's context headers", True)
    event_index: bool = option("Add the header cdc.index, the index of the event within its change", False)
    skipped_operations: tuple[str, ...] = option(
        "Operations whose events are skipped: c (or i), u, d, r, t", (), check=_operations
    )
    exclude_columns: tuple[str, ...] = option(
        "Columns to exclude from values, not from keys: keyspace.table.column, or "
        "keyspace.table.column.field for a field of a user-defined type; names may have dots, and dropped "
        "columns may stay",
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
    times_beyond_64_bits: Literal["wrap", "null"] = option(
        "Times of the source block after the year 2262 in nanoseconds, and DATETIME columns of Vitess with "
        "temporal: nanoseconds outside of 1677 to 2262. wrap: the low 64 bits, as in Debezium, whose "
        "arithmetic is Java's; null",
        "wrap",
    )
    version: str = option(
        "Value of source.version; default: that of the emulated connector, 3.6.1.Final of Debezium or 2.0.4 "
        "of ScyllaDB; in envelope datastax-cells that of this package",
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
    def writes_dead_letters(self) -> bool:
        """Whether records that can't be built, or that a target refuses, are dead letters."""
        target = self.pulsar if self.pulsar.enabled else self.kafka
        return target.enabled and target.on_record_error == "dead_letters"

    @property
    def passes_rejected_topics(self) -> bool:
        """Whether all records of a topic that is refused are dead letters.

        If mirrors are published, the topic's table waits instead, as each has its own position.
        """
        return self.writes_dead_letters and not self.kafka.after_merge

    @property
    def deletions_in_keys(self) -> bool:
        """Whether delete events of Cassandra's cells have their time in the key's cells, in ms."""
        return self.envelope == "datastax-cells" or self.cassandra.deletions == "keys"

    @property
    def needs_earlier_rows(self) -> bool:
        """Whether events of captured changes need the rows of mirrors from before these."""
        return self.enabled and self.envelope == "datastax" and not self.kafka.after_merge

    @property
    def start(self) -> Literal["earliest", "latest"]:
        """Start of the first run."""
        return self.pulsar.start if self.pulsar.enabled else self.kafka.start
