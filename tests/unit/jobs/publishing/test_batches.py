"""Batches to a sender that keeps a record: what is sent together, and what a run that was ended leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.exceptions import (
    CommitConflict,
    ConfigurationError,
    CorruptInput,
    OffsetMissing,
    RecordsRejected,
    TransientError,
)
from airflow_cdc_provider.jobs.publishing import batches
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching, wait_for_servers
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.kafka.registry import RegistryUnavailable

SCHEMA = Converters().record_schema
BATCHES = {1: 7, 2: 0, 3: 1, 5: 12, 6: 3}
THROUGH = 7


def record_of(batch: int, number: int, topic: str = "t") -> dict[str, object]:
    return {"row": number, "topic": topic, "bare": False, "key": f"{number}", "value": f"{batch}/{number}"}


@dataclass
class Broker:
    """Keeps what was committed; fails and rejects as its arguments say.

    Args:
        committed: Values of records, in order.
        position: The last one.
        sizes: How many records each transaction had.
        fails_at: Numbers of transactions that fail, nothing of them kept.
        forbidden: Values that are refused.
        closed_topic: A topic that is refused.
    """

    committed: list[str] = field(default_factory=list)
    position: PublishPosition = field(default_factory=lambda: PublishPosition("shop", 1))
    sizes: list[int] = field(default_factory=list)
    fails_at: frozenset[int] = frozenset()
    forbidden: frozenset[str] = frozenset()
    closed_topic: str = ""
    asked: int = 0

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        self.asked += 1
        if self.asked in self.fails_at:
            raise BrokersUnavailable("sending records failed")
        rows = [row for batch in records for row in batch.to_pylist()]
        if any(row["topic"] == self.closed_topic for row in rows):
            raise RecordsRejected(self.closed_topic, "TOPIC_AUTHORIZATION_FAILED", whole_topic=True)
        for row in rows:
            if row["value"] in self.forbidden:
                raise RecordsRejected(row["topic"], "MSG_SIZE_TOO_LARGE", whole_topic=False)
        self.committed += [row["value"] for row in rows]
        self.sizes.append(len(rows))
        self.position = PublishPosition.from_json(position.to_json())


@dataclass
class Maker:
    """Makes events of batches, some at a time, and keeps what it was asked for."""

    pieces: int = 3
    topic: str = "t"
    asked: list[EventRequest] = field(default_factory=list)

    def __call__(self, wanted: EventRequest) -> Iterator[EventBatch]:
        self.asked.append(wanted)
        for batch, count in BATCHES.items():
            if not wanted.after < batch <= wanted.through:
                continue
            rows = [record_of(batch, n, self.topic if n % 2 else "t") for n in range(count)]
            for start in range(0, max(count, 1), self.pieces):
                some = pa.RecordBatch.from_pylist(rows[start : start + self.pieces], schema=SCHEMA)
                yield EventBatch(batch, some, f"{batch}:{start + some.num_rows}")


EVERYTHING = [f"{batch}/{n}" for batch, count in BATCHES.items() for n in range(count)]


def publisher(broker: Broker, maker: Maker, at_once: int = 5, **more: object) -> BatchPublisher:
    return BatchPublisher(
        sender=broker,
        build=maker,
        form="form",
        records_per_commit=at_once,
        position=broker.position,
        **more,  # type: ignore[arg-type]
    )


def test_batches_are_sent_in_order_and_the_position_follows() -> None:
    broker = Broker()
    run = publisher(broker, Maker())
    run.publish(THROUGH, now_ns=9)
    assert broker.committed == EVERYTHING
    assert broker.sizes == [5, 2, 1, 5, 5, 2, 3]
    assert (run.records, run.transactions) == (23, 7)
    assert broker.position == PublishPosition("shop", 8, 0, 9, "form", "6:3")
    run.publish(THROUGH, now_ns=10)
    assert len(broker.sizes) == 7, "nothing new, nothing sent"


@given(
    st.frozensets(st.integers(1, 40)),
    st.integers(1, 30),
    st.integers(1, 9),
    st.lists(st.integers(0, 3), max_size=30),
)
def test_runs_that_end_anywhere_publish_each_record_once_together(
    fails_at: frozenset[int], at_once: int, pieces: int, stops: list[int]
) -> None:
    broker = Broker(fails_at=fails_at)
    clock = 0
    while broker.position.batch <= THROUGH:
        clock += 1
        left = stops.pop() if stops else 100
        asked = broker.asked
        run = publisher(
            broker,
            Maker(pieces),
            at_once,
            stopping=lambda asked=asked, left=left: broker.asked > asked + left,
        )
        assert clock < 100
        try:
            run.publish(THROUGH, now_ns=clock)
        except TransientError:
            continue
    assert broker.committed == EVERYTHING


def test_the_rest_of_a_batch_is_built_with_the_batchs_own_state() -> None:
    broker = Broker(fails_at=frozenset({2}))
    maker = Maker()
    with pytest.raises(BrokersUnavailable):
        publisher(broker, maker).publish(THROUGH, now_ns=1)
    assert (broker.position.batch, broker.position.records, broker.position.now_ns) == (1, 5, 1)
    publisher(broker, maker).publish(THROUGH, now_ns=2)
    assert [(one.after, one.now_ns, one.by_batch) for one in maker.asked] == [
        (0, 1, True),
        (0, 1, True),
        (1, 2, True),
    ]
    assert maker.asked[-1].state == "1:7", "the state of event builders is kept with the position"
    assert broker.committed == EVERYTHING


def test_a_batch_that_became_shorter_ends_it() -> None:
    broker = Broker(position=PublishPosition("shop", 1, 8, 1, "form"))
    with pytest.raises(CorruptInput, match="batch 1 has fewer records than were sent of it: expected 1 more"):
        publisher(broker, Maker()).publish(THROUGH, now_ns=1)
    assert not broker.committed


def test_rejected_records_end_the_run_unless_they_become_dead_letters() -> None:
    forbidden = frozenset({"1/3", "5/0", "5/11", "6/2"})
    with pytest.raises(RecordsRejected, match="topic t rejects records: found MSG_SIZE_TOO_LARGE"):
        publisher(Broker(forbidden=forbidden), Maker()).publish(THROUGH, now_ns=1)
    broker = Broker(forbidden=forbidden)
    dead_letters: list[tuple[int, list[int], list[str]]] = []

    def keep(records: pa.Table, numbers: np.ndarray, batch: int, reasons: pa.ChunkedArray) -> None:
        (reason,) = reasons.to_pylist()
        assert reason.endswith("topic t rejects records: found MSG_SIZE_TOO_LARGE")
        dead_letters.append((batch, numbers.tolist(), records["value"].to_pylist()))

    run = publisher(broker, Maker(), quarantine=keep)
    run.publish(THROUGH, now_ns=1)
    assert broker.committed == [value for value in EVERYTHING if value not in forbidden]
    assert dead_letters == [(1, [3], ["1/3"]), (5, [0], ["5/0"]), (5, [11], ["5/11"]), (6, [2], ["6/2"])]
    assert (run.records, run.dead_letters) == (19, 4)


def test_records_that_cannot_be_built_become_dead_letters_and_are_never_sent() -> None:
    broken = {
        "1/0": "no number",
        "1/6": "no name",
        "3/0": "no number",
        "5/7": "no number",
        "5/8": "no number",
    }

    @dataclass
    class Faulty(Maker):
        def __call__(self, wanted: EventRequest) -> Iterator[EventBatch]:
            for made in super().__call__(wanted):
                faults = pa.array([broken.get(v) for v in made.records["value"].to_pylist()], pa.large_utf8())
                at = SCHEMA.get_field_index("fault")
                yield replace(made, records=made.records.set_column(at, SCHEMA.field(at), faults))

    dead_letters: list[tuple[int, list[int], list[str]]] = []
    broker = Broker()
    run = publisher(
        broker,
        Faulty(),
        quarantine=lambda records, numbers, batch, reasons: dead_letters.append(
            (batch, numbers.tolist(), reasons.to_pylist())
        ),
    )
    run.publish(THROUGH, now_ns=1)
    assert broker.committed == [value for value in EVERYTHING if value not in broken]
    assert dead_letters == [
        (1, [0], ["no number"]),
        (1, [6], ["no name"]),
        (3, [0], ["no number"]),
        (5, [7, 8], ["no number", "no number"]),
    ]
    assert (run.records, run.dead_letters) == (len(EVERYTHING) - 5, 5)
    assert broker.position == replace(
        PublishPosition("shop", THROUGH + 1), now_ns=1, form="form", state="6:3"
    )


def test_a_rejecting_topics_records_become_dead_letters_together() -> None:
    broker = Broker(closed_topic="closed")
    dead_letters: list[int] = []
    run = publisher(
        broker,
        Maker(topic="closed"),
        at_once=100,
        quarantine=lambda records, numbers, batch, reasons: dead_letters.extend(numbers.tolist()),
    )
    run.publish(THROUGH, now_ns=1)
    assert broker.committed == [value for value in EVERYTHING if not int(value.partition("/")[2]) % 2]
    assert len(dead_letters) == run.dead_letters == 10
    assert broker.asked == run.transactions + 1, "it is tried once"
    assert list(run.refused) == ["closed"]
    with pytest.raises(RecordsRejected, match="topic closed rejects records"):
        waiting = publisher(
            Broker(closed_topic="closed"),
            Maker(topic="closed"),
            quarantine=lambda *_: None,
            passes_topics=False,
        )
        waiting.publish(THROUGH, now_ns=1)


def test_a_run_that_dies_while_dead_letters_are_written_resumes_behind_what_was_sent() -> None:
    for fails in range(1, 14):
        broker = Broker(forbidden=frozenset({"1/3", "5/4"}), fails_at=frozenset({fails}))
        for _ in range(3):
            try:
                publisher(broker, Maker(), quarantine=lambda *_: None).publish(THROUGH, now_ns=1)
            except BrokersUnavailable:
                continue
        assert broker.committed == [value for value in EVERYTHING if value not in broker.forbidden]


@pytest.mark.parametrize("away", [BrokersUnavailable("no broker"), RegistryUnavailable("no registry")])
def test_servers_that_are_away_are_waited_for_from_when_they_were_missed(
    monkeypatch: pytest.MonkeyPatch, away: Exception
) -> None:
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    options = KafkaOptions(retry_interval_seconds=10.0, retry_timeout_seconds=30.0)
    tries: list[float] = []
    sent = 0

    def sends_some_in_each_try() -> None:
        nonlocal sent
        tries.append(clock.now)
        clock.now += 100.0  # of work, which is no waiting
        sent += 1
        if len(tries) < 6:
            raise away

    wait_for_servers(sends_some_in_each_try, lambda: sent, options, lambda: False, "shop")
    assert tries == [1000.0 + 110.0 * number for number in range(6)], "650 s in all, never 30 s of waiting"

    tries.clear()

    def sends_some_once() -> None:
        nonlocal sent
        tries.append(clock.now)
        sent += len(tries) == 3
        raise away

    clock.now = 0.0
    with pytest.raises(type(away)):
        wait_for_servers(sends_some_once, lambda: sent, options, lambda: False, "shop")
    assert tries == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0], "30 s from the third one on"

    tries.clear()
    at_once = replace(options, retry_timeout_seconds=0.0)
    with pytest.raises(type(away)):
        wait_for_servers(sends_some_once, lambda: sent, at_once, lambda: False, "shop")
    assert len(tries) == 1
    tries.clear()
    with pytest.raises(type(away)):
        wait_for_servers(sends_some_once, lambda: sent, options, lambda: True, "shop")
    assert len(tries) == 1


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    tries: list[int] = []

    def publish() -> None:
        tries.append(1)
        raise ConfigurationError("the registry refuses us")

    with pytest.raises(ConfigurationError):
        wait_for_servers(publish, lambda: 0, KafkaOptions(), lambda: False, "shop")
    assert tries == [1]


def test_a_position_is_read_back_as_it_was_written() -> None:
    position = PublishPosition("é", 3, 4, 5, "f", "s", 6, 7)
    assert PublishPosition.from_json(position.to_json()) == position
    assert replace(position, state=None) == PublishPosition.from_json(replace(position, state=None).to_json())


def test_a_batch_is_not_ended_in_another_form_than_it_was_started_in() -> None:
    unfinished = PublishPosition("shop", 3, 40, form="old")
    require_matching(unfinished, "old", through=3)
    with pytest.raises(ConfigurationError, match=r"changed while batch 3 .* other options after 40 records"):
        require_matching(unfinished, "new", through=3)
    require_matching(PublishPosition("shop", 4, form="old"), "new", through=3)
    with pytest.raises(OffsetMissing, match="beyond its changes table: expected a batch up to 4, found 5"):
        require_matching(PublishPosition("shop", 5), "old", through=3)


@pytest.mark.parametrize(
    ("outcomes", "raised"),
    [
        ("conflict", CommitConflict),
        ("outage conflict done", None),
        ("outage conflict conflict", CommitConflict),
        ("outage sent-conflict", CommitConflict),
        ("outage conflict outage conflict done", None),
    ],
)
def test_only_the_first_try_after_an_outage_may_be_fenced(
    monkeypatch: pytest.MonkeyPatch, outcomes: str, raised: type[Exception] | None
) -> None:
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    script = iter(outcomes.split())
    sent = 0

    def publish() -> None:
        nonlocal sent
        outcome = next(script)
        sent += outcome.startswith("sent")
        if outcome.endswith("conflict"):
            raise CommitConflict("another producer took over")
        if outcome == "outage":
            raise BrokersUnavailable("the brokers don't answer")

    with pytest.raises(raised) if raised else nullcontext():
        wait_for_servers(publish, lambda: sent, KafkaOptions(), lambda: False, "shop")
    assert not list(script)
