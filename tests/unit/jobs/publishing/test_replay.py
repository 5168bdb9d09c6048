"""Which batches a replay is of, and what its topics are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.publishing.origins import changes as changes_module
from airflow_cdc_provider.jobs.publishing.origins import replayed as origin_module
from airflow_cdc_provider.jobs.publishing.origins.replayed import (
    BatchRange,
    Replayed,
    chosen_range,
    other_topic,
)
from airflow_cdc_provider.jobs.publishing.replay import replay
from airflow_cdc_provider.jobs.publishing.targets import kafka as kafka_module
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PublishPosition
from tests.unit.jobs.runs import run_of

START = datetime(2026, 11, 23, 8, tzinfo=UTC)
ALL = {number: START + timedelta(hours=number) for number in range(1, 8)}
LATE = {number: at for number, at in ALL.items() if number >= 3}
"""Maintenance let batches 1 and 2 go."""


@pytest.mark.parametrize(
    ("options", "through", "expected"),
    [
        ({}, None, BatchRange(1, 7)),
        ({}, 5, BatchRange(1, 5)),
        ({"first_batch": 2, "last_batch": 4}, 5, BatchRange(2, 4)),
        ({"first_batch": 4}, None, BatchRange(4, 7)),
        ({"since": "2026-11-23T10:00:00Z", "until": "2026-11-23T12:00:00Z"}, None, BatchRange(2, 4)),
        ({"since": "2026-11-23T10:00:00.001+00:00"}, 6, BatchRange(3, 6)),
        ({"until": "2026-11-23T10:30"}, None, BatchRange(1, 2)),
    ],
)
def test_a_range_is_of_numbers_or_of_a_time_and_ends_with_what_is_published(
    options: dict[str, Any], through: int | None, expected: BatchRange
) -> None:
    assert chosen_range(ALL, options, through) == expected


@pytest.mark.parametrize(
    ("options", "through", "message"),
    [
        ({"first_batch": 2}, None, "batches before 3 have expired: expected batches from 3 on"),
        ({"since": "2026-11-23T09:30Z"}, None, "have expired.*found since 2026-11-23T09:30"),
        ({"last_batch": 6}, 5, "batch 6 isn't published yet: expected a batch up to 5, or another topic_pre"),
        ({"last_batch": 8}, None, "no such batches to replay: expected batches from 3 to 7, found 3 to 8"),
        ({"first_batch": 6, "last_batch": 4}, None, "found 6 to 4"),
        ({}, 0, "no such batches"),
        ({"since": "2026-11-24T00:00Z"}, None, "no batch that may be replayed was committed in that time"),
        ({"since": "2026-11-23T14:30Z"}, 6, "committed in that time: .* and batches up to 6"),
        ({"since": "yesterday"}, None, "invalid value for option since"),
        ({"first_batch": 3, "until": "2026-11-24T00:00Z"}, None, "batch numbers or times"),
    ],
)
def test_batches_that_expired_or_are_not_published_are_refused(
    options: dict[str, Any], through: int | None, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        chosen_range(LATE, options, through)


def test_a_time_before_all_batches_asks_for_all_that_there_ever_were() -> None:
    assert chosen_range(ALL, {"since": "2020-01-01"}, None) == BatchRange(1, 7)
    assert chosen_range(LATE, {}, None) == BatchRange(3, 7), "nothing asked for what is gone"


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("shop.store.orders", "again.store.orders"),
        ("outbox.event.orders", "again.outbox.event.orders"),
        ("shop", "again.shop"),
        ("shopping.store.orders", "again.shopping.store.orders"),
    ],
)
def test_no_topic_of_another_prefix_is_one_of_the_connectors(topic: str, expected: str) -> None:
    assert other_topic(topic, "shop", "again", ".") == expected


@dataclass
class Lake:
    """A changes table of two events a batch, brokers that take them, and what happens during a replay.

    Args:
        kept: When each batch that is there was committed.
        published: The last batch that is published.
        fails_at: The transaction at which the brokers go away; 0 for none.
        takes_it: Whether they have taken that one.
        published_meanwhile: Batches that are published during each transaction.
        falls_silent: Whether brokers return no position any more when something was sent.
        left_open: Whether a transaction of a killed replay hides positions until a producer takes over.
    """

    kept: dict[int, datetime] = field(default_factory=lambda: dict(ALL))
    published: int = 5
    fails_at: int = 0
    takes_it: bool = False
    published_meanwhile: int = 0
    falls_silent: bool = False
    left_open: bool = False
    stored: PublishPosition | bytes | None = None
    transactions: int = 0
    sent: list[str] = field(default_factory=list)

    def position(self, *parts: Any) -> PublishPosition:
        if self.left_open or (self.falls_silent and self.sent):
            raise BrokersUnavailable("gone")
        return PublishPosition("p", self.published + 1)

    def batches(self, *parts: Any) -> Mapping[int, datetime]:
        return dict(self.kept)

    def made(self, stores: Any, source: Any, wanted: EventRequest, skipped: Any) -> Iterator[EventBatch]:
        for batch in [number for number in self.kept if wanted.after < number <= wanted.until]:
            rows = [{"topic": "t", "bare": False, "headers": "", "value": f"{batch}{part}"} for part in "ab"]
            yield EventBatch(batch, pa.RecordBatch.from_pylist(rows, schema=Converters().record_schema))

    def producer(self, *given: Any, **more: Any) -> Lake:
        return self

    def take_over(self) -> PublishPosition | None:
        self.left_open = False
        return PublishPosition.from_json(self.stored) if isinstance(self.stored, bytes) else self.stored

    def publish(self, records: Sequence[pa.RecordBatch], headers: Any, position: PublishPosition) -> None:
        self.transactions += 1
        fails = self.transactions == self.fails_at
        if fails and not self.takes_it:
            raise BrokersUnavailable("gone")
        self.published += self.published_meanwhile
        self.stored = PublishPosition.from_json(position.to_json())
        values = [value for batch in records for value in batch["value"].cast("binary").to_pylist()]
        self.sent += [value.decode() for value in values]
        if fails:
            raise BrokersUnavailable("gone")

    def close(self) -> None:
        pass


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake and brokers in place of real ones."""
    found = Lake()
    monkeypatch.setattr(origin_module, "kept_batches", found.batches)
    events = SimpleNamespace(captured_records=found.made)
    monkeypatch.setattr(changes_module, "source_plugin", lambda name: SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(Replayed, "_recorded", lambda *given: set())
    monkeypatch.setattr(Replayed, "find_owners", lambda *given: ())
    monkeypatch.setattr(kafka_module, "RecordProducer", found.producer)
    topic = SimpleNamespace(make=lambda slices: None, slowest=found.position, settings=None)
    monkeypatch.setattr(kafka_module, "positions_topic", lambda *given: topic)
    return found


def replayed(*, retry_timeout_seconds: float = 0, finished: bool = True, **options: Any) -> JobResult:
    """Run a replay whose brokers are not waited for, or so long; its job may be killed when it is sent."""
    kafka = {"connection": "k", "retry_timeout_seconds": retry_timeout_seconds, "records_per_commit": 1}
    kafka["retry_interval_seconds"] = 0.01
    declaration = {"name": "p", "source": {"type": "mongodb"}, "publish": {"kafka": kafka}}
    connections = Connections(kafka={"bootstrap.servers": "k:1"})
    run = run_of(Connector.from_dict(declaration), options=options, connections=connections)
    outcome = replay(run)
    if finished:
        run.report.on_finished()
    return outcome


def test_a_replay_of_an_open_range_goes_on_where_it_was_ended_though_more_was_published(lake: Lake) -> None:
    lake.fails_at = 4
    with pytest.raises(BrokersUnavailable):
        replayed(first_batch=2, request="run 1")
    assert lake.sent == ["2a", "2b", "3a"]
    lake.published = 7
    result = replayed(first_batch=2, request="run 1").replayed
    assert lake.sent == ["2a", "2b", "3a", "3b", "4a", "4b", "5a", "5b"]
    assert result is not None
    assert (result.first_batch, result.last_batch) == (2, 5), "what was open when it began"
    lake.sent.clear()
    replayed(first_batch=2, request="run 1")
    assert lake.sent[0] == "2a", "all again, as the first one has ended"
    assert lake.sent[-1] == "7b"


@pytest.mark.parametrize("other", [{"request": "run 2"}, {"last_batch": 4}, {"since": START.isoformat()}])
def test_another_replay_begins_at_its_own_begin(lake: Lake, other: dict[str, Any]) -> None:
    lake.fails_at = 4
    with pytest.raises(BrokersUnavailable):
        replayed(request="run 1")
    lake.sent.clear()
    replayed(**{"request": "run 1", **other})
    assert lake.sent[0] == "1a"


@pytest.mark.parametrize("takes_it", [False, True])
@pytest.mark.parametrize("fails_at", range(1, 8))
def test_each_event_is_sent_once_whether_brokers_go_away_before_or_after_they_took_it(
    lake: Lake, fails_at: int, takes_it: bool
) -> None:
    lake.fails_at, lake.takes_it = fails_at, takes_it
    result = replayed(last_batch=3, retry_timeout_seconds=5).replayed
    assert lake.sent == ["1a", "1b", "2a", "2b", "3a", "3b"]
    assert result is not None
    assert (result.first_batch, result.last_batch) == (1, 3)


def test_a_replay_killed_after_its_last_event_sends_nothing_again_until_its_end_is_stored(lake: Lake) -> None:
    replayed(request="run 1", finished=False)
    sent = list(lake.sent)
    lake.published = 7
    again = replayed(request="run 1").replayed
    assert lake.sent == sent
    assert again is not None
    assert (again.first_batch, again.last_batch, again.records) == (1, 5, 0)
    assert replayed(request="run 1").ok
    assert lake.sent[len(sent) :][0] == "1a", "a task that is cleared sends all again"


def test_a_replay_whose_end_cannot_be_stored_succeeds(lake: Lake) -> None:
    lake.fails_at = 8
    assert replayed(last_batch=3).ok
    assert len(lake.sent) == 6


def test_a_replay_whose_position_is_of_a_later_version_starts_over(lake: Lake) -> None:
    lake.stored = b'{"v": 2}'
    assert replayed(last_batch=1).ok
    assert lake.sent == ["1a", "1b"]


def test_batches_that_expired_while_a_replay_waited_fail_it(lake: Lake) -> None:
    lake.fails_at = 4
    with pytest.raises(BrokersUnavailable):
        replayed()
    sent = list(lake.sent)
    del lake.kept[1], lake.kept[2], lake.kept[3]
    with pytest.raises(ConfigurationError, match=r"batches before 4 have expired.*found batch 2, with which"):
        replayed()
    assert lake.sent == sent, "nothing is skipped"


def test_events_that_were_published_during_a_replay_are_warned_of(lake: Lake) -> None:
    assert replayed().findings == ()
    lake.published_meanwhile = 1
    (warning,) = replayed().findings
    assert warning.startswith("events of batches 1 to 5 are now after or among those of later ones")


def test_a_replay_takes_over_before_it_reads_what_an_open_transaction_hides(lake: Lake) -> None:
    lake.left_open = True
    result = replayed().replayed
    assert result is not None
    assert (result.first_batch, result.last_batch) == (1, 5), "what is published"


def test_a_replay_that_is_sent_is_not_sent_again_because_brokers_go_away_then(lake: Lake) -> None:
    lake.falls_silent = True
    result = replayed()
    assert (result.ok, result.findings) == (True, ())
    assert len(lake.sent) == 10
