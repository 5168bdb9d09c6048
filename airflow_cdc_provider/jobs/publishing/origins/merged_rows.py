"""Merged rows as an origin: whole rows in their current state, one event for each row that merges changed.

A run publishes the difference of two snapshots of a mirror
(:mod:`airflow_cdc_provider.lake.iceberg_difference`): the last published one, which a tag protects from
expiry, and the newest. Rows are sorted by key, deletes first, so that a difference is the same sequence each
time it is computed: an interrupted run resumes within it, with the same snapshots.

The position's ``state`` is a :mod:`airflow_cdc_provider.kafka.merged_position`.

A row has one event for any number of merges, and none if its state is the same as before. The difference to a
re-created mirror is unknown: the run fails until an operator decides (:meth:`MergedRows.at`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.exceptions import (
    CommitConflict,
    CommitStateUnknown,
    ConfigurationError,
    OffsetMissing,
    SchemaRejected,
    TransientError,
)
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.merging.pending import pending_by_table
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.jobs.publishing.publication import Origin
from airflow_cdc_provider.jobs.publishing.topic_owners import topic_owners
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.kafka.merged_position import MergedPosition, PublishedSnapshot, Step
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.lake.iceberg_difference import (
    difference,
    has_snapshot,
    newest_of_same_rows,
    pin,
    table_id,
)
from airflow_cdc_provider.lake.row_changes import all_rows, arrow_batches, changed_rows
from airflow_cdc_provider.lake.static_changes import all_static_columns, changed_static_columns
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.encoding import clash_of, encoded
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.sources.row_events import RowEvents, built

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MergedRows(Origin):
    """Events of all rows that merges changed."""

    suffix = "merged"

    def start(self, stored: PublishPosition | None) -> PublishPosition:
        """Return the position to start with: at first before all rows, or after all that are merged."""
        if stored is not None:
            return stored
        earliest = self.job.connector.publish.kafka.start == "earliest"
        return self._first(MergedPosition() if earliest else self._now())

    def build(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build the events of the step in the request's state."""
        known = MergedPosition.from_json(request.state)
        step = known.step
        assert step is not None
        connector = self.job.connector
        after = known.reached().to_json()
        yield EventBatch(request.after + 1, encoded(connector, []), after)
        events = self._row_events(step.table)
        build = events.builder(request.now_ns, request.registrar, self.skipped)
        with ExitStack() as read:
            for rows in self._changed(known, step, events, read):
                for batch in arrow_batches(rows):
                    for records in built(build, batch, step.table, self.skipped):
                        yield EventBatch(request.after + 1, records, after)

    def publish(self, publisher: BatchPublisher) -> None:
        """Publish the rest of each interrupted or failed step, then one step for each mirror that changed.

        A mirror that fails is left out until the next run, which resumes after the records that were sent.
        """
        publisher.position = between_steps(publisher.position)
        known = MergedPosition.from_json(publisher.position.state)
        steps = {step.table: step for step in known.failed}
        tables = dict.fromkeys([*steps, *self._tables(known)])
        refused = self._refused(known, tables)
        kept = {table: place for table, place in known.tables.items() if table not in refused}
        publisher.position = replace(publisher.position, state=replace(known, tables=kept).to_json())
        for table in tables:
            if self.job.stopping():
                break
            try:
                if table in refused:
                    raise refused[table]
                if table in steps:
                    self._resume(publisher, steps[table])
                if not self.job.stopping() and self._plan(publisher, table):
                    _follow(publisher)
            except Exception as error:
                of_all = isinstance(error, TransientError | CommitConflict | CommitStateUnknown)
                if of_all or failures.is_of_all_tables(error):
                    raise
                publisher.position = between_steps(publisher.position)
                failed = failures.of_one_table(TableResult(table), error, "its rows can't be published: ")
                self.errors[table] = failed.error

    def published_through(self, position: PublishPosition) -> int:
        """Return the last batch of the changes table whose changes are all published."""
        known = MergedPosition.from_json(position.state)
        newest = self.stores.changes.state().batch
        tables = selected_tables(self.job, self.stores, self.source)
        refused = self._refused(known, tables)
        tables = [table for table in tables if table not in refused]
        merged = {table: known.tables[table].batch if table in known.tables else -1 for table in tables}
        if not merged or min(merged.values()) >= newest:
            return newest
        pending = pending_by_table(self.stores.changes, merged, newest)
        unpublished = (merged[table] for table, found in pending.items() if found.rows or found.fences)
        return min([newest, *unpublished])

    def require(self, batch: int) -> None:
        """Refuse a batch that is neither the first nor the next one.

        Raises:
            ConfigurationError: It is another one.
        """
        following = self.stores.changes.state().batch + 1
        if batch not in (1, following):
            raise ConfigurationError(
                f"publishing after merges can't continue with batch {batch}",
                expected=f"1 for all rows of the mirrors again, or {following} for only later merges",
                found=str(batch),
            )

    def at(self, batch: int) -> PublishPosition:
        """Return the position to publish all rows of all mirrors again (batch 1), or only later merges."""
        following = self.stores.changes.state().batch + 1
        return self._first(self._now() if batch == following else MergedPosition())

    def _first(self, known: MergedPosition) -> PublishPosition:
        return PublishPosition(self.name, 1, state=known.to_json())

    def _now(self) -> MergedPosition:
        """Return the position at which all merged rows are published, and pin its snapshots."""
        tables = {}
        selected = selected_tables(self.job, self.stores, self.source)
        refused = self._refused(MergedPosition(), selected)
        for table in selected:
            place = self._newest(table)
            if place is not None and table not in refused:
                # Published snapshots stay pinned until the new position is stored; maintenance releases them.
                pin(self.stores.lake.table(self.stores.mirror(table).name), place.snapshot)
                tables[table] = place
        return MergedPosition(tables)

    def _newest(self, table: str) -> PublishedSnapshot | None:
        """Return the current snapshot of a mirror; None if nothing was merged yet."""
        mirror = self.stores.mirror(table)
        state = mirror.state()
        if state.merged_through < 0 or state.head.snapshot is None:
            return None
        return PublishedSnapshot(
            table_id(self.stores.lake.table(mirror.name)), state.head.snapshot, state.merged_through
        )

    def _tables(self, known: MergedPosition) -> list[str]:
        """List the tables whose mirrors may have changed, including dropped tables, whose mirrors empty."""
        tables = selected_tables(self.job, self.stores, self.source)
        if not self.source.renames_tables:
            return tables
        selects = self.job.connector.selects
        return [*tables, *sorted(t for t in known.tables if t not in tables and selects(t))]

    def _refused(self, known: MergedPosition, tables: Iterable[str]) -> dict[str, SchemaRejected]:
        """Return the tables whose topics are of others: of those that were published, or recorded, first."""
        connector = self.job.connector
        owners = topic_owners(connector, self.stores.changes, known.tables, {*known.tables, *tables})
        found = {table: clash_of(connector, table, owners) for table in tables}
        return {table: error for table, error in found.items() if error is not None}

    def _resume(self, publisher: BatchPublisher, step: Step) -> None:
        """Publish the rest of a step, which the first records determine."""
        known = MergedPosition.from_json(publisher.position.state).within(step)
        publisher.position = replace(
            publisher.position,
            records=step.records,
            now_ns=step.now_ns,
            form=step.form,
            state=known.to_json(),
        )
        self._require_form(publisher)
        self._require_kept(known, step)
        _follow(publisher)

    def _plan(self, publisher: BatchPublisher, table: str) -> bool:
        """Put the step of a mirror into the position; return whether its rows may have changed."""
        known = MergedPosition.from_json(publisher.position.state)
        newest = self._newest(table)
        if newest is None or newest == known.tables.get(table):
            return False
        step = Step(table, newest, self._row_events(table).columns)
        planned = known.within(step)
        self._require_kept(planned, step)
        # Before the position names it: a run couldn't resume with an expired snapshot.
        mirror = self.stores.lake.table(self.stores.mirror(table).name)
        pin(mirror, newest.snapshot, keep=planned.snapshots(table))
        publisher.position = replace(publisher.position, state=planned.to_json(), records=0)
        return True

    def _row_events(self, table: str) -> RowEvents:
        return source_plugin(self.job.connector.type).events().row_events(self.stores, self.source, table)

    def _changed(
        self, known: MergedPosition, step: Step, events: RowEvents, read: ExitStack
    ) -> Iterator[DataFrame]:
        """Yield the changed rows of a step, then static columns if they have separate events."""
        table = self.stores.lake.table(self.stores.mirror(step.table).name)
        published = known.tables.get(step.table)
        separate = events.static_columns_table
        columns = () if separate else step.columns
        everything = table.read(Head(step.until.snapshot))
        if published is None:
            yield all_rows(everything, columns, static_columns_table=separate)
            if separate and step.columns:
                yield all_static_columns(everything, step.columns)
            return
        since = newest_of_same_rows(table, published.snapshot)
        found = read.enter_context(difference(table, since, step.until.snapshot))
        yield changed_rows(found, columns, static_columns_table=separate)
        if separate and step.columns:
            yield changed_static_columns(found, table.read(Head(since)), everything, step.columns)

    def _require_form(self, publisher: BatchPublisher) -> None:
        """Refuse to resume within a step with other options."""
        position = publisher.position
        if position.form != publisher.form:
            raise ConfigurationError(
                f"the form of events of {self.job.connector.name} changed while rows were published",
                expected="the options of publish, and the tables, of the first records",
                found=f"other options after {position.records} records",
                remedy="publish once with the old options; or all rows again in the new form: airflow cdc "
                "offsets publish-from --batch 1",
            )

    def _require_kept(self, known: MergedPosition, step: Step) -> None:
        """Refuse to publish changes of rows whose published state is no longer known.

        Raises:
            OffsetMissing: The mirror was re-created, or a snapshot has expired.
        """
        name = self.stores.mirror(step.table).name
        table = self.stores.lake.table(name)
        published = known.tables.get(step.table)
        snapshots = {place.snapshot for place in (published, step.until) if place is not None}
        ids = {place.table_id for place in (published, step.until) if place is not None}
        recreated = not table.exists() or ids != {table_id(table)}
        if recreated or not all(has_snapshot(table, snapshot) for snapshot in snapshots):
            raise OffsetMissing(
                f"the published snapshot of {name} no longer exists",
                expected=f"the snapshots {', '.join(sorted(snapshots))}, which tags of the table keep",
                found="a table that was re-created" if recreated else "a table without them",
                remedy="airflow cdc offsets publish-from --batch 1 publishes all rows of all mirrors again; "
                "CdcCompareTopicsOperator finds rows that were deleted meanwhile",
            )


def between_steps(position: PublishPosition) -> PublishPosition:
    """Return the position with an interrupted step among the failed ones; unless none of it was sent."""
    known = MergedPosition.from_json(position.state)
    if known.step is None:
        return position
    sent = replace(known.step, records=position.records, now_ns=position.now_ns, form=position.form)
    failed = (*known.failed, sent) if position.records else known.failed
    state = replace(known, step=None, failed=failed).to_json()
    return replace(position, records=0, state=state)


def _follow(publisher: BatchPublisher) -> None:
    """Publish the step of the position, or its rest."""
    publisher.publish(publisher.position.batch, time.time_ns())
