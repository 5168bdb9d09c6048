"""Rules for the properties of Debezium's connector for MongoDB (3.6)."""

from __future__ import annotations

import json
from typing import Final

from airflow_cdc_provider.events.field_paths import wrong_exclusion, wrong_renaming
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.all_connectors import (
    COMMON,
    CONNECTION,
    OLD_PREFIX,
    SNAPSHOT_INCLUDE,
    exclude_databases,
    exclude_tables,
    include_databases,
    include_tables,
)
from airflow_cdc_provider.migration.debezium.converters import CLOUD_EVENTS
from airflow_cdc_provider.migration.debezium.mongodb_transforms import mongodb_transforms
from airflow_cdc_provider.migration.debezium.snapshots import snapshot_mode
from airflow_cdc_provider.migration.rules import Draft, Rule
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
        raise rules.invalid(name, "one of regex, literal", value)


def _fields(draft: Draft, name: str, value: str) -> None:
    """Import fields to exclude or rename."""
    entries = rules.split_list(value)
    wrong_entry = wrong_renaming if name == "field.renames" else wrong_exclusion
    if expected := wrong_entry(entries):
        raise rules.invalid(name, expected, value)
    path = "rename_fields" if name == "field.renames" else "exclude_fields"
    draft.set(f"publish.mongodb.{path}", entries)


def _signal_collection(draft: Draft, name: str, value: str) -> None:
    if value and not all(value.partition(".")):
        raise rules.invalid(name, "database.collection", value)
    draft.set("signals.collection", value)


def _watermarks(draft: Draft, name: str, value: str) -> None:
    """Import the strategy; without a collection for watermarks it has no effect, in Debezium either."""
    if value.lower() not in ("insert_insert", "insert_delete"):
        raise rules.invalid(name, "one of insert_insert, insert_delete", value)
    if draft.properties.get("signal.data.collection", "").strip():
        draft.set("snapshot.incremental.watermarks", value.lower())
    else:
        draft.notes.append(f"property {name} is ignored: it has no effect without signal.data.collection")


def _start_moment(draft: Draft, name: str, value: str) -> None:
    """Import a BSON timestamp as a long; Debezium's default -1 means none."""
    if value in ("", "-1"):
        return
    if rules.integer(name, value) < 1 << 32:
        raise rules.invalid(
            name, "a BSON timestamp as one number, seconds * 4294967296 + increment, or -1", value
        )
    draft.set("source.start_at", value)


def _pipeline(draft: Draft, name: str, value: str) -> None:
    """Import a JSON array of stages; the declaration validates the stages."""
    if not value:
        return
    try:
        stages = json.loads(value)
    except ValueError as error:
        raise rules.invalid(name, f"a JSON array of aggregation stages ({error})", value[:80]) from None
    if not isinstance(stages, list):
        raise rules.invalid(name, "a JSON array of aggregation stages", value[:80])
    draft.set("source.stream.pipeline", stages)


def _pipeline_order(draft: Draft, name: str, value: str) -> None:
    orders = ("internal_first", "user_first", "user_only")
    if value.lower() not in orders:
        raise rules.invalid(name, f"one of {', '.join(orders)}", value)
    # The order has no effect without stages, in Debezium either.
    if draft.properties.get("cursor.pipeline", "").strip():
        draft.set("source.stream.pipeline_order", value.lower())


def _oversize_threshold(draft: Draft, name: str, value: str) -> None:
    mode = draft.properties.get("cursor.oversize.handling.mode", "fail").strip().lower()
    size = rules.integer(name, value, minimum=int(mode == "skip"))
    if mode == "skip":
        draft.set("source.stream.skip_threshold_bytes", size)


def _authentication(draft: Draft, name: str, value: str) -> None:
    if ":" in value:
        draft.set("source.authentication_class", value)
    elif value and value.rpartition(".")[2] != "DefaultMongoDbAuthProvider":
        raise rules.unsupported_error(
            name,
            value,
            "It is a Java class: implement it as a Python class with the method credentials(hosts), and set "
            "package.module:Class",
        )


def _queue_size(draft: Draft, name: str, value: str) -> None:
    """Import the queue size, and Debezium's default batch size if the queue is smaller than ours."""
    batch = draft.properties.get("max.batch.size", "").strip()
    least = rules.integer("max.batch.size", batch or str(_BATCH_EVENTS))
    size = rules.integer(name, value)
    if size <= least:
        raise rules.invalid(name, f"more than max.batch.size, {least}", value)
    if not batch and size <= MongodbAdvanced.batch_events:
        draft.set("source.advanced.batch_events", _BATCH_EVENTS)
    draft.set("source.advanced.read_ahead_events", size)


_BATCH_EVENTS: Final = 2048
"""Debezium's own max.batch.size."""

_STORES: Final = rules.ignored(
    "it belongs in the extra of the Airflow connection, named without mongodb.; formats: PKCS12, JKS, PEM"
)

_INVALIDATION: Final = rules.ignored(
    "use --allow-offset-invalidation of 'airflow cdc offsets import', which reads Debezium's offsets"
)

MONGODB: Final[dict[str, Rule]] = {
    **COMMON,
    "mongodb.connection.string": CONNECTION,
    "mongodb.connection.mode": rules.ignored("one change stream covers all shards"),
    "mongodb.user": CONNECTION,
    "mongodb.password": CONNECTION,
    "mongodb.authsource": CONNECTION,
    "mongodb.authentication.class": rules.custom_rule(
        "`source.authentication_class`, for a Python class (package.module:Class). Debezium's default "
        "uses the credentials of the Airflow connection; other Java classes are not supported",
        _authentication,
    ),
    "mongodb.ssl.keystore*": _STORES,
    "mongodb.ssl.truststore*": _STORES,
    "mongodb.ssl.*": CONNECTION,
    "connection.validation.timeout.ms": rules.number("source.advanced.validation_timeout_seconds", per=1000),
    "mongodb.hosts": CONNECTION,
    "mongodb.name": OLD_PREFIX,
    "mongodb.connect.timeout.ms": rules.number("source.advanced.connect_timeout_seconds", per=1000),
    "mongodb.server.selection.timeout.ms": CONNECTION,
    "mongodb.socket.timeout.ms": CONNECTION,
    "mongodb.heartbeat.frequency.ms": CONNECTION,
    "mongodb.poll.interval.ms": rules.number("source.advanced.heartbeat_seconds", per=1000),
    "max.batch.size": rules.number("source.advanced.batch_events"),
    "max.queue.size": rules.custom_rule(
        "`source.advanced.read_ahead_events`; more than max.batch.size", _queue_size
    ),
    "max.queue.size.in.bytes": rules.number("source.advanced.read_ahead_bytes", default="0"),
    "poll.interval.ms": rules.ignored(
        "no queue is polled: use commit_interval_seconds of CdcStreamOperator; sensors wait on the change "
        "stream"
    ),
    "connect.max.attempts": rules.number("source.advanced.connect_attempts"),
    "connect.backoff.initial.delay.ms": rules.number("source.advanced.connect_backoff_seconds", per=1000),
    "connect.backoff.max.delay.ms": rules.number("source.advanced.connect_max_backoff_seconds", per=1000),
    "filters.match.mode": rules.custom_rule("how names in lists are matched", _match_mode),
    "database.include.list": rules.custom_rule("`tables`", include_databases),
    "database.exclude.list": rules.custom_rule("`exclude_tables`", exclude_databases),
    "collection.include.list": rules.custom_rule("`tables`", include_tables),
    "collection.exclude.list": rules.custom_rule("`exclude_tables`", exclude_tables),
    "field.exclude.list": rules.custom_rule("`publish.mongodb.exclude_fields`", _fields),
    "field.renames": rules.custom_rule("`publish.mongodb.rename_fields`", _fields),
    "capture.mode": rules.handled_elsewhere("`source.full_document`, `source.pre_images`"),
    "capture.mode.full.update.type": rules.handled_elsewhere("`source.full_document`"),
    "capture.scope": rules.choice(
        "source.scope", {"deployment": "deployment", "database": "database", "collection": "collection"}
    ),
    "capture.target": rules.option("source.target"),
    "capture.start.op.time": rules.custom_rule("`source.start_at`; -1 for none", _start_moment),
    "cursor.pipeline": rules.custom_rule("`source.stream.pipeline`", _pipeline),
    "cursor.pipeline.order": rules.custom_rule("`source.stream.pipeline_order`", _pipeline_order),
    "cursor.oversize.handling.mode": rules.choice(
        "source.stream.oversize", {"fail": "fail", "skip": "skip", "split": "split"}
    ),
    "cursor.oversize.skip.threshold": rules.custom_rule(
        "`source.stream.skip_threshold_bytes`, with mode skip", _oversize_threshold
    ),
    "cursor.max.await.time.ms": rules.seconds("source.advanced.max_await_seconds"),
    "snapshot.mode": rules.custom_rule(
        "`snapshot.mode`; no_data is `never`; configuration_based becomes the mode that its flags describe; "
        "custom with `snapshot.custom`",
        snapshot_mode,
    ),
    "snapshot.mode.configuration.based.*": rules.handled_elsewhere("with `snapshot.mode`"),
    "snapshot.mode.custom.name": rules.handled_elsewhere(
        "`snapshot.custom` with mode custom: a Python class (package.module:Class); Java classes are not "
        "supported"
    ),
    "snapshot.locking.*": rules.ignored("snapshots take no locks"),
    "snapshot.query.*": rules.unsupported(
        "Snapshot queries are Java classes; use `snapshot.filters` and `snapshot.include`, or method query "
        "of a custom snapshotter",
        "select_all",
    ),
    "snapshot.max.threads": rules.ignored("Spark distributes the work"),
    "snapshot.fetch.size": rules.number("source.advanced.fetch_size", default="0"),
    "snapshot.include.collection.list": SNAPSHOT_INCLUDE,
    "signal.data.collection": rules.custom_rule("`signals.collection`", _signal_collection),
    "incremental.snapshot.chunk.size": rules.number("snapshot.incremental.chunk_size"),
    "incremental.snapshot.watermarking.strategy": rules.custom_rule(
        "`snapshot.incremental.watermarks`, with signal.data.collection", _watermarks
    ),
    "snapshot.collection.filter.overrides": rules.custom_rule("`snapshot.filters`", _snapshot_filters),
    "snapshot.collection.filter.overrides.*": rules.handled_elsewhere("`snapshot.filters`"),
    "json.serialization.mode": rules.choice(
        "publish.mongodb.json",
        {"legacy": "legacy", "strict": "strict", "extended": "extended", "relaxed": "relaxed"},
    ),
    "source.struct.version": rules.unsupported("Only version 2 is written", "v2"),
    "change.event.key.mode": rules.choice(
        "publish.mongodb.key", {"document_id": "id", "id": "id", "document_key": "document_key"}
    ),
    "skip.messages.without.change": rules.flag("publish.skip_unchanged"),
    "provide.transaction.metadata": rules.flag("publish.transactions"),
    "topic.transaction": rules.name_option("publish.transaction_topic"),
    **CLOUD_EVENTS,
    "include.schema.changes": rules.flag("publish.schema_changes"),
    "transforms": rules.custom_rule(
        "`publish.unwrap` for ExtractNewDocumentState, `publish.outbox` for MongoEventRouter, with their "
        "options; `publish.transforms` for transforms of Kafka Connect",
        mongodb_transforms,
    ),
    "transforms.*": rules.handled_elsewhere("with `transforms`"),
    "mongodb.allow.offset.invalidation": _INVALIDATION,
    "internal.mongodb.allow.offset.invalidation": _INVALIDATION,
    "startup.mode": rules.unsupported("Use `source.start_at`"),
}
