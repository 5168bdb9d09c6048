"""A backlog read by several change streams: together they return the records of one stream."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import bson
import pyarrow as pa
import pytest
from bson import Timestamp
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.errors import OperationFailure

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import PositionLost, error_from_text
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.change_stream import backlog
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition
from airflow_cdc_provider.sources.mongodb.reader import TimeSlice
from tests.integration.sources.mongodb_replay import Replay, documents
from tests.seeds import seeds

if TYPE_CHECKING:
    from pymongo import MongoClient

    from server_kit import MongoServer

pytestmark = pytest.mark.integration

NAMES = ("a", "b", "c")


@pytest.fixture
def connection(mongo_server: MongoServer) -> dict[str, Any]:
    return {"host": mongo_server.host, "port": mongo_server.port, "extra": {"replicaSet": "rs0"}}


@pytest.fixture
def database(mongo_client: MongoClient) -> Iterator[Any]:
    name = f"sl{random.randrange(10**9)}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest.fixture
def make_replay(connection: dict[str, Any]) -> Iterator[Callable[..., Replay]]:
    built: list[Replay] = []

    def make(*tables: str, **options: Any) -> Replay:
        built.append(Replay(connection, *tables, **options))
        return built[-1]

    yield make
    for replay in built:
        replay.source.close()


def write_operations(database: Any, rng: random.Random, count: int) -> None:
    """Do what makes many events of one cluster time, ends collections, or takes many events at once."""
    client = database.client
    for _ in range(count):
        collection = database[rng.choice(NAMES)]
        collection.insert_one({"n": rng.randrange(9)})
        match rng.randrange(8):
            case 0:
                with client.start_session() as session, session.start_transaction():
                    for name in NAMES:
                        many = [{"n": rng.randrange(99)} for _ in range(rng.randrange(1, 40))]
                        database[name].insert_many(many, session=session)
                    database.a.update_many({}, {"$inc": {"n": 1}}, session=session)
            case 1:
                collection.bulk_write(
                    [
                        InsertOne({"_id": (key := random.randbytes(8))}),
                        UpdateOne({"_id": key}, {"$set": {"x": 1}}),
                        DeleteOne({"_id": key}),
                    ]
                )
            case 2:
                collection.insert_many([{"s": "x" * rng.randrange(2000)} for _ in range(50)])
            case 3:
                collection.update_many({"n": {"$gt": 4}}, {"$set": {"u": rng.random()}})
            case 4:
                collection.delete_many({"n": {"$lt": 2}})
            case 5 if rng.random() < 0.5:
                collection.drop()
            case 6 if rng.random() < 0.5:
                try:
                    collection.rename(rng.choice(NAMES), dropTarget=True)
                except OperationFailure as error:
                    assert error.code in (20, 26), error  # onto itself; it was dropped
            case _:
                collection.replace_one({}, {"r": [1, {"x": 2}]})


COMPARED = [name for name in CHANGE_SCHEMA.names if name != "captured_at"]


def rows(batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return all columns of a record except the capture time."""
    return [tuple(row[name] for name in COMPARED) for batch in batches for row in batch.to_pylist()]


def one_stream(replay: Replay) -> list[tuple[Any, ...]]:
    first = len(replay.batches)
    replay.capture()
    return rows(replay.batches[first:])


def move_on(client: MongoClient) -> None:
    """Advance the cluster time beyond the last write: an idle server advances it every ten seconds."""
    client["elsewhere"]["ticks"].insert_one({})


def slices_at(start: Offset, ends: Sequence[int]) -> list[TimeSlice]:
    begins = [StreamPosition.from_offset(start)]
    begins += [
        StreamPosition.before(Timestamp(end_time >> 32, end_time & 0xFFFF_FFFF)) for end_time in ends[:-1]
    ]
    return [TimeSlice(begin, end_time, 5) for begin, end_time in zip(begins, ends, strict=True)]


def read_slices(replay: Replay, slices: Sequence[TimeSlice]) -> list[tuple[Any, ...]]:
    reader = pickle.loads(pickle.dumps(replay.source.reader()))
    parts = pickle.loads(pickle.dumps(list(slices)))
    return rows(list(reader.read(parts, ReadMetrics())))


def time_of(row: tuple[Any, ...]) -> int:
    return int.from_bytes(row[COMPARED.index("position")][:8], "big")


SCOPES: dict[str, dict[str, Any]] = {
    "deployment": {},
    "database": {"scope": "database"},
    "collection": {"scope": "collection"},
}


@pytest.mark.covers("MDB-XD-29", "MDB-XE-04")
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("seed", seeds(0, 1, 2, 3))
def test_slices_at_random_times_give_what_one_stream_gives_byte_for_byte(
    make_replay: Callable[..., Replay], database: Any, scope: str, seed: int
) -> None:
    rng = random.Random(f"{scope} {seed}")
    target = {"database": database.name, "collection": f"{database.name}.a"}.get(scope, "")
    replay = make_replay(
        rf"{database.name}\..*",
        target=target,
        full_document="none",
        advanced=MongodbAdvanced(batch_events=rng.choice([3, 17, 1000])),
        **SCOPES[scope],
    )
    start = replay.offset
    write_operations(database, rng, 60)
    expected = one_stream(replay)
    move_on(database.client)
    end = StreamPosition.from_offset(replay.offset)
    begin = StreamPosition.from_offset(start)
    assert len(expected) > 100
    assert any(row[COMPARED.index("kind")] == "drop" for row in expected)

    times = sorted({time_of(row) for row in expected})
    for _ in range(4):
        at_events = rng.sample(times, min(len(times), rng.randrange(1, 7)))
        anywhere = [rng.randrange(begin.time + 1, end.time) for _ in range(rng.randrange(4))]
        ends = sorted({*at_events, *anywhere, times[-1] + 1})
        slices = slices_at(start, ends)
        assert read_slices(replay, slices) == expected, ends
        chosen = rng.choice(slices)
        assert read_slices(replay, [chosen]) == read_slices(replay, [chosen]), "read again"
    positions = [row[COMPARED.index("position")] for row in expected]
    assert positions == sorted(set(positions))


@pytest.mark.covers("MDB-XD-29")
def test_one_stream_resumes_after_slices_from_the_token_and_from_the_time(
    make_replay: Callable[..., Replay], database: Any
) -> None:
    replay = make_replay(rf"{database.name}\..*", full_document="none")
    start = replay.offset
    write_operations(database, random.Random(5), 40)
    expected = one_stream(replay)
    for end_time in sorted({time_of(row) for row in expected})[3::9]:
        at = Timestamp(end_time >> 32, end_time & 0xFFFF_FFFF)
        token = replay.source._stream.token_before(at)
        assert token
        by_time = StreamPosition.before(at)
        before = read_slices(replay, slices_at(start, [end_time]))
        assert before == [row for row in expected if time_of(row) < end_time]
        for at_event in (by_time, replace(by_time, token=token)):
            replay.offset = at_event.to_offset()
            assert one_stream(replay) == expected[len(before) :]


@pytest.mark.covers("MDB-XD-29")
def test_a_slice_may_begin_inside_a_transaction_by_token_or_by_index(
    make_replay: Callable[..., Replay], database: Any
) -> None:
    replay = make_replay(
        rf"{database.name}\..*", full_document="none", advanced=MongodbAdvanced(batch_events=2)
    )
    start = replay.offset
    database.create_collection("a")
    with database.client.start_session() as session, session.start_transaction():
        database.a.insert_many([{"_id": n} for n in range(9)], session=session)
    database.a.insert_one({"_id": "after"})
    expected = one_stream(replay)
    assert len({time_of(row) for row in expected}) == 2

    replay.offset = start
    first = replay.source.plan(start, replay.source.head(), ReadLimit(changes=5))
    inside = StreamPosition.from_offset(first.end)
    assert (inside.index, bool(inside.token)) == (5, True)
    for at_event in (inside, replace(inside, token=b"")):
        assert read_slices(replay, [TimeSlice(at_event, time_of(expected[-1]), 0)]) == expected[6:9]
        replay.offset = at_event.to_offset()
        assert one_stream(replay) == expected[6:]
        for index in (0, 1, 4, 8, LAST_INDEX):
            by_index = replace(at_event, token=b"", index=index)
            replay.offset = by_index.to_offset()
            assert one_stream(replay) == expected[min(index + 1, 9) :], index


@pytest.mark.covers("MDB-XD-29", "MDB-CUR-08")
def test_split_events_and_transactions_over_16_mb_are_whole_in_a_slice(
    make_replay: Callable[..., Replay], database: Any
) -> None:
    database.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
    replay = make_replay(
        rf"{database.name}\..*",
        scope="database",
        target=database.name,
        pre_images=True,
        full_document="post_image",
    )
    start = replay.offset
    database.a.insert_one({"_id": 1, "s": "x" * 9_000_000})
    database.a.update_one({"_id": 1}, {"$set": {"n": 1}})
    database.a.insert_one({"_id": 2})
    with database.client.start_session() as session, session.start_transaction():
        for n in range(5):
            database.a.insert_one({"_id": 10 + n, "s": "y" * 5_000_000}, session=session)
    database.a.update_one({"_id": 1}, {"$set": {"n": 2}})
    database.a.insert_one({"_id": 3})
    expected = one_stream(replay)
    assert len(expected) == 10
    move_on(database.client)
    times = sorted({time_of(row) for row in expected})
    for ends in ([*times[1:], times[-1] + 1], [times[2], times[-1] + 1], [times[-1] + 1]):
        assert read_slices(replay, slices_at(start, ends)) == expected


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat any lag as a backlog."""
    monkeypatch.setattr(backlog, "MIN_BACKLOG_BYTES", 1)


@pytest.mark.usefixtures("eager")
@pytest.mark.covers("MDB-XD-29", "MDB-XA-01", "MDB-XA-04")
@pytest.mark.parametrize(
    ("sampled", "limit"),
    [
        (True, ReadLimit(tasks=3)),
        (False, ReadLimit(changes=700, tasks=2)),
        pytest.param(True, ReadLimit(changes=700, tasks=2), marks=pytest.mark.long),
        pytest.param(False, ReadLimit(tasks=3), marks=pytest.mark.long),
    ],
)
def test_a_backlog_is_planned_in_slices_up_to_the_head_and_then_read_by_one_stream(
    make_replay: Callable[..., Replay], database: Any, sampled: bool, limit: ReadLimit
) -> None:
    advanced = MongodbAdvanced(backlog_threshold_seconds=0.0, batch_events=100, sample_oplog=sampled)
    time.sleep(1 - time.time() % 1)  # cluster times have seconds: a first batch over two of them looks long
    database.other.insert_one({})
    replay = make_replay(rf"{database.name}\..*", full_document="none", advanced=advanced)
    start = replay.offset
    rng = random.Random(8)
    for turn in range(8):
        database.a.insert_many([{"v": rng.randrange(9)} for _ in range(400)])
        write_operations(database, rng, 10)
        if turn in (2, 5):
            time.sleep(1.1)  # streams are cut where a second begins
    head = StreamPosition.from_offset(replay.source.head())
    sliced = 0
    got: list[tuple[Any, ...]] = []
    offset = start
    while True:
        plan = replay.source.plan(offset, head.to_offset(), limit)
        reached, before = (StreamPosition.from_offset(o) for o in (plan.end, offset))
        assert (reached.time, reached.index) >= (before.time, before.index)
        if any(isinstance(part, TimeSlice) for part in plan.partitions):
            sliced += 1
            assert not plan.at_head
            assert reached.time < head.time
            assert 2 <= len(plan.partitions) <= limit.tasks
        got += read_slices(replay, plan.partitions)
        offset = plan.end
        if plan.at_head:
            break
    assert sliced >= (2 if limit.changes == 700 else 1)
    assert (replay.source._backlog._sample is not None) == sampled
    other = make_replay(rf"{database.name}\..*", full_document="none")
    other.offset = start
    assert got == one_stream(other)[: len(got)]
    assert StreamPosition.from_offset(offset).time >= head.time


@pytest.mark.usefixtures("eager")
@pytest.mark.covers("MDB-XD-29")
def test_one_stream_is_enough_near_the_head_and_if_configured(
    make_replay: Callable[..., Replay], database: Any
) -> None:
    for advanced in (MongodbAdvanced(backlog_threshold_seconds=600.0), MongodbAdvanced(backlog_streams=1)):
        replay = make_replay(rf"{database.name}\..*", full_document="none", advanced=advanced)
        database.a.insert_many([{"_id": bson.ObjectId()} for _ in range(500)])
        head = replay.source.head()
        plan = replay.source.plan(replay.offset, head, ReadLimit(tasks=4))
        assert plan.at_head
        assert not any(isinstance(part, TimeSlice) for part in plan.partitions)


@pytest.mark.covers("MDB-XD-29", "MDB-STR-05")
@pytest.mark.parametrize("command", ["getMore", "aggregate"])
def test_a_slice_gets_over_lost_connections(connection: dict[str, Any], database: Any, command: str) -> None:
    named = {**connection, "extra": {**connection["extra"], "appname": database.name}}
    replay = Replay(named, rf"{database.name}\..*", advanced=MongodbAdvanced(batch_events=10))
    start = replay.offset
    database.a.insert_many([{"_id": n} for n in range(300)])
    expected = one_stream(replay)
    move_on(database.client)
    slices = slices_at(start, [time_of(expected[100]), time_of(expected[-1]) + 1])
    for data in ({"closeConnection": True}, {"errorCode": 11600}, {"errorCode": 43}):
        database.client.admin.command(
            "configureFailPoint",
            "failCommand",
            mode={"times": 3},
            data={"failCommands": [command], "appName": database.name, **data},
        )
        try:
            assert read_slices(replay, slices) == expected
        finally:
            database.client.admin.command("configureFailPoint", "failCommand", mode="off")
    replay.source.close()


@pytest.mark.covers("MDB-XD-29")
def test_a_slice_whose_start_is_lost_fails_like_a_single_stream(
    connection: dict[str, Any], database: Any, mongo_client: MongoClient
) -> None:
    named = {**connection, "extra": {**connection["extra"], "appname": database.name}}
    replay = Replay(named, rf"{database.name}\..*")
    reader = replay.source.reader()
    mongo_client.admin.command(
        "configureFailPoint",
        "failCommand",
        mode={"times": 1},
        data={"failCommands": ["aggregate"], "errorCode": 286, "appName": database.name},
    )
    try:
        with pytest.raises(PositionLost, match="oplog no longer has the changes after the stored") as caught:
            part = TimeSlice(StreamPosition.from_offset(replay.offset), (1 << 63) - 1, 0)
            list(reader.read([part], ReadMetrics()))
    finally:
        mongo_client.admin.command("configureFailPoint", "failCommand", mode="off")
    assert isinstance(error_from_text(str(caught.value)), PositionLost)
    replay.source.close()


@pytest.mark.covers("MDB-XE-07")
def test_a_reader_reports_its_times_and_counts(make_replay: Callable[..., Replay], database: Any) -> None:
    replay = make_replay(rf"{database.name}\..*", full_document="none")
    start = replay.offset
    database.a.insert_many([{"_id": n, "s": "x" * 500} for n in range(2000)])
    expected = one_stream(replay)
    move_on(database.client)
    metrics = ReadMetrics()
    list(
        replay.source.reader().read(
            slices_at(start, [time_of(expected[700]), time_of(expected[-1]) + 1]), metrics
        )
    )
    counts = metrics.counts
    payloads = sum(len(row[COMPARED.index("payload")]) for row in expected)
    assert counts["events"] >= 2000
    assert counts["bytes"] >= payloads
    assert all(counts[f"{stage}_us"] > 0 for stage in ("wait", "parse", "convert"))
    numbers = replay.source.stream_metrics()["stream"]
    assert (numbers.events, numbers.bytes) == (2000, payloads)
    assert min(numbers.waited_seconds, numbers.parsed_seconds) > 0
    assert numbers.connected


@pytest.mark.covers("MDB-XE-02")
def test_replies_are_fetched_ahead_within_a_limit_of_bytes(
    make_replay: Callable[..., Replay], database: Any
) -> None:
    def replies_ahead(limit: int) -> tuple[int, int]:
        advanced = MongodbAdvanced(read_ahead_bytes=limit, batch_events=10)
        replay = make_replay(rf"{database.name}\..*", full_document="none", advanced=advanced)
        replay.offset = start
        stream = replay.source._stream
        stream.seek(StreamPosition.from_offset(start))
        while not (reply := stream.read()).count:
            pass
        cursor = stream._cursor
        assert cursor is not None
        if (prefetch := cursor._prefetch) is not None:
            prefetch._thread.join(0.5)  # it waits at its limit, or has ended at the head
        waiting = 0 if prefetch is None else len(prefetch._fetched), cursor._buffered.bytes
        seen = sum(map(len, reply.events))
        while seen < 300:
            seen += sum(map(len, stream.read().events))
        assert seen == 300
        return waiting

    start = make_replay(".*").offset
    database.a.insert_many([{"_id": n, "s": "x" * 1000} for n in range(300)])
    assert replies_ahead(0) == (0, 0)
    count, size = replies_ahead(30_000)
    assert 1 < count < 5
    assert 30_000 <= size < 50_000
    assert replies_ahead(1 << 30)[0] == 30  # 29 full ones and the empty one that ended it


@pytest.mark.long
def test_a_mirror_of_slices_is_the_collection(
    make_replay: Callable[..., Replay], database: Any, eager: None
) -> None:
    advanced = MongodbAdvanced(backlog_threshold_seconds=0.0, batch_events=50)
    replay = make_replay(rf"{database.name}\..*", advanced=advanced)
    rng = random.Random(11)
    for _ in range(3):
        write_operations(database, rng, 80)
        plans = replay.capture(ReadLimit(changes=500, tasks=4))
        assert plans > 2
        for name in NAMES:
            if not any(r["kind"] == "signal" for r in replay.records()):  # a rename's rows need a snapshot
                assert replay.rows(f"{database.name}.{name}") == documents(database[name])
