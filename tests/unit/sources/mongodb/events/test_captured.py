"""Formats of MongoDB's events, byte for byte against Debezium's events of the same changes."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import json_util

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.topics import TopicNaming
from airflow_cdc_provider.events.transactions import OpenTransaction
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.encoding import heartbeat_of
from airflow_cdc_provider.sources.mongodb.events.decode import decode_snapshot, decode_stream
from airflow_cdc_provider.sources.mongodb.events.envelope import build
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from airflow_cdc_provider.sources.recordings import Recording
from tests.unit.sources.mongodb.events.mongodb_recordings import (
    FIXTURES,
    NOW_NS,
    RECORDED_BY,
    WHOLE,
    debezium_records,
    printed,
    recording,
    without_clock,
)
from tests.unit.sources.mongodb.events.published_events import UPDATE, change, connector_of, published


def ours_of(
    profile: str, folder: Path, more: dict[str, str] | None = None, *, strict: bool = True
) -> list[dict[str, Any]]:
    source = recording(folder, RECORDED_BY.get(profile, "lookup_pre"))
    return printed(connector_of(profile, **(more or {})), source, SkippedRecords(strict=strict))


def schemas_of(profile: str) -> list[str]:
    """Return the texts of the Connect schemas that a profile's records refer to."""
    with gzip.open(FIXTURES / "events" / f"{profile}.schemas.json.gz", "rt") as file:
        lines = [line.rstrip("\n").rstrip(",") for line in file]
    return [line for line in lines if line not in ("[", "]", "")]


def comparable(record: dict[str, Any]) -> tuple[Any, ...]:
    headers = [header for header in record["headers"] if not header[0].endswith("runId")]
    value = record["value"] and re.sub(r'("_m_ts_ms":|"_m_src_ts":)\d+', r"\g<1>0", record["value"])
    return record["topic"], record["key"], without_clock(in_one_order(value)), headers


def in_one_order(value: str | None) -> str | None:
    """Sort data_collections of an END: a hash map's order in Debezium."""
    match = re.search(r'"data_collections":(\[.*?\])', value or "")
    if value is None or match is None:
        return value
    entries = sorted(re.findall(r"\{.*?\}", match[1]))
    return value.replace(match[1], f"[{','.join(entries)}]")


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["f_excl", "f_ren"])
@pytest.mark.covers("MDB-FLD-01", "MDB-FLD-02", "MDB-FLD-03")
def test_fields_are_left_out_and_renamed_as_debezium_does_it(profile: str, tmp_path: Path) -> None:
    ours, theirs = ours_of(profile, tmp_path), debezium_records(profile)
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert comparable(our) == comparable(their)


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("profile", "field", "kept"), [("f_excl_arr", "price", "lines"), ("f_excl_trunc", "tags", "")]
)
@pytest.mark.covers("MDB-FLD-01")
def test_what_stops_debezium_is_published_without_the_field(
    profile: str, field: str, kept: str, tmp_path: Path
) -> None:
    # An array was cut that is left out, or of which a field is: Debezium ends there.
    ours, theirs = ours_of(profile, tmp_path), debezium_records(profile)
    assert [comparable(r) for r in ours[: len(theirs)]] == [comparable(r) for r in theirs]
    assert len(ours) == 45
    truncated = []
    for record in ours:
        value = json.loads(record["value"]) if record["value"] else {}
        description = value.get("updateDescription") or {}
        truncated += [entry["field"] for entry in description.get("truncatedArrays") or ()]
        for text in (value.get("before"), value.get("after")):
            document = json.loads(text) if text else {}
            lines = [line for line in document.get("lines", ()) if isinstance(line, dict)]
            assert not any(field in part for part in ([document] if field == "tags" else lines))
    assert (kept in truncated) == bool(kept)
    assert "tags" not in truncated or field != "tags"


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["txmeta", "txmeta_topic"])
@pytest.mark.covers("MDB-TX-01", "MDB-TX-02", "MDB-TX-03", "MDB-TX-05", "MDB-TPC-06")
def test_transactions_are_published_like_debezium(profile: str, tmp_path: Path) -> None:
    ours, theirs = ours_of(profile, tmp_path), debezium_records(profile)
    assert [comparable(r) for r in ours] == [comparable(r) for r in theirs]


@pytest.mark.recorded
@pytest.mark.covers("MDB-TX-02")
def test_transaction_records_have_debeziums_schemas(tmp_path: Path) -> None:
    schemas, theirs = schemas_of("txmeta"), debezium_records("txmeta")
    ours = ours_of("txmeta", tmp_path, {"key.converter.schemas.enable": "true"})
    markers = [i for i, record in enumerate(theirs) if record["topic"] == "txmeta.transaction"]
    assert markers
    for number in markers:
        for part in ("key", "value"):
            lead = f'{{"schema":{schemas[theirs[number][f"{part}_schema"]]},"payload":'
            assert ours[number][part].startswith(lead)


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["avro", "avro_uni"])
@pytest.mark.covers("MDB-EVT-21", "MDB-EVT-22", "MDB-TPC-03")
def test_names_are_adjusted_as_debezium_does_it(profile: str, tmp_path: Path) -> None:
    theirs, schemas = debezium_records(profile), schemas_of(profile)
    plain = ours_of(profile, tmp_path)
    assert [comparable(r) for r in plain] == [comparable(r) for r in theirs]
    framed = ours_of(profile, tmp_path, {"key.converter.schemas.enable": "true"})
    for our, with_schema, their in zip(plain, framed, theirs, strict=True):
        for part in ("key", "value"):
            if our[part] is not None:
                schema = schemas[their[f"{part}_schema"]]
                assert with_schema[part] == f'{{"schema":{schema},"payload":{our[part]}}}'


@pytest.mark.recorded
@pytest.mark.covers("MDB-EVT-21", "MDB-EVT-22", "MDB-EVT-23")
def test_avro_has_safe_names_and_a_clash_is_an_error(tmp_path: Path) -> None:
    converter = "io.confluent.connect.avro.AvroConverter"
    connector = connector_of("u_default", **{"key.converter": converter, "value.converter": converter})
    connector = replace(connector, publish=replace(connector.publish, schemas=True))
    records = printed(connector, recording(tmp_path, "lookup_pre"))
    assert [r["value"] is None for r in records] == [
        r["value"] is None for r in debezium_records("u_default")
    ]
    names = re.findall(
        r'"name":"([^"]*)"', json.dumps([r["value_schema"] for r in records], separators=(",", ":"))
    )
    assert "_ber" in names  # über
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
    clash = tmp_path / "clash.bson"
    clash.write_bytes(change(fullDocument={"_id": 1, "a-b": 1, "a_b": 2}))
    with pytest.raises(ConfigurationError, match="would both be named 'a_b'"):
        printed(connector, Recording(clash, "", NOW_NS))


@pytest.mark.parametrize("value", ["avro", "protobuf"])
def test_databases_and_collections_may_begin_with_digits_and_have_dots(tmp_path: Path, value: str) -> None:
    names = [
        ("2024", "c"),
        ("shop", "1c"),
        ("shop", "c.2d"),
        ("shop", "c..d"),
        ("google", "c."),
        ("shop", "٣"),
    ]
    events = [change(ns={"db": db, "coll": name}) for db, name in names]
    for adjustment in ("auto", "avro_unicode"):
        found = published(tmp_path, events, {"key": value, "value": value, "schema_names": adjustment})
        assert len({record["topic"] for record in found}) == len(names)


@pytest.mark.covers("MDB-EVT-23")
def test_collections_that_would_share_a_schema_are_refused_with_avros_names(tmp_path: Path) -> None:
    events = [change(ns={"db": "shop", "coll": name}) for name in ("a-b", "a c", "a_b")]
    avro = {"key": "avro", "value": "avro", "schemas": True}

    with pytest.raises(ConfigurationError, match=r"shop\.(a-b|a_b) and shop\.(a-b|a_b) would share"):
        published(tmp_path, events, avro)
    found = published(tmp_path, events, {**avro, "kafka": {"connection": "kafka"}})
    assert ["fault" in record for record in found] == [False, False, True], (
        "with dead letters the others go on"
    )
    two = published(tmp_path, events[:2], avro)
    unicode = published(tmp_path, events, {**avro, "schema_names": "avro_unicode"})

    for records in (two, unicode):
        schemas = [
            json.loads(json.dumps(r[side])) for r in records for side in ("key_schema", "value_schema")
        ]
        names = [f"{schema['namespace']}.{schema['name']}" for schema in schemas]
        assert len(set(names)) == len(names)
        assert all(
            re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) for name in names for part in name.split(".")
        )
    assert len(published(tmp_path, events, {})) == 3, "JSON has the names as they are"


UNWRAPPED = [
    "u_default",
    "u_doc",
    "u_flat",
    "u_flat_dot",
    "u_drop",
    "u_tomb",
    "u_rew",
    "u_rewt",
    "u_d2t",
    "u_add",
    "u_cs",
    "u_san",
]


@pytest.mark.recorded
@pytest.mark.parametrize("profile", UNWRAPPED)
@pytest.mark.covers("MDB-XD-31")
def test_documents_are_unwrapped_as_debezium_does_it(profile: str, tmp_path: Path) -> None:
    ours, theirs = ours_of(profile, tmp_path), debezium_records(profile)
    assert len(ours) == len(theirs)
    different = [
        n for n, (o, t) in enumerate(zip(ours, theirs, strict=True)) if comparable(o) != comparable(t)
    ]
    # The second write of one bulk: Debezium's look-up came after the delete, our recording's before.
    raced = [n for n in different if ours[n]["key"] == '{"id":1}' and '"b":' in ours[n]["value"]]
    assert different == raced
    assert len(raced) <= 1


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["u_default", "u_doc"])
@pytest.mark.covers("MDB-XD-31", "MDB-XM-04")
def test_unwrapped_documents_have_debeziums_schemas(profile: str, tmp_path: Path) -> None:
    schemas, theirs = schemas_of(profile), debezium_records(profile)
    ours = ours_of(profile, tmp_path, {"key.converter.schemas.enable": "true"})
    for our, their in zip(ours, theirs, strict=True):
        if their["value"] is None or '"b":2' in their["value"]:
            continue
        for part in ("key", "value"):
            assert our[part] == f'{{"schema":{schemas[their[f"{part}_schema"]]},"payload":{their[part]}}}'


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["u_types", "u_types_doc", "u_types_flat"])
@pytest.mark.covers("MDB-XD-31")
def test_every_type_is_unwrapped_as_debezium_does_it_where_it_can(profile: str, tmp_path: Path) -> None:
    # Debezium's mode is tombstone: a delete's own record has no value, the one after it is dropped.
    theirs = [record for record in debezium_records(profile) if not record.get("dropped")]
    by_key: dict[str, list[dict[str, Any]]] = {}
    for record in ours_of(profile, tmp_path, strict=False):
        by_key.setdefault(record["topic"] + record["key"], []).append(record)
    compared = 0
    unlike = []
    for their in theirs:
        if "error" in their:
            continue
        waiting = by_key.get(their["topic"] + their["key"], [])
        while waiting and comparable(waiting[0]) != comparable(their):
            waiting.pop(0)  # what Debezium failed at
        if waiting:
            waiting.pop(0)
            compared += 1
        else:
            unlike.append(their["value"])
    assert compared > 300
    assert not [v for v in unlike if v and '"b":2' not in v], unlike[:3]


@pytest.mark.recorded
@pytest.mark.parametrize("profile", ["o_default", "o_expand", "o_place", "o_each"])
@pytest.mark.covers("MDB-XD-32")
def test_outbox_documents_are_routed_as_debezium_does_it(profile: str, tmp_path: Path) -> None:
    theirs = [record for record in debezium_records(profile) if not record.get("dropped")]
    ours = ours_of(profile, tmp_path)
    assert [comparable(r) for r in ours] == [comparable(r) for r in theirs]
    assert {record["timestamp"] for record in ours} == {NOW_NS // 1_000_000}


@pytest.mark.recorded
@pytest.mark.covers("MDB-XD-32")
def test_expanded_payloads_have_debeziums_schemas(tmp_path: Path) -> None:
    schemas, theirs = schemas_of("o_expand"), debezium_records("o_expand")
    ours = ours_of("o_expand", tmp_path, {"key.converter.schemas.enable": "true"})
    for our, their in zip(ours, theirs, strict=True):
        for part in ("key", "value"):
            assert our[part] == f'{{"schema":{schemas[their[f"{part}_schema"]]},"payload":{their[part]}}}'


@pytest.mark.covers("MDB-XD-14")
def test_updates_that_change_nothing_visible_are_left_out(tmp_path: Path) -> None:
    events = [change(), change(**UPDATE), change(**{**UPDATE, "fullDocument": {"_id": 1, "x": 3}})]
    publish = {"skip_unchanged": True, "mongodb": {"exclude_fields": ["shop.*.secret"]}}
    ops = [json.loads(r["value"])["op"] for r in published(tmp_path, events, publish, pre_images=True)]
    assert ops == ["c", "u"]
    assert len(published(tmp_path, events, publish)) == 3  # nothing is known of before


VERSION_1 = '{"n": {"$numberLong": "7"},"d": {"$date": 0}}'
RELAXED = '{"n": 7,"d": {"$date": "1970-01-01T00:00:00Z"}}'
CANONICAL = '{"n": {"$numberLong": "7"},"d": {"$date": {"$numberLong": "0"}}}'


@pytest.mark.parametrize(
    ("mode", "document", "updated"),
    [
        ("legacy", VERSION_1, RELAXED.replace(",", ", ")),
        ("strict", VERSION_1, VERSION_1),
        ("relaxed", RELAXED, RELAXED),
        ("extended", CANONICAL, CANONICAL),
    ],
)
@pytest.mark.covers("MDB-XD-01", "MDB-XE-08")
def test_each_json_mode_has_its_form_and_keys_are_relaxed(
    mode: str, document: str, updated: str, tmp_path: Path
) -> None:
    value = {"n": bson.Int64(7), "d": bson.DatetimeMS(0)}
    event = change(
        operationType="update",
        documentKey={"_id": bson.Int64(9)},
        fullDocument=value,
        updateDescription={"updatedFields": value},
    )
    (record,) = published(tmp_path, [event], {"mongodb": {"json": mode}})
    found = json.loads(record["value"])
    assert (found["after"], found["updateDescription"]["updatedFields"]) == (document, updated)
    assert record["key"] == '{"id":"9"}'
    built = from_debezium({"topic.prefix": "shop", "json.serialization.mode": mode}).connector
    assert built.publish.mongodb.json == mode


@pytest.mark.covers("MDB-XD-27")
def test_the_whole_document_key_is_the_key_in_stream_and_snapshot(tmp_path: Path) -> None:
    document = {"_id": 1, "geo": {"region": "eu"}, "x": 2}
    (tmp_path / "stream.bson").write_bytes(change(documentKey={"geo.region": "eu", "_id": 1}))
    (tmp_path / "snapshot.shop.flat.bson").write_bytes(bson.encode(document))
    connector = Connector.from_dict(
        {
            "name": "shop",
            "source": {"type": "mongodb"},
            "publish": {"mongodb": {"key": "document_key", "shard_keys": {"shop.flat": "geo.region"}}},
        }
    )
    read, inserted = printed(connector, Recording(tmp_path, "", NOW_NS))
    assert read["key"] == inserted["key"]
    assert json.loads(read["key"])["id"] == '{"geo.region": "eu","_id": 1}'
    assert json.loads(read["value"])["op"] == "r"


@pytest.mark.covers("MDB-XM-03")
def test_documents_alone_are_delivered_without_envelope(tmp_path: Path) -> None:
    delete = change(operationType="delete", fullDocument=...)
    deleted = change(**{**UPDATE, "fullDocument": None})
    publish = {"envelope": "document", "mongodb": {"json": "relaxed"}}
    events = [change(), change(**UPDATE), deleted, delete]
    found = published(tmp_path, events, publish)
    assert [r["value"] for r in found] == ['{"_id": 1,"x": 2}', '{"_id": 1,"x": 2,"secret": 2}', None]
    assert {r["key"] for r in found} == {'{"id":"1"}'}
    assert len(published(tmp_path, events, {**publish, "tombstones": False})) == 2
    (framed,) = published(tmp_path, [change()], {**publish, "schemas": True})
    assert json.loads(framed["value"])["payload"] == '{"_id": 1,"x": 2}'


@pytest.mark.covers("MDB-EVT-19")
def test_envelopes_have_finer_times_on_request(tmp_path: Path) -> None:
    (plain,) = published(tmp_path, [change()], {})
    assert list(json.loads(plain["value"]))[-2:] == ["ts_ms", "transaction"]
    (timed,) = published(tmp_path, [change()], {"mongodb": {"envelope_times": True}})
    value = json.loads(timed["value"])
    assert (value["ts_us"], value["ts_ns"]) == (NOW_NS // 1000, NOW_NS)


@pytest.mark.covers("MDB-FAULT-07")
def test_an_event_that_comes_twice_can_be_recognised(tmp_path: Path) -> None:
    events = [change(_id={"_data": f"82{n}"}, clusterTime=bson.Timestamp(7, n)) for n in (1, 2)]
    found = published(tmp_path, [*events, events[0]], {"mongodb": {"resume_token_header": True}})
    tokens = [dict(record["headers"])["cdc.token"] for record in found]
    assert tokens == ['"821"', '"822"', '"821"']
    places = [json.loads(r["value"])["source"] for r in found]
    assert places[0] == places[2]
    assert (places[0]["ts_ms"], places[0]["ord"]) != (places[1]["ts_ms"], places[1]["ord"])


def test_the_resume_token_is_in_the_source_block_on_request(tmp_path: Path) -> None:
    event = change(_id={"_data": "8201"})
    (plain,) = published(tmp_path, [event], {})
    assert "resume_token" not in json.loads(plain["value"])["source"]
    assert "cdc.token" not in dict(plain["headers"])
    (found,) = published(tmp_path, [event], {"mongodb": {"resume_token_field": True}, "schemas": True})
    value = json.loads(found["value"])
    assert list(value["payload"]["source"].items())[-1] == ("resume_token", "8201")
    (source,) = (f for f in value["schema"]["fields"] if f["field"] == "source")
    assert source["fields"][-1] == {"type": "string", "optional": True, "field": "resume_token"}
    assert "cdc.token" not in dict(found["headers"])
    unwrap = {"enabled": True, "add_fields": ["source.resume_token"]}
    (row,) = published(tmp_path, [event], {"mongodb": {"resume_token_field": True}, "unwrap": unwrap})
    assert json.loads(row["value"])["__source_resume_token"] == "8201"


def test_the_source_block_shows_whether_an_event_is_of_a_snapshot(tmp_path: Path) -> None:
    values = [json.loads(r["value"]) for r in ours_of("txmeta", tmp_path) if r["value"]]
    found = [value["source"]["snapshot"] for value in values if "source" in value]
    reads = [value for value in found if value != "false"]
    assert reads == ["true"] * (len(reads) - 1) + ["last"]
    assert "false" in found
    documents = pa.array([bson.encode({"_id": n}) for n in range(2)], pa.binary())
    options = EnvelopeOptions(topics=TopicNaming("shop"), version="1", tombstones=True, now_ns=NOW_NS)
    envelope = build(decode_snapshot(documents, "shop", "c").events, options, incremental=True)
    assert {source["snapshot"] for source in envelope.value.field("source").to_pylist()} == {"incremental"}


@pytest.mark.covers("MDB-SRC-01")
def test_the_version_is_that_of_the_connector_whose_events_these_are(tmp_path: Path) -> None:
    (plain,) = published(tmp_path, [change()], {})
    (own,) = published(tmp_path, [change()], {"version": "9.9"})
    assert json.loads(plain["value"])["source"]["version"] == "3.6.1.Final"
    assert json.loads(own["value"])["source"]["version"] == "9.9"


@pytest.mark.covers("MDB-TPC-01")
def test_a_topic_that_can_not_have_a_collections_name_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [{"db": "shop", "coll": coll} for coll in ("sp ace", "plain")]
    events = [change(ns=name, operationType=o) for name in names for o in ("insert", "delete")]
    found = published(tmp_path, events, {"topic_prefix": "own"})
    assert [r["topic"] for r in found] == ["own.shop.sp_ace"] * 3 + ["own.shop.plain"] * 3
    warnings = [r.getMessage() for r in caplog.records if "sp_ace" in r.getMessage()]
    assert warnings == [
        "topic own.shop.sp_ace of shop.sp ace has an adjusted name: its characters are not all valid in Kafka"
    ]


@pytest.mark.recorded
@pytest.mark.covers("MDB-TPC-03")
def test_heartbeats_equal_debeziums() -> None:
    their = next(r for r in debezium_records("heartbeat") if r["topic"].startswith("__debezium"))
    now_ms = json.loads(their["value"])["ts_ms"]
    base = {"topic.prefix": "heartbeat"}

    def heartbeat(**properties: str) -> dict[str, Any]:
        connector = from_debezium({**base, **properties}).connector
        found: dict[str, Any] = json.loads(text_of(to_lines(heartbeat_of(connector, now_ms), [("h", '"x"')])))
        return found

    ours = heartbeat()
    names = ("topic", "partition", "key", "value", "headers")
    assert [ours[name] for name in names] == [their[name] for name in names]
    assert heartbeat(**{"topic.heartbeat.prefix": "hb"})["topic"] == "hb.heartbeat"
    assert heartbeat(**{"topic.heartbeat.prefix": "hb", "topic.delimiter": "_"})["topic"] == "hb_heartbeat"
    assert heartbeat(**{"topic.heartbeat.name": "all-of-us"})["topic"] == "all-of-us"
    schemas = schemas_of("heartbeat")
    framed = heartbeat(**{"key.converter.schemas.enable": "true"})
    for part in ("key", "value"):
        schema = schemas[their[f"{part}_schema"]]
        assert framed[part] == f'{{"schema":{schema},"payload":{their[part]}}}'


@pytest.mark.covers("MDB-FLD-02")
def test_a_new_name_that_is_taken_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "stream.bson"
    file.write_bytes(change() + change(fullDocument={"_id": 2, "x": 1, "y": 2}))
    skipped = SkippedRecords(strict=False)
    connector = from_debezium({"topic.prefix": "shop", "field.renames": "shop.flat.x:y"}).connector
    assert len(printed(connector, Recording(file, "", NOW_NS), skipped)) == 1
    (reason,) = skipped.undecodable
    assert "shop.flat.x:y: the document already has this name" in reason


@pytest.mark.covers("MDB-XD-31")
def test_an_array_of_mixed_types_fails_its_event_alone(tmp_path: Path) -> None:
    file = tmp_path / "stream.bson"
    mixed = change(fullDocument={"_id": 2, "x": [1, "a"]})
    file.write_bytes(change() + mixed + change(fullDocument={"_id": 3, "x": [None, 1]}))
    skipped = SkippedRecords(strict=False)
    unwrap = {"enabled": True}
    declared: dict[str, Any] = {"name": "shop", "source": {"type": "mongodb"}, "publish": {"unwrap": unwrap}}
    values = [
        r["value"] for r in printed(Connector.from_dict(declared), Recording(file, "", NOW_NS), skipped)
    ]
    assert values == ['{"_id":1,"x":2}', '{"_id":3,"x":[null,1]}']
    assert "array x has values of different types" in skipped.undecodable[0]
    unwrap["array_encoding"] = "document"  # type: ignore[assignment]
    values = [r["value"] for r in printed(Connector.from_dict(declared), Recording(file, "", NOW_NS))]
    assert values[1] == '{"_id":2,"x":{"_0":1,"_1":"a"}}'
    unwrap["array_encoding"] = "mixed"  # type: ignore[assignment]
    values = [r["value"] for r in printed(Connector.from_dict(declared), Recording(file, "", NOW_NS))]
    assert values == ['{"_id":1,"x":2}', '{"_id":2,"x":["1","\\"a\\""]}', '{"_id":3,"x":[null,1]}']


@pytest.mark.covers("MDB-XD-32")
def test_an_outbox_has_its_own_fields_and_names(tmp_path: Path) -> None:
    document = {
        "_id": "e1",
        "agg": 7,
        "kind": "Order",
        "body": {"a": 1},
        "at": bson.DatetimeMS(5000),
        "part": 3,
        "v": 2,
    }
    publish = {
        "outbox": {
            "enabled": True,
            "tables": [r"shop\.outbox"],
            "event_key": "agg",
            "event_timestamp": "at",
            "payload": "body",
            "route_by": "kind",
            "topic_regex": "(?<first>.)(.*)",
            "topic_replacement": "${first}-$2",
            "schema_version": "v",
            "additional": ["part:partition", "kind:envelope:type", "none:header"],
            "missing": "ignore",
            "expand_json": True,
            "tombstone_on_empty": True,
        }
    }
    outbox = {"db": "shop", "coll": "outbox"}
    empty = {**document, "body": None}
    events = [change(), change(ns=outbox, fullDocument=document), change(ns=outbox, fullDocument=empty)]
    plain, routed, tombstone = published(tmp_path, events, publish)
    assert plain["topic"] == "shop.shop.flat"
    assert routed["topic"] == "O-rder"
    assert (routed["key"], routed["partition"], routed["timestamp"]) == ("7", 3, 5000)
    assert routed["value"] == '{"payload":{"a":1},"type":"Order"}'
    assert dict(routed["headers"]) == {"id": '"e1"'}
    assert (tombstone["key"], tombstone["value"]) == ("7", None)
    update = change(ns=outbox, operationType="update", fullDocument=document)
    with pytest.raises(ConfigurationError, match="documents of an outbox were updated"):
        published(tmp_path, [update], {"outbox": {"enabled": True, "updates": "fatal"}})


def reported(
    folder: Path, documents: list[dict[str, Any]], publish: dict[str, Any]
) -> tuple[list[Any], list[str]]:
    """Publish inserted documents; return values, and the reasons of those that have no record."""
    file = folder / "stream.bson"
    file.write_bytes(b"".join(change(fullDocument=one, documentKey={"_id": one["_id"]}) for one in documents))
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "publish": {"headers": False, **publish}}
    )
    skipped = SkippedRecords(strict=False)
    found = [r["value"] for r in printed(connector, Recording(file, "", NOW_NS), skipped)]
    return found, [text.rpartition("byte ")[2].partition(": ")[2] for text in skipped.undecodable]


@pytest.mark.parametrize(
    ("document", "unwrap", "twice"),
    [
        ({"a": {"b": 1}, "a_b": 2}, {"flatten": True}, "a_b"),
        ({"a": {"b": {"c": 1}}, "a.b": {"c": 2}}, {"flatten": True, "delimiter": "."}, "a.b.c"),
        ({"__op": "mine"}, {"add_fields": ["op"]}, "__op"),
        ({"x": {"y": 1}}, {"flatten": True, "add_fields": ["op:y"], "add_fields_prefix": "x_"}, "x_y"),
        ({"__deleted": "mine"}, {"deletes": "rewrite"}, "__deleted"),
    ],
)
def test_no_field_of_an_unwrapped_document_replaces_another(
    tmp_path: Path, document: dict[str, Any], unwrap: dict[str, Any], twice: str
) -> None:
    documents = [{"_id": 1, **document}, {"_id": 2, "plain": 1}]

    values, reasons = reported(tmp_path, documents, {"unwrap": {"enabled": True, **unwrap}})

    assert [json.loads(value)["_id"] for value in values] == [2]
    assert reasons == [f"two fields of the row would be named {twice!r}, when flattened or added"]


@pytest.mark.parametrize("partition", [2**31, -1, 2**62, -(2**63)])
def test_an_outbox_row_with_no_partition_fails_alone(tmp_path: Path, partition: int) -> None:
    row = {"aggregatetype": "T", "aggregateid": 1, "payload": "p", "part": 2**31 - 1}
    documents = [{"_id": 1, **row, "part": bson.Int64(partition)}, {"_id": 2, **row}]

    values, reasons = reported(
        tmp_path, documents, {"outbox": {"enabled": True, "additional": ["part:partition"]}}
    )

    assert (values, reasons) == (['"p"'], ["part of the outbox row is no partition"])


@pytest.mark.covers("MDB-TX-06", "MDB-XD-26")
def test_a_transaction_continues_after_a_restart(tmp_path: Path) -> None:
    session = {"lsid": {"id": bson.Binary(b"x" * 16, 4)}, "txnNumber": bson.Int64(7)}
    events = [change(documentKey={"_id": n}, **session) for n in range(4)] + [change()]
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "publish": {"transactions": True}}
    )
    whole = [r["value"] for r in printed(connector, _written(tmp_path, events))]

    stored, parts = OpenTransaction().to_json(), []
    for portion in (events[:2], events[2:4], events[4:]):
        maker = MongodbRecords(connector, NOW_NS, open=OpenTransaction.from_json(stored))
        decoded = decode_stream(
            pa.array(portion, pa.binary()), full_document="lookup", pre_images=False, form=maker.form()
        )
        parts += maker.records(decoded.events)[0]["value"].to_pylist()
        stored = maker.open.to_json()
    assert parts == whole
    assert [json.loads(v).get("status") for v in parts] == ["BEGIN", None, None, None, None, "END", None]


def _written(folder: Path, events: list[bytes]) -> Recording:
    file = folder / "stream.bson"
    file.write_bytes(b"".join(events))
    return Recording(file, "", NOW_NS)


def of_schema(event: dict[str, Any]) -> tuple[str, str, str | None]:
    value = json.loads(event["value"])
    return value["type"], value["databaseName"], value["collectionName"]


@pytest.mark.recorded
@pytest.mark.covers("MDB-XD-28")
def test_schema_changes_of_a_real_server_are_in_stream_order(tmp_path: Path) -> None:
    source = recording(tmp_path, "expanded")
    base = {"snapshot.mode": "never", "topic.prefix": "shop", "json.serialization.mode": "extended"}
    rows = printed(from_debezium(base).connector, source)
    both = printed(from_debezium({**base, "include.schema.changes": "true"}).connector, source)

    schema_changes = [event for event in both if event["topic"] == "shop.schema-changes"]
    assert [without_clock(e["value"]) for e in both if e not in schema_changes] == [
        without_clock(e["value"]) for e in rows
    ], "the others are as without"
    assert {of_schema(event)[0] for event in schema_changes} == {
        "create",
        "createIndexes",
        "drop",
        "dropDatabase",
        "dropIndexes",
        "modify",
        "rename",
    }
    assert ("dropDatabase", "dropme", None) in map(of_schema, schema_changes)
    times = [json.loads(e["value"])["source"]["ts_ms"] for e in both if e["value"]]
    assert times == sorted(times), "in the order of the stream"
    with gzip.open(FIXTURES / "raw" / "expanded.bson.gz") as file:
        native = [e for e in bson.decode_all(file.read(), WHOLE) if "documentKey" not in e]
    assert len(native) == len(schema_changes) == 10
    for event, its in zip(schema_changes, native, strict=True):
        published = json_util.loads(json.loads(event["value"])["event"])
        assert list(published) == list(its)
        for name in ("_id", "operationType", "ns", "to", "operationDescription", "collectionUUID"):
            assert published.get(name) == its.get(name), name
        assert json.loads(event["key"]) == {"databaseName": its["ns"]["db"]}
        assert event["headers"] == []


@pytest.mark.covers("MDB-XD-28")
def test_every_kind_of_schema_change_is_published_for_captured_collections_alone(tmp_path: Path) -> None:
    kinds: tuple[str, ...] = ("create", "drop", "modify", "createIndexes", "dropIndexes", "shardCollection")
    kinds += ("reshardCollection", "refineCollectionShardKey", "a kind of a later server")
    without_members: dict[str, Any] = {"documentKey": ..., "fullDocument": ...}
    flat, other, own = (
        {"db": db, "coll": coll} for db, coll in (("shop", "flat"), ("shop", "x"), ("config", "c"))
    )
    events = [
        change(operationType=kind, ns=ns, **without_members) for ns in (flat, other, own) for kind in kinds
    ]
    events += [
        change(operationType="rename", ns=flat, to=other, **without_members),
        change(operationType="rename", ns=other, to=flat, **without_members),
        change(operationType="rename", ns=other, to=other, **without_members),
        change(operationType="dropDatabase", ns={"db": "shop"}, **without_members),
        change(operationType="dropDatabase", ns={"db": "config"}, **without_members),
        change(operationType="invalidate", ns=..., **without_members),
        change(),
    ]
    file = tmp_path / "stream.bson"
    file.write_bytes(b"".join(events))

    def built(**publish: Any) -> list[dict[str, Any]]:
        values = {"name": "shop", "source": {"type": "mongodb"}, "tables": [r"shop\.flat"]}
        connector = Connector.from_dict({**values, "publish": {"schema_changes": True, **publish}})
        return printed(connector, Recording(file, "", NOW_NS))

    *schema_changes, last = built()
    assert last["topic"] == "shop.shop.flat"
    assert [of_schema(event) for event in schema_changes] == [
        *((kind, "shop", "flat") for kind in kinds),
        ("rename", "shop", "flat"),
        ("rename", "shop", "x"),
        ("dropDatabase", "shop", None),
        ("invalidate", "", None),
    ]
    *framed, _ = built(schemas=True, schema_changes_topic="ddl", mongodb={"json": "relaxed"})
    assert {event["topic"] for event in framed} == {"shop.ddl"}
    value = json.loads(framed[0]["value"])
    assert value["schema"]["name"] == "io.debezium.connector.mongodb.SchemaChangeValue"
    assert value["payload"]["source"] == {
        **value["payload"]["source"],
        "db": "shop",
        "collection": "flat",
        "ord": 3,
        "ts_ms": 1_700_000_000_000,
    }
    assert built(value="avro", key="avro")
    with pytest.raises(
        ConfigurationError, match=r"option publish\.schema_changes is not supported for source cassandra"
    ):
        Connector.from_dict(
            {"name": "shop", "source": {"type": "cassandra"}, "publish": {"schema_changes": True}}
        )
