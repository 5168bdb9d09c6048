"""Transforms of the declaration and of properties, on events of each source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.encoding import heartbeat_of
from tests.unit.sources.cassandra.events import cassandra_recordings as cassandra
from tests.unit.sources.mongodb.events.mongodb_recordings import RECORDED_BY, printed, recording
from tests.unit.sources.mongodb.events.published_events import connector_of
from tests.unit.sources.scylla.events import logged_changes as scylla
from tests.unit.sources.vitess.events.chosen_events import ID, NAME, events_of
from tests.unit.vitess_stream import Stream

CONNECT = "org.apache.kafka.connect.transforms."
RENAME = {"type": "rename_topic", "regex": r"(.*)\.(\w+)", "replacement": "$2"}


def test_a_chain_shapes_events_of_scylladb() -> None:
    changes = scylla.logged(scylla.INSERT, scylla.UPDATE, scylla.DELETE)
    mask = {"type": "mask", "fields": ["after.name.value"], "replacement": "***"}
    found = scylla.records(changes, transforms=[mask, {"type": "filter", "condition": "value.op = 'c'"}])
    plain = scylla.records(changes)
    assert plain[0]["value"]["after"]["name"] == {"value": "tea"}
    assert found[0]["value"]["after"] == {**plain[0]["value"]["after"], "name": {"value": "***"}}
    assert [one["key"] for one in found if one["value"]] == [plain[0]["key"]]


def test_a_chain_shapes_events_of_cassandra() -> None:
    plain = cassandra.printed()
    shaped = cassandra.printed(
        transforms=[
            {"type": "filter", "condition": "value.op <> 'd'"},
            RENAME,
            {"type": "fields", "exclude": ["source"]},
        ]
    )
    kept = [one for one in plain if one["value"] and json.loads(one["value"])["op"] != "d"]
    assert [one["key"] for one in shaped if one["value"]] == [one["key"] for one in kept]
    assert {one["topic"] for one in shaped} == {one["topic"].rpartition(".")[2] for one in plain}
    assert all("source" not in json.loads(one["value"]) for one in shaped if one["value"])


def vitess_stream() -> Stream:
    stream = Stream().fields("t", ID, NAME)
    stream.change("t", None, (b"1", b"ann")).change("t", (b"1", b"ann"), (b"1", b"bob"))
    return stream.change("t", (b"1", b"bob"), None)


def test_rows_of_vitess_come_without_an_envelope(tmp_path: Path) -> None:
    unwrap = {"type": "unwrap", "add_fields": ["op"], "deletes": "rewrite"}
    found = events_of(vitess_stream(), tmp_path, transforms=[unwrap])
    assert [one["value"] for one in found] == [
        {"id": 1, "name": "ann", "__deleted": "false", "__op": "c"},
        {"id": 1, "name": "bob", "__deleted": "false", "__op": "u"},
        {"id": 1, "name": "bob", "__deleted": "true", "__op": "d"},
    ]
    found = events_of(vitess_stream(), tmp_path, transforms=[{"type": "unwrap"}])
    assert [one["value"] for one in found] == [{"id": 1, "name": "ann"}, {"id": 1, "name": "bob"}, None]


def test_events_of_vitess_keep_their_order_when_some_go_elsewhere(tmp_path: Path) -> None:
    rows = {"condition": "topic not like '%.transaction'"}
    route = {"type": "route", "topic": "if(value.op = 'u', 'updates', null)", "when": rows}
    found = events_of(vitess_stream(), tmp_path, transforms=[route], transactions=True)
    plain = events_of(vitess_stream(), tmp_path, transactions=True)
    assert [one["value"] for one in found] == [one["value"] for one in plain]
    assert [one["topic"] for one in found].count("updates") == 1


def test_transforms_of_properties_come_after_those_of_mongodb(tmp_path: Path) -> None:
    unwrap = "io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"
    properties = {
        "transforms": "first,rows,cut,none",
        "transforms.first.type": f"{CONNECT}RegexRouter",
        "transforms.first.regex": r".*\.(\w+)",
        "transforms.first.replacement": "rows.$1",
        "transforms.rows.type": unwrap,
        "transforms.rows.array.encoding": "document",
        "transforms.cut.type": f"{CONNECT}ReplaceField$Value",
        "transforms.cut.include": "_id",
        "transforms.none.type": f"{CONNECT}Filter",
        "transforms.none.predicate": "gone",
        "predicates": "gone",
        "predicates.gone.type": f"{CONNECT}predicates.RecordIsTombstone",
    }
    profile = "default"
    source = recording(tmp_path, RECORDED_BY.get(profile, "lookup_pre"))
    found = printed(connector_of(profile, **properties), source)
    assert found
    for one in found:
        assert one["topic"].startswith("rows.")
        assert set(json.loads(one["value"])) == {"_id"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {
                "transforms": "cut,rows",
                "transforms.cut.type": f"{CONNECT}ValueToKey",
                "transforms.cut.fields": "a",
            },
            "before publish.transforms, but is listed after type value_to_key: list it first",
        ),
        (
            {"transforms": "rows", "transforms.rows.predicate": "p"},
            "transforms.rows.predicate is not supported",
        ),
    ],
)
def test_transforms_of_mongodb_stand_first_and_have_no_predicate(more: dict[str, str], message: str) -> None:
    unwrap = "io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"
    with pytest.raises(ConfigurationError, match=message):
        from_debezium({**imported("mongodb"), "transforms.rows.type": unwrap, **more})


CLASSES = {
    "mongodb": "io.debezium.connector.mongodb.MongoDbConnector",
    "vitess": "io.debezium.connector.vitess.VitessConnector",
    "cassandra": "io.debezium.connector.cassandra.CassandraConnector",
    "scylla": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
}


def imported(kind: str) -> dict[str, str]:
    nodes = {"scylla.cluster.ip.addresses": "n:9042", "scylla.table.names": "shop.item"}
    own = {"vitess": {"vitess.keyspace": "shop"}, "scylla": nodes}.get(kind, {})
    return {"connector.class": CLASSES[kind], "topic.prefix": "shop", **own}


@pytest.mark.parametrize("kind", list(CLASSES))
def test_every_source_takes_transforms_with_predicates_over(kind: str) -> None:
    properties = {
        "transforms": "r,d",
        "transforms.r.type": f"{CONNECT}RegexRouter",
        "transforms.r.regex": "a",
        "transforms.r.replacement": "b",
        "transforms.r.predicate": "p",
        "transforms.r.negate": "true",
        "transforms.d.type": f"{CONNECT}DropHeaders",
        "transforms.d.headers": "x, y",
        "predicates": "p",
        "predicates.p.type": f"{CONNECT}predicates.TopicNameMatches",
        "predicates.p.pattern": "a.*",
    }
    renamed, dropped = from_debezium({**imported(kind), **properties}).connector.publish.transforms
    assert (renamed.regex, renamed.replacement) == ("a", "b")
    assert (renamed.when.topic, renamed.when.negate) == ("a.*", True)
    assert dropped.headers == ("x", "y")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"type": "io.debezium.transforms.Filter"}, "type: filter or route"),
        ({"type": "io.debezium.transforms.ContentBasedRouter"}, "type: filter or route"),
        ({"type": "io.debezium.transforms.TimezoneConverter"}, "is not supported"),
        ({"type": "com.example.Own"}, "Supported are .*ReplaceField.*RegexRouter"),
        ({"type": f"{CONNECT}RegexRouter"}, r"invalid properties transforms\.t\.\*.*regex"),
        (
            {"type": f"{CONNECT}RegexRouter", "regex": "a", "replacement": "b", "own": "c"},
            r"unknown property transforms\.t\.own",
        ),
        ({"type": f"{CONNECT}InsertField$Value", "offset.field": "o"}, "no offset"),
        ({"type": f"{CONNECT}Cast$Value", "spec": "a:int9"}, "types of int8"),
        ({"type": f"{CONNECT}Filter", "predicate": "p"}, "predicate is not supported"),
        ({"type": f"{CONNECT}Filter", "replace.null.with.default": "false"}, "is written as the default"),
    ],
)
def test_properties_that_can_not_be_imported_are_refused(properties: dict[str, str], message: str) -> None:
    own = {f"transforms.t.{name}": value for name, value in properties.items()}
    with pytest.raises(ConfigurationError, match=message):
        from_debezium({**imported("vitess"), "transforms": "t", **own})


def test_heartbeats_go_through_the_chain() -> None:
    values = {"name": "shop", "source": {"type": "mongodb"}}
    declared = Connector.from_dict({**values, "publish": {"transforms": [RENAME]}})
    assert heartbeat_of(declared, 1)["topic"].to_pylist() == ["shop"]
    dropped = Connector.from_dict({**values, "publish": {"transforms": [{"type": "drop"}]}})
    assert heartbeat_of(dropped, 1).num_rows == 0


def test_whole_rows_of_cassandra_keep_their_order_when_some_are_left_out() -> None:
    plain = cassandra.printed(envelope="datastax")
    shaped = cassandra.printed(
        envelope="datastax", transforms=[RENAME, {"type": "filter", "condition": "not contains(topic, 'a')"}]
    )
    kept = [one for one in plain if "a" not in one["topic"].rpartition(".")[2] or one["value"] is None]
    assert 0 < len(shaped) <= len(plain)
    assert [one["key"] for one in shaped] == [one["key"] for one in kept]
