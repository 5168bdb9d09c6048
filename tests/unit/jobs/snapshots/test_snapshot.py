"""The snapshot stage: which ranges a commit takes, and how tasks read them."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.snapshots.snapshot import _Commits, _Ranges
from airflow_cdc_provider.jobs.spark.read import _Read
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics, SnapshotPlan
from airflow_cdc_provider.sources.paced import Paced, share_pace
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from tests.chance import examples
from tests.unit.jobs.runs import FakeReader, FakeSource

CONNECTOR = {
    "name": "shop",
    "source": {"type": "mongodb", "conn_id": "shop"},
    "tables": [r"shop\..*"],
    "lake": {"catalog_options": {"type": "hadoop", "warehouse": "file:///tmp/lake"}},
}


class Part(NamedTuple):
    """A range of a table."""

    name: str


def names_of(parts: Sequence[Any]) -> list[str]:
    return [part.name for part in parts]


class PlannedSource(FakeSource):
    """Plans so many ranges per table and keeps the order in which it was asked."""

    planned_ranges = PlannedRanges({"part": Part})

    def __init__(self, ranges: dict[str, int]) -> None:
        super().__init__(*ranges)
        self.ranges = ranges
        self.planned: list[str] = []
        self.broken: dict[str, Exception] = {}

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        self.planned.append(table)
        if table in self.broken:
            raise self.broken[table]
        names = [Part(f"{table}-{number}") for number in range(self.ranges[table])]
        return SnapshotPlan(table=table, ranges=names, position=b"\1", origin="stream", estimated_rows=None)


def left_to_read(
    source: PlannedSource, tables: Sequence[str], known: dict[str, SnapshotProgress] | None = None
) -> _Ranges:
    job = Job(JobSpec("snapshot", CONNECTOR, ""), Connector.from_dict(CONNECTOR))
    return _Ranges(job, source, tables, known or {}, again=False, replacing=True, filters={})


def test_a_commit_is_filled_with_the_ranges_of_several_tables() -> None:
    left = left_to_read(PlannedSource({"a": 3, "b": 0, "c": 6}), ["a", "b", "c"])

    parts = left.take(5)

    assert [(p.table, names_of(p.ranges), p.after.done) for p in parts] == [
        ("a", ["a-0", "a-1", "a-2"], True),
        ("b", [], True),
        ("c", ["c-0"], False),
    ]
    assert [(names_of(p.ranges), p.after.done) for p in left.take(5)] == [
        (["c-1", "c-2", "c-3", "c-4", "c-5"], True)
    ]
    assert left.take(5) == []


def test_a_table_is_planned_when_its_turn_comes() -> None:
    source = PlannedSource({"a": 4, "b": 4})
    left = left_to_read(source, ["a", "b"])
    left.take(4)
    assert source.planned == ["a"]
    left.take(4)
    assert source.planned == ["a", "b"]


def test_what_a_commit_stores_resumes_behind_it() -> None:
    left = left_to_read(PlannedSource({"a": 5}), ["a"])
    stored = left.take(2)[0].after

    again = left_to_read(PlannedSource({}), ["a"], {"a": stored})

    assert names_of(again.take(9)[0].ranges) == ["a-2", "a-3", "a-4"]


def test_a_finished_snapshot_that_is_requested_again_starts_over() -> None:
    finished = SnapshotProgress(done=True, committed=1)
    left = left_to_read(PlannedSource({"a": 1}), ["a"], {"a": finished})
    assert names_of(left.take(9)[0].ranges) == ["a-0"]


@pytest.mark.parametrize("error", [ConfigurationError("no such column"), ValueError("no such column")])
def test_a_table_that_cannot_be_planned_is_left_out_and_reported(error: Exception) -> None:
    source = PlannedSource({f"t{number}": 2 for number in range(10)})
    source.broken = {"t4": error}
    left = left_to_read(source, sorted(source.ranges))
    assert {part.table for part in left.take(99)} == set(source.ranges) - {"t4"}
    assert left.take(99) == []
    assert set(left.errors) == {"t4"}
    assert "no such column" in left.errors["t4"]


@pytest.mark.parametrize(
    "error", [CommitConflict("another run"), ConnectionRefusedError("Connection refused")]
)
def test_a_failure_of_all_tables_ends_a_snapshot(error: Exception) -> None:
    source = PlannedSource({"a": 1, "b": 1})
    source.broken = {"a": error}
    with pytest.raises(type(error)):
        left_to_read(source, ["a", "b"]).take(9)


class CommitsOfParts(_Commits):
    """Commits that fail if they have a table that can't be read, and keep what they committed."""

    def __init__(self, unreadable: set[str]) -> None:
        self._scanned: Any = SimpleNamespace(tally=SimpleNamespace(discard=lambda: None))
        self.unreadable = unreadable
        self.committed: list[str] = []

    def _commit(self, parts: Sequence[Any], progress: Any, state: Any) -> tuple[Any, Any, int]:
        if broken := self.unreadable & {part.table for part in parts}:
            raise RuntimeError(f"{min(broken)} can't be read")
        found = [name for part in parts for name in names_of(part.ranges)]
        self.committed += found
        return progress, state, len(found)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["", "", "", "plan", "read"])), max_size=10),
    st.integers(1, 9),
)
@settings(max_examples=examples(60))
def test_all_ranges_of_all_tables_but_the_broken_ones_are_committed_once(
    tables: list[tuple[int, str]], count: int
) -> None:
    source = PlannedSource({f"t{number}": ranges for number, (ranges, _) in enumerate(tables)})
    faults = {f"t{number}": fault for number, (_, fault) in enumerate(tables) if fault}
    source.broken = {table: ValueError(table) for table, fault in faults.items() if fault == "plan"}
    left = left_to_read(source, list(source.ranges))
    commits = CommitsOfParts({table for table, fault in faults.items() if fault == "read"})
    rows = 0
    while parts := left.take(count):
        done, *_, more = commits.commit(parts, left, Progress(), ChangesState(Head(None), 0, None))
        assert {part.table for part in done} == {part.table for part in parts} - set(left.errors)
        rows += more
    expected = {f"{t}-{n}" for t, ranges in source.ranges.items() if t not in faults for n in range(ranges)}
    assert sorted(commits.committed) == sorted(expected)
    assert rows == len(expected)
    assert set(left.errors) == set(faults)


def batch(name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"source_table": name}], schema=CHANGE_SCHEMA)


class Connects(Reader):
    """A reader that counts its connections."""

    def __init__(self) -> None:
        self.connections = 0

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        self.connections += 1
        metrics.counts["read"] += 1
        for part in parts:
            yield batch(part)


def test_a_task_connects_once_for_all_its_partitions_and_reports_its_metrics() -> None:
    added: list[ReadMetrics] = []
    pickled = [pickle.dumps(part) for part in ("x", "y", "z")]
    for rows, in_task in (([0, 1, 2], pickled), (pickled, None)):
        reader = Connects()
        metrics: Any = SimpleNamespace(add=added.append)
        found = _Read(reader, metrics, in_task)([pa.record_batch({"row": rows})])
        assert [b["source_table"][0].as_py() for b in found] == ["x", "y", "z"]
        assert reader.connections == 1
    assert added == [ReadMetrics(Counter({"read": 1}))] * 2


def test_a_paced_reader_takes_its_time_and_loses_nothing() -> None:
    def page(part: str, number: int) -> pa.RecordBatch:
        rows = [{"source_table": part, "key": bytes([number])}] * 50
        return pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)

    parts = [[page(part, number) for number in range(3)] for part in "ab"]
    started = time.monotonic()
    found = list(Paced(FakeReader(), 1000.0).read(parts, ReadMetrics()))
    assert 0.28 < time.monotonic() - started < 3
    assert [batch.num_rows for batch in found] == [50] * 6
    assert found[-1].column("source_table")[0].as_py() == "b"


def test_tasks_that_run_at_once_share_a_rate_also_if_there_is_nothing_to_read() -> None:
    reader = FakeReader()
    assert share_pace(reader, 1000, 4) == Paced(reader, 250.0)
    assert share_pace(reader, 1000, 0) == Paced(reader, 1000.0)
    assert share_pace(reader, 0, 4) is reader
