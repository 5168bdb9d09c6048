from __future__ import annotations

import logging
from collections import Counter

import bson
import pyarrow as pa
import pytest
from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import scan
from airflow_cdc_provider.sources.mongodb.events.decode import decode_stream
from airflow_cdc_provider.sources.mongodb.records import snapshot_records
from airflow_cdc_provider.sources.mongodb.selection import Selection
from tests.unit.sources.mongodb.documents import READ, mutated
from tests.unit.sources.mongodb.recorded_changes import SHOP, event, recorded, records


@pytest.mark.parametrize("name", ["default", "lookup_pre", "post_pre"])
def test_every_recorded_event_becomes_the_record_that_pymongo_would_make(name: str) -> None:
    raw = recorded(name)
    spans = split_documents(as_bytes(raw))
    events = [raw[a:b] for a, b in zip(spans.starts, spans.ends, strict=True)]
    expected = []
    last, index = None, 0
    for data in events:
        decoded = bson.decode(data, READ)
        time = decoded["clusterTime"]
        index = index + 1 if time == last else 0
        last = time
        namespace = f"{decoded['ns']['db']}.{decoded['ns'].get('coll', '')}"
        if decoded["operationType"] in ("insert", "update", "replace", "delete") and SHOP(namespace):
            expected_position = b"".join(n.to_bytes(4, "big") for n in (time.time, time.inc, index))
            expected.append((namespace, expected_position, int(decoded["wallTime"]) * 1000, data))
    found = records(raw).to_pylist()
    changes = [r for r in found if r["kind"] == "change"]
    timestamps = pa.array([r["committed_at"] for r in changes]).cast(pa.int64()).to_pylist()
    assert [
        (r["source_table"], r["position"], t, r["payload"]) for r, t in zip(changes, timestamps, strict=True)
    ] == expected
    assert all(r["version"] == r["position"] and r["origin"] == "stream" and r["key"] for r in changes)
    positions = [r["position"] for r in found]
    assert positions == sorted(set(positions))


def test_a_drop_and_a_rename_end_what_was_there() -> None:
    found = [r for r in records(recorded("default")).to_pylist() if r["kind"] != "change"]
    assert [(r["source_table"], r["kind"], len(r["position"])) for r in found] == [
        ("shop.drops", "drop", 12),
        *[("shop.drops", "drop", 12), ("shop.renamed", "drop", 13), ("shop.renamed", "signal", 13)] * 2,
        (None, "schema", 12),
    ]
    assert all(r["version"] is None and r["key"] is None for r in found)


def test_a_rename_to_an_unselected_name_only_ends_the_old_one() -> None:
    rename = event("rename", documentKey=..., fullDocument=..., to={"db": "other", "coll": "x"})
    assert [(r["source_table"], r["kind"]) for r in records(rename).to_pylist()] == [("shop.a.b", "drop")]


def test_a_rename_from_an_unselected_name_fills_the_new_one() -> None:
    rename = event(
        "rename",
        documentKey=...,
        fullDocument=...,
        ns={"db": "other", "coll": "x"},
        to={"db": "shop", "coll": "y"},
    )
    found = records(event(), rename, event()).to_pylist()
    assert [(r["source_table"], r["kind"]) for r in found] == [
        ("shop.a.b", "change"),
        ("shop.y", "drop"),
        ("shop.y", "signal"),
        ("shop.a.b", "change"),
    ]
    assert all(r["committed_at"] is not None and r["captured_at"] is not None for r in found)


@pytest.mark.covers("MDB-FLT-06", "MDB-CAP-10")
def test_the_servers_own_collections_are_never_captured() -> None:
    everything = Selection()
    names = [("admin", "x"), ("config", "x"), ("local", "x"), ("shop", "system.views"), ("shop", "x")]
    events = [event(ns={"db": db, "coll": coll}) for db, coll in names]
    assert records(*events, selects=everything).column("source_table").to_pylist() == ["shop.x"]


def test_operations_of_one_cluster_time_are_numbered_on_across_slices() -> None:
    first, second = (
        records(event(), event()),
        records(event(), event(clusterTime=Timestamp(10, 2)), first_index=2),
    )
    positions = [p[8:] for b in (first, second) for p in b.column("position").to_pylist()]
    assert [int.from_bytes(p, "big") for p in positions] == [0, 1, 2, 0]


def test_numbers_count_events_that_are_not_selected_too() -> None:
    found = records(event(ns={"db": "x", "coll": "y"}), event())
    assert found.column("position").to_pylist() == [
        (10).to_bytes(4, "big") + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
    ]


def test_driver_and_executor_number_events_alike() -> None:
    raw = recorded("default")
    spans = split_documents(as_bytes(raw))
    scanned = scan(as_bytes(raw), spans, 0, -1)
    read = records(raw, selects=Selection())
    numbers = {p[:12] for p in read.column("position").to_pylist()}
    assert numbers == {
        int(t).to_bytes(8, "big") + int(i).to_bytes(4, "big")
        for t, i in zip(scanned.times, scanned.indexes, strict=True)
    }


def test_a_transaction_is_named_by_session_and_number() -> None:
    session = Binary(bytes(range(16)), 4)
    inside = event(lsid={"id": session, "uid": b""}, txnNumber=Int64(7))
    found = records(event(), inside, inside, event(lsid={"id": session})).column("transaction").to_pylist()
    assert found == [None, bytes(range(16)).hex() + ":7", bytes(range(16)).hex() + ":7", None]


def test_without_wall_time_the_cluster_times_second_is_the_commit_time() -> None:
    (found,) = records(event(wallTime=...)).column("committed_at").cast(pa.int64()).to_pylist()
    assert found == 10_000_000


@pytest.mark.parametrize("wall_ms", [-(2**63), -1, 253_402_300_800_000, 2**63 // 1000 + 1, 2**63 - 1])
def test_a_wall_time_that_no_clock_has_does_not_wrap(wall_ms: int) -> None:
    """A stage of the stream may set it."""
    (found,) = (
        records(event(wallTime=DatetimeMS(wall_ms))).column("committed_at").cast(pa.int64()).to_pylist()
    )
    assert found == 10_000_000


@pytest.mark.covers("MDB-XS-03", "MDB-XM-07")
def test_fields_of_newer_servers_do_not_disturb() -> None:
    description = {"updatedFields": {"a.b": 1}, "removedFields": [], "disambiguatedPaths": {"a.b": ["a.b"]}}
    newer = event(
        "update",
        nsType="collection",
        collectionUUID=Binary(bytes(16), 4),
        operationDescription={"x": 1},
        updateDescription=description,
    )
    (found,) = records(newer).to_pylist()
    assert (found["kind"], found["payload"]) == ("change", newer)
    decoded = decode_stream(pa.array([newer], pa.binary()), full_document="lookup", pre_images=False)
    assert decoded.events["update_description"][0].as_py()["updatedFields"] == '{"a.b": 1}'


@pytest.mark.covers("MDB-XD-18")
def test_a_broken_event_is_quarantined_and_the_rest_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    good = [event(documentKey={"_id": n}) for n in range(6)]
    broken = list(good)
    broken[2] = mutated(good[2], [(4, 0x55)])
    broken[4] = bson.encode({"operationType": "insert"})
    with caplog.at_level(logging.WARNING):
        found = records(*broken).to_pylist()
    assert [r["kind"] for r in found] == ["change", "change", "quarantine", "change", "quarantine", "change"]
    assert [found[n]["payload"] for n in (2, 4)] == [broken[2], broken[4]]
    reasons = [r["reason"] for r in found]
    assert reasons[:2] == [None, None]
    assert str(reasons[2]).startswith("BROKEN-EVENT: ")
    assert reasons[4] == "BROKEN-EVENT: the cluster time or the operation is missing"
    assert [r["position"] for r in found] == [r["position"] for r in records(*good).to_pylist()]
    assert f"event 2 at byte {2 * len(good[0])}" in caplog.text


def test_a_length_that_cannot_be_followed_quarantines_the_rest() -> None:
    found = records(event(), b"\xff\xff\xff\x7f and more", event()).to_pylist()
    assert [r["kind"] for r in found] == ["change", "quarantine"]
    assert found[1]["payload"].endswith(event())


@pytest.mark.covers("MDB-XD-18")
def test_strict_fails_on_the_first_broken_event() -> None:
    with pytest.raises(CorruptInput, match="event 1 at byte"):
        records(event(), mutated(event(), [(4, 0x55)]), strict=True)


def test_no_events_give_no_records() -> None:
    assert records().num_rows == 0


def test_snapshot_rows_are_after_all_events_of_their_cluster_time() -> None:
    documents = [bson.encode({"_id": n}) for n in range(3)]
    data = as_bytes(b"".join(documents))
    batch = snapshot_records(
        data, split_documents(data), table="shop.a", time=(10 << 32) | 1, number=4, first_row=5, captured_us=1
    )
    batch.validate(full=True)
    rows = batch.to_pylist()
    (change,) = records(event()).to_pylist()
    fence = change["position"][:8] + b"\xff" * 4
    assert {r["version"] for r in rows} == {fence}
    assert all(r["position"] > fence > change["position"] for r in rows)
    assert len({r["position"] for r in rows}) == 3
    assert [r["payload"] for r in rows] == documents
    assert Counter(r["kind"] for r in rows) == {"snapshot": 3}
    (again,) = records(event(documentKey={"_id": 1.0})).column("key").to_pylist()
    assert rows[1]["key"] == again
