"""Transforms and predicates of Kafka Connect and Debezium as ``publish.transforms``: what each becomes.

``transforms=a,b`` with ``transforms.a.type``, its settings, ``transforms.a.predicate`` and ``.negate``, and
``predicates.p.type``: those that a source has options of its own for are taken over by its module; all others
come here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final

from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    boolean,
    find_rule,
    left_out,
    refusal,
    refused,
    split_list,
    taken,
    wrong,
)
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.exceptions import ConfigurationError, joined

CONNECT: Final = "org.apache.kafka.connect.transforms."
DEBEZIUM: Final = "io.debezium.transforms."

_COMMUTING: Final = frozenset({"rename_topic", "insert_header", "drop_headers"})
"""Types that may stand before a transform of a source's own, which comes before all transforms here."""
_NO_CONVERSION: Final = refused(
    "Where a field is null and its schema has a default, the default is shown", "true"
)
_LIST: Final = "publish.transforms"


def _set(option: str, read: Callable[[str, str], Any] = lambda name, value: value) -> Rule:
    return taken(
        f"`{option}`", lambda draft, name, value: draft.values.__setitem__(option, read(name, value))
    )


def _list(option: str) -> Rule:
    return _set(option, lambda name, value: split_list(value))


def _pairs(name: str, value: str) -> dict[str, str]:
    pairs = {}
    for entry in split_list(value):
        old, colon, new = entry.partition(":")
        if not colon or not old.strip() or not new.strip():
            raise wrong(name, "name:other, with commas between", value)
        pairs[old.strip()] = new.strip()
    return pairs


def _spec(draft: Draft, name: str, value: str) -> None:
    if ":" in value:
        draft.values["fields"] = {field: kind.lower() for field, kind in _pairs(name, value).items()}
    else:
        draft.values["to"] = value.lower()


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\d+", value):
        raise wrong(name, "a whole number", value)
    return int(value)


def _syntax(draft: Draft, name: str, value: str) -> None:
    if value.upper() not in ("V1", "V2"):
        raise wrong(name, "V1 or V2", value)
    if value.upper() == "V1" and "." in draft.properties.get("field", ""):
        draft.notes.append(f"property {name}: where there is no field of that name, dots lead into structs")


def _adjustment(name: str, value: str) -> str:
    if value.lower() not in ("none", "avro", "avro_unicode"):
        raise wrong(name, "none, avro or avro_unicode", value)
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
"""By ``delete.handling.mode`` and ``drop.tombstones``, which ``delete.tombstone.handling.mode`` replaced."""


def deletes_of(settings: Mapping[str, str]) -> str | None:
    """Return what a transform that makes rows does with deletes, in the words of Debezium 3.

    Args:
        settings: Its settings, also those that Debezium had before 3.

    Returns:
        None for what has no word there.
    """
    old = {name: settings[name] for name in ("delete.handling.mode", "drop.tombstones") if name in settings}
    if "delete.tombstone.handling.mode" in settings or not old:
        return settings.get("delete.tombstone.handling.mode", "tombstone").lower()
    drops = boolean("drop.tombstones", old.get("drop.tombstones", "true"))
    return _DELETES.get((old.get("delete.handling.mode", "drop").lower(), drops))


def settings_before_3(deletes: str) -> dict[str, Rule]:
    """Return rules for what transforms that make rows had before Debezium 3.

    Args:
        deletes: The option that says what becomes of deletes.
    """

    def apply(draft: Draft, name: str, value: str) -> None:
        lead = name.removesuffix("drop.tombstones").removesuffix("delete.handling.mode")
        if f"{lead}delete.tombstone.handling.mode" in draft.properties:
            draft.notes.append(f"property {name} is left out: delete.tombstone.handling.mode replaces it")
            return
        own = {setting.removeprefix(lead): text.strip() for setting, text in draft.properties.items()}
        found = deletes_of(own)
        if found is None:
            raise refusal(name, value, "Deletes without a value have no tombstone besides")
        draft.set(deletes, found)

    both = taken(f"`{deletes}`, as Debezium had it before 3", apply)
    return {
        "delete.handling.mode": both,
        "drop.tombstones": both,
        "operation.header": refused("add.headers=op says the same", "false"),
        "add.source.fields": refused("add.fields=source.NAME says the same"),
    }


_OFFSET: Final = refused("Records of a source have no offset before they are written")
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
    "Cast": ("cast", {"spec": taken("`fields` or `to`", _spec)}),
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
        {"field": _set("field"), "field.syntax.version": taken("either", _syntax)},
    ),
    "Flatten": ("flatten", {"delimiter": _set("delimiter")}),
    "SetSchemaMetadata": (
        "schema",
        {"schema.name": _set("name"), "schema.version": _set("version", _number)},
    ),
}
"""Connect's transforms that come as ``$Key`` and ``$Value``."""

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
            "logical.table.cache.size": left_out("nothing is cached"),
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
            "partition.topic.num": _set("partitions", _number),
            "partition.hash.function": refused("Fields are hashed as Java does it", "java"),
        },
    ),
}
_UNWRAP: Final[tuple[str, Mapping[str, Rule]]] = (
    "unwrap",
    {
        "delete.tombstone.handling.mode": _set("deletes", _deletes),
        **settings_before_3("deletes"),
        "add.fields": _list("add_fields"),
        "add.fields.prefix": _set("add_fields_prefix"),
        "add.headers": _list("add_headers"),
        "add.headers.prefix": _set("add_headers_prefix"),
        "drop.fields.*": refused("Leave fields out by ReplaceField", "false"),
        "route.by.field": refused("Route by a transform of type route"),
        "field.name.adjustment.mode": refused("publish.field_names names fields", "none"),
        "replace.null.with.default": _NO_CONVERSION,
    },
)

_WRITE_AN_EXPRESSION: Final = (
    "Groovy and other scripts are not run: write the condition as an expression, in publish.transforms as "
    "type: filter or route (docs/transforms.md)"
)
_REFUSED: Final[Mapping[str, str]] = {
    f"{DEBEZIUM}Filter": _WRITE_AN_EXPRESSION,
    f"{DEBEZIUM}ContentBasedRouter": _WRITE_AN_EXPRESSION,
    f"{CONNECT}TimestampRouter": "Records have no time before they are written; route by a field: type route",
    f"{DEBEZIUM}outbox.EventRouter": "An outbox is followed for MongoDB alone; route by type route",
    f"{DEBEZIUM}TimezoneConverter": "Times stay in the zone that the source gives them",
}
_PREDICATES: Final[Mapping[str, tuple[str, str]]] = {
    f"{CONNECT}predicates.TopicNameMatches": ("topic", "pattern"),
    f"{CONNECT}predicates.HasHeaderKey": ("header", "name"),
    f"{CONNECT}predicates.RecordIsTombstone": ("tombstone", ""),
}


def _settings(kind: str, draft: Draft) -> tuple[str, dict[str, Any], Mapping[str, Rule]] | None:
    """Return the type that a class becomes, what it says already, and the rules of its settings."""
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


def followed_classes() -> list[str]:
    """Return the classes that become transforms here, for messages and the docs."""
    return [*(f"{CONNECT}{name}$Key, $Value" for name in _SIDED), *_WHOLE]


def take_each(draft: Draft, name: str, value: str, take: Callable[[str], None]) -> None:
    """Take over transforms one by one. One that can't be followed leaves nothing in the declaration.

    Args:
        draft: The declaration.
        name: The property that lists them.
        value: Their aliases.
        take: Takes over one.

    Raises:
        ConfigurationError: Names all that can't be followed.
    """
    problems = []
    for transform in split_list(value):
        before, notes = deepcopy(draft.values), len(draft.notes)
        try:
            take(transform)
        except ConfigurationError as error:
            draft.values = before
            del draft.notes[notes:]
            draft.refused_transforms.add(f"{name}.{transform}.")
            problems.append(error)
    if problems:
        raise joined(problems)


def take_transform(draft: Draft, name: str, transform: str, own: tuple[str, ...] = ()) -> None:
    """Take over one transform of Connect's or Debezium's.

    Args:
        draft: The declaration.
        name: The property that lists it, ``transforms``.
        transform: Its alias.
        own: Classes that the source has options of its own for, for the message.

    Raises:
        ConfigurationError: It or one of its settings can't be followed.
    """
    lead = f"{name}.{transform}."
    kind = draft.properties.get(f"{lead}type", "").strip()
    if kind in _REFUSED:
        raise refusal(f"{lead}type", kind, _REFUSED[kind])
    found = _settings(kind, draft)
    if found is None:
        raise refusal(name, kind or transform, f"Followed are {', '.join([*own, *followed_classes()])}")
    option, values, rules = found
    part = Draft(
        draft.type, {n.removeprefix(lead): v for n, v in draft.properties.items()}, {"type": option, **values}
    )
    for setting, given in draft.properties.items():
        short = setting.removeprefix(lead)
        if setting.startswith(lead) and short not in ("type", "predicate", "negate"):
            rule = find_rule(short, {**rules, "replace.null.with.default": _NO_CONVERSION})
            rule.apply(part, short, given.strip())
    when = _when(draft, lead)
    if when:
        part.values["when"] = when
    try:
        read_transforms([part.values])
    except ConfigurationError as error:
        raise ConfigurationError(
            f"properties {lead}* are wrong", expected=error.expected, found=error.message, remedy=error.remedy
        ) from None
    draft.notes += part.notes
    chain = draft.get(_LIST) or []
    assert isinstance(chain, list)
    draft.set(_LIST, [*chain, part.values])


def take_predicate(draft: Draft, name: str, value: str) -> None:
    """See that a setting of a predicate is one that transforms which name it follow.

    Raises:
        ConfigurationError: It isn't; its value isn't shown.
    """
    _, alias, setting = name.split(".", 2) if name.count(".") > 1 else (name, "", "")
    kind = draft.properties.get(f"predicates.{alias}.type", "").strip()
    if kind not in _PREDICATES or setting not in ("type", _PREDICATES[kind][1]):
        raise refusal(name, "", f"Predicates that are followed: {', '.join(_PREDICATES)}")


def refuse_misplaced(draft: Draft, name: str, transform: str) -> None:
    """Refuse a transform of a source's own that has a predicate, or comes after one that it can't follow.

    Raises:
        ConfigurationError: It can't be followed in its place.
    """
    lead = f"{name}.{transform}."
    if draft.properties.get(f"{lead}predicate", "").strip():
        raise refusal(
            f"{lead}predicate",
            "",
            "It is applied to all events; transforms of publish.transforms have predicates",
        )
    chain = draft.get(_LIST) or []
    assert isinstance(chain, list)
    before = [one["type"] for one in chain if one["type"] not in _COMMUTING or "when" in one]
    if before:
        raise refusal(
            name,
            transform,
            f"It is done before publish.transforms; here it comes after type {before[0]}: put it first",
        )


def _when(draft: Draft, lead: str) -> dict[str, Any]:
    alias = draft.properties.get(f"{lead}predicate", "").strip()
    negate = draft.properties.get(f"{lead}negate", "false").strip()
    if not alias:
        return {}
    kind = draft.properties.get(f"predicates.{alias}.type", "").strip()
    if kind not in _PREDICATES:
        raise refusal(f"{lead}predicate", kind or alias, f"Followed are {', '.join(_PREDICATES)}")
    option, setting = _PREDICATES[kind]
    when: dict[str, Any] = {option: True}
    if setting:
        place = f"predicates.{alias}.{setting}"
        given = draft.properties.get(place, "").strip()
        if not given:
            raise ConfigurationError(f"property {place} is missing", expected=f"what {kind} asks for")
        when[option] = given
    if boolean(f"{lead}negate", negate):
        when["negate"] = True
    return when
