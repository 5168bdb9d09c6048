"""Emits a job's result as metrics ``cdc.*``; ``docs/operations.md`` describes each."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.tasks.debezium_gauges import emit_debezium_gauges
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.spec import (
        JobResult,
        OriginResult,
        PublishResult,
        SegmentNumbers,
        SnapshotResult,
    )
    from airflow_cdc_provider.notifications.notification import Notification
    from airflow_cdc_provider.sources.stream_metrics import StreamMetrics


_TABLE_COUNTS: Final = (
    "rows_written",
    "rows_removed",
    "row_changes",
    "replica_duplicates",
    "snapshot_rows",
    "undecodable",
    "unresolved_keys",
)


def emit_metrics(connector: Connector, stage: str, result: JobResult) -> None:
    """Emit the metrics ``cdc.*`` of a result, tagged with the connector and, where it applies, the table."""
    tags = connector.tags
    if result.lag_seconds is not None:
        Stats.gauge("cdc.lag_seconds", result.lag_seconds, tags=tags)
    if result.lag_bytes is not None:
        Stats.gauge("cdc.lag_bytes", result.lag_bytes, tags=tags)
    if result.offset:
        for name, value, own_tags in source_plugin(connector.type).offset_gauges(result.offset):
            Stats.gauge(f"cdc.{name}", value, tags={**tags, **own_tags})
    Stats.incr("cdc.changes", result.changes, tags=tags)
    Stats.incr("cdc.batches", result.batches, tags=tags)
    for part, seconds in result.seconds.items():
        Stats.timing("cdc.duration", timedelta(seconds=seconds), tags={**tags, "stage": stage, "part": part})
    if result.published is not None:
        _emit_published(result.published, tags)
    if result.snapshot is not None:
        emit_snapshot(connector, result.snapshot)
    for origin in result.origins:
        _emit_origin(origin, {**tags, "origin": origin.origin})
    emit_debezium_gauges(connector, metrics_of(result))
    for table in result.tables:
        own = {**tags, "table": table.table}
        for name in _TABLE_COUNTS:
            if count := getattr(table, name):
                Stats.incr(f"cdc.{name}", count, tags=own)
        if table.row_changes:
            Stats.gauge("cdc.replica_duplicate_ratio", table.replica_duplicates / table.row_changes, tags=own)
        if table.differences is not None:
            Stats.gauge("cdc.differences", table.differences, tags=own)


def _emit_published(published: PublishResult, tags: Mapping[str, str]) -> None:
    Stats.incr("cdc.publish.records", published.records, tags=dict(tags))
    Stats.incr("cdc.publish.dead_letters", published.dead_letters, tags=dict(tags))
    Stats.gauge("cdc.publish.batch", published.batch, tags=dict(tags))
    Stats.gauge("cdc.publish.pending_batches", published.pending_batches, tags=dict(tags))
    Stats.gauge("cdc.publish.lag_seconds", published.lag_seconds, tags=dict(tags))


def emit_failure(connector: Connector, result: JobResult) -> None:
    """Emit a failed job's metrics: the progress of its snapshot, and the batches that it couldn't commit."""
    if result.snapshot is not None:
        emit_snapshot(connector, result.snapshot)
        emit_debezium_gauges(connector, metrics_of(result))
    for origin in result.origins:
        tags = {**connector.tags, "origin": origin.origin}
        Stats.incr("cdc.origin.failed_batches", origin.failed_batches, tags=tags)


def emit_snapshot(connector: Connector, shot: SnapshotResult) -> None:
    """Emit a snapshot's progress."""
    tags = connector.tags
    numbers = {
        "tables": shot.tables,
        "tables_remaining": shot.remaining,
        "running": int(shot.running),
        "aborted": int(shot.aborted),
        "completed": int(shot.completed),
        "seconds": shot.seconds,
    }
    for name, value in numbers.items():
        Stats.gauge(f"cdc.snapshot.{name}", value, tags=tags)
    for table, rows in shot.rows_by_table.items():
        emit_rows(connector, table, rows)


def emit_health(connector: Connector, report: Mapping[str, Any]) -> None:
    """Emit a connector's health: reader and session, the age of the last commit, response times."""
    tags = connector.tags
    Stats.gauge("cdc.health.ok", int(report["ok"]), tags=tags)
    numbers = {
        "commit_age_seconds": report["reader"].get("commit_age_seconds"),
        "silent_seconds": report["reader"].get("silent_seconds"),
        "response_seconds": report["session"].get("max_seconds"),
    }
    for name, value in numbers.items():
        if value is not None:
            Stats.gauge(f"cdc.health.{name}", value, tags=tags)


def emit_rows(connector: Connector, table: str, rows: int) -> None:
    """Emit the number of a table's rows that a snapshot has read."""
    Stats.gauge("cdc.snapshot.rows", rows, tags={**connector.tags, "table": table})


def emit_notification(connector: Connector, notification: Notification) -> None:
    """Count a notification, by its type and its aggregate: ``initial`` or ``incremental`` snapshot."""
    aggregate = notification.aggregate_type.partition(" ")[0].lower()
    tags = {**connector.tags, "type": notification.type, "aggregate": aggregate}
    Stats.incr("cdc.notifications", 1, tags=tags)


def _emit_origin(origin: OriginResult, tags: dict[str, str]) -> None:
    Stats.incr("cdc.origin.mutations", origin.mutations, tags=tags)
    Stats.incr("cdc.origin.errors", origin.errors, tags=tags)
    if origin.position is not None:
        Stats.gauge("cdc.origin.position", origin.position, tags=tags)
    for name in (
        "latency_seconds",
        "latency_p50_seconds",
        "latency_p95_seconds",
        "latency_p99_seconds",
        "latency_min_seconds",
        "latency_average_seconds",
    ):
        if (seconds := getattr(origin, name)) is not None:
            Stats.gauge(f"cdc.origin.{name}", seconds, tags=tags)
    for why, count in origin.skipped.items():
        Stats.incr("cdc.origin.skipped", count, tags={**tags, "why": why})
    if origin.segments is not None:
        _emit_segments(origin.segments, tags)
    if origin.stream is not None:
        _emit_stream(origin.stream, tags)


def _emit_stream(stream: StreamMetrics, tags: dict[str, str]) -> None:
    Stats.gauge("cdc.stream.connected", int(stream.connected), tags=tags)
    for name in (
        "disconnects",
        "elections",
        "journals",
        "replies",
        "empty_replies",
        "events",
        "bytes",
        "creates",
        "updates",
        "deletes",
        "filtered",
        "broken",
        "transactions",
    ):
        Stats.incr(f"cdc.stream.{name}", getattr(stream, name), tags=tags)
    Stats.timing("cdc.stream.waited", timedelta(seconds=stream.waited_seconds), tags=tags)
    for name in ("queue_events_max", "queue_bytes_max") if stream.queue_bytes_limit else ():
        Stats.gauge(f"cdc.stream.{name}", getattr(stream, name), tags=tags)
    for name in ("last_event_at", "last_empty_reply_at", "behind_seconds"):
        if (value := getattr(stream, name)) is not None:
            Stats.gauge(f"cdc.stream.{name}", value, tags=tags)
    for name in ("sec", "ord"):
        if name in stream.position:
            Stats.gauge(f"cdc.stream.position_{name}", int(stream.position[name]), tags=tags)


def _emit_segments(segments: SegmentNumbers, tags: dict[str, str]) -> None:
    Stats.incr("cdc.origin.segments_read", segments.read, tags=tags)
    for name in ("seen", "at_once", "pending", "pending_max", "kept", "kept_max"):
        Stats.gauge(f"cdc.origin.segments_{name}", getattr(segments, name), tags=tags)
