"""Heartbeats on a clock: how often, where to, and what becomes of one that can't be sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import RecordsRejected, SchemaRejected
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats, heartbeat_producer
from airflow_cdc_provider.jobs.stream import _pause
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.encoding import heartbeat_of

MONGODB = {
    "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
    "topic.prefix": "shop",
}
BEAT = pa.record_batch({"topic": ["beats"]})
AWAY = BrokersUnavailable("sending records failed")


@dataclass
class Producer:
    """Keeps what it is given to send, or fails.

    Args:
        fails: How many of the next calls fail.
        error: How.
    """

    fails: int = 0
    error: Exception = AWAY
    sent: list[pa.RecordBatch] = field(default_factory=list)
    closed: bool = False

    def send(self, records: Sequence[pa.RecordBatch]) -> None:
        if self.fails:
            self.fails -= 1
            raise self.error
        self.sent += records

    def close(self) -> None:
        self.closed = True


@dataclass
class Setting:
    """Heartbeats each 10 s of a clock that a test sets."""

    now: float = 100.0
    fails: int = 0
    error: Exception = AWAY
    interval_seconds: float = 10.0
    make: Callable[[int, int], pa.RecordBatch] = lambda now_ns, published: BEAT
    producers: list[Producer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beats = Heartbeats(self.interval_seconds, self.make, self.open, lambda: self.now)

    def open(self) -> Any:
        self.producers.append(Producer(self.fails, self.error))
        return self.producers[-1]

    @property
    def sent(self) -> int:
        return sum(len(producer.sent) for producer in self.producers)

    def at(self, *moments: float) -> list[bool]:
        """Request one at each of some moments, and return which were sent."""
        found = []
        for self.now in moments:
            found.append(self.beats.beat())
        return found


def test_there_is_one_per_interval_and_a_late_one_delays_no_other() -> None:
    setting = Setting()
    assert setting.at(100, 100.1, 109.9, 110, 117, 125, 129.9, 130, 171, 179, 180) == [
        *(True, False, False, True, False),
        *(True, False, True),
        *(True, False, True),
    ]
    assert (setting.sent, len(setting.producers)) == (6, 1)


def test_one_that_could_not_be_sent_is_still_due_and_a_new_client_sends_it() -> None:
    setting = Setting(fails=1)
    with pytest.raises(BrokersUnavailable):
        setting.at(100)
    assert setting.producers[0].closed
    setting.fails = 0
    assert setting.at(100.2, 101) == [True, False]
    assert len(setting.producers) == 2
    setting.beats.close()
    assert setting.producers[1].closed


@pytest.mark.parametrize(
    "error",
    [
        RecordsRejected("beats", "TOPIC_AUTHORIZATION_FAILED", whole_topic=True),
        SchemaRejected("topic beats rejects records by their schema"),
    ],
    ids=["topic", "schema"],
)
def test_a_topic_or_schema_that_is_refused_stops_no_events_and_is_tried_again(error: Exception) -> None:
    setting = Setting(fails=1, error=error)
    with pytest.raises(type(error)):
        setting.at(100)
    setting.beats = Heartbeats(10.0, setting.make, setting.open, lambda: setting.now, passes_refused=True)
    assert list(setting.beats.between(iter([1, 2]))) == [1, 2]
    assert "topic beats rejects records" in setting.beats.refused
    setting.fails = 0
    assert setting.at(109, 110) == [False, True]
    assert (setting.sent, setting.beats.refused) == (1, "")


def test_where_nothing_is_reached_there_is_none_until_it_is_published() -> None:
    def make(now_ns: int, published: int) -> pa.RecordBatch:
        assert abs(time.time_ns() - now_ns) < 60 * 10**9
        return BEAT if published >= 7 else BEAT.slice(0, 0)

    setting = Setting(make=make)
    assert setting.at(100, 120) == [False, False]
    assert not setting.producers
    setting.beats.published = 7
    assert setting.at(121, 129, 130) == [True, False, True]


def test_they_are_sent_between_records_that_take_long_to_make() -> None:
    setting = Setting()

    def slow() -> Any:
        for number in range(4):
            setting.now += 6
            yield number

    seen = [(one, setting.sent) for one in setting.beats.between(slow())]
    assert seen == [(0, 1), (1, 2), (2, 2), (3, 3)]


def test_a_pause_sends_them_and_gives_up_when_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    good = Setting(interval_seconds=0.2)
    good.beats = Heartbeats(0.2, good.make, good.open)
    _pause(lambda: False, began + 1.1, good.beats)
    assert 3 <= good.sent <= 6
    bad = Setting(fails=2)
    _pause(lambda: False, time.monotonic() + 0.5, bad.beats)
    assert (len(bad.producers), bad.sent) == (1, 0)
    assert "a heartbeat was not sent" in caplog.text


def test_its_producer_has_no_transactions_and_gives_up_soon() -> None:
    settings = ClientSettings(
        {"bootstrap.servers": "127.0.0.1:1"},
        {"delivery.timeout.ms": 500_000, "message.timeout.ms": 500_000, "compression.type": "zstd"},
        retry_timeout_seconds=0.5,
    )
    connector = from_debezium(MONGODB).connector
    producer = heartbeat_producer(connector, settings, PositionsTopic(settings, "positions", "shop"))
    began = time.monotonic()
    with pytest.raises(BrokersUnavailable):
        producer.send([heartbeat_of(connector, 1)])
    producer.close()
    assert time.monotonic() - began < 15


@pytest.mark.covers("MDB-TPC-05", "MDB-XD-15")
@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({}, "__debezium-heartbeat.shop"),
        ({"topic.heartbeat.prefix": "alive"}, "alive.shop"),
        ({"topic.heartbeat.name": "all-beats"}, "all-beats"),
        ({"topic.heartbeat.name": ""}, "__debezium-heartbeat.shop"),
        ({"topic.heartbeat.name": "all-beats", "topic.heartbeat.prefix": "alive"}, "all-beats"),
    ],
)
def test_the_topic_is_the_prefix_and_the_connectors_or_a_fixed_one(
    properties: dict[str, str], topic: str
) -> None:
    connector = from_debezium({**MONGODB, **properties}).connector
    (record,) = heartbeat_of(connector, 1_700_000_000_123).to_pylist()
    assert record["topic"] == topic
    assert json.loads(record["key"]) == {"serverName": "shop"}
    assert json.loads(record["value"]) == {"ts_ms": 1_700_000_000_123}
    assert (record["partition"], record["bare"]) == (0, True)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("mongodb.MongoDb", {}),
        ("vitess.Vitess", {"vitess.keyspace": "shop"}),
        ("cassandra.Cassandra", {"cassandra.password": "x"}),
    ],
)
def test_debeziums_interval_is_taken_over(kind: str, more: dict[str, str]) -> None:
    properties = {"connector.class": f"io.debezium.connector.{kind}Connector", "topic.prefix": "shop", **more}
    for text, seconds in (("2500", 2.5), ("0", 0.0)):
        imported = from_debezium({**properties, "heartbeat.interval.ms": text})
        assert imported.connector.publish.heartbeat_interval_seconds == seconds
    assert from_debezium(properties).connector.publish.heartbeat_interval_seconds == 0
