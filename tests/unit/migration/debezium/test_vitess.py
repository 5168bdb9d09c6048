"""Import of the properties of Debezium's connector for Vitess."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.rules import Imported
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessTaskOffsets

LEAST = {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "topic.prefix": "cdc",
    "vitess.keyspace": "shop",
}
GTID = "MySQL56/e03ece6c-4c04-11ec-8e20-0242ac110004"
SET = (
    f'[{{"keyspace":"shop","shard":"-80","gtid":"{GTID}:1-41"}},'
    f'{{"keyspace":"shop","shard":"80-","gtid":"{GTID}:1-38"}}]'
)
TYPES = "publish.vitess.source_types"
BARE = "source.stream.exclude_keyspace_from_table_name"
MASKS = "publish.vitess.masks"
T = "(?i:shop.t)"
A = "(?i:shop.t.a)"


def imported(properties: dict[str, str] | None = None) -> Imported:
    return from_debezium({**LEAST, **(properties or {})})


def connector(name: str = "", value: str = "", **more: str) -> Connector:
    return imported({**({name: value} if name else {}), **more}).connector


def source(properties: dict[str, str]) -> VitessOptions:
    options = imported(properties).connector.source
    assert isinstance(options, VitessOptions)
    return options


def option(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_patterns_in_javas_syntax_are_pythons_or_refused_by_the_propertys_name() -> None:
    given = r"(?i)shop\.a{1,2}, shop.[b,c], \Qshop.d+\E, (?<k>shop)\.e\,f"
    tables = connector("table.include.list", given).tables
    assert tables == (
        r"(?i:shop\.a{1,2})",
        "(?i:shop.[b,c])",
        r"(?i:shop\.d\+)",
        "(?i:(?P<k>shop)\\.e,f)",
    )
    keys = option(connector("message.key.columns", r"(?i)shop.t:\Qa.b\E"), "publish.vitess.key_columns")
    assert keys == {T: r"(?i:a\.b)"}
    for pattern in (r"shop\.\p{Alpha}", "shop.[a-z&&[^b]]", "[x"):
        with pytest.raises(ConfigurationError, match=r"property table\.include\.list"):
            imported({"table.include.list": pattern})


def test_masks_have_an_algorithm_and_errors_no_salt() -> None:
    for name in ("SHA-512/256", "SHA3-256", "md5"):
        assert option(connector(f"column.mask.hash.{name}.with.salt.s", "shop.t.a"), MASKS) == {
            A: f"hash:{name}:s"
        }
    with pytest.raises(ConfigurationError, match="an algorithm of Python's hashlib") as failed:
        connector("column.mask.hash.NONE-1.with.salt.hidden", "shop.t.a")
    assert "hidden" not in str(failed.value)


def test_skipped_operations_are_read_in_any_case() -> None:
    assert connector("skipped.operations", "C, d").publish.skipped_operations == ("c", "d")


def test_settings_that_only_javas_producer_has_are_ignored() -> None:
    for name in ("compression.zstd.level", "transaction.two.phase.commit.enable"):
        found = imported({f"producer.override.{name}": "1"})
        assert found.connector.publish.kafka.producer == {}
        assert any(f"producer.override.{name} is ignored" in note for note in found.notes)


@pytest.mark.covers("VIT-SCO-01", "VIT-FLT-13")
def test_the_least_properties_make_a_connector() -> None:
    found = connector()
    assert (found.type, found.topic_prefix, option(found.source, "keyspace")) == ("vitess", "cdc", "shop")
    with pytest.raises(ConfigurationError, match="keyspace"):
        from_debezium({name: value for name, value in LEAST.items() if name != "vitess.keyspace"})
    with pytest.raises(ConfigurationError, match=r"connector\.class"):
        imported({"connector.class": "io.debezium.connector.vitess.Other"})


@pytest.mark.covers("VIT-SCO-03", "VIT-SCO-07", "VIT-SCO-08")
def test_shards_and_tablets() -> None:
    assert source({}).shards == ()
    assert source({"vitess.shard": "-80, 80-"}).shards == ("-80", "80-")
    for word, kind in (
        ("MASTER", "PRIMARY"),
        ("PRIMARY", "PRIMARY"),
        ("REPLICA", "REPLICA"),
        ("rdonly", "RDONLY"),
    ):
        assert source({"vitess.tablet.type": word}).tablet_type == kind
    assert source({}).tablet_type == "PRIMARY"
    with pytest.raises(ConfigurationError, match="SPARE"):
        imported({"vitess.tablet.type": "SPARE"})


@pytest.mark.covers("VIT-SCO-04", "VIT-SCO-05", "VIT-SCO-06")
def test_where_to_start() -> None:
    assert source({"vitess.vgtid": "current"}).start_at == "current"
    assert json.loads(source({"vitess.vgtid": SET}).start_at) == json.loads(SET)
    assert json.loads(source({"vitess.gtid": f"{GTID}:1-41", "vitess.shard": "-80"}).start_at) == [
        {"keyspace": "shop", "shard": "-80", "gtid": f"{GTID}:1-41"}
    ]
    assert source({"vitess.gtid": "current", "vitess.shard": "-80"}).start_at == "current"
    assert source({"vitess.gtid": "current"}).start_at == "current"
    for name in ("vitess.gtid", "vitess.vgtid"):
        assert source({name: "CURRENT", "vitess.shard": "-80"}).start_at == "current"
        unknown = SET.replace(f"{GTID}:1-41", "CURRENT")
        with pytest.raises(ConfigurationError, match=f"property {name} can't .*MySQL56/... or MariaDB/..."):
            imported({name: unknown})
    assert json.loads(source({"vitess.gtid": SET}).start_at) == json.loads(SET)
    with pytest.raises(ConfigurationError, match=r"property vitess\.gtid can't be imported"):
        imported({"vitess.gtid": "MySQL56/a:1-41", "vitess.shard": "-80"})
    empty = imported({"vitess.vgtid": SET.replace(f"{GTID}:1-41", "").replace(f"{GTID}:1-38", "")})
    assert empty.connector.snapshot.mode == "initial"
    assert any("a snapshot copies the tables" in note for note in empty.notes)
    with pytest.raises(ConfigurationError, match=r"vitess\.shard"):
        imported({"vitess.gtid": f"{GTID}:1-41"})
    with pytest.raises(ConfigurationError, match="doesn't name the shards to read"):
        imported({"vitess.vgtid": SET, "vitess.shard": "-80"})
    with pytest.raises(ConfigurationError, match="only some shards"):
        imported({"vitess.vgtid": SET.replace(f"{GTID}:1-41", "")})


@pytest.mark.covers("VIT-SCO-09", "VIT-SCO-10")
def test_tables_are_chosen_by_anchored_expressions() -> None:
    found = connector("table.include.list", r"shop\.item,shop[.]types_.*")
    assert [found.selects(f"shop.{name}") for name in ("item", "types_num", "items", "orders")] == [
        True,
        True,
        False,
        False,
    ]
    assert not connector("table.exclude.list", r"shop\.item").selects("shop.item")
    with pytest.raises(ConfigurationError, match="exclude each other"):
        imported({"table.include.list": "a", "table.exclude.list": "b"})


def test_kinds_of_events_are_skipped() -> None:
    """Another test verifies that events have none without it."""
    assert connector("skipped.operations", "t").publish.skipped_operations == ("t",)
    assert connector("skipped.operations", "d, t").publish.skipped_operations == ("d", "t")
    assert connector("skipped.operations", "none").publish.skipped_operations == ()
    with pytest.raises(ConfigurationError, match=r"skipped\.operations"):
        imported({"skipped.operations": "x"})


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("vitess.exclude.empty.shards", "true", "source.exclude_empty_shards", True),
        ("vitess.exclude.keyspace.from.table.name", "true", BARE, True),
        ("vitess.stop_on_reshard", "true", "source.stream.stop_on_reshard", True),
        ("vitess.stream.keyspace.heartbeats", "true", "source.stream.keyspace_heartbeats", True),
        ("vitess.stream_keyspace_heartbeats", "true", "source.stream.keyspace_heartbeats", True),
        ("vitess.transaction.chunk.size.bytes", "1024", "source.stream.transaction_chunk_bytes", 1024),
        ("heartbeat.interval.ms", "9000", "source.stream.heartbeat_seconds", 9),
        ("heartbeat.interval.ms", "9000", "publish.vitess.heartbeats", True),
        ("heartbeat.interval.ms", "0", "publish.vitess.heartbeats", False),
        ("heartbeat.topics.prefix", "beat", "publish.heartbeat_prefix", "beat"),
        ("max.queue.size", "4096", "source.advanced.read_ahead_events", 4096),
        ("max.queue.size.in.bytes", "1024", "source.advanced.read_ahead_bytes", 1024),
        ("retriable.restart.connector.wait.ms", "2500", "source.advanced.connect_backoff_seconds", 2.5),
        ("snapshot.mode", "never", "snapshot.mode", "never"),
        ("snapshot.mode", "no_data", "snapshot.mode", "never"),
        ("snapshot.include.collection.list", "shop.item", "snapshot.include", ("(?i:shop.item)",)),
        ("time.precision.mode", "isostring", "publish.vitess.temporal", "isostring"),
        ("bigint.unsigned.handling.mode", "precise", "publish.vitess.unsigned_bigints", "precise"),
        ("binary.handling.mode", "base64-url-safe", "publish.vitess.binary", "base64-url-safe"),
        ("override.datetime.to.nullable", "true", "publish.vitess.nullable_dates", True),
        ("include.unknown.datatypes", "true", "publish.vitess.include_unknown_types", True),
        ("message.key.columns", "shop.t:a,b", "publish.vitess.key_columns", {T: "(?i:a),(?i:b)"}),
        ("column.include.list", r"shop\.t\.a", "publish.vitess.include_columns", (r"(?i:shop\.t\.a)",)),
        ("column.exclude.list", r"shop\.t\.a", "publish.vitess.exclude_columns", (r"(?i:shop\.t\.a)",)),
        ("column.truncate.to.20.chars", "shop.t.a", MASKS, {A: "truncate:20"}),
        ("column.mask.with.5.chars", "shop.t.a", MASKS, {A: "mask:5"}),
        ("column.mask.hash.SHA-256.with.salt.x.y", "shop.t.a", MASKS, {A: "hash:SHA-256:x.y"}),
        ("column.mask.hash.v2.MD5.with.salt.xy", "shop.t.a", MASKS, {A: "hash-v2:MD5:xy"}),
        ("column.propagate.source.type", "shop.t.a", f"{TYPES}_of_columns", (A,)),
        ("datatype.propagate.source.type", "shop.VARCHAR", TYPES, ("(?i:shop.VARCHAR)",)),
        ("skip.messages.without.change", "true", "publish.skip_unchanged", True),
        ("include.schema.changes", "true", "publish.schema_changes", True),
        ("provide.transaction.metadata", "true", "publish.transactions", True),
        ("topic.transaction", "tx", "publish.transaction_topic", "tx"),
        ("override.data.change.topic.prefix", "other", "publish.vitess.topic_prefix", "other"),
        ("override.schema.change.topic", "ddl", "publish.vitess.schema_changes_topic", "ddl"),
    ],
)  # fmt: skip
def test_properties_become_options(name: str, value: str, path: str, expected: Any) -> None:
    assert option(connector(name, value), path) == expected


@pytest.mark.covers("VIT-FLT-04")
def test_retries_are_those_of_the_properties_and_else_debeziums() -> None:
    def retries(properties: dict[str, str]) -> tuple[int, float, float]:
        found = source(properties).advanced
        return found.connect_attempts, found.connect_backoff_seconds, found.connect_max_backoff_seconds

    assert retries({}) == (-1, 10.0, 10.0)
    assert retries({"errors.max.retries": "-1"}) == (-1, 10.0, 10.0)
    assert retries({"errors.max.retries": "0"}) == (0, 10.0, 10.0)
    chosen = {"errors.max.retries": "7", "retriable.restart.connector.wait.ms": "2500"}
    assert retries(chosen) == (7, 2.5, 2.5)
    for name, value in (("errors.max.retries", "-2"), ("retriable.restart.connector.wait.ms", "soon")):
        with pytest.raises(ConfigurationError, match=name):
            imported({name: value})


@pytest.mark.parametrize(
    ("mode", "expected"), [("", (True, True)), ("fail", (True, True)), ("warn", (False, True)),
                           ("skip", (False, False)), ("ignore", (False, False))],
)  # fmt: skip
def test_handling_of_broken_events_is_migrated(mode: str, expected: tuple[bool, bool]) -> None:
    found = source({"event.processing.failure.handling.mode": mode} if mode else {}).advanced
    assert (found.strict, found.log_quarantined_events) == expected
    with pytest.raises(ConfigurationError, match="fail, warn, skip"):
        imported({"event.processing.failure.handling.mode": "explode"})


@pytest.mark.covers("VIT-TOP-03", "VIT-TOP-05")
def test_topics() -> None:
    old = {name: value for name, value in LEAST.items() if name != "topic.prefix"}
    assert from_debezium({**old, "database.server.name": "old"}).connector.topic_prefix == "old"
    assert connector("database.server.name", "old").topic_prefix == "cdc"
    for strategy in (
        "io.debezium.schema.SchemaTopicNamingStrategy",
        "io.debezium.connector.vitess.TableTopicNamingStrategy",
    ):
        assert connector("topic.naming.strategy", strategy).publish.topic_naming == ""
    assert connector("topic.naming.strategy", "my.module:Names").publish.topic_naming == "my.module:Names"
    with pytest.raises(ConfigurationError, match=r"package\.module:Class"):
        imported({"topic.naming.strategy": "com.example.Names"})
    assert any("topic.cache.size" in note for note in imported({"topic.cache.size": "10"}).notes)


@pytest.mark.covers("VIT-TOP-02")
def test_the_prefix_is_needed_and_has_letters_that_topics_may_have() -> None:
    """That it may not change from run to run is tested with identities of connectors."""
    with pytest.raises(ConfigurationError, match=r"topic\.prefix is missing"):
        from_debezium({name: value for name, value in LEAST.items() if name != "topic.prefix"})
    assert connector("topic.prefix", "a-b.C_1").topic_prefix == "a-b.C_1"
    for wrong in ("a b", "a/b", "ä"):
        with pytest.raises(ConfigurationError, match="letters"):
            imported({"topic.prefix": wrong})


@pytest.mark.covers("VIT-TXN-01", "VIT-TXN-05")
def test_the_factory_of_ordered_transactions() -> None:
    factory = "io.debezium.connector.vitess.pipeline.txmetadata.VitessOrderedTransactionMetadataFactory"
    ordered = imported({"transaction.metadata.factory": factory, "provide.transaction.metadata": "true"})
    assert ordered.connector.publish.vitess.ordered_transactions
    assert not connector("transaction.metadata.factory", factory).publish.vitess.ordered_transactions
    assert not connector().publish.transactions
    with pytest.raises(ConfigurationError, match="Java class"):
        imported({"transaction.metadata.factory": "com.example.Factory"})


@pytest.mark.covers("VIT-TXN-12", "VIT-TXN-13", "VIT-TYP-33")
def test_transforms_of_the_connector_are_followed() -> None:
    package = "io.debezium.connector.vitess.transforms"
    publish = imported(
        {
            "provide.transaction.metadata": "true",
            "transforms": "local,filter,drop,blank",
            "transforms.local.type": f"{package}.UseLocalVgtid",
            "transforms.filter.type": f"{package}.FilterTransactionTopicRecords",
            "transforms.drop.type": f"{package}.RemoveField",
            "transforms.drop.field_names": "source.db, transaction.id",
            "transforms.blank.type": f"{package}.ReplaceFieldValue",
            "transforms.blank.field_names": "source.vgtid",
        }
    ).connector.publish.vitess
    assert (publish.local_vgtid, publish.transaction_records) == (True, False)
    assert publish.remove_fields == ("source.db", "transaction.id")
    assert publish.replace_fields == {"source.vgtid": ""}
    with pytest.raises(ConfigurationError, match="Supported are"):
        imported({"transforms": "x", "transforms.x.type": "com.example.X"})


@pytest.mark.covers("VIT-TYP-22")
def test_precision_adaptive_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="adaptive_time_microseconds"):
        imported({"time.precision.mode": "adaptive"})


def test_decimal_handling_mode_is_said_to_have_no_effect() -> None:
    found = imported({"decimal.handling.mode": "double"})
    assert found.connector.publish.vitess.decimals == "string"
    assert any("has no effect in Debezium" in note for note in found.notes)


PER_TASK = {
    "tasks.max": "2",
    "vitess.offset.storage.per.task": "true",
    "vitess.offset.storage.task.key.gen": "1",
    "vitess.prev.num.tasks": "1",
}


@pytest.mark.covers("VIT-OFS-01")
def test_several_tasks_need_offsets_per_task() -> None:
    found = source(PER_TASK)
    assert found.streams == 2
    assert found.task_offsets == VitessTaskOffsets(per_task=True, generation=1, previous_tasks=1)
    with pytest.raises(ConfigurationError, match=r"vitess\.offset\.storage\.per\.task"):
        imported({"tasks.max": "2"})


@pytest.mark.covers("VIT-OFS-03", "VIT-OFS-04")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vitess.offset.storage.task.key.gen", "-1", r"task\.key\.gen\) of 0 or more"),
        ("vitess.offset.storage.task.key.gen", "one", "an integer of 64 bits, at least -1"),
        ("vitess.prev.num.tasks", "-1", r"prev\.num\.tasks\) above 0"),
        ("vitess.prev.num.tasks", "0", r"prev\.num\.tasks\) above 0"),
    ],
)
def test_offsets_per_task_need_a_generation_and_the_previous_number_of_tasks(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        imported({**PER_TASK, name: value})


ORDERED = {
    "provide.transaction.metadata": "true",
    "transaction.metadata.factory": (
        "io.debezium.connector.vitess.pipeline.txmetadata.VitessOrderedTransactionMetadataFactory"
    ),
}


@pytest.mark.covers("VIT-TXN-09", "VIT-TXN-10", "VIT-TXN-11")
def test_epochs_by_hand() -> None:
    found = connector(
        **{
            **ORDERED,
            "vitess.shard.epoch.map": '{"-80": 3, "80-": 4}',
            "vitess.shard": "-80,80-",
            "vitess.inherit.epoch": "true",
            "vitess.connector.generation": "2",
        }
    )
    assert option(found.source, "epochs") == {"-80": 3, "80-": 4}
    assert option(found.source, "generation") == 2
    assert found.publish.vitess.inherit_epochs
    plain = connector(**{**ORDERED, "vitess.shard.epoch.map": ""})
    assert (option(plain.source, "epochs"), option(plain.source, "generation")) == ({}, 0)
    assert not plain.publish.vitess.inherit_epochs


@pytest.mark.covers("VIT-TXN-09", "VIT-TXN-10")
@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"vitess.inherit.epoch": "true"}, "VitessOrderedTransactionMetadataFactory"),
        ({"vitess.shard.epoch.map": "-80"}, "a JSON object of shards and epochs"),
        ({"vitess.shard.epoch.map": '{"-80": "1"}'}, "a JSON object of shards and epochs"),
        (
            {"vitess.shard.epoch.map": '{"-80": 1}', "vitess.shard": "-80,80-"},
            "doesn't name the shards at the start of the capture: expected -80, 80-, found -80",
        ),
    ],
)
def test_epochs_that_do_not_fit_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        imported(properties)


@pytest.mark.covers("VIT-TXN-11")
def test_a_generation_says_nothing_without_ordered_transactions() -> None:
    found = imported({"vitess.connector.generation": "2"})
    assert option(found.connector.source, "generation") == 0
    assert any("vitess.connector.generation is ignored" in note for note in found.notes)


@pytest.mark.covers("VIT-QUE-01")
def test_queues() -> None:
    quiet = {
        "max.batch.size": "2048",
        "poll.interval.ms": "500",
        "poll.dispatch.interval.ms": "0",
    }
    converted = imported({**quiet, "producer.acks": "all"})
    assert converted.connector.publish.kafka.producer == {"acks": "all"}
    notes = converted.notes
    assert all(any(name in note for note in notes) for name in quiet)
    with pytest.raises(ConfigurationError, match=r"more than max\.batch\.size, 2048"):
        imported({"max.queue.size": "2048"})


@pytest.mark.parametrize(
    "name",
    [
        "database.hostname",
        "database.port",
        "database.user",
        "database.password",
        "vitess.vtctld.host",
        "vitess.vtctld.password",
        "vitess.keepalive.interval.ms",
        "vitess.grpc.headers",
        "vitess.grpc.max_inbound_message_size",
        "vitess.grpc.default.load.balancing.policy",
        "schema.history.internal",
    ],
)
def test_properties_of_connections_are_reported_without_their_values(name: str) -> None:
    notes = imported({name: "secret-1"}).notes
    assert [note for note in notes if note.startswith(f"property {name} is ignored")]
    assert "secret-1" not in "".join(notes)


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean vitess\.shard\?"):
        imported({"vitess.shards": "-80"})
