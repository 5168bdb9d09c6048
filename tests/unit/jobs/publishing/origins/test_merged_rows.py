"""Publishing after merges without Spark: rows that no record can be built of, tables that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.jobs.publishing import topic_owners
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.jobs.publishing.origins import merged_rows
from airflow_cdc_provider.jobs.publishing.origins.merged_rows import MergedRows
from airflow_cdc_provider.kafka.merged_position import MergedPosition, PublishedSnapshot
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.sources.row_events import built


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array([bytes([n]) for n in range(count)], pa.binary())})


@given(
    st.integers(1, 40),
    st.dictionaries(st.integers(0, 39), st.sampled_from([ValueError, pa.ArrowCapacityError, CorruptInput])),
)
def test_rows_that_a_builder_fails_at_are_skipped_alone_and_named(
    count: int, broken: dict[int, type[Exception]]
) -> None:
    def build(batch: pa.RecordBatch) -> pa.RecordBatch:
        for key in batch["key"].to_pylist():
            if key[0] in broken:
                raise broken[key[0]]("no record")
        return batch

    skipped = SkippedRecords(strict=False)
    found = [key[0] for part in built(build, rows(count), "k.t", skipped) for key in part["key"].to_pylist()]
    missing = [n for n in range(count) if n in broken]
    assert found == [n for n in range(count) if n not in broken]
    assert [text.split(":")[0] for text in skipped.undecodable] == [f"k.t at {n:02x}" for n in missing]
    if missing:
        with pytest.raises(CorruptInput, match=f"k.t at {missing[0]:02x}"):
            list(built(build, rows(count), "k.t", SkippedRecords(strict=True)))


def test_an_invalid_declaration_fails_the_run() -> None:
    def build(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ConfigurationError("two names are equal in Avro")

    with pytest.raises(ConfigurationError):
        list(built(build, rows(3), "k.t", SkippedRecords(strict=False)))


TABLES = "abcd"
CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
FIRST = PublishPosition("shop", 1, state=MergedPosition().to_json())


@dataclass
class Broker:
    """Keeps what was committed, and fails as its arguments say.

    Args:
        outages: Numbers of transactions of which nothing is kept.
        refused: Values that are refused.
    """

    outages: set[int]
    refused: set[str]
    committed: list[str] = field(default_factory=list)
    position: PublishPosition = FIRST
    asked: int = 0

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        self.asked += 1
        values = [value for batch in records for value in batch["value"].to_pylist()]
        if self.asked in self.outages:
            raise TransientError("the brokers don't respond")
        if refused := self.refused.intersection(values):
            raise ConfigurationError(f"refused: {refused}")
        self.committed += values
        self.position = PublishPosition.from_json(position.to_json())


@pytest.mark.parametrize("both", [False, True])
def test_a_mirror_whose_topic_is_another_ones_waits_and_the_owner_is_published(
    monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    times = {"acme_1.t": 1, "acme!1.t": 2}
    monkeypatch.setattr(topic_owners, "_first_recorded", lambda changes: times)
    monkeypatch.setattr(merged_rows, "pin", lambda *_, **__: None)
    job: Any = SimpleNamespace(stopping=lambda: False, connector=CONNECTOR)
    stores: Any = SimpleNamespace(
        lake=SimpleNamespace(table=str), mirror=lambda name: SimpleNamespace(name=name), changes=None
    )
    source: Any = None
    broker = Broker(set(), set())
    if both:  # published before the declaration let them clash
        tables = {table: PublishedSnapshot(table, "0", 0) for table in times}
        broker.position = PublishPosition("shop", 1, state=MergedPosition(tables).to_json())
    for count in (1, 2):
        origin = Rows(job, stores, source, SkippedRecords(strict=False))
        origin.mirrors = {"acme!1.t": count, "acme_1.t": count}
        publisher = BatchPublisher(
            sender=broker, build=origin.build, form="form", records_per_commit=5, position=broker.position
        )
        origin.publish(publisher)
        assert broker.committed == [f"acme_1.t{number}" for number in range(count)]
        assert origin.errors.keys() == {"acme!1.t"}
        assert "acme_1.t and acme!1.t would share" in origin.errors["acme!1.t"]
        times["acme_1.t"] = 3  # copied again: the position has who was published first


class Rows(MergedRows):
    """Rows that are numbers: a snapshot of a mirror has as many as its name says."""

    mirrors: dict[str, int]

    def __post_init__(self) -> None:
        self.form = "form"

    def build(self, request: EventRequest) -> Iterator[EventBatch]:
        known = MergedPosition.from_json(request.state)
        assert known.step is not None
        table = known.step.table
        before = int(known.tables[table].snapshot) if table in known.tables else 0
        for number in range(before, int(known.step.until.snapshot)):
            row = {"row": 0, "topic": table, "bare": False, "key": "k", "value": f"{table}{number}"}
            records = pa.RecordBatch.from_pylist([row], schema=Converters().record_schema)
            yield EventBatch(request.after + 1, records, known.reached().to_json())

    def _newest(self, table: str) -> PublishedSnapshot | None:
        count = self.mirrors[table]
        return PublishedSnapshot(table, str(count), count) if count else None

    def _tables(self, known: MergedPosition) -> list[str]:
        return list(self.mirrors)

    def _row_events(self, table: str) -> Any:
        return SimpleNamespace(columns=())

    def _require_kept(self, *_: Any) -> None:
        pass


@given(st.data(), st.integers(1, 5))
def test_tables_that_fail_anywhere_resume_later_and_stop_no_other(data: st.DataObject, at_once: int) -> None:
    rows = st.tuples(st.sampled_from(TABLES), st.integers(0, 20)).map(lambda row: f"{row[0]}{row[1]}")
    broker = Broker(data.draw(st.sets(st.integers(1, 30))), data.draw(st.sets(rows, max_size=6)))
    mirrors = dict.fromkeys(TABLES, 0)
    stores = SimpleNamespace(
        lake=SimpleNamespace(table=str), mirror=lambda name: SimpleNamespace(name=name), changes=None
    )

    def run() -> dict[str, str]:
        job = SimpleNamespace(stopping=lambda: False, connector=CONNECTOR)
        origin = Rows(job, stores, None, SkippedRecords(strict=False))  # type: ignore[arg-type]
        origin.mirrors = mirrors
        publisher = BatchPublisher(
            sender=broker,
            build=origin.build,
            form=origin.form,
            records_per_commit=at_once,
            position=broker.position,
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(merged_rows, "pin", lambda *_, **__: None)
            origin.publish(publisher)
        return origin.errors

    for table in data.draw(st.lists(st.sampled_from(TABLES), max_size=12)):
        mirrors[table] += data.draw(st.integers(1, 5))
        outages = {number for number in broker.outages if number > broker.asked}
        try:
            errors = run()
        except TransientError:
            assert outages
            continue
        refused = {row[0] for row in broker.refused if int(row[1:]) < mirrors[row[0]]}
        assert errors.keys() == refused
        for healthy in mirrors.keys() - refused:
            sent = [int(row[1:]) for row in broker.committed if row[0] == healthy]
            assert sent == list(range(mirrors[healthy])), "whatever happens to the others"
    broker.outages, broker.refused = set(), set()
    assert not run()
    for table, count in mirrors.items():
        assert [int(row[1:]) for row in broker.committed if row[0] == table] == list(range(count))
