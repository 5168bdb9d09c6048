"""The snapshot stage: which ranges a commit takes, and how tasks read them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.resuming.progress import SnapshotProgress
from airflow_cdc_provider.jobs.snapshots.snapshot import _Ranges
from airflow_cdc_provider.jobs.spark.read import _read
from airflow_cdc_provider.sources.base import SnapshotPlan, Source
from airflow_cdc_provider.sources.paced import Paced
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

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


@dataclass
class FakeSource:
    """Plans so many ranges per table and keeps the order in which it was asked."""

    ranges: dict[str, int]
    planned: list[str] = field(default_factory=list)
    planned_ranges: PlannedRanges = field(default_factory=lambda: PlannedRanges({"part": Part}))

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        self.planned.append(table)
        names = [Part(f"{table}-{number}") for number in range(self.ranges[table])]
        return SnapshotPlan(table=table, ranges=names, position=b"\1", origin="stream", estimated_rows=None)


def left_to_read(
    source: FakeSource, tables: Sequence[str], known: dict[str, SnapshotProgress] | None = None
) -> _Ranges:
    connector = Connector.from_dict(CONNECTOR)
    return _Ranges(
        connector, cast(Source, source), tables, known or {}, again=False, replacing=True, filters={}
    )


def test_a_commit_is_filled_with_the_ranges_of_several_tables() -> None:
    left = left_to_read(FakeSource({"a": 3, "b": 0, "c": 6}), ["a", "b", "c"])

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
    source = FakeSource({"a": 4, "b": 4})
    left = left_to_read(source, ["a", "b"])
    left.take(4)
    assert source.planned == ["a"]
    left.take(4)
    assert source.planned == ["a", "b"]


def test_what_a_commit_stores_resumes_behind_it() -> None:
    left = left_to_read(FakeSource({"a": 5}), ["a"])
    stored = left.take(2)[0].after

    again = left_to_read(FakeSource({}), ["a"], {"a": stored})

    assert names_of(again.take(9)[0].ranges) == ["a-2", "a-3", "a-4"]


def test_a_finished_snapshot_that_is_requested_again_starts_over() -> None:
    finished = SnapshotProgress(done=True, committed=1)
    left = left_to_read(FakeSource({"a": 1}), ["a"], {"a": finished})
    assert names_of(left.take(9)[0].ranges) == ["a-0"]


def batch(name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"source_table": name}], schema=CHANGE_SCHEMA)


class Connects:
    """A reader that counts its connections."""

    def __init__(self) -> None:
        self.connections = 0

    def __call__(self, part: Any) -> Iterator[pa.RecordBatch]:
        return self.read_sequentially([part])

    def read_sequentially(self, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        self.connections += 1
        for part in parts:
            yield batch(part)


def test_a_task_connects_once_for_all_its_partitions() -> None:
    reader = Connects()
    read = [b["source_table"][0].as_py() for b in _read(reader, map(pickle.dumps, ["x", "y", "z"]))]
    assert read == ["x", "y", "z"]
    assert reader.connections == 1


def test_a_reader_without_connection_takes_partitions_one_by_one() -> None:
    read = _read(lambda part: iter([batch(part)]), map(pickle.dumps, ["x", "y"]))
    assert [b["source_table"][0].as_py() for b in read] == ["x", "y"]


def test_a_paced_reader_takes_its_time_and_loses_nothing() -> None:
    def reader(part: Any) -> Iterator[pa.RecordBatch]:
        for number in range(3):
            rows = [{"source_table": part, "key": bytes([number])}] * 50
            yield pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)

    started = time.monotonic()
    found = list(Paced(reader, 1000.0).read_sequentially(["a", "b"]))
    assert 0.28 < time.monotonic() - started < 3
    assert [batch.num_rows for batch in found] == [50] * 6
    assert found[-1].column("source_table")[0].as_py() == "b"
