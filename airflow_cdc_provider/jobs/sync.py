"""The sync stage: due snapshots, capture to the head, signals, merges of due tables, and publishing."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.jobs.capturing.capture import capture
from airflow_cdc_provider.jobs.capturing.lost_position import SnapshotsDue
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.merging.merge import merge_tables
from airflow_cdc_provider.jobs.publishing.stage import publish_events
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.signals import follow
from airflow_cdc_provider.jobs.snapshots.custom import captures, head_before, notify_snapshotter, resume_from
from airflow_cdc_provider.jobs.snapshots.snapshot import due_tables, snapshot
from airflow_cdc_provider.jobs.spark.failures import as_error
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source


def sync(run: Run) -> JobResult:
    """Run all parts once.

    The snapshot comes first: it fixes the start of the feed, so that writes during the snapshot are captured
    after it. With mode ``initial_only`` nothing is captured, and no signal is applied. A failure of what
    follows the capture doesn't stop the other parts; the result has its error, and what they have done.

    Raises:
        PositionLost: As :func:`~airflow_cdc_provider.jobs.capturing.capture.capture`; not if new snapshots of
            the tables are taken at once.
    """
    job, stores, source, clients, report = run
    report.reselected.clear()  # of the last round
    before = Progress.from_offset(stores.changes.state().offset)
    due = due_tables(job, stores, source, before)
    again = job.connector.snapshot.mode in ("always", "custom")
    shot = None
    if due:
        head = head_before(job.connector, source, before)
        with notify_snapshotter(job.connector, report):
            shot = snapshot(*run, due, again=again, replacing=True)
        resume_from(job.connector, stores.changes, source, report, head, due)
    else:
        clients.snapshot_notifier.skipped()
    captured = None
    lost = False
    if captures(job.connector):
        try:
            captured = capture(job, stores, source, report)
        except SnapshotsDue as error:
            if job.connector.lost_position_action(hole=True) != "snapshot":
                raise
            lost = True
            log.warning("%s: taking new snapshots of the tables: %s", job.connector.name, error)
    # The capture may find that the capture of a table had paused, or that a table was renamed.
    late = _late(job, stores, source, due, captured.errors if captured else {}, lost=lost)
    if late and not job.stopping():
        with notify_snapshotter(job.connector, report):
            second = snapshot(*run, late, again=False, replacing=True)
        shot = second.joined(shot) if shot else second
    if lost and not job.stopping():
        captured = capture(job, stores, source, report)
    failed: dict[str, CdcError] = {}
    merged: Sequence[TableResult] = ()
    published = None
    if captured is not None and not job.stopping():
        with _surviving(failed, "following signals"):
            followed = follow(*run)
            captured, shot = followed.with_captured(captured), followed.with_shot(shot)
    skipped = report.snapshot is None
    if not job.stopping():
        with _surviving(failed, "merging"):
            merged = merge_tables(job, stores, source, force=bool(job.spec.options.get("force")))
    if job.connector.publish.enabled and not job.stopping():
        with _surviving(failed, "publishing"):
            published = publish_events(job, stores, source, clients)
    outcome = build_result(
        run, shot=shot, captured=captured, tables=merged, skipped=skipped, published=published
    )
    for part, failure in failed.items():
        if outcome.ok:
            outcome = replace(outcome, ok=False, error_code=failure.code, error=str(failure))
        else:
            outcome = replace(outcome, findings=(*outcome.findings, f"{part} failed: {failure}"))
    return outcome


@contextmanager
def _surviving(failed: dict[str, CdcError], part: str) -> Iterator[None]:
    """Keep the error of a part of the run instead of raising it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the result has it
        failed[part] = as_error(error)
        log.error("%s failed: %s", part, failed[part], exc_info=True)


def _late(
    job: Job, stores: Stores, source: Source, read: Sequence[str], failed: Container[str], *, lost: bool
) -> list[str]:
    """List the tables to read after the capture, including outdated ones that were read before it.

    Tables whose capture failed are read by the next run.
    """
    progress = Progress.from_offset(stores.changes.state().offset)
    outdated = {
        table for table, snapshot_progress in progress.snapshots.items() if snapshot_progress.outdated
    }
    due = [table for table in due_tables(job, stores, source, progress) if table not in failed]
    return [table for table in due if lost or table not in read or table in outdated]
