"""Debezium's transforms of MongoDB events, and what becomes of each of their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow_cdc_provider.connector.debezium_chain import (
    refuse_misplaced,
    settings_before_3,
    take_each,
    take_transform,
)
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    choice,
    find_rule,
    flag,
    left_out,
    option,
    refusal,
    refused,
    split_list,
    taken,
)

_PACKAGE: Final = "io.debezium.connector.mongodb.transforms"
_NO_PREDICATES: Final = refused("It is applied to all events; choose outbox collections by tables", "false")
_TRACING: Final = left_out("spans are not made")
_NAMES: Final = {"none": "none", "avro": "avro", "avro_unicode": "avro_unicode"}


def _list(path: str) -> Rule:
    return taken(f"`{path}`", lambda draft, name, value: draft.set(path, split_list(value)))


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
    "sanitize.field.names": left_out("Debezium 3 doesn't read it; use field.name.adjustment.mode"),
    "route.by.field": left_out("ExtractNewDocumentState doesn't use it"),
    "replace.null.with.default": left_out("documents have no defaults"),
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
    """Take over the transforms that a property lists, with their settings."""

    def take(transform: str) -> None:
        lead = f"{name}.{transform}."
        kind = draft.properties.get(f"{lead}type", "").strip()
        if kind not in _KINDS:
            take_transform(draft, name, transform, tuple(_KINDS))
            return
        refuse_misplaced(draft, name, transform)
        path, rules = _KINDS[kind]
        if draft.get(path) is not None:
            raise refusal(name, kind, "One of each kind is followed")
        draft.set(f"{path}.enabled", True)
        own = {f"{lead}{setting}": rule for setting, rule in rules.items()}
        for setting, text in draft.properties.items():
            if setting.startswith(lead) and setting != f"{lead}type":
                find_rule(setting, own).apply(draft, setting, text.strip())

    take_each(draft, name, value, take)
