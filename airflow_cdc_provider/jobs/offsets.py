"""The offsets stage: show, set or reset where a connector resumes, or forget a feed that is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.publishing.form import publishing_lag
from airflow_cdc_provider.jobs.publishing.stage import publish_from, published_through
from airflow_cdc_provider.jobs.reporting.report import report
from airflow_cdc_provider.jobs.reporting.status import signal_status, table_status
from airflow_cdc_provider.jobs.resuming.identity import identity_of, require_own
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spec import NEXT, JobResult, PublishResult
from airflow_cdc_provider.kafka.errors import BrokersAway


def offsets(context: JobContext) -> JobResult:
    """Do what the option ``action`` says.

    ``show`` and ``status`` change nothing; ``status`` tells of each table besides. ``set`` stores the option
    ``offset`` (the source's JSON) once its form is checked. ``reset`` forgets the position (capture begins as
    at first) and the finished snapshots of the spec's tables, or of all; mirrors and captured changes stay,
    and merging them again changes nothing.
    ``forget`` takes the option ``origin`` out of the position: a node that will never come back, whose last
    segments can't be had. What was not captured of it is lost, unless other nodes have copies.
    ``publish`` lets publishing go on with the option ``batch`` of the changes table, whatever was published;
    ``next`` is the one that the next capture makes. After merges 1 is all rows anew, ``next`` what is merged
    from now on, and others are refused.
    ``adopt`` makes what is stored this connector's, under another connection, scope or topic prefix.

    Raises:
        ConfigurationError: An unknown action, an offset of a wrong form, an unknown origin, or the offset is
            another connector's.
        CommitConflict: A capture committed meanwhile.
    """
    action = context.spec.options.get("action", "show")
    state = context.changes.state()
    progress = Progress.from_offset(state.offset)
    if action == "show":
        return _with_publishing(context, report(context))
    if action == "status":
        return replace(
            _with_publishing(context, report(context)),
            status=table_status(context),
            signals=signal_status(context),
        )
    if action != "adopt":
        require_own(context.connector, progress)
    if action == "publish":
        batch = context.spec.options.get("batch", 0)
        publish_from(context, state.batch + 1 if batch == NEXT else int(batch))
        return _with_publishing(context, report(context))
    if action == "set":
        offset = context.spec.options.get("offset")
        if not isinstance(offset, dict):
            raise ConfigurationError(
                "there is no offset to set",
                expected="option offset with the source's JSON",
                found=repr(offset),
            )
        context.source.validate_offset(offset)
        progress = progress.with_source(offset)
    elif action == "reset":
        gone = set(context.spec.tables) or set(progress.snapshots)
        kept = {t: s for t, s in progress.snapshots.items() if t not in gone}
        source = progress.source if context.spec.tables else None
        progress = replace(progress, source=source, snapshots=kept)
    elif action == "forget":
        progress = progress.with_source(_without(progress.source or {}, context.spec.options.get("origin")))
    elif action == "adopt":
        if state.offset is None:
            raise ConfigurationError(
                "there is nothing to adopt",
                expected=f"a changes table {context.connector.changes_table} with an offset",
                remedy="the first capture makes it this connector's",
            )
        progress = progress.with_identity(identity_of(context.connector))
    else:
        raise ConfigurationError(
            "unknown action",
            expected="show, status, set, reset, forget, publish or adopt",
            found=repr(action),
        )
    context.changes.set_offset(progress.to_offset(), state)
    log.info("%s: offset %s", context.connector.name, action)
    return report(context)


def _with_publishing(context: JobContext, outcome: JobResult) -> JobResult:
    """Add where publishing stands, of a connector that publishes."""
    if not context.connector.publish.enabled:
        return outcome
    try:
        batch = published_through(context)
    except BrokersAway as error:
        return replace(outcome, findings=(*outcome.findings, f"where publishing stands isn't known: {error}"))
    if batch is None:
        return replace(outcome, findings=(*outcome.findings, "nothing was published yet"))
    told = PublishResult(
        batch,
        pending_batches=context.changes.state().batch - batch,
        lag_seconds=publishing_lag(context, batch),
    )
    return replace(outcome, published=told)


def _without(offset: Mapping[str, Any], origin: object) -> dict[str, Any]:
    if origin not in offset:
        raise ConfigurationError(
            "there is no such origin to forget",
            expected="one of " + (", ".join(sorted(offset)) or "none: nothing was captured"),
            found=repr(origin),
        )
    return {name: value for name, value in offset.items() if name != origin}
