"""Signals, and the snapshots that they request: incremental, blocking, stopped, paused, resumed."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pyarrow as pa
import pytest
from pymongo.errors import DuplicateKeyError

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs import signals
from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.signals.files import send
from airflow_cdc_provider.sources.mongodb.events.decode import decode_snapshot, decode_stream
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords
from tests.integration.jobs.conftest import Application
from tests.integration.jobs.shop import Shop
from tests.integration.jobs.signalled import Signalled

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pyspark.sql import SparkSession

    from server_kit import KafkaServer, MongoServer

pytestmark = pytest.mark.integration

EVERY_ID: list[Any] = [
    bson.MinKey(),
    None,
    float("nan"),
    -1,
    0.5,
    bson.Int64(2**40),
    bson.Decimal128("7.10"),
    "",
    "a",
    "Z",
    "é",
    {},
    {"a": 1, "b": bson.MinKey()},
    {"b": 1, "a": 1},
    bson.Binary(b"", 0),
    bson.Binary(b"old", 2),
    bson.Binary(b"own", 0x80),
    bson.Binary(bytes(16), 4),
    bson.Binary(bytes(16), 5),
    bson.ObjectId("0123456789abcdef01234567"),
    False,
    True,
    dt.datetime(1969, 7, 20, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 3, tzinfo=dt.UTC),
    bson.Timestamp(1, 2),
    bson.Code("f()"),
    bson.MaxKey(),
]
"""At least one ``_id`` of each BSON type that may be one."""


@pytest.fixture
def store(
    spark: SparkSession, mongo_server: MongoServer, mongo_client: MongoClient, tmp_path: Path
) -> Iterator[Signalled]:
    name = f"m{random.randrange(10**9)}"
    connection = {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}
    yield Signalled(spark, mongo_client[name], connection, tmp_path)
    mongo_client.drop_database(name)


@pytest.mark.covers("MDB-INC-01", "MDB-INC-03", "MDB-INC-02", "MDB-XD-30")
def test_incremental_snapshot_fills_the_mirror_while_documents_change(
    store: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_CAPTURE_SECONDS", 0.0)
    things = store.database.things
    things.insert_many([{"_id": bson.Int64(100 + n), "v": 0} for n in range(900)])
    largest = 999
    store.declare("snapshot", incremental={"chunk_size": 50, "chunks_per_commit": 2})
    store.run()
    store.copy("things", identity="fill")
    over = threading.Event()

    def write() -> None:
        rng = random.Random(7)
        number = 0
        while not over.is_set():
            number += 1
            key = bson.Int64(100 + rng.randrange(900))
            things.update_one({"_id": key}, {"$inc": {"v": 1}})
            things.replace_one({"_id": bson.Int64(100 + rng.randrange(900))}, {"replaced": number})
            if rng.random() < 0.3:
                things.delete_one({"_id": key})
            things.insert_one({"_id": bson.Int64(largest + number), "above": True})
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        outcome = store.run()
    finally:
        over.set()
        writer.join()

    assert outcome.changes > 20
    assert store.outcome("fill") == "done"
    records = store.records("things")
    kinds = [row["kind"] for row in records]
    assert kinds.index("change") < len(kinds) - 1 - kinds[::-1].index("snapshot"), "both are interleaved"
    assert kinds.index("snapshot") < len(kinds) - 1 - kinds[::-1].index("change")
    sizes = [event.rows for event in store.events if event.kind == "in_progress"]
    assert len(sizes) >= 9
    assert all(size is not None and size <= 100 for size in sizes), "two chunks of 50 in a commit"
    (bound,) = {int(e.maximum_key) for e in store.events if e.kind == "in_progress"}
    assert largest <= bound < max(d["_id"] for d in things.find())
    assert max(store.copied_ids("things")) <= bound, "what is above is left to the stream"
    assert max(store.copied("things").values()) == 1
    store.assert_no_read_is_behind("things")
    store.run()
    store.mirror_equals("things")


@pytest.mark.covers("MDB-XD-22", "MDB-XD-23")
@pytest.mark.parametrize("kind", ["incremental", "initial"])
def test_every_type_of_id_is_copied_once(store: Signalled, kind: str) -> None:
    store.database.things.insert_many([{"_id": key} for key in EVERY_ID])
    store.declare("snapshot", incremental={"chunk_size": 3, "chunks_per_commit": 2})
    if kind == "initial":
        store.declare("snapshot", mode="initial")
        store.run()
    else:
        store.run()
        store.copy("things")
        store.run()
    counts = store.copied("things")
    assert (len(counts), max(counts.values())) == (len(EVERY_ID), 1)
    assert store.mirror_equals("things") == len(EVERY_ID)


@pytest.mark.long
def test_the_largest_id_of_each_type_bounds_a_copy(store: Signalled) -> None:
    store.run()
    for number in range(len(EVERY_ID)):
        store.database[f"c{number:02}"].insert_many([{"_id": one} for one in EVERY_ID[: number + 1]])
    store.database.c00.insert_many([{"_id": 1}, {"_id": bson.DatetimeMS(2**60)}])
    store.copy("c[0-9]+", identity="all")
    store.run()
    assert store.outcome("all") == "done"
    for number in range(len(EVERY_ID)):
        counts = store.copied(f"c{number:02}")
        assert (len(counts), max(counts.values())) == (number + 1 if number else 3, 1)


@pytest.mark.covers("MDB-INC-11")
@pytest.mark.parametrize(
    "collation",
    [None, {"locale": "en", "strength": 2}, pytest.param({"locale": "sv"}, marks=pytest.mark.long)],
)
def test_strings_are_copied_once_in_the_order_of_their_index(
    store: Signalled, collation: dict[str, Any] | None
) -> None:
    rng = random.Random(5)
    letters = "abzABZéÄäö0 _~\u0001\U0001f600"
    names = {"".join(rng.choices(letters, k=rng.randrange(1, 6))) for _ in range(300)}
    options = {"collation": collation} if collation else {}
    store.database.create_collection("things", **options)
    for name in names:
        with contextlib.suppress(DuplicateKeyError):  # what a collation takes for one
            store.database.things.insert_one({"_id": name})
    order = [d["_id"] for d in store.database.things.find().sort("_id")]
    store.declare("snapshot", incremental={"chunk_size": 7, "chunks_per_commit": 5})
    store.run()
    store.copy("things")
    store.run()
    assert sorted(store.copied_ids("things")) == sorted(order)
    bounds = [json.loads(e.chunk_to) for e in store.events if e.kind == "in_progress" and e.chunk_to]
    assert bounds == sorted(bounds, key=order.index)
    assert store.mirror_equals("things") == len(order)


@pytest.mark.covers(
    *("MDB-INC-05", "MDB-XD-04", "MDB-XD-10", "MDB-XD-11"),
    *("MDB-SIG-05", "MDB-SIG-08", "MDB-NOT-01", "MDB-NOT-02"),
)
def test_incremental_snapshot_paused_and_resumed_by_a_topic_continues_after_a_restart(
    store: Signalled, kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = store.database.name
    store.database.things.insert_many([{"_id": n} for n in range(200)])
    store.signal_by(kafka_server)
    store.declare(
        "snapshot", incremental={"chunk_size": 10, "chunks_per_commit": 4, "max_seconds_per_run": 0.01}
    )
    outcome = store.run()
    assert outcome.ok, "nothing but signals waits for the topic"
    assert any(f"there is no topic {name}.signals for signals" in finding for finding in outcome.findings)
    kafka_server.create_topic(f"{name}.signals")
    store.say('{"type": "execute-snapshot"', key="another")
    store.say('{"type": "execute-snapshot"')
    store.copy("things", identity="copy")
    shown = metrics_of(store.run())["snapshot"]
    assert [shown[name] for name in ("ChunkFrom", "ChunkTo", "TableFrom", "TableTo")] == ["", "40", "", "199"]
    assert (shown["RowsScanned"], shown["SnapshotRunning"]) == ({f"{store.database.name}.things": 40}, True)
    assert len(store.copied("things")) == 40
    (request,) = store.state.requests
    assert (request.id, request.tables[0].table) == ("copy", f"{store.database.name}.things")
    place = store.state.positions["kafka"]
    assert (place["topic"], place["offset"], place["skipped"]) == (f"{name}.signals", 3, 1)
    assert store.outcome(f"{name}.signals/0/1") == "ignored"
    assert f"topic {name}.signals, offset 1: it is not JSON" in caplog.text
    store.send("pause-snapshot", "pause")
    store.send("pause-snapshot", "again")
    store.run()
    store.run()
    assert len(store.copied("things")) == 40
    assert store.state.paused
    assert (store.outcome("pause"), store.outcome("again")) == ("followed", "ignored")
    store.declare("snapshot", incremental={"chunk_size": 10, "chunks_per_commit": 4})
    store.send("resume-snapshot", "resume")
    store.run()
    assert store.event_kinds("copy") == [
        "started",
        "in_progress",
        "paused",
        "resumed",
        "in_progress",
        "table_scanned",
        "completed",
    ]
    notifications = store.notified("copy")
    assert store.notified_by_topic("copy") == [one["type"] for one in notifications]
    assert store.state.positions["kafka"]["offset"] == 6
    assert "is a duplicate" not in caplog.text, "what was followed isn't read again"
    assert [one["type"] for one in notifications if one["type"] != "IN_PROGRESS"] == [
        *("STARTED", "PAUSED", "RESUMED", "TABLE_SCAN_COMPLETED", "COMPLETED"),
    ]
    (scanned,) = (one["additional_data"] for one in notifications if one["type"] == "TABLE_SCAN_COMPLETED")
    assert (scanned["status"], scanned["total_rows_scanned"]) == ("SUCCEEDED", "200")
    progress = [one["additional_data"] for one in notifications if one["type"] == "IN_PROGRESS"]
    assert {one["maximum_key"] for one in progress} == {"199"}
    assert (progress[0]["last_processed_key"], progress[-1]["last_processed_key"]) == ("40", "199")
    assert set(store.copied("things").values()) == {1}
    assert store.mirror_equals("things") == 200


@pytest.mark.covers("MDB-INC-09", "MDB-INC-10")
def test_tables_are_copied_in_turn_and_one_or_all_can_be_stopped(
    store: Signalled, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("a", "b", "c", "d")
    for name in names:
        store.database[name].insert_many([{"_id": n} for n in range(30)])
    store.declare(
        "snapshot", incremental={"chunk_size": 10, "chunks_per_commit": 1, "max_seconds_per_run": 0.01}
    )
    store.send("stop-snapshot", "too soon", type="incremental")
    store.run()
    assert store.outcome("too soon") == "ignored"
    assert "no incremental snapshot is running" in caplog.text
    store.copy("[ab]", identity="first")
    store.run()
    store.copy("c", "d", identity="second")
    store.send("stop-snapshot", "which?")
    store.send("stop-snapshot", "not b", type="INCREMENTAL", tables=["b"])
    store.run()
    assert store.outcome("which?") == "ignored"
    queue = [(r.id, [t.table[-1] for t in r.tables]) for r in store.state.requests]
    assert queue == [("first", ["a"]), ("second", ["c", "d"])]
    for _ in range(2):
        store.run()
    store.send("stop-snapshot", "all", type="incremental")
    store.run()
    assert store.state.requests == ()
    assert [store.outcome(i) for i in ("first", "not b", "second", "all")] == [
        "done",
        "followed",
        "stopped",
        "followed",
    ]
    counts = [len(store.copied(name)) for name in names]
    assert counts == [30, 0, 10, 0]
    assert [e.status for e in store.events if e.kind == "table_scanned"] == ["SUCCEEDED"]
    (of_b,) = (e for e in store.events if e.kind == "tables_stopped")
    assert (of_b.request_id, of_b.tables) == ("first", (f"{store.database.name}.b",))
    assert store.event_kinds("second")[-1] == "aborted"


@pytest.mark.covers("MDB-SNAP-16")
def test_the_include_list_limits_automatic_snapshots_alone(store: Signalled) -> None:
    store.declare("snapshot", mode="initial", include=[rf"{store.database.name}\.inside"])
    for collection in ("inside", "outside"):
        store.database[collection].insert_many([{"_id": n} for n in range(5)])
    store.run()
    assert (store.copied_ids("inside"), store.copied_ids("outside")) == ([0, 1, 2, 3, 4], [])
    assert store.mirror_equals("inside") == 5
    store.database.outside.insert_one({"_id": 9})
    store.run()
    assert len(store.records("outside")) == 1, "the change alone"
    store.copy("outside", identity="rest")
    store.run()
    assert store.outcome("rest") == "done"
    assert store.mirror_equals("outside") == 6


@pytest.mark.covers("MDB-ADH-01", "MDB-ADH-02", "MDB-ADH-03", "MDB-ADH-04", "MDB-ADH-05")
def test_what_is_asked_for_is_copied_and_nothing_else(
    store: Signalled, caplog: pytest.LogCaptureFixture
) -> None:
    name = store.database.name
    for collection in ("blue", "with.dots", "withXdots", "other"):
        store.database[collection].insert_many(
            [{"_id": n, "color": ["blue", "red"][n % 2], "n": n} for n in range(10)]
        )
    store.run()
    store.copy(identity="nothing")
    store.send("execute-snapshot", "empty", **{"data-collections": []})
    store.copy("no_such", identity="unknown")
    store.send(
        "execute-snapshot",
        "one",
        type="Incremental",
        **{
            "data-collections": [f'"{name}"."with.dots"', rf"{name}\.bl.*"],
            "additional-conditions": [
                {"data-collection": rf"{name}\.blue", "filter": '{"color": "blue", "n": {"$gt": 2}}'}
            ],
        },
    )
    store.copy("other", identity="wrong", **{"additional-conditions": [
        {"data-collection": ".*", "filter": '{"n": {"$type": "nothing"}}'}
    ]})  # fmt: skip
    store.copy("other", identity="refused", **{"additional-conditions": [
        {"data-collection": ".*", "filter": '{"n": {"$nothing": 1}}'}
    ]})  # fmt: skip
    outcome = store.run()
    assert outcome.ok
    outcomes = {i: store.outcome(i) for i in ("nothing", "empty", "unknown", "one", "wrong", "refused")}
    assert outcomes == {
        "nothing": "ignored",
        "empty": "ignored",
        "unknown": "ignored",
        "one": "done",
        "wrong": "failed",
        "refused": "ignored",
    }
    assert "data-collections names no table" in caplog.text
    assert sorted(store.copied_ids("blue")) == [4, 6, 8]
    assert len(store.copied("with.dots")) == 10
    assert not store.copied("withXdots")
    assert not store.copied("other")
    # Once more: events are added to those that there are.
    store.copy("blue", identity="two")
    store.copy("blue", identity="two")
    store.run()
    store.copy("blue", identity="two")
    store.run()
    assert sorted(store.copied_ids("blue")) == sorted([*range(10), 4, 6, 8])
    assert "signal two of channel airflow is a duplicate" in caplog.text


@pytest.mark.covers("MDB-SIG-01", "MDB-SIG-03", "MDB-SIG-04", "MDB-CAP-11")
def test_signals_come_as_documents_whatever_filters_say(
    store: Signalled, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = store.database.name
    store.declare("source", scope="database", target=name)
    store.declare("signals", collection="elsewhere.signals")
    with pytest.raises(ConfigurationError, match="outside the scope of the change stream"):
        store.run()
    store.database.things.insert_many([{"_id": n} for n in range(5)])
    store.database.signals.insert_one({"_id": "before", "type": "execute-snapshot", "data": {}})
    store.declaration["exclude_tables"] = [rf"{name}\.signals", rf"{name}\.hidden"]
    store.declare(
        "source", stream={"pipeline": [{"$match": {"fullDocument.x": 1}}], "skipped_operations": ["c"]}
    )
    store.declare("signals", collection=f"{name}.signals")
    store.run()
    request = {"data-collections": [rf"{name}\.things"]}
    asked: list[dict[str, Any]] = [
        {"_id": "text", "type": "execute-snapshot", "data": json.dumps(request)},
        {"_id": bson.ObjectId("0123456789abcdef01234567"), "kind": "execute-snapshot", "what": request},
        {"_id": 7, "type": "log", "data": {"message": "seven at {}"}},
        {"_id": "four", "type": "log", "data": {}, "more": 1},
        {"_id": "bad", "type": "log", "data": "{"},
        {"_id": "number", "type": 3, "data": {}},
        {"_id": "x-open", "type": "snapshot-window-open", "payload": ""},
        {"_id": "unknown", "type": "make-coffee", "data": {}},
    ]
    store.database.signals.insert_many(asked)
    store.database.signals.update_one({"_id": "text"}, {"$set": {"type": "log"}})
    store.database.hidden.insert_one({"_id": 1, "x": 1})
    store.run()
    found = {(r.id, r.type, r.outcome) for r in store.state.records}
    assert found == {
        ("text", "execute-snapshot", "done"),
        ("0123456789abcdef01234567", "execute-snapshot", "done"),
        ("7", "log", "followed"),
        ("four", "", "ignored"),
        ("bad", "", "ignored"),
        ("number", "", "ignored"),
        ("unknown", "", "ignored"),
    }
    assert "signal four of channel source is ignored: it has 4 members" in caplog.text
    assert set(store.copied("things").values()) == {2}
    inserts = [bson.decode(row["payload"]) for row in store.records("signals")]
    ids = [e["documentKey"]["_id"] for e in inserts if e["operationType"] == "insert"]
    assert ids == [one["_id"] for one in asked], "they are events like others"
    assert not store.records("hidden")
    # Each is looked at once.
    records = store.state.records
    store.database.signals.insert_one({"_id": "last", "type": "log", "data": {}})
    store.run()
    assert store.state.records[:-1] == records
    monkeypatch.setattr(signals, "MOST_AT_ONCE", 3)
    ids = [f"part-{number}" for number in range(5)]
    store.database.signals.insert_many([{"_id": one, "type": "log", "data": {}} for one in ids])
    for received in (3, 5):
        store.run()
        assert [r.id for r in store.state.records][-received:] == ids[:received], "a later run goes on"


@pytest.mark.covers("MDB-XD-05", "MDB-XD-06")
def test_a_file_of_signals_is_read_and_emptied(store: Signalled, caplog: pytest.LogCaptureFixture) -> None:
    store.declare("signals", channels=["file"])
    store.database.things.insert_one({"_id": 1})
    store.run()
    file = store.folder.parent / "file-signals.txt"
    lines = [
        {"id": "l", "type": "log", "data": {"message": "here: {}"}},
        {"type": "execute-snapshot", "data": {"data-collections": [rf"{store.database.name}\.things"]}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\nnot JSON\n")
    with caplog.at_level("INFO"):
        outcome = store.run()
    assert not list(file.parent.glob("file-signals*"))
    assert f"signal l: here: {json.dumps(outcome.offset, sort_keys=True)}" in caplog.messages
    assert len(store.copied("things")) == 1
    assert [r.outcome for r in store.state.records] == ["followed", "done", "ignored"]


@pytest.mark.covers("MDB-BLK-01", "MDB-BLK-02", "MDB-BLK-03")
def test_a_blocking_copy_is_taken_in_place_of_the_stream(store: Signalled) -> None:
    name = store.database.name
    store.database.things.insert_many([{"_id": n, "n": n} for n in range(30)])
    store.database.others.insert_many([{"_id": n, "n": n} for n in range(30)])
    store.declare("snapshot", mode="initial")
    first = store.run()
    store.database.things.delete_many({"_id": {"$lt": 10}})
    store.database.others.update_many({"_id": {"$lt": 10}}, {"$set": {"x": 1}})
    conditions = [{"data-collection": rf"{name}\.others", "filter": {"n": {"$gte": 25}}}]
    store.copy("things", "others", identity="block", type="BLOCKING", **{"additional-conditions": conditions})
    outcome = store.run()

    assert outcome.changes == 20
    assert first.offset != outcome.offset
    assert store.outcome("block") == "done"
    assert outcome.snapshot is not None
    assert outcome.snapshot.rows == 25
    assert len(store.copied_ids("things")) == 30 + 20
    assert sorted(store.copied_ids("others")) == sorted([*range(30), *range(25, 30)])
    assert store.event_kinds("block") == ["started", "table_scanned", "completed"]
    assert store.mirror_equals("things") == 20
    assert store.mirror_equals("others") == 30
    store.database.things.insert_one({"_id": "after"})
    store.run()
    assert store.mirror_equals("things") == 21


def test_a_blocking_copy_that_cannot_be_taken_leaves_all_as_it_was(store: Signalled) -> None:
    store.declare("snapshot", mode="initial")
    store.database.things.insert_many([{"_id": n, "n": n} for n in range(30)])
    store.run()
    conditions = [{"data-collection": ".*", "filter": {"n": {"$type": "nothing"}}}]
    store.copy("things", identity="wrong", type="blocking", **{"additional-conditions": conditions})
    assert store.run().ok
    assert store.outcome("wrong") == "failed"
    store.database.things.insert_one({"_id": "after"})
    outcome = store.run()
    assert outcome.snapshot is None
    assert store.mirror_equals("things") == 31


@pytest.mark.covers("MDB-INC-06", "MDB-INC-07")
@pytest.mark.parametrize("strategy", ["insert_insert", "insert_delete"])
def test_marks_are_written_around_each_chunk_on_request(store: Signalled, strategy: str) -> None:
    name = store.database.name
    store.database.things.insert_many([{"_id": n} for n in range(50)])
    store.declare("signals", collection=f"{name}.signals")
    store.declaration["tables"] = [rf"{name}\.things"]
    store.declare("snapshot", incremental={"chunk_size": 10, "chunks_per_commit": 2, "watermarks": strategy})
    store.run()
    store.copy("things")
    store.run()
    store.run()
    assert len(store.copied("things")) == 50
    events = [bson.decode(row["payload"]) for row in store.records("signals")]
    opened = [e["fullDocument"] for e in events if e["operationType"] == "insert"]
    chunks = {d["_id"].removesuffix("-open") for d in opened if d["type"] == "snapshot-window-open"}
    assert len(chunks) == 5
    assert all(d["payload"] == "" for d in opened)
    left = {d["_id"]: d["type"] for d in store.database.signals.find()}
    if strategy == "insert_delete":
        assert left == {}
        assert {e["documentKey"]["_id"] for e in events if e["operationType"] == "delete"} == {
            f"{chunk}-open" for chunk in chunks
        }
    else:
        assert left == {
            f"{chunk}-{side}": f"snapshot-window-{side}" for chunk in chunks for side in ("open", "close")
        }
    assert store.mirror_equals("things") == 50


@pytest.mark.covers("MDB-PERM-05")
def test_missing_right_to_write_watermarks_fails_the_signal_and_the_stream_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    from server_kit import MongoServer

    with MongoServer(auth=True) as server:
        client = server.client()
        name = f"m{random.randrange(10**9)}"
        client.admin.command("createUser", "reader", pwd="secret", roles=["readAnyDatabase"])
        connection = {
            "host": server.host,
            "port": server.port,
            "login": "reader",
            "password": "secret",
            "extra": {"replicaSet": "rs0", "authSource": "admin"},
        }
        store = Signalled(spark, client[name], connection, tmp_path)
        store.database.things.insert_many([{"_id": n} for n in range(5)])
        store.declare("signals", collection=f"{name}.signals")
        store.declare("snapshot", incremental={"watermarks": "insert_insert"})
        store.run()
        store.copy("things", identity="marked")
        store.database.things.insert_one({"_id": "streamed"})
        outcome = store.run()
        assert outcome.ok
        assert outcome.changes == 1
        record = store.state.records[-1]
        assert (record.id, record.outcome) == ("marked", "failed")
        assert f"the user may not write watermarks of snapshots to {name}.signals" in record.detail
        # What needs no right to write goes on.
        store.declare("snapshot", incremental={"watermarks": "none"})
        store.copy("things", identity="plain")
        store.run()
        assert store.outcome("plain") == "done"
        assert store.mirror_equals("things") == 6


@pytest.mark.long
def test_a_copy_that_is_killed_again_and_again_reads_nothing_twice(
    store: Signalled, application: Application
) -> None:
    warehouse = store.spark.conf.get("spark.sql.catalog.lake.warehouse")
    store.declare("lake", catalog_options={"type": "hadoop", "warehouse": warehouse})
    store.declare("snapshot", incremental={"chunk_size": 20, "chunks_per_commit": 2})
    things = store.database.things
    things.insert_many([{"_id": n, "v": 0} for n in range(2000)])
    store.run()
    store.copy("things", identity="copy")
    rng = random.Random(3)

    def begin(number: int) -> Any:
        things.update_many({"_id": {"$gte": rng.randrange(2000)}}, {"$inc": {"v": 1}})
        things.delete_one({"_id": rng.randrange(2000)})
        return application.start("sync", store.declaration, store.connection, signals_path=store.signals_path)

    application.kill_often(3, begin)
    store.run()
    assert store.outcome("copy") == "done"
    assert set(store.copied("things").values()) == {1}
    store.assert_no_read_is_behind("things")
    store.mirror_equals("things")


@pytest.mark.covers("MDB-XD-07")
def test_a_stream_takes_signals_in_while_it_runs(
    store: Signalled, application: Application, tmp_path: Path
) -> None:
    warehouse = store.spark.conf.get("spark.sql.catalog.lake.warehouse")
    store.declare("lake", catalog_options={"type": "hadoop", "warehouse": warehouse})
    store.declare("signals", poll_interval_seconds=0.5, channels=["airflow"])
    store.database.things.insert_many([{"_id": n} for n in range(100)])
    state_path = tmp_path / "state.json"
    process = application.start(
        "stream",
        store.declaration,
        store.connection,
        state_path=str(state_path),
        signals_path=store.signals_path,
        commit_interval_seconds=600,
    )

    def wait_for(what: str, done: Any) -> None:
        deadline = time.monotonic() + 120
        while not done():
            assert process.poll() is None, application.log_tail()
            assert time.monotonic() < deadline, f"{what}\n{application.log_tail()}"
            time.sleep(0.2)

    wait_for("first round", lambda: state_path.exists() and json.loads(state_path.read_text())["rounds"] >= 1)
    rounds = json.loads(state_path.read_text())["rounds"]
    store.copy("things", identity="live")
    wait_for("the round of the signal", lambda: json.loads(state_path.read_text())["rounds"] > rounds)
    wait_for("its end", lambda: store.outcome("live") == "done")
    process.terminate()
    assert application.wait(process).ok
    assert store.mirror_equals("things") == 100


def test_a_table_of_cassandra_is_read_by_incremental_and_blocking_snapshots(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE t (p int PRIMARY KEY, a int) WITH cdc = true")
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = false")  # so that no log has it
    for number in range(20):
        shop.run(f"INSERT INTO t (p, a) VALUES ({number}, 1)")
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = true")
    shop.declare(snapshot={"mode": "never"})
    folder = tmp_path / "signals"
    shop.sync(signals_path=str(folder))
    for kind in ("incremental", "blocking"):
        request = {"data-collections": [shop.table_name("t")], "type": kind}
        send(folder, "execute-snapshot", request, kind)
        outcome = shop.sync(signals_path=str(folder))
        assert outcome.tables[0].snapshot_rows == 20
        assert shop.assert_equal("t") == 20


@pytest.mark.parametrize("kind", ["incremental", "blocking"])
def test_a_wrong_filter_of_cassandra_ends_its_request_and_nothing_else(
    shop: Shop, tmp_path: Path, kind: str
) -> None:
    shop.run("CREATE TABLE t (p int PRIMARY KEY, a int) WITH cdc = true")
    shop.run("INSERT INTO t (p, a) VALUES (1, 1)")
    shop.declare(snapshot={"mode": "never"})
    folder = tmp_path / "signals"
    wrong = ("'Connection refused' = 1", "a not 1", "select = 1")
    for where in wrong if kind == "blocking" else wrong[:1]:
        condition = {"data-collection": ".*", "filter": where}
        request = {"data-collections": [".*"], "type": kind, "additional-conditions": [condition]}
        send(folder, "execute-snapshot", request, where)
    send(folder, "execute-snapshot", {"data-collections": [".*"], "type": kind}, "right")
    outcome = shop.sync(signals_path=str(folder))
    assert outcome.ok
    assert outcome.tables[0].snapshot_rows == 1
    assert shop.assert_equal("t") == 1


@pytest.mark.covers("MDB-INC-08", "MDB-SRC-05")
def test_events_name_the_snapshot_that_read_them(store: Signalled) -> None:
    store.database.things.insert_many([{"_id": n} for n in range(2)])
    store.declare("snapshot", mode="initial")
    store.run()
    store.database.things.insert_one({"_id": 2})
    store.copy("things", identity="copy")
    offset = store.run().offset
    connector = Connector.from_dict(store.declaration)
    events: list[tuple[str, str, Any]] = []
    for kind, mark in (("snapshot", None), ("change", None), ("snapshot", "copy")):
        rows = [r for r in store.records("things", [kind]) if r["request"] == mark]
        maker = MongodbRecords(connector, now_ns=time.time_ns())
        payloads = pa.array([bytes(r["payload"]) for r in rows], pa.binary())
        if kind == "change":
            decoded = decode_stream(
                payloads, full_document="lookup", pre_images=False, form=maker.form()
            ).events
        else:
            versions = pa.array([bytes(r["version"]) for r in rows]) if mark else None
            form = maker.form(store.database.name, "things")
            decoded = decode_snapshot(payloads, store.database.name, "things", form, versions).events
        last = kind == "snapshot" and mark is None
        records, reasons = maker.records(decoded, last_of_snapshot=last, incremental=bool(mark))
        assert not reasons
        for value in map(json.loads, records["value"].to_pylist()):
            assert value["before"] is None
            events.append((value["op"], value["source"]["snapshot"], value["source"]))
    assert [(op, snapshot) for op, snapshot, _ in events] == [
        ("r", "true"),
        ("r", "last"),
        ("c", "false"),
        *[("r", "incremental")] * 3,
    ]
    assert offset is not None
    streamed = events[2][2]
    for _, _, source in events[3:]:
        assert streamed["ts_ms"] // 1000 <= source["ts_ms"] // 1000 <= offset["stream"]["t"]
        assert source["ord"] >= 1
