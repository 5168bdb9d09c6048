"""The MongoDB source against a real replica set: reconciled rows equal the result of ``find``."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import bson
import numpy as np
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from hypothesis import strategies as st
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import DuplicateKeyError, OperationFailure

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.formats.bson import as_bytes, find_in_all
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.mongodb.decoding.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from tests.chance import draw
from tests.integration.sources.mongodb_replay import Replay, documents
from tests.unit.sources.mongodb.documents import DOCUMENTS, VALUES, raw_document, raw_element, raw_string

if TYPE_CHECKING:
    from pymongo import MongoClient

    from server_kit import MongoServer

pytestmark = pytest.mark.integration

IDS: list[Any] = [
    *(1, Int64(2**40), Int64(2**53 + 1), 12.5, float("nan"), float("inf"), -7.0, Decimal128("1.50")),
    *(
        "1",
        "é😀",
        "",
        ObjectId("65a000000000000000000001"),
        Binary(b"k"),
        Binary(bytes(16), 4),
        Binary(b"x", 128),
    ),
    *(
        DatetimeMS(-1),
        DatetimeMS(1558965508000),
        Timestamp(5, 6),
        True,
        False,
        None,
        {},
        {"a": 1, "b": [1, 2]},
    ),
    *({"b": 1, "a": 1}, MinKey(), MaxKey(), Code("f()"), DBRef("c", 1), Decimal128("1E-6176")),
]


@pytest.fixture
def connection(mongo_server: MongoServer) -> dict[str, Any]:
    return {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}


@pytest.fixture
def database(mongo_client: MongoClient) -> Iterator[Any]:
    name = f"src{random.randrange(10**9)}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest.fixture
def replay(connection: dict[str, Any], database: Any) -> Iterator[Replay]:
    built = Replay(connection, rf"{database.name}\..*")
    yield built
    built.source.close()


def write_randomly(collection: Any, seed: int, count: int) -> None:
    """Do every kind of write, also in transactions, on few documents so that they meet."""
    rng = random.Random(seed)
    client = collection.database.client
    collection.database[collection.name].find_one()
    for _ in range(count):
        key = rng.choice(IDS[:24]) if rng.random() < 0.5 else rng.randrange(30)
        value: Any = rng.choice(
            [1, 1.5, "x", None, [1, 2, 3, 4], {"b": {"c": [1, {"d": 2}]}}, Decimal128("2.50")]
        )
        kind = rng.randrange(12)
        query = {"_id": {"$eq": key}}
        if kind < 3:
            collection.replace_one(query, {"a": value, "n": rng.randrange(5)}, upsert=True)
        elif kind == 3:
            collection.update_one(query, {"$set": {"a": value, "s.t": rng.random()}}, upsert=True)
        elif kind == 4:
            collection.update_many({"n": rng.randrange(5)}, {"$unset": {"a": ""}, "$inc": {"n": 1}})
        elif kind == 5:
            collection.update_one({"_id": key, "l": {"$exists": False}}, {"$set": {"l": [1, 2, 3, 4, 5]}})
            collection.update_one(
                {"_id": key, "l": {"$type": "array"}}, {"$push": {"l": {"x": rng.randrange(9)}}}
            )
        elif kind == 6:
            collection.update_one({"_id": key, "l": {"$type": "array"}}, {"$pop": {"l": 1}})
            collection.update_one({"_id": key, "l.1": {"$exists": True}}, {"$set": {"l.1": value}})
        elif kind == 7:
            collection.update_one(
                {"_id": key, "l": {"$type": "array"}}, [{"$set": {"l": {"$slice": ["$l", 2]}}}]
            )
        elif kind == 8:
            collection.delete_one(query)
        elif kind == 9:
            collection.find_one_and_replace(query, {"r": [value, value]})
        elif kind == 10:
            with client.start_session() as session, session.start_transaction():
                collection.replace_one(query, {"tx": 1}, upsert=True, session=session)
                collection.update_one(query, {"$set": {"tx": 2}}, session=session)
                if rng.random() < 0.5:
                    collection.delete_one(query, session=session)
                other = rng.randrange(30)
                collection.replace_one({"_id": other}, {"tx": 3}, upsert=True, session=session)
                if rng.random() < 0.2:
                    session.abort_transaction()
        else:
            number = rng.randrange(1000, 1010)
            collection.bulk_write(
                [
                    DeleteOne({"_id": number}),
                    InsertOne({"_id": number, "v": value}),
                    UpdateOne({"_id": number}, {"$set": {"v": 2}}),
                    ReplaceOne({"_id": number}, {"v": 3}),
                ]
            )


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_end_with_what_find_returns(replay: Replay, database: Any, seed: int) -> None:
    for part in range(3):
        write_randomly(database.things, seed * 10 + part, 150)
        replay.capture()
        assert replay.rows(f"{database.name}.things") == documents(database.things)


def write_documents(collection: Any, rng: random.Random, count: int) -> int:
    """Write documents of any shape; return how many writes the server took."""
    pool = [
        document for _ in range(20) for document in draw(st.lists(DOCUMENTS, min_size=4, max_size=4), rng)
    ]
    ids = [*IDS, *(value for _ in range(5) for value in draw(st.lists(VALUES, min_size=4, max_size=4), rng))]
    rounds = 0
    for _ in range(count):
        query = {"_id": {"$eq": rng.choice(ids)}}
        document = {n: value for n, value in rng.choice(pool).items() if n != "_id" and n[:1] != "$"}
        try:
            match rng.randrange(5):
                case 0:
                    collection.delete_one(query)
                case 1:
                    collection.update_one(query, [{"$set": {"more": {"$literal": document}}}], upsert=True)
                case 2:
                    collection.update_one(query, {"$push": {"list": {"$each": [document], "$position": 0}}})
                case _:
                    collection.replace_one(query, document, upsert=True)
            rounds += 1
        except (
            OperationFailure,
            InvalidBSON,
        ):  # no _id; an answer that quotes a date beyond 9999
            continue
    return rounds


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_writes_of_any_documents_end_with_what_find_returns(
    replay: Replay, database: Any, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        assert write_documents(database.things, rng, 600) > 450
        replay.capture()
        assert replay.rows(f"{database.name}.things") == documents(database.things)


@pytest.mark.covers("MDB-STR-01")
def test_small_batches_resumed_by_new_sources_give_the_same_changes(
    replay: Replay, connection: dict[str, Any], database: Any
) -> None:
    small = Replay(connection, rf"{database.name}\..*", advanced=MongodbAdvanced(batch_events=3))
    small.offset = replay.offset
    write_randomly(database.things, 7, 200)
    replay.capture()
    assert small.capture(ReadLimit(changes=3), fresh=True) > 20

    same = ("source_table", "kind", "position", "key", "version", "committed_at", "transaction")
    seen, expected = ([tuple(r[n] for n in same) for r in x.records()] for x in (small, replay))
    assert seen == expected
    assert small.rows(f"{database.name}.things") == documents(database.things)
    small.source.close()


@pytest.mark.covers("MDB-XA-01", "MDB-XA-04")
def test_a_quiet_period_moves_the_offset_to_the_head(replay: Replay, database: Any) -> None:
    before = replay.offset
    for n in range(20):
        database.client[database.name + "x"].c.insert_one({"_id": n})
    head = StreamPosition.from_offset(replay.source.head())
    started = time.monotonic()
    replay.capture()
    assert time.monotonic() - started < 5
    assert replay.records() == []
    at_event = StreamPosition.from_offset(replay.offset)
    assert at_event.time >= head.time > StreamPosition.from_offset(before).time
    assert at_event.token
    database.client.drop_database(database.name + "x")


def test_a_position_by_time_alone_resumes_inside_a_transaction(replay: Replay, database: Any) -> None:
    start = replay.offset
    with database.client.start_session() as session, session.start_transaction():
        database.things.insert_many([{"_id": n} for n in range(6)], session=session)
    replay.capture()
    places = [r["position"] for r in replay.records()]
    assert len({p[:8] for p in places}) == 1
    third = StreamPosition(
        int.from_bytes(places[2][:4], "big"), int.from_bytes(places[2][4:8], "big"), 2
    ).to_offset()
    replay.batches, replay.offset = [], third
    replay.capture(fresh=True)
    assert [r["position"] for r in replay.records()] == places[3:]
    assert StreamPosition.from_offset(start).time < StreamPosition.from_offset(third).time


@pytest.mark.covers("MDB-SNAP-01")
def test_a_snapshot_during_writes_and_its_stream_end_with_what_find_returns(
    replay: Replay, database: Any
) -> None:
    database.things.insert_many([{"_id": n, "v": 0} for n in range(5000)])
    replay.offset = replay.source.start()
    stop = threading.Event()

    def write() -> None:
        seed = 0
        while not stop.is_set():
            write_randomly(database.things, seed, 20)
            seed += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert replay.snapshot(f"{database.name}.things") > 4000
    finally:
        stop.set()
        writer.join()
    replay.capture()
    assert replay.rows(f"{database.name}.things") == documents(database.things)


def test_a_snapshot_in_ranges_holds_every_id_of_every_type_once(
    connection: dict[str, Any], database: Any
) -> None:
    replay = Replay(connection, ".*", advanced=MongodbAdvanced(ranges_per_snapshot=11))
    filling = [{"_id": n} for n in range(3000, 9000)] + [{"_id": f"s{n}"} for n in range(4000)]
    filling += [{"_id": ObjectId()} for _ in range(2000)] + [{"_id": {"k": n}} for n in range(500)]
    everything: list[Any] = [{"_id": i, "n": n} for n, i in enumerate(IDS)] + filling
    random.Random(3).shuffle(everything)
    database.mixed.insert_many(everything)
    plan = replay.source.plan_snapshot(f"{database.name}.mixed")
    assert len(plan.ranges) == 11
    assert replay.snapshot(f"{database.name}.mixed") == len(everything)
    assert replay.rows(f"{database.name}.mixed") == documents(database.mixed)
    replay.source.close()


def test_a_range_that_is_interrupted_resumes_after_its_last_row(
    connection: dict[str, Any], database: Any
) -> None:
    named = {**connection, "extra": {**connection["extra"], "appname": database.name}}
    replay = Replay(named, ".*", advanced=MongodbAdvanced(batch_events=50, ranges_per_snapshot=2))
    database.things.insert_many([{"_id": n} for n in range(2000)])
    database.client.admin.command(
        "configureFailPoint",
        "failCommand",
        mode={"times": 3},
        data={"failCommands": ["getMore"], "closeConnection": True, "appName": database.name},
    )
    try:
        assert replay.snapshot(f"{database.name}.things") == 2000
    finally:
        database.client.admin.command("configureFailPoint", "failCommand", mode="off")
    records = replay.records()
    assert len({r["key"] for r in records}) == len(records) == 2000
    assert len({r["position"] for r in records}) == 2000
    replay.source.close()


@pytest.mark.covers("MDB-SNAP-17")
def test_a_snapshots_filter_is_a_query(replay: Replay, database: Any) -> None:
    database.things.insert_many([{"_id": n, "at": DatetimeMS(n)} for n in range(20)])
    where = '{"at": {"$gte": {"$date": {"$numberLong": "15"}}}}'
    assert replay.snapshot(f"{database.name}.things", where) == 5
    replay.capture()
    kinds = [r["kind"] for r in replay.records()]
    assert (kinds.count("snapshot"), kinds.count("change")) == (5, 20), "it limits the snapshot alone"
    with pytest.raises(ConfigurationError, match="not valid Extended JSON"):
        replay.snapshot(f"{database.name}.things", "{broken")


def test_a_replacing_snapshot_removes_deleted_documents(replay: Replay, database: Any) -> None:
    table = f"{database.name}.things"
    database.things.insert_many([{"_id": n} for n in range(10)])
    replay.capture()
    database.things.delete_many({"_id": {"$lt": 4}})
    replay.offset = replay.source.start()  # the deletes are never captured
    assert replay.snapshot(table, replacing=True) == 6
    database.things.insert_one({"_id": "later"})
    replay.capture()
    assert replay.rows(table) == documents(database.things)


@pytest.mark.covers("MDB-XE-04")
def test_drop_rename_and_drop_database_end_rows(replay: Replay, database: Any) -> None:
    database.a.insert_many([{"_id": n} for n in range(5)])
    database.b.insert_many([{"_id": n} for n in range(5)])
    database.a.drop()
    database.a.insert_one({"_id": "again"})
    database.b.rename("c")
    replay.capture()
    rows = {name: replay.rows(f"{database.name}.{name}") for name in "abc"}
    assert rows["a"] == documents(database.a) != []
    assert rows["b"] == rows["c"] == []
    assert [r["source_table"] for r in replay.records() if r["kind"] == "signal"] == [f"{database.name}.c"]
    replay.snapshot(f"{database.name}.c")
    database.c.update_one({"_id": 1}, {"$set": {"x": 1}})
    replay.capture()
    assert replay.rows(f"{database.name}.c") == documents(database.c)

    database.client.drop_database(database.name)
    replay.capture()
    assert [replay.rows(f"{database.name}.{name}") for name in "abc"] == [[], [], []]


@pytest.mark.covers("MDB-XE-04", "MDB-CAP-12")
def test_a_collections_stream_resumes_after_its_drop(connection: dict[str, Any], database: Any) -> None:
    table = f"{database.name}.one"
    database.one.insert_one({"_id": 0})
    replay = Replay(connection, ".*", scope="collection", target=table)
    database.other.insert_one({"_id": 0})
    for round_number in range(3):
        database.one.insert_one({"_id": f"before {round_number}"})
        database.one.drop()
        database.one.insert_one({"_id": f"after {round_number}"})
        replay.capture(fresh=round_number == 1)
        assert replay.rows(table) == documents(database.one)
    assert {r["source_table"] for r in replay.records()} == {table, None}
    replay.source.close()


@pytest.mark.covers("MDB-XA-03")
def test_a_databases_stream_sees_its_collections_only(connection: dict[str, Any], database: Any) -> None:
    replay = Replay(connection, ".*", scope="database", target=database.name)
    database.a.insert_one({"_id": 1})
    database.client[database.name + "x"].a.insert_one({"_id": 1})
    replay.capture()
    assert [r["source_table"] for r in replay.records()] == [f"{database.name}.a"]
    assert replay.source.tables() == [f"{database.name}.a"]
    assert StreamPosition.from_offset(replay.offset).token
    assert ("stored offset", "ok") in [(f.subject, f.level) for f in replay.source.check(replay.offset)]
    database.client.drop_database(database.name + "x")
    replay.source.close()


@pytest.mark.covers("MDB-CUR-08", "MDB-XS-03")
def test_an_event_over_16_mb_arrives_whole(connection: dict[str, Any], database: Any) -> None:
    database.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    table = f"{database.name}.big"
    replay = Replay(connection, ".*", scope="database", target=database.name, pre_images=True)
    database.big.insert_one({"_id": 1, "s": "x" * 9_000_000})
    database.big.update_one({"_id": 1}, {"$set": {"n": 1}})
    database.big.insert_one({"_id": 2})
    assert replay.capture(ReadLimit(bytes=1, changes=1), fresh=True) > 1
    assert replay.rows(table) == documents(database.big)
    events = [bson.decode(r["payload"]) for r in replay.records()]
    assert [e["operationType"] for e in events] == ["insert", "update", "insert"]
    assert len(events[1]["fullDocument"]["s"]) == len(events[1]["fullDocumentBeforeChange"]["s"]) == 9_000_000
    assert "splitEvent" not in events[1]
    replay.source.close()


@pytest.mark.covers("MDB-STR-05")
def test_a_lost_connection_costs_no_event(connection: dict[str, Any], database: Any) -> None:
    named = {**connection, "extra": {**connection["extra"], "appname": database.name}}
    replay = Replay(named, rf"{database.name}\..*", advanced=MongodbAdvanced(batch_events=10))
    database.things.insert_many([{"_id": n} for n in range(200)])
    database.client.admin.command(
        "configureFailPoint",
        "failCommand",
        mode={"times": 2},
        data={"failCommands": ["getMore"], "errorCode": 11600, "appName": database.name},
    )
    try:
        replay.capture()
    finally:
        database.client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert [bson.decode(r["payload"])["documentKey"]["_id"] for r in replay.records()] == list(range(200))
    replay.source.close()


def test_a_server_that_stays_away_is_a_transient_error(connection: dict[str, Any], database: Any) -> None:
    nowhere = {"host": "127.0.0.1", "port": 1, "extra": {}}
    advanced = MongodbAdvanced(connect_timeout_seconds=0.2, connect_attempts=1)
    source = MongodbSource(MongodbOptions(advanced=advanced), nowhere, Selection())
    with pytest.raises(TransientError, match="doesn't respond"):
        source.head()
    source.close()


def test_the_index_takes_two_ids_for_one_exactly_if_their_keys_are_equal(database: Any) -> None:
    values = [
        *IDS,
        1.0,
        Int64(1),
        Decimal128("1"),
        0.1,
        Decimal128("0.1"),
        0,
        -0.0,
        Decimal128("0E5"),
        2.0**53,
    ]
    values += [Decimal128("9007199254740993"), Decimal128("9007199254740992"), Decimal128("NaN"), 1e300]
    values += [
        Decimal128("1E300"),
        {"a": 1.0, "b": [1, Int64(2)]},
        {"a": 1, "b": [2, 1]},
        {"a": 1, "b": {"0": 1}},
    ]
    values += [
        Decimal128("0.1000000000000000055511151231257827"),
        5e-324,
        Decimal128("4.940656458412465E-324"),
    ]
    encoded = [bson.encode({"_id": v}) for v in values]
    encoded.append(raw_document(raw_element(0x0E, "_id", raw_string(b"1"))))
    encoded.append(raw_document(raw_element(0x0C, "_id", raw_string(b"db.c") + bytes(12))))
    seen: set[bytes] = set()
    for data in encoded:
        at_event = find_in_all(as_bytes(data), np.array([0]), np.array([len(data)]), b"_id")
        key = canonical_keys(as_bytes(data), *at_event)[0].tobytes()
        try:
            database.ids.insert_one(RawBSONDocument(data))
            duplicate = False
        except DuplicateKeyError:
            duplicate = True
        assert duplicate == (key in seen), bson.decode(data)
        seen.add(key)


def test_values_that_pymongo_cannot_write_pass_unchanged(replay: Replay, database: Any) -> None:
    odd = raw_document(
        raw_element(0x10, "_id", struct.pack("<i", 1)),
        raw_element(0x06, "u"),
        raw_element(0x0E, "s", raw_string(b"sym")),
        raw_element(0x10, "dup", struct.pack("<i", 1)),
        raw_element(0x10, "dup", struct.pack("<i", 2)),
    )
    database.odd.insert_one(RawBSONDocument(odd))
    replay.capture()
    replay.snapshot(f"{database.name}.odd")
    assert replay.rows(f"{database.name}.odd") == [odd]


def test_positions_are_in_order(replay: Replay, database: Any) -> None:
    database.things.insert_one({"_id": 1})
    source = replay.source
    earliest, head = (StreamPosition.from_offset(o) for o in (source.earliest(), source.head()))
    assert earliest.time < head.time
    behind = {**replay.offset}
    time.sleep(2.1)
    database.things.insert_one({"_id": 2})
    lag = source.lag(behind)
    assert lag.seconds is not None and 2 <= lag.seconds < 60
    assert source.lag(source.head()).seconds == 0
    source.validate_offset(source.head())
    plan = source.plan(None, source.head(), ReadLimit(changes=1))
    assert plan.partitions or plan.at_head


def test_views_are_no_tables(replay: Replay, database: Any) -> None:
    database.b.insert_many([{"_id": n} for n in range(7)])
    database["a.x"].insert_one({})
    database.command("create", "view", viewOn="b", pipeline=[])
    assert replay.source.tables() == [f"{database.name}.a.x", f"{database.name}.b"]


def test_a_read_preference_for_secondaries_is_served(mongo_server: MongoServer, database: Any) -> None:
    preferring = {
        "host": f"mongodb://{mongo_server.host}:{mongo_server.port}/?replicaSet=rs0&readPreference=secondaryPreferred"
    }
    replay = Replay(preferring, rf"{database.name}\..*")
    database.things.insert_many([{"_id": n} for n in range(30)])
    replay.capture(ReadLimit(changes=5))
    replay.snapshot(f"{database.name}.things")
    assert replay.rows(f"{database.name}.things") == documents(database.things)
    replay.source.close()


@pytest.mark.covers("MDB-SNAP-05")
def test_a_lost_position_is_reported_with_the_earliest_time_left() -> None:
    from server_kit import MongoServer

    with MongoServer(oplog_size_mib=1, options=("--syncdelay", "1")) as server:
        client = server.client()
        replay = Replay({"host": server.uri}, r"lost\..*")
        client.lost.small.insert_one({"_id": 0})
        replay.capture()
        by_token = replay.offset
        by_time = {"stream": {**by_token["stream"], "token": ""}}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            client.lost.big.insert_many([{"s": "x" * 100_000} for _ in range(40)])
            oldest = StreamPosition.from_offset(replay.source.earliest())
            if oldest.time > StreamPosition.from_offset(by_token).time:
                break
            time.sleep(0.1)
        for offset in (by_token, by_time):
            with pytest.raises(PositionLost, match="changes since cluster time"):
                replay.new_source().plan(offset, replay.source.head(), ReadLimit())
        kinds = {f.subject: f.level for f in replay.source.check(by_token)}
        assert kinds["stored offset"] == "error"
        replay.source.close()


PARTS_OF_NAMES = [*"sSkKiIaZ_-1", *"\u017f\u212a\u0130\u0131\u00fc"]
PARTS_OF_PATTERNS = [
    *("s", "K", "i", "a", "_", "1", r"\-", ".", ".*", "[a-s]", "[^i-k]", "[H-k_]", "(?:s|k)", "i{1,2}"),
    *("(?i:s)", "(?i:[^i])", "(?i:a|k)", "(?i:[a-k])+", "(?i:\u00fc)"),
]


@pytest.mark.covers("MDB-FLT-08")
def test_the_server_selects_the_names_that_the_client_selects(mongo_client: MongoClient) -> None:
    chance = random.Random(7)
    names = {
        ("".join(chance.choices(PARTS_OF_NAMES, k=2)), "".join(chance.choices(PARTS_OF_NAMES, k=2)))
        for _ in range(2000)
    }
    events = mongo_client["filters"]["events"]
    events.insert_many([{"operationType": "insert", "ns": {"db": d, "coll": c}} for d, c in names])
    kept = 0
    try:
        for _ in range(200):
            database, collection = ("".join(chance.choices(PARTS_OF_PATTERNS, k=2)) for _ in range(2))
            pattern = chance.choice(
                [
                    rf"{database}\.{collection}",
                    rf"(?i:{database}\.{collection})",
                    rf"(?i:{database})\.(?i:{collection})",
                    rf"(?=(?:(?i:{database}))\.)(?i:.*\.{collection})",
                ]
            )
            for selection in (Selection((pattern,)), Selection((".*",), (pattern,))):
                sent = {(e["ns"]["db"], e["ns"]["coll"]) for e in events.find(event_filter(selection))}
                expected = {(d, c) for d, c in names if selection(f"{d}.{c}")}
                assert expected <= sent, (selection, sorted(expected - sent)[:5])
                if "\u00fc" not in pattern:
                    assert sent == expected, (selection, sorted(sent - expected)[:5])
                    kept += len(expected)
    finally:
        mongo_client.drop_database("filters")
    assert kept > 10_000
