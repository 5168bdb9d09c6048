"""Slices of a changes table: together the events of the whole, each row's in order, once whatever happens."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import SliceRows, batch_ranges
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.publishing.origins import changes as changes_module
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.targets.kafka import Producers
from airflow_cdc_provider.jobs.publishing.targets.slices import (
    SlicedKafkaTarget,
    SlicedRun,
    SliceTask,
    change_slices,
    start_slices,
)
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.encoding import topic_of_table
from tests.unit.jobs.publishing.sent_records import Sent, by_key, records_of, sent_of
from tests.unit.jobs.runs import run_of
from tests.unit.sources.lake_records import NOW_NS, LakeRecords, cassandra, mongodb, vitess

SOURCES: dict[str, Callable[..., LakeRecords]] = {
    "cassandra": cassandra,
    "mongodb": mongodb,
    "vitess": vitess,
}


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_slices_have_together_each_record_once_and_those_of_a_key_in_order(source: str, slices: int) -> None:
    lake = SOURCES[source]()
    whole = records_of(lake.made(0, 1))
    parts = [records_of(lake.made(number, slices, rows_at_once=17)) for number in range(slices)]
    if source != "vitess" or slices < 3:
        assert all(parts), "none is empty"
    assert Counter(record for part in parts for record in part) == Counter(whole)
    everything = by_key(whole)
    for part in parts:
        for key, records in by_key(part).items():
            expected = everything[key]
            if source == "vitess":  # rows of several shards may have one key: those of each are in order
                expected = [one for one in expected if one in set(records)]
            assert records == expected
    if source != "vitess":
        assert sum(len(by_key(part)) for part in parts) == len(everything), "a key is in one slice"


@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 50)),
    st.integers(0, 10),
    st.integers(0, 35),
    st.frozensets(st.integers(1, 30)),
)
def test_stretches_are_all_batches_and_a_reshard_stands_alone(
    counts: dict[int, int], after: int, through: int, alone: frozenset[int]
) -> None:
    found = list(batch_ranges(counts, after, through, rows_at_once=60, isolated=alone))
    batches = [number for begin, end in found for number in range(begin + 1, end + 1)]
    assert batches == list(range(after + 1, through + 1))
    for begin, end in found:
        inside = [number for number in range(begin + 1, end + 1) if number in counts]
        assert sum(counts[number] for number in inside) <= 60 or len(inside) == 1
        assert len(inside) == 1 or not alone & set(inside)


def test_records_of_later_batches_wait_until_they_are_asked_for() -> None:
    rows = SliceRows([pa.record_batch({"batch": [1, 2, 2, 4]}), pa.record_batch({"batch": [4, 5]})])

    def numbers(after: int, through: int) -> list[int]:
        return [n for batch in rows.between(after, through) for n in batch["batch"].to_pylist()]

    assert (numbers(1, 2), numbers(3, 3), numbers(2, 4), numbers(0, 9)) == ([2, 2], [], [4, 4], [5])


@dataclass
class Brokers:
    """Keeps what was committed, and who holds which slice; fails as its arguments say.

    Args:
        unread: Slices whose stored position is one of a later version.
    """

    committed: dict[int, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    positions: dict[int, PublishPosition] = field(default_factory=dict)
    holders: dict[int, object] = field(default_factory=dict)
    fails_at: frozenset[int] = frozenset()
    asked: int = 0
    unread: set[int] = field(default_factory=set)
    topic: Any = None

    def of_slice(self, number: int) -> Producer:
        return Producer(self, number)

    def fence(self, number: int) -> PublishPosition | None:
        return self.of_slice(number).take_over()


@dataclass
class Producer:
    brokers: Brokers
    number: int

    def take_over(self, *, read: bool = True) -> PublishPosition | None:
        self.brokers.holders[self.number] = self
        if self.number in self.brokers.unread and read:
            return PublishPosition.from_json(b'{"v": 2}')
        return self.brokers.positions.get(self.number)

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        assert position.slice == self.number
        if self.brokers.holders[self.number] is not self:
            raise CommitConflict("fenced")
        self.brokers.asked += 1
        if self.brokers.asked in self.brokers.fails_at:
            raise BrokersUnavailable("gone")
        self.brokers.committed[self.number] += sent_of(records)
        self.brokers.positions[self.number] = PublishPosition.from_json(position.to_json())
        self.brokers.unread.discard(self.number)

    def close(self) -> None:
        pass


def task_of(lake: LakeRecords, brokers: Brokers, slices: int, now_ns: int = NOW_NS) -> SliceTask:
    producers: Any = brokers
    return SliceTask(
        producers=producers,
        registrar=None,
        build=lake.build,
        headers=(),
        form="form",
        records_per_commit=3,
        slices=slices,
        now_ns=now_ns,
        strict=True,
        through=lake.through,
    )


@pytest.mark.parametrize("source", SOURCES)
def test_a_slice_that_is_ended_anywhere_goes_on_by_its_position(source: str) -> None:
    lake = SOURCES[source]()
    for number in range(2):
        brokers = Brokers(fails_at=frozenset(range(4, 400, 3)))
        start_slices(brokers, PublishPosition("p", 1), 2)  # type: ignore[arg-type]
        tries = 0
        while True:
            tries += 1
            # A later try builds the rest of a batch as at its start, though its own time is another.
            outcome = task_of(lake, brokers, 2, NOW_NS if tries == 1 else NOW_NS + tries).publish(
                number, iter(lake.of_slice(number, 2).to_batches(max_chunksize=11))
            )
            if outcome.error is None:
                break
            assert isinstance(outcome.error, BrokersUnavailable)
        assert tries > 3
        without_times = [
            [(topic, key, headers) for topic, key, _, headers in records]
            for records in (brokers.committed[number], records_of(lake.made(number, 2)))
        ]
        assert without_times[0] == without_times[1]
        assert outcome.position is not None
        assert (outcome.position.batch, outcome.position.records) == (lake.through + 1, 0)


@pytest.mark.parametrize("source", SOURCES)
def test_a_slice_has_the_owners_of_topics_that_the_driver_found(source: str) -> None:
    lake = SOURCES[source](kafka={"connection": "kafka"})
    sent = Counter(topic for topic, *_ in records_of(lake.made(0, 1)))
    topics = {
        topic_of_table(lake.connector, t): t for t in pc.unique(lake.rows["source_table"]).to_pylist() if t
    }
    taken = max(sent.keys() & topics)
    brokers, letters = Brokers(), list[str]()
    start_slices(brokers, PublishPosition("p", 1), 1)  # type: ignore[arg-type]
    owners = {taken: "a.owner"}
    task = replace(task_of(lake, brokers, 1), owners=owners, stored_owners=("a.owner",))

    outcome = task.publish(
        0, iter(lake.rows.to_batches()), lambda records, numbers, batch, why: letters.extend(why.to_pylist())
    )

    assert outcome.error is None
    rest = Counter(topic for topic, *_ in brokers.committed[0])
    assert rest == Counter({topic: count for topic, count in sent.items() if topic != taken})
    assert letters
    assert all("a.owner" in text and topics[taken] in text for text in letters)
    assert outcome.refused.keys() == {taken}
    assert brokers.positions[0].owners == ("a.owner",)


def test_a_task_that_was_believed_dead_is_fenced_and_one_of_another_parting_refused() -> None:
    lake = mongodb()
    brokers = Brokers()
    positions = start_slices(brokers, PublishPosition("p", 1), 2)  # type: ignore[arg-type]
    rows = lake.of_slice(0, 2).to_batches(max_chunksize=11)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        brokers.of_slice(0).take_over()
        yield from rows[1:]

    outcome = task_of(lake, brokers, 2).publish(0, overtaken())
    assert isinstance(outcome.error, CommitConflict)
    again = task_of(lake, brokers, 2).publish(0, iter(rows))
    assert again.error is None
    assert brokers.committed[0] == records_of(lake.made(0, 2))

    late = task_of(lake, brokers, 2)
    assert late.publish(1, iter(lake.of_slice(1, 2).to_batches())).error is None
    stored = [brokers.positions[number] for number in range(2)]
    assert stored != positions
    assert change_slices(brokers, stored, 1) == [replace(stored[0], slices=1)]  # type: ignore[arg-type]
    for number in range(2):
        error = late.publish(number, iter(())).error
        assert isinstance(error, CommitConflict)
        assert "expected a position of 2 slices, found one of 1" in str(error)


def test_a_position_that_is_set_back_below_what_a_task_was_given_is_left_there() -> None:
    lake = mongodb()
    brokers = Brokers()
    start_slices(brokers, PublishPosition("p", 2), 2)  # type: ignore[arg-type]
    task = replace(task_of(lake, brokers, 2), after=2)
    rows = lake.of_slice(1, 2)
    later = rows.filter(pc.greater(rows["batch"], 2)).to_batches()
    outcome = task.publish(1, iter(later))
    assert isinstance(outcome.error, CommitConflict)
    assert "expected a batch from 3 on, found 2" in str(outcome.error)
    assert brokers.positions[1].batch == 2, "the next run publishes it"
    assert not brokers.committed[1]
    assert replace(task, after=1).publish(1, iter(rows.to_batches())).error is None


@dataclass
class SparkOfNothing:
    """Spark with adaptive plans: what is parted has no task if it is empty; a range has its partitions."""

    columns: ClassVar = ["id"]

    monkeypatch: pytest.MonkeyPatch
    tasks: int = 0
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = field(init=False)

    def range(self, start: int, end: int, step: int, partitions: int) -> SparkOfNothing:
        assert (start, end, step) == (0, partitions, 1)
        self.tasks = partitions
        return self

    def mapInArrow(self, work: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> SparkOfNothing:
        self.work = work
        return self

    def collect(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for number in range(self.tasks):
            task = SimpleNamespace(partitionId=lambda number=number: number)
            self.monkeypatch.setattr(TaskContext, "get", lambda task=task: task)
            rows = iter([pa.record_batch({"id": [number]})])
            found += [row for some in self.work(rows) for row in some.to_pylist()]
        return found


def test_positions_pass_batches_that_have_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = mongodb()
    brokers = Brokers()
    positions = start_slices(brokers, PublishPosition("p", 4), 3)  # type: ignore[arg-type]
    nothing: Any = SimpleNamespace(
        groupBy=lambda name: nothing,
        count=lambda: nothing,
        select=lambda *names: nothing,
        distinct=lambda: nothing,
        collect=list,
        where=lambda rows: pytest.fail("nothing is parted"),
    )
    spark: Any = SparkOfNothing(monkeypatch)
    spark.sparkContext = SimpleNamespace(getConf=lambda: SimpleNamespace(get=lambda name, default: default))
    sliced = SimpleNamespace(rows=nothing, build=lake.build, isolated=frozenset())
    events = SimpleNamespace(sliced_records=lambda *given: sliced)
    monkeypatch.setattr(changes_module, "source_plugin", lambda name: SimpleNamespace(events=lambda: events))
    state = SimpleNamespace(batch=9, offset=None)
    changes = SimpleNamespace(state=lambda: state, pending=lambda *given: nothing)
    job, stores, source, clients, _ = run_of(lake.connector, spark=spark, changes=changes)
    target = SlicedKafkaTarget(job, DeadLetters.of(job.connector, stores), clients.connections, brokers)  # type: ignore[arg-type]
    origin = Changes(job, stores, source, SkippedRecords(strict=True))
    run = SlicedRun(target, origin, positions)

    run.publish()

    assert [(one.batch, one.records) for one in run.positions] == [(10, 0)] * 3
    assert [brokers.positions[number] for number in range(3)] == run.positions


def test_an_interrupted_change_of_slices_leaves_the_old_slices() -> None:
    for steps in range(1, 4):
        brokers = Brokers()
        old = start_slices(brokers, PublishPosition("p", 5), 2)  # type: ignore[arg-type]
        brokers.fails_at = frozenset([brokers.asked + steps])
        with pytest.raises(BrokersUnavailable):
            change_slices(brokers, old, 3)  # type: ignore[arg-type]
        assert brokers.positions[0].slices == 2, "slice 0 is stored last"
        assert {position.batch for position in brokers.positions.values()} == {5}
        now = [brokers.positions[number] for number in range(2)]
        assert change_slices(brokers, now, 3) == [  # type: ignore[arg-type]
            PublishPosition("p", 5, slice=number, slices=3) for number in range(3)
        ]


def test_a_missing_position_fails_and_nothing_is_guessed() -> None:
    brokers = Brokers()
    topic = PositionsTopic(ClientSettings({"bootstrap.servers": "k:9092"}), "p.positions", "p")
    assert topic.all_slices(brokers.positions.get) == []
    positions = start_slices(brokers, PublishPosition("p", 1), 3)  # type: ignore[arg-type]
    assert topic.all_slices(brokers.positions.get) == positions
    del brokers.positions[2]
    with pytest.raises(OffsetMissing, match="slice 2 of p is missing"):
        topic.all_slices(brokers.positions.get)


@pytest.mark.parametrize(
    ("unread", "slices"), [(set(), 3), ({1}, 3), ({0}, 2), ({0, 1, 2}, 2)], ids=["none", "1", "0", "all"]
)
def test_publishing_can_be_set_to_a_batch_whatever_is_stored(unread: set[int], slices: int) -> None:
    brokers = Brokers(unread=set(unread))
    start_slices(Brokers(positions=brokers.positions), PublishPosition("p", 8), 3)  # type: ignore[arg-type]
    partitions: list[int] = []
    brokers.topic = SimpleNamespace(make=partitions.append)
    kafka = {"connection": "k", "slices": 2}
    declaration = {"name": "p", "source": {"type": "mongodb"}, "publish": {"kafka": kafka}}
    changes: Any = SimpleNamespace(state=lambda: SimpleNamespace(batch=9))
    job, stores, source, clients, _ = run_of(Connector.from_dict(declaration), changes=changes)
    target = SlicedKafkaTarget(job, DeadLetters.of(job.connector, stores), clients.connections, brokers)  # type: ignore[arg-type]
    target.reset(Changes(job, stores, source, SkippedRecords(strict=True)), 5)
    assert partitions == [1, slices]
    now = [brokers.positions[number] for number in range(slices)]
    assert now == [PublishPosition("p", 5, slice=number, slices=slices) for number in range(slices)]


@pytest.mark.parametrize("source", SOURCES)
def test_a_task_goes_to_other_processes_and_shows_no_secret(source: str) -> None:
    lake = SOURCES[source]()
    settings = ClientSettings({"bootstrap.servers": "k:9092", "sasl.password": "s3cret"})
    producers = Producers(PositionsTopic(settings, "p.positions", "p"), "p")
    registry = Registry(RegistrySettings({"url": "http://cdc:s3cret@r", "basic.auth.user.info": "u:s3cret"}))
    task = replace(task_of(lake, Brokers(), 2), producers=producers, registrar=registry)
    there = pickle.loads(pickle.dumps(task))
    assert there.producers.topic.settings == settings
    assert "s3cret" not in repr(task) + repr(producers) + repr(there)
    assert records_of(replace(lake, build=there.build).made(0, 2)) == records_of(lake.made(0, 2))


@pytest.mark.parametrize(
    ("kind", "publish", "named"),
    [
        ("mongodb", {"transactions": True}, "publish.transactions"),
        ("mongodb", {"outbox": {"enabled": True}}, "publish.outbox"),
        ("vitess", {"schema_changes": True}, "publish.schema_changes"),
        ("cassandra", {"cassandra": {"before": True}}, "publish.cassandra.before"),
        ("cassandra", {"cassandra": {"order": "write_time"}}, "publish.cassandra.order"),
        ("cassandra", {"envelope": "datastax", "cassandra": {"reread": True}}, "publish.envelope: datastax"),
    ],
)
def test_what_needs_one_order_is_refused_by_name(kind: str, publish: dict[str, Any], named: str) -> None:
    def declare(slices: int) -> None:
        kafka = {"connection": "kafka", "slices": slices}
        source = {"type": kind, **({"keyspace": "shop"} if kind == "vitess" else {})}
        Connector.from_dict({"name": "p", "source": source, "publish": {**publish, "kafka": kafka}})

    declare(1)
    with pytest.raises(ConfigurationError, match=named):
        declare(2)
