"""A connector's metrics under Debezium's names; docs/operations.md lists the differences.

Counters start with the job: a run, or a continuous application. The Airflow side imports this module, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_cdc_provider.jobs.spec import IncrementalResult, JobResult, OriginResult, SnapshotResult

STREAMING: Final = "streaming"
SNAPSHOT: Final = "snapshot"

Metrics = Mapping[str, Any]
"""Values by Debezium's names: numbers, truth values, texts, lists of texts, or mappings of names to those."""

_NONE: Final = -1
_STATISTICS: Final = {
    "MinValue": "latency_min_seconds",
    "MaxValue": "latency_seconds",
    "AverageValue": "latency_average_seconds",
    "P50": "latency_p50_seconds",
    "P95": "latency_p95_seconds",
    "P99": "latency_p99_seconds",
}


def metrics_of(
    result: JobResult, shot: SnapshotResult | None = None, now: float | None = None
) -> dict[str, Metrics]:
    """Return the metrics of a job by context, ``streaming`` and ``snapshot``.

    Args:
        result: Result of the job, or of a round of a continuous application.
        shot: The snapshot of the whole application; None for that of the result.
        now: Epoch seconds; None for the current time.

    Returns:
        Only contexts with values: ``streaming`` if the source reads a stream, ``snapshot`` during and after a
        snapshot of this job; if none was due, only that fact.
    """
    now = time.time() if now is None else now
    found: dict[str, Metrics] = {}
    for origin in result.origins:
        if origin.stream is not None:
            undecodable = sum(table.undecodable for table in result.tables)
            found[STREAMING] = _streaming(origin, result.selected, undecodable, now)
    shot = shot or result.snapshot
    if result.incremental is not None:
        found[SNAPSHOT] = _incremental(result.incremental, result.selected, now)
    elif shot is not None:
        found[SNAPSHOT] = _snapshot(shot, result.selected, now)
    elif result.snapshot_skipped:
        found[SNAPSHOT] = {"SnapshotSkipped": True}
    return found


def _streaming(origin: OriginResult, selected: Sequence[str], undecodable: int, now: float) -> Metrics:
    stream = origin.stream
    assert stream is not None
    statistics = {
        f"MilliSecondsBehindSource{name}": _milliseconds(getattr(origin, latency))
        for name, latency in _STATISTICS.items()
        if getattr(origin, latency) is not None
    }
    return {
        "LastEvent": stream.last_event,
        "MilliSecondsSinceLastEvent": _since(stream.last_event_at, now),
        "NumberOfErroneousEvents": stream.broken + undecodable,
        "TotalNumberOfEventsSeen": stream.events,
        "TotalNumberOfCreateEventsSeen": stream.creates,
        "TotalNumberOfUpdateEventsSeen": stream.updates,
        "TotalNumberOfDeleteEventsSeen": stream.deletes,
        "NumberOfEventsFiltered": stream.filtered,
        "CapturedTables": list(selected),
        "QueueTotalCapacity": stream.queue_events_limit,
        "QueueRemainingCapacity": max(stream.queue_events_limit - stream.queue_events, 0),
        "MaxQueueSizeInBytes": stream.queue_bytes_limit,
        "CurrentQueueSizeInBytes": stream.queue_bytes,
        "Connected": stream.connected,
        "MilliSecondsBehindSource": _milliseconds(stream.behind_seconds),
        **statistics,
        "NumberOfCommittedTransactions": stream.transactions,
        "SourceEventPosition": dict(stream.position),
        "LastTransactionId": stream.last_transaction,
        "NumberOfDisconnects": stream.disconnects,
        "NumberOfPrimaryElections": stream.elections,
    }


def _snapshot(shot: SnapshotResult, selected: Sequence[str], now: float) -> Metrics:
    return {
        "LastEvent": shot.last_event,
        "MilliSecondsSinceLastEvent": _since(shot.last_event_at, now),
        "NumberOfErroneousEvents": shot.erroneous,
        "TotalNumberOfEventsSeen": shot.rows,
        "NumberOfEventsFiltered": 0,  # the source doesn't send filtered rows
        "CapturedTables": list(selected) or sorted(shot.rows_by_table),
        "TotalTableCount": shot.tables,
        "RemainingTableCount": shot.remaining,
        "SnapshotRunning": shot.running and not shot.paused,
        "SnapshotPaused": shot.paused,
        "SnapshotAborted": shot.aborted,
        "SnapshotCompleted": shot.completed,
        "SnapshotSkipped": False,
        "SnapshotDurationInSeconds": int(shot.seconds),
        "SnapshotPausedDurationInSeconds": int(shot.paused_seconds),
        "RowsScanned": dict(shot.rows_by_table),
        **({"RowsScannedByOrigin": dict(shot.rows_by_origin)} if shot.rows_by_origin else {}),
        "NumberOfDisconnects": shot.disconnects,
    }


def _incremental(snapshot_result: IncrementalResult, selected: Sequence[str], now: float) -> Metrics:
    now_us = int(now * 1_000_000)
    chunk = {
        "ChunkId": snapshot_result.chunk_id,
        "ChunkFrom": snapshot_result.chunk_from,
        "ChunkTo": snapshot_result.chunk_to,
        "TableFrom": snapshot_result.table_from,
        "TableTo": snapshot_result.table_to,
    }
    return {
        "TotalNumberOfEventsSeen": sum(snapshot_result.rows_by_table.values()),
        "CapturedTables": list(selected),
        "TotalTableCount": snapshot_result.tables,
        "RemainingTableCount": snapshot_result.remaining,
        "SnapshotRunning": snapshot_result.state == "running",
        "SnapshotPaused": snapshot_result.state == "paused",
        "SnapshotAborted": snapshot_result.state == "aborted",
        "SnapshotCompleted": snapshot_result.state == "completed",
        "SnapshotSkipped": snapshot_result.state == "skipped",
        "SnapshotDurationInSeconds": int(snapshot_result.seconds(now_us)),
        "SnapshotPausedDurationInSeconds": int(snapshot_result.paused_seconds(now_us)),
        "RowsScanned": dict(snapshot_result.rows_by_table),
        **(chunk if snapshot_result.state in ("running", "paused") else {}),
    }


def _since(moment: float | None, now: float) -> int:
    return _NONE if moment is None else max(round((now - moment) * 1000), 0)


def _milliseconds(seconds: float | None) -> int:
    return _NONE if seconds is None else round(seconds * 1000)
