"""Metrics by Debezium's names: what becomes gauges, under which tags, and what XCom keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.jobs.metrics.incremental import after
from airflow_cdc_provider.jobs.spec import IncrementalResult, JobResult, OriginResult, SnapshotResult
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent, SnapshotEventKind
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics
from airflow_cdc_provider.tasks import debezium_gauges
from airflow_cdc_provider.tasks.debezium_gauges import emit_debezium_gauges
from airflow_cdc_provider.tasks.summary import summary

PROPERTIES = {
    "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
    "name": "orders",
    "topic.prefix": "shop",
    "custom.metric.tags": "database=salesdb-streaming,team=inventory",
}
STREAM = StreamMetrics(
    connected=True,
    events=100,
    creates=40,
    updates=30,
    deletes=20,
    filtered=10,
    broken=1,
    transactions=4,
    last_event="operation: insert",
    last_event_at=990.0,
    last_transaction="ab:1",
    behind_seconds=0.25,
    disconnects=3,
    elections=2,
    position={"sec": "1700000000", "ord": "12"},
    queue_events_limit=8192,
    queue_bytes_limit=1 << 20,
    queue_events=192,
    queue_bytes=5000,
)
RESULT = JobResult(
    ok=True,
    origins=(
        OriginResult(
            "stream",
            stream=STREAM,
            latency_seconds=9.0,
            latency_p50_seconds=1.0,
            latency_p95_seconds=7.0,
            latency_p99_seconds=8.0,
            latency_min_seconds=0.5,
            latency_average_seconds=2.0,
        ),
    ),
    selected=("shop.a", "shop.b"),
    snapshot=SnapshotResult(tables=2, rows=3, rows_by_table={"shop.a": 3, "shop.b": 0}, seconds=2.6),
)


def happening(
    kind: SnapshotEventKind,
    at_us: int,
    tables: tuple[str, ...] = ("shop.a", "shop.b"),
    table: str = "",
    **more: Any,
) -> SnapshotEvent:
    values: dict[str, Any] = {"snapshot": "incremental", "request_id": "ad-hoc-1", **more}
    return SnapshotEvent(kind, tables=tables, table=table, at_us=at_us, **values)


@dataclass
class Recorder:
    """Stands for Airflow's Stats and keeps gauges with their tags."""

    gauges: dict[tuple[str, str], float] = field(default_factory=dict)
    tags: list[dict[str, str]] = field(default_factory=list)

    def gauge(self, name: str, value: float, tags: dict[str, str]) -> None:
        self.gauges[name, tags.get("table", "")] = value
        self.tags.append({name: text for name, text in tags.items() if name != "table"})


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(debezium_gauges, "Stats", recorder)
    return recorder


VITESS = {
    **PROPERTIES,
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "vitess.keyspace": "shop",
}


@pytest.mark.covers("MDB-MET-23", "VIT-MET-01", "VIT-MET-12")
@pytest.mark.parametrize(("properties", "source"), [(PROPERTIES, "mongodb"), (VITESS, "vitess")])
def test_gauges_bear_debeziums_identity_and_the_connectors_own_tags(
    stats: Recorder, properties: dict[str, str], source: str
) -> None:
    connector = from_debezium(properties).connector
    emit_debezium_gauges(connector, metrics_of(RESULT, now=1000.0))
    own = {
        "connector": "orders",
        "source": source,
        "server": "shop",
        "task": "0",
        "database": "salesdb-streaming",
        "team": "inventory",
    }
    assert {tuple(sorted(tags.items())) for tags in stats.tags} == {
        tuple(sorted({**own, "context": context}.items())) for context in ("streaming", "snapshot")
    }
    stats.tags.clear()
    moved = from_debezium({**properties, "topic.prefix": "renamed", "name": "other"}).connector
    emit_debezium_gauges(moved, metrics_of(RESULT, now=1000.0))
    assert {(tags["team"], tags["database"], tags["server"]) for tags in stats.tags} == {
        ("inventory", "salesdb-streaming", "renamed")
    }
    with pytest.raises(ConfigurationError, match="names other than the reserved tags"):
        from_debezium({**properties, "custom.metric.tags": "server=mine"})
    stats.tags.clear()
    tasked = Connector.from_dict({**connector.to_dict(), "publish": {"topic_prefix": "shop", "task_id": "3"}})
    emit_debezium_gauges(tasked, metrics_of(RESULT, now=1000.0))
    assert {(tags["server"], tags["task"]) for tags in stats.tags} == {("shop", "3")}


@pytest.mark.covers("MDB-MET-16", "MDB-MET-17", "MDB-MET-18")
def test_numbers_and_states_become_gauges(stats: Recorder) -> None:
    emit_debezium_gauges(from_debezium(PROPERTIES).connector, metrics_of(RESULT, now=1000.0))
    streaming = {
        name.removeprefix("cdc.debezium.streaming."): value
        for (name, _), value in stats.gauges.items()
        if ".streaming." in name
    }
    assert streaming == {
        "MilliSecondsSinceLastEvent": 10_000,
        "NumberOfErroneousEvents": 1,
        "TotalNumberOfEventsSeen": 100,
        "TotalNumberOfCreateEventsSeen": 40,
        "TotalNumberOfUpdateEventsSeen": 30,
        "TotalNumberOfDeleteEventsSeen": 20,
        "NumberOfEventsFiltered": 10,
        "QueueTotalCapacity": 8192,
        "QueueRemainingCapacity": 8000,
        "MaxQueueSizeInBytes": 1 << 20,
        "CurrentQueueSizeInBytes": 5000,
        "Connected": 1,
        "MilliSecondsBehindSource": 250,
        "MilliSecondsBehindSourceMinValue": 500,
        "MilliSecondsBehindSourceMaxValue": 9000,
        "MilliSecondsBehindSourceAverageValue": 2000,
        "MilliSecondsBehindSourceP50": 1000,
        "MilliSecondsBehindSourceP95": 7000,
        "MilliSecondsBehindSourceP99": 8000,
        "NumberOfCommittedTransactions": 4,
        "NumberOfDisconnects": 3,
        "NumberOfPrimaryElections": 2,
    }
    assert stats.gauges["cdc.debezium.snapshot.RowsScanned", "shop.a"] == 3
    assert stats.gauges["cdc.debezium.snapshot.SnapshotCompleted", ""] == 1
    assert stats.gauges["cdc.debezium.snapshot.SnapshotDurationInSeconds", ""] == 2


def test_texts_and_lists_are_in_xcom() -> None:
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
    metrics = summary(connector, "sync", RESULT)["metrics"]
    assert metrics["streaming"]["LastEvent"] == "operation: insert"
    assert metrics["streaming"]["LastTransactionId"] == "ab:1"
    assert metrics["streaming"]["SourceEventPosition"] == {"sec": "1700000000", "ord": "12"}
    assert metrics["streaming"]["CapturedTables"] == ["shop.a", "shop.b"]
    many = replace(RESULT, selected=tuple(f"shop.t{n}" for n in range(1000)))
    assert len(summary(connector, "sync", many)["metrics"]["streaming"]["CapturedTables"]) == 400


def test_before_the_first_event_times_are_minus_one() -> None:
    fresh = replace(RESULT, origins=(OriginResult("stream", stream=StreamMetrics()),), snapshot=None)
    found = metrics_of(fresh)
    assert set(found) == {"streaming"}
    assert found["streaming"]["MilliSecondsSinceLastEvent"] == -1
    assert found["streaming"]["MilliSecondsBehindSource"] == -1
    assert not any(name.endswith("P99") for name in found["streaming"])
    assert metrics_of(JobResult(ok=True, origins=(OriginResult("node-1"),))) == {}


@pytest.mark.covers("MDB-XD-11", "MDB-MET-09", "MDB-MET-10")
def test_an_incremental_snapshot_reports_chunk_and_table_while_it_runs_and_how_long_it_was_paused() -> None:
    known: IncrementalResult | None = None
    seconds = 1_000_000
    chunk: dict[str, Any] = {"table": "shop.a", "maximum_key": "99", "rows": 50}

    def metrics_after(event: SnapshotEvent, now: float) -> dict[str, object]:
        nonlocal known
        known = after(known, event)
        return dict(metrics_of(replace(RESULT, incremental=known), now=now)["snapshot"])

    started = metrics_after(happening("started", 0 + seconds), 2)
    assert (started["SnapshotRunning"], started["TotalTableCount"], started["RemainingTableCount"]) == (
        True,
        2,
        2,
    )
    metrics_after(happening("in_progress", 2 * seconds, chunk=1, chunk_from="1", chunk_to="50", **chunk), 3)
    running = metrics_after(
        happening("in_progress", 3 * seconds, chunk=2, chunk_from="51", chunk_to="99", **chunk), 3
    )
    assert {name: running[name] for name in ("ChunkId", "ChunkFrom", "ChunkTo", "TableFrom", "TableTo")} == {
        "ChunkId": "ad-hoc-1-2",
        "ChunkFrom": "51",
        "ChunkTo": "99",
        "TableFrom": "1",
        "TableTo": "99",
    }
    assert running["RowsScanned"] == {"shop.a": 100}
    paused = metrics_after(happening("paused", 4 * seconds), 7)
    assert (paused["SnapshotRunning"], paused["SnapshotPaused"]) == (False, True)
    assert paused["SnapshotPausedDurationInSeconds"] == 3
    assert metrics_after(happening("paused", 6 * seconds), 7)["SnapshotPausedDurationInSeconds"] == 3
    resumed = metrics_after(happening("resumed", 9 * seconds), 20)
    assert (resumed["SnapshotRunning"], resumed["SnapshotPausedDurationInSeconds"]) == (True, 5)
    waits = happening("tables_stopped", 9 * seconds, ("shop.c",), request_id="another")
    assert metrics_after(waits, 20)["RemainingTableCount"] == 2, "of the one that runs"
    metrics_after(
        happening("table_scanned", 10 * seconds, ("shop.b",), "shop.a", rows=101, status="SUCCEEDED"), 20
    )
    ended = metrics_after(happening("completed", 12 * seconds, ()), 100)
    assert (ended["SnapshotCompleted"], ended["SnapshotRunning"], ended["RemainingTableCount"]) == (
        True,
        False,
        0,
    )
    assert (ended["SnapshotDurationInSeconds"], ended["SnapshotPausedDurationInSeconds"]) == (11, 5)
    assert ended["RowsScanned"] == {"shop.a": 101}
    assert not any(name.startswith("Chunk") for name in ended), "only while it runs"
    again = metrics_after(happening("started", 20 * seconds, request_id="ad-hoc-2"), 21)
    assert (again["SnapshotRunning"], again["RowsScanned"]) == (True, {})
    assert metrics_after(happening("aborted", 22 * seconds, request_id="ad-hoc-2"), 23)["SnapshotAborted"]
    assert after(known, happening("started", 1, snapshot="blocking")) == known


@pytest.mark.covers("VIT-MET-13")
def test_rows_of_a_snapshot_are_reported_by_shard_and_table(stats: Recorder, tmp_path: Path) -> None:
    rows = {"shop/-80": {"shop.a": 2, "shop.b": 1}, "shop/80-": {"shop.a": 1}}
    shot = SnapshotResult(tables=2, rows=4, rows_by_table={"shop.a": 3, "shop.b": 1}, rows_by_origin=rows)
    JobResult(ok=True, snapshot=shot).write(str(tmp_path / "result.json"))

    found = metrics_of(JobResult.read(str(tmp_path / "result.json")), now=1000.0)

    assert found["snapshot"]["RowsScannedByOrigin"] == rows
    assert (found["snapshot"]["TotalTableCount"], found["snapshot"]["RemainingTableCount"]) == (2, 0)
    emit_debezium_gauges(from_debezium(VITESS).connector, found)
    assert {tags["origin"] for tags in stats.tags if "origin" in tags} == set(rows)
    both = shot.joined(SnapshotResult(tables=1, rows=5, rows_by_origin={"shop/-80": {"shop.c": 5}}))
    assert both.rows_by_origin["shop/-80"] == {"shop.a": 2, "shop.b": 1, "shop.c": 5}
    assert both.rows_by_origin["shop/80-"] == {"shop.a": 1}
