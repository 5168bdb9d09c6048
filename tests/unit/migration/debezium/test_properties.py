from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import RULES, from_debezium
from airflow_cdc_provider.migration.settings_file import load_connector_file
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.backoff import pauses
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
    built = connector(collection_include_list=r"shop\.orders,shop2\..*")
    assert built.selects("shop.orders")
    assert built.selects("SHOP.Orders")
    assert built.selects("shop2.x")
    assert not built.selects("shop.orders2")
    assert not built.selects("myshop.orders")


@pytest.mark.covers("MDB-FLT-01", "MDB-FLT-07", "MDB-FLT-02")
def test_literal_lists_are_taken_as_they_are() -> None:
    built = connector(filters_match_mode="literal", collection_include_list="shop.or*, shop.b")
    assert built.selects("shop.or*")
    assert built.selects("shop.b")
    assert not built.selects("shop.orders")
    assert not built.selects("Shop.b")
    of_databases = connector(filters_match_mode="literal", database_include_list=" shop , x.*")
    assert of_databases.selects("shop.a")
    assert not any(of_databases.selects(name) for name in ("shop2.a", "myshop.a", "Shop.a", "xy.a"))


@pytest.mark.covers("MDB-FLT-02", "MDB-FLT-03", "MDB-FLT-05")
def test_databases_and_collections_both_must_match() -> None:
    built = connector(database_include_list="shop,shop2", collection_exclude_list=r"shop\.(a|b)")
    assert built.selects("shop.c")
    assert built.selects("shop2.a")
    assert not built.selects("shop.a")
    assert not built.selects("other.c")
    assert built.selects("shop.ab")
    excluding = connector(database_exclude_list="shop")
    assert not excluding.selects("shop.c")
    assert excluding.selects("shop2.c")
    assert connector(collection_include_list="").selects("any.thing")


@pytest.mark.covers("CAS-D3X-03")
def test_the_drivers_file_is_imported_and_its_other_settings_are_the_connections() -> None:
    built = from_debezium({**CASSANDRA, "cassandra.driver.config.file": "/etc/cdc/application.conf"})
    assert isinstance(built.connector.source, CassandraOptions)
    assert built.connector.source.driver_config_file == "/etc/cdc/application.conf"
    assert not [note for note in built.notes if "cassandra.driver" in note]


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
    built = connector(
        tombstones_on_delete="false",
        extended_headers_enabled="false",
        key_converter_schemas_enable="true",
        value_converter_schemas_enable="true",
    )
    assert (built.publish.tombstones, built.publish.headers, built.publish.schemas) == (False, False, True)
    assert built.topic_prefix == "shop"


@pytest.mark.covers("CAS-D3X-13")
def test_metric_tags_are_imported() -> None:
    built = connector(custom_metric_tags="env=prod, team = orders")
    assert built.metric_tags == {"env": "prod", "team": "orders"}
    assert built.tags == {"env": "prod", "team": "orders", "connector": "shop", "source": "mongodb"}
    assert Connector.from_dict(built.to_dict()) == built
    with pytest.raises(ConfigurationError, match=r"custom\.metric\.tags: expected k1=v1,k2=v2"):
        connector(custom_metric_tags="prod")
    with pytest.raises(ConfigurationError, match="names other than the reserved tags"):
        connector(custom_metric_tags="connector=other")


@pytest.mark.covers("MDB-CONN-01")
def test_secrets_are_left_to_the_connection_and_reported() -> None:
    imported = from_debezium({**MONGODB, "mongodb.hosts": "rs0/old-host:27017"})
    assert "secret" not in repr(imported)
    assert "old-host" not in repr(imported), "the connection alone has hosts"
    assert [note.split()[1] for note in imported.notes] == ["mongodb.connection.string", "mongodb.hosts"]


@pytest.mark.covers("MDB-SRC-10", "MDB-CAP-12")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("snapshot_mode", "custom"),
        ("transforms", "unwrap"),
        ("heartbeat_action_query", "insert"),
        ("source_struct_version", "v1"),
        ("signal_enabled_channels", "source,pigeon"),
    ],
)
def test_what_would_change_events_is_refused_with_a_reason(name: str, value: str) -> None:
    dotted = name.replace("_", ".")
    with pytest.raises(ConfigurationError, match=f"property {dotted} is not supported") as refused:
        connector(**{name: value})
    assert refused.value.remedy


@pytest.mark.covers("MDB-SRC-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provide_transaction_metadata", "false"),
        ("topic_delimiter", "."),
        ("heartbeat_interval_ms", "0"),
        ("source_struct_version", "v2"),
        ("cursor_pipeline", ""),
        ("cursor_pipeline_order", "user_only"),
        ("cursor_oversize_skip_threshold", "0"),
        ("cursor_max_await_time_ms", "0"),
        ("capture_start_op_time", "-1"),
        ("snapshot_fetch_size", "0"),
        ("snapshot_mode_configuration_based_snapshot_data", "false"),
        ("guardrail_collections_max", "0"),
        ("guardrail_collections_limit_action", "warn"),
        ("key_converter", "org.apache.kafka.connect.json.JsonConverter"),
    ],
)
def test_debeziums_defaults_change_nothing(name: str, value: str) -> None:
    assert connector(**{name: value}) == connector()


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("schema_name_adjustment_mode", "none", {"publish": {"schema_names": "none"}}),
        ("skipped_operations", "t", {"publish": {"skipped_operations": ["t"]}}),
        (
            "max_queue_size",
            "8192",
            {"source": {"advanced": {"read_ahead_events": 8192, "batch_events": 2048}}},
        ),
        ("cursor_oversize_handling_mode", "fail", {"source": {"stream": {"oversize": "fail"}}}),
        ("mongodb_poll_interval_ms", "30000", {"source": {"advanced": {"heartbeat_seconds": 30.0}}}),
    ],
)
def test_debeziums_defaults_are_imported_where_ours_are_others(
    name: str, value: str, changed: dict[str, Any]
) -> None:
    expected = connector().to_dict()
    for section, values in changed.items():
        expected[section] = merged(expected[section], values)
    assert connector(**{name: value}).to_dict() == expected


def merged(section: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a section with other values, those of its own sections by name."""
    return section | {
        name: merged(section.get(name, {}), value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


@pytest.mark.covers("MDB-CAP-01", "MDB-NAME-02")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("capture_mode", "oplog"),
        ("tombstones_on_delete", "yes"),
        ("capture_scope", "shard"),
        ("cursor_max_await_time_ms", "soon"),
        ("connector_class", "io.debezium.connector.jdbc.JdbcSinkConnector"),
        ("topic_prefix", "a b"),
        ("topic_prefix", "ü"),
    ],
)
def test_wrong_values_are_refused_with_what_is_expected(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=": expected"):
        connector(**{name: value})


def test_an_unknown_property_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean collection\.include\.list\?"):
        connector(colection_include_list="a")


def test_keys_and_values_must_be_written_alike() -> None:
    with pytest.raises(ConfigurationError, match="must have the same setting"):
        connector(key_converter_schemas_enable="true", value_converter_schemas_enable="false")


def test_a_json_converter_without_its_schemas_setting_is_reported_as_its_default_differs() -> None:
    json_converter = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    imported = from_debezium({**MONGODB, **json_converter})
    assert imported.connector.publish.schemas is False
    assert any("value.converter.schemas.enable isn't set" in note for note in imported.notes)
    raised = from_debezium({**MONGODB, **json_converter, "value.converter.schemas.enable": "false"}).notes
    assert not any("schemas.enable" in note for note in raised)


@pytest.mark.covers("CAS-DEPLOY-02")
def test_cassandras_file_is_known_by_its_names(tmp_path: Path) -> None:
    file = tmp_path / "cdc.properties"
    file.write_text(
        "connector.name=test_connector\ncommit.log.relocation.dir=/relocation\nhttp.port=8000\n"
        "cassandra.config=/etc/cassandra.yaml\ncassandra.hosts=127.0.0.1\ncassandra.port=9042\n"
        "kafka.producer.bootstrap.servers=127.0.0.1:9092\nkafka.topic.prefix=test_prefix\n"
        "offset.backing.store.dir=/store\nsnapshot.consistency=ONE\nsnapshot.mode=ALWAYS\n"
    )
    imported = load_connector_file(file)
    built = imported.connector
    assert isinstance(built.source, CassandraOptions)
    assert (built.name, built.topic_prefix) == ("test_connector", "test_prefix")
    assert (built.source.consistency, built.snapshot.mode) == ("ONE", "initial")
    assert not built.tombstones  # Debezium's default for Cassandra
    assert len(imported.notes) == 8


@pytest.mark.covers("CAS-D3X-04")
def test_cassandra_options_are_mapped() -> None:
    built = from_debezium(
        {**CASSANDRA, "table.include.list": r"shop\.a", "cassandra.node.id": "node-1"}
    ).connector
    assert built.type == "cassandra"
    assert isinstance(built.source, CassandraOptions)
    assert built.source.node == "node-1"
    assert built.selects("shop.a")
    assert not built.selects("shop.b")


@pytest.mark.covers("CAS-CFG-01", "CAS-SNAP-02")
@pytest.mark.parametrize(
    ("value", "mode"),
    # Debezium's ALWAYS looks for new tables all the time, and reads none twice; so does each run here.
    [("INITIAL", "initial"), ("initial", "initial"), ("Always", "initial"), ("NEVER", "never")],
)
def test_cassandras_snapshot_modes_are_taken_in_any_case(value: str, mode: str) -> None:
    assert from_debezium({**CASSANDRA, "snapshot.mode": value}).connector.snapshot.mode == mode
    with pytest.raises(ConfigurationError, match=r"snapshot\.mode: expected one of initial, always"):
        from_debezium({**CASSANDRA, "snapshot.mode": f"{value}ly"})


@pytest.mark.covers("MDB-NAME-01", "MDB-NAME-03")
def test_names_have_no_default() -> None:
    assert (connector().name, connector().topic_prefix) == ("shop", "shop")
    assert (connector(name="one").name, connector(name="one").topic_prefix) == ("one", "shop")
    unnamed = {name: value for name, value in MONGODB.items() if name != "topic.prefix"}
    for given in (unnamed, {**unnamed, "name": "one"}):
        with pytest.raises(ConfigurationError, match=r"topic\.prefix is missing"):
            from_debezium(given)
    with pytest.raises(ConfigurationError, match="option name is missing"):
        Connector.from_dict({"source": {"type": "mongodb"}})


@pytest.mark.covers("MDB-NAME-04")
@pytest.mark.parametrize("base", [MONGODB, CASSANDRA], ids=["mongodb", "cassandra"])
def test_the_class_of_a_copied_file_selects_the_source(base: dict[str, str]) -> None:
    built = from_debezium(base).connector
    kind = MongodbOptions if base is MONGODB else CassandraOptions
    assert built.type in base["connector.class"]
    assert isinstance(built.source, kind)


@pytest.mark.covers("MDB-SNAP-17")
def test_filters_of_snapshots_are_taken_by_collection() -> None:
    name = "snapshot.collection.filter.overrides"
    filters = {f"{name}.shop.a": '{"n": 1}', f"{name}.shop.b": "{}"}
    built = from_debezium({**MONGODB, name: "shop.a, shop.b", **filters}).connector
    assert built.snapshot.filters == {"shop.a": '{"n": 1}', "shop.b": "{}"}
    with pytest.raises(ConfigurationError, match=r"overrides\.shop\.c is missing"):
        from_debezium({**MONGODB, name: "shop.c"})


@pytest.mark.covers("MDB-CONN-10")
def test_the_connect_timeout_bounds_an_attempt() -> None:
    assert source().advanced.connect_timeout_seconds == 10.0
    options = source(mongodb_connect_timeout_ms="2500")
    values = ConnectionValues.read({"host": "h"}, options.advanced.connect_timeout_seconds)
    with values.client(connect=False) as client:
        assert client.options.pool_options.connect_timeout == 2.5
    unlimited = source(mongodb_connect_timeout_ms="0").advanced.connect_timeout_seconds
    with ConnectionValues.read({"host": "h"}, unlimited).client(connect=False) as client:
        assert client.options.pool_options.connect_timeout is None
        assert client.options.server_selection_timeout == 30


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"connector file .* does not exist"):
        load_connector_file(tmp_path / "none.properties")


def test_an_imported_declaration_is_written_back_to_the_same() -> None:
    built = connector(collection_include_list="a", capture_mode="change_streams")
    assert Connector.from_dict(built.to_dict()) == built


@pytest.mark.parametrize("kind", list(RULES))
def test_every_known_property_is_mapped_left_out_or_refused_on_purpose(kind: str) -> None:
    base = MONGODB if kind == "mongodb" else CASSANDRA
    for name in RULES[kind]:
        full = name.replace("*", "some")
        try:
            from_debezium({**base, full: "some text"})
        except ConfigurationError as error:
            assert full.split(".some")[0] in str(error), error


def test_patterns_that_the_server_cannot_apply_are_reported() -> None:
    def notes(value: str) -> list[str]:
        imported = from_debezium({"topic.prefix": "shop", "collection.include.list": value})
        return [note for note in imported.notes if "can't evaluate" in note]

    assert notes(r"shop\.orders,shop\.a[0-9]+") == []
    (note,) = notes(r"shop\.orders,shop\.b\d")
    assert r"shop\.b\d" in note
    assert len(notes("shop\\.\u00fcber")) == 1


@pytest.mark.covers("MDB-CUR-01", "MDB-CUR-03", "MDB-CUR-04", "MDB-CUR-07", "MDB-CUR-09", "MDB-CUR-10")
def test_cursor_options_is_imported() -> None:
    stages = '[{"$match": {"fullDocument.x": {"$gt": 1}}}]'
    built = source(
        cursor_pipeline=stages,
        cursor_pipeline_order="USER_FIRST",
        cursor_oversize_handling_mode="skip",
        cursor_oversize_skip_threshold="5000",
        cursor_max_await_time_ms="250",
        snapshot_fetch_size="77",
    )
    assert built.stream.pipeline == ({"$match": {"fullDocument.x": {"$gt": 1}}},)
    assert (built.stream.pipeline_order, built.stream.oversize) == ("user_first", "skip")
    assert (built.stream.skip_threshold_bytes, built.advanced.max_await_seconds) == (5000, 0.25)
    assert built.advanced.fetch_size == 77
    default = source()
    assert (default.stream.oversize, default.advanced.max_await_seconds) == ("split", 1.0)
    for wrong in ("[{", "{}", '[{"$out": "x"}]', '[{"$unset": "_id"}]'):
        with pytest.raises(ConfigurationError, match="pipeline: expected"):
            source(cursor_pipeline=wrong)
    with pytest.raises(ConfigurationError, match="at least 1"):
        source(cursor_oversize_handling_mode="skip", cursor_oversize_skip_threshold="0")
    with pytest.raises(ConfigurationError, match="skip_threshold_bytes is missing"):
        source(cursor_oversize_handling_mode="skip")


@pytest.mark.covers("MDB-SNAP-07", "MDB-SNAP-09")
def test_snapshot_modes_are_imported_or_refused_with_the_reason() -> None:
    modes = {
        "initial": "initial",
        "always": "always",
        "initial_only": "initial_only",
        "no_data": "never",
        "never": "never",
        "when_needed": "when_needed",
    }
    for name, mode in modes.items():
        assert connector(snapshot_mode=name.upper()).snapshot.mode == mode
    with pytest.raises(ConfigurationError, match="Java class"):
        connector(snapshot_mode="custom", snapshot_mode_custom_name="mine")
    with pytest.raises(ConfigurationError, match=": expected one of initial"):
        connector(snapshot_mode="sometimes")


@pytest.mark.covers("MDB-SNAP-09")
@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ("start.stream", "never"),
        ("snapshot.data", "initial_only"),
        ("snapshot.data start.stream", "initial"),
        ("snapshot.data start.stream snapshot.schema snapshot.on.schema.error", "initial"),
        ("snapshot.data start.stream snapshot.on.data.error", "when_needed"),
        ("start.stream snapshot.on.data.error", "custom"),
        ("snapshot.data snapshot.on.data.error", None),
        ("", None),
        ("snapshot.schema", None),
    ],
)
def test_a_configured_snapshot_mode_is_the_one_that_does_the_same(flags: str, mode: str | None) -> None:
    based_on = {f"snapshot.mode.configuration.based.{flag}": "true" for flag in flags.split()}
    properties = {**MONGODB, "snapshot.mode": "configuration_based", **based_on}
    if mode is None:
        with pytest.raises(ConfigurationError, match=r"unsupported combination of flags .*expected start"):
            from_debezium(properties)
    else:
        assert from_debezium(properties).connector.snapshot.mode == mode


@pytest.mark.covers("MDB-GRD-01", "MDB-GRD-02", "MDB-CAP-09")
@pytest.mark.covers("MDB-CONN-14", "MDB-CONN-16", "MDB-CONN-17")
def test_start_include_list_and_guardrail_are_imported() -> None:
    imported = from_debezium(
        {
            **MONGODB,
            "capture.start.op.time": str(1767225600 << 32 | 3),
            "snapshot.include.collection.list": r"shop\.a",
            "guardrail.collections.max": "5",
            "guardrail.collections.limit.action": "fail",
            "mongodb.poll.interval.ms": "700",
            "connect.max.attempts": "16",
            "connect.backoff.initial.delay.ms": "1000",
            "connect.backoff.max.delay.ms": "120000",
        }
    )
    built = imported.connector
    assert isinstance(built.source, MongodbOptions)
    assert built.source.start_at == str(1767225600 << 32 | 3)
    assert [built.snapshot.includes(name) for name in ("shop.a", "SHOP.A", "shop.ab")] == [True, True, False]
    assert (built.guardrail.max_tables, built.guardrail.action) == (5, "fail")
    assert isinstance(imported.connector.source, MongodbOptions)
    values = ConnectionValues.read({"host": "h"}, 1.0, built.source.advanced.heartbeat_seconds)
    client = values.client()
    assert client.options.heartbeat_frequency == 0.7
    client.close()
    pauses_of_debezium = [1, 2, 4, 8, 16, 32, 64, *[120] * 9]
    assert list(pauses(built.source.advanced)) == pauses_of_debezium
    with pytest.raises(ConfigurationError, match="a BSON timestamp as one number"):
        connector(capture_start_op_time="1767225600")


@pytest.mark.covers("MDB-CAP-13")
def test_a_target_says_nothing_where_everything_is_watched() -> None:
    imported = from_debezium({**MONGODB, "capture.target": "shop"})
    assert isinstance(imported.connector.source, MongodbOptions)
    assert imported.connector.source.target == ""
    assert any("capture.target is ignored" in note for note in imported.notes)
    with pytest.raises(ConfigurationError, match=r"invalid value for option source\.target"):
        source(capture_scope="database")
    assert source(capture_scope="collection", capture_target="db.a.b").target == "db.a.b"


@pytest.mark.covers("MDB-CAP-15")
def test_skipped_events_are_still_sent_for_the_mirrors_sake() -> None:
    imported = from_debezium({**MONGODB, "skipped.operations": "u,t"})
    assert imported.connector.publish.skipped_operations == ("u", "t")
    assert isinstance(imported.connector.source, MongodbOptions)
    assert imported.connector.source.stream.skipped_operations == ()
    assert any("mirrors need them" in note for note in imported.notes)
    assert not any("mirrors" in note for note in from_debezium({**MONGODB, "skipped.operations": "t"}).notes)


@pytest.mark.covers("MDB-FAULT-01")
def test_every_wrong_property_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        connector(capture_mode="oplog", snapshot_mode="custom", tombstones_on_delete="yes", sope="x")
    for name in ("snapshot.mode", "tombstones.on.delete", "unknown property sope"):
        assert name in str(raised.value)


@pytest.mark.covers("MDB-XD-18")
@pytest.mark.parametrize(("mode", "strict"), [("fail", True), ("warn", False), ("skip", False)])
def test_what_a_broken_event_does_is_imported(mode: str, strict: bool) -> None:
    assert source(event_processing_failure_handling_mode=mode).advanced.strict is strict


@pytest.mark.covers("MDB-FLD-01", "MDB-FLD-02", "MDB-TX-01", "MDB-XD-14", "MDB-XD-27", "MDB-TPC-06")
def test_what_events_show_is_imported() -> None:
    publish = connector(
        field_exclude_list="shop.a.b, *.c.d.e",
        field_renames="shop.a.b:x,shop.a.c.d:y",
        provide_transaction_metadata="true",
        topic_transaction="tx",
        skip_messages_without_change="true",
        change_event_key_mode="document_key",
        json_serialization_mode="extended",
    ).publish
    assert publish.mongodb.exclude_fields == ("shop.a.b", "*.c.d.e")
    assert publish.mongodb.rename_fields == ("shop.a.b:x", "shop.a.c.d:y")
    assert (publish.transactions, publish.transaction_topic) == (True, "tx")
    assert publish.skip_unchanged
    assert (publish.mongodb.key, publish.mongodb.json) == ("document_key", "extended")
    assert connector().publish.transactions is False


@pytest.mark.covers("MDB-XD-31", "MDB-XD-32")
def test_transforms_are_imported_with_their_settings() -> None:
    package = "io.debezium.connector.mongodb.transforms"
    properties = {
        **MONGODB,
        "transforms": "u, o",
        "transforms.u.type": f"{package}.ExtractNewDocumentState",
        "transforms.u.array.encoding": "document",
        "transforms.u.flatten.struct": "true",
        "transforms.u.flatten.struct.delimiter": "-",
        "transforms.u.delete.tombstone.handling.mode": "rewrite",
        "transforms.u.delete.tombstone.handling.mode.rewrite-with-id": "true",
        "transforms.u.add.fields": "op,source.ts_ms:at",
        "transforms.u.add.fields.prefix": "_",
        "transforms.u.add.headers": "op",
        "transforms.u.add.headers.prefix": "h_",
        "transforms.o.type": f"{package}.outbox.MongoEventRouter",
        "transforms.o.collection.field.event.id": "eid",
        "transforms.o.collection.field.event.key": "k",
        "transforms.o.collection.field.event.timestamp": "at",
        "transforms.o.route.by.field": "kind",
        "transforms.o.collection.fields.additional.placement": "a:header,b:envelope:c",
    }
    publish = from_debezium(properties).connector.publish
    unwrap, outbox = publish.unwrap, publish.outbox
    assert (unwrap.enabled, unwrap.array_encoding, unwrap.deletes) == (True, "document", "rewrite")
    assert (unwrap.flatten, unwrap.delimiter, unwrap.rewrite_id) == (True, "-", True)
    assert (unwrap.add_fields, unwrap.add_fields_prefix) == (("op", "source.ts_ms:at"), "_")
    assert (unwrap.add_headers, unwrap.add_headers_prefix) == (("op",), "h_")
    assert (outbox.enabled, outbox.event_id, outbox.event_key) == (True, "eid", "k")
    assert (outbox.event_timestamp, outbox.route_by) == ("at", "kind")
    assert outbox.additional == ("a:header", "b:envelope:c")
    for name, value, message in (
        ("transforms.u.type", "com.example.Other", "transforms is not supported"),
        ("transforms.u.no.such", "1", "unknown property transforms.u.no.such"),
        ("transforms.u.predicate", "p", "transforms.u.predicate is not supported"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            from_debezium({**properties, name: value})


def test_choices_of_one_source_are_refused_for_the_other() -> None:
    cassandra = {"name": "c", "source": {"type": "cassandra", "cdc_raw": "/x"}}
    for publish in ({"transactions": True}, {"envelope": "document"}, {"unwrap": {"enabled": True}}):
        with pytest.raises(ConfigurationError, match="is not supported for source"):
            Connector.from_dict({**cassandra, "publish": publish})
    mongodb = {"name": "m", "source": {"type": "mongodb"}}
    with pytest.raises(ConfigurationError, match="is not supported for source"):
        Connector.from_dict({**mongodb, "publish": {"envelope": "datastax"}})
    with pytest.raises(ConfigurationError, match="exclude each other"):
        Connector.from_dict({**mongodb, "publish": {"envelope": "document", "unwrap": {"enabled": True}}})


@pytest.mark.covers("MDB-SNAP-13")
def test_a_plug_in_for_locks_is_left_out_as_none_are_taken() -> None:
    imported = from_debezium({**MONGODB, "snapshot.locking.mode.custom.name": "mine"})
    assert any("snapshots take no locks" in note for note in imported.notes)
    with pytest.raises(ConfigurationError, match="Java class"):
        connector(snapshot_query_mode="custom")


@pytest.mark.covers("MDB-XD-07")
def test_properties_of_signals_and_incremental_snapshots_are_imported() -> None:
    imported = from_debezium(
        {
            **MONGODB,
            "signal.data.collection": "shop.signals",
            "signal.enabled.channels": "source, file, jmx",
            "signal.file": "/var/cdc/signals.txt",
            "signal.poll.interval.ms": "2500",
            "incremental.snapshot.chunk.size": "4096",
            "incremental.snapshot.watermarking.strategy": "INSERT_DELETE",
            "read.only": "false",
        }
    )
    signals, incremental = imported.connector.signals, imported.connector.snapshot.incremental
    assert signals.channels == ("source", "file", "airflow")
    assert (signals.collection, signals.file) == ("shop.signals", "/var/cdc/signals.txt")
    assert signals.poll_interval_seconds == 2.5
    assert (incremental.chunk_size, incremental.watermarks) == (4096, "insert_delete")
    assert any("jmx becomes channel airflow" in note for note in imported.notes)
    plain = from_debezium(MONGODB).connector
    assert plain.signals.channels == ("source", "airflow")
    assert plain.snapshot.incremental.watermarks == "none"
    assert plain.snapshot.incremental.chunk_size == 1024
