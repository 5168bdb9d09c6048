"""Events of requested snapshots, as they are logged, counted and sent."""

from __future__ import annotations

from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.metrics.incremental import after
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent


def record_event(clients: Clients, report: RunReport, event: SnapshotEvent) -> None:
    """Log an event of a requested snapshot, count it and send a notification of it."""
    log.info("snapshot %s of signal %s: %s", event.kind, event.request_id, event.table or event.tables)
    report.incremental = after(report.incremental, event)
    clients.notify(event)
