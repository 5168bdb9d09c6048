"""Import of the properties of ScyllaDB's source connector."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.rules import Imported

LEAST = {
    "connector.class": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
    "topic.prefix": "cdc",
    "scylla.cluster.ip.addresses": "10.0.0.1:9042,10.0.0.2:9042",
    "scylla.table.names": "shop.item,shop.order_lines",
}
TRANSFORMS = "com.scylladb.cdc.debezium.connector.transforms"


def imported(properties: dict[str, str] | None = None) -> Imported:
    return from_debezium({**LEAST, **(properties or {})})


def connector(**properties: str) -> Connector:
    return imported({name.replace("__", "."): value for name, value in properties.items()}).connector


def option(properties: dict[str, str], path: str) -> Any:
    found: Any = imported(properties).connector
    for name in path.split("."):
        found = getattr(found, name)
    return found


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in LEAST.items() if key != name}


@pytest.mark.covers("SCY-CFG-03", "SCY-CFG-04", "SCY-CFG-05")
def test_the_least_properties_make_a_connector_of_the_named_tables() -> None:
    found = imported()
    assert (found.connector.type, found.connector.topic_prefix) == ("scylla", "cdc")
    assert [found.connector.selects(f"shop.{t}") for t in ("item", "order_lines", "items", "other")] == [
        True,
        True,
        False,
        False,
    ]
    assert any("scylla.cluster.ip.addresses is ignored" in note for note in found.notes)
    for name in ("topic.prefix", "scylla.cluster.ip.addresses", "scylla.table.names"):
        with pytest.raises(ConfigurationError, match=f"{name} is missing"):
            from_debezium(without(name))
    old = {**without("topic.prefix"), "scylla.name": "old"}
    assert from_debezium(old).connector.topic_prefix == "old"
    assert imported({"scylla.name": "old"}).connector.topic_prefix == "cdc"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scylla.cluster.ip.addresses", "10.0.0.1"),
        ("scylla.table.names", "item"),
        ("scylla.consistency.level", "most"),
        ("scylla.query.time.window.size", "-1"),
        ("worker.jitter.percentage", "0"),
        ("worker.max.retries", "0"),
        ("cdc.output.format", "other"),
        ("cdc.include.before", "some"),
        ("cdc.include.primary-key.placement", "nowhere"),
    ],
)
def test_wrong_values_are_named_with_what_is_expected(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"invalid value for property {name}"):
        imported({name: value})


@pytest.mark.covers("SCY-CFG-06")
def test_a_login_is_both_or_neither() -> None:
    assert imported({"scylla.user": "u", "scylla.password": "p"}).notes
    for name in ("scylla.user", "scylla.password"):
        with pytest.raises(ConfigurationError, match="both or neither"):
            imported({name: "x"})


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("scylla.consistency.level", "local_quorum", "source.consistency", "LOCAL_QUORUM"),
        ("scylla.query.time.window.size", "15000", "source.query_window_seconds", 15),
        ("scylla.confidence.window.size", "45000", "source.confidence_window_seconds", 45),
        ("scylla.minimal.wait.for.window.time", "500", "source.minimal_wait_seconds", 0.5),
        ("scylla.initial.lookback.ms", "60000", "source.lookback_seconds", 60),
        ("scylla.query.options.fetch.size", "100", "source.fetch_size", 100),
        ("worker.retry.backoff.base", "20", "source.advanced.retry_backoff_seconds", 0.02),
        ("worker.maximum.backoff", "10000", "source.advanced.retry_max_backoff_seconds", 10),
        ("worker.jitter.percentage", "50", "source.advanced.retry_jitter_percent", 50),
        ("worker.max.retries", "5", "source.advanced.retries", 4),
        ("cdc.output.format", "advanced", "publish.scylla.format", "advanced"),
        ("experimental.preimages.enabled", "true", "publish.scylla.preimages", True),
        ("tombstones.on.delete", "false", "publish.tombstones", False),
    ],
)
def test_properties_are_options_of_ours(name: str, value: str, path: str, expected: object) -> None:
    assert option({name: value}, path) == expected


@pytest.mark.covers("SCY-CFG-10")
def test_retries_have_the_connectors_defaults_and_names() -> None:
    advanced = option({}, "source.advanced")
    pauses = (advanced.retry_backoff_seconds, advanced.retry_max_backoff_seconds)
    assert (*pauses, advanced.retry_jitter_percent, advanced.retries) == (0.05, 30.0, 20.0, 20)
    properties = {
        "worker.retry.backoff.base": "100",
        "worker.maximum.backoff": "5000",
        "worker.jitter.percentage": "10",
        "worker.max.retries": "3",
    }
    advanced = option(properties, "source.advanced")
    pauses = (advanced.retry_backoff_seconds, advanced.retry_max_backoff_seconds)
    assert (*pauses, advanced.retry_jitter_percent, advanced.retries) == (0.1, 5.0, 10.0, 2)


@pytest.mark.covers("SCY-CFG-02")
def test_common_options_of_debezium_mean_the_same() -> None:
    found = connector(
        key__converter="io.confluent.connect.avro.AvroConverter",
        value__converter="io.confluent.connect.avro.AvroConverter",
        topic__delimiter="-",
        tombstones__on__delete="false",
        skipped__operations="u,d",
        schema__name__adjustment__mode="avro",
    ).publish
    assert (found.key, found.value, found.topic_delimiter) == ("avro", "avro", "-")
    assert (found.tombstones, found.skipped_operations, found.schema_names) == (False, ("u", "d"), "avro")


def test_images_and_keys_of_the_advanced_format() -> None:
    found = imported(
        {
            "cdc.output.format": "advanced",
            "cdc.include.before": "only-updated",
            "cdc.include.after": "full",
            "cdc.include.primary-key.placement": "kafka-key, payload-key",
            "cdc.include.primary-key.payload-key-name": "pk",
        }
    ).connector.publish.scylla
    assert (found.before, found.after, found.payload_key_name) == ("only-updated", "full", "pk")
    assert found.key_placement == ("kafka-key", "payload-key")


def test_what_the_format_does_not_know_is_left_out_with_a_note() -> None:
    found = imported({"cdc.include.before": "full", "cdc.include.after": "none"})
    assert found.connector.publish.scylla.before == "none"
    assert "publish.scylla.before is ignored: it has no effect in format legacy" in found.notes


@pytest.mark.parametrize(
    "name",
    [
        "tasks.max",
        "scylla.local.dc",
        "scylla.ssl.enabled",
        "scylla.ssl.provider",
        "scylla.ssl.truststore.path",
        "scylla.ssl.truststore.password",
        "scylla.ssl.keystore.path",
        "scylla.ssl.keystore.password",
        "scylla.ssl.cipherSuites",
        "scylla.ssl.openssl.keyCertChain",
        "scylla.ssl.openssl.privateKey",
        "worker.shared.session.enabled",
        "worker.pooling.core.pool.local",
        "worker.pooling.max.pool.local",
        "worker.pooling.pool.timeout.ms",
        "worker.pooling.max.queue.size",
        "worker.pooling.max.requests.per.connection",
        "cdc.incomplete.task.timeout.ms",
        "offset.flush.interval.ms",
    ],
)
def test_what_only_the_connectors_process_or_the_connection_needs_is_left_out_with_a_note(name: str) -> None:
    notes = imported({name: "7"}).notes
    assert [note for note in notes if note.startswith(f"property {name} is ignored: ")]


@pytest.mark.covers("SCY-EVT-21")
def test_a_time_after_which_changes_are_dropped_has_no_counterpart() -> None:
    (note,) = [n for n in imported({"cdc.incomplete.task.timeout.ms": "15000"}).notes if "incomplete" in n]
    assert "source.confidence_window_seconds" in note
    assert "fails the capture and is never dropped" in note


def test_secrets_are_not_printed() -> None:
    notes = " ".join(imported({"scylla.user": "u", "scylla.password": "hunter2"}).notes)
    assert "hunter2" not in notes


@pytest.mark.parametrize("name", ["ScyllaExtractNewRecordState", "ScyllaExtractNewState"])
def test_transforms_of_the_connector_are_followed(name: str) -> None:
    found = imported(
        {
            "transforms": "rows",
            "transforms.rows.type": f"{TRANSFORMS}.{name}",
            "transforms.rows.add.fields": "op,source.ts_us",
            "transforms.rows.delete.tombstone.handling.mode": "rewrite",
        }
    ).connector.publish
    assert (found.unwrap.enabled, found.scylla.keep_cell_structs, found.unwrap.deletes) == (
        True,
        False,
        "rewrite",
    )
    assert found.unwrap.add_fields == ("op", "source.ts_us")
    flat = imported({"transforms": "f", "transforms.f.type": f"{TRANSFORMS}.ScyllaFlattenColumns"})
    assert flat.connector.publish.scylla.flatten_columns


def test_debeziums_own_extraction_is_followed_and_leaves_cells_in_the_legacy_format() -> None:
    lead = {"transforms": "rows", "transforms.rows.type": "io.debezium.transforms.ExtractNewRecordState"}
    found = imported({**lead, "transforms.rows.drop.tombstones": "false"}).connector.publish
    assert (found.unwrap.enabled, found.scylla.keep_cell_structs, found.unwrap.deletes) == (
        True,
        True,
        "tombstone",
    )
    advanced = imported({**lead, "cdc.output.format": "advanced"}).connector.publish
    assert not advanced.scylla.keep_cell_structs


def test_other_transforms_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"transforms\.r\.type is not supported"):
        imported({"transforms": "r", "transforms.r.type": "io.debezium.transforms.ContentBasedRouter"})


def test_a_topic_naming_strategy_that_the_connector_does_not_read_has_no_effect() -> None:
    found = imported({"topic.naming.strategy": "io.debezium.schema.SchemaTopicNamingStrategy"})
    assert found.connector.publish.topic_naming == ""
    assert "ScyllaDB's connector doesn't read it" in "".join(found.notes)
