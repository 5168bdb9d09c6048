"""Change stream options on a real MongoDB server, the start of a capture, and lost positions."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import bson
import pyarrow as pa
import pytest
from bson import Int64, Timestamp
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from airflow_cdc_provider.exceptions import (
    PERMANENT,
    ConfigurationError,
    PositionLost,
    TransientError,
)
from airflow_cdc_provider.migration.offsets.connect import to_rest
from airflow_cdc_provider.migration.offsets.mongodb import position_of, read_offsets
from airflow_cdc_provider.options import to_plain
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.events.schema_changes import decode_schema_changes
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions, MongodbStream
from airflow_cdc_provider.sources.mongodb.pending import Feed, Pending, async_client, look
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from tests.conftest import ROOT
from tests.integration.sources.mongodb_replay import Replay, documents

if TYPE_CHECKING:
    from pymongo import MongoClient

    from server_kit import MongoServer

pytestmark = pytest.mark.integration

BIG = "x" * 9_000_000


@pytest.fixture
def connection(mongo_server: MongoServer) -> dict[str, Any]:
    return {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}


@pytest.fixture
def database(mongo_client: MongoClient) -> Iterator[Any]:
    name = f"st{random.randrange(10**9)}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


Watch = Callable[..., Replay]


@pytest.fixture
def watch(connection: dict[str, Any], database: Any) -> Iterator[Watch]:
    """Capture the test's database: ``watch(scope=..., extra={...}, stream options...)``."""
    built = []

    def build(
        scope: str = "deployment", extra: Any = None, tables: tuple[str, ...] = (), **options: Any
    ) -> Replay:
        given = {name: options.pop(name) for name in list(options) if name in MongodbStream.__annotations__}
        values = {**connection, "extra": {**connection["extra"], **(extra or {})}}
        if scope == "database":
            options |= {"scope": scope, "target": database.name}
        replay = Replay(
            values, *(tables or (rf"{database.name}\..*",)), stream=MongodbStream(**given), **options
        )
        built.append(replay)
        return replay

    yield build
    for replay in built:
        replay.source.close()


def captured(replay: Replay) -> list[dict[str, Any]]:
    """Return the events as the server sent them, but for drops."""
    return [bson.decode(r["payload"]) for r in replay.records() if r["kind"] == "change"]


@contextmanager
def failing(client: MongoClient, name: str, mode: Any = "alwaysOn", **data: Any) -> Iterator[None]:
    """Have commands of one application fail."""
    client.admin.command("configureFailPoint", "failCommand", mode=mode, data={**data, "appName": name})
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.covers("MDB-CUR-01", "MDB-CUR-02", "MDB-CUR-03", "MDB-CUR-04")
@pytest.mark.parametrize("order", ["internal_first", "user_first", "user_only"])
def test_stages_of_the_users_own_choose_and_shape_events(watch: Watch, database: Any, order: str) -> None:
    stages = [
        {"$match": {"fullDocument.at": {"$gte": {"$date": "2026-05-01T00:00:00Z"}}}},
        {"$unset": ["fullDocument.secret", "updateDescription"]},
    ]
    replay = watch(pipeline=tuple(stages), pipeline_order=order)
    database.a.insert_one({"_id": 1, "at": datetime(2026, 4, 1, tzinfo=UTC)})
    database.a.insert_one({"_id": 2, "at": datetime(2026, 6, 1, tzinfo=UTC), "secret": "x"})
    replay.capture()
    (event,) = captured(replay)
    assert event["fullDocument"] == {"_id": 2, "at": datetime(2026, 6, 1)}
    database.a.drop()
    replay.capture()
    assert replay.rows(f"{database.name}.a") == [], "a filter of documents doesn't hide the collection's end"


@pytest.mark.covers("MDB-CUR-04")
def test_without_the_built_in_filter_the_capture_still_chooses_for_itself(
    watch: Watch, database: Any
) -> None:
    replay = watch(tables=(rf"{database.name}\.a",), pipeline=({"$match": {}},), pipeline_order="user_only")
    database.a.insert_one({"_id": 1})
    database.b.insert_one({"_id": 1})
    replay.capture()
    assert [event["ns"]["coll"] for event in captured(replay)] == ["a"]


@pytest.mark.covers("MDB-CUR-01")
@pytest.mark.parametrize(
    ("stage", "found"),
    [
        ({"$replaceWith": {"$mergeObjects": [{"_id": "$_id", "ns": "$ns"}]}}, "operationType"),
        ({"$replaceWith": {"$unsetField": {"field": "ns", "input": "$$ROOT"}}}, r"ns\.db"),
        ({"$replaceWith": {"$unsetField": {"field": "clusterTime", "input": "$$ROOT"}}}, "clusterTime"),
        ({"$replaceWith": {"$unsetField": {"field": "documentKey", "input": "$$ROOT"}}}, r"documentKey\._id"),
        ({"$replaceWith": {"$unsetField": {"field": "fullDocument", "input": "$$ROOT"}}}, "fullDocument"),
        ({"$replaceWith": {"$unsetField": {"field": "_id", "input": "$$ROOT"}}}, "_id of each event"),
    ],
)
def test_a_stage_that_takes_what_capture_needs_fails_the_run(
    watch: Watch, database: Any, stage: dict[str, Any], found: str
) -> None:
    replay = watch(pipeline=(stage,))
    database.a.insert_one({"_id": 1})
    with pytest.raises(ConfigurationError, match=r"source\.stream\.pipeline.*" + found):
        replay.capture()
    assert replay.records() == []


@pytest.mark.covers("MDB-CUR-01", "MDB-FAULT-01")
def test_a_stage_that_the_server_refuses_is_reported_with_its_message(watch: Watch, database: Any) -> None:
    replay = watch(pipeline=({"$match": {"$nonsense": 1}},))
    with pytest.raises(ConfigurationError, match="unknown top level operator: \\$nonsense"):
        replay.capture()
    assert [f.level for f in replay.source.check() if f.subject == "change stream"] == ["error"]


@pytest.mark.covers("MDB-CUR-05")
def test_the_pipeline_is_logged_once_as_it_is_sent(
    watch: Watch, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    replay = watch(oversize="skip", skip_threshold_bytes=1000, pipeline=({"$match": {"x": 1}},))
    with caplog.at_level(logging.INFO):
        for n in range(3):
            database.a.insert_one({"_id": n})
            replay.capture()
    (text,) = [r.getMessage() for r in caplog.records if "change stream of" in r.getMessage()]
    places = [text.index(part) for part in ("$changeStream", "$bsonSize", database.name, '{"x": 1}')]
    assert places == sorted(places)
    assert "startA" not in text


@pytest.mark.covers("MDB-CUR-07", "MDB-CUR-09")
def test_large_documents_are_skipped_by_the_server_also_where_two_make_one_large_event(
    watch: Watch, database: Any
) -> None:
    database.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    replay = watch("database", oversize="skip", skip_threshold_bytes=10_000_000, pre_images=True)
    database.big.insert_one({"_id": 1, "s": BIG})
    database.big.update_one({"_id": 1}, {"$set": {"n": 1}})  # 9 MB before and after
    database.big.insert_one({"_id": 2, "s": BIG + "x" * 2_000_000})
    database.big.insert_one({"_id": 3})
    database.big.update_one({"_id": 3}, {"$set": {"n": 1}})
    replay.capture()
    done = [(e["operationType"], e["documentKey"]["_id"]) for e in captured(replay)]
    assert done == [("insert", 1), ("insert", 3), ("update", 3)]


@pytest.mark.covers("MDB-CUR-06", "MDB-LIM-01")
def test_an_event_over_16_mb_fails_the_run_for_good_and_is_named(watch: Watch, database: Any) -> None:
    database.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    replay = watch("database", oversize="fail", pre_images=True)
    database.big.insert_one({"_id": 1, "s": BIG})
    replay.capture()
    database.small.insert_many([{"_id": n} for n in range(50)])
    database.big.update_one({"_id": 1}, {"$set": {"n": 1}})
    for _ in range(2):  # a second try meets the same event
        with pytest.raises(ConfigurationError, match="above the server's limit of 16 MB") as raised:
            replay.capture(fresh=True)
        assert f"update of {database.name}.big, 1800" in raised.value.found
        assert isinstance(raised.value, PERMANENT)
    for oversize, more in (("split", 1), ("skip", 0)):
        size = {"skip_threshold_bytes": 15_000_000} if oversize == "skip" else {}
        chosen = watch("database", oversize=oversize, pre_images=True, **size)
        chosen.offset, chosen.batches = replay.offset, []
        chosen.capture()
        assert len(captured(chosen)) == 50 + more


def test_a_split_event_is_resumed_after_whatever_decides_the_size_of_events_later(
    watch: Watch, database: Any, connection: dict[str, Any]
) -> None:
    database.create_collection("big", changeStreamPreAndPostImages={"enabled": True})
    database.create_collection("small")
    keys = [1, Int64(2**40), 1.5, {"a": Int64(1), "b": "x"}]
    database.big.insert_many([{"_id": key, "s": BIG} for key in keys])
    replay = watch("database", pre_images=True, advanced=MongodbAdvanced(batch_events=1))
    feed = Feed(tables=(rf"{database.name}\..*",))

    def left(**options: Any) -> list[Any]:
        again = watch("database", **options)
        again.offset = replay.offset
        again.capture()
        return [(e["ns"]["coll"], e["documentKey"]["_id"]) for e in captured(again)]

    for number, key in enumerate(keys):
        with database.client.start_session() as session, session.start_transaction():
            database.big.update_one(
                {"_id": key}, {"$set": {"n": 1}}, session=session
            )  # 9 MB before and after
            database.small.insert_one({"_id": number}, session=session)
        replay.offset = replay.source.plan(replay.offset, replay.source.head(), ReadLimit(changes=1)).end
        small = [("small", number)]
        assert left() == left(pre_images=True) == left(oversize="fail") == small
        assert left(oversize="skip", skip_threshold_bytes=1000, pre_images=True) == small
        replay.capture()

    database.big.update_one({"_id": 1}, {"$set": {"n": 2}})
    replay.capture()
    assert captured(replay)[-1]["documentKey"]["_id"] == 1
    assert left() == left(pre_images=True) == []
    looked_for = asyncio.run(looked(connection, feed, replay.offset))
    assert (looked_for.news, looked_for.lag_seconds) == (False, 0.0)


def test_collections_that_the_server_renames_once_they_are_filled_leave_no_records(
    watch: Watch, database: Any
) -> None:
    other = database.client[f"{database.name}_stage"]
    other.fresh.insert_many([{"_id": n} for n in range(5)])
    database.a.insert_many([{"_id": n} for n in range(5)])
    plain, unfiltered = watch(), watch(pipeline=({"$match": {}},), pipeline_order="user_only")
    try:
        database.client.admin.command(
            "renameCollection", f"{other.name}.fresh", to=f"{database.name}.fresh", dropTarget=True
        )
        database.a.aggregate([{"$out": "sums"}])
        database.command("convertToCapped", "a", size=100_000)
        for replay in (plain, unfiltered):
            replay.capture()
            found = {(r["source_table"], r["kind"]) for r in replay.records() if r["source_table"]}
            arrived = {f"{database.name}.{name}" for name in ("fresh", "sums", "a")}
            assert found == {(name, kind) for name in arrived for kind in ("drop", "signal")}
            notices = decode_schema_changes(
                pa.array([r["payload"] for r in replay.records()]), lambda *_: True, "legacy"
            )
            assert {row["collection"] for row in notices.to_pylist()} <= {"fresh"}, "its drop elsewhere"
    finally:
        database.client.drop_database(other)


def test_a_collection_that_the_server_fills_under_another_name_is_no_news(
    watch: Watch, database: Any, connection: dict[str, Any]
) -> None:
    database.a.insert_many([{"_id": n} for n in (1, 0)])
    replay, feed = watch(), Feed(tables=(rf"{database.name}\..*",))
    replay.capture()
    with pytest.raises(OperationFailure, match="divide by zero"):
        database.a.aggregate([{"$project": {"n": {"$divide": [1, "$_id"]}}}, {"$out": "sums"}])
    looked_for = asyncio.run(looked(connection, feed, replay.offset))
    assert (looked_for.news, looked_for.lag_seconds) == (False, 0.0)

    database.a.aggregate([{"$out": "sums"}])
    assert asyncio.run(looked(connection, feed, replay.offset)).table == f"{database.name}.sums"


@pytest.mark.covers("MDB-XM-07")
def test_expanded_events_are_stored_in_addition_to_the_rows(watch: Watch, database: Any) -> None:
    plain, expanded = watch(), watch(expanded_events=True)
    database.a.create_index("x")
    database.a.insert_one({"_id": 1, "a": {"1": {"2": 3}}})
    database.a.update_one({"_id": 1}, {"$set": {"a.1.2": 4}})
    for replay in (plain, expanded):
        replay.capture()
        assert replay.rows(f"{database.name}.a") == documents(database.a)
    events = [bson.decode(r["payload"]) for r in expanded.records()]
    assert [e["operationType"] for e in events] == ["create", "createIndexes", "insert", "update"]
    assert [r["kind"] for r in expanded.records()] == ["schema", "schema", "change", "change"]
    assert [r["kind"] for r in plain.records()] == ["change", "change"]


@pytest.mark.covers("MDB-OFF-01")
def test_a_capture_starts_at_an_offset_that_debezium_stored(
    watch: Watch, mongo_client: MongoClient, database: Any
) -> None:
    with mongo_client.watch() as stream:
        database.a.insert_one({"_id": "read by Debezium"})
        last = next(event for event in stream if event["ns"]["db"] == database.name)
    token = base64.b64encode(bson.encode(last["_id"])).decode()
    at = {"sec": last["clusterTime"].time, "ord": last["clusterTime"].inc}
    database.a.insert_one({"_id": "after"})

    def read_from(offset: dict[str, Any]) -> list[str]:
        stored = to_rest([({"server_id": "shop"}, offset), ({"server_id": "other"}, {"sec": 1, "ord": 1})])
        replay = watch()
        position = position_of(
            read_offsets(stored.encode()), "shop", shards=lambda: None, allow_invalidation=False
        )
        assert position is not None
        replay.offset = position.to_offset()
        replay.capture()
        return [event["documentKey"]["_id"] for event in captured(replay)]

    assert read_from({**at, "resume_token": token, "transaction_id": None}) == ["after"]
    assert read_from({"sec": -1, "ord": -1, "resume_token": token}) == ["after"]
    assert read_from({**at, "resume_token": last["_id"]["_data"]}) == ["after"]
    assert read_from({**at, "resume_token": None}) == ["read by Debezium", "after"]


@pytest.mark.covers("MDB-CAP-08")
def test_fast_updates_show_the_latest_document_and_each_its_own_description(
    watch: Watch, database: Any
) -> None:
    replay = watch()
    database.a.insert_one({"_id": 1})
    for n in range(3):
        database.a.update_one({"_id": 1}, {"$set": {"n": n}})
    replay.capture()
    updates = captured(replay)[1:]
    assert [e["fullDocument"]["n"] for e in updates] == [2, 2, 2], "each is looked up when it is read"
    assert [e["updateDescription"]["updatedFields"]["n"] for e in updates] == [0, 1, 2]
    page = " ".join((ROOT / "docs" / "source-mongodb.md").read_text().split())
    assert "`updateDescription` describes each single change exactly" in page


@pytest.mark.covers("MDB-XE-03")
def test_update_descriptions_can_be_left_out_on_the_server(watch: Watch, database: Any) -> None:
    replay = watch("database", update_descriptions=False)
    large = "x" * 8_500_000
    database.a.insert_one({"_id": 1})
    database.a.update_one({"_id": 1}, {"$set": {"x": large}})  # 17 MB with what was set
    replay.capture()
    insert, update = captured(replay)
    assert (insert["operationType"], update["operationType"]) == ("insert", "update")
    assert "updateDescription" not in update
    assert replay.rows(f"{database.name}.a") == documents(database.a)


@pytest.mark.covers("MDB-XM-06")
def test_a_collation_is_for_the_users_stages_and_changes_no_selection(
    watch: Watch, connection: dict[str, Any], database: Any
) -> None:
    stream = MongodbStream(
        pipeline=({"$match": {"fullDocument.name": "ANNE"}},), collation={"locale": "en", "strength": 1}
    )
    replay = watch()
    replay.options = MongodbOptions(stream=stream)
    replay.selects = Selection((rf"{database.name}\..*",), (rf"{database.name}\.Orders",))
    replay.source.close()
    replay.source = replay.new_source()
    database.orders.insert_many([{"_id": 1, "name": "anne"}, {"_id": 2, "name": "bob"}])
    database.Orders.insert_one({"_id": 1, "name": "anne"})
    replay.capture()
    assert [(e["ns"]["coll"], e["documentKey"]["_id"]) for e in captured(replay)] == [("orders", 1)]


@pytest.mark.covers("MDB-XM-06", "MDB-CUR-10", "MDB-SNAP-15")
def test_the_server_sees_comment_waiting_time_and_batch_size(watch: Watch, database: Any) -> None:
    advanced = MongodbAdvanced(max_await_seconds=0.3, fetch_size=7, ranges_per_snapshot=1)
    replay = watch("database", comment="shop of anne", advanced=advanced)
    database.a.insert_many([{"_id": n} for n in range(50)])
    database.command("profile", 2)
    replay.capture()
    replay.snapshot(f"{database.name}.a")
    database.command("profile", 0)
    running = database.client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    (ours,) = [
        op["cursor"]["originatingCommand"]
        for op in running
        if op.get("cursor", {}).get("originatingCommand", {}).get("comment") == "shop of anne capture"
    ]
    assert ours["$db"] == database.name
    assert ours["readConcern"] == {"level": "majority"}
    seen = [
        entry["command"]
        for entry in database["system.profile"].find()
        if (entry.get("originatingCommand") or entry["command"]).get("comment") == "shop of anne snapshot"
    ]
    assert len(seen) > 7
    assert {command["batchSize"] for command in seen} == {7}


@pytest.mark.covers("MDB-CUR-10")
def test_the_server_waits_for_news_no_longer_than_it_may(watch: Watch, database: Any) -> None:
    replay = watch("database", advanced=MongodbAdvanced(max_await_seconds=0.4))
    database.a.insert_one({"_id": 1})
    head = StreamPosition.from_offset(replay.source.head())
    later = StreamPosition(head.seconds + 1, 0)
    waits: list[int] = []
    took: list[float] = []
    stream = replay.source._stream
    read_next = stream._next

    def noted(wait_ms: int) -> Any:
        waits.append(wait_ms)
        began = time.monotonic()
        batch = read_next(wait_ms)
        took.append(time.monotonic() - began)
        return batch

    stream._next = noted  # type: ignore[method-assign]
    stream.plan(StreamPosition.from_offset(replay.offset), later, ReadLimit())
    assert max(waits) == 400
    assert min(took) < 0.7, "a busy machine may answer later, not always"


@pytest.mark.covers("MDB-CAP-15")
@pytest.mark.parametrize(
    ("skipped", "left"),
    [(("c",), "update replace delete"), (("u",), "insert delete"), (("d", "u"), "insert"), ((), None)],
)
def test_skipped_kinds_are_not_sent(
    watch: Watch, database: Any, skipped: tuple[str, ...], left: str | None
) -> None:
    replay = watch(skipped_operations=skipped)
    database.a.insert_one({"_id": 1})
    database.a.update_one({"_id": 1}, {"$set": {"x": 1}})
    database.a.replace_one({"_id": 1}, {"y": 1})
    database.a.delete_one({"_id": 1})
    replay.capture()
    kinds = [event["operationType"] for event in captured(replay)]
    assert kinds == (left or "insert update replace delete").split()


def as_iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@pytest.mark.covers("MDB-CAP-09", "MDB-XM-01")
@pytest.mark.parametrize("write", [as_iso, str, lambda seconds: str(seconds << 32)])
def test_a_first_capture_starts_at_a_configured_time(
    watch: Watch, database: Any, write: Callable[[int], str]
) -> None:
    database.a.insert_one({"_id": "before"})
    now = database.client.admin.command("ping")["operationTime"]
    while (timestamp := database.client.admin.command("ping")["operationTime"]).time == now.time:
        time.sleep(0.1)
        database.b.insert_one({})
    replay = watch(start_at=write(timestamp.time), tables=(rf"{database.name}\.a",))
    database.a.insert_one({"_id": "after"})
    replay.capture()
    assert [event["documentKey"]["_id"] for event in captured(replay)] == ["after"]


@pytest.mark.covers("MDB-CAP-09")
def test_a_timestamp_with_its_increment_begins_with_that_very_change(watch: Watch, database: Any) -> None:
    times = []
    for n in range(4):
        with database.client.start_session() as session:
            database.a.insert_one({"_id": n}, session=session)
            times.append(session.operation_time)
    third: Timestamp = times[2]
    replay = watch(start_at=str(third.time << 32 | third.inc))
    replay.capture()
    assert [event["documentKey"]["_id"] for event in captured(replay)] == [2, 3]


def test_a_start_in_the_future_is_refused(watch: Watch) -> None:
    with pytest.raises(ConfigurationError, match="start_at is in the future"):
        watch(start_at=str(int(time.time()) + 3600))


@pytest.mark.covers("MDB-TOP-05")
def test_read_preference_and_its_tags_hold_for_stream_and_snapshot(
    connection: dict[str, Any], database: Any
) -> None:
    admin = database.client.admin
    config = admin.command("replSetGetConfig")["config"]
    config["version"] += 1
    config["members"][0]["tags"] = {"dc": "east"}
    admin.command("replSetReconfig", config)
    host = f"mongodb://{connection['host']}:{connection['port']}/?replicaSet=rs0&readPreference=nearest"
    database.a.insert_many([{"_id": n} for n in range(10)])
    there = Replay({"host": f"{host}&readPreferenceTags=dc:east"}, rf"{database.name}\..*")
    database.a.insert_one({"_id": "later"})
    there.capture()
    there.snapshot(f"{database.name}.a")
    assert there.rows(f"{database.name}.a") == documents(database.a)
    advanced = MongodbAdvanced(connect_timeout_seconds=0.5, connect_attempts=0)
    elsewhere = MongodbSource(
        MongodbOptions(advanced=advanced), {"host": f"{host}&readPreferenceTags=dc:west"}, Selection()
    )
    plan = there.source.plan_snapshot(f"{database.name}.a")
    with pytest.raises(TransientError, match=r"dc.*west"):
        list(elsewhere.snapshot_reader().read([plan.ranges[0]], ReadMetrics()))
    with pytest.raises(TransientError, match=r"dc.*west"):
        elsewhere.plan(there.offset, there.source.head(), ReadLimit())
    there.source.close()
    elsewhere.close()


@pytest.mark.covers("MDB-XE-06")
def test_a_reply_that_times_out_is_requested_in_smaller_batches(
    watch: Watch, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = database.name
    advanced = MongodbAdvanced(batch_events=16, connect_backoff_seconds=0.01)
    replay = watch(extra={"appname": name, "socketTimeoutMS": 400}, advanced=advanced)
    database.a.insert_many([{"_id": n} for n in range(60)])
    slow = {"failCommands": ["getMore"], "blockConnection": True, "blockTimeMS": 1500}
    with failing(database.client, name, {"times": 2}, **slow), caplog.at_level(logging.WARNING):
        replay.capture()
    assert [event["documentKey"]["_id"] for event in captured(replay)] == list(range(60))
    texts = [r.getMessage() for r in caplog.records if "events per batch" in r.getMessage()]
    assert [text.split(" events per batch")[0].rpartition(" ")[2] for text in texts] == ["4", "1"]


@pytest.mark.covers("MDB-FAULT-03")
def test_a_server_that_is_away_for_a_while_is_waited_for_and_then_given_up(
    watch: Watch, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    advanced = MongodbAdvanced(connect_attempts=4, connect_backoff_seconds=0.05)
    name = database.name
    away = {"failCommands": ["aggregate", "getMore"], "closeConnection": True}
    with failing(database.client, name, {"times": 3}, **away):
        replay = watch(extra={"appname": name, "retryReads": False}, advanced=advanced)
        database.a.insert_one({"_id": 1})
    with failing(database.client, name, {"times": 2}, **away):
        replay.capture()
    assert len(captured(replay)) == 1
    before = replay.offset
    caplog.clear()
    with failing(database.client, name, **away), caplog.at_level(logging.WARNING):
        replay.source.close()
        with pytest.raises(TransientError):
            replay.capture()
    raised = [r.getMessage() for r in caplog.records if "reopening in" in r.getMessage()]
    assert [message.partition("reopening in ")[2][:5] for message in raised] == [
        "0.1 s",
        "0.1 s",
        "0.2 s",
        "0.4 s",
    ]
    assert replay.offset == before


@pytest.mark.covers("MDB-FAULT-10")
def test_a_write_is_captured_once_a_majority_has_it_and_no_sooner(watch: Watch, database: Any) -> None:
    replay = watch("database")
    database.a.insert_one({"_id": 1})
    replay.capture()
    admin = database.client.admin
    admin.command("configureFailPoint", "disableSnapshotting", mode="alwaysOn")
    captures = threading.Thread(target=replay.capture)
    try:
        database.a.with_options(write_concern=WriteConcern(w=1)).insert_one({"_id": 2})
        captures.start()
        captures.join(2)
        assert captures.is_alive(), "it waits for the head, which the write is"
        assert len(captured(replay)) == 1
    finally:
        admin.command("configureFailPoint", "disableSnapshotting", mode="off")
    captures.join(30)
    assert [event["documentKey"]["_id"] for event in captured(replay)] == [1, 2]


@pytest.mark.covers("MDB-FAULT-04", "MDB-XF-08")
@pytest.mark.parametrize("code", [260, 280, 286])
def test_a_token_that_the_server_refuses_is_a_lost_position_unless_resuming_by_time_is_enabled(
    watch: Watch, database: Any, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    name = database.name
    replay = watch(extra={"appname": name})
    database.a.insert_many([{"_id": n} for n in range(3)])
    replay.capture()
    database.a.insert_many([{"_id": n} for n in range(3, 6)])
    replay.source.close()
    with (
        failing(database.client, name, {"times": 2}, failCommands=["aggregate"], errorCode=code),
        pytest.raises(PositionLost, match=r"stored token.*resume_by_time") as raised,
    ):
        replay.capture()
    assert "when_needed" in raised.value.remedy
    patient = watch(extra={"appname": name}, resume_by_time=True)
    patient.offset, patient.batches = replay.offset, list(replay.batches)
    with (
        failing(database.client, name, {"times": 2}, failCommands=["aggregate"], errorCode=code),
        caplog.at_level(logging.WARNING),
    ):
        patient.capture()
    assert "resuming by time" in caplog.text
    assert patient.rows(f"{name}.a") == documents(database.a)


@pytest.mark.covers("MDB-XF-07", "MDB-FAULT-04")
def test_a_selection_that_leaves_out_the_last_event_loses_and_doubles_no_row(
    watch: Watch, connection: dict[str, Any], database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The server looks for a token's event after the filter, and refuses a token that the filter hides."""
    name = database.name
    both = watch()
    database.kept.insert_one({"_id": 1})
    with database.client.start_session() as session, session.start_transaction():
        database.kept.update_one({"_id": 1}, {"$set": {"x": 1}}, session=session)
        database.kept.update_one({"_id": 1}, {"$set": {"x": 2}}, session=session)
        database.left_out.insert_one({"_id": 1}, session=session)
        database.kept.update_one({"_id": 1}, {"$set": {"x": 3}}, session=session)
    both.capture()
    records = [r for r in both.records() if r["source_table"] == f"{name}.left_out"]
    at_event = int.from_bytes(records[-1]["position"][:8], "big"), records[-1]["position"][8:]
    token = bson.encode(bson.decode(records[-1]["payload"])["_id"])
    index = int.from_bytes(at_event[1], "big")
    inside = StreamPosition(at_event[0] >> 32, at_event[0] & 0xFFFF_FFFF, index, token)

    fewer = watch(tables=(rf"{name}\.kept",))
    fewer.batches = [batch.slice(0, 4) for batch in both.batches[:1]]
    assert [r["source_table"].rpartition(".")[2] for r in fewer.records()] == ["kept"] * 3 + ["left_out"]
    fewer.offset = inside.to_offset()
    feed = Feed(tables=(rf"{name}\.kept",))
    assert asyncio.run(looked(connection, feed, fewer.offset)).news
    assert ("stored offset", "ok") in [(f.subject, f.level) for f in fewer.source.check(fewer.offset)]
    with caplog.at_level(logging.WARNING):
        fewer.capture()
    assert "the pipeline hides the stored token's event" in caplog.text
    assert fewer.rows(f"{name}.kept") == documents(database.kept)


@pytest.mark.covers("MDB-FAULT-04", "MDB-XF-08")
def test_a_token_of_another_deployment_is_a_lost_position_and_resuming_by_time_works(
    watch: Watch, database: Any
) -> None:
    """As after a restore: the log has the time, and not the event that the token names."""
    replay = watch()
    database.a.insert_many([{"_id": n} for n in range(3)])
    replay.capture(ReadLimit(changes=1))
    at_event = StreamPosition.from_offset(replay.offset)
    event = captured(replay)[-1]
    text = event["_id"]["_data"]
    at = text.index("5A1004") + 6  # where the collection's UUID begins
    other = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
    strange = StreamPosition(
        at_event.seconds, at_event.increment, at_event.index, bson.encode({"_data": other})
    )
    database.a.insert_one({"_id": "later"})
    replay.source.close()
    with pytest.raises(PositionLost, match=r"can't resume after the stored token.*token was not found"):
        replay.source.plan(strange.to_offset(), replay.source.head(), ReadLimit())
    patient = watch(resume_by_time=True)
    patient.offset = strange.to_offset()
    patient.capture()
    assert [e["documentKey"]["_id"] for e in captured(patient)][-1] == "later"


async def looked(values: dict[str, Any], feed: Feed, offset: Any) -> Pending:
    """Look as a sensor does."""
    async with async_client(values) as client:
        return await look(client, feed, offset)


@pytest.fixture
def idle_for(database: Any, mongo_client: MongoClient) -> Iterator[Callable[[int], None]]:
    """Let some seconds of cluster time pass, with writes that no capture of the test keeps."""
    noise = mongo_client[f"{database.name}_noise"]

    def pass_seconds(seconds: int) -> None:
        start = mongo_client.admin.command("ping")["operationTime"].time
        while mongo_client.admin.command("ping")["operationTime"].time <= start + seconds:
            noise.things.insert_one({})
            database.a.insert_one({"quiet": True})
            database.skipped.insert_one({})
            time.sleep(0.1)

    yield pass_seconds
    mongo_client.drop_database(noise)


def test_the_lag_is_the_age_of_the_oldest_kept_change_wherever_it_is_reported(
    watch: Watch, database: Any, idle_for: Callable[[int], None], connection: dict[str, Any]
) -> None:
    """However long ago the last capture was, and whatever else is written."""
    loud = ({"$match": {"$or": [{"fullDocument.quiet": {"$ne": True}}, {"operationType": "delete"}]}},)
    plain = rf"{database.name}\.a"
    replays = [
        watch(tables=(plain,), pipeline=loud),
        watch(tables=(plain,), pipeline=loud, pipeline_order="user_first"),
        watch("database", tables=(plain,), pipeline=loud, update_descriptions=False),
        watch(tables=(rf"{database.name}\.(?!skipped)a",), pipeline=loud, collation={"locale": "en"}),
        watch(tables=(rf"{database.name}\..*",), pipeline=loud, batch=(r".*\.skipped",)),
        watch(tables=(plain,), skipped_operations=("c",)),
    ]

    def lags() -> set[float | None]:
        found: set[float | None] = set()
        for replay in replays:
            feed = Feed(to_plain(replay.options), replay.selects.tables)
            seen = asyncio.run(looked(connection, feed, replay.offset))
            lag = replay.source.lag(replay.offset).seconds
            found |= {lag, seen.lag_seconds}
            assert seen.news == bool(lag), replay.options
        return found

    for replay in replays:
        replay.capture()
    idle_for(2)
    assert lags() == {0.0}
    database.a.insert_one({"_id": "kept"})
    database.a.delete_one({"_id": "kept"})
    idle_for(2)
    found = {lag for lag in lags() if lag is not None}
    assert found
    assert min(found) >= 2
    assert max(found) < 60
    for replay in replays:
        replay.capture()
    assert lags() == {0.0}


@pytest.mark.covers("MDB-FAULT-04", "MDB-FAULT-09", "MDB-CAP-09")
def test_an_oplog_that_rolled_over_is_reported_with_a_remedy() -> None:
    from server_kit import MongoServer

    with MongoServer(oplog_size_mib=1, options=("--syncdelay", "1")) as server:
        client = server.client()
        replay = Replay({"host": server.uri}, r"lost\..*", stream=MongodbStream(resume_by_time=True))
        client.lost.small.insert_one({"_id": 0})
        replay.capture()
        began = StreamPosition.from_offset(replay.offset)
        deadline = time.monotonic() + 60
        while StreamPosition.from_offset(replay.source.earliest()).time <= began.time:
            assert time.monotonic() < deadline
            client.lost.big.insert_many([{"s": "x" * 100_000} for _ in range(40)])
            time.sleep(0.1)
        with pytest.raises(PositionLost, match="oplog no longer has the changes after the stored") as raised:
            replay.new_source().plan(replay.offset, replay.source.head(), ReadLimit())
        assert "offsets reset" in raised.value.remedy
        assert "when_needed" in raised.value.remedy
        for recovers_from_loss in (False, True):
            feed = Feed(tables=(r"lost\..*",), recovers_from_loss=recovers_from_loss)
            if recovers_from_loss:
                assert asyncio.run(looked({"host": server.uri}, feed, replay.offset)) == Pending(
                    True, None, lost=True
                )
            else:
                with pytest.raises(PositionLost):
                    asyncio.run(looked({"host": server.uri}, feed, replay.offset))
        with pytest.raises(ConfigurationError, match=r"the oplog begins after source\.start_at"):
            Replay({"host": server.uri}, r"lost\..*", start_at=str(began.seconds))
        replay.source.close()
