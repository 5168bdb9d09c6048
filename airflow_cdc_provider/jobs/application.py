"""The application that spark-submit runs: ``application.py SPEC``.

It reads a job spec, runs its stage and writes the result file, also when the stage fails. SIGTERM requests a
clean stop: the stage ends after its current commit. The exit code is 0 if the stage completed, else 1.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.capturing.capture import capture
from airflow_cdc_provider.jobs.comparing.topics import compare_topics
from airflow_cdc_provider.jobs.comparing.verify import verify
from airflow_cdc_provider.jobs.context import JobContext, job_context, log, on_finished
from airflow_cdc_provider.jobs.events.stage import events
from airflow_cdc_provider.jobs.maintain import maintain
from airflow_cdc_provider.jobs.merging.merge import merge_tables
from airflow_cdc_provider.jobs.offsets import offsets
from airflow_cdc_provider.jobs.publishing.replay import replay
from airflow_cdc_provider.jobs.publishing.stage import publish_events
from airflow_cdc_provider.jobs.reporting.report import report
from airflow_cdc_provider.jobs.resuming.identity import require_own
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.signals import follow
from airflow_cdc_provider.jobs.snapshots.custom import captures
from airflow_cdc_provider.jobs.snapshots.snapshot import snapshot
from airflow_cdc_provider.jobs.spark.failures import explain
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec, OriginResult, SnapshotResult
from airflow_cdc_provider.jobs.stream import stream
from airflow_cdc_provider.jobs.sync import sync

Stage = Callable[[JobContext], JobResult]


def _sync(context: JobContext) -> JobResult:
    context.require_within_guardrail()
    return sync(context)


def _capture(context: JobContext) -> JobResult:
    if not captures(context.connector):
        raise ConfigurationError(
            f"nothing is captured with snapshot.mode {context.connector.snapshot.mode}",
            remedy="CdcSyncOperator and CdcSnapshotOperator read the tables; to capture choose another mode",
        )
    context.require_within_guardrail()
    captured = capture(context)
    if context.stopping():
        return report(context, captured=captured)
    followed = follow(context)
    return report(context, captured=followed.with_captured(captured), shot=followed.shot)


def _merge(context: JobContext) -> JobResult:
    return report(context, tables=merge_tables(context, force=bool(context.spec.options.get("force", True))))


def _publish(context: JobContext) -> JobResult:
    return report(context, published=publish_events(context))


def _stream(context: JobContext) -> JobResult:
    context.require_within_guardrail()
    return stream(context)


def _snapshot(context: JobContext) -> JobResult:
    context.require_within_guardrail()
    replacing = context.spec.options.get("mode", "replace") == "replace"
    shot = snapshot(context, context.tables(), again=True, replacing=replacing)
    merged = merge_tables(context, force=True) if context.spec.options.get("merge", True) else []
    return report(context, shot=shot, tables=merged)


def _with_own_table(stage: Stage) -> Stage:
    def run_stage(context: JobContext) -> JobResult:
        require_own(context.connector, Progress.from_offset(context.changes.state().offset))
        return stage(context)

    return run_stage


STAGES: Mapping[str, Stage] = {
    "sync": _with_own_table(_sync),
    "capture": _with_own_table(_capture),
    "merge": _with_own_table(_merge),
    "snapshot": _with_own_table(_snapshot),
    "verify": _with_own_table(verify),
    "maintain": _with_own_table(maintain),
    "offsets": offsets,
    "stream": _with_own_table(_stream),
    "events": events,
    "publish": _with_own_table(_publish),
    "replay": _with_own_table(replay),
    "compare_topics": _with_own_table(compare_topics),
}
"""Stages by name. All but the read-only ones refuse the changes table of another connector."""


def run(spec: JobSpec) -> JobResult:
    """Run a spec's stage and write its result.

    Returns:
        The result that was written. A known error becomes a result; any other is raised after the write.
    """
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        log.info("received signal %d: stopping after the current commit", number)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, request_stop)
    started = time.monotonic()
    context: JobContext | None = None
    try:
        with job_context(spec, stop.is_set) as context:
            outcome = STAGES[spec.stage](context)
    except Exception as error:
        known = explain(error)
        code = known.code if known is not None else type(error).__name__
        text = (str(known or error).splitlines() or [code])[0]
        outcome = JobResult(
            ok=False,
            error_code=code,
            error=text,
            snapshot=_aborted(context),
            origins=_uncommitted(context),
        )
        if known is None:
            outcome.write(spec.result_path)
            raise
        if known is not error:
            log.error("the original Spark error", exc_info=True)
    seconds = {**outcome.seconds, "all": round(time.monotonic() - started, 3)}
    outcome = JobResult(**{**vars(outcome), "seconds": seconds})
    outcome.write(spec.result_path)
    if context is not None and outcome.ok:
        on_finished(context)
    return outcome


def _aborted(context: JobContext | None) -> SnapshotResult | None:
    """Return the snapshot that a failed job was taking, None if it took none."""
    shot = context.snapshot if context else None
    return replace(shot, aborted=True) if shot and shot.remaining else shot


def _uncommitted(context: JobContext | None) -> tuple[OriginResult, ...]:
    """Return the feeds whose last batch a failed job could not commit."""
    origins = context.uncommitted if context else ()
    return tuple(OriginResult(origin, failed_batches=1) for origin in origins)


def main(arguments: list[str]) -> int:
    """Run the spec that the only argument names; see the module docstring."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if len(arguments) != 1:
        log.error("usage: application.py SPEC")
        return 2
    outcome = run(JobSpec.from_json(Path(arguments[0]).read_text()))
    if not outcome.ok:
        log.error("%s", outcome.error)
        return 1
    log.info("done: %d changes in %d batches, %s", outcome.changes, outcome.batches, dict(outcome.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
