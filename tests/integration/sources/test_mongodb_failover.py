"""A replica set of three members whose primary steps down, dies, or hangs up: nothing is lost or doubled."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import UpdateOne, WriteConcern
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure

from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.change_stream import backlog
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.reader import TimeSlice
from server_kit import MongoReplicaSet
from tests.integration.sources.mongodb_replay import Replay, documents
from tests.seeds import seeds

if TYPE_CHECKING:
    from pymongo import MongoClient

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def replica_set() -> Iterator[MongoReplicaSet]:
    with MongoReplicaSet() as built:
        yield built


@pytest.fixture
def database(replica_set: MongoReplicaSet) -> Iterator[Any]:
    client = replica_set.client()
    name = f"fo{random.randrange(10**9)}"
    yield client.get_database(name, write_concern=WriteConcern("majority"))
    client.drop_database(name)


class Faults:
    """Faults of the set, in sequence at random times."""

    def __init__(self, replica_set: MongoReplicaSet, rng: random.Random, app_name: str) -> None:
        self.replica_set = replica_set
        self.rng = rng
        self.app_name = app_name

    def step_down(self) -> None:
        self.replica_set.step_down()
        self.replica_set.primary()

    def kill(self) -> None:
        killed = self.replica_set.kill_primary()
        self.replica_set.primary()
        killed.start()
        self.replica_set.wait_until_whole()

    def hang_up(self) -> None:
        data = {
            "failCommands": ["getMore", "aggregate", "find"],
            "closeConnection": True,
            "appName": self.app_name,
        }
        self.replica_set.primary().command(
            "configureFailPoint", "failCommand", mode={"times": self.rng.randrange(1, 4)}, data=data
        )

    def one(self, kind: str) -> None:
        time.sleep(self.rng.uniform(0.05, 1.0))
        getattr(self, kind)()


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """Do something again and again until the block ends; what it raises is raised then."""
    stop = threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  # raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if raised:
        raise raised[0]


def writer(database: Any, seed: int) -> Callable[[], None]:
    """Return what writes at random; what an election interrupts may or may not have happened."""
    rng = random.Random(seed)
    client: MongoClient = database.client

    def write() -> None:
        try:
            key = rng.randrange(200)
            match rng.randrange(5):
                case 0:
                    with client.start_session() as session, session.start_transaction():
                        for _ in range(5):
                            query = {"_id": rng.randrange(200)}
                            database.things.replace_one(query, {"t": key}, upsert=True, session=session)
                case 1:
                    database.things.delete_one({"_id": key})
                case 2:
                    keys = [rng.randrange(200) for _ in range(20)]
                    database.things.bulk_write(
                        [UpdateOne({"_id": k}, {"$inc": {"n": 1}}, upsert=True) for k in keys]
                    )
                case _:
                    database.things.insert_one({"v": rng.random()})
        except (AutoReconnect, BulkWriteError, OperationFailure):
            time.sleep(0.05)

    return write


def connection(replica_set: MongoReplicaSet, app_name: str) -> dict[str, Any]:
    return {"host": replica_set.uri, "extra": {"appname": app_name}}


@pytest.mark.covers("MDB-STR-04", "MDB-FAULT-03", "MDB-MET-22")
def test_elections_kills_and_hang_ups_during_a_capture_lose_and_double_nothing(
    replica_set: MongoReplicaSet, database: Any
) -> None:
    advanced = MongodbAdvanced(batch_events=20)
    replay = Replay(
        connection(replica_set, database.name),
        rf"{database.name}\..*",
        advanced=advanced,
        full_document="none",
    )
    start = replay.offset
    faults = Faults(replica_set, random.Random(1), database.name)

    with in_background(writer(database, 1)), in_background(lambda: capture_on(replay)):
        for kind in ("hang_up", "step_down", "kill", "hang_up", "step_down", "kill"):
            faults.one(kind)
        time.sleep(1)
    replay.capture()

    positions = [record["position"] for record in replay.records()]
    assert positions == sorted(set(positions)), "in order, each once"
    again = Replay(connection(replica_set, "again"), rf"{database.name}\..*", full_document="none")
    again.offset = start
    again.capture()
    expected = [(r["position"], r["payload"]) for r in again.records()]
    assert [(r["position"], r["payload"]) for r in replay.records()] == expected
    assert len(expected) > 200
    counts = replay.source.stream_metrics()["stream"]
    assert counts.disconnects >= 4
    assert counts.elections == 4
    again.source.close()
    replay.source.close()


def capture_on(replay: Replay) -> None:
    replay.capture(ReadLimit(changes=30))
    time.sleep(0.01)


@pytest.mark.covers("MDB-STR-04", "MDB-FAULT-03")
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_a_primary_lost_in_the_middle_of_a_snapshot_and_its_stream_ends_with_what_find_returns(
    replica_set: MongoReplicaSet, database: Any, seed: int
) -> None:
    database.things.insert_many([{"_id": n, "v": "x" * 100} for n in range(6000)])
    advanced = MongodbAdvanced(batch_events=100, ranges_per_snapshot=3)
    replay = Replay(connection(replica_set, database.name), rf"{database.name}\..*", advanced=advanced)
    faults = Faults(replica_set, random.Random(seed), database.name)
    table = f"{database.name}.things"
    done: list[int] = []

    def snapshot() -> None:
        if not done:
            done.append(replay.snapshot(table))
        else:
            time.sleep(0.01)

    with in_background(writer(database, seed)), in_background(snapshot):
        for kind in faults.rng.sample(["kill", "step_down", "hang_up", "hang_up"], 4):
            faults.one(kind)
    if not done:
        snapshot()
    replay.capture()

    assert done[0] >= 5900
    assert replay.rows(table) == documents(database.things)
    replay.source.close()


@pytest.mark.covers("MDB-XD-29", "MDB-STR-04")
def test_slices_get_over_the_loss_of_a_primary(
    replica_set: MongoReplicaSet, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MIN_BACKLOG_BYTES", 1)
    options: dict[str, Any] = {"full_document": "none"}
    one = Replay(connection(replica_set, "one"), rf"{database.name}\..*", **options)
    for pause_seconds in (0, 1):  # slices are spans of cluster time, which counts seconds
        time.sleep(pause_seconds)
        for _ in range(10):
            database.things.insert_many([{"v": n} for n in range(500)])
    several = Replay(
        connection(replica_set, database.name),
        rf"{database.name}\..*",
        advanced=MongodbAdvanced(batch_events=25, backlog_threshold_seconds=0.0),
        **options,
    )
    several.offset = one.offset
    faults = Faults(replica_set, random.Random(3), database.name)
    read: list[int] = []

    def capture() -> None:
        if read:
            time.sleep(0.01)
            return
        offset, head = several.offset, several.source.head()
        sliced = 0
        while True:
            plan = several.source.plan(offset, head, ReadLimit(tasks=4))
            for part in plan.partitions:
                sliced += isinstance(part, TimeSlice)
                several.keep(*several.source.reader().read([part], ReadMetrics()))
            offset = plan.end
            if plan.at_head:
                break
        read.append(sliced)

    with in_background(capture):
        for kind in ("hang_up", "step_down", "hang_up", "kill"):
            faults.one(kind)
    if not read:
        capture()
    assert read[0] >= 2
    one.capture()
    got, expected = ([(r["position"], r["payload"]) for r in replay.records()] for replay in (several, one))
    assert got == expected[: len(got)]
    assert len(got) == 10_000
    assert StreamPosition.from_offset(one.offset).time >= StreamPosition.from_offset(several.offset).time
    for replay in (one, several):
        replay.source.close()
