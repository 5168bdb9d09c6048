r"""Debezium's ``.properties`` as a declaration: the same options, under our names.

Nothing is dropped silently. Each property is mapped to an option; or left out with a note, where Debezium
needs it for itself (its own queue sizes) or it belongs to the Airflow connection (addresses, secrets); or
refused with the reason, where leaving it out would change what comes out. A property that stands at
Debezium's own default is always accepted. An unknown name is refused with the nearest known one.

What becomes of each property: :mod:`.debezium_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from airflow_cdc_provider.connector.datastax import from_datastax, is_datastax
from airflow_cdc_provider.connector.debezium_cassandra import CASSANDRA
from airflow_cdc_provider.connector.debezium_mongodb import MONGODB
from airflow_cdc_provider.connector.debezium_read_topics import READ_BY_TOPICS, READ_TOPICS
from airflow_cdc_provider.connector.debezium_read_topics import finish as finish_topics
from airflow_cdc_provider.connector.debezium_scylla import SCYLLA, scyllas_finish
from airflow_cdc_provider.connector.debezium_vitess import VITESS, vitess_defaults
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.connector.imported import (
    Draft,
    Imported,
    Rules,
    find_rule,
    refusal,
    split_list,
    wrong,
)
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.properties_file import read_settings
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


_LOOKED_UP: Final = re.compile(r"\$\{[A-Za-z]\w*:[^}]*\}")
"""What Kafka Connect's configuration providers fill in: ``${file:/etc/secrets:password}``."""


def load_debezium_properties(path: str | Path) -> Imported:
    """Read a ``.properties`` file of Debezium, or one that holds DataStax's settings.

    Raises:
        ConfigurationError: The file is missing, or a property is unknown, wrong or can't be followed.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no connector file {file}") from error
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # what java.util.Properties reads
    properties = read_settings(text)
    return from_datastax(properties) if is_datastax(properties) else from_debezium(properties)


def from_debezium(properties: Mapping[str, str]) -> Imported:
    """Make a declaration of Debezium's properties.

    Raises:
        ConfigurationError: Names each wrong property, what was found and what was expected.
    """
    draft = drafted(properties)
    problems = [problem for _, problem in applied(draft) if problem is not None]
    if problems:
        raise joined(problems)
    return finished(draft)


def drafted(properties: Mapping[str, str]) -> Draft:
    """Begin a declaration of Debezium's properties; nothing is taken over yet.

    Raises:
        ConfigurationError: No source is known by the connector's class.
    """
    return Draft(_source_type(properties), properties)


def applied(draft: Draft) -> Iterator[tuple[str, ConfigurationError | None]]:
    """Take over a draft's properties one by one; yield the name of each, and what is wrong with it."""
    rules = RULES[draft.type]
    converters = tuple(f"{name}." for name in split_list(draft.properties.get("converters", "")))
    for name, value in draft.properties.items():
        if name in rules or not name.startswith(converters):
            try:
                rule = find_rule(name, rules)
                if rule.fate != "left out" and _LOOKED_UP.search(value):
                    raise refusal(name, "", "Kafka Connect looks this value up elsewhere: write it out here")
                rule.apply(draft, name, value.strip())
            except ConfigurationError as error:
                yield name, error
            else:
                yield name, None


def finished(draft: Draft) -> Imported:
    """Make the declaration of a draft whose properties are taken over.

    Raises:
        ConfigurationError: Properties don't go together, or the declaration would be wrong.
    """
    _finish(draft)
    return Imported(Connector.from_dict(draft.values), tuple(draft.notes))


def _source_type(properties: Mapping[str, str]) -> str:
    name = properties.get("connector.class", "").strip()
    if name in _CLASSES:
        return _CLASSES[name]
    if name:
        raise ConfigurationError(
            "property connector.class is wrong", expected=f"one of {', '.join(_CLASSES)}", found=repr(name)
        )
    if any(n.startswith("debezium.source.") for n in properties):
        raise ConfigurationError(
            "these are settings of Debezium Server",
            expected="properties of a connector",
            remedy="give those of debezium.source, without this lead, and its transforms and predicates",
        )
    # Debezium's Cassandra connector is a program of its own, whose file names no class.
    cassandra = any(n.startswith(("cassandra.", "commit.log.", "kafka.")) for n in properties)
    return "cassandra" if cassandra else "mongodb"


def _finish(draft: Draft) -> None:
    """Put together what several properties say."""
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
    databases = [*draft.excluded_databases, *built_in]
    if draft.exclude or databases:
        draft.set("exclude_tables", [*draft.exclude, *(rf"{entry}\..*" for entry in databases)])
    _note_schemas(draft)
    if draft.type == "mongodb":
        _capture_mode(draft)
        _mongodbs_choices(draft)
        _note_what_the_server_cannot_apply(draft)
    elif draft.type == "cassandra":
        _cassandras_defaults(draft)
    elif draft.type == "scylla":
        scyllas_finish(draft)
    else:
        vitess_defaults(draft)


def _cassandras_defaults(draft: Draft) -> None:
    """Set what Debezium's connector for Cassandra has other defaults for."""
    publish = draft.values.setdefault("publish", {})
    publish.setdefault("tombstones", False)
    if "snapshot.consistency" not in draft.properties:
        draft.notes.append(
            "property snapshot.consistency isn't set: snapshots read at ALL, as Debezium's page says (its "
            "code reads at QUORUM)"
        )


def _note_schemas(draft: Draft) -> None:
    """Tell where a converter is named whose own default is another than ours."""
    named = [side for side in ("key", "value") if draft.properties.get(f"{side}.converter", "").strip()]
    json = [side for side in named if draft.get(f"publish.{side}") == "json"]
    if json and draft.get("publish.schemas") is None:
        names = " and ".join(f"{side}.converter.schemas.enable" for side in json)
        draft.notes.append(
            f"property {names} isn't set: events are written without schemas, JsonConverter's own default is "
            "with them; set it to true for those"
        )


def _note_what_the_server_cannot_apply(draft: Draft) -> None:
    for option in ("tables", "exclude_tables"):
        for pattern in draft.values.get(option, ()):
            if _compiles(pattern) and not server_applies(pattern):
                draft.notes.append(
                    f"MongoDB can't apply {pattern} of {option}: it sends what it could have left out, and "
                    "the capture chooses. Literals, '.', classes, groups and quantifiers of ASCII it can"
                )


def _compiles(pattern: str) -> bool:
    """Tell whether a pattern is one at all; the declaration refuses others with its own message."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _mongodbs_choices(draft: Draft) -> None:
    """Tell where an import does otherwise than Debezium's default, or than its words."""
    if draft.get("source.scope") in (None, "deployment") and draft.get("source.target"):
        draft.notes.append("property capture.target is left out: scope deployment watches all databases")
        draft.values["source"].pop("target")
    if {"c", "u", "d"} & set(draft.values.get("publish", {}).get("skipped_operations", ())):
        draft.notes.append(
            "property skipped.operations leaves out events; the server sends these changes all the same, as "
            "mirrors need them. source.stream.skipped_operations leaves them out there"
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
        raise wrong("capture.mode", f"one of {', '.join(_CAPTURE_MODES)}", mode)
    full, pre_images = _CAPTURE_MODES[mode]
    kind = draft.properties.get("capture.mode.full.update.type", "lookup").strip().lower()
    if kind not in ("lookup", "post_image"):
        raise wrong("capture.mode.full.update.type", "lookup or post_image", kind)
    draft.set("source.full_document", kind if full else "none")
    draft.set("source.pre_images", pre_images)


RULES: Final[Mapping[str, Rules]] = {
    "mongodb": MONGODB,
    "cassandra": CASSANDRA,
    "vitess": VITESS,
    "scylla": SCYLLA,
    "debezium": READ_TOPICS,
}
"""By source, what becomes of each property."""
