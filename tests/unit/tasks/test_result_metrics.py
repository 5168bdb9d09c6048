from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs import application
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spec import (
    JobResult,
    JobSpec,
    OriginResult,
    SegmentNumbers,
    SnapshotResult,
    TableResult,
)
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics
from airflow_cdc_provider.tasks import metrics
from airflow_cdc_provider.tasks.metrics import emit_failure, emit_metrics, emit_snapshot
from airflow_cdc_provider.tasks.summary import summary

CONNECTOR = Connector.from_dict(
    {"name": "shop", "source": {"type": "cassandra", "conn_id": "shop"}, "metric_tags": {"team": "orders"}}
)
TAGS = {"connector": "shop", "source": "cassandra", "team": "orders"}


@dataclass
class Recorder:
    """A fake of Airflow's Stats that records all metrics and checks their tags."""

    gauges: dict[tuple[str, str], float] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def gauge(self, name: str, value: float, tags: dict[str, str]) -> None:
        assert tags.items() >= TAGS.items()
        self.gauges[name, tags.get("table", tags.get("origin", ""))] = value

    def incr(self, name: str, count: int, tags: dict[str, str]) -> None:
        assert tags.items() >= TAGS.items()
        self.counts[name, tags.get("table", tags.get("origin", ""))] = count

    def timing(self, name: str, value: object, tags: dict[str, str]) -> None:
        assert tags.items() >= TAGS.items()


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(metrics, "Stats", recorder)
    return recorder


RUNNING = SnapshotResult(tables=5, remaining=2, rows=30, seconds=1.5)
COMPLETED = SnapshotResult(tables=2, rows=3, rows_by_table={"k.a": 3, "k.b": 0}, seconds=2.0)


@pytest.mark.covers("CAS-METRIC-01", "CAS-METRIC-02", "CAS-METRIC-06")
@pytest.mark.parametrize(
    ("shot", "flags"),
    [
        (RUNNING, (1, 0, 0)),
        (SnapshotResult(tables=5, remaining=2, aborted=True), (0, 1, 0)),
        (COMPLETED, (0, 0, 1)),
    ],
)
def test_a_snapshot_is_running_aborted_or_completed(
    stats: Recorder, shot: SnapshotResult, flags: tuple[int, int, int]
) -> None:
    emit_snapshot(CONNECTOR, shot)
    names = ("running", "aborted", "completed")
    assert tuple(stats.gauges[f"cdc.snapshot.{name}", ""] for name in names) == flags
    assert stats.gauges["cdc.snapshot.tables", ""] == shot.tables
    assert stats.gauges["cdc.snapshot.tables_remaining", ""] == shot.remaining
    assert stats.gauges["cdc.snapshot.seconds", ""] == shot.seconds


@pytest.mark.covers("CAS-METRIC-09", "CAS-METRIC-10", "CAS-METRIC-11")
def test_tables_and_nodes_have_gauges_of_their_own(stats: Recorder) -> None:
    nodes = (
        OriginResult("node-1", "CommitLog-7-5.log", 123, 40, 2, 0.5, 0.1, 0.4),
        OriginResult("node-2", mutations=1),
    )
    result = JobResult(ok=True, origins=nodes, snapshot=COMPLETED, seconds={"merge": 1.5})
    emit_metrics(CONNECTOR, "sync", result)
    assert stats.gauges["cdc.snapshot.rows", "k.a"] == 3
    assert stats.gauges["cdc.snapshot.rows", "k.b"] == 0
    assert stats.gauges["cdc.origin.position", "node-1"] == 123
    assert stats.gauges["cdc.origin.latency_seconds", "node-1"] == 0.5
    assert ("cdc.origin.position", "node-2") not in stats.gauges
    assert stats.counts["cdc.origin.mutations", "node-1"] == 40
    assert stats.counts["cdc.origin.errors", "node-1"] == 2
    assert stats.counts["cdc.origin.mutations", "node-2"] == 1


@pytest.mark.covers("VIT-RSH-03")
def test_a_stream_reports_journals_of_reshards(stats: Recorder) -> None:
    stream = StreamMetrics(journals=2)
    emit_metrics(CONNECTOR, "sync", JobResult(ok=True, origins=(OriginResult("stream", stream=stream),)))

    assert stats.counts["cdc.stream.journals", "stream"] == 2


@pytest.mark.covers("MDB-MET-17", "MDB-MET-18", "MDB-MET-20", "MDB-MET-22", "MDB-XD-12")
def test_a_stream_reports_whether_it_is_connected_what_it_lost_and_where_it_is(
    stats: Recorder, tmp_path: Path
) -> None:
    stream = StreamMetrics(
        connected=True,
        disconnects=3,
        elections=2,
        replies=40,
        empty_replies=7,
        last_event_at=1000.5,
        last_empty_reply_at=900.0,
        position={"sec": "1700000000", "ord": "12", "resume_token": "82AB"},
        behind_seconds=1.25,
    )
    result = JobResult(ok=True, origins=(OriginResult("stream", stream=stream), OriginResult("other")))
    result.write(str(tmp_path / "result.json"))
    assert JobResult.read(str(tmp_path / "result.json")).origins == result.origins
    emit_metrics(CONNECTOR, "sync", result)
    gauges = {name: value for (name, origin), value in stats.gauges.items() if origin == "stream"}
    assert gauges == {
        "cdc.stream.connected": 1,
        "cdc.stream.last_event_at": 1000.5,
        "cdc.stream.last_empty_reply_at": 900.0,
        "cdc.stream.behind_seconds": 1.25,
        "cdc.stream.position_sec": 1_700_000_000,
        "cdc.stream.position_ord": 12,
    }
    counts = {name: value for (name, origin), value in stats.counts.items() if origin == "stream"}
    assert (counts["cdc.stream.disconnects"], counts["cdc.stream.elections"]) == (3, 2)
    assert (counts["cdc.stream.replies"], counts["cdc.stream.empty_replies"]) == (40, 7)
    assert not any(origin == "other" and "stream" in name for name, origin in stats.gauges)
    numbers = summary(CONNECTOR, "sync", result)["origins"]["stream"]["stream"]
    assert numbers["position"] == {"sec": "1700000000", "ord": "12", "resume_token": "82AB"}
    assert numbers["connected"]


@pytest.mark.covers("DSX-CON-04")
def test_copies_of_each_table_are_counted_and_so_is_their_part(stats: Recorder) -> None:
    tables = (
        TableResult("k.a", row_changes=12, replica_duplicates=9),
        TableResult("k.b", row_changes=5),
        TableResult("k.c"),
    )
    nodes = (OriginResult("node-1", latency_p99_seconds=8.0),)
    emit_metrics(CONNECTOR, "sync", JobResult(ok=True, tables=tables, origins=nodes))
    assert (stats.counts["cdc.row_changes", "k.a"], stats.counts["cdc.replica_duplicates", "k.a"]) == (12, 9)
    ratios = {
        table: value for (name, table), value in stats.gauges.items() if name == "cdc.replica_duplicate_ratio"
    }
    assert ratios == {"k.a": 0.75, "k.b": 0.0}
    assert stats.gauges["cdc.origin.latency_p99_seconds", "node-1"] == 8.0


@pytest.mark.covers("CAS-LIM-01")
def test_latency_is_in_gauges_and_in_xcom(stats: Recorder) -> None:
    nodes = (
        OriginResult(
            "node-1", mutations=40, latency_seconds=9.0, latency_p50_seconds=1.0, latency_p99_seconds=8.0
        ),
        OriginResult("node-2", mutations=40),
    )
    result = JobResult(ok=True, origins=nodes, changes=80)
    emit_metrics(CONNECTOR, "sync", result)
    seconds = [stats.gauges[f"cdc.origin.latency{name}_seconds", "node-1"] for name in ("_p50", "_p99", "")]
    assert seconds == [1.0, 8.0, 9.0]
    assert ("cdc.origin.latency_p50_seconds", "node-2") not in stats.gauges
    xcom = summary(CONNECTOR, "sync", result)
    assert xcom["origins"]["node-1"]["latency_p99_seconds"] == 8.0


@pytest.mark.covers("CAS-METRIC-01", "CAS-METRIC-03", "CAS-METRIC-05", "CAS-METRIC-08")
def test_xcom_has_the_snapshot_and_each_node() -> None:
    node = OriginResult("node-1", "CommitLog-7-5.log", 123, 40)
    xcom = summary(CONNECTOR, "sync", JobResult(ok=True, origins=(node,), snapshot=RUNNING))
    assert xcom["origins"]["node-1"]["file"] == "CommitLog-7-5.log"
    assert xcom["origins"]["node-1"]["position"] == 123
    assert xcom["snapshot"]["tables"] == 5
    assert (xcom["snapshot"]["running"], xcom["snapshot"]["completed"]) == (True, False)
    assert summary(CONNECTOR, "merge", JobResult(ok=True))["snapshot"] is None


@pytest.mark.covers("DSX-AGT-05")
def test_each_node_reports_its_segments_and_of_what_was_skipped(stats: Recorder) -> None:
    segments = SegmentNumbers(7, 4, 6, 1, 8, 5, 9)
    node = OriginResult("node-1", mutations=40, skipped={"view": 3}, segments=segments)
    emit_metrics(CONNECTOR, "sync", JobResult(ok=True, origins=(node,)))
    assert stats.counts["cdc.origin.mutations", "node-1"] == 40
    assert stats.counts["cdc.origin.skipped", "node-1"] == 3
    assert stats.counts["cdc.origin.segments_read", "node-1"] == 6
    names = ("seen", "at_once", "pending", "pending_max", "kept", "kept_max")
    found = [stats.gauges[f"cdc.origin.segments_{name}", "node-1"] for name in names]
    assert found == [7, 4, 1, 8, 5, 9]
    xcom = summary(CONNECTOR, "sync", JobResult(ok=True, origins=(node,)))
    assert xcom["origins"]["node-1"]["segments"]["pending"] == 1


@pytest.mark.covers("CAS-METRIC-04", "DSX-AGT-05")
def test_a_failed_job_reports_that_its_snapshot_was_aborted_and_what_was_not_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stats: Recorder
) -> None:
    @contextmanager
    def opened(spec: JobSpec, stopping: Any, report: RunReport) -> Iterator[RunReport]:
        yield report

    def fails(report: Any) -> JobResult:
        report.snapshot, report.uncommitted = RUNNING, ("node-1",)
        raise TransientError("the node is away")

    monkeypatch.setattr(application, "open_run", opened)
    monkeypatch.setitem(application.STAGES, "sync", fails)
    path = str(tmp_path / "result.json")
    application.run(JobSpec("sync", CONNECTOR.to_dict(), path))
    result = JobResult.read(path)
    assert not result.ok
    assert result.snapshot is not None
    assert (result.snapshot.aborted, result.snapshot.remaining, result.snapshot.rows) == (True, 2, 30)
    emit_failure(CONNECTOR, result)
    assert stats.gauges["cdc.snapshot.aborted", ""] == 1
    assert stats.counts["cdc.origin.failed_batches", "node-1"] == 1
