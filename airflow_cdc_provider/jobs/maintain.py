"""The maintain stage: let go of merged batches, compact files, expire snapshots."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.report import report
from airflow_cdc_provider.jobs.spec import JobResult


def maintain(context: JobContext) -> JobResult:
    """Maintain the changes table and all mirrors.

    A batch goes when every mirror has merged it and the lake's ``retention_seconds`` are over.
    """
    retain = context.connector.lake.retention_seconds
    mirrors = [m for m in map(context.mirror, context.tables()) if m.table.exists()]
    merged = min((m.state().merged_through for m in mirrors), default=-1)
    gone = context.changes.expire(merged, datetime.now(UTC) - timedelta(seconds=retain))
    log.info("%s: batches through %d let go", context.changes.name, gone)
    for table in [context.changes.table, *(t for m in mirrors for t in (m.table, m.side))]:
        started = time.monotonic()
        done = table.maintain(retain_seconds=retain)
        log.info(
            "%s: %d files compacted, %d snapshots expired, %.1f s",
            table.name,
            done.rewritten_files,
            done.expired_snapshots,
            time.monotonic() - started,
        )
    return report(context)
