"""A property is imported if it has an effect; if not, the plan says so."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import RULES, from_debezium
from airflow_cdc_provider.migration.debezium.review import review
from airflow_cdc_provider.properties_file import parse_properties
from tests.unit.migration.documented import DEFAULTS, LEAST

JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
ORDERED = "io.debezium.connector.vitess.pipeline.txmetadata.VitessOrderedTransactionMetadataFactory"
BASED_ON = "snapshot.mode.configuration.based"


def outcomes(kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    reviewed = review({**LEAST[kind], **properties})
    return {v.name: v.outcome for v in reviewed.verdicts if v.name in properties}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_property_that_is_imported_without_an_option_changes_the_declaration(kind: str) -> None:
    for name, value in DEFAULTS[kind].items():
        reviewed = review({**LEAST[kind], name: value})
        (verdict,) = (v for v in reviewed.verdicts if v.name == name)
        if verdict.outcome == "imported" and not verdict.options and "accepted" not in verdict.text:
            assert from_debezium(LEAST[kind]).connector != reviewed.imported.connector, name


@pytest.mark.parametrize(
    ("kind", "properties", "without_effect"),
    [
        ("mongodb", {"capture.mode": "change_streams"}, {"capture.mode.full.update.type": "post_image"}),
        ("mongodb", {}, {f"{BASED_ON}.snapshot.data": "true"}),
        ("mongodb", {}, {"snapshot.mode.custom.name": "com.example.Mine"}),
        ("mongodb", {}, {"cursor.pipeline.order": "user_first"}),
        ("mongodb", {}, {"cursor.oversize.skip.threshold": "1000"}),
        ("mongodb", {}, {"snapshot.collection.filter.overrides.shop.a": "{}"}),
        ("mongodb", {}, {"capture.target": "shop"}),
        ("mongodb", {}, {"topic.transaction": "tx"}),
        ("mongodb", {}, {"topic.heartbeat.prefix": "hb"}),
        ("mongodb", {}, {"guardrail.collections.limit.action": "fail"}),
        ("mongodb", {"value.converter": JSON}, {"value.converter.optional.for.nullables": "true"}),
        ("cassandra", {}, {"extended.headers.enabled": "false"}),
        ("cassandra", {}, {"incremental.snapshot.chunk.size": "10"}),
        ("vitess", {}, {"incremental.snapshot.chunk.size": "10"}),
        ("vitess", {}, {"transaction.metadata.factory": ORDERED}),
        ("vitess", {}, {"vitess.prev.num.tasks": "3"}),
        ("vitess", {}, {"override.schema.change.topic": "ddl"}),
        ("scylla", {}, {"cdc.include.before": "full"}),
        ("scylla", {}, {"event.processing.failure.handling.mode": "skip"}),
        ("scylla", {}, {"incremental.snapshot.chunk.size": "10"}),
    ],
)
def test_a_property_without_effect_is_not_called_imported(
    kind: str, properties: Mapping[str, str], without_effect: Mapping[str, str]
) -> None:
    found = outcomes(kind, {**properties, **without_effect})
    assert {found[name] for name in without_effect} == {"ignored"}
    assert set(found.values()) <= {"imported", "ignored"}


def test_settings_that_are_passed_through_stay_imported() -> None:
    settings = {"producer.acks": "1", "producer.linger.ms": "5", "producer.compression.type": "zstd"}
    assert set(outcomes("mongodb", settings).values()) == {"imported"}


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        ("mongodb", "mongodb.name"),
        ("cassandra", "kafka.topic.prefix"),
        ("vitess", "database.server.name"),
        ("scylla", "scylla.name"),
        ("debezium", "database.server.name"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_prefix_of_newer_releases_replaces_that_of_older_ones(
    kind: str, old: str, *, first: bool
) -> None:
    least = {name: value for name, value in LEAST[kind].items() if name != "topic.prefix"}
    both = {old: "before", "topic.prefix": "now"} if first else {"topic.prefix": "now", old: "before"}
    found = from_debezium({**least, **both})
    assert found.connector == from_debezium({**least, "topic.prefix": "now"}).connector
    assert f"property {old} is ignored: topic.prefix replaces it" in found.notes
    assert from_debezium({**least, old: "before"}).connector.name == "before"


@pytest.mark.parametrize(
    "reference",
    ["${file:/x:y}", "${my-vault:path:key}", "${aws secrets:x}", "a,${env:TABLES}", "${secrets:a/b:c}"],
)
def test_references_to_any_provider_are_refused(reference: str) -> None:
    for name in ("collection.include.list", "signal.data.collection"):
        with pytest.raises(ConfigurationError, match=f"property {name}.*replace it with its value"):
            from_debezium({**LEAST["mongodb"], name: reference})
    with pytest.raises(ConfigurationError, match=r"property isbn\.columns.*replace it with its value"):
        from_debezium(
            {**LEAST["vitess"], "converters": "isbn", "isbn.type": "a.b:c", "isbn.columns": reference}
        )


def test_snapshots_are_limited_by_expressions_even_if_other_lists_are_literals() -> None:
    lists = {"filters.match.mode": "literal", "snapshot.include.collection.list": r"shop\..*"}
    assert from_debezium({**LEAST["mongodb"], **lists}).connector.snapshot.include == (r"(?i:shop\..*)",)


def test_both_lists_of_excluded_columns_are_excluded() -> None:
    lists = {"field.exclude.list": "k.t.card", "column.exclude.list": "k.t.name"}
    assert from_debezium({**LEAST["cassandra"], **lists}).connector.publish.exclude_columns == (
        "k.t.card",
        "k.t.name",
    )


@pytest.mark.parametrize(
    ("key", "key_schemas", "value", "value_schemas", "expected"),
    [
        (STRING, "false", JSON, "true", True),
        (STRING, "true", JSON, "false", False),
        (AVRO, "false", JSON, "true", True),
        (JSON, "true", AVRO, "false", True),
        (AVRO, "true", AVRO, "true", False),
        (JSON, "true", JSON, "true", True),
    ],
)
def test_schemas_follow_the_side_that_is_json(
    key: str, key_schemas: str, value: str, value_schemas: str, *, expected: bool
) -> None:
    properties = {
        "key.converter": key,
        "key.converter.schemas.enable": key_schemas,
        "value.converter": value,
        "value.converter.schemas.enable": value_schemas,
    }
    assert from_debezium({**LEAST["mongodb"], **properties}).connector.publish.schemas is expected


def test_each_setting_of_a_converter_has_a_line_in_the_plan() -> None:
    settings = {"converters": "isbn", "isbn.type": "a.b:c", "isbn.columns": "k.t.c", "isbn.digits": "13"}
    assert set(outcomes("cassandra", settings).values()) == {"imported"}


@pytest.mark.parametrize("kind", ["mongodb", "vitess"])
def test_defaults_of_the_converter_of_cloud_events_are_accepted(kind: str) -> None:
    cloud = {"value.converter": "io.debezium.converters.CloudEventsConverter"}
    defaults = {f"value.converter.{name}": "json" for name in ("serializer.type", "data.serializer.type")}
    assert from_debezium({**LEAST[kind], **cloud, **defaults}).connector.publish.envelope == "cloudevents"


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("value", ["true", "fail", "skip", "all", "full", "a.b:C", "1000"])
def test_a_value_of_any_property_ends_in_no_error_but_one_of_the_configuration(kind: str, value: str) -> None:
    for rule in RULES[kind]:
        name = f"{rule[:-1]}x.y" if rule.endswith("*") else rule
        with contextlib.suppress(ConfigurationError):
            review({**LEAST[kind], name: value})


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_line_ends_of_java_end_a_property(character: str) -> None:
    text = f"a=x{character}y\r\nb=1\rc=2\nd=3"
    assert parse_properties(text) == {"a": f"x{character}y", "b": "1", "c": "2", "d": "3"}
