"""Import of Debezium's transforms of MongoDB events and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow_cdc_provider.migration.debezium.transforms import (
    import_each,
    import_transform,
    reject_misplaced,
    settings_before_3,
)
from airflow_cdc_provider.migration.rules import (
    Draft,
    Rule,
    choice,
    custom_rule,
    find_rule,
    flag,
    ignored,
    option,
    split_list,
    unsupported,
    unsupported_error,
)

_PACKAGE: Final = "io.debezium.connector.mongodb.transforms"
_NO_PREDICATES: Final = unsupported(
    "It applies to all events; select outbox collections with option tables", "false"
)
_TRACING: Final = ignored("tracing spans are not implemented")
_NAMES: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}


def _list(path: str) -> Rule:
    return custom_rule(f"`{path}`", lambda draft, name, value: draft.set(path, split_list(value)))


UNWRAP: Final[Mapping[str, Rule]] = {
    "array.encoding": choice("publish.unwrap.array_encoding", {"array": "array", "document": "document"}),
    "flatten.struct": flag("publish.unwrap.flatten"),
    "flatten.struct.delimiter": option("publish.unwrap.delimiter"),
    "delete.tombstone.handling.mode": choice(
        "publish.unwrap.deletes",
        {
            mode: mode
            for mode in ("drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone")
        },
    ),
    **settings_before_3("publish.unwrap.deletes"),
    "delete.tombstone.handling.mode.rewrite-with-id": flag("publish.unwrap.rewrite_id"),
    "add.fields": _list("publish.unwrap.add_fields"),
    "add.fields.prefix": option("publish.unwrap.add_fields_prefix"),
    "add.headers": _list("publish.unwrap.add_headers"),
    "add.headers.prefix": option("publish.unwrap.add_headers_prefix"),
    "field.name.adjustment.mode": choice("publish.unwrap.field_names", _NAMES),
    "sanitize.field.names": ignored("Debezium 3 doesn't read it; use field.name.adjustment.mode"),
    "route.by.field": ignored("ExtractNewDocumentState doesn't use it"),
    "replace.null.with.default": ignored("documents have no defaults"),
    "predicate": _NO_PREDICATES,
    "negate": _NO_PREDICATES,
}
"""Settings of ExtractNewDocumentState."""

OUTBOX: Final[Mapping[str, Rule]] = {
    "collection.field.event.id": option("publish.outbox.event_id"),
    "collection.field.event.key": option("publish.outbox.event_key"),
    "collection.field.event.type": option("publish.outbox.event_type"),
    "collection.field.event.timestamp": option("publish.outbox.event_timestamp"),
    "collection.field.event.payload": option("publish.outbox.payload"),
    "collection.field.event.schema.version": option("publish.outbox.schema_version"),
    "collection.fields.additional.placement": _list("publish.outbox.additional"),
    "collection.field.additional.missing": choice(
        "publish.outbox.missing", {"error": "error", "ignore": "ignore"}
    ),
    "collection.op.invalid.behavior": choice(
        "publish.outbox.updates", {"warn": "warn", "error": "error", "fatal": "fatal"}
    ),
    "collection.expand.json.payload": flag("publish.outbox.expand_json"),
    "route.by.field": option("publish.outbox.route_by"),
    "route.topic.regex": option("publish.outbox.topic_regex"),
    "route.topic.replacement": option("publish.outbox.topic_replacement"),
    "route.tombstone.on.empty.payload": flag("publish.outbox.tombstone_on_empty"),
    "tracing.*": _TRACING,
    "predicate": _NO_PREDICATES,
    "negate": _NO_PREDICATES,
}
"""Settings of MongoEventRouter."""

_KINDS: Final[Mapping[str, tuple[str, Mapping[str, Rule]]]] = {
    f"{_PACKAGE}.ExtractNewDocumentState": ("publish.unwrap", UNWRAP),
    f"{_PACKAGE}.outbox.MongoEventRouter": ("publish.outbox", OUTBOX),
}


def mongodb_transforms(draft: Draft, name: str, value: str) -> None:
    """Import the transforms in a property, with their settings."""

    def take(transform: str) -> None:
        prefix = f"{name}.{transform}."
        kind = draft.properties.get(f"{prefix}type", "").strip()
        if kind not in _KINDS:
            import_transform(draft, name, transform, tuple(_KINDS))
            return
        reject_misplaced(draft, name, transform)
        path, rules = _KINDS[kind]
        if draft.get(path) is not None:
            raise unsupported_error(name, kind, "Only one of each kind is supported")
        draft.set(f"{path}.enabled", True)
        own = {f"{prefix}{setting}": rule for setting, rule in rules.items()}
        for setting, text in draft.properties.items():
            if setting.startswith(prefix) and setting != f"{prefix}type":
                draft.apply(find_rule(setting, own), setting, text)

    import_each(draft, name, value, take)
