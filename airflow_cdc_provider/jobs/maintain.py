"""The maintain stage: let go of merged batches, compact files, expire snapshots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import add_fences, newest_event, newest_generation
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table
from airflow_cdc_provider.jobs.publishing.publish import published
from airflow_cdc_provider.jobs.reporting.report import report
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.kafka.errors import BrokersAway
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import MirrorState


class MaintainContext(Protocol):
    """What of a job tells which batches may go."""

    @property
    def connector(self) -> Connector:
        """The declaration."""
        ...

    @property
    def changes(self) -> ChangesTable:
        """The changes table."""
        ...


def maintain(context: JobContext) -> JobResult:
    """Maintain the changes table and the mirrors of the job's tables.

    A batch goes when the mirrors of all tables have merged it, also of those that the job is not for, or that
    have no mirror yet; none of its changes waits for its origin's record of the newest fence; its events are
    published, if they are to be; and the lake's ``retention_seconds`` are over.
    """
    retain = context.connector.lake.retention_seconds
    mirrors = {t: m for t in context.tables() if (m := context.mirror(t)).table.exists()}
    through = last_batch_to_go(context, {t: context.mirror(t).state() for t in context.source.tables()})
    through = min(through, _last_published(context, through))
    gone = context.changes.expire(through, datetime.now(UTC) - timedelta(seconds=retain))
    log.info("%s: batches through %d let go", context.changes.name, gone)
    for mirror in mirrors.values():
        try:
            if mirror.forget_settled(mirror.state()):
                log.info("%s: doubts that are settled are forgotten", mirror.name)
        except CommitConflict:
            log.info("%s: a merge is under way; settled doubts are forgotten another time", mirror.name)
    own = [context.changes.table]
    if context.connector.publish.pulsar.enabled:
        standing = context.lake.table(context.connector.published_table)
        own += [standing] if standing.exists() else []
    for table in [*own, *(t for m in mirrors.values() for t in m.tables())]:
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


def _last_published(context: JobContext, through: int) -> int:
    """Return the last batch whose events nobody waits for; all of them, if nothing is published."""
    if not context.connector.publish.enabled:
        return through
    try:
        position = published(context)
    except BrokersAway as error:
        log.warning("%s: no batch is let go: %s", context.changes.name, error)
        return -1
    if position is None:
        return -1 if context.connector.publish.start == "earliest" else through
    return position.batch - 1


def last_batch_to_go(context: MaintainContext, states: Mapping[str, MirrorState]) -> int:
    """Return the last batch that no mirror needs any more, -1 for none.

    Args:
        context: The job.
        states: Of the mirrors, by source table: of all that the changes table has changes of.
    """
    if not states:
        return -1
    newest = context.changes.state().batch
    pending = pending_by_table(context.changes, {t: s.merged_through for t, s in states.items()}, newest)
    passed = newest
    for table, state in states.items():
        found = pending.get(table, Pending())
        moved = newest_event(add_fences(state.fences, found.fences)) != newest_event(state.fences)
        if found.rows or moved:
            passed = min(passed, state.merged_through)
    return min(passed, _first_undecided(context, states) - 1)


def _first_undecided(context: MaintainContext, states: Mapping[str, MirrorState]) -> int:
    """Return the first batch with changes that count as older than a fence until its record arrives.

    A record that doesn't arrive while deletions are remembered is not waited for.
    """
    from pyspark.sql import functions as f

    since_us = int((time.time() - context.connector.lake.tombstone_retention_seconds) * 1_000_000)
    fenced = {t: s for t, s in states.items() if newest_generation(s.fences) > since_us}
    through = context.changes.state().batch
    first = through + 1
    if not fenced:
        return first
    rows = context.changes.pending(-1, through, fenced, record.DATA_KINDS)
    found = rows.groupBy("source_table", "origin").agg(f.min("batch").alias("first")).collect()
    for row in found:
        origins = {fence.origin for fence in newest_event(fenced[row["source_table"]].fences)}
        # A fence of all feeds decides everything; a row of no feed is older than any fence of a feed.
        if row["origin"] and origins.isdisjoint(("", row["origin"])):
            log.warning(
                "%s: node %s has no record of the last TRUNCATE yet; batches from %d on are kept for it",
                row["source_table"],
                row["origin"],
                row["first"],
            )
            first = min(first, int(row["first"]))
    return first
