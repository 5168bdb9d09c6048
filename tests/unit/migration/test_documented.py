"""The examples and defaults in the documentation of Debezium's and DataStax's connectors are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.debezium.review import review
from airflow_cdc_provider.migration.rules import Imported
from airflow_cdc_provider.migration.settings_file import load_connector_file, read_settings
from airflow_cdc_provider.sources.registry import source_plugin
from tests.unit.migration.documented import (
    CASSANDRA_EXAMPLE,
    CASSANDRA_PRODUCER,
    DEFAULTS,
    LEAST,
    MONGODB_EXAMPLE,
    VITESS_EXAMPLE,
    VITESS_TASKS_EXAMPLE,
)

EXAMPLES = {
    "cassandra": CASSANDRA_EXAMPLE,
    "cassandra-producer": CASSANDRA_EXAMPLE + CASSANDRA_PRODUCER,
    "mongodb": MONGODB_EXAMPLE,
    "vitess": VITESS_EXAMPLE,
    "vitess-tasks": VITESS_TASKS_EXAMPLE,
}
CONNECTIONS: Mapping[str, Mapping[str, Any]] = {
    "cassandra": {"host": "127.0.0.1"},
    "mongodb": {"host": "127.0.0.1"},
    "vitess": {"host": "127.0.0.1"},
}


def accepted_by_jobs(connector: Connector) -> None:
    """Do what a job does with a declaration before it connects."""
    assert Connector.from_dict(connector.to_dict()) == connector
    source_plugin(connector.type).source(connector, CONNECTIONS[connector.type]).close()


def loaded(folder: Path, text: str) -> Imported:
    file = folder / "connector"
    file.write_text(text)
    return load_connector_file(file)


@pytest.mark.covers("CAS-IMP-01", "MDB-IMP-01", "VIT-IMP-01")
@pytest.mark.parametrize("example", EXAMPLES)
def test_each_documented_example_becomes_a_declaration_that_jobs_accept(example: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, EXAMPLES[example])
    accepted_by_jobs(found.connector)
    assert "secret" not in repr(found)
    assert not review(read_settings(EXAMPLES[example])).of("unsupported")


def test_cassandras_example_keeps_what_it_says_and_reports_what_differs(tmp_path: Path) -> None:
    found = loaded(tmp_path, CASSANDRA_EXAMPLE)
    connector, notes = found.connector, "\n".join(found.notes)
    assert (connector.name, connector.topic_prefix) == ("test_connector", "test_prefix")
    assert (connector.publish.key, connector.publish.value) == ("avro", "avro")
    assert connector.publish.registry.url == "http://localhost:8081"
    assert connector.publish.kafka.producer == {"retries": "3", "retry.backoff.ms": "1000"}
    assert (connector.snapshot.mode, connector.tombstones) == ("initial", False)
    assert "latest.commit.log.only is ignored: jobs read all segments" in notes
    assert "snapshot.mode: always of Debezium's connector for Cassandra reads newly enabled tables" in notes


def test_vitess_examples_report_the_snapshot_that_older_releases_do_not_take(tmp_path: Path) -> None:
    found = loaded(tmp_path, VITESS_EXAMPLE)
    assert found.connector.snapshot.mode == "initial"
    assert any("snapshot.mode isn't set: the first run reads all tables" in note for note in found.notes)
    never = from_debezium({**read_settings(VITESS_EXAMPLE), "snapshot.mode": "never"})
    assert not any("snapshot.mode" in note for note in never.notes)


@pytest.mark.covers("CAS-IMP-02", "MDB-IMP-02", "VIT-IMP-02")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_every_documented_default_is_accepted_alone(kind: str) -> None:
    for name, value in DEFAULTS[kind].items():
        accepted_by_jobs(from_debezium({**LEAST[kind], name: value}).connector)


@pytest.mark.covers("CAS-IMP-02", "MDB-IMP-02", "VIT-IMP-02")
@pytest.mark.parametrize("kind", DEFAULTS)
def test_all_documented_defaults_are_accepted_together_and_mean_the_same_as_none(kind: str) -> None:
    every = from_debezium({**LEAST[kind], **DEFAULTS[kind]}).connector
    accepted_by_jobs(every)
    plain = from_debezium(LEAST[kind]).connector
    assert every.selects("inventory.customers")
    assert every.snapshot == plain.snapshot
    assert (every.tombstones, every.publish.key, every.publish.transactions) == (
        plain.tombstones,
        plain.publish.key,
        plain.publish.transactions,
    )
    assert not review({**LEAST[kind], **DEFAULTS[kind]}).of("unsupported")


@pytest.mark.parametrize("word", ["literal", "LITERAL", " Literal "])
def test_names_are_literal_whatever_the_case_of_the_mode(word: str) -> None:
    lists = {"filters.match.mode": word, "collection.include.list": "shop.a+b, shop.c"}
    built = from_debezium({**LEAST["mongodb"], **lists}).connector
    assert [built.selects(name) for name in ("shop.a+b", "shop.c", "shop.aab", "shopxc")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("kind", ["cassandra", "vitess"])
def test_a_converter_needs_columns_in_the_plan_as_in_the_run(kind: str) -> None:
    named = {"converters": "isbn", "isbn.type": "shop.books:isbn", "isbn.schema.name": "io.debezium.Isbn"}
    with pytest.raises(ConfigurationError, match=r"property isbn\.columns is missing"):
        from_debezium({**LEAST[kind], **named})
    (verdict,) = review({**LEAST[kind], **named}).of("unsupported")
    assert "isbn.columns" in verdict.text
    built = from_debezium({**LEAST[kind], **named, "isbn.columns": r"shop\.books\.isbn"}).connector
    converters = getattr(built.publish, kind).converters
    assert converters["isbn"]["schema_name"] == "io.debezium.Isbn"
    with pytest.raises(ConfigurationError, match="converter isbn has no columns"):
        Connector.from_dict(
            {
                **built.to_dict(),
                "publish": {kind: {"converters": {"isbn": {"type": "shop.books:isbn"}}}},
            }
        )


@pytest.mark.parametrize("kind", ["cassandra", "vitess"])
def test_a_java_converter_is_refused_with_what_to_do(kind: str) -> None:
    named = {"converters": "isbn", "isbn.type": "io.debezium.test.IsbnConverter"}
    with pytest.raises(ConfigurationError, match="implement it as a Python function"):
        from_debezium({**LEAST[kind], **named})


def test_blue_aprons_converter_is_refused_without_offering_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_debezium(
            {**LEAST["cassandra"], "value.converter": "com.blueapron.connect.protobuf.ProtobufConverter"}
        )
    assert "compiled Java class" in refused.value.remedy
    assert "io.confluent.connect.protobuf.ProtobufConverter" in refused.value.remedy
    assert "com.blueapron" not in refused.value.remedy


@pytest.mark.covers("MDB-IMP-03")
@pytest.mark.parametrize("name", ["partitioner.class", "producer.partitioner.class"])
@pytest.mark.parametrize(
    ("java", "partitioner"),
    [
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2_random"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", "random"),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", "random"),
        ("com.x.Mine", None),
    ],
)
def test_partitions_are_those_of_kafkas_partitioner_or_it_is_refused(
    name: str, java: str, partitioner: str | None
) -> None:
    properties = {**LEAST["mongodb"], name: java}
    if partitioner is None:
        with pytest.raises(ConfigurationError, match=r"com\.x\.Mine.*transform of type partition"):
            from_debezium(properties)
    else:
        assert from_debezium(properties).connector.publish.kafka.producer == {"partitioner": partitioner}


def test_keys_may_be_left_out_of_partitioning_and_settings_of_java_alone_are_noted() -> None:
    properties = {"producer.partitioner.ignore.keys": "true", "producer.metadata.max.idle.ms": "1"}
    found = from_debezium({**LEAST["mongodb"], **properties})
    assert found.connector.publish.kafka.producer == {"partitioner": "random"}
    assert any("producer.metadata.max.idle.ms is ignored" in note for note in found.notes)


def test_columns_are_excluded_by_the_name_in_datastaxs_documentation(tmp_path: Path) -> None:
    columns = "column.exclude.list=shop.orders.card,shop.orders.home.street\n"
    for text in (CASSANDRA_EXAMPLE + "\n" + columns, "topicPrefix=events-\n" + columns):
        assert loaded(tmp_path, text).connector.publish.exclude_columns == (
            "shop.orders.card",
            "shop.orders.home.street",
        )
    with pytest.raises(ConfigurationError, match="without regular expressions"):
        loaded(tmp_path, r"topicPrefix=events-" "\n" r"column.exclude.list=shop[.].*[.]card")


def test_tombstones_of_cassandra_are_off_by_default_and_reported_where_they_are_on() -> None:
    def tombstones(kind: str, **publish: Any) -> bool:
        source = {"type": kind, **({"keyspace": "shop"} if kind == "vitess" else {})}
        return Connector.from_dict({"name": "c", "source": source, "publish": publish}).tombstones

    assert not tombstones("cassandra")
    assert tombstones("cassandra", tombstones=True)
    assert tombstones("cassandra", envelope="datastax-cells")
    assert all(tombstones(kind) for kind in ("mongodb", "vitess"))
    found = from_debezium({**LEAST["cassandra"], "tombstones.on.delete": "true"})
    assert found.connector.tombstones
    assert any("don't use it on compacted topics" in note for note in found.notes)


def test_streaming_alone_with_a_snapshot_after_lost_changes_is_a_mode() -> None:
    based_on = "snapshot.mode.configuration.based"
    flags = {f"{based_on}.start.stream": "true", f"{based_on}.snapshot.on.data.error": "true"}
    built = from_debezium({**LEAST["mongodb"], "snapshot.mode": "configuration_based", **flags}).connector
    assert [built.lost_position_action(hole=hole) for hole in (False, True)] == ["snapshot", "snapshot"]
    accepted_by_jobs(built)
