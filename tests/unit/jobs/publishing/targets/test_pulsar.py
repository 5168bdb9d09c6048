"""The stage that publishes to Pulsar: sequence ids, and runs that end anywhere, with a fake broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.publishing import publication, stage
from airflow_cdc_provider.jobs.publishing.origins import changes as changes_module
from airflow_cdc_provider.jobs.publishing.targets.pulsar import with_sequence_ids
from airflow_cdc_provider.jobs.publishing.targets.pulsar_position import PulsarPosition, PulsarPositionTable
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable
from airflow_cdc_provider.sources.cassandra.events import datastax_envelope
from airflow_cdc_provider.sources.cassandra.events.datastax_envelope import EnvelopeOptions
from airflow_cdc_provider.sources.encoding import encoded, topics_of
from tests.unit.jobs.runs import run_of
from tests.unit.pulsar.fake_broker import FakeBroker


def ids_of(pieces: list[tuple[int, int]]) -> list[int]:
    made = (EventBatch(batch, pa.record_batch({"n": pa.array(range(count))})) for batch, count in pieces)
    return [number for one in with_sequence_ids(made) for number in one.records["sequence"].to_pylist()]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4))).map(sorted))
def test_ids_grow_and_do_not_depend_on_how_a_batch_comes_in_pieces(pieces: list[tuple[int, int]]) -> None:
    ids = ids_of(pieces)
    assert ids == sorted(set(ids))
    whole = {batch: sum(n for b, n in pieces if b == batch) for batch, _ in pieces}
    assert ids == ids_of(sorted(whole.items()))
    for batch, count in whole.items():  # a run that begins with a later batch gives it the same
        assert ids_of([(batch, count)]) == [number for number in ids if number >> 31 == batch]


def test_a_standing_is_read_as_it_was_written() -> None:
    standing = PulsarPosition("shop.1", PublishPosition("shop", 3, 5, 7, "form"))
    assert PulsarPosition.from_json(standing.to_json()) == standing
    for broken in ("", "{}", '{"producer": "a", "position": 1}'):
        with pytest.raises(OffsetMissing, match="can't be read"):
            PulsarPosition.from_json(broken)


@dataclass
class Table:
    """A table without rows, whose commits are compared and set."""

    properties: dict[str, str] | None = None
    commits: int = 0
    name: str = "shop_published"

    def exists(self) -> bool:
        return self.properties is not None

    def create(self, schema: object) -> None:
        del schema
        self.properties = self.properties or {}

    def head(self) -> Head:
        return Head(str(self.commits), self.properties or {})

    def commit(self, base: Head, *, properties: dict[str, str]) -> Head:
        if base.snapshot != str(self.commits):
            raise CommitConflict("another run was faster")
        self.properties = properties
        self.commits += 1
        return self.head()


CONNECTOR = Connector.from_dict(
    {
        "name": "shop",
        "source": {"type": "cassandra", "cdc_raw": "/x"},
        "publish": {
            "envelope": "datastax",
            "key": "avro",
            "value": "avro",
            "cassandra": {"reread": True},
            "pulsar": {"connection": "p", "retry_timeout_seconds": 0, "records_per_commit": 4},
        },
    }
)
BATCHES = {1: 6, 2: 0, 3: 9}


@dataclass
class Job:
    """A job on made batches, a broker and a table."""

    broker: FakeBroker
    table: Table
    monkeypatch: pytest.MonkeyPatch
    asked: list[EventRequest] = field(default_factory=list)

    def publish(self, connector: Connector = CONNECTOR) -> PublishResult:
        events = SimpleNamespace(captured_records=self._captured)
        plugin = SimpleNamespace(events=lambda: events)
        self.monkeypatch.setattr(changes_module, "source_plugin", lambda name: plugin)
        self.monkeypatch.setattr(publication, "publishing_lag", lambda changes, batch: 0.0)
        run = self.run(connector)
        return stage.publish_events(run.job, run.stores, run.source, run.clients)

    def run(self, connector: Connector = CONNECTOR) -> Run:
        changes = SimpleNamespace(state=lambda: SimpleNamespace(batch=max(BATCHES)))
        lake = SimpleNamespace(table=lambda name, layout: self.table)
        connections = Connections(pulsar={"service_url": self.broker.url})
        return run_of(connector, changes=changes, lake=lake, connections=connections)

    def _captured(
        self, stores: Stores, source: object, wanted: EventRequest, skipped: object
    ) -> Iterator[EventBatch]:
        """Make records as the encoder does, of Avro with separate schemas."""
        del source, skipped
        self.asked.append(wanted)
        options = EnvelopeOptions(topics=topics_of(stores.connector), json=False)
        for batch, count in BATCHES.items():
            if not wanted.after < batch <= wanted.until:
                continue
            keys = pa.array([{"p": n % 3} for n in range(count)], pa.struct([pa.field("p", pa.int32())]))
            states = pa.record_batch(
                {
                    "key": keys,
                    "value": pa.array(
                        [{"a": n} for n in range(count)], pa.struct([pa.field("a", pa.int32())])
                    ),
                    "written_at": pa.array(range(count), pa.int64()),
                    "of_partition": pa.repeat(False, count),
                }
            )
            envelope = datastax_envelope.build(states, "ks", "t", options)
            yield EventBatch(batch, encoded(stores.connector, [Piece(envelope, np.arange(count))]))


EVERYTHING = [(batch << 31) + n for batch, count in BATCHES.items() for n in range(count)]
TOPIC = "persistent://public/default/data-ks.t"


@given(st.lists(st.integers(0, 20), max_size=4))
@settings(max_examples=10)
def test_runs_that_end_anywhere_publish_each_record_once_by_one_clock(deaths: list[int]) -> None:
    with FakeBroker() as broker, pytest.MonkeyPatch.context() as monkeypatch:
        job = Job(broker, Table(), monkeypatch)
        for death in deaths:
            broker.dies_after = death
            with suppress(BrokersUnavailable):
                job.publish()
        broker.dies_after = None
        result = job.publish()
        assert [number for number, _ in broker.stored[TOPIC]] == EVERYTHING
        assert (result.batch, result.pending_batches) == (3, 0)
        clocks = {wanted.now_ns for wanted in job.asked}
        assert len(clocks) <= 1 or not deaths, "the rest of a batch is built with the time of its start"
        assert job.publish().records == 0


def test_a_range_that_is_asked_for_again_is_not_taken_for_a_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeBroker() as broker:
        job = Job(broker, Table(), monkeypatch)
        job.publish()
        run = job.run()
        stage.publish_from(run.job, run.stores, run.source, run.clients.connections, 3)
        assert job.publish().records == 9
        assert [number for number, _ in broker.stored[TOPIC]] == [*EVERYTHING, *EVERYTHING[6:]]
        stored = PulsarPositionTable(job.table).read()  # type: ignore[arg-type]
        assert stored is not None
        assert (stored.position.batch, stored.position.now_ns) == (4, 0)
        assert stage.published_through(run.job, run.stores, run.source, run.clients.connections) == 3


def test_a_broker_that_forgets_ends_a_run_once_its_records_are_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeBroker(deduplicates=False) as broker:
        job = Job(broker, Table(), monkeypatch)
        with pytest.raises(ConfigurationError, match="doesn't deduplicate"):
            job.publish()
        pulsar = replace(CONNECTOR.publish.pulsar, delivery="at_least_once")
        lenient = replace(CONNECTOR, publish=replace(CONNECTOR.publish, pulsar=pulsar))
        result = job.publish(lenient)
        assert any("doesn't deduplicate" in finding for finding in result.findings)
        assert [number for number, _ in broker.stored[TOPIC]] == EVERYTHING


def test_options_that_changed_in_the_middle_of_a_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeBroker(dies_after=2) as broker:
        job = Job(broker, Table(), monkeypatch)
        with pytest.raises(BrokersUnavailable):
            job.publish()
        pulsar = replace(CONNECTOR.publish.pulsar, topic_prefix="x-")
        renamed = replace(CONNECTOR, publish=replace(CONNECTOR.publish, pulsar=pulsar))
        with pytest.raises(ConfigurationError, match="form of events of shop changed"):
            job.publish(renamed)
