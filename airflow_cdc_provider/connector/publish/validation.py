"""Validation of combinations of publishing options.

Options of one target or source are validated in its module; here are the rules on options of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Final, Literal

from airflow_cdc_provider.connector.publish.cassandra import CassandraPublishOptions
from airflow_cdc_provider.connector.publish.kafka import KafkaOptions, validate_kafka_options
from airflow_cdc_provider.connector.publish.options import PublishOptions
from airflow_cdc_provider.connector.publish.registry import validate_registry_options
from airflow_cdc_provider.connector.publish.topics import TopicsOptions
from airflow_cdc_provider.custom_classes import IMPORT_PATH, invalid_import_path
from airflow_cdc_provider.events.transforms.shapes import Shape, validate_transforms
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.patterns import wrong_patterns

EventValues = Literal["cells", "documents", "rows"]
"""Values of a source's events in the default envelope."""


def validate_publish_options(publish: PublishOptions, values: EventValues) -> None:
    """Reject options without effect in the event format, and conflicting options.

    Args:
        publish: The options; the source supports them.
        values: Values of the source's events.

    Raises:
        ConfigurationError: Names the first problem.
    """
    validate_registry_options(publish.key, publish.value, publish.registry)
    _validate_formats(publish)
    _validate_envelope_options(publish)
    for name, settings in {**publish.cassandra.converters, **publish.vitess.converters}.items():
        _validate_converter(name, str(settings.get("type", "")), str(settings.get("columns", "")))
    validate_kafka_options(publish.kafka, envelope=publish.envelope, reread=publish.cassandra.reread)
    _validate_merged_rows(publish, values)
    _validate_slices(publish)
    _validate_pulsar_options(publish)
    validate_transforms(publish.transforms, _shape(publish, values))


def validate_static_columns(publish: PublishOptions, location: str) -> None:
    """Reject a separate table of static columns, whose rows would not be published.

    Args:
        publish: The options.
        location: Location of static columns (``lake.static_columns``).

    Raises:
        ConfigurationError: Static columns are in a separate table.
    """
    if publish.kafka.enabled and publish.kafka.after_merge and location != "rows":
        raise ConfigurationError(
            "publish.kafka.mode: after_merge requires static columns in the rows of mirrors",
            expected="lake.static_columns: rows",
            found=location,
            remedy="or publish.kafka.mode: changes",
        )


def _shape(publish: PublishOptions, values: EventValues) -> Shape:
    """Return the shape of values that transforms process."""
    if publish.envelope in ("document", "cloudevents"):
        return "text"
    if publish.envelope.startswith("datastax") and "avro" in (publish.key, publish.value):
        return "avro"
    if values == "cells":
        return "cells" if publish.envelope == "debezium" else "rows"
    return "rows" if publish.unwrap.enabled else values


def _differs(publish: PublishOptions, path: str) -> bool:
    """Return whether an option, or one of a group, isn't at its default."""
    option = attrgetter(path)
    return bool(option(publish) != option(PublishOptions()))


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
            "deletions",
            "ranges",
            "decimals",
            "varints",
            "frozen",
            "converters",
            "before",
            "order",
        ),
        "datastax-cells": ("key_in_value", "reread", "before"),
    }
    for name in names.get(publish.envelope, ("key_in_value", "reread", "ranges")):
        found = getattr(publish.cassandra, name)
        if found != getattr(CassandraPublishOptions(), name):
            raise ConfigurationError(
                f"option publish.cassandra.{name} has no effect in envelope {publish.envelope}",
                expected="its default, or another publish.envelope",
                found=found if isinstance(found, str) else "",  # a converter's settings may hold a salt
            )


def _validate_converter(name: str, function: str, columns: str) -> None:
    if wrong := wrong_patterns([columns]):
        raise ConfigurationError(
            f"the columns of converter {name} are not a valid expression", expected=wrong
        )
    if not columns:
        raise ConfigurationError(
            f"converter {name} has no columns", expected="an expression on keyspace.table.column"
        )
    if not function or invalid_import_path(function):
        raise ConfigurationError(
            f"invalid type of converter {name}", expected=IMPORT_PATH, found=repr(function)
        )


def _validate_merged_rows(publish: PublishOptions, values: EventValues) -> None:
    """Reject options that rows of mirrors don't support, if these are published.

    Args:
        publish: The options.
        values: Values of the source's events.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.kafka.enabled or not publish.kafka.after_merge:
        return
    clashes = [(path, reason) for path, reason in _NOT_MERGED.items() if _differs(publish, path)]
    if publish.envelope == "datastax" and publish.skipped_operations:
        clashes.append(("skipped_operations", "events of envelope datastax have no operation"))
    if publish.envelope == "cloudevents" and values != "documents":
        reason = "CloudEvents IDs identify changes, which a merge combines"
        clashes.insert(0, ("envelope: cloudevents", reason))
    for path, reason in clashes:
        option = f"publish.{path.removesuffix('.enabled')}"
        raise ConfigurationError(
            f"option {option} can't be combined with publish.kafka.mode: after_merge: {reason}",
            expected=f"no {option}",
            remedy="or publish.kafka.mode: changes",
        )


_NOT_MERGED: Final[Mapping[str, str]] = {
    "kafka.slices": "merged rows are published by one producer",
    "transactions": "a merge combines the changes of many transactions",
    "schema_changes": "mirrors contain only rows",
    "outbox.enabled": "each document of an outbox is an event, even if it is deleted before a merge",
    "skip_unchanged": "unchanged rows have no events after a merge, and events have no before",
    "cassandra.before": "rows before the merge are not published",
    "cassandra.order": "a merge produces one event per row",
    "cassandra.reread": "rows are read from the mirror",
    "mongodb.resume_token_header": "rows of a mirror have no position in the stream",
    "mongodb.resume_token_field": "rows of a mirror have no position in the stream",
    "scylla.preimages": "rows before the merge are not published",
    "scylla.before": "rows before the merge are not published",
    "scylla.after": "rows are complete without postimages",
    "scylla.collection_changes": "collections are complete",
    "scylla.source_details": "rows of a mirror have no position in the log",
    "vitess.key_columns": "rows of a mirror are identified by their primary key",
    "event_index": "a merge combines the events of many changes",
}
"""Options that require individual changes, and why."""


def _validate_slices(publish: PublishOptions) -> None:
    """Reject options that require a single slice if there are several.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.kafka.enabled or publish.kafka.slices == 1:
        return
    clashes = [(path, reason) for path, reason in _ONE_SLICE.items() if _differs(publish, path)]
    if publish.envelope == "datastax":
        clashes.append(("envelope: datastax", "rows are read again once per batch"))
    for path, reason in clashes:
        option = f"publish.{path.removesuffix('.enabled')}"
        option += ": write_time" if path == "cassandra.order" else ""
        raise ConfigurationError(
            f"option {option} requires a total order of events, which publish.kafka.slices doesn't keep: "
            f"{reason}",
            expected="publish.kafka.slices: 1",
            found=str(publish.kafka.slices),
            remedy=f"or remove {option}",
        )


_ONE_SLICE: Final[Mapping[str, str]] = {
    "transactions": "rows of a transaction would be in several slices",
    "schema_changes": "schema changes are ordered among the rows of all slices",
    "outbox.enabled": "documents of an aggregate would be in several slices",
    "cassandra.before": "rows are tracked across all batches",
    "cassandra.order": "all events of a command are sorted together",
}
"""Options that require a single slice, and why."""


def _validate_pulsar_options(publish: PublishOptions) -> None:
    """Reject options that Pulsar consumers don't support, or that have no effect.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.pulsar.enabled:
        return
    for name, expected, reason in _pulsar_clashes(publish):
        raise ConfigurationError(
            f"option {name} can't be combined with publish.pulsar: {reason}",
            expected=expected,
            remedy="or publish to Kafka (publish.kafka)",
        )


def _pulsar_clashes(publish: PublishOptions) -> Iterator[tuple[str, str, str]]:
    """Yield conflicting options, the expected value, and the reason."""
    if publish.kafka.enabled:
        yield "publish.kafka.connection", "one of the two", "a connector publishes to one target"
    elif publish.kafka != KafkaOptions():
        yield "publish.kafka", "its defaults", "they have no effect"
    if publish.envelope != "datastax":
        yield "publish.envelope", "datastax", "consumers of DataStax's topics expect this format"
    if (publish.key, publish.value) != ("avro", "avro"):
        yield "publish.key and publish.value", "avro", "topics have KeyValue schemas in Avro"
    if not publish.cassandra.reread:
        reason = "complete rows require the full history of changes, but merged batches are deleted"
        yield "publish.cassandra.reread", "true", reason
    if publish.cassandra.key_in_value:
        yield "publish.cassandra.key_in_value", "false", "the key is part of the message"
    if publish.registry.enabled:
        yield "publish.registry", "none", "Pulsar has its own schema registry"
    if publish.topic_pattern or publish.topic_naming:
        name = "publish.topic_pattern" if publish.topic_pattern else "publish.topic_naming"
        yield name, "publish.pulsar.topic_prefix", "topics are named <prefix><keyspace>.<table>"
    if publish.topics != TopicsOptions():
        yield (
            "publish.topics",
            "its default",
            "they apply to Kafka; Pulsar uses namespace policies",
        )
    if publish.heartbeat_interval_seconds:
        yield "publish.heartbeat_interval_seconds", "0", "consumers don't expect heartbeats"
