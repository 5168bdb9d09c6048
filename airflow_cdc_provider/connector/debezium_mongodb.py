"""What becomes of the properties of Debezium's connector for MongoDB (3.6)."""

from __future__ import annotations

import json
import re
from typing import Final

from airflow_cdc_provider.connector.debezium_converters import VALUES_OR_CLOUD_EVENTS, take_schemas
from airflow_cdc_provider.connector.debezium_rules import (
    COMMON,
    CONNECTION,
    take_excluded,
    take_excluded_databases,
    take_included,
    take_included_databases,
)
from airflow_cdc_provider.connector.debezium_snapshots import snapshot_mode
from airflow_cdc_provider.connector.debezium_transforms import mongodb_transforms
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    choice,
    flag,
    left_out,
    name_option,
    number,
    option,
    read_elsewhere,
    refusal,
    refused,
    seconds,
    split_list,
    taken,
    wrong,
)
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.field_paths import wrong_exclusion, wrong_renaming
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced


def _snapshot_filters(draft: Draft, name: str, value: str) -> None:
    filters = {}
    for table in filter(None, (part.strip() for part in value.split(","))):
        text = draft.properties.get(f"{name}.{table}")
        if text is None:
            raise ConfigurationError(
                f"property {name}.{table} is missing", expected="the collection's filter"
            )
        filters[table] = text
    draft.set("snapshot.filters", filters)


def _match_mode(draft: Draft, name: str, value: str) -> None:
    if value.lower() not in ("regex", "literal"):
        raise wrong(name, "one of regex, literal", value)


def _fields(draft: Draft, name: str, value: str) -> None:
    """Take over MongoDB's fields to leave out or to rename."""
    entries = split_list(value)
    wrong_entry = wrong_renaming if name == "field.renames" else wrong_exclusion
    if expected := wrong_entry(entries):
        raise wrong(name, expected, value)
    path = "rename_fields" if name == "field.renames" else "exclude_fields"
    draft.set(f"publish.mongodb.{path}", entries)


def _signal_collection(draft: Draft, name: str, value: str) -> None:
    if value and not all(value.partition(".")):
        raise wrong(name, "database.collection", value)
    draft.set("signals.collection", value)


def _snapshot_include(draft: Draft, name: str, value: str) -> None:
    if patterns := draft.patterns(value):
        draft.set("snapshot.include", patterns)


def _start_moment(draft: Draft, name: str, value: str) -> None:
    """Take over a BSON timestamp as a long; Debezium's own default is -1, none."""
    if value in ("", "-1"):
        return
    if not re.fullmatch(r"[0-9]+", value) or int(value) < 1 << 32:
        raise wrong(name, "a BSON timestamp as one number, seconds * 4294967296 + increment, or -1", value)
    draft.set("source.start_at", value)


def _pipeline(draft: Draft, name: str, value: str) -> None:
    """Take over a JSON array of stages; the declaration looks at the stages themselves."""
    if not value:
        return
    try:
        stages = json.loads(value)
    except ValueError as error:
        raise wrong(name, f"a JSON array of aggregation stages ({error})", value[:80]) from None
    if not isinstance(stages, list):
        raise wrong(name, "a JSON array of aggregation stages", value[:80])
    draft.set("source.stream.pipeline", stages)


def _pipeline_order(draft: Draft, name: str, value: str) -> None:
    orders = ("internal_first", "user_first", "user_only")
    if value.lower() not in orders:
        raise wrong(name, f"one of {', '.join(orders)}", value)
    # Without stages the order says nothing, also to Debezium.
    if draft.properties.get("cursor.pipeline", "").strip():
        draft.set("source.stream.pipeline_order", value.lower())


def _oversize_threshold(draft: Draft, name: str, value: str) -> None:
    mode = draft.properties.get("cursor.oversize.handling.mode", "fail").strip().lower()
    if not re.fullmatch(r"[0-9]+", value) or (mode == "skip" and int(value) == 0):
        raise wrong(name, "a number of bytes, above 0 where the mode is skip", value)
    if mode == "skip":
        draft.set("source.stream.skip_over_bytes", int(value))


def _authentication(draft: Draft, name: str, value: str) -> None:
    if ":" in value:
        draft.set("source.authentication_class", value)
    elif value and value != "io.debezium.connector.mongodb.connection.DefaultMongoDbAuthProvider":
        raise refusal(
            name,
            value,
            "It is a Java class: write it as a Python class with the method credentials(hosts), and name "
            "that as package.module:Class",
        )


def _queue_size(draft: Draft, name: str, value: str) -> None:
    """Take over the size of the queue, and Debezium's size of a batch if that is what it was made for."""
    batch = draft.properties.get("max.batch.size", "").strip()
    if not re.fullmatch(r"[1-9][0-9]*", value):
        raise wrong(name, "a whole number above 0", value)
    if batch.isdigit() and int(value) <= int(batch):
        raise wrong(name, f"more than max.batch.size, {batch}", value)
    if not batch and int(value) <= MongodbAdvanced.batch_events:
        if int(value) <= _BATCH_EVENTS:
            raise wrong(name, f"more than max.batch.size, by default {_BATCH_EVENTS}", value)
        draft.set("source.advanced.batch_events", _BATCH_EVENTS)
    draft.set("source.advanced.read_ahead_events", int(value))


_BATCH_EVENTS: Final = 2048
"""Debezium's own max.batch.size."""

_STORES: Final = left_out(
    "it belongs into the extra of the Airflow connection, under its name without mongodb.: PKCS12, JKS and "
    "PEM are read"
)

_INVALIDATION: Final = left_out(
    "it is --allow-offset-invalidation of 'airflow cdc offsets import', which reads Debezium's offsets"
)

_CLOUD_EVENTS_IN_JSON: Final = "CloudEvents are written in JSON, with data in JSON"

MONGODB: Final[dict[str, Rule]] = {
    **COMMON,
    "mongodb.connection.string": CONNECTION,
    "mongodb.connection.mode": left_out("all shards are one stream"),
    "mongodb.user": CONNECTION,
    "mongodb.password": CONNECTION,
    "mongodb.authsource": CONNECTION,
    "mongodb.authentication.class": taken(
        "`source.authentication_class`, where it is a Python class (package.module:Class). Debezium's "
        "default takes the login of the Airflow connection; other Java classes are refused",
        _authentication,
    ),
    "mongodb.ssl.keystore*": _STORES,
    "mongodb.ssl.truststore*": _STORES,
    "mongodb.ssl.*": CONNECTION,
    "connection.validation.timeout.ms": number("source.advanced.validation_timeout_seconds", per=1000),
    "mongodb.hosts": CONNECTION,
    "mongodb.name": name_option("publish.topic_prefix"),
    "mongodb.connect.timeout.ms": number("source.advanced.connect_timeout_seconds", per=1000),
    "mongodb.server.selection.timeout.ms": CONNECTION,
    "mongodb.socket.timeout.ms": CONNECTION,
    "mongodb.heartbeat.frequency.ms": CONNECTION,
    "mongodb.poll.interval.ms": number("source.advanced.heartbeat_seconds", per=1000),
    "max.batch.size": number("source.advanced.batch_events"),
    "max.queue.size": taken("`source.advanced.read_ahead_events`; more than max.batch.size", _queue_size),
    "max.queue.size.in.bytes": number("source.advanced.read_ahead_bytes", default="0"),
    "poll.interval.ms": left_out(
        "no queue is polled: commit_interval_seconds of CdcStreamOperator paces its rounds, and sensors wait "
        "on the change stream itself"
    ),
    "connect.max.attempts": number("source.advanced.connect_attempts"),
    "connect.backoff.initial.delay.ms": number("source.advanced.connect_pause_seconds", per=1000),
    "connect.backoff.max.delay.ms": number("source.advanced.connect_longest_pause_seconds", per=1000),
    "filters.match.mode": taken("how names in lists are meant", _match_mode),
    "database.include.list": taken("`tables`", take_included_databases),
    "database.exclude.list": taken("`exclude_tables`", take_excluded_databases),
    "collection.include.list": taken("`tables`", take_included),
    "collection.exclude.list": taken("`exclude_tables`", take_excluded),
    "field.exclude.list": taken("`publish.mongodb.exclude_fields`", _fields),
    "field.renames": taken("`publish.mongodb.rename_fields`", _fields),
    "capture.mode": read_elsewhere("`source.full_document`, `source.pre_images`"),
    "capture.mode.full.update.type": read_elsewhere("`source.full_document`"),
    "capture.scope": choice(
        "source.scope", {"deployment": "deployment", "database": "database", "collection": "collection"}
    ),
    "capture.target": option("source.target"),
    "capture.start.op.time": taken("`source.start_at`; -1 for none", _start_moment),
    "cursor.pipeline": taken("`source.stream.pipeline`", _pipeline),
    "cursor.pipeline.order": taken("`source.stream.pipeline_order`", _pipeline_order),
    "cursor.oversize.handling.mode": choice(
        "source.stream.oversize", {"fail": "fail", "skip": "skip", "split": "split"}
    ),
    "cursor.oversize.skip.threshold": taken(
        "`source.stream.skip_over_bytes`, where the mode is skip", _oversize_threshold
    ),
    "cursor.max.await.time.ms": seconds("source.advanced.max_await_seconds"),
    "snapshot.mode": taken(
        "`snapshot.mode`; no_data is `never`; configuration_based becomes the mode that its flags amount to; "
        "custom with `snapshot.custom`",
        snapshot_mode,
    ),
    "snapshot.mode.configuration.based.*": read_elsewhere("with `snapshot.mode`"),
    "snapshot.mode.custom.name": read_elsewhere(
        "`snapshot.custom` with mode custom, a Python class (package.module:Class); Java classes are refused"
    ),
    "snapshot.locking.*": left_out("no locks are taken"),
    "snapshot.query.*": refused(
        "Queries of snapshots are Java classes; use `snapshot.filters` and `snapshot.include`, or the method "
        "query of a class for mode custom",
        "select_all",
    ),
    "snapshot.max.threads": left_out("Spark divides the work"),
    "snapshot.fetch.size": number("source.advanced.fetch_size", default="0"),
    "snapshot.include.collection.list": taken("`snapshot.include`", _snapshot_include),
    "signal.data.collection": taken("`signals.collection`", _signal_collection),
    "incremental.snapshot.watermarking.strategy": choice(
        "snapshot.incremental.watermarks",
        {"insert_insert": "insert_insert", "insert_delete": "insert_delete"},
    ),
    "snapshot.collection.filter.overrides": taken("`snapshot.filters`", _snapshot_filters),
    "snapshot.collection.filter.overrides.*": read_elsewhere("`snapshot.filters`"),
    "json.serialization.mode": choice(
        "publish.mongodb.json",
        {"legacy": "legacy", "strict": "strict", "extended": "extended", "relaxed": "relaxed"},
    ),
    "source.struct.version": refused("Only version 2 is written", "v2"),
    "change.event.key.mode": choice(
        "publish.mongodb.key", {"document_id": "id", "id": "id", "document_key": "document_key"}
    ),
    "skip.messages.without.change": flag("publish.skip_unchanged"),
    "provide.transaction.metadata": flag("publish.transactions"),
    "topic.transaction": name_option("publish.transaction_topic"),
    "value.converter": VALUES_OR_CLOUD_EVENTS,
    "value.converter.serializer.type": refused(_CLOUD_EVENTS_IN_JSON, "json"),
    "value.converter.data.serializer.type": refused(_CLOUD_EVENTS_IN_JSON, "json"),
    "value.converter.json.schemas.enable": taken("`publish.schemas`, for CloudEventsConverter", take_schemas),
    "value.converter.extension.attributes.enable": refused(
        "CloudEvents have their extension attributes", "true"
    ),
    "value.converter.metadata.source": refused(
        "Metadata of CloudEvents come from the event",
        "value,id:generate,type:generate,traceparent:header,dataSchemaName:generate",
        "value",
    ),
    "include.schema.changes": flag("publish.schema_changes"),
    "transforms": taken(
        "`publish.unwrap` for ExtractNewDocumentState, `publish.outbox` for MongoEventRouter, with their "
        "options; those of Kafka Connect are `publish.transforms`",
        mongodb_transforms,
    ),
    "transforms.*": read_elsewhere("with `transforms`"),
    "mongodb.allow.offset.invalidation": _INVALIDATION,
    "internal.mongodb.allow.offset.invalidation": _INVALIDATION,
    "startup.mode": refused("Set the start by `source.start_at`"),
}
