"""Publishing after merges: whole rows in their current state, one event for each row that merges changed.

A run publishes the difference of two snapshots of a mirror
(:mod:`airflow_cdc_provider.lake.iceberg_difference`): the last published one, which a tag protects from
expiry, and the newest. Rows are sorted by key, deletes first, so that a difference is the same sequence each
time it is computed: an interrupted run resumes within it, with the same snapshots.

Records and position (:mod:`airflow_cdc_provider.kafka.merged_position`) are sent in one transaction, with the
transactional id ``<connector>.merged``.

A row has one event for any number of merges, and none if its state is the same as before. The difference to a
re-created mirror is unknown: the run fails until an operator decides (:func:`publish_merged_from`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.merging.pending import pending_by_table
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, wait_for_servers
from airflow_cdc_provider.jobs.publishing.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag
from airflow_cdc_provider.jobs.publishing.publish import (
    client_settings,
    heartbeats_of,
    positions_topic,
    registrar_of,
)
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.kafka.merged_position import MergedPosition, PublishedSnapshot, Step
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
from airflow_cdc_provider.lake.static_changes import all_static_columns, changed_static_columns
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.abilities import RenamesTables
from airflow_cdc_provider.sources.base import Source
from airflow_cdc_provider.sources.encoding import encoded, headers_of
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.sources.row_events import RowEvents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish_merged(job: Job, stores: Stores, source: Source, clients: Clients) -> PublishResult:
    """Publish the rows that merges changed since the last run.

    Raises:
        ConfigurationError: As :func:`~.publish.publish`; or mirrors have no form to build events from.
        TransientError: The brokers didn't respond for ``publish.kafka.retry_timeout_seconds``.
        CommitConflict: Another run publishes this connector's rows.
        CorruptInput: A row can't be encoded and the source is strict.
        OffsetMissing: The last published snapshot of a mirror has expired, or the mirror was re-created.
    """
    connector = job.connector
    options = connector.publish.kafka
    job = replace(job, spec=replace(job.spec, tables=()))
    beats = heartbeats_of(job.connector, stores.changes, clients)
    run = _Merged(
        job,
        stores,
        source,
        clients.connections,
        client_settings(job.connector, clients.connections),
        SkippedRecords(strict=connector.source.strict),
        beats,
    )
    started = time.monotonic()

    def publish_once() -> None:
        run.through_head()
        if beats is not None:
            beats.beat()

    wait_for_servers(publish_once, lambda: run.transactions, options, job.stopping, connector.name)
    result = run.result(time.monotonic() - started)
    log.info(
        "%s: published the changes of merges through batch %d: %d records in %d transactions",
        connector.name,
        result.batch,
        result.records,
        result.transactions,
    )
    return result


def published_merged(connector: Connector, connections: Connections) -> MergedPosition | None:
    """Return the published position of mirrors, None if nothing is published. No producer is fenced."""
    stored = _positions(connector, client_settings(connector, connections)).read()
    return None if stored is None else MergedPosition.from_json(stored.state)


def publish_merged_from(
    job: Job, stores: Stores, source: Source, connections: Connections, batch: int
) -> None:
    """Let the next run publish all rows of all mirrors again, or only later merges.

    Raises:
        ConfigurationError: The batch is neither the first nor the next one.
    """
    following = stores.changes.state().batch + 1
    if batch not in (1, following):
        raise ConfigurationError(
            f"publishing after merges can't continue with batch {batch}",
            expected=f"1 for all rows of the mirrors again, or {following} for only later merges",
            found=str(batch),
        )
    settings = client_settings(job.connector, connections)
    positions = _positions(job.connector, settings)
    positions.make(1)
    producer = _producer(job.connector, settings)
    try:
        producer.take_over(read=False)
        known = _now(job, stores, source) if batch == following else MergedPosition()
        producer.publish([], (), PublishPosition(positions.connector, 1, state=known.to_json()))
    finally:
        producer.close()


def batch_of(job: Job, stores: Stores, source: Source, known: MergedPosition) -> int:
    """Return the last batch of the changes table whose changes are all published."""
    newest = stores.changes.state().batch
    places = {table: known.tables.get(table) for table in selected_tables(job, stores, source)}
    merged = {table: place.batch if place else -1 for table, place in places.items()}
    if not merged or min(merged.values()) >= newest:
        return newest
    pending = pending_by_table(stores.changes, merged, newest)
    return min([newest, *(merged[table] for table, found in pending.items() if found.rows or found.fences)])


def _positions(connector: Connector, settings: ClientSettings) -> PositionsTopic:
    shared = positions_topic(connector, settings)
    return PositionsTopic(settings, shared.topic, f"{connector.name}.merged", shared.replication)


def _producer(connector: Connector, settings: ClientSettings) -> RecordProducer:
    options = connector.publish.kafka
    lead = options.transactional_id or connector.name
    return RecordProducer(
        settings,
        _positions(connector, settings),
        transactional_id=f"{lead}.merged" if options.delivery == "exactly_once" else "",
        topics=topic_maker(connector, settings),
    )


def _now(job: Job, stores: Stores, source: Source) -> MergedPosition:
    """Return the position at which all merged rows are published, and pin its snapshots."""
    tables = {}
    for table in selected_tables(job, stores, source):
        place = _newest(stores, table)
        if place is not None:
            # The published snapshots stay pinned until the new position is stored; maintenance releases them.
            pin(stores.lake.table(stores.mirror(table).name), place.snapshot)
            tables[table] = place
    return MergedPosition(tables)


def _newest(stores: Stores, table: str) -> PublishedSnapshot | None:
    """Return the current snapshot of a mirror; None if nothing was merged yet."""
    mirror = stores.mirror(table)
    state = mirror.state()
    if state.merged_through < 0 or state.head.snapshot is None:
        return None
    return PublishedSnapshot(
        table_id(stores.lake.table(mirror.name)), state.head.snapshot, state.merged_through
    )


@dataclass
class _Merged:
    """One run of one or more tries.

    Args:
        job: The job, for all tables.
        stores: The lake.
        source: The source.
        connections: Connection values.
        settings: Client settings.
        skipped: Collects skipped records.
        heartbeats: Sender of heartbeats between records; None for none.
        tries: The publisher of each try.
        known: The published position of mirrors.
    """

    job: Job
    stores: Stores
    source: Source
    connections: Connections
    settings: ClientSettings
    skipped: SkippedRecords
    heartbeats: Heartbeats | None = None
    tries: list[BatchPublisher] = field(default_factory=list)
    known: MergedPosition = field(default_factory=MergedPosition)

    @property
    def transactions(self) -> int:
        """Number of transactions of all tries."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest snapshots."""
        positions = _positions(self.job.connector, self.settings)
        positions.make(1)
        producer = _producer(self.job.connector, self.settings)
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
                if self.job.stopping() or self.known.step is not None:
                    break
                self._publish_table(publisher, table)
        finally:
            producer.close()
        if self.heartbeats is not None:
            self.heartbeats.published = batch_of(self.job, self.stores, self.source, self.known)

    def result(self, seconds: float) -> PublishResult:
        """Return what was published and what is pending."""
        batch = batch_of(self.job, self.stores, self.source, self.known)
        return PublishResult(
            batch=batch,
            records=sum(one.records for one in self.tries),
            dead_letters=sum(one.dead_letters for one in self.tries),
            transactions=self.transactions,
            pending_batches=self.stores.changes.state().batch - batch,
            lag_seconds=publishing_lag(self.stores.changes, batch),
            seconds=round(seconds, 3),
            findings=tuple(self.skipped.report()),
        )

    def _tables(self) -> list[str]:
        """List the tables whose mirrors may have changed, including dropped tables, whose mirrors empty."""
        tables = selected_tables(self.job, self.stores, self.source)
        if not isinstance(self.source, RenamesTables):
            return tables
        selects = self.job.connector.selects
        return [*tables, *sorted(t for t in self.known.tables if t not in tables and selects(t))]

    def _publish_table(self, publisher: BatchPublisher, table: str) -> None:
        """Publish the changed rows of one mirror, if there are any."""
        newest = _newest(self.stores, table)
        published = self.known.tables.get(table)
        if newest is None or newest == published:
            return
        step = Step(table, newest, self._row_events(table).columns)
        planned = replace(self.known, step=step)
        self._require_kept(planned, step)
        # Before the position names it: a run couldn't resume with an expired snapshot.
        mirror = self.stores.lake.table(self.stores.mirror(table).name)
        pin(mirror, newest.snapshot, keep=planned.snapshots(table))
        publisher.position = replace(publisher.position, state=planned.to_json(), records=0)
        self._follow(publisher)

    def _follow(self, publisher: BatchPublisher) -> None:
        """Publish the step of the position, or its rest."""
        publisher.publish(publisher.position.batch, time.time_ns())
        self.known = MergedPosition.from_json(publisher.position.state)

    def _publisher(self, producer: RecordProducer, position: PublishPosition) -> BatchPublisher:
        connector = self.job.connector
        options = connector.publish.kafka
        return BatchPublisher(
            producer,
            self._events,
            headers_of(connector),
            form_of(connector),
            options.records_per_commit,
            self.job.stopping,
            DeadLetters.of(self.job.connector, self.stores).add if options.writes_dead_letters else None,
            position,
        )

    def _first(self, name: str) -> PublishPosition:
        """Return the first position of a connector."""
        earliest = self.job.connector.publish.kafka.start == "earliest"
        known = MergedPosition() if earliest else _now(self.job, self.stores, self.source)
        return PublishPosition(name, 1, state=known.to_json())

    def _row_events(self, table: str) -> RowEvents:
        return source_plugin(self.job.connector.type).events().row_events(self.stores, self.source, table)

    def _events(self, request: EventRequest) -> Iterator[EventBatch]:
        events = self._events_of_step(request)
        return events if self.heartbeats is None else self.heartbeats.between(events)

    def _events_of_step(self, request: EventRequest) -> Iterator[EventBatch]:
        """Build the events of the step in the request's state."""
        known = MergedPosition.from_json(request.state)
        step = known.step
        assert step is not None
        connector = self.job.connector
        after = known.reached().to_json()
        yield EventBatch(request.after + 1, encoded(connector, []), after)
        events = self._row_events(step.table)
        build = events.builder(
            request.now_ns, registrar_of(self.job.connector, self.connections), self.skipped
        )
        with ExitStack() as read:
            for rows in self._changed(known, step, events, read):
                for batch in arrow_batches(rows):
                    yield EventBatch(request.after + 1, build(batch), after)

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
        if position.records and position.form != publisher.form:
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
