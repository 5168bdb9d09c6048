"""The result of a stage: counts, the position and the lag behind the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts
from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spec import JobResult, OriginResult, PublishResult, SnapshotResult, TableResult
from airflow_cdc_provider.sources.contract import Lag, Source
from airflow_cdc_provider.sources.findings import grouped
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics

_OF_TASKS: Final = (
    "events",
    "bytes",
    "disconnects",
    "creates",
    "updates",
    "deletes",
    "filtered",
    "broken",
    "transactions",
)


def build_result(
    run: Run,
    *,
    shot: SnapshotResult | None = None,
    captured: CaptureCounts | None = None,
    tables: Sequence[TableResult] = (),
    skipped: bool = False,
    published: PublishResult | None = None,
) -> JobResult:
    """Build the result of a stage.

    It is ok unless a table failed or a topic is refused: then its error names each of them, and the result
    still has what was done, also if the lake can't be read any more. ``skipped`` means that no snapshot was
    due.
    """
    for part in (shot, captured, published):
        tables = failures.with_errors(tables, part.errors if part else {})
    refused = published.refused if published else {}
    error = failures.of_all_tables(tables) or failures.of_refused_topics(refused)
    outcome = JobResult(
        ok=True,
        batches=captured.batches if captured else 0,
        changes=captured.changes if captured else 0,
        tables=tuple(tables),
        snapshot=shot,
        seconds=_durations(shot, captured, tables),
        skipped=_by_reason(captured.skipped) if captured else {},
        snapshot_skipped=skipped,
        incremental=run.report.incremental,
    )
    if published is not None:
        outcome = _with_published(outcome, published)
    try:
        outcome = _with_positions(outcome, run, captured)
    except Exception as failure:  # noqa: BLE001 - the result has it
        log.error("the positions can't be read: %s", failures.described(failure), exc_info=True)
        error = error or failures.as_error(failure)  # a later error has the same cause, or is less specific
    return outcome if error is None else replace(outcome, ok=False, error_code=error.code, error=str(error))


def _with_published(outcome: JobResult, published: PublishResult) -> JobResult:
    findings = [*outcome.findings, *(f"publishing: {finding}" for finding in published.findings)]
    if published.dead_letters:
        findings.append(
            f"{published.dead_letters} records that are refused, or that can't be built, are dead letters: "
            + failures.DEAD_LETTERS
        )
    seconds = {**outcome.seconds, "publish": published.seconds}
    counts = replace(published, findings=())
    return replace(outcome, published=counts, seconds=seconds, findings=tuple(findings))


def _with_positions(outcome: JobResult, run: Run, captured: CaptureCounts | None) -> JobResult:
    """Add the connector's position, and what the source reports about it and its tables."""
    source = run.source
    state = run.stores.changes.state()
    progress = Progress.from_offset(state.offset)
    selected: tuple[str, ...] = ()
    lag = Lag(None, None)
    findings: list[str] = []
    try:
        if captured is not None:
            selected = tuple(source.tables())
            findings += _capture_findings(run.job.connector, source, captured, selected)
        lag = source.lag(progress.source)
    except Exception as error:  # noqa: BLE001 - what was done is done: the source may be away by now
        findings.append(f"the lag is unknown: {failures.described(error)}")
        log.warning("%s: %s", run.job.connector.name, findings[-1], exc_info=True)
    findings = [*lag.remarks, *findings, *_channel_findings(run.clients, run.report)]
    findings += _table_findings(progress, outcome.tables, run.report.reselected)
    return replace(
        outcome,
        offset=progress.source,
        lag_seconds=lag.seconds,
        lag_bytes=lag.bytes,
        origins=_with_streams(_origins(lag, captured), source, run.report, captured),
        findings=(*findings, *outcome.findings),
        selected=selected,
        committed_at=state.committed_at,
        newest_batch=state.batch,
        table_snapshots={
            name: {"done": snapshot.done and not snapshot.outdated, "started_at": snapshot.started_us / 1e6}
            for name, snapshot in sorted(progress.snapshots.items())
        },
    )


def _capture_findings(
    connector: Connector, source: Source, captured: CaptureCounts, selected: Sequence[str]
) -> Iterator[str]:
    if not selected:
        yield (
            f"connector {connector.name} captures no table: the source has no selected table "
            "with capture enabled. Run airflow cdc check for details"
        )
    elif unmatched := connector.unmatched(selected):
        yield f"{'; '.join(unmatched)}. All others are captured; run airflow cdc check for details"
    if beyond := connector.guardrail_message(selected):
        yield beyond
    yield from source.schema_findings()
    if captured.quarantined:
        yield (
            f"{captured.quarantined} records could not be read and are in quarantine: rows of kind "
            f"quarantine in {connector.changes_table}, each with its reason in the column reason"
        )


def _channel_findings(clients: Clients, report: RunReport) -> Iterator[str]:
    for channel, count in sorted(clients.notifier.failed.items()):
        yield f"{count} notifications could not be sent by channel {channel}; see the log"
    for channel, reason in sorted(report.signals.errors.items()):
        yield f"signals of channel {channel} could not be read and stay there: {reason}"


def _table_findings(
    progress: Progress, tables: Sequence[TableResult], reselected: Mapping[str, str]
) -> Iterator[str]:
    outdated = {name: snapshot.lost for name, snapshot in progress.snapshots.items() if snapshot.outdated}
    for name, lost in sorted(outdated.items()):
        yield f"{name} is incomplete until its next snapshot: changes were lost: {lost}"
    yield from grouped((name, said) for name, said in reselected.items() if name not in outdated)
    for table in tables:
        if table.undecodable:
            yield f"{table.table}: {table.undecodable} changes could not be decoded and are quarantined"
        if table.unresolved_keys:
            yield f"{table.table}: {table.unresolved_keys} keys need a re-read from the source"
        if table.not_in_snapshot:
            yield (
                f"{table.table}: rows that the last snapshot didn't return must still be reread: the mirror "
                "may have deleted rows"
            )


def _origins(lag: Lag, captured: CaptureCounts | None) -> tuple[OriginResult, ...]:
    """Return the counts and the position of each origin."""
    if captured is None:
        return tuple(_position(origin, details) for origin, details in sorted(lag.details.items()))
    counts = {one.origin: one for one in captured.origins}
    segments = captured.segments.at_end(lag.details)
    results = []
    for origin in sorted({*lag.details, *counts}):
        counts_by_reason = {reason: n for (of, reason), n in captured.skipped.items() if of == origin}
        result = _position(origin, lag.details.get(origin, {}))
        result = replace(result, skipped=counts_by_reason, segments=segments.get(origin))
        if origin in counts:
            found = counts[origin]
            result = replace(
                result,
                mutations=found.changes,
                errors=found.quarantined,
                latency_seconds=_rounded(found.latency_seconds),
                latency_p50_seconds=_rounded(found.latency_p50_seconds),
                latency_p99_seconds=_rounded(found.latency_p99_seconds),
                latency_p95_seconds=_rounded(found.latency_p95_seconds),
                latency_min_seconds=_rounded(found.latency_min_seconds),
                latency_average_seconds=_rounded(found.latency_average_seconds),
            )
        results.append(result)
    return tuple(results)


def _with_streams(
    origins: Sequence[OriginResult], source: Source, report: RunReport, captured: CaptureCounts | None
) -> tuple[OriginResult, ...]:
    """Add the stream metrics since the start of the job, of the driver and of tasks."""
    streams = source.stream_metrics()
    for found in captured.origins if captured is not None else ():
        if found.last_transaction:
            report.last_transactions[found.origin] = found.last_transaction

    def with_tasks(origin: str) -> StreamMetrics:
        stream = streams[origin]
        sums = {name: getattr(stream, name) + report.reading.get(name, 0) for name in _OF_TASKS}
        return replace(stream, **sums, last_transaction=report.last_transactions.get(origin, ""))

    known = {one.origin for one in origins}
    # A stream may have the changes of several origins.
    of_streams = (OriginResult(origin, "", None) for origin in streams if origin not in known)
    return tuple(
        replace(one, stream=with_tasks(one.origin)) if one.origin in streams else one
        for one in (*origins, *of_streams)
    )


def _durations(
    shot: SnapshotResult | None, captured: CaptureCounts | None, tables: Sequence[TableResult]
) -> dict[str, float]:
    """Return the durations of a stage's steps; for tasks of a capture, the sum over all of them."""
    found: dict[str, float] = {}
    if shot is not None:
        found["snapshot"] = shot.seconds
    if captured is not None:
        found["capture"] = captured.seconds
        found |= {"capture.plan": captured.plan_seconds, "capture.commit": captured.commit_seconds}
        for name in ("wait", "parse", "convert"):
            if microseconds := captured.reading.get(f"{name}_us"):
                found[f"capture.{name}"] = microseconds / 1_000_000
    if tables:
        found["merge"] = sum(table.seconds for table in tables)
    return {name: round(seconds, 3) for name, seconds in found.items()}


def _position(origin: str, details: Mapping[str, Any]) -> OriginResult:
    return OriginResult(origin, details.get("file", ""), details.get("position"))


def _by_reason(skipped: Mapping[tuple[str, str], int]) -> dict[str, int]:
    by_reason: Counter[str] = Counter()
    for (_, reason), count in skipped.items():
        by_reason[reason] += count
    return dict(sorted(by_reason.items()))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
