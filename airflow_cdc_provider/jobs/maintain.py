"""The maintain stage: expire merged batches, compact files, expire snapshots."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import add_fences, newest_event, newest_generation
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.merging.pending import Pending, pending_by_table
from airflow_cdc_provider.jobs.publishing.stage import published_snapshots, published_through
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.spark.failures import or_failure
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.merged_position import MergedPosition
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.iceberg_difference import pin, release
from airflow_cdc_provider.lake.layout import PUBLISHED
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.mirror_history import state_before
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.iceberg import IcebergLake
    from airflow_cdc_provider.lake.table import LakeTable


def maintain(run: Run) -> JobResult:
    """Maintain the changes table and the mirrors of the job's tables.

    A batch expires when the mirrors of all tables have merged it, including tables that the job is not for or
    that have no mirror yet; none of its changes needs its origin's record of the newest fence; its events are
    published, if the connector publishes; and the lake's ``retention_seconds`` have expirable. While the
    state of a mirror can't be read, no batch expires; the others are maintained.
    """
    job, stores, source, clients, _ = run
    retain = job.connector.lake.retention_seconds
    mirrors = {t: m for t in selected_tables(job, stores, source) if (m := stores.mirror(t)).table.exists()}
    states = {t: or_failure(TableResult(t), stores.mirror(t).state) for t in source.tables()}
    failed = {t: state for t, state in states.items() if isinstance(state, TableResult)}
    known = {t: state for t, state in states.items() if isinstance(state, MirrorState)}
    through = -1 if failed else last_expirable_batch(job.connector, stores.changes, known)
    through = min(through, _last_published(job, stores, source, clients.connections, through))
    older_than = datetime.now(UTC) - timedelta(seconds=retain)
    if job.connector.publish.needs_earlier_rows:
        through = _keep_earlier_rows(stores, known, stores.changes.last_old(through, older_than))
    elif job.connector.publish.kafka.enabled:
        _release_pins(job.connector, stores.lake, clients.connections, mirrors)
    expired = stores.changes.expire(through, older_than)
    log.info("%s: batches through %d expired", stores.changes.name, expired)
    own = [stores.changes.table]
    if job.connector.publish.pulsar.enabled:
        positions = stores.lake.table(job.connector.published_table, PUBLISHED)
        own += [positions] if positions.exists() else []
    _maintain(own, retain)
    for table, mirror in mirrors.items():
        done = or_failure(TableResult(table), partial(_maintain_mirror, mirror, retain))
        if isinstance(done, TableResult):
            failed[table] = done
    return build_result(run, tables=[*failed.values()])


def _maintain_mirror(mirror: Mirror, retain_seconds: int) -> None:
    try:
        if mirror.remove_resolved(mirror.state()):
            log.info("%s: resolved keys are removed", mirror.name)
    except CommitConflict:
        log.info("%s: a merge is in progress; resolved keys will be removed later", mirror.name)
    _maintain(mirror.tables(), retain_seconds)


def _maintain(tables: Sequence[LakeTable], retain_seconds: int) -> None:
    for table in tables:
        started = time.monotonic()
        done = table.maintain(retain_seconds=retain_seconds)
        log.info(
            "%s: %d files compacted, %d snapshots expired, %.1f s",
            table.name,
            done.rewritten_files,
            done.expired_snapshots,
            time.monotonic() - started,
        )


def _keep_earlier_rows(stores: Stores, states: Mapping[str, MirrorState], through: int) -> int:
    """Pin the snapshots of mirrors that events of the kept batches need.

    These need rows from before their batch: those of a snapshot, and all changes since.

    Args:
        stores: The lake.
        states: States of mirrors by source table, for all tables with changes in the changes table.
        through: The last batch that would expire otherwise.

    Returns:
        The last batch that may expire.
    """
    if through <= 0:
        return through
    earlier = {}
    now_ms = time.time_ns() // 1_000_000
    for table, state in states.items():
        mirror = stores.mirror(table)
        lake_table = stores.lake.table(mirror.name)
        # Without one, the connector was declared when it had expired: the rows are unknown.
        earlier[table] = state_before(mirror, lake_table, through, now_ms) or state
        if snapshot := earlier[table].head.snapshot:
            pin(lake_table, snapshot, keep=())
    return min(through, last_expirable_batch(stores.connector, stores.changes, earlier))


def _release_pins(
    connector: Connector, lake: IcebergLake, connections: Connections, mirrors: Mapping[str, Mirror]
) -> None:
    """Release pinned snapshots of mirrors that publishing after merges no longer needs.

    These are all snapshots if each change is published: then the connector published after merges before.
    """
    after_merge = connector.publish.kafka.after_merge
    try:
        known = published_snapshots(connector, connections) if after_merge else MergedPosition()
    except BrokersUnavailable as error:
        log.warning("%s: no snapshot of a mirror is released: %s", connector.name, error)
        return
    if known is None:
        return
    for table, mirror in mirrors.items():
        position = known.tables.get(table)
        if position is not None or not after_merge:
            release(lake.table(mirror.name), position.snapshot if position else None)


def _last_published(job: Job, stores: Stores, source: Source, connections: Connections, through: int) -> int:
    """Return the last batch whose events are published; the given one if nothing is published."""
    publish = job.connector.publish
    # Publishing after merges reads mirrors, not batches.
    if not publish.enabled or publish.kafka.after_merge:
        return through
    try:
        batch = published_through(job, stores, source, connections)
    except BrokersUnavailable as error:
        log.warning("%s: no batch expires: %s", stores.changes.name, error)
        return -1
    if batch is None:
        return -1 if publish.start == "earliest" else through
    return batch


def last_expirable_batch(
    connector: Connector, changes: ChangesTable, states: Mapping[str, MirrorState]
) -> int:
    """Return the last batch that no mirror needs, -1 for none.

    Args:
        connector: The declaration.
        changes: The changes table.
        states: States of mirrors by source table, for all tables with changes in the changes table.
    """
    if not states:
        return -1
    newest = changes.state().batch
    pending = pending_by_table(changes, {t: s.merged_through for t, s in states.items()}, newest)
    expirable = newest
    for table, state in states.items():
        found = pending.get(table, Pending())
        moved = newest_event(add_fences(state.fences, found.fences)) != newest_event(state.fences)
        if found.rows or moved:
            expirable = min(expirable, state.merged_through)
    return min(expirable, _first_undecided(connector, changes, states) - 1)


def _first_undecided(connector: Connector, changes: ChangesTable, states: Mapping[str, MirrorState]) -> int:
    """Return the first batch with changes that count as older than a fence until its record arrives.

    A record that doesn't arrive while deletions are retained is no longer expected.
    """
    from pyspark.sql import functions as f

    since_us = int((time.time() - connector.lake.tombstone_retention_seconds) * 1_000_000)
    fenced = {t: s for t, s in states.items() if newest_generation(s.fences) > since_us}
    through = changes.state().batch
    first = through + 1
    if not fenced:
        return first
    rows = changes.pending(-1, through, fenced, record.DATA_KINDS)
    found = rows.groupBy("source_table", "origin").agg(f.min("batch").alias("first")).collect()
    for row in found:
        origins = {fence.origin for fence in newest_event(fenced[row["source_table"]].fences)}
        # A fence of all feeds applies to all changes; a row of no feed is older than any fence of a feed.
        if row["origin"] and origins.isdisjoint(("", row["origin"])):
            log.warning(
                "%s: node %s has no record of the last TRUNCATE yet; batches from %d on are kept for it",
                row["source_table"],
                row["origin"],
                row["first"],
            )
            first = min(first, int(row["first"]))
    return first
