from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.debezium import (
    _RULES,
    from_debezium,
    load_debezium_properties,
    parse_properties,
)
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

MONGODB = {
    "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
    "mongodb.connection.string": "mongodb://user:secret@host/?replicaSet=rs0",
    "topic.prefix": "shop",
}
CASSANDRA = {
    "connector.class": "io.debezium.connector.cassandra.CassandraConnector",
    "topic.prefix": "cdc",
    "cassandra.password": "secret",
}


def connector(**properties: str) -> Connector:
    return from_debezium({**MONGODB, **{k.replace("_", "."): v for k, v in properties.items()}}).connector


def source(**properties: str) -> MongodbOptions:
    options = connector(**properties).source
    assert isinstance(options, MongodbOptions)
    return options


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("a : b c", "a", "b c"),
        ("  a b", "a", "b"),
        (r"a=x\\.y", "a", r"x\.y"),
        (r"a\ b\=c=d", "a b=c", "d"),
        ("a=b,\\\n   c", "a", "b,c"),
        (r"a=\u00e9\tx", "a", "é\tx"),
        ("a", "a", ""),
        ("a=b\\", "a", "b"),
    ],
)
def test_javas_format_is_read(line: str, name: str, value: str) -> None:
    assert parse_properties(f"# comment\n! too\n\n{line}\n") == {name: value}


@pytest.mark.covers(
    "MDB-CAP-01", "MDB-CAP-02", "MDB-CAP-03", "MDB-CAP-04", "MDB-CAP-05", "MDB-CAP-06", "MDB-CAP-07"
)
@pytest.mark.parametrize(
    ("mode", "kind", "full_document", "pre_images"),
    [
        ("", "", "lookup", False),
        ("change_streams", "", "none", False),
        ("change_streams_with_pre_image", "", "none", True),
        ("change_streams_update_full", "post_image", "post_image", False),
        ("change_streams_update_full_with_pre_image", "lookup", "lookup", True),
    ],
)
def test_capture_modes_become_what_events_carry(
    mode: str, kind: str, full_document: str, pre_images: bool
) -> None:
    properties = {"capture_mode": mode, "capture_mode_full_update_type": kind}
    options = source(**{name: value for name, value in properties.items() if value})
    assert (options.full_document, options.pre_images) == (full_document, pre_images)


@pytest.mark.covers("MDB-FLT-01", "MDB-FLT-04", "MDB-FLT-07")
def test_lists_select_collections_without_regard_to_case() -> None:
    made = connector(collection_include_list=r"shop\.orders,shop2\..*")
    assert made.selects("shop.orders")
    assert made.selects("SHOP.Orders")
    assert made.selects("shop2.x")
    assert not made.selects("shop.orders2")
    assert not made.selects("myshop.orders")


@pytest.mark.covers("MDB-FLT-01", "MDB-FLT-07")
def test_literal_lists_are_taken_as_they_are() -> None:
    made = connector(filters_match_mode="literal", collection_include_list="shop.or*, shop.b")
    assert made.selects("shop.or*")
    assert made.selects("shop.b")
    assert not made.selects("shop.orders")
    assert not made.selects("Shop.b")


@pytest.mark.covers("MDB-FLT-02", "MDB-FLT-03", "MDB-FLT-05")
def test_databases_and_collections_both_must_match() -> None:
    made = connector(database_include_list="shop,shop2", collection_exclude_list=r"shop\.(a|b)")
    assert made.selects("shop.c")
    assert made.selects("shop2.a")
    assert not made.selects("shop.a")
    assert not made.selects("other.c")
    assert not connector(database_exclude_list="shop").selects("shop.c")


@pytest.mark.covers("MDB-FLT-04", "MDB-FLT-06")
def test_the_servers_own_databases_are_never_captured() -> None:
    assert not any(connector().selects(f"{database}.x") for database in ("admin", "local", "config"))


@pytest.mark.covers("MDB-FLT-03", "MDB-FLT-05")
@pytest.mark.parametrize(
    "properties",
    [
        {"collection_include_list": "a", "collection_exclude_list": "b"},
        {"database_include_list": "a", "database_exclude_list": "b"},
    ],
)
def test_lists_that_exclude_each_other_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        connector(**properties)


@pytest.mark.covers("MDB-EVT-15", "MDB-HDR-01")
def test_publishing_options_are_mapped() -> None:
    made = connector(
        tombstones_on_delete="false",
        extended_headers_enabled="false",
        key_converter_schemas_enable="true",
        value_converter_schemas_enable="true",
    )
    assert (made.publish.tombstones, made.publish.headers, made.publish.schemas) == (False, False, True)
    assert made.topic_prefix == "shop"


def test_secrets_are_left_to_the_connection_and_told() -> None:
    imported = from_debezium(MONGODB)
    assert "secret" not in repr(imported)
    assert [note.split()[1] for note in imported.notes] == ["mongodb.connection.string"]


@pytest.mark.covers("MDB-SRC-10", "MDB-CAP-12")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide_transaction_metadata", "true"),
        ("topic_delimiter", "_"),
        ("field_exclude_list", "shop.a.b"),
        ("cursor_pipeline", "[]"),
        ("snapshot_mode", "custom"),
        ("skipped_operations", "u"),
        ("transforms", "unwrap"),
        ("value_converter", "io.confluent.connect.avro.AvroConverter"),
        ("heartbeat_interval_ms", "2000"),
        ("json_serialization_mode", "extended"),
    ],
)
def test_what_would_change_events_is_refused_with_a_reason(name: str, value: str) -> None:
    dotted = name.replace("_", ".")
    with pytest.raises(ConfigurationError, match=f"property {dotted} can't be followed") as refused:
        connector(**{name: value})
    assert refused.value.remedy


@pytest.mark.covers("MDB-SRC-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide_transaction_metadata", "false"),
        ("topic_delimiter", "."),
        ("heartbeat_interval_ms", "0"),
        ("schema_name_adjustment_mode", "none"),
        ("max_queue_size", "8192"),
        ("key_converter", "org.apache.kafka.connect.json.JsonConverter"),
    ],
)
def test_debeziums_defaults_are_accepted(name: str, value: str) -> None:
    assert connector(**{name: value}).name == "shop"


@pytest.mark.covers("MDB-CAP-01")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capture_mode", "oplog"),
        ("tombstones_on_delete", "yes"),
        ("capture_scope", "shard"),
        ("cursor_max_await_time_ms", "soon"),
        ("connector_class", "io.debezium.connector.mysql.MySqlConnector"),
    ],
)
def test_wrong_values_are_refused_with_what_is_expected(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match="is wrong: expected"):
        connector(**{name: value})


def test_an_unknown_property_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean collection\.include\.list\?"):
        connector(colection_include_list="a")


def test_keys_and_values_must_be_written_alike() -> None:
    with pytest.raises(ConfigurationError, match="written alike"):
        connector(key_converter_schemas_enable="true", value_converter_schemas_enable="false")


@pytest.mark.covers("CAS-DEPLOY-02")
def test_cassandras_file_is_known_by_its_names(tmp_path: Path) -> None:
    file = tmp_path / "cdc.properties"
    file.write_text(
        "connector.name=test_connector\ncommit.log.relocation.dir=/relocation\nhttp.port=8000\n"
        "cassandra.config=/etc/cassandra.yaml\ncassandra.hosts=127.0.0.1\ncassandra.port=9042\n"
        "kafka.producer.bootstrap.servers=127.0.0.1:9092\nkafka.topic.prefix=test_prefix\n"
        "offset.backing.store.dir=/store\nsnapshot.consistency=ONE\nsnapshot.mode=ALWAYS\n"
    )
    imported = load_debezium_properties(file)
    made = imported.connector
    assert isinstance(made.source, CassandraOptions)
    assert (made.name, made.topic_prefix) == ("test_connector", "test_prefix")
    assert (made.source.consistency, made.snapshot.mode) == ("ONE", "always")
    assert not made.publish.tombstones  # Debezium's default for Cassandra
    assert len(imported.notes) == 7


def test_cassandra_options_are_mapped() -> None:
    made = from_debezium({**CASSANDRA, "table.include.list": r"shop\.a"}).connector
    assert made.type == "cassandra"
    assert made.selects("shop.a")
    assert not made.selects("shop.b")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no connector file"):
        load_debezium_properties(tmp_path / "none.properties")


def test_an_imported_declaration_is_written_back_to_the_same() -> None:
    made = connector(collection_include_list="a", capture_mode="change_streams")
    assert Connector.from_dict(made.to_dict()) == made


@pytest.mark.parametrize("kind", list(_RULES))
def test_every_known_property_is_mapped_left_out_or_refused_on_purpose(kind: str) -> None:
    base = MONGODB if kind == "mongodb" else CASSANDRA
    for name in _RULES[kind]:
        full = name.replace("*", "some")
        try:
            from_debezium({**base, full: "some text"})
        except ConfigurationError as error:
            assert full.split(".some")[0] in str(error), error
