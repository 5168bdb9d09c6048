"""Publishing after merges: the rows that merges changed, whole and as they are, each change of a row once.

What is published of a mirror is the difference of two of its snapshots
(:mod:`airflow_cdc_provider.lake.iceberg_difference`): that through which it is published, which a tag keeps
from expiry, and the newest. Rows come by key, those that are gone first, so that a difference is the same
sequence each time it is made: a run that was ended in the middle of one goes on there, with the snapshots at
which it was begun.
Records and position (:mod:`airflow_cdc_provider.kafka.merged_position`) are one transaction, of the
transactional id ``<connector>.merged``.

However many merges there were since, a row has one event, and none if it is as it was. A mirror that was made
anew has nothing in common with what is published: that is told, never guessed (:func:`publish_merged_from`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events.captured import is_strict
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.merged_rows import RowEvents, row_events
from airflow_cdc_provider.jobs.merging.pending import pending_by_table
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, wait_for_servers
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag
from airflow_cdc_provider.jobs.publishing.publish import (
    client_settings,
    heartbeats_of,
    positions_topic,
    registrar_of,
)
from airflow_cdc_provider.jobs.publishing.refused_records import RefusedRecords
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.jobs.topics.settings import encoded, headers_of
from airflow_cdc_provider.kafka.merged_position import MergedPosition, Place, Step
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.lake.iceberg_difference import (
    difference,
    has_snapshot,
    newest_of_same_rows,
    pin,
    table_id,
)
from airflow_cdc_provider.lake.row_changes import all_rows, arrow_batches, changed_rows
from airflow_cdc_provider.lake.static_changes import all_statics, changed_statics
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.abilities import RenamesTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish_merged(context: JobContext) -> PublishResult:
    """Publish what merges changed since the last time.

    Raises:
        ConfigurationError: As :func:`~.publish.publish`; or mirrors don't keep what events are made of.
        TransientError: The brokers didn't answer for ``publish.kafka.retry_seconds``.
        CommitConflict: Another run publishes this connector's rows.
        CorruptInput: A row can't be shown and the source is strict.
        OffsetMissing: The snapshot through which a mirror is published is gone, or the mirror was made anew.
    """
    connector = context.connector
    options = connector.publish.kafka
    everything = replace(context, spec=replace(context.spec, tables=()))
    beats = heartbeats_of(context)
    run = _Merged(everything, client_settings(context), Damage(strict=is_strict(connector)), beats)
    began = time.monotonic()

    def publish_once() -> None:
        run.through_head()
        if beats is not None:
            beats.beat()

    wait_for_servers(publish_once, lambda: run.transactions, options, context.stopping, connector.name)
    result = run.result(time.monotonic() - began)
    log.info(
        "%s: published what merges through batch %d changed: %d records in %d transactions",
        connector.name,
        result.batch,
        result.records,
        result.transactions,
    )
    return result


def published_merged(context: JobContext) -> MergedPosition | None:
    """Return how far mirrors are published, None if nothing is yet. Nobody is fenced."""
    stored = _positions(context, client_settings(context)).read()
    return None if stored is None else MergedPosition.from_json(stored.state)


def publish_merged_from(context: JobContext, batch: int) -> None:
    """Let the next run publish all rows of all mirrors anew, or only what is merged from now on.

    Raises:
        ConfigurationError: Another batch than the first or the next one.
    """
    following = context.changes.state().batch + 1
    if batch not in (1, following):
        raise ConfigurationError(
            "publishing after merges can't go on there",
            expected=f"1, all rows of the mirrors anew, or {following}, what is merged from now on",
            found=str(batch),
        )
    settings = client_settings(context)
    positions = _positions(context, settings)
    positions.make(1)
    producer = _producer(context, settings)
    try:
        producer.take_over(read=False)
        known = _now(context) if batch == following else MergedPosition()
        producer.publish([], (), PublishPosition(positions.connector, 1, state=known.to_json()))
    finally:
        producer.close()


def batch_of(context: JobContext, known: MergedPosition) -> int:
    """Return the last batch of the changes table whose changes are all in what is published."""
    newest = context.changes.state().batch
    places = {table: known.tables.get(table) for table in context.tables()}
    merged = {table: place.batch if place else -1 for table, place in places.items()}
    if not merged or min(merged.values()) >= newest:
        return newest
    pending = pending_by_table(context.changes, merged, newest)
    return min([newest, *(merged[table] for table, found in pending.items() if found.rows or found.fences)])


def _positions(context: JobContext, settings: ClientSettings) -> PositionsTopic:
    shared = positions_topic(context.connector, settings)
    return PositionsTopic(settings, shared.topic, f"{context.connector.name}.merged", shared.replication)


def _producer(context: JobContext, settings: ClientSettings) -> RecordProducer:
    options = context.connector.publish.kafka
    lead = options.transactional_id or context.connector.name
    return RecordProducer(
        settings,
        _positions(context, settings),
        transactional_id=f"{lead}.merged" if options.delivery == "exactly_once" else "",
        topics=topic_maker(context.connector, settings),
    )


def _now(context: JobContext) -> MergedPosition:
    """Return the position at which everything that is merged is published, and keep its snapshots."""
    tables = {}
    for table in context.tables():
        place = _newest(context, table)
        if place is not None:
            # What is published stays pinned until the new position is stored: maintenance lets go of it.
            pin(context.lake.table(context.mirror(table).name), place.snapshot)
            tables[table] = place
    return MergedPosition(tables)


def _newest(context: JobContext, table: str) -> Place | None:
    """Return where a mirror stands; None if nothing was merged there yet."""
    mirror = context.mirror(table)
    state = mirror.state()
    if state.merged_through < 0 or state.head.snapshot is None:
        return None
    return Place(table_id(context.lake.table(mirror.name)), state.head.snapshot, state.merged_through)


@dataclass
class _Merged:
    """One run. What it counts outlives its tries.

    Args:
        context: The job, for all tables.
        settings: Of the clients.
        damage: Collects what is left out.
        heartbeats: What is sent between records where they take long; None for none.
        tries: What each try did.
        known: How far the mirrors are published.
    """

    context: JobContext
    settings: ClientSettings
    damage: Damage
    heartbeats: Heartbeats | None = None
    tries: list[BatchPublisher] = field(default_factory=list)
    known: MergedPosition = field(default_factory=MergedPosition)

    @property
    def transactions(self) -> int:
        """How many there were."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest snapshots."""
        positions = _positions(self.context, self.settings)
        positions.make(1)
        producer = _producer(self.context, self.settings)
        try:
            stored = producer.take_over()
            publisher = self._publisher(producer, stored or self._first(positions.connector))
            self.tries.append(publisher)
            if stored is None:
                publisher.keep_position()
            self.known = MergedPosition.from_json(publisher.position.state)
            if self.known.step is not None:
                self._require_form(publisher)
                self._require_kept(self.known, self.known.step)
                self._follow(publisher)
            for table in self._tables():
                if self.context.stopping() or self.known.step is not None:
                    break
                self._publish_table(publisher, table)
        finally:
            producer.close()
        if self.heartbeats is not None:
            self.heartbeats.published = batch_of(self.context, self.known)

    def result(self, seconds: float) -> PublishResult:
        """Tell what was done and what is left."""
        batch = batch_of(self.context, self.known)
        return PublishResult(
            batch=batch,
            records=sum(one.records for one in self.tries),
            refused=sum(one.refused for one in self.tries),
            transactions=self.transactions,
            pending_batches=self.context.changes.state().batch - batch,
            lag_seconds=publishing_lag(self.context, batch),
            seconds=round(seconds, 3),
            findings=tuple(self.damage.told()),
        )

    def _tables(self) -> list[str]:
        """List the tables whose mirrors may have changed: also gone ones, whose mirrors empty."""
        tables = self.context.tables()
        if not isinstance(self.context.source, RenamesTables):
            return tables
        selects = self.context.connector.selects
        return [*tables, *sorted(t for t in self.known.tables if t not in tables and selects(t))]

    def _publish_table(self, publisher: BatchPublisher, table: str) -> None:
        """Publish what became of one mirror's rows, if anything did."""
        newest = _newest(self.context, table)
        published = self.known.tables.get(table)
        if newest is None or newest == published:
            return
        step = Step(table, newest, row_events(self.context, table).columns)
        planned = replace(self.known, step=step)
        self._require_kept(planned, step)
        # Before the position names it: a snapshot that expired could not be gone on with.
        mirror = self.context.lake.table(self.context.mirror(table).name)
        pin(mirror, newest.snapshot, keep=planned.snapshots(table))
        publisher.position = replace(publisher.position, state=planned.to_json(), records=0)
        self._follow(publisher)

    def _follow(self, publisher: BatchPublisher) -> None:
        """Publish the step that the position names, or its rest."""
        publisher.publish(publisher.position.batch, time.time_ns())
        self.known = MergedPosition.from_json(publisher.position.state)

    def _publisher(self, producer: RecordProducer, position: PublishPosition) -> BatchPublisher:
        connector = self.context.connector
        options = connector.publish.kafka
        return BatchPublisher(
            producer,
            self._made,
            headers_of(connector),
            form_of(connector),
            options.records_at_once,
            self.context.stopping,
            RefusedRecords.of(self.context).add if options.sets_apart else None,
            position,
        )

    def _first(self, name: str) -> PublishPosition:
        """Return where the first run of a connector begins."""
        earliest = self.context.connector.publish.kafka.start == "earliest"
        known = MergedPosition() if earliest else _now(self.context)
        return PublishPosition(name, 1, state=known.to_json())

    def _made(self, wanted: Wanted) -> Iterator[Made]:
        made = self._made_of_step(wanted)
        return made if self.heartbeats is None else self.heartbeats.between(made)

    def _made_of_step(self, wanted: Wanted) -> Iterator[Made]:
        """Make the events of the step that a state names."""
        known = MergedPosition.from_json(wanted.state)
        step = known.step
        assert step is not None
        connector = self.context.connector
        after = known.reached().to_json()
        yield Made(wanted.after + 1, encoded(connector, []), after)
        events = row_events(self.context, step.table)
        make = events.maker(wanted.now_ns, registrar_of(self.context), self.damage)
        with ExitStack() as read:
            for rows in self._changed(known, step, events, read):
                for batch in arrow_batches(rows):
                    yield Made(wanted.after + 1, make(batch), after)

    def _changed(
        self, known: MergedPosition, step: Step, events: RowEvents, read: ExitStack
    ) -> Iterator[DataFrame]:
        """Yield what a step tells: rows, then static columns where they are told apart."""
        table = self.context.lake.table(self.context.mirror(step.table).name)
        published = known.tables.get(step.table)
        apart = events.statics_apart
        columns = () if apart else step.columns
        everything = table.read(Head(step.until.snapshot))
        if published is None:
            yield all_rows(everything, columns, statics_apart=apart)
            if apart and step.columns:
                yield all_statics(everything, step.columns)
            return
        since = newest_of_same_rows(table, published.snapshot)
        found = read.enter_context(difference(table, since, step.until.snapshot))
        yield changed_rows(found, columns, statics_apart=apart)
        if apart and step.columns:
            yield changed_statics(found, table.read(Head(since)), everything, step.columns)

    def _require_form(self, publisher: BatchPublisher) -> None:
        """Refuse to go on in the middle of a step with another form of events."""
        position = publisher.position
        if position.records and position.form != publisher.form:
            raise ConfigurationError(
                f"the form of events of {self.context.connector.name} changed while rows were published",
                expected="the options of publish, and the tables, with which it was begun",
                found=f"others, {position.records} records after its begin",
                remedy="publish once with the old options; or all rows anew in the new form, by: airflow cdc "
                "offsets publish --batch 1",
            )

    def _require_kept(self, known: MergedPosition, step: Step) -> None:
        """Refuse to publish what became of rows of which it isn't known any more what they were.

        Raises:
            OffsetMissing: The mirror was made anew, or a snapshot is gone.
        """
        name = self.context.mirror(step.table).name
        table = self.context.lake.table(name)
        published = known.tables.get(step.table)
        wanted = {place.snapshot for place in (published, step.until) if place is not None}
        ids = {place.table_id for place in (published, step.until) if place is not None}
        remade = not table.exists() or ids != {table_id(table)}
        if remade or not all(has_snapshot(table, snapshot) for snapshot in wanted):
            raise OffsetMissing(
                f"it isn't known any more which rows of {name} are published",
                expected=f"the snapshots {', '.join(sorted(wanted))}, which tags of the table keep",
                found="a table that was made anew" if remade else "a table without them",
                remedy="airflow cdc offsets publish --batch 1 publishes all rows of all mirrors anew; rows "
                "that were deleted meanwhile are found by CdcCompareTopicsOperator",
            )
