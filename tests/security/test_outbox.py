"""Rows of an outbox name topics and partitions: none silences a topic, and few topics are created."""

from __future__ import annotations

from collections import Counter
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.event_batches import EventBatch
from airflow_cdc_provider.events.transforms.outbox import topic_of, topics_begin
from airflow_cdc_provider.events.transforms.row_options import OutboxOptions
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import MOST_NAMED_BY_ROWS, TopicCreator, TopicRule
from tests.bounded import bounded
from tests.unit.kafka.fake_admin import Admin
from tests.unit.kafka.fake_producer import Client, Positions

SETTINGS = ClientSettings({"bootstrap.servers": "b:1"}, retry_timeout_seconds=2)
START = PublishPosition("shop", 1)
SCHEMA = Converters().record_schema
BEGINNINGS = ("outbox.event.", "shop.")


class Brokers:
    """Topics with their partitions, and the clients that see them."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.topics = topics
        self.sent: Counter[str] = Counter()
        self.transactions = self.described = 0

    def producer(self, values: dict[str, Any]) -> Client:
        brokers = self

        class Producer(Client):
            def begin_transaction(self) -> None:
                brokers.transactions += 1

            def produce(self, topic: str, *rest: Any, **more: Any) -> None:
                brokers.sent[topic] += topic != "positions"

            def list_topics(self, topic: str, seconds: float) -> Any:
                brokers.described += 1
                count = brokers.topics.get(topic, 0)
                error = None if count else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=range(count))})

        return Producer(values)

    def admin(self, values: dict[str, Any]) -> Admin:
        brokers = self

        class Administrator(Admin):
            def list_topics(self, timeout: float) -> Any:
                return SimpleNamespace(topics=dict(brokers.topics))

            def create_topics(self, new: Any, request_timeout: float) -> Any:
                brokers.topics.update({one.topic: 1 for one in new})
                return super().create_topics(new, request_timeout)

        return Administrator(values, self.topics, {})


def published(
    brokers: Brokers, rows: list[tuple[str, int | None]], *, create: bool = True, at_once: int = 10_000
) -> BatchPublisher:
    records = pa.RecordBatch.from_pylist(
        [
            {"row": n, "topic": topic, "partition": partition, "bare": False, "key": "k", "value": "v"}
            for n, (topic, partition) in enumerate(rows)
        ],
        schema=SCHEMA,
    )
    topics = TopicCreator(SETTINGS, (TopicRule("default"),), brokers.admin, BEGINNINGS) if create else None
    producer = RecordProducer(
        SETTINGS, Positions(SETTINGS, "positions", "shop"), 0, "shop.0", brokers.producer, topics
    )
    producer.take_over()
    letters: list[tuple[pa.Table, np.ndarray]] = []
    run = BatchPublisher(
        sender=producer,
        build=lambda request: iter([EventBatch(1, records, "")]),
        form="form",
        records_per_commit=at_once,
        position=START,
        quarantine=lambda table, numbers, batch, why: letters.append((table, numbers)),
    )
    run.publish(1, now_ns=9)
    return run


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 5), st.just(999))), max_size=40
    )
)
def test_a_partition_that_a_topic_does_not_have_is_a_fault_of_its_record(
    rows: list[tuple[str, int | None]],
) -> None:
    brokers = Brokers({"a": 1, "b": 3, "c": 7})
    run = published(brokers, rows)
    sound = Counter(topic for topic, partition in rows if (partition or 0) < brokers.topics[topic])
    assert +brokers.sent == sound
    assert run.dead_letters == len(rows) - sound.total()
    assert run.refused == {}, "no topic is silent"
    assert brokers.transactions <= 1, "all such records of a topic are found at once"


def test_rows_create_few_topics() -> None:
    brokers = Brokers({"shop.d.orders": 1, "outbox.event.first": 1})
    rows: list[tuple[str, int | None]] = [(f"outbox.event.{n:05}", None) for n in range(3_000)]
    mixed = [("shop.d.orders", None), *rows, ("shop.d.new", None), ("outbox.event.first", None)]
    with bounded(seconds=5):
        run = published(brokers, mixed)
    made = [topic for topic in brokers.topics if topic.startswith("outbox.event.")]
    assert len(made) == MOST_NAMED_BY_ROWS
    for name in ("shop.d.new", "shop.d.orders", "outbox.event.first"):
        assert brokers.sent[name] == 1
    assert run.dead_letters == 3_001 - MOST_NAMED_BY_ROWS
    assert len(run.refused) == 1_000
    assert brokers.transactions == 1

    again = published(brokers, [("outbox.event.later", None), ("other", None), ("outbox.event.first", None)])
    assert again.dead_letters == 2, "a later run creates no further ones"


def test_topics_that_stay_missing_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_cdc_provider.kafka.producer._TOPIC_SECONDS", 0.0)
    brokers = Brokers({"a": 1})
    run = published(brokers, [("a", None), *((f"t{n}", None) for n in range(500))], create=False)
    assert (brokers.sent["a"], run.dead_letters) == (1, 500)
    assert brokers.described <= 3 * 501


def test_topics_that_are_refused_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_cdc_provider.kafka.producer._TOPIC_SECONDS", 0.0)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    brokers = Brokers({"a": 1})
    rows: list[tuple[str, int | None]] = [
        ("a", None),
        *((f"t{n // 2}", None) for n in range(3_998)),
        ("a", None),
    ]
    run = published(brokers, rows, create=False, at_once=500)
    assert (brokers.sent["a"], run.dead_letters, len(run.refused)) == (2, 3_998, 1_000)


class Creating(Brokers):
    """Brokers that create a topic when it is first asked for; it can be used from the next look-up on."""

    def producer(self, values: dict[str, Any]) -> Client:
        client = super().producer(values)
        answer = client.list_topics
        asked: Counter[str] = Counter()

        def list_topics(topic: str, seconds: float) -> Any:
            asked[topic] += 1
            self.topics |= {topic: 1} if asked[topic] > 1 else {}
            return answer(topic, seconds)

        client.list_topics = list_topics  # type: ignore[method-assign]
        return client


def test_topics_that_brokers_create_are_waited_for_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) / 100)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    brokers = Creating({})
    run = published(brokers, [(f"shop.d.table{n:03}", None) for n in range(600)], create=False)
    assert (brokers.sent.total(), run.dead_letters) == (600, 0)


def answered(topic: str, answer: Any) -> Any:
    (described,) = answer.topics.values()
    return SimpleNamespace(topics={topic: described})


class Stale(Brokers):
    """Brokers of which each second answer is that of one that doesn't know the topic yet."""

    def producer(self, values: dict[str, Any]) -> Client:
        client = super().producer(values)
        answer, number = client.list_topics, count(1)

        def list_topics(topic: str, seconds: float) -> Any:
            return answered(topic, answer(topic if next(number) % 2 else "none", seconds))

        client.list_topics = list_topics  # type: ignore[method-assign]
        return client


def test_an_outdated_answer_about_a_topic_refuses_none_of_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    brokers = Stale({"c": 7})
    rows: list[tuple[str, int | None]] = [("c", 999 if n % 10 == 5 else n % 7) for n in range(50)]
    run = published(brokers, rows, create=False, at_once=10)
    assert (brokers.sent["c"], run.dead_letters, run.refused) == (45, 5, {})


@pytest.mark.parametrize(
    ("replacement", "begins"),
    [
        ("outbox.event.${routedByValue}", "outbox.event."),
        ("${routedByValue}", ""),
        ("a b$1", "a_b"),
        (r"\$a$1", ""),
        ("constant", "constant"),
    ],
)
def test_the_beginning_of_topics_of_an_outbox(replacement: str, begins: str) -> None:
    options = OutboxOptions(topic_regex="(?<routedByValue>.*)", topic_replacement=replacement)
    assert topics_begin(options) == begins
    assert topic_of(options, "x" * 300).startswith(begins)
