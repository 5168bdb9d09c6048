"""Debezium's properties, and what becomes of each: the tables behind :mod:`.debezium`.

Names and defaults: Debezium 3.6 (MongoDB, Cassandra), and what its page for Cassandra named before 3.0.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from airflow_cdc_provider.connector.debezium_snapshots import snapshot_mode
from airflow_cdc_provider.connector.debezium_topics import topic_naming
from airflow_cdc_provider.connector.debezium_transforms import mongodb_transforms
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    boolean,
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
from airflow_cdc_provider.yaml_file import read_yaml

_JSON_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"
_AVRO_CONVERTER: Final = "io.confluent.connect.avro.AvroConverter"
_CLOUD_EVENTS_CONVERTER: Final = "io.debezium.converters.CloudEventsConverter"
_CASSANDRA_PACKAGE: Final = "io.debezium.connector.cassandra"
_CONSISTENCIES: Final = (
    "any",
    "one",
    "two",
    "three",
    "quorum",
    "all",
    "local_quorum",
    "each_quorum",
    "serial",
    "local_serial",
    "local_one",
    "node_local",
)


def _include(draft: Draft, name: str, value: str) -> None:
    draft.include += draft.patterns(value)


def _exclude(draft: Draft, name: str, value: str) -> None:
    draft.exclude += draft.patterns(value)


def _include_databases(draft: Draft, name: str, value: str) -> None:
    draft.databases += draft.patterns(value)


def _exclude_databases(draft: Draft, name: str, value: str) -> None:
    if draft.properties.get("database.include.list"):
        raise ConfigurationError("properties exclude each other", found="database.include.list and " + name)
    draft.excluded_databases += draft.patterns(value)


def _schemas(draft: Draft, name: str, value: str) -> None:
    other = "value" if name.startswith("key") else "key"
    rest = draft.properties.get(f"{other}.converter.schemas.enable", value).strip()
    if boolean(name, value) != boolean(f"{other}.converter.schemas.enable", rest):
        raise refusal(name, value, "Keys and values are written alike: with schemas or without")
    draft.set("publish.schemas", boolean(name, value))


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


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,20}", value):
        raise wrong(name, "letters, digits, . _ and -", value)
    draft.set("publish.topic_delimiter", value)


def _metric_tags(draft: Draft, name: str, value: str) -> None:
    tags = dict(part.partition("=")[::2] for part in split_list(value))
    if not all(tags.values()):
        raise wrong(name, "k1=v1,k2=v2", value)
    draft.set("metric_tags", {key.strip(): text.strip() for key, text in tags.items()})


def _converter(draft: Draft, name: str, value: str) -> None:
    side = name.partition(".")[0]
    kinds = {_JSON_CONVERTER: "json", _AVRO_CONVERTER: "avro"}
    if side == "value" and draft.type == "mongodb" and value == _CLOUD_EVENTS_CONVERTER:
        draft.set("publish.envelope", "cloudevents")
        if f"{name}.json.schemas.enable" not in draft.properties:
            draft.notes.append(
                f"property {name}.json.schemas.enable isn't set: data of CloudEvents are written without "
                "schemas, Debezium's own default is with them; set it to true for those"
            )
        return
    if value not in kinds:
        raise refusal(name, value, "JsonConverter and AvroConverter are offered")
    draft.set(f"publish.{side}", kinds[value])


def _own_converters(draft: Draft, name: str, value: str) -> None:
    """Take over converters whose type is a function that can be called from here."""
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
    if converters:
        draft.set("publish.cassandra.converters", converters)


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Follow the one transformation that Debezium's Cassandra connector brings."""
    for transform in split_list(value):
        kind = draft.properties.get(f"transforms.{transform}.type", "").strip()
        if kind != f"{_CASSANDRA_PACKAGE}.transforms.EnvelopeTransformation":
            raise refusal(name, kind or transform, "Only EnvelopeTransformation is followed")
        draft.set("publish.cassandra.operations", "common")


def _cassandra_yaml(draft: Draft, name: str, value: str) -> None:
    """Take what capture needs from the node's configuration, if it is here."""
    file = Path(value)
    if not file.is_file():
        draft.notes.append(f"property {name} is left out: there is no {value} on this machine")
        return
    node = read_yaml(file)
    if not isinstance(node, dict):
        raise wrong(name, "a cassandra.yaml", value)
    if node.get("cdc_enabled") is not True:
        raise ConfigurationError(
            f"{value} doesn't turn on CDC", expected="cdc_enabled: true", found=str(node.get("cdc_enabled"))
        )
    if node.get("cdc_raw_directory") and draft.get("source.cdc_raw") is None:
        draft.set("source.cdc_raw", str(node["cdc_raw_directory"]))
    if node.get("cluster_name") and "cassandra.cluster.name" not in draft.properties:
        draft.set("source.cluster", str(node["cluster_name"]))


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in split_list(value) if kind != "none"]
    if not set(kinds) <= {"c", "u", "d", "t", "r", "i"}:
        raise wrong(name, "some of c, u, d, t, or none", value)
    draft.set("publish.skipped_operations", kinds)


def _excluded(draft: Draft, name: str, value: str) -> None:
    columns = split_list(value)
    for column in columns:
        if len(column.split(".")) < 3:
            raise wrong(name, "keyspace.table.column each", column)
    draft.set("publish.exclude_columns", columns)


def _heartbeat_topic(draft: Draft, name: str, value: str) -> None:
    if value and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise wrong(name, "letters, digits, . _ and -", value)
    draft.set("publish.heartbeat_topic", value)


def _fields(draft: Draft, name: str, value: str) -> None:
    """Take over MongoDB's fields to leave out or to rename."""
    entries = split_list(value)
    wrong_entry = wrong_renaming if name == "field.renames" else wrong_exclusion
    if expected := wrong_entry(entries):
        raise wrong(name, expected, value)
    path = "rename_fields" if name == "field.renames" else "exclude_fields"
    draft.set(f"publish.mongodb.{path}", entries)


def _sanitize(draft: Draft, name: str, value: str) -> None:
    draft.set("publish.field_names", "avro" if boolean(name, value) else "none")


def _signal_collection(draft: Draft, name: str, value: str) -> None:
    if value and not all(value.partition(".")):
        raise wrong(name, "database.collection", value)
    draft.set("signals.collection", value)


def _channels(draft: Draft, name: str, value: str) -> None:
    """Take over channels; what Debezium's users do over JMX is done through Airflow."""
    channels = []
    for channel in split_list(value):
        if channel in ("source", "file"):
            channels.append(channel)
        elif channel == "jmx":
            draft.notes.append(
                f"property {name}: jmx is channel airflow, CdcSignalOperator and airflow cdc signal"
            )
        elif channel == "kafka":
            raise refusal(name, value, "Signals are not read from Kafka yet; use file, airflow or source")
        else:
            raise refusal(
                name, value, "Channels of your own are Python classes: name them in signals.channels"
            )
    draft.set("signals.channels", [*channels, "airflow"])


def _consistency(draft: Draft, name: str, value: str) -> None:
    if value.lower() not in _CONSISTENCIES:
        raise wrong(name, f"one of {', '.join(_CONSISTENCIES).upper()}", value)
    draft.set("source.consistency", value.upper())


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


def _notification_function(draft: Draft, name: str, value: str) -> None:
    if "callback" not in split_list(draft.properties.get("notification.enabled.channels", "")):
        raise refusal(name, value, "Name callback in notification.enabled.channels too")
    if not re.fullmatch(r"[\w.]+:\w+", value):
        raise wrong(name, "package.module:function", value)
    draft.set("notifications.callback", value)


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


def _notification_channels(draft: Draft, name: str, value: str) -> None:
    """Take over Debezium's channels; what a JMX console shows there, the task shows here."""
    known = {"log": "log", "jmx": "airflow", "callback": "callback"}
    channels = split_list(value)
    for channel in channels:
        if channel == "sink":
            raise refusal(
                name, channel, "Notifications are not sent to topics; channel table keeps them in the lake"
            )
        if channel not in known:
            raise refusal(
                name,
                channel,
                f"Channels of one's own are Java classes: name {', '.join(known)}; callback calls a Python "
                "function, notification.callback.function",
            )
    if channels:
        draft.set("notifications.channels", [known[channel] for channel in channels])


_BATCH_EVENTS: Final = 2048
"""Debezium's own max.batch.size."""
_CONNECTION: Final = left_out("it belongs into the Airflow connection that source.conn_id names")
_STORES: Final = left_out(
    "it belongs into the extra of the Airflow connection, under its name without mongodb.: PKCS12, JKS and "
    "PEM are read"
)
_PROCESS: Final = left_out("it sizes or paces Debezium's own process; here Spark's batches do")
_STATE: Final = left_out("positions are kept in the lake, in the commit of their data")
_INVALIDATION: Final = left_out(
    "it is --allow-offset-invalidation of 'airflow cdc offsets import', which reads Debezium's offsets"
)
_PRODUCER: Final = left_out("it belongs into the Kafka connection")
_REGISTRY: Final = left_out("it belongs to the connection of the registry")
_ADJUSTMENTS: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}
_CLOUD_EVENTS_IN_JSON: Final = "CloudEvents are written in JSON, with data in JSON"
_NO_TRANSFORMS: Final = refused("There are no transforms; shape events downstream")
_NOTIFICATION_TOPIC: Final = refused(
    "Notifications are not sent to topics; channel table keeps them in the lake"
)
_NO_KAFKA_SIGNALS: Final = refused("Signals are not read from Kafka yet; use channel file, airflow or source")

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
    "topic.cache.size": _PROCESS,
    "topic.heartbeat.prefix": left_out("heartbeats are not sent"),
    "topic.heartbeat.name": left_out("heartbeats are not sent"),
    "heartbeat.interval.ms": refused("Heartbeats are not sent; the offset advances with each commit", "0"),
    "heartbeat.action.query": refused("Heartbeats are not sent"),
    "tombstones.on.delete": flag("publish.tombstones"),
    "extended.headers.enabled": flag("publish.headers"),
    "key.converter": taken("`publish.key`: JsonConverter or AvroConverter", _converter),
    "value.converter": taken("`publish.value`: JsonConverter or AvroConverter", _converter),
    "key.converter.schemas.enable": taken("`publish.schemas`", _schemas),
    "value.converter.schemas.enable": taken("`publish.schemas`", _schemas),
    "key.converter.schema.registry.*": _REGISTRY,
    "value.converter.schema.registry.*": _REGISTRY,
    "key.converter.basic.auth.*": _REGISTRY,
    "value.converter.basic.auth.*": _REGISTRY,
    "key.converter.*": refused("Options of converters but schemas.enable are not known"),
    "value.converter.*": refused("Options of converters but schemas.enable are not known"),
    "converters": refused("Custom converters are Java classes"),
    "transforms": _NO_TRANSFORMS,
    "transforms.*": _NO_TRANSFORMS,
    "predicates": _NO_TRANSFORMS,
    "predicates.*": _NO_TRANSFORMS,
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
    "max.batch.size": _PROCESS,
    "max.queue.size": _PROCESS,
    "max.queue.size.in.bytes": _PROCESS,
    "poll.interval.ms": _PROCESS,
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
    "signal.data.collection": refused("Signals come by channel `file` or `airflow`, not in Cassandra's log"),
    "signal.enabled.channels": taken(
        "`signals.channels`, with `airflow` besides, which also stands for jmx; kafka is refused", _channels
    ),
    "signal.poll.interval.ms": seconds("signals.poll_interval_seconds"),
    "signal.file": option("signals.file"),
    "signal.kafka.*": _NO_KAFKA_SIGNALS,
    "signal.consumer.*": _NO_KAFKA_SIGNALS,
    "notification.enabled.channels": taken(
        "`notifications.channels`: log as it is, jmx becomes `airflow`; callback with "
        "`notification.callback.function`; sink is refused",
        _notification_channels,
    ),
    "notification.callback.function": taken("`notifications.callback`", _notification_function),
    "notification.sink.topic.name": _NOTIFICATION_TOPIC,
    "incremental.snapshot.chunk.size": number("snapshot.incremental.chunk_size"),
    "incremental.snapshot.watermarking.strategy": left_out("no marks are needed"),
    "incremental.snapshot.*": left_out("there is nothing to choose: chunks go by the primary key"),
    "read.only": left_out("nothing is written to the source, unless snapshot.incremental.watermarks asks"),
    "guardrail.collections.max": number("guardrail.max_tables"),
    "guardrail.collections.limit.action": choice("guardrail.action", {"warn": "warn", "fail": "fail"}),
    "connection.validation.timeout.ms": _PROCESS,
    "executor.shutdown.timeout.ms": _PROCESS,
    "openlineage.integration.*": left_out("lineage is Airflow's"),
    "offset.storage": _STATE,
    "offset.storage.*": _STATE,
    "offset.flush.interval.ms": left_out(
        "positions are kept in the lake, in the commit of their data: commit_interval_seconds of "
        "CdcStreamOperator is the interval"
    ),
    "offset.flush.*": _STATE,
    "internal.*": refused("Debezium's internal switches have no counterpart"),
    "producer.*": _PRODUCER,
    "bootstrap.servers": _PRODUCER,
}

MONGODB: Final[dict[str, Rule]] = {
    **COMMON,
    "mongodb.connection.string": _CONNECTION,
    "mongodb.connection.mode": left_out("all shards are one stream"),
    "mongodb.user": _CONNECTION,
    "mongodb.password": _CONNECTION,
    "mongodb.authsource": _CONNECTION,
    "mongodb.authentication.class": taken(
        "`source.authentication_class`, where it is a Python class (package.module:Class). Debezium's "
        "default takes the login of the Airflow connection; other Java classes are refused",
        _authentication,
    ),
    "mongodb.ssl.keystore*": _STORES,
    "mongodb.ssl.truststore*": _STORES,
    "mongodb.ssl.*": _CONNECTION,
    "connection.validation.timeout.ms": number("source.advanced.validation_timeout_seconds", per=1000),
    "mongodb.hosts": _CONNECTION,
    "mongodb.name": name_option("publish.topic_prefix"),
    "mongodb.connect.timeout.ms": number("source.advanced.connect_timeout_seconds", per=1000),
    "mongodb.server.selection.timeout.ms": _CONNECTION,
    "mongodb.socket.timeout.ms": _CONNECTION,
    "mongodb.heartbeat.frequency.ms": _CONNECTION,
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
    "database.include.list": taken("`tables`", _include_databases),
    "database.exclude.list": taken("`exclude_tables`", _exclude_databases),
    "collection.include.list": taken("`tables`", _include),
    "collection.exclude.list": taken("`exclude_tables`", _exclude),
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
    "value.converter": taken(
        "`publish.value`: JsonConverter or AvroConverter; `publish.envelope: cloudevents` for "
        "CloudEventsConverter",
        _converter,
    ),
    "value.converter.serializer.type": refused(_CLOUD_EVENTS_IN_JSON, "json"),
    "value.converter.data.serializer.type": refused(_CLOUD_EVENTS_IN_JSON, "json"),
    "value.converter.json.schemas.enable": taken("`publish.schemas`, for CloudEventsConverter", _schemas),
    "value.converter.extension.attributes.enable": refused(
        "CloudEvents have their extension attributes", "true"
    ),
    "value.converter.metadata.source": refused(
        "Metadata of CloudEvents come from the event",
        "value,id:generate,type:generate,traceparent:header,dataSchemaName:generate",
        "value",
    ),
    "include.schema.changes": flag("publish.schema_changes"),
    "topic.heartbeat.prefix": name_option("publish.heartbeat_prefix"),
    "topic.heartbeat.name": taken("`publish.heartbeat_topic`", _heartbeat_topic),
    "transforms": taken(
        "`publish.unwrap` for ExtractNewDocumentState, `publish.outbox` for MongoEventRouter, with their "
        "options; others are refused",
        mongodb_transforms,
    ),
    "transforms.*": read_elsewhere("with `transforms`"),
    "mongodb.allow.offset.invalidation": _INVALIDATION,
    "internal.mongodb.allow.offset.invalidation": _INVALIDATION,
    "startup.mode": refused("Set the start by `source.start_at`"),
}

CASSANDRA: Final[dict[str, Rule]] = {
    **COMMON,
    "connector.name": name_option("name"),
    "kafka.topic.prefix": name_option("publish.topic_prefix"),
    "converters": taken(
        "`publish.cassandra.converters`, with `<name>.type`, a Python function (Java classes are refused), "
        "`<name>.columns` and all other `<name>.*`",
        _own_converters,
    ),
    "kafka.producer.*": _PRODUCER,
    "kafka.consumer.*": _PRODUCER,
    "transforms": taken(
        "`publish.cassandra.operations: common` for EnvelopeTransformation; others are refused", _transforms
    ),
    "transforms.*": read_elsewhere("with `transforms`"),
    "snapshot.mode": choice(
        "snapshot.mode", {"initial": "initial", "always": "initial", "never": "never", "no_data": "never"}
    ),
    "snapshot.consistency": taken("`source.consistency`, every level of CQL", _consistency),
    "snapshot.scan.interval.ms": left_out("each run looks for new tables"),
    "snapshot.fetch.size": _PROCESS,
    "snapshot.max.threads": left_out("Spark divides the work"),
    "http.port": left_out("CdcHealthOperator tells of reader and source"),
    "cassandra.config": taken(
        "`source.cdc_raw` and `source.cluster`, if the file is here and turns on CDC", _cassandra_yaml
    ),
    "cassandra.node.id": option("source.node"),
    "cassandra.hosts": _CONNECTION,
    "cassandra.port": _CONNECTION,
    "cassandra.username": _CONNECTION,
    "cassandra.password": _CONNECTION,
    "cassandra.ssl.enabled": _CONNECTION,
    "cassandra.ssl.config.path": left_out(
        "name the same file as tls_config_file in the extra of the Airflow connection"
    ),
    "cassandra.driver.config.file": option("source.driver_config_file"),
    "cassandra.driver.*": _CONNECTION,
    "cassandra.cluster.name": option("source.cluster"),
    "cdc.dir.poll.interval.ms": left_out("the sensor's poke interval or the DAG's schedule does it"),
    "schema.refresh.interval.ms": left_out("the log itself tells when a schema changes"),
    "commit.log.relocation.dir": left_out("it is CommitLogTransferOperator's landing folder"),
    "commit.log.relocation.dir.poll.interval.ms": left_out("the DAG's schedule says when to transfer"),
    "commit.log.post.processing.enabled": left_out("it is after_commit of CommitLogTransferOperator"),
    "commit.log.transfer.class": left_out("it is transfer_class of CommitLogTransferOperator"),
    "commit.log.transfer.*": left_out("it configures a Java class"),
    "commit.log.error.reprocessing.enabled": left_out("it is retry_errors of CommitLogTransferOperator"),
    "commit.log.real.time.processing.enabled": left_out("open segments are always read up to their idx"),
    "commit.log.marked.complete.poll.interval": _PROCESS,
    "commit.log.marked.complete.poll.interval.ms": _PROCESS,
    "commit.log.processor.shutdown.timeout.seconds": _PROCESS,
    "poll.dispatch.interval.ms": _PROCESS,
    "latest.commit.log.only": flag("source.advanced.latest_segment_only"),
    "offset.backing.store.dir": _STATE,
    "max.offset.flush.size": _STATE,
    "num.of.change.event.queues": _PROCESS,
    "event.order.guarantee.mode": choice(
        "publish.cassandra.order", {"commitlog_file": "log", "partition_values": "write_time"}
    ),
    "decimal.handling.mode": choice(
        "publish.cassandra.decimals", {"double": "double", "precise": "precise", "string": "string"}
    ),
    "varint.handling.mode": choice(
        "publish.cassandra.varints", {"long": "long", "precise": "precise", "string": "string"}
    ),
    "field.exclude.list": taken("`publish.exclude_columns`", _excluded),
    "sourceinfo.struct.maker": refused(
        "The source block is chosen by `publish.cassandra.source`",
        f"{_CASSANDRA_PACKAGE}.CassandraSourceInfoStructMaker",
    ),
    "tracing.enabled": refused("Spans are not made yet", "false"),
    "table.include.list": taken("`tables`", _include),
    "table.exclude.list": taken("`exclude_tables`", _exclude),
    "keyspace.include.list": taken("`tables`", _include_databases),
    "keyspace.exclude.list": taken("`exclude_tables`", _exclude_databases),
}
