"""Deletions of ranges and partitions as events of rows: readers of DataStax's topics hold the table."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.sources.cassandra.events import captured
from server_kit import KafkaServer
from tests.integration.jobs.publishing import with_broker
from tests.integration.jobs.shop import Shop

if TYPE_CHECKING:
    from confluent_kafka import Message

pytestmark = pytest.mark.integration

Row = tuple[str, int | None, str | None]
"""Partition key and clustering columns."""

TABLE = (
    "CREATE TABLE t (p text, c1 int, c2 text, s int static, v int, w text, PRIMARY KEY (p, c1, c2)) "
    "WITH CLUSTERING ORDER BY (c1 DESC, c2 ASC) AND cdc = true"
)
BASE_US = 1_700_000_000_000_000


class Reader:
    """A consumer that keeps the last value of each key, as DataStax's do: a null deletes the row."""

    def __init__(self, shop: Shop, server: KafkaServer) -> None:
        self.shop = shop
        self.server = server
        self.read = 0

    def new_keys(self) -> list[Row]:
        """Return the keys of the messages since the last call."""
        messages = self._messages()[self.read :]
        self.read += len(messages)
        return [key_of(message) for message in messages]

    def held(self) -> dict[Row, dict[str, Any]]:
        """Return the rows that all messages result in."""
        held: dict[Row, dict[str, Any]] = {}
        for message in self._messages():
            value = message.value()
            if value is None:
                held.pop(key_of(message), None)
            else:
                held[key_of(message)] = json.loads(value)
        return held

    def require_equal(self) -> None:
        """Require that rows, and static columns of partitions, are those of the source."""
        held = self.held()
        rows: dict[Row, Any] = {}
        static: dict[str, int] = {}
        for row in self.shop.run("SELECT * FROM t"):
            if row.c1 is not None:
                rows[row.p, row.c1, row.c2] = {"v": row.v, "w": row.w}
            if row.s is not None:
                static[row.p] = row.s
        assert {p: value["s"] for (p, c1, _), value in held.items() if c1 is None} == static
        assert {
            key: {name: value[name] for name in "vw"} for key, value in held.items() if key[1] is not None
        } == rows

    def _messages(self) -> list[Message]:
        return self.server.read(f"{self.shop.keyspace}.{self.shop.keyspace}.t")


def key_of(message: Message) -> Row:
    key = json.loads(message.key() or b"")
    return key["p"], key["c1"], key["c2"]


@pytest.fixture
def reader(shop: Shop, kafka_server: KafkaServer) -> Reader:
    shop.connection = with_broker(shop.connection, kafka_server)
    shop.declare(
        snapshot={"mode": "never"},
        lake={"retention_seconds": 0},
        publish={
            "topic_prefix": shop.keyspace,
            "envelope": "datastax",
            "topics": {"partitions": 1},
            "cassandra": {"reread": True},
            "kafka": {"connection": "kafka", "records_per_commit": 3, "retry_timeout_seconds": 0},
        },
    )
    shop.run(TABLE)
    return Reader(shop, kafka_server)


def insert(shop: Shop, p: str, *rows: tuple[int, str], at: int = 10) -> None:
    for c1, c2 in rows:
        shop.run(
            f"INSERT INTO t (p, c1, c2, v, w) VALUES (%s, %s, %s, 1, 'w') USING TIMESTAMP {BASE_US + at}",
            (p, c1, c2),
        )


def delete(shop: Shop, where: str, at: int = 20) -> None:
    shop.run(f"DELETE FROM t USING TIMESTAMP {BASE_US + at} WHERE {where}")


def capture(shop: Shop) -> None:
    shop.close_segments()
    assert shop.stage("capture").ok


def test_each_row_that_a_deletion_removes_has_one_event_and_no_other_has(
    shop: Shop, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(shop, "a", *((c1, c2) for c1 in range(4) for c2 in "xy"))
    insert(shop, "b", (1, "x"), (2, "x"))
    insert(shop, "c", (1, "x"))
    shop.run("UPDATE t SET s = 1 WHERE p = 'b'")
    with monkeypatch.context() as unread:
        unread.setattr(captured, "earlier_rows", lambda *_: pytest.fail("there is no deletion of a range"))
        assert shop.sync().ok
    assert shop.stage("maintain").ok
    assert len(reader.new_keys()) == 12

    delete(shop, "p = 'a' AND c1 > 0 AND c1 <= 2")
    assert shop.sync().ok
    assert sorted(reader.new_keys(), key=str) == [("a", c1, c2) for c1 in (1, 2) for c2 in "xy"]
    reader.require_equal()

    delete(shop, "p = 'b'", at=10**15)
    insert(shop, "a", (7, "x"))
    capture(shop)
    assert shop.stage("merge").ok
    assert shop.stage("maintain").ok
    delete(shop, "p = 'a' AND (c1, c2) < (3, 'y')")
    delete(shop, "p = 'a' AND c1 = 3 AND c2 >= 'y'")
    delete(shop, "p = 'nothing'")
    capture(shop)
    assert shop.stage("merge").ok
    assert shop.stage("publish").ok
    assert sorted(reader.new_keys(), key=str) == [
        ("a", 0, "x"),
        ("a", 0, "y"),
        ("a", 3, "x"),
        ("a", 3, "y"),
        ("a", 7, "x"),
        ("b", 1, "x"),
        ("b", 2, "x"),
        ("b", None, None),
        ("nothing", None, None),
    ]
    reader.require_equal()


def test_a_row_that_a_deletion_removes_in_part_has_an_event_with_the_rest(shop: Shop, reader: Reader) -> None:
    insert(shop, "a", (1, "x"), (2, "x"), (3, "x"))
    shop.run(f"UPDATE t USING TIMESTAMP {BASE_US + 30} SET v = 3 WHERE p = 'a' AND c1 = 1 AND c2 = 'x'")
    insert(shop, "a", (2, "x"), at=30)
    assert shop.sync().ok
    reader.new_keys()
    delete(shop, "p = 'a' AND c1 < 3")
    assert shop.sync().ok
    assert reader.new_keys() == [("a", 1, "x")], "all of the other one is newer than the deletion"
    assert reader.held()["a", 1, "x"] == {"s": None, "v": 3, "w": None}
    reader.require_equal()

    delete(shop, "p = 'a'", at=40)
    capture(shop)
    assert shop.stage("merge").ok
    build_lake(shop.spark, Connector.from_dict(shop.declaration)).table(shop.mirror_name("t")).maintain(
        retain_seconds=0
    )
    unknown = [found for found in shop.stage("publish").findings if "deletion of unknown rows" in found]
    assert len(unknown) == 1


def test_rows_of_a_snapshot_that_a_deletion_may_have_removed_have_an_event(
    shop: Shop, reader: Reader
) -> None:
    shop.declare(snapshot={"mode": "initial"})
    shop.run("ALTER TABLE t WITH cdc = false")
    shop.run(f"INSERT INTO t (p, c1, c2) VALUES ('a', 1, 'x') USING TIMESTAMP {BASE_US}")
    insert(shop, "a", (2, "x"), at=10)
    shop.run("ALTER TABLE t WITH cdc = true")
    assert shop.sync().ok
    assert len(reader.new_keys()) == 2
    delete(shop, "p = 'a' AND c1 <= 2")
    assert shop.sync().ok
    reader.require_equal()
    assert reader.held() == {}


def statement(rng: random.Random) -> tuple[str, tuple[Any, ...]]:
    """Return a random write: half of the times of writes are among the same few."""
    p, c1, c2 = rng.choice("pq"), rng.randrange(5), rng.choice(["", "a", "ab", "b"])
    using = f" USING TIMESTAMP {BASE_US + rng.randrange(30)}" if rng.random() < 0.6 else ""
    row = "p = %s AND c1 = %s AND c2 = %s"
    low, high = sorted((rng.randrange(5), rng.randrange(5)))
    more, less = rng.choice([">", ">="]), rng.choice(["<", "<="])
    writes: list[tuple[str, tuple[Any, ...]]] = [
        (f"INSERT INTO t (p, c1, c2, v) VALUES (%s, %s, %s, %s){using}", (p, c1, c2, rng.randrange(9))),
        (f"INSERT INTO t (p, c1, c2, v, w) VALUES (%s, %s, %s, %s, 'w'){using}", (p, c1, c2, 10)),
        (f"UPDATE t{using} SET w = %s WHERE {row}", (rng.choice([None, "u"]), p, c1, c2)),
        (f"UPDATE t{using} SET s = %s WHERE p = %s", (rng.choice([None, 1, 2]), p)),
        (f"DELETE FROM t{using} WHERE {row}", (p, c1, c2)),
    ]
    deletes: list[tuple[str, tuple[Any, ...]]] = [
        (f"DELETE FROM t{using} WHERE p = %s", (p,)),
        (f"DELETE FROM t{using} WHERE p = %s AND c1 = %s", (p, c1)),
        (f"DELETE FROM t{using} WHERE p = %s AND c1 {more} %s AND c1 {less} %s", (p, low, high)),
        (f"DELETE FROM t{using} WHERE p = %s AND c1 {rng.choice([more, less])} %s", (p, c1)),
        (f"DELETE FROM t{using} WHERE p = %s AND c1 = %s AND c2 {rng.choice([more, less])} %s", (p, c1, c2)),
        (f"DELETE FROM t{using} WHERE p = %s AND (c1, c2) {rng.choice([more, less])} (%s, %s)", (p, c1, c2)),
    ]
    return rng.choice(deletes if rng.random() < 0.25 else writes)


@pytest.mark.covers("DSX-CON-11")
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))])
def test_readers_hold_the_table_after_random_writes_merges_kills_and_maintenance(
    shop: Shop, reader: Reader, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    for number in range(8):
        for _ in range(rng.randrange(5, 30)):
            shop.run(*statement(rng))
        capture(shop)
        if rng.random() < 0.5:
            assert shop.stage("merge").ok
        if rng.random() < 0.4:
            assert shop.stage("maintain").ok
        if number % 2:
            break_off(shop, monkeypatch, after=rng.randrange(1, 4))
            assert shop.stage("merge").ok, "the mirror moves on before the next run resumes"
            if rng.random() < 0.5:
                assert shop.stage("maintain").ok
        published = shop.stage("publish")
        assert published.ok, published.error
        keys = reader.new_keys()
        assert len(keys) == len(set(keys)), "one event for each row of a batch"
        reader.require_equal()


def break_off(shop: Shop, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Publish until some transactions are sent."""
    publish, sent = RecordProducer.publish, 0

    def some(producer: RecordProducer, records: Sequence[Any], headers: Any, position: Any) -> None:
        nonlocal sent
        if sent == after:
            raise BrokersUnavailable("the run ends")
        sent += bool(records)
        publish(producer, records, headers, position)

    with monkeypatch.context() as broken:
        broken.setattr(RecordProducer, "publish", some)
        with contextlib.suppress(BrokersUnavailable):
            shop.stage("publish")
