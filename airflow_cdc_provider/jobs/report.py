"""What a stage reports: counts, the position reached and the lag behind the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_cdc_provider.jobs.capture import CaptureCounts
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.progress import Progress
from airflow_cdc_provider.jobs.spec import JobResult, OriginResult, SnapshotResult, TableResult
from airflow_cdc_provider.sources.base import Lag, LearnsSchemas


def report(
    context: JobContext,
    *,
    shot: SnapshotResult | None = None,
    captured: CaptureCounts | None = None,
    tables: Sequence[TableResult] = (),
) -> JobResult:
    """Build the result of a stage that did all it was asked."""
    progress = Progress.from_offset(context.changes.state().offset)
    lag = context.source.lag(progress.source)
    seconds: dict[str, float] = {}
    findings = list(lag.remarks)
    if shot is not None:
        seconds["snapshot"] = round(shot.seconds, 3)
    if captured is not None:
        seconds["capture"] = round(captured.seconds, 3)
        if not context.source.tables():
            findings.append(
                f"connector {context.connector.name} captures no table: the source has none that it selects, "
                "or none with capture switched on. airflow cdc check tells which"
            )
        if isinstance(context.source, LearnsSchemas):
            findings += context.source.schema_findings()
        if captured.quarantined:
            findings.append(
                f"{captured.quarantined} records could not be read and are in quarantine: rows of kind "
                f"quarantine in {context.connector.changes_table}, each with its reason in schema_id"
            )
    if tables:
        seconds["merge"] = round(max(t.seconds for t in tables), 3)
    for table in tables:
        if table.undecodable:
            findings.append(
                f"{table.table}: {table.undecodable} changes could not be decoded and are set apart"
            )
        if table.doubtful:
            findings.append(f"{table.table}: {table.doubtful} keys need a re-read from the source")
    return JobResult(
        ok=True,
        offset=progress.source,
        batches=captured.batches if captured else 0,
        changes=captured.changes if captured else 0,
        lag_seconds=lag.seconds,
        lag_bytes=lag.bytes,
        tables=tuple(tables),
        origins=_origins(lag, captured),
        snapshot=shot,
        seconds=seconds,
        findings=tuple(findings),
    )


def _origins(lag: Lag, captured: CaptureCounts | None) -> tuple[OriginResult, ...]:
    """Tell of each origin what came of it and how far it is read."""
    counts = {one.origin: one for one in captured.origins} if captured else {}
    results = []
    for origin in sorted({*lag.details, *counts}):
        place = lag.details.get(origin, {})
        result = OriginResult(origin, place.get("file", ""), place.get("position"))
        if origin in counts:
            found = counts[origin]
            latency = None if found.latency_seconds is None else round(found.latency_seconds, 3)
            result = replace(
                result, mutations=found.changes, errors=found.quarantined, latency_seconds=latency
            )
        results.append(result)
    return tuple(results)
