"""Events of recordings, byte for byte against Debezium's events of the same changes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import row_lines
from tests.unit.sources.mongodb.events.mongodb_recordings import (
    FIXTURES,
    NOW_NS,
    PROFILES,
    RECORDED_BY,
    WHOLE,
    debezium_records,
    printed,
    raced_with_the_next_write,
    recording,
    without_clock,
)

PLAIN = (
    "default",
    "cs",
    "pre",
    "full_pre",
    "post",
    "post_pre",
    "no_tomb",
    "skip_u",
    "skip_d",
    "scope_db",
    "scope_coll_keep",
    "literal",
    "nosnap",
)
"""Profiles that choose what is captured, and how."""
RAW = DEFAULT_RAW_BSON_OPTIONS


def connector_of(profile: str, **more: str) -> Connector:
    properties = {"topic.prefix": profile, **PROFILES[profile], **more}
    return from_debezium(properties).connector


@pytest.mark.recorded
@pytest.mark.parametrize("profile", PLAIN)
@pytest.mark.covers(
    "MDB-CAP-01",
    "MDB-CAP-02",
    "MDB-CAP-03",
    "MDB-CAP-04",
    "MDB-CAP-05",
    "MDB-CAP-06",
    "MDB-CAP-07",
    "MDB-CAP-14",
    "MDB-SNAP-01",
    "MDB-SNAP-20",
    "MDB-EVT-03",
    "MDB-EVT-04",
    "MDB-EVT-05",
    "MDB-EVT-06",
    "MDB-EVT-07",
    "MDB-EVT-08",
    "MDB-EVT-10",
    "MDB-EVT-11",
    "MDB-EVT-13",
    "MDB-EVT-14",
    "MDB-EVT-15",
    "MDB-EVT-16",
    "MDB-EVT-17",
    "MDB-SRC-02",
    "MDB-SRC-03",
    "MDB-SRC-04",
    "MDB-SRC-06",
    "MDB-SRC-07",
    "MDB-SRC-08",
    "MDB-SRC-09",
    "MDB-HDR-01",
    "MDB-XD-02",
    "MDB-XD-03",
    "MDB-XF-06",
)
def test_events_equal_debeziums_byte_for_byte(profile: str, tmp_path: Path) -> None:
    source = recording(tmp_path, RECORDED_BY.get(profile, "lookup_pre"))
    ours = printed(connector_of(profile), source)
    theirs = debezium_records(profile)
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert (our["topic"], our["key"]) == (their["topic"], their["key"])
        assert [h for h in our["headers"] if not h[0].endswith("runId")] == their["headers"]
        assert our["partition"] is None
        if not raced_with_the_next_write(our):
            assert without_clock(our["value"]) == without_clock(their["value"])


@pytest.mark.recorded
@pytest.mark.covers("MDB-LIM-02")
def test_skipping_truncates_has_no_effect(tmp_path: Path) -> None:
    source = recording(tmp_path, "lookup_pre")
    skipping = printed(connector_of("default", **{"skipped.operations": "t"}), source)
    events = printed(connector_of("default"), source)
    members = ("topic", "key", "value")
    assert [[e[m] for m in members] for e in skipping] == [[e[m] for m in members] for e in events]
    operations = {json.loads(e["value"])["op"] for e in events if e["value"] and '"op":' in e["value"]}
    assert operations == {"r", "c", "u", "d"}


@pytest.mark.recorded
@pytest.mark.covers("MDB-FLT-02")
def test_a_database_list_selects_whole_names(tmp_path: Path) -> None:
    # Debezium's stream lets shop2 through database.include.list=shop, against its documentation; we don't.
    theirs = [r for r in debezium_records("excl") if not r["topic"].startswith("excl.shop2.")]
    ours = printed(connector_of("excl"), recording(tmp_path, "lookup_pre"))
    assert len(theirs) == len(debezium_records("excl")) - 1
    assert [(r["topic"], r["key"]) for r in ours] == [(r["topic"], r["key"]) for r in theirs]


@pytest.mark.recorded
@pytest.mark.covers("MDB-EVT-02", "MDB-EVT-09", "MDB-EVT-12", "MDB-XD-03")
def test_with_schemas_each_payload_has_its_schema(tmp_path: Path) -> None:
    schemas = {s["name"]: s for s in json.loads((FIXTURES / "default.schemas.json").read_text())}
    source = recording(tmp_path, "lookup_pre")
    framed = printed(connector_of("default", **{"key.converter.schemas.enable": "true"}), source)
    plain = printed(connector_of("default"), source)
    seen = set()
    for with_schema, without in zip(framed, plain, strict=True):
        for part, name in (("key", "Key"), ("value", "Envelope")):
            schema = schemas.get(f"{with_schema['topic']}.{name}")
            if schema is None or without[part] is None:
                continue
            seen.add(schema["name"])
            text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
            assert with_schema[part] == f'{{"schema":{text},"payload":{without[part]}}}'
    assert seen == set(schemas)


@pytest.mark.recorded
@pytest.mark.covers("MDB-EVT-18", "MDB-SRC-04")
def test_snapshot_reads_have_the_given_time(tmp_path: Path) -> None:
    first = printed(connector_of("default"), recording(tmp_path, "lookup_pre"))[0]
    value = json.loads(first["value"])
    assert value["ts_ms"] == NOW_NS // 1_000_000
    assert value["source"]["ts_ns"] == NOW_NS
    assert value["source"]["ts_us"] == NOW_NS // 1000


@pytest.mark.recorded
@pytest.mark.covers("MDB-XD-20")
def test_headers_name_one_run(tmp_path: Path) -> None:
    source = recording(tmp_path, "lookup_pre")
    runs = [
        {
            json.loads(dict(record["headers"])["__debezium.context.runId"])
            for record in printed(connector_of("no_tomb", **{"extended.headers.enabled": "true"}), source)
        }
        for _ in range(2)
    ]
    assert [len(run) for run in runs] == [1, 1]
    assert runs[0] != runs[1]


def insert(number: int) -> bytes:
    return bson.encode(
        {
            "_id": {"_data": "82"},
            "operationType": "insert",
            "clusterTime": bson.Timestamp(1, number),
            "ns": {"db": "shop", "coll": "c"},
            "documentKey": {"_id": number},
            "fullDocument": {"_id": number},
        }
    )


def test_collections_of_one_name_come_as_debezium_lists_their_databases(tmp_path: Path) -> None:
    # As recorded with Debezium 3.6.1, which keeps the names of databases in a java.util.HashSet.
    for database in ("odd", "odd-db_2", "Odd3", "\u00f6dd\U0001f600"):
        (tmp_path / f"snapshot.{database}.same.bson").write_bytes(bson.encode({"_id": 1}))
    (tmp_path / "snapshot.zoo.a.bson").write_bytes(bson.encode({"_id": 1}))
    connector = connector_of("default", **{"collection.include.list": r".*\..*"})
    read = [json.loads(r["value"])["source"] for r in printed(connector, Recording(tmp_path, "", NOW_NS))]
    assert [source["db"] for source in read] == ["zoo", "odd-db_2", "Odd3", "\u00f6dd\U0001f600", "odd"]
    assert [source["snapshot"] for source in read] == ["true"] * 4 + ["last"]


def test_broken_input_is_located_and_the_rest_lands(tmp_path: Path) -> None:
    events = [bytearray(insert(number)) for number in range(20)]
    size = len(events[0])
    events[3][0] ^= 0xFF
    events[9][20] = 0x77
    file = tmp_path / "stream.bson"
    file.write_bytes(b"".join(events) + insert(20)[:-4])
    skipped = SkippedRecords(strict=False)
    records = printed(connector_of("default"), Recording(file, "", NOW_NS), skipped)
    assert [json.loads(r["key"])["id"] for r in records] == [
        str(number) for number in range(20) if number not in (3, 9)
    ]
    assert [position.split(": ")[0] for position in skipped.undecodable] == [
        f"{file} at byte {3 * size}",
        f"{file} at byte {9 * size}",
        f"{file} at byte {20 * size}",
    ]


def test_an_event_without_namespace_is_quarantined(tmp_path: Path) -> None:
    file = tmp_path / "stream.bson"
    file.write_bytes(insert(1) + bson.encode({"operationType": "insert"}) + insert(2))
    skipped = SkippedRecords(strict=False)
    assert len(printed(connector_of("default"), Recording(file, "", NOW_NS), skipped)) == 2
    assert skipped.undecodable == [
        f"{file} at byte {len(insert(1))}: the change event is broken BSON or lacks ns or documentKey"
    ]


def test_strict_fails_at_the_first_broken_section(tmp_path: Path) -> None:
    file = tmp_path / "stream.bson"
    file.write_bytes(insert(1) + b"\xff" + insert(2))
    with pytest.raises(CorruptInput, match=f"at byte {len(insert(1))}"):
        printed(connector_of("default"), Recording(file, "", NOW_NS), SkippedRecords(strict=True))


def test_a_recorded_snapshot_is_not_filtered_by_guess(tmp_path: Path) -> None:
    connector = connector_of(
        "default",
        **{
            "snapshot.collection.filter.overrides": "shop.plain",
            "snapshot.collection.filter.overrides.shop.plain": '{"number": 1}',
        },
    )
    with pytest.raises(ConfigurationError, match=r"shop\.plain can't be evaluated"):
        printed(connector, recording(tmp_path, "lookup_pre"))


def test_a_missing_recording_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="there is no recording"):
            printed(connector_of("default"), Recording(path, "", NOW_NS))


def documents(file: Path) -> list[bytes]:
    with gzip.open(file) as stream:
        return [bytes(document.raw) for document in bson.decode_file_iter(stream, RAW)]


def replayed(folder: Path, stream: str) -> dict[str, list[str]]:
    """Apply a recording the plain way: one document after the other."""
    state: dict[str, dict[bytes, bytes]] = {}

    def key(document: bytes) -> bytes:
        return bson.encode({"_id": bson.decode(document, WHOLE)["_id"]}, codec_options=WHOLE)

    for file in folder.glob("snapshot.*"):
        table = file.name.removeprefix("snapshot.").removesuffix(".bson.gz")
        state[table] = {key(document): document for document in documents(file)}
    for raw in documents(folder / f"{stream}.bson.gz"):
        event = bson.decode(raw, RAW)
        operation = event["operationType"]
        if "coll" not in event.get("ns", {}):
            continue
        table = f"{event['ns']['db']}.{event['ns']['coll']}"
        rows = state.setdefault(table, {})
        if operation == "drop":
            rows.clear()
        elif operation == "rename":
            state[f"{event['to']['db']}.{event['to']['coll']}"] = state.pop(table)
        elif operation == "delete":
            rows.pop(key(bytes(event["documentKey"].raw)), None)
        elif operation in ("insert", "replace", "update") and event["fullDocument"] is not None:
            rows[key(bytes(event["documentKey"].raw))] = bytes(event["fullDocument"].raw)
    return {table: sorted(canonical(row) for row in rows.values()) for table, rows in state.items() if rows}


def canonical(document: bytes) -> str:
    return json_util.dumps(bson.decode(document, WHOLE), json_options=json_util.CANONICAL_JSON_OPTIONS)


def test_rows_equal_a_replay_of_the_recording(tmp_path: Path) -> None:
    source = recording(tmp_path, "lookup_pre")
    lines = row_lines(connector_of("default"), source, SkippedRecords(strict=True))
    ours: dict[str, list[str]] = {}
    for line in b"".join(text_of(chunk) for chunk in lines).decode().splitlines():
        table = json.loads(line)["table"]
        row = line.removeprefix(f'{{"table":{json.dumps(table, ensure_ascii=False)},"row":').removesuffix("}")
        ours.setdefault(table, []).append(row)
    theirs = {table: r for table, r in replayed(tmp_path, "lookup_pre").items() if table.startswith("shop")}
    for rows in (ours, theirs):
        # PyMongo has no undefined, symbol and DBPointer, and keeps one of repeated names.
        rows["shop.types"] = [
            row for row in rows["shop.types"] if '"undef"' not in row and '"dup"' not in row
        ]
    assert {table: sorted(rows) for table, rows in ours.items()} == theirs


def test_rows_of_one_table_may_be_selected(tmp_path: Path) -> None:
    source = replace(recording(tmp_path, "lookup_pre"), table="shop.orders")
    lines = list(row_lines(connector_of("default"), source, SkippedRecords(strict=True)))
    tables = {json.loads(line)["table"] for chunk in lines for line in text_of(chunk).splitlines()}
    assert tables == {"shop.orders"}


def test_updates_without_documents_add_up_to_the_same_rows_unless_a_path_is_ambiguous(tmp_path: Path) -> None:
    def rows(profile: str, stream: str, skipped: SkippedRecords) -> set[bytes]:
        folder = tmp_path / stream
        folder.mkdir()
        lines = row_lines(connector_of(profile), recording(folder, stream), skipped)
        return set(b"".join(text_of(chunk) for chunk in lines).splitlines())

    skipped = SkippedRecords(strict=False)
    whole = rows("default", "lookup_pre", SkippedRecords(strict=True))
    by_updates = rows("cs", "default", skipped)

    # Of it, {"a.b": 1, "a": {"b": 2}}, an update reports that a.b was set.
    assert skipped.undecodable == [
        "shop.mixed, key 013ff0000000000000: NO-BASE: an update of an unknown document"
    ]
    (ours,), (theirs,) = by_updates - whole, whole - by_updates
    assert json.loads(ours)["row"]["_id"] == json.loads(theirs)["row"]["_id"] == {"$numberInt": "1"}


@pytest.mark.covers("MDB-XS-05")
def test_a_document_that_another_shard_key_moves_is_deleted_and_inserted_and_is_there(
    tmp_path: Path,
) -> None:
    # As mongos sends it: both at the time of one transaction, the delete first; the ids are the same.
    def moved(operation: str, region: str, **more: Any) -> bytes:
        return bson.encode(
            {
                "_id": {"_data": f"82{region.encode().hex()}"},
                "operationType": operation,
                "clusterTime": bson.Timestamp(9, 4),
                "ns": {"db": "shop", "coll": "orders"},
                "documentKey": {"region": region, "_id": 1},
                **more,
            }
        )

    before, after = ({"_id": 1, "region": region, "n": 5} for region in ("eu", "us"))
    (tmp_path / "snapshot.shop.orders.bson").write_bytes(bson.encode(before))
    (tmp_path / "stream.bson").write_bytes(
        moved("delete", "eu")
        + moved("insert", "us", fullDocument=after, lsid={"id": 1}, txnNumber=bson.Int64(1))
    )
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
    source = Recording(tmp_path, "", NOW_NS)
    reported = [json.loads(r["value"])["op"] if r["value"] else None for r in printed(connector, source)]
    assert reported == ["r", "d", None, "c"]
    (row,) = b"".join(
        text_of(c) for c in row_lines(connector, source, SkippedRecords(strict=True))
    ).splitlines()
    assert json_util.loads(json.dumps(json.loads(row)["row"])) == after
