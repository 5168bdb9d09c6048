"""Import of transforms and predicates of Kafka Connect and Debezium to ``publish.transforms``.

The properties are ``transforms=a,b`` with ``transforms.a.type``, its settings, ``transforms.a.predicate`` and
``.negate``, and ``predicates.p.type``. Transforms with dedicated options are imported by the module of their
source, all others here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.migration.rules import (
    Draft,
    Rule,
    boolean,
    custom_rule,
    find_rule,
    ignored,
    integer,
    invalid,
    split_list,
    unsupported,
    unsupported_error,
)

CONNECT: Final = "org.apache.kafka.connect.transforms."
DEBEZIUM: Final = "io.debezium.transforms."

_COMMUTING: Final = frozenset({"rename_topic", "insert_header", "drop_headers"})
"""Types that may precede a source-specific transform, which runs before ``publish.transforms``."""
_NO_CONVERSION: Final = unsupported(
    "A null field whose schema has a default is written as the default", "true"
)
_LIST: Final = "publish.transforms"


def _put(draft: Draft, option: str, value: object) -> None:
    """Set an option of the transform; all are checked together."""
    draft.values[option] = value


def _set(option: str, read: Callable[[str, str], Any] = lambda name, value: value) -> Rule:
    return custom_rule(f"`{option}`", lambda draft, name, value: _put(draft, option, read(name, value)))


def _list(option: str) -> Rule:
    return _set(option, lambda name, value: split_list(value))


def _pairs(name: str, value: str) -> dict[str, str]:
    pairs = {}
    for entry in split_list(value):
        old, colon, new = entry.partition(":")
        if not colon or not old.strip() or not new.strip():
            raise invalid(name, "comma-separated name:other pairs", value)
        pairs[old.strip()] = new.strip()
    return pairs


def _spec(draft: Draft, name: str, value: str) -> None:
    if ":" in value:
        draft.values["fields"] = {field: kind.lower() for field, kind in _pairs(name, value).items()}
    else:
        draft.values["to"] = value.lower()


def _syntax(draft: Draft, name: str, value: str) -> None:
    if value.upper() not in ("V1", "V2"):
        raise invalid(name, "V1 or V2", value)
    field = draft.properties.get(f"{name.removesuffix('field.syntax.version')}field", "")
    if value.upper() == "V1" and "." in field:
        draft.notes.append(f"property {name}: dots refer to nested fields if there is no field of that name")


def _adjustment(name: str, value: str) -> str:
    if value.lower() not in ("none", "avro", "avro_unicode"):
        raise invalid(name, "none, avro or avro_unicode", value)
    return value.lower()


def _deletes(name: str, value: str) -> str:
    return value.lower()


_DELETES: Final[Mapping[tuple[str, bool], str]] = {
    ("drop", True): "drop",
    ("drop", False): "tombstone",
    ("none", True): "delete-to-tombstone",
    ("rewrite", True): "rewrite",
    ("rewrite", False): "rewrite-with-tombstone",
}
"""``delete.tombstone.handling.mode`` by its predecessors ``delete.handling.mode`` and ``drop.tombstones``."""


def deletes_of(settings: Mapping[str, str], prefix: str) -> str | None:
    """Return the ``delete.tombstone.handling.mode`` of an unwrapping transform.

    Args:
        settings: Settings of the transform, including those of Debezium before 3.
        prefix: Prefix of their properties, for messages.

    Returns:
        The mode; None for a combination without a counterpart in Debezium 3.
    """
    old = {name: settings[name] for name in ("delete.handling.mode", "drop.tombstones") if name in settings}
    if "delete.tombstone.handling.mode" in settings or not old:
        return settings.get("delete.tombstone.handling.mode", "tombstone").lower()
    drops_tombstones = boolean(f"{prefix}drop.tombstones", old.get("drop.tombstones", "true"))
    return _DELETES.get((old.get("delete.handling.mode", "drop").lower(), drops_tombstones))


def settings_before_3(deletes: str, put: Callable[[Draft, str, object], None] = Draft.set) -> dict[str, Rule]:
    """Return rules for settings of unwrapping transforms before Debezium 3.

    Args:
        deletes: Option for the handling of deletes.
        put: Sets it.
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        prefix = name.removesuffix("drop.tombstones").removesuffix("delete.handling.mode")
        if f"{prefix}delete.tombstone.handling.mode" in draft.properties:
            draft.notes.append(f"property {name} is ignored: delete.tombstone.handling.mode replaces it")
            return
        settings = {setting.removeprefix(prefix): text.strip() for setting, text in draft.properties.items()}
        found = deletes_of(settings, prefix)
        if found is None:
            raise unsupported_error(name, value, "Deletes without a value can't be followed by a tombstone")
        put(draft, deletes, found)

    both = custom_rule(f"`{deletes}`, in Debezium before 3", apply)
    return {
        "delete.handling.mode": both,
        "drop.tombstones": both,
        "operation.header": unsupported("Use add.headers=op", "false"),
        "add.source.fields": unsupported("Use add.fields=source.NAME"),
    }


_OFFSET: Final = unsupported("Records of a source have no offset before they are sent")
_SIDED: Final[Mapping[str, tuple[str, Mapping[str, Rule]]]] = {
    "ReplaceField": (
        "fields",
        {
            "exclude": _list("exclude"),
            "blacklist": _list("exclude"),
            "include": _list("include"),
            "whitelist": _list("include"),
            "renames": _set("renames", _pairs),
        },
    ),
    "MaskField": ("mask", {"fields": _list("fields"), "replacement": _set("replacement")}),
    "Cast": ("cast", {"spec": custom_rule("`fields` or `to`", _spec)}),
    "TimestampConverter": (
        "timestamp",
        {
            "field": _set("field"),
            "target.type": _set("to"),
            "format": _set("format"),
            "unix.precision": _set("precision"),
        },
    ),
    "InsertField": (
        "insert_field",
        {
            "topic.field": _set("topic_field"),
            "partition.field": _set("partition_field"),
            "timestamp.field": _set("timestamp_field"),
            "static.field": _set("static_field"),
            "static.value": _set("static_value"),
            "offset.field": _OFFSET,
        },
    ),
    "HeaderFrom": (
        "value_to_header",
        {"fields": _list("fields"), "headers": _list("headers"), "operation": _set("operation")},
    ),
    "HoistField": ("hoist", {"field": _set("field")}),
    "ExtractField": (
        "extract",
        {"field": _set("field"), "field.syntax.version": custom_rule("both versions", _syntax)},
    ),
    "Flatten": ("flatten", {"delimiter": _set("delimiter")}),
    "SetSchemaMetadata": (
        "schema",
        {"schema.name": _set("name"), "schema.version": _set("version", integer)},
    ),
}
"""Kafka Connect transforms with variants ``$Key`` and ``$Value``."""

_WHOLE: Final[Mapping[str, tuple[str, Mapping[str, Rule]]]] = {
    f"{CONNECT}RegexRouter": (
        "rename_topic",
        {"regex": _set("regex"), "replacement": _set("replacement")},
    ),
    f"{CONNECT}InsertHeader": (
        "insert_header",
        {"header": _set("header"), "value.literal": _set("value")},
    ),
    f"{CONNECT}DropHeaders": ("drop_headers", {"headers": _list("headers")}),
    f"{CONNECT}ValueToKey": ("value_to_key", {"fields": _list("fields")}),
    f"{CONNECT}Filter": ("drop", {}),
    f"{DEBEZIUM}ByLogicalTableRouter": (
        "logical_table",
        {
            "topic.regex": _set("topic_regex"),
            "topic.replacement": _set("topic_replacement"),
            "key.enforce.uniqueness": _set("unique_keys", boolean),
            "key.field.name": _set("key_field_name"),
            "key.field.regex": _set("key_field_regex"),
            "key.field.replacement": _set("key_field_replacement"),
            "schema.name.adjustment.mode": _set("schema_names", _adjustment),
            "logical.table.cache.size": ignored("nothing is cached"),
        },
    ),
    f"{DEBEZIUM}HeaderToValue": (
        "header_to_value",
        {"fields": _list("fields"), "headers": _list("headers"), "operation": _set("operation")},
    ),
    f"{DEBEZIUM}partitions.PartitionRouting": (
        "partition",
        {
            "partition.payload.fields": _list("fields"),
            "partition.topic.num": _set("partitions", integer),
            "partition.hash.function": unsupported("Fields are hashed like in Java", "java"),
        },
    ),
}
_UNWRAP: Final[tuple[str, Mapping[str, Rule]]] = (
    "unwrap",
    {
        "delete.tombstone.handling.mode": _set("deletes", _deletes),
        **settings_before_3("deletes", _put),
        "add.fields": _list("add_fields"),
        "add.fields.prefix": _set("add_fields_prefix"),
        "add.headers": _list("add_headers"),
        "add.headers.prefix": _set("add_headers_prefix"),
        "drop.fields.*": unsupported("Use ReplaceField", "false"),
        "route.by.field": unsupported("Use a transform of type route"),
        "field.name.adjustment.mode": unsupported("Use publish.field_names", "none"),
        "replace.null.with.default": _NO_CONVERSION,
    },
)

_WRITE_AN_EXPRESSION: Final = (
    "Groovy and other scripts are not supported: write an expression in publish.transforms, "
    "type: filter or route (docs/transforms.md)"
)
_UNSUPPORTED: Final[Mapping[str, str]] = {
    f"{DEBEZIUM}Filter": _WRITE_AN_EXPRESSION,
    f"{DEBEZIUM}ContentBasedRouter": _WRITE_AN_EXPRESSION,
    f"{CONNECT}TimestampRouter": "Records have no timestamp before "
    "they are sent; route by a field with type route",
    f"{DEBEZIUM}outbox.EventRouter": "Outbox routing is supported only for MongoDB; use type route",
    f"{DEBEZIUM}TimezoneConverter": "Times keep the time zone of the source",
}
_PREDICATES: Final[Mapping[str, tuple[str, str]]] = {
    f"{CONNECT}predicates.TopicNameMatches": ("topic", "pattern"),
    f"{CONNECT}predicates.HasHeaderKey": ("header", "name"),
    f"{CONNECT}predicates.RecordIsTombstone": ("tombstone", ""),
}


def _settings(kind: str, draft: Draft) -> tuple[str, dict[str, Any], Mapping[str, Rule]] | None:
    """Return the transform type of a class, its preset options, and the rules of its settings."""
    if kind in _WHOLE:
        name, rules = _WHOLE[kind]
        return name, {}, rules
    if kind == f"{DEBEZIUM}ExtractNewRecordState" and draft.type == "vitess":
        return _UNWRAP[0], {}, _UNWRAP[1]
    short, dollar, side = kind.removeprefix(CONNECT).partition("$")
    if dollar and short in _SIDED and side in ("Key", "Value") and kind.startswith(CONNECT):
        name, rules = _SIDED[short]
        return name, {"target": side.lower()}, rules
    return None


def supported_classes() -> list[str]:
    """Return the supported classes, for messages and the docs."""
    return [*(f"{CONNECT}{name}$Key, $Value" for name in _SIDED), *_WHOLE]


def import_each(draft: Draft, name: str, value: str, take: Callable[[str], None]) -> None:
    """Import transforms one by one. An unsupported one leaves the declaration unchanged.

    Args:
        draft: The draft.
        name: Property that lists the transforms.
        value: Their aliases.
        take: Imports one transform.

    Raises:
        ConfigurationError: Names all unsupported transforms.
    """
    problems = []
    for transform in split_list(value):
        before, notes = deepcopy(draft.values), len(draft.notes)
        try:
            take(transform)
        except ConfigurationError as error:
            draft.values = before
            del draft.notes[notes:]
            draft.unsupported_transforms.add(f"{name}.{transform}.")
            problems.append(error)
    if problems:
        raise joined(problems)


def import_transform(draft: Draft, name: str, transform: str, source_classes: tuple[str, ...] = ()) -> None:
    """Import one transform of Kafka Connect or Debezium.

    Args:
        draft: The draft.
        name: Property that lists the transform, ``transforms``.
        transform: Its alias.
        source_classes: Classes with dedicated options of the source, for the message.

    Raises:
        ConfigurationError: The transform or one of its settings is not supported.
    """
    prefix = f"{name}.{transform}."
    kind = draft.properties.get(f"{prefix}type", "").strip()
    if kind in _UNSUPPORTED:
        raise unsupported_error(f"{prefix}type", kind, _UNSUPPORTED[kind])
    found = _settings(kind, draft)
    if found is None:
        raise unsupported_error(
            name, kind or transform, f"Supported are {', '.join([*source_classes, *supported_classes()])}"
        )
    option, values, rules = found
    part = Draft(draft.type, draft.properties, {"type": option, **values})
    own = {f"{prefix}{n}": rule for n, rule in {**rules, "replace.null.with.default": _NO_CONVERSION}.items()}
    for setting, given in draft.properties.items():
        if setting.startswith(prefix) and setting.removeprefix(prefix) not in ("type", "predicate", "negate"):
            part.apply(find_rule(setting, own), setting, given)
    when = _when(draft, prefix)
    if when:
        part.values["when"] = when
    try:
        read_transforms([part.values])
    except ConfigurationError as error:
        raise ConfigurationError(
            f"invalid properties {prefix}*", expected=error.expected, found=error.message, remedy=error.remedy
        ) from None
    draft.notes += part.notes
    chain = draft.get(_LIST) or []
    assert isinstance(chain, list)
    draft.set(_LIST, [*chain, part.values])


def check_predicate(draft: Draft, name: str, value: str) -> None:
    """Check that a setting of a predicate is supported; transforms import the predicates that they refer to.

    Raises:
        ConfigurationError: It is not supported; its value isn't shown.
    """
    _, alias, setting = name.split(".", 2) if name.count(".") > 1 else (name, "", "")
    kind = draft.properties.get(f"predicates.{alias}.type", "").strip()
    if kind not in _PREDICATES or setting not in ("type", _PREDICATES[kind][1]):
        raise unsupported_error(name, "", f"Supported predicates: {', '.join(_PREDICATES)}")


def reject_misplaced(draft: Draft, name: str, transform: str) -> None:
    """Reject a source-specific transform with a predicate, or after a transform that must run later.

    Raises:
        ConfigurationError: Its predicate or order is not supported.
    """
    prefix = f"{name}.{transform}."
    if draft.properties.get(f"{prefix}predicate", "").strip():
        raise unsupported_error(
            f"{prefix}predicate",
            "",
            "It applies to all events; only transforms of publish.transforms have predicates",
        )
    chain = draft.get(_LIST) or []
    assert isinstance(chain, list)
    before = [item["type"] for item in chain if item["type"] not in _COMMUTING or "when" in item]
    if before:
        raise unsupported_error(
            name,
            transform,
            f"It runs before publish.transforms, but is listed after type {before[0]}: list it first",
        )


def _when(draft: Draft, prefix: str) -> dict[str, Any]:
    alias = draft.properties.get(f"{prefix}predicate", "").strip()
    negate = draft.properties.get(f"{prefix}negate", "false").strip()
    if not alias:
        return {}
    kind = draft.properties.get(f"predicates.{alias}.type", "").strip()
    if kind not in _PREDICATES:
        raise unsupported_error(
            f"{prefix}predicate", kind or alias, f"Supported are {', '.join(_PREDICATES)}"
        )
    option, setting = _PREDICATES[kind]
    when: dict[str, Any] = {option: True}
    if setting:
        path = f"predicates.{alias}.{setting}"
        given = draft.properties.get(path, "").strip()
        if not given:
            raise ConfigurationError(f"property {path} is missing", expected=f"a value for {kind}")
        when[option] = given
    if boolean(f"{prefix}negate", negate):
        when["negate"] = True
    return when
