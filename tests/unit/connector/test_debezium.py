from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.debezium import (
    RULES,
    from_debezium,
    load_debezium_properties,
)
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues
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


@pytest.mark.covers("MDB-FLT-01", "MDB-FLT-07", "MDB-FLT-02")
def test_literal_lists_are_taken_as_they_are() -> None:
    made = connector(filters_match_mode="literal", collection_include_list="shop.or*, shop.b")
    assert made.selects("shop.or*")
    assert made.selects("shop.b")
    assert not made.selects("shop.orders")
    assert not made.selects("Shop.b")
    of_databases = connector(filters_match_mode="literal", database_include_list=" shop , x.*")
    assert of_databases.selects("shop.a")
    assert not any(of_databases.selects(name) for name in ("shop2.a", "myshop.a", "Shop.a", "xy.a"))


@pytest.mark.covers("MDB-FLT-02", "MDB-FLT-03", "MDB-FLT-05")
def test_databases_and_collections_both_must_match() -> None:
    made = connector(database_include_list="shop,shop2", collection_exclude_list=r"shop\.(a|b)")
    assert made.selects("shop.c")
    assert made.selects("shop2.a")
    assert not made.selects("shop.a")
    assert not made.selects("other.c")
    assert made.selects("shop.ab")
    excluding = connector(database_exclude_list="shop")
    assert not excluding.selects("shop.c")
    assert excluding.selects("shop2.c")
    assert connector(collection_include_list="").selects("any.thing")


@pytest.mark.covers("CAS-D3X-03")
def test_the_drivers_file_is_taken_over_and_its_other_settings_are_the_connections() -> None:
    made = from_debezium({**CASSANDRA, "cassandra.driver.config.file": "/etc/cdc/application.conf"})
    assert isinstance(made.connector.source, CassandraOptions)
    assert made.connector.source.driver_config_file == "/etc/cdc/application.conf"
    assert not [note for note in made.notes if "cassandra.driver" in note]


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


@pytest.mark.covers("CAS-D3X-13")
def test_metric_tags_are_taken_over() -> None:
    made = connector(custom_metric_tags="env=prod, team = orders")
    assert made.metric_tags == {"env": "prod", "team": "orders"}
    assert made.tags == {"env": "prod", "team": "orders", "connector": "shop", "source": "mongodb"}
    assert Connector.from_dict(made.to_dict()) == made
    with pytest.raises(ConfigurationError, match=r"custom\.metric\.tags is wrong: expected k1=v1,k2=v2"):
        connector(custom_metric_tags="prod")
    with pytest.raises(ConfigurationError, match="names that metrics do not have already"):
        connector(custom_metric_tags="connector=other")


def test_secrets_are_left_to_the_connection_and_told() -> None:
    imported = from_debezium(MONGODB)
    assert "secret" not in repr(imported)
    assert [note.split()[1] for note in imported.notes] == ["mongodb.connection.string"]


@pytest.mark.covers("MDB-SRC-10", "MDB-CAP-12")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide_transaction_metadata", "true"),
        ("field_exclude_list", "shop.a.b"),
        ("cursor_pipeline", "[]"),
        ("snapshot_mode", "custom"),
        ("transforms", "unwrap"),
        ("heartbeat_interval_ms", "2000"),
        ("json_serialization_mode", "extended"),
        ("source_struct_version", "v1"),
        ("signal_data_collection", "shop.signals"),
    ],
)
def test_what_would_change_events_is_refused_with_a_reason(name: str, value: str) -> None:
    dotted = name.replace("_", ".")
    with pytest.raises(ConfigurationError, match=f"property {dotted} can't be followed") as refused:
        connector(**{name: value})
    assert refused.value.remedy


@pytest.mark.covers("MDB-SRC-10", "MDB-LIM-02")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide_transaction_metadata", "false"),
        ("topic_delimiter", "."),
        ("heartbeat_interval_ms", "0"),
        ("schema_name_adjustment_mode", "none"),
        ("max_queue_size", "8192"),
        ("source_struct_version", "v2"),
        ("skipped_operations", "t"),
        ("key_converter", "org.apache.kafka.connect.json.JsonConverter"),
    ],
)
def test_debeziums_defaults_are_accepted(name: str, value: str) -> None:
    assert connector(**{name: value}).name == "shop"


@pytest.mark.covers("MDB-CAP-01", "MDB-NAME-02")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capture_mode", "oplog"),
        ("tombstones_on_delete", "yes"),
        ("capture_scope", "shard"),
        ("cursor_max_await_time_ms", "soon"),
        ("connector_class", "io.debezium.connector.mysql.MySqlConnector"),
        ("topic_prefix", "a b"),
        ("topic_prefix", "ü"),
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


def test_a_json_converter_without_its_schemas_setting_is_told_as_its_default_differs() -> None:
    json_converter = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    imported = from_debezium({**MONGODB, **json_converter})
    assert imported.connector.publish.schemas is False
    assert any("value.converter.schemas.enable isn't set" in note for note in imported.notes)
    told = from_debezium({**MONGODB, **json_converter, "value.converter.schemas.enable": "false"}).notes
    assert not any("schemas.enable" in note for note in told)


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
    assert (made.source.consistency, made.snapshot.mode) == ("ONE", "initial")
    assert not made.publish.tombstones  # Debezium's default for Cassandra
    assert len(imported.notes) == 7


@pytest.mark.covers("CAS-D3X-04")
def test_cassandra_options_are_mapped() -> None:
    made = from_debezium(
        {**CASSANDRA, "table.include.list": r"shop\.a", "cassandra.node.id": "node-1"}
    ).connector
    assert made.type == "cassandra"
    assert isinstance(made.source, CassandraOptions)
    assert made.source.node == "node-1"
    assert made.selects("shop.a")
    assert not made.selects("shop.b")


@pytest.mark.covers("CAS-CFG-01", "CAS-SNAP-02")
@pytest.mark.parametrize(
    ("value", "mode"),
    # Debezium's ALWAYS looks for new tables all the time, and reads none twice; so does each run here.
    [("INITIAL", "initial"), ("initial", "initial"), ("Always", "initial"), ("NEVER", "never")],
)
def test_cassandras_snapshot_modes_are_taken_in_any_case(value: str, mode: str) -> None:
    assert from_debezium({**CASSANDRA, "snapshot.mode": value}).connector.snapshot.mode == mode
    with pytest.raises(ConfigurationError, match=r"snapshot\.mode is wrong: expected one of initial, always"):
        from_debezium({**CASSANDRA, "snapshot.mode": f"{value}ly"})


@pytest.mark.covers("MDB-NAME-04")
@pytest.mark.parametrize("base", [MONGODB, CASSANDRA], ids=["mongodb", "cassandra"])
def test_the_class_of_a_copied_file_selects_the_source(base: dict[str, str]) -> None:
    made = from_debezium(base).connector
    kind = MongodbOptions if base is MONGODB else CassandraOptions
    assert made.type in base["connector.class"]
    assert isinstance(made.source, kind)


@pytest.mark.covers("MDB-SNAP-17")
def test_filters_of_snapshots_are_taken_by_collection() -> None:
    name = "snapshot.collection.filter.overrides"
    filters = {f"{name}.shop.a": '{"n": 1}', f"{name}.shop.b": "{}"}
    made = from_debezium({**MONGODB, name: "shop.a, shop.b", **filters}).connector
    assert made.snapshot.filters == {"shop.a": '{"n": 1}', "shop.b": "{}"}
    with pytest.raises(ConfigurationError, match=r"overrides\.shop\.c is missing"):
        from_debezium({**MONGODB, name: "shop.c"})


@pytest.mark.covers("MDB-CONN-10")
def test_the_connect_timeout_bounds_an_attempt() -> None:
    assert source().advanced.connect_timeout_seconds == 10.0
    options = source(mongodb_connect_timeout_ms="2500")
    values = ConnectionValues.read({"host": "h"}, options.advanced.connect_timeout_seconds)
    with values.client(connect=False) as client:
        assert client.options.pool_options.connect_timeout == 2.5


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no connector file"):
        load_debezium_properties(tmp_path / "none.properties")


def test_an_imported_declaration_is_written_back_to_the_same() -> None:
    made = connector(collection_include_list="a", capture_mode="change_streams")
    assert Connector.from_dict(made.to_dict()) == made


@pytest.mark.parametrize("kind", list(RULES))
def test_every_known_property_is_mapped_left_out_or_refused_on_purpose(kind: str) -> None:
    base = MONGODB if kind == "mongodb" else CASSANDRA
    for name in RULES[kind]:
        full = name.replace("*", "some")
        try:
            from_debezium({**base, full: "some text"})
        except ConfigurationError as error:
            assert full.split(".some")[0] in str(error), error


def test_patterns_that_the_server_cannot_apply_are_told() -> None:
    def notes(value: str) -> list[str]:
        imported = from_debezium({"topic.prefix": "shop", "collection.include.list": value})
        return [note for note in imported.notes if "can't apply" in note]

    assert notes(r"shop\.orders,shop\.a[0-9]+") == []
    (note,) = notes(r"shop\.orders,shop\.b\d")
    assert r"shop\.b\d" in note
    assert len(notes("shop\\.\u00fcber")) == 1
