"""The publish stage: events of the changes table to Kafka, each once and in order.

The stage builds events batch by batch (:mod:`.events.captured`) and sends some thousands of them in a
transaction together with the position after them, so the next run resumes where an interrupted one stopped.
``docs/publishing.md`` describes the guarantees and their limits.

With one slice it publishes on the driver; with several, Spark tasks publish (:mod:`.slices`).

No transaction is open while events are built: it starts when its records are complete. If brokers or a
registry don't respond, the stage retries for ``publish.kafka.retry_timeout_seconds``; each try starts like a
new run, from the stored position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats, heartbeat_producer
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching, wait_for_servers
from airflow_cdc_provider.jobs.publishing.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag, require_batch
from airflow_cdc_provider.jobs.publishing.slices import (
    Producers,
    SlicedRun,
    change_slices,
    start_slices,
    store_position,
)
from airflow_cdc_provider.jobs.resuming.progress import stored_offset
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.base import Source
from airflow_cdc_provider.sources.encoding import headers_of, registry_settings
from airflow_cdc_provider.sources.registry import source_plugin


def publish(job: Job, stores: Stores, source: Source, clients: Clients) -> PublishResult:
    """Publish all batches of the changes table that aren't published yet.

    Raises:
        ConfigurationError: There is no connection; a login, permission, topic or setting is invalid; the
            options changed within a batch; or the broker refuses records.
        TransientError: The brokers, or the registry, didn't respond for
            ``publish.kafka.retry_timeout_seconds``.
        CommitConflict: Another run publishes this connector's events.
        CorruptInput: A record can't be decoded and the source is strict.
        OffsetMissing: The stored position is of another changes table.
    """
    options = job.connector.publish.kafka
    settings = client_settings(job.connector, clients.connections)
    # A job for some tables publishes all of them: a batch's events must be the same each time.
    job = replace(job, spec=replace(job.spec, tables=()))
    beats = heartbeats_of(job.connector, stores.changes, clients)
    run = _Publishing(
        job,
        stores,
        source,
        clients.connections,
        settings,
        SkippedRecords(strict=job.connector.source.strict),
        beats,
    )
    started = time.monotonic()

    def publish_once() -> None:
        run.through_head()
        if beats is not None:
            beats.beat()

    name = job.connector.name
    wait_for_servers(publish_once, lambda: run.transactions, options, job.stopping, name)
    result = run.result(time.monotonic() - started)
    log.info(
        "%s: published through batch %d: %d records in %d transactions",
        job.connector.name,
        result.batch,
        result.records,
        result.transactions,
    )
    return result


def published(connector: Connector, connections: Connections) -> PublishPosition | None:
    """Return the stored position, of several slices the least; None for none. No producer is fenced."""
    return positions_topic(connector, client_settings(connector, connections)).slowest()


def publish_from(connector: Connector, changes: ChangesTable, connections: Connections, batch: int) -> None:
    """Let the next run start with a batch, whatever was published before.

    A stored position that can't be read is replaced, with the declared number of slices.

    Raises:
        ConfigurationError: The batch neither exists nor is the next one.
    """
    require_batch(changes, batch)
    settings = client_settings(connector, connections)
    topic = positions_topic(connector, settings)
    topic.make(1)
    producers = _producers(connector, settings)
    try:
        first = producers.fence(0)
    except OffsetMissing as error:
        log.warning("%s: %s", connector.name, error)
        first = None
    slices = first.slices if first else connector.publish.kafka.slices
    topic.make(slices)
    for number in reversed(range(slices)):
        store_position(producers, PublishPosition(connector.name, batch, slice=number, slices=slices))


def client_settings(connector: Connector, connections: Connections) -> ClientSettings:
    """Return the settings of a job's clients.

    Raises:
        ConfigurationError: The declaration or the job has no connection, or an invalid one.
    """
    options = connector.publish.kafka
    if not options.enabled:
        raise ConfigurationError(
            f"connector {connector.name} publishes nothing",
            expected="publish.kafka.connection with the id of an Airflow connection of type kafka",
        )
    return ClientSettings(
        connections.kafka,
        options.producer,
        options.consumer,
        options.retry_interval_seconds,
        options.retry_timeout_seconds,
    )


def registrar_of(connector: Connector, connections: Connections) -> Registry | None:
    """Return the registrar that assigns ids to schemas; None without a registry.

    Raises:
        ConfigurationError: The registry's connection is invalid or has no address.
    """
    settings = registry_settings(connector, connections.registry)
    return Registry(settings) if settings else None


def heartbeats_of(connector: Connector, changes: ChangesTable, clients: Clients) -> Heartbeats | None:
    """Return the sender of the connector's heartbeats, the same for all rounds of a job; None for none.

    Raises:
        ConfigurationError: As :func:`client_settings`.
    """
    publish = connector.publish
    if not publish.kafka.enabled or not publish.heartbeat_interval_seconds:
        return None
    if clients.heartbeats is None:
        settings = client_settings(connector, clients.connections)
        registrar = registrar_of(connector, clients.connections)
        positions = positions_topic(connector, settings)

        events = source_plugin(connector.type).events()

        def build(now_ns: int, through: int) -> pa.RecordBatch:
            offset = partial(stored_offset, changes, through)
            return events.heartbeat_records(connector, offset, now_ns, registrar)

        clients.heartbeats = Heartbeats(
            publish.heartbeat_interval_seconds,
            build,
            lambda: heartbeat_producer(connector, settings, positions),
        )
    return clients.heartbeats


def positions_topic(connector: Connector, settings: ClientSettings) -> PositionsTopic:
    """Return the topic of a connector's positions."""
    options = connector.publish.kafka
    name = options.positions_topic or f"{connector.topic_prefix}.cdc-positions"
    replication = options.positions_replication
    if replication == -1:
        replication = connector.publish.topics.replication
    return PositionsTopic(settings, name, connector.name, replication)


def _producers(connector: Connector, settings: ClientSettings) -> Producers:
    options = connector.publish.kafka
    lead = options.transactional_id or connector.name
    return Producers(
        positions_topic(connector, settings),
        lead if options.delivery == "exactly_once" else "",
        topic_maker(connector, settings),
    )


@dataclass
class _Publishing:
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
    """

    job: Job
    stores: Stores
    source: Source
    connections: Connections
    settings: ClientSettings
    skipped: SkippedRecords
    heartbeats: Heartbeats | None = None
    tries: list[BatchPublisher | SlicedRun] = field(default_factory=list)

    @property
    def transactions(self) -> int:
        """Number of transactions of all tries."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest batch."""
        connector = self.job.connector
        slices = connector.publish.kafka.slices
        through = self.stores.changes.state().batch
        topic = positions_topic(connector, self.settings)
        topic.make(slices)
        positions: Sequence[PublishPosition] = () if slices == 1 else self._producers.fence_all()
        if slices == 1 or len(positions) == 1:
            positions = self._in_one(through)
        elif not positions:
            positions = start_slices(self._producers, self._first(through), slices)
        if len(positions) > 1:
            positions = self._sliced(positions, through)
        if self.heartbeats is not None:
            self.heartbeats.published = min(position.batch for position in positions) - 1
        if len(positions) != slices and all(position.batch > through for position in positions):
            positions = change_slices(self._producers, positions, slices)

    def _in_one(self, through: int) -> Sequence[PublishPosition]:
        """Publish in one slice, on the driver; return the positions, of all slices if there are more."""
        connector = self.job.connector
        producer = self._producers.of_slice(0)
        try:
            # Only after fencing is the stored position final: no other producer can change it.
            stored = producer.take_over()
            if stored is not None and stored.slices > 1:
                return self._producers.fence_all()
            position = stored or self._first(through)
            require_matching(position, form_of(connector), through)
            publisher = self._publisher(producer, position)
            self.tries.append(publisher)
            if stored is None:
                publisher.keep_position()
            publisher.publish(through, time.time_ns())
            return [publisher.position]
        finally:
            producer.close()

    def _sliced(self, positions: Sequence[PublishPosition], through: int) -> Sequence[PublishPosition]:
        """Publish in the existing slices; return their positions."""
        connector = self.job.connector
        run = SlicedRun(
            self.job,
            self.stores,
            self.source,
            self._producers,
            registrar_of(self.job.connector, self.connections),
            headers_of(connector),
            form_of(connector),
            self.skipped,
            positions,
        )
        self.tries.append(run)
        run.publish(through)
        return run.positions

    @property
    def _producers(self) -> Producers:
        return _producers(self.job.connector, self.settings)

    def result(self, seconds: float) -> PublishResult:
        """Return what was published and what is pending."""
        batch = self.tries[-1].position.batch - 1
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

    def _publisher(self, producer: RecordProducer, position: PublishPosition) -> BatchPublisher:
        connector = self.job.connector
        options = connector.publish.kafka
        registrar = registrar_of(self.job.connector, self.connections)
        return BatchPublisher(
            producer,
            lambda request: self._events(replace(request, registrar=registrar)),
            headers_of(connector),
            form_of(connector),
            options.records_per_commit,
            self.job.stopping,
            DeadLetters.of(self.job.connector, self.stores).add if options.writes_dead_letters else None,
            position,
        )

    def _events(self, request: EventRequest) -> Iterator[EventBatch]:
        own = source_plugin(self.job.connector.type).events()
        events = own.captured_records(self.stores, self.source, request, self.skipped)
        return events if self.heartbeats is None else self.heartbeats.between(events)

    def _first(self, through: int) -> PublishPosition:
        """Return the first position of a connector."""
        earliest = self.job.connector.publish.kafka.start == "earliest"
        return PublishPosition(self.job.connector.name, 1 if earliest else through + 1)
