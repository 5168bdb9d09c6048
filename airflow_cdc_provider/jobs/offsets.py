"""The offsets stage: show, set or reset a connector's position, or remove a feed that no longer exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.publishing.publication import publishing_lag
from airflow_cdc_provider.jobs.publishing.stage import publish_from, published_through
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.reporting.status import signal_status, table_status
from airflow_cdc_provider.jobs.resuming.identity import identity_of, require_own
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spec import NEXT, JobResult, PublishResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.lake.changes_table import ChangesState


def offsets(run: Run) -> JobResult:
    """Run the action of the option ``action``.

    ``show`` and ``status`` change nothing; ``status`` also reports each table. ``set`` validates and stores
    the option ``offset`` (the source's JSON). ``reset`` removes the position (capture starts over) and the
    finished snapshots of the spec's tables, or of all; mirrors and captured changes stay, and merging them
    again has no effect.

    ``forget`` removes the option ``origin`` from the position: a node that is lost together with its last
    segments. Changes of it that were not captured are lost, unless other nodes have copies.

    ``publish`` sets the batch of the changes table with which publishing continues, in the option ``batch``,
    whatever was published; ``next`` is the batch of the next capture. If rows are published after merges, 1
    publishes all rows again, ``next`` only later merges, and other numbers are refused.

    ``adopt`` takes over a stored offset under another connection, scope or topic prefix.

    Raises:
        ConfigurationError: The action or origin is unknown, the offset is invalid or belongs to another
            connector.
        CommitConflict: A capture committed meanwhile.
    """
    job, stores = run.job, run.stores
    action = job.spec.options.get("action", "show")
    state = stores.changes.state()
    progress = Progress.from_offset(state.offset)
    if action not in ("show", "status", "adopt"):
        require_own(job.connector, progress)
    if action == "status":
        return replace(
            _result(run),
            status=table_status(job, stores, run.source),
            signals=signal_status(stores.changes, run.source),
        )
    if action == "publish":
        batch = job.spec.options.get("batch", 0)
        first = state.batch + 1 if batch == NEXT else int(batch)
        publish_from(job, stores, run.source, run.clients.connections, first)
    if action in ("show", "publish"):
        return _result(run)
    stores.changes.set_offset(_changed(run, action, progress, state).to_offset(), state)
    log.info("%s: offset %s", job.connector.name, action)
    return build_result(run)


def _changed(run: Run, action: object, progress: Progress, state: ChangesState) -> Progress:
    """Return the progress that an action makes of the stored one."""
    job = run.job
    if action == "set":
        offset = job.spec.options.get("offset")
        if not isinstance(offset, dict):
            raise ConfigurationError(
                "there is no offset to set",
                expected="option offset with the source's JSON",
                found=repr(offset),
            )
        run.source.validate_offset(offset)
        return progress.with_source(offset)
    if action == "reset":
        reset = set(job.spec.tables) or set(progress.snapshots)
        kept = {t: s for t, s in progress.snapshots.items() if t not in reset}
        return replace(progress, source=progress.source if job.spec.tables else None, snapshots=kept)
    if action == "forget":
        return progress.with_source(_without(progress.source or {}, job.spec.options.get("origin")))
    if action == "adopt":
        if state.offset is None:
            raise ConfigurationError(
                "there is no offset to adopt",
                expected=f"a changes table {job.connector.changes_table} with an offset",
                remedy="none needed: the first capture creates it for this connector",
            )
        return replace(progress, identity=identity_of(job.connector))
    raise ConfigurationError(
        "unknown action",
        expected="show, status, set, reset, forget, publish or adopt",
        found=repr(action),
    )


def _result(run: Run) -> JobResult:
    """Build the result, with the published position of a connector that publishes."""
    outcome, changes = build_result(run), run.stores.changes
    if not run.job.connector.publish.enabled:
        return outcome
    try:
        batch = published_through(run.job, run.stores, run.source, run.clients.connections)
    except BrokersUnavailable as error:
        return replace(outcome, findings=(*outcome.findings, f"the published position is unknown: {error}"))
    if batch is None:
        return replace(outcome, findings=(*outcome.findings, "nothing was published yet"))
    pending, lag_seconds = changes.state().batch - batch, publishing_lag(changes, batch)
    return replace(outcome, published=PublishResult(batch, pending_batches=pending, lag_seconds=lag_seconds))


def _without(offset: Mapping[str, Any], origin: object) -> dict[str, Any]:
    if origin not in offset:
        raise ConfigurationError(
            "there is no such origin to forget",
            expected="one of " + (", ".join(sorted(offset)) or "none: nothing was captured"),
            found=repr(origin),
        )
    return {name: value for name, value in offset.items() if name != origin}
