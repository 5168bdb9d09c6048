"""Rules for the properties of Debezium's connector for Vitess (2.0 to 3.7)."""

from __future__ import annotations

import json
import re
from typing import Final

from airflow_cdc_provider.connector.publish.vitess import split_expressions
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.all_connectors import (
    COMMON,
    CONNECTION,
    OLD_PREFIX,
    PROCESS,
    SNAPSHOT_INCLUDE,
    STATE,
    custom_converters,
    exclude_tables,
    include_tables,
)
from airflow_cdc_provider.migration.debezium.converters import CLOUD_EVENTS
from airflow_cdc_provider.migration.debezium.snapshots import snapshot_mode
from airflow_cdc_provider.migration.debezium.topic_naming import topic_naming
from airflow_cdc_provider.migration.debezium.transforms import import_each, import_transform, reject_misplaced
from airflow_cdc_provider.migration.rules import Draft, Rule
from airflow_cdc_provider.sources.vitess.gtid import CURRENT

_PACKAGE: Final = "io.debezium.connector.vitess"
_ORDERED: Final = f"{_PACKAGE}.pipeline.txmetadata.VitessOrderedTransactionMetadataFactory"
_DEFAULT_FACTORY: Final = "io.debezium.pipeline.txmetadata.DefaultTransactionMetadataFactory"
_LOCAL_VGTID: Final = f"{_PACKAGE}.transforms.UseLocalVgtid"
_NO_TRANSACTION_RECORDS: Final = f"{_PACKAGE}.transforms.FilterTransactionTopicRecords"
_REMOVE_FIELD: Final = f"{_PACKAGE}.transforms.RemoveField"
_REPLACE_VALUE: Final = f"{_PACKAGE}.transforms.ReplaceFieldValue"

_EXTRA: Final = "it belongs in the extra of the Airflow connection, as"


def _shards(draft: Draft, name: str, value: str) -> None:
    draft.set("source.shards", rules.split_list(value))


def _gtid(draft: Draft, name: str, value: str) -> None:
    """Import the start position of one shard, an old form of ``vitess.vgtid``, or a VGTID."""
    if value.lower() in ("", CURRENT):
        return
    if value.startswith("["):
        _vgtid(draft, name, value)
        return
    shards = rules.split_list(draft.properties.get("vitess.shard", ""))
    if len(shards) != 1:
        raise rules.invalid(name, "vitess.shard with exactly one shard", value)
    keyspace = draft.properties.get("vitess.keyspace", "").strip()
    draft.set("source.start_at", json.dumps([{"keyspace": keyspace, "shard": shards[0], "gtid": value}]))


def _vgtid(draft: Draft, name: str, value: str) -> None:
    """Import the start position; without GTIDs it requests a copy, which is a snapshot."""
    if value.lower() in ("", CURRENT):
        return
    try:
        entries = json.loads(value)
        empty = [not entry["gtid"] for entry in entries]
    except (ValueError, TypeError, KeyError):
        raise rules.invalid(
            name, 'current, or JSON: [{"keyspace": ..., "shard": ..., "gtid": ...}, ...]', value
        ) from None
    if all(empty):
        draft.notes.append(f"property {name} has no GTIDs: a snapshot copies the tables (snapshot.mode)")
    elif any(empty):
        raise rules.unsupported_error(
            name, value, "Copying only some shards is not supported; set the GTIDs of all shards"
        )
    else:
        kept = [{key: entry.get(key) for key in ("keyspace", "shard", "gtid")} for entry in entries]
        draft.set("source.start_at", json.dumps(kept))


def _decimals(draft: Draft, name: str, value: str) -> None:
    if value.lower() not in ("precise", "double", "string"):
        raise rules.invalid(name, "one of precise, double, string", value)
    draft.notes.append(
        f"property {name} has no effect in Debezium's connector for Vitess, which writes strings; "
        "use publish.vitess.decimals"
    )


def _columns(path: str) -> Rule:
    def apply(draft: Draft, name: str, value: str) -> None:
        draft.set(path, draft.patterns(name, value))

    return rules.custom_rule(f"`{path}`", apply)


def _mask(draft: Draft, name: str, value: str) -> None:
    """Import masks and truncation, which are part of the property's name."""
    for pattern, form in _MASKS:
        found = re.fullmatch(pattern, name)
        if found:
            masks = draft.get("publish.vitess.masks") or {}
            assert isinstance(masks, dict)
            masks.update(dict.fromkeys(draft.patterns(name, value), form.format(*found.groups())))
            draft.set("publish.vitess.masks", masks)
            return
    raise rules.invalid(
        name,
        "column.truncate.to.N.chars, column.mask.with.N.chars or column.mask.hash.ALGORITHM.with.salt.SALT",
        value,
    )


_MASKS: Final = (
    (r"column\.truncate\.to\.(\d+)\.chars", "truncate:{}"),
    (r"column\.mask\.with\.(\d+)\.chars", "mask:{}"),
    (r"column\.mask\.hash\.v2\.([^.]+)\.with\.salt\.(.+)", "hash-v2:{}:{}"),
    (r"column\.mask\.hash\.([^.]+)\.with\.salt\.(.+)", "hash:{}:{}"),
)


def _key_columns(draft: Draft, name: str, value: str) -> None:
    """Import keys; an expression that starts with ``^`` matches the start of names, as Debezium documents."""
    columns: dict[str, str] = {}
    for entry in split_expressions(value, ";"):
        parts = split_expressions(entry, ":")
        if len(parts) != 2:
            raise rules.invalid(name, "keyspace.table:column,column;... ", value)
        table = rules.java_pattern(name, parts[0])
        while table in columns:  # each entry has its own place in the order
            table = f"(?:{table})"
        columns[table] = ",".join(
            rules.java_pattern(name, f"(?:{column}).*" if column.startswith("^") else column)
            for column in split_expressions(parts[1])
        )
    draft.set("publish.vitess.key_columns", columns)


def _factory(draft: Draft, name: str, value: str) -> None:
    if value == _ORDERED:
        if _is_ordered(draft):  # a factory has no effect without transactions, in Debezium either
            draft.set("publish.vitess.ordered_transactions", True)
    elif value not in ("", _DEFAULT_FACTORY):
        raise rules.unsupported_error(
            name, value, f"It is a Java class; supported are {_ORDERED} and Debezium's default"
        )


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Import the transforms of Debezium's Vitess connector, and Kafka Connect's."""
    dedicated = (_LOCAL_VGTID, _NO_TRANSACTION_RECORDS, _REMOVE_FIELD, _REPLACE_VALUE)

    def take(transform: str) -> None:
        prefix = f"{name}.{transform}."
        kind = draft.properties.get(f"{prefix}type", "").strip()
        fields = rules.split_list(draft.properties.get(f"{prefix}field_names", ""))
        if kind in dedicated:
            reject_misplaced(draft, name, transform)
        if kind == _LOCAL_VGTID:
            draft.set("publish.vitess.local_vgtid", True)
        elif kind == _NO_TRANSACTION_RECORDS:
            if draft.properties.get("provide.transaction.metadata", "").strip().lower() == "true":
                draft.set("publish.vitess.transaction_records", False)
        elif kind == _REMOVE_FIELD:
            draft.set("publish.vitess.remove_fields", fields)
        elif kind == _REPLACE_VALUE:
            new = draft.properties.get(f"{prefix}field_value", "")
            draft.set("publish.vitess.replace_fields", dict.fromkeys(fields, new))
        else:
            import_transform(draft, name, transform, dedicated)

    import_each(draft, name, value, take)


def _tasks(draft: Draft, name: str, value: str) -> None:
    tasks = rules.integer(name, value, minimum=1)
    per_task = draft.properties.get("vitess.offset.storage.per.task", "false").strip().lower()
    if tasks > 1 and per_task != "true":
        raise rules.invalid(name, "1, or vitess.offset.storage.per.task=true", value)
    draft.set("source.streams", tasks)


def _is_ordered(draft: Draft) -> bool:
    properties = draft.properties
    return (
        properties.get("transaction.metadata.factory", "").strip() == _ORDERED
        and properties.get("provide.transaction.metadata", "").strip().lower() == "true"
    )


def _connector_generation(draft: Draft, name: str, value: str) -> None:
    generation = rules.integer(name, value)
    if _is_ordered(draft):
        draft.set("source.generation", generation)
    elif generation:
        draft.notes.append(f"property {name} is ignored: it has no effect without ordered transactions")


def _epoch_map(draft: Draft, name: str, value: str) -> None:
    if not value:
        return
    try:
        epochs = json.loads(value)
    except ValueError:
        epochs = None
    if not isinstance(epochs, dict) or not all(type(epoch) is int for epoch in epochs.values()):
        raise rules.invalid(name, 'a JSON object of shards and epochs, such as {"-80": 1, "80-": 2}', value)
    draft.set("source.epochs", epochs)


def _inherit_epochs(draft: Draft, name: str, value: str) -> None:
    inherits = rules.boolean(name, value)
    if inherits and draft.properties.get("transaction.metadata.factory", "").strip() != _ORDERED:
        raise rules.invalid(name, f"false, or transaction.metadata.factory={_ORDERED}", value)
    if inherits and _is_ordered(draft):
        draft.set("publish.vitess.inherit_epochs", True)


def _retry_pause(draft: Draft, name: str, value: str) -> None:
    """Import the pause between attempts, which is constant in Debezium."""
    _set_pauses(draft, rules.integer(name, value) / 1000)


def _set_pauses(draft: Draft, seconds: float) -> None:
    draft.set("source.advanced.connect_backoff_seconds", seconds)
    draft.set("source.advanced.connect_max_backoff_seconds", seconds)


def _failures(draft: Draft, name: str, value: str) -> None:
    """Import the handling of events that can't be decoded."""
    modes = {"fail": (True, True), "warn": (False, True), "skip": (False, False), "ignore": (False, False)}
    if value.lower() not in modes:
        raise rules.invalid(name, f"one of {', '.join(modes)}", value)
    strict, logs = modes[value.lower()]
    draft.set("source.advanced.strict", strict)
    draft.set("source.advanced.log_quarantined_events", logs)


def set_vitess_defaults(draft: Draft) -> None:
    """Set options whose default differs in Debezium's connector for Vitess, and note what they imply.

    Raises:
        ConfigurationError: No property names the keyspace.
    """
    if draft.get("source.keyspace") is None:
        raise ConfigurationError("property vitess.keyspace is missing", expected="the keyspace")
    if "snapshot.mode" not in draft.properties:
        draft.notes.append(
            "property snapshot.mode isn't set: the first run reads all tables, the default since Debezium "
            "2.2; earlier versions take no snapshot, which is never"
        )
    if "errors.max.retries" not in draft.properties:
        draft.set("source.advanced.connect_attempts", -1)
    if "retriable.restart.connector.wait.ms" not in draft.properties:
        _set_pauses(draft, 10.0)
    if "event.processing.failure.handling.mode" not in draft.properties:
        draft.set("source.advanced.strict", True)


def _queue_size(draft: Draft, name: str, value: str) -> None:
    batch = draft.properties.get("max.batch.size", "2048").strip()
    size = rules.integer(name, value)
    if size <= rules.integer("max.batch.size", batch):
        raise rules.invalid(name, f"more than max.batch.size, {batch}", value)
    draft.set("source.advanced.read_ahead_events", size)


def _heartbeat(draft: Draft, name: str, value: str) -> None:
    """Import the interval of VTGate's heartbeats, in whole seconds."""
    if milliseconds := rules.integer(name, value):
        draft.set("source.stream.heartbeat_seconds", max(1, milliseconds // 1000))
        draft.set("publish.vitess.heartbeats", True)
        draft.set("publish.heartbeat_interval_seconds", milliseconds / 1000)


_OVERRIDE: Final = rules.flag("publish.vitess.nullable_dates")
_UNSIGNED: Final = rules.choice(
    "publish.vitess.unsigned_bigints", {"string": "string", "precise": "precise", "long": "long"}
)
_KEYSPACE_HEARTBEATS: Final = rules.flag("source.stream.keyspace_heartbeats")
_VTCTLD: Final = "VTGate returns the first position; to query vtctld instead, add to the extra"
_EXCLUDE_KEYSPACE: Final = rules.flag("source.stream.exclude_keyspace_from_table_name")

VITESS: Final[dict[str, Rule]] = {
    **COMMON,
    "database.hostname": CONNECTION,
    "database.port": CONNECTION,
    "database.user": CONNECTION,
    "database.password": CONNECTION,
    "vitess.database.*": CONNECTION,
    "database.server.name": OLD_PREFIX,
    "tasks.max": rules.custom_rule(
        "`source.streams`. More than 1 requires vitess.offset.storage.per.task", _tasks
    ),
    "vitess.vtctld.host": rules.ignored(f"{_VTCTLD} vtctld_host"),
    "vitess.vtctld.port": rules.ignored(f"{_VTCTLD} vtctld_port"),
    "vitess.vtctld.user": rules.ignored(f"{_VTCTLD} vtctld_login"),
    "vitess.vtctld.password": rules.ignored(f"{_VTCTLD} vtctld_password"),
    "vitess.keepalive.interval.ms": rules.ignored(f"{_EXTRA} keepalive_seconds"),
    "vitess.grpc.headers": rules.ignored(f"{_EXTRA} headers"),
    "vitess.grpc.max_inbound_message_size": rules.ignored(f"{_EXTRA} max_message_bytes"),
    "vitess.grpc.default.load.balancing.policy": rules.ignored(f"{_EXTRA} load_balancing"),
    "vitess.keyspace": rules.option("source.keyspace"),
    "vitess.shard": rules.custom_rule("`source.shards`", _shards),
    "vitess.gtid": rules.custom_rule(
        "`source.start_at`, for the single shard of vitess.shard, or a VGTID", _gtid
    ),
    "vitess.vgtid": rules.custom_rule(
        "`source.start_at`; without GTIDs a snapshot copies the tables", _vgtid
    ),
    "vitess.tablet.type": rules.choice(
        "source.tablet_type",
        {"master": "PRIMARY", "primary": "PRIMARY", "replica": "REPLICA", "rdonly": "RDONLY"},
    ),
    "vitess.stop_on_reshard": rules.flag("source.stream.stop_on_reshard"),
    "vitess.exclude.empty.shards": rules.flag("source.exclude_empty_shards"),
    "vitess.exclude.keyspace.from.table.name": _EXCLUDE_KEYSPACE,
    "vitess.stream.keyspace.heartbeats": _KEYSPACE_HEARTBEATS,
    "vitess.stream_keyspace_heartbeats": _KEYSPACE_HEARTBEATS,
    "vitess.transaction.chunk.size.bytes": rules.number("source.stream.transaction_chunk_bytes"),
    "vitess.offset.storage.per.task": rules.flag("source.task_offsets.per_task"),
    "vitess.offset.storage.task.key.gen": rules.number("source.task_offsets.generation", minimum=-1),
    "vitess.prev.num.tasks": rules.number("source.task_offsets.previous_tasks", minimum=-1),
    "vitess.connector.generation": rules.custom_rule(
        "`source.generation`, with VitessOrderedTransactionMetadataFactory", _connector_generation
    ),
    "vitess.shard.epoch.map": rules.custom_rule("`source.epochs`", _epoch_map),
    "vitess.inherit.epoch": rules.custom_rule(
        "`publish.vitess.inherit_epochs`; true requires VitessOrderedTransactionMetadataFactory",
        _inherit_epochs,
    ),
    "override.datetime.to.nullable": _OVERRIDE,
    "vitess.override.datetime.to.nullable": _OVERRIDE,
    "time.precision.mode": rules.choice(
        "publish.vitess.temporal",
        {
            mode: mode
            for mode in (
                "adaptive_time_microseconds",
                "connect",
                "isostring",
                "microseconds",
                "nanoseconds",
            )
        },
    ),
    "decimal.handling.mode": rules.custom_rule(
        "ignored: Debezium's connector for Vitess always writes strings; use `publish.vitess.decimals`",
        _decimals,
    ),
    "bigint.unsigned.handling.mode": _UNSIGNED,
    "vitess.bigint.unsigned.handling.mode": _UNSIGNED,
    "binary.handling.mode": rules.choice(
        "publish.vitess.binary",
        {mode: mode for mode in ("bytes", "base64", "base64-url-safe", "hex")},
    ),
    "include.unknown.datatypes": rules.flag("publish.vitess.include_unknown_types"),
    "table.include.list": rules.custom_rule("`tables`", include_tables),
    "table.exclude.list": rules.custom_rule("`exclude_tables`", exclude_tables),
    "column.include.list": _columns("publish.vitess.include_columns"),
    "column.exclude.list": _columns("publish.vitess.exclude_columns"),
    "column.truncate.to.*": rules.custom_rule("`publish.vitess.masks`", _mask),
    "column.mask.*": rules.custom_rule("`publish.vitess.masks`", _mask),
    "column.propagate.source.type": _columns("publish.vitess.source_types_of_columns"),
    "datatype.propagate.source.type": _columns("publish.vitess.source_types"),
    "message.key.columns": rules.custom_rule("`publish.vitess.key_columns`", _key_columns),
    "converters": custom_converters("publish.vitess.converters"),
    "skip.messages.without.change": rules.flag("publish.skip_unchanged"),
    "provide.transaction.metadata": rules.flag("publish.transactions"),
    "topic.transaction": rules.name_option("publish.transaction_topic"),
    "transaction.metadata.factory": rules.custom_rule(
        "`publish.vitess.ordered_transactions` for VitessOrderedTransactionMetadataFactory", _factory
    ),
    "transforms": rules.custom_rule(
        "`publish.vitess.local_vgtid` for UseLocalVgtid, `transaction_records` for "
        "FilterTransactionTopicRecords, `remove_fields` for RemoveField, `replace_fields` for "
        "ReplaceFieldValue; `publish.transforms` for transforms of Kafka Connect",
        _transforms,
    ),
    "transforms.*": rules.handled_elsewhere("with `transforms`"),
    "include.schema.changes": rules.flag("publish.schema_changes"),
    "schema.history.internal": STATE,
    "schema.history.internal.*": STATE,
    "snapshot.mode": rules.custom_rule("`snapshot.mode`; no_data is `never`", snapshot_mode),
    "snapshot.mode.*": rules.handled_elsewhere("with `snapshot.mode`"),
    "snapshot.include.collection.list": SNAPSHOT_INCLUDE,
    "snapshot.*": rules.unsupported("Snapshots are VStream copies, which have no such option"),
    **CLOUD_EVENTS,
    "max.batch.size": PROCESS,
    "max.queue.size": rules.custom_rule(
        "`source.advanced.read_ahead_events`; more than max.batch.size", _queue_size
    ),
    "max.queue.size.in.bytes": rules.number("source.advanced.read_ahead_bytes", default="0"),
    "poll.interval.ms": PROCESS,
    "poll.dispatch.interval.ms": PROCESS,
    "errors.max.retries": rules.custom_rule(
        "`source.advanced.connect_attempts`; -1, the default of an import, means unlimited",
        rules.number("source.advanced.connect_attempts", minimum=-1).apply,
    ),
    "retriable.restart.connector.wait.ms": rules.custom_rule(
        "`source.advanced.connect_backoff_seconds` and `connect_max_backoff_seconds`; imported default: 10 s",
        _retry_pause,
    ),
    "event.processing.failure.handling.mode": rules.custom_rule(
        "`source.advanced.strict` and `log_quarantined_events`; imported default: fail, as in Debezium",
        _failures,
    ),
    "heartbeat.interval.ms": rules.custom_rule(
        "`source.stream.heartbeat_seconds`, `publish.vitess.heartbeats` and "
        "`publish.heartbeat_interval_seconds`; 0 keeps the defaults",
        _heartbeat,
    ),
    "heartbeat.topics.prefix": rules.name_option("publish.heartbeat_prefix"),
    "topic.naming.strategy": rules.custom_rule(
        "`publish.topic_naming`, for a Python class (package.module:Class). Debezium's "
        "SchemaTopicNamingStrategy and TableTopicNamingStrategy are the default here; others are not "
        "supported",
        topic_naming,
    ),
    "override.data.change.topic.prefix": rules.option("publish.vitess.topic_prefix"),
    "override.data.change.topic.prefix.exclude.list": _columns("publish.vitess.topic_prefix_excluded_tables"),
    "override.schema.change.topic": rules.option("publish.vitess.schema_changes_topic"),
}
