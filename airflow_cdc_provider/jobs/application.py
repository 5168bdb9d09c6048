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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.capturing.capture import capture
from airflow_cdc_provider.jobs.comparing.check_lake import check_lake
from airflow_cdc_provider.jobs.comparing.topics import compare_topics
from airflow_cdc_provider.jobs.comparing.verify import verify
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run, open_run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.context.tables import require_within_guardrail, selected_tables
from airflow_cdc_provider.jobs.maintain import maintain
from airflow_cdc_provider.jobs.merging.merge import merge_tables
from airflow_cdc_provider.jobs.offsets import offsets
from airflow_cdc_provider.jobs.publishing.replay import replay
from airflow_cdc_provider.jobs.publishing.stage import publish_events
from airflow_cdc_provider.jobs.publishing.targets.text import events
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.resuming.identity import require_own
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.signals import follow
from airflow_cdc_provider.jobs.snapshots.custom import captures
from airflow_cdc_provider.jobs.snapshots.snapshot import snapshot
from airflow_cdc_provider.jobs.spark.failures import described, explain
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec, OriginResult, SnapshotResult
from airflow_cdc_provider.jobs.stream import stream
from airflow_cdc_provider.jobs.sync import sync
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.trusted_paths import read_trusted


def require_own_table(run: Run) -> None:
    """Refuse the changes table of another connector."""
    require_own(run.job.connector, Progress.from_offset(run.stores.changes.state().offset))


def require_few_tables(run: Run) -> None:
    """Enforce the declared limit on the number of tables."""
    require_within_guardrail(run.job.connector, run.stores.changes, run.source)


def require_capture(run: Run) -> None:
    """Refuse to capture with a snapshot mode that only reads tables."""
    snapshots = run.job.connector.snapshot
    if not captures(run.job.connector):
        raise ConfigurationError(
            f"nothing is captured with snapshot.mode {snapshots.mode}",
            remedy="CdcSyncOperator and CdcSnapshotOperator read the tables; to capture choose another mode",
        )


def _capture(run: Run) -> JobResult:
    captured = capture(run.job, run.stores, run.source, run.report)
    if run.job.stopping():
        return build_result(run, captured=captured)
    followed = follow(*run)
    return build_result(run, captured=followed.with_captured(captured), shot=followed.shot)


def _merge(run: Run) -> JobResult:
    force = bool(run.job.spec.options.get("force", True))
    return build_result(run, tables=merge_tables(run.job, run.stores, run.source, force=force))


def _publish(run: Run) -> JobResult:
    return build_result(run, published=publish_events(run.job, run.stores, run.source, run.clients))


def _snapshot(run: Run) -> JobResult:
    job, stores, source, _, _ = run
    tables = selected_tables(job, stores, source)
    replacing = job.spec.options.get("mode", "replace") == "replace"
    shot = snapshot(*run, tables, again=True, replacing=replacing)
    merged = merge_tables(job, stores, source, force=True) if job.spec.options.get("merge", True) else []
    return build_result(run, shot=shot, tables=merged)


@dataclass(frozen=True)
class Stage:
    """A stage.

    Args:
        function: Runs it.
        guards: Called before it, in this order; they raise if it must not run.
    """

    function: Callable[[Run], JobResult]
    guards: Sequence[Callable[[Run], None]] = (require_own_table,)

    def __call__(self, run: Run) -> JobResult:
        """Run the stage, if its guards allow it."""
        for guard in self.guards:
            guard(run)
        return self.function(run)


STAGES: Mapping[str, Stage] = {
    "sync": Stage(sync, (require_own_table, require_few_tables)),
    "capture": Stage(_capture, (require_own_table, require_capture, require_few_tables)),
    "merge": Stage(_merge),
    "snapshot": Stage(_snapshot, (require_own_table, require_few_tables)),
    "verify": Stage(verify),
    "maintain": Stage(maintain),
    "offsets": Stage(offsets, ()),
    "stream": Stage(stream, (require_own_table, require_few_tables)),
    "events": Stage(events, ()),
    "publish": Stage(_publish),
    "replay": Stage(replay),
    "compare_topics": Stage(compare_topics),
    "check_lake": Stage(check_lake, ()),
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
    report = RunReport()
    try:
        with open_run(spec, stop.is_set, report) as opened:
            outcome = STAGES[spec.stage](opened)
    except Exception as error:
        known = explain(error)
        outcome = JobResult(
            ok=False,
            error_code=known.code if known is not None else type(error).__name__,
            error=described(error),
            snapshot=_aborted(report),
            origins=_uncommitted(report),
        )
        if known is None:
            outcome.write(spec.result_path)
            raise
        if known is not error:
            log.error("the original Spark error", exc_info=True)
    seconds = {**outcome.seconds, "all": round(time.monotonic() - started, 3)}
    outcome = replace(outcome, seconds=seconds)
    outcome.write(spec.result_path)
    if outcome.ok:
        report.on_finished()
    return outcome


def _aborted(report: RunReport) -> SnapshotResult | None:
    """Return the snapshot that a failed job was taking, None if it took none."""
    shot = report.snapshot
    return replace(shot, aborted=True) if shot and shot.remaining else shot


def _uncommitted(report: RunReport) -> tuple[OriginResult, ...]:
    """Return the feeds whose last batch a failed job could not commit."""
    return tuple(OriginResult(origin, failed_batches=1) for origin in report.uncommitted)


class _Masking(logging.Formatter):
    """Masks secrets in whole records, stack traces included."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def main(arguments: list[str]) -> int:
    """Run the spec that the only argument names; see the module docstring."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Masking("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if len(arguments) != 1:
        log.error("usage: application.py SPEC")
        return 2
    try:
        outcome = run(JobSpec.from_json(read_trusted(arguments[0], "the job's spec")))
    except Exception:  # noqa: BLE001  # Python would write the traceback with all values
        log.exception("the job failed")
        return 1
    if not outcome.ok:
        log.error("%s", outcome.error)
        return 1
    log.info("done: %d changes in %d batches, %s", outcome.changes, outcome.batches, dict(outcome.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
