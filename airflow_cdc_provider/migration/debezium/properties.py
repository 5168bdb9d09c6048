r"""Import of Debezium ``.properties`` files as connector declarations.

No property is dropped silently. It is mapped to an option; or ignored with a note if it concerns only
Debezium's own process (queue sizes) or belongs in the Airflow connection (addresses, secrets); or rejected
with the reason if ignoring it would change the events. A property at Debezium's default is always accepted.
An unknown property is rejected with the nearest known name.

The translation of each property: :mod:`.all_connectors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.migration.debezium.cassandra import CASSANDRA
from airflow_cdc_provider.migration.debezium.mongodb import MONGODB
from airflow_cdc_provider.migration.debezium.read_topics import READ_BY_TOPICS, READ_TOPICS
from airflow_cdc_provider.migration.debezium.read_topics import finish as finish_topics
from airflow_cdc_provider.migration.debezium.scylla import SCYLLA, finish_scylla
from airflow_cdc_provider.migration.debezium.vitess import VITESS, set_vitess_defaults
from airflow_cdc_provider.migration.rules import (
    Draft,
    Imported,
    Rules,
    find_rule,
    invalid,
    split_list,
    unsupported_error,
    without_salt,
)
from airflow_cdc_provider.sources.mongodb.selection import server_applies

_CLASSES: Final = {
    "io.debezium.connector.mongodb.MongoDbConnector": "mongodb",
    "io.debezium.connector.cassandra.CassandraConnector": "cassandra",
    "io.debezium.connector.cassandra.Cassandra4Connector": "cassandra",
    "io.debezium.connector.cassandra.Cassandra5Connector": "cassandra",
    "io.debezium.connector.vitess.VitessConnector": "vitess",
    "com.scylladb.cdc.debezium.connector.ScyllaConnector": "scylla",
    **dict.fromkeys(READ_BY_TOPICS, "debezium"),
}


_REFERENCE: Final = re.compile(r"\$\{[^}:]+:[^}]*\}")
"""References that Kafka Connect's configuration providers resolve: ``${file:/etc/secrets:password}``."""


def from_debezium(properties: Mapping[str, str]) -> Imported:
    """Translate Debezium properties to a declaration.

    Raises:
        ConfigurationError: Names each invalid property, the value found and what was expected.
    """
    draft = start_draft(properties)
    problems = [problem for _, problem in import_properties(draft) if problem is not None]
    if problems:
        raise joined(problems)
    return build_declaration(draft)


def start_draft(properties: Mapping[str, str]) -> Draft:
    """Start a draft for Debezium properties; no property is imported yet.

    Raises:
        ConfigurationError: The connector class is unknown.
    """
    return Draft(_source_type(properties), properties)


def import_properties(draft: Draft) -> Iterator[tuple[str, ConfigurationError | None]]:
    """Import a draft's properties one by one; yield the name and the error, if any, of each."""
    rules, settings = RULES[draft.type], of_converters(draft)
    for name, value in draft.properties.items():
        try:
            rule = None if name in settings else find_rule(name, rules)
            if (rule is None or rule.outcome != "ignored") and _REFERENCE.search(value):
                raise unsupported_error(
                    name, "", "Kafka Connect resolves this reference: replace it with its value"
                )
            if rule is not None:
                draft.apply(rule, name, value)
        except ConfigurationError as error:
            yield name, error
        else:
            yield name, None


def draft_without(draft: Draft, name: str) -> Draft:
    """Import all properties of a draft but one, as far as they can be."""
    rest = Draft(draft.type, {other: value for other, value in draft.properties.items() if other != name})
    for _ in import_properties(rest):
        pass
    return rest


def of_converters(draft: Draft) -> set[str]:
    """Return the properties of custom converters, which are imported with ``converters``."""
    named = tuple(f"{name}." for name in split_list(draft.properties.get("converters", "")))
    return {name for name in draft.properties if name.startswith(named) and name not in RULES[draft.type]}


def build_declaration(draft: Draft) -> Imported:
    """Build the declaration of a draft whose properties are imported.

    Raises:
        ConfigurationError: Properties contradict each other, or the declaration is invalid; the message
            names the properties.
    """
    _set_derived_options(draft)
    try:
        return Imported(Connector.from_dict(draft.values), tuple(draft.notes))
    except ConfigurationError as error:
        remedy = f"{error.remedy}. " if error.remedy else ""
        raise ConfigurationError(
            error.message,
            expected=error.expected,
            found=error.found,
            remedy=f"{remedy}It follows from {' and '.join(_causes(draft, error)) or 'the properties'}",
        ) from error


def _causes(draft: Draft, error: ConfigurationError) -> list[str]:
    """Return the properties without which a declaration would be valid; else those that change its error."""
    solved, changed = [], []
    for name in draft.properties:
        rest = draft_without(draft, name)
        try:
            _set_derived_options(rest)
        except ConfigurationError:
            continue  # required
        try:
            Connector.from_dict(rest.values)
            solved.append(without_salt(name))
        except ConfigurationError as other:
            if str(other) != str(error):
                changed.append(without_salt(name))
    return solved or changed


def _source_type(properties: Mapping[str, str]) -> str:
    name = properties.get("connector.class", "").strip()
    if name in _CLASSES:
        return _CLASSES[name]
    if name:
        raise ConfigurationError(
            "invalid value for property connector.class",
            expected=f"one of {', '.join(_CLASSES)}",
            found=repr(name),
        )
    if any(n.startswith("debezium.source.") for n in properties):
        raise ConfigurationError(
            "these are properties of Debezium Server",
            expected="properties of a connector",
            remedy="use the properties below "
            "debezium.source, without this prefix, with "
            "transforms and predicates",
        )
    # Debezium's Cassandra connector runs standalone; its file has no connector.class.
    cassandra = any(n.startswith(("cassandra.", "commit.log.", "kafka.")) for n in properties)
    return "cassandra" if cassandra else "mongodb"


def _set_derived_options(draft: Draft) -> None:
    """Set options that depend on several properties."""
    if draft.type == "debezium":
        finish_topics(draft)
        return
    prefix = draft.values.get("publish", {}).get("topic_prefix")
    if not prefix and draft.type in ("mongodb", "scylla", "vitess"):
        raise ConfigurationError(
            "property topic.prefix is missing",
            expected="the logical name of the source",
        )
    draft.values.setdefault("name", prefix or draft.type)
    draft.values.setdefault("source", {})["type"] = draft.type
    if draft.include and draft.exclude:
        raise ConfigurationError("properties exclude each other", found="an include and an exclude list")
    if draft.databases and draft.include:
        scope = "|".join(draft.databases)
        draft.include = [rf"(?=(?:{scope})\.){entry}" for entry in draft.include]
    elif draft.databases:
        draft.include = [rf"{database}\..*" for database in draft.databases]
    if draft.include:
        draft.set("tables", draft.include)
    built_in = ["admin", "local", "config"] if draft.type == "mongodb" else []
    excluded = [*draft.excluded_databases, *built_in]
    if draft.exclude or excluded:
        draft.set("exclude_tables", [*draft.exclude, *(rf"{entry}\..*" for entry in excluded)])
    _note_schemas(draft)
    _FINISH[draft.type](draft)


def _finish_mongodb(draft: Draft) -> None:
    _capture_mode(draft)
    _note_mongodb_differences(draft)
    _note_client_side_filters(draft)


def _note_cassandra_differences(draft: Draft) -> None:
    """Note risks, and options whose default differs in Debezium's connector for Cassandra."""
    if draft.get("publish.tombstones"):
        draft.notes.append(
            "property tombstones.on.delete: don't use it on compacted topics; compaction deletes an event "
            "that has other columns than a later one of its key"
        )
    if "snapshot.consistency" not in draft.properties:
        draft.notes.append(
            "property snapshot.consistency isn't set: snapshots read at ALL, the default in Debezium's "
            "documentation (its code reads at QUORUM)"
        )


def _note_schemas(draft: Draft) -> None:
    """Note converters whose default for schemas differs."""
    named = [side for side in ("key", "value") if draft.properties.get(f"{side}.converter", "").strip()]
    json = [side for side in named if draft.get(f"publish.{side}") == "json"]
    if json and draft.get("publish.schemas") is None:
        names = " and ".join(f"{side}.converter.schemas.enable" for side in json)
        draft.notes.append(
            f"property {names} isn't set: events are written without schemas, while JsonConverter's default "
            "includes them; set it to true to include schemas"
        )


def _note_client_side_filters(draft: Draft) -> None:
    for option in ("tables", "exclude_tables"):
        for pattern in draft.values.get(option, ()):
            if _compiles(pattern) and not server_applies(pattern):
                draft.notes.append(
                    f"MongoDB can't evaluate {pattern} of {option}: the server sends all events and the "
                    "capture "
                    "filters them. It can evaluate literals, '.', classes, groups and quantifiers of ASCII"
                )


def _compiles(pattern: str) -> bool:
    """Return whether a pattern is valid; the declaration rejects others with its own message."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _note_mongodb_differences(draft: Draft) -> None:
    """Note where the import differs from Debezium's default or documentation."""
    if draft.get("source.scope") in (None, "deployment") and draft.get("source.target"):
        draft.notes.append("property capture.target is ignored: scope deployment watches all databases")
        draft.values["source"].pop("target")
    if {"c", "u", "d"} & set(draft.values.get("publish", {}).get("skipped_operations", ())):
        draft.notes.append(
            "property skipped.operations omits events only; the server still sends these changes, because "
            "mirrors need them. source.stream.skipped_operations omits them at the server"
        )


_CAPTURE_MODES: Final = {
    "change_streams": (False, False),
    "change_streams_with_pre_image": (False, True),
    "change_streams_update_full": (True, False),
    "change_streams_update_full_with_pre_image": (True, True),
}


def _capture_mode(draft: Draft) -> None:
    mode = draft.properties.get("capture.mode", "change_streams_update_full").strip().lower()
    if mode not in _CAPTURE_MODES:
        raise invalid("capture.mode", f"one of {', '.join(_CAPTURE_MODES)}", mode)
    full, pre_images = _CAPTURE_MODES[mode]
    kind = draft.properties.get("capture.mode.full.update.type", "lookup").strip().lower()
    if kind not in ("lookup", "post_image"):
        raise invalid("capture.mode.full.update.type", "lookup or post_image", kind)
    draft.set("source.full_document", kind if full else "none")
    draft.set("source.pre_images", pre_images)


RULES: Final[Mapping[str, Rules]] = {
    "mongodb": MONGODB,
    "cassandra": CASSANDRA,
    "vitess": VITESS,
    "scylla": SCYLLA,
    "debezium": READ_TOPICS,
}

_FINISH: Final[Mapping[str, Callable[[Draft], None]]] = {
    "mongodb": _finish_mongodb,
    "cassandra": _note_cassandra_differences,
    "vitess": set_vitess_defaults,
    "scylla": finish_scylla,
}
"""Rules of each source."""
