"""What a stage reports: counts, the position reached and the lag behind the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spec import JobResult, OriginResult, PublishResult, SnapshotResult, TableResult
from airflow_cdc_provider.sources.abilities import CountsStreams, LearnsSchemas
from airflow_cdc_provider.sources.base import Lag
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

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


def report(
    context: JobContext,
    *,
    shot: SnapshotResult | None = None,
    captured: CaptureCounts | None = None,
    tables: Sequence[TableResult] = (),
    skipped: bool = False,
    published: PublishResult | None = None,
) -> JobResult:
    """Build the result of a stage.

    It is ok unless a table could not be merged: then its error names each of these, beside what was done.
    ``skipped`` says that no snapshot was due.
    """
    error = failures.of_all_tables(tables)
    try:
        outcome = _report(context, shot, captured, tables)
        outcome = replace(outcome, snapshot_skipped=skipped, incremental=context.incremental)
        if published is not None:
            outcome = _with_published(outcome, published)
    except Exception:
        if error is None:
            raise
        raise error from None  # what fails after it has the same cause, or less to say
    return outcome if error is None else replace(outcome, ok=False, error_code=error.code, error=str(error))


def _with_published(outcome: JobResult, published: PublishResult) -> JobResult:
    findings = [*outcome.findings, *(f"publishing: {finding}" for finding in published.findings)]
    if published.refused:
        findings.append(
            f"{published.refused} records were refused by the broker, or can't be made, and are set apart in "
            "the table <connector>_refused, each with its reason"
        )
    seconds = {**outcome.seconds, "publish": published.seconds}
    told = replace(published, findings=())
    return replace(outcome, published=told, seconds=seconds, findings=tuple(findings))


def _report(
    context: JobContext,
    shot: SnapshotResult | None,
    captured: CaptureCounts | None,
    tables: Sequence[TableResult],
) -> JobResult:
    state = context.changes.state()
    progress = Progress.from_offset(state.offset)
    lag = context.source.lag(progress.source)
    seconds: dict[str, float] = {}
    findings = list(lag.remarks)
    selected: tuple[str, ...] = ()
    if shot is not None:
        seconds["snapshot"] = round(shot.seconds, 3)
    if captured is not None:
        seconds["capture"] = round(captured.seconds, 3)
        seconds |= _stages(captured)
        selected = tuple(context.source.tables())
        if not selected:
            findings.append(
                f"connector {context.connector.name} captures no table: the source has none that it selects, "
                "or none with capture switched on. airflow cdc check tells which"
            )
        if beyond := context.connector.beyond_guardrail(selected):
            findings.append(beyond)
        if isinstance(context.source, LearnsSchemas):
            findings += context.source.schema_findings()
        if captured.quarantined:
            findings.append(
                f"{captured.quarantined} records could not be read and are in quarantine: rows of kind "
                f"quarantine in {context.connector.changes_table}, each with its reason in the column reason"
            )
    findings += [
        f"{count} notifications could not be sent by channel {channel}; the log says why"
        for channel, count in sorted(context.notifier.failed.items())
    ]
    findings += [
        f"signals of channel {channel} could not be read and wait there: {why}"
        for channel, why in sorted(context.signals.errors.items())
    ]
    if tables:
        seconds["merge"] = round(max(t.seconds for t in tables), 3)
    for name, taken in sorted(progress.snapshots.items()):
        if taken.outdated:
            findings.append(f"{name} lacks changes that were lost, until its next snapshot: {taken.lost}")
    for table in tables:
        if table.undecodable:
            findings.append(
                f"{table.table}: {table.undecodable} changes could not be decoded and are set apart"
            )
        if table.doubtful:
            findings.append(f"{table.table}: {table.doubtful} keys need a re-read from the source")
        if table.unseen:
            findings.append(
                f"{table.table}: what the last snapshot did not show is still to be read again: it may hold"
                " rows that are gone"
            )
    return JobResult(
        ok=True,
        offset=progress.source,
        batches=captured.batches if captured else 0,
        changes=captured.changes if captured else 0,
        lag_seconds=lag.seconds,
        lag_bytes=lag.bytes,
        tables=tuple(tables),
        origins=_with_streams(_origins(lag, captured), context, captured),
        snapshot=shot,
        seconds=seconds,
        findings=tuple(findings),
        passed_over=_by_why(captured.passed_over) if captured else {},
        selected=selected,
        committed_at=state.committed_at,
        newest_batch=state.batch,
        copies={
            name: {"done": taken.done and not taken.outdated, "began_at": taken.began_us / 1e6}
            for name, taken in sorted(progress.snapshots.items())
        },
    )


def _origins(lag: Lag, captured: CaptureCounts | None) -> tuple[OriginResult, ...]:
    """Tell of each origin what came of it and how far it is read."""
    if captured is None:
        return tuple(_place(origin, place) for origin, place in sorted(lag.details.items()))
    counts = {one.origin: one for one in captured.origins}
    segments = captured.segments.at_end(lag.details)
    results = []
    for origin in sorted({*lag.details, *counts}):
        beside = {why: n for (of, why), n in captured.passed_over.items() if of == origin}
        result = _place(origin, lag.details.get(origin, {}))
        result = replace(result, passed_over=beside, segments=segments.get(origin))
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
    origins: Sequence[OriginResult], context: JobContext, captured: CaptureCounts | None
) -> tuple[OriginResult, ...]:
    """Add what was met on streams since the job began: on the process's own, and on those of tasks."""
    source = context.source
    streams = source.stream_numbers() if isinstance(source, CountsStreams) else {}
    for found in captured.origins if captured is not None else ():
        if found.last_transaction:
            context.last_transactions[found.origin] = found.last_transaction

    def together(origin: str) -> StreamNumbers:
        stream = streams[origin]
        sums = {name: getattr(stream, name) + context.reading.get(name, 0) for name in _OF_TASKS}
        return replace(stream, **sums, last_transaction=context.last_transactions.get(origin, ""))

    known = {one.origin for one in origins}
    # One stream may bring what several origins tell.
    of_streams = (OriginResult(origin, "", None) for origin in streams if origin not in known)
    return tuple(
        replace(one, stream=together(one.origin)) if one.origin in streams else one
        for one in (*origins, *of_streams)
    )


def _stages(captured: CaptureCounts) -> dict[str, float]:
    """Tell where a capture's time went: of tasks, the sum over all of them."""
    found = {"capture.plan": captured.plan_seconds, "capture.commit": captured.commit_seconds}
    for name in ("wait", "parse", "convert"):
        if microseconds := captured.reading.get(f"{name}_us"):
            found[f"capture.{name}"] = microseconds / 1_000_000
    return {name: round(seconds, 3) for name, seconds in found.items()}


def _place(origin: str, place: Mapping[str, Any]) -> OriginResult:
    return OriginResult(origin, place.get("file", ""), place.get("position"))


def _by_why(passed_over: Mapping[tuple[str, str], int]) -> dict[str, int]:
    together: Counter[str] = Counter()
    for (_, why), count in passed_over.items():
        together[why] += count
    return dict(sorted(together.items()))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
