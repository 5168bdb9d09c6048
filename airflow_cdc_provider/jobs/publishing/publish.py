"""The publish stage: events of the changes table to Kafka, each once and in order.

Batch after batch of the changes table: its events are made (:mod:`.events.captured`), some thousands of them
are sent in a transaction together with the position after them, and a run that was ended anywhere goes on
there. What makes that exact, and what is not guaranteed: ``docs/publishing.md``.

One slice is published here, on the driver; several by tasks of Spark (:mod:`.slices`).

Nothing is open while events are made: a transaction begins when its records are there. Brokers and a
registry that don't answer are waited for (``publish.kafka.retry_seconds``): each try begins as a new run
does, with the position.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats, heartbeat_producer
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events.captured import captured_records, is_strict
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.vitess.lake import heartbeat_records
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_ours, wait_for_servers
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag, require_batch
from airflow_cdc_provider.jobs.publishing.refused_records import RefusedRecords
from airflow_cdc_provider.jobs.publishing.slices import (
    Producers,
    SlicedRun,
    begin_slices,
    change_slices,
    tell,
)
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.jobs.topics.rules import topic_maker
from airflow_cdc_provider.jobs.topics.settings import headers_of, heartbeat_of, registry_settings
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.vitess.options import VitessOptions


def publish(context: JobContext) -> PublishResult:
    """Publish what the changes table holds and isn't published.

    Raises:
        ConfigurationError: Nothing tells where to; a login, right, topic or setting is wrong; the form of
            the events changed in the middle of a batch; or the broker refuses records.
        TransientError: The brokers, or the registry, didn't answer for ``publish.kafka.retry_seconds``.
        CommitConflict: Another run publishes this connector's events.
        CorruptInput: A record can't be decoded and the source is strict.
        OffsetMissing: The stored position is of another changes table.
    """
    options = context.connector.publish.kafka
    settings = client_settings(context)
    # A job that is for some tables publishes all: a batch's events must be the same each time.
    everything = replace(context, spec=replace(context.spec, tables=()))
    beats = heartbeats_of(context)
    run = _Publishing(everything, settings, Damage(strict=is_strict(context.connector)), beats)
    began = time.monotonic()

    def publish_once() -> None:
        run.through_head()
        if beats is not None:
            beats.beat()

    name = context.connector.name
    wait_for_servers(publish_once, lambda: run.transactions, options, context.stopping, name)
    result = run.result(time.monotonic() - began)
    log.info(
        "%s: published through batch %d: %d records in %d transactions",
        context.connector.name,
        result.batch,
        result.records,
        result.transactions,
    )
    return result


def published(context: JobContext) -> PublishPosition | None:
    """Return the stored position, of several slices the least; None for none. Nobody is fenced."""
    return positions_topic(context.connector, client_settings(context)).least()


def publish_from(context: JobContext, batch: int) -> None:
    """Let the next run begin with a batch, whatever was published before.

    A stored position that can't be read is replaced; slices are those of the declaration then.

    Raises:
        ConfigurationError: There can be no such batch.
    """
    require_batch(context, batch)
    connector = context.connector
    settings = client_settings(context)
    topic = positions_topic(connector, settings)
    topic.make(1)
    producers = _producers(connector, settings)
    try:
        first = producers.take_over(0)
    except OffsetMissing as error:
        log.warning("%s: %s", connector.name, error)
        first = None
    slices = first.slices if first else connector.publish.kafka.slices
    topic.make(slices)
    for number in reversed(range(slices)):
        tell(producers, PublishPosition(connector.name, batch, slice=number, slices=slices))


def client_settings(context: JobContext) -> ClientSettings:
    """Return what a job's clients are built with.

    Raises:
        ConfigurationError: The declaration or the job names no connection, or that is wrong.
    """
    options = context.connector.publish.kafka
    if not options.enabled:
        raise ConfigurationError(
            f"connector {context.connector.name} publishes nothing",
            expected="publish.kafka.connection with the id of an Airflow connection of type kafka",
        )
    return ClientSettings(
        context.kafka,
        options.producer,
        options.consumer,
        options.retry_interval_seconds,
        options.retry_seconds,
    )


def registrar_of(context: JobContext) -> Registry | None:
    """Return what gives schemas their ids; None where no registry takes part.

    Raises:
        ConfigurationError: The registry's connection is wrong, or nothing tells its address.
    """
    settings = registry_settings(context.connector, context.registry)
    return Registry(settings) if settings else None


def heartbeats_of(context: JobContext) -> Heartbeats | None:
    """Return what sends the connector's heartbeats, the same for all rounds of a job; None for none.

    Raises:
        ConfigurationError: As :func:`client_settings`.
    """
    publish = context.connector.publish
    if not publish.kafka.enabled or not publish.heartbeat_interval_seconds:
        return None
    if context.heartbeats is None:
        settings = client_settings(context)
        registrar = registrar_of(context)
        positions = positions_topic(context.connector, settings)

        def make(now_ns: int, through: int) -> pa.RecordBatch:
            if isinstance(context.connector.source, VitessOptions):
                return heartbeat_records(context, now_ns, registrar, through)
            return heartbeat_of(context.connector, now_ns // 1_000_000, registrar)

        context.heartbeats = Heartbeats(
            publish.heartbeat_interval_seconds,
            make,
            lambda: heartbeat_producer(context.connector, settings, positions),
        )
    return context.heartbeats


def positions_topic(connector: Connector, settings: ClientSettings) -> PositionsTopic:
    """Return the topic of a connector's positions."""
    options = connector.publish.kafka
    name = options.positions_topic or f"{connector.topic_prefix}.cdc-positions"
    copies = options.positions_replication
    if copies == -1:
        copies = connector.publish.topics.replication
    return PositionsTopic(settings, name, connector.name, copies)


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
    """One run. What it counts outlives its tries.

    Args:
        context: The job, for all tables.
        settings: Of the clients.
        damage: Collects what is left out.
        heartbeats: What is sent between records where they take long; None for none.
        tries: What each try did.
    """

    context: JobContext
    settings: ClientSettings
    damage: Damage
    heartbeats: Heartbeats | None = None
    tries: list[BatchPublisher | SlicedRun] = field(default_factory=list)

    @property
    def transactions(self) -> int:
        """How many there were."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest batch."""
        connector = self.context.connector
        wanted = connector.publish.kafka.slices
        through = self.context.changes.state().batch
        topic = positions_topic(connector, self.settings)
        topic.make(wanted)
        positions: Sequence[PublishPosition] = () if wanted == 1 else self._producers.take_all_over()
        if wanted == 1 or len(positions) == 1:
            positions = self._in_one(through)
        elif not positions:
            positions = begin_slices(self._producers, self._first(through), wanted)
        if len(positions) > 1:
            positions = self._sliced(positions, through)
        if self.heartbeats is not None:
            self.heartbeats.published = min(position.batch for position in positions) - 1
        if len(positions) != wanted and all(position.batch > through for position in positions):
            positions = change_slices(self._producers, positions, wanted)

    def _in_one(self, through: int) -> Sequence[PublishPosition]:
        """Publish in one slice, on the driver; return where the slices stand, if there are more."""
        connector = self.context.connector
        producer = self._producers.of_slice(0)
        try:
            # Only then is what the topic tells the last word: nobody can add to it any more.
            stored = producer.take_over()
            if stored is not None and stored.slices > 1:
                return self._producers.take_all_over()
            position = stored or self._first(through)
            require_ours(position, form_of(connector), through)
            publisher = self._publisher(producer, position)
            self.tries.append(publisher)
            if stored is None:
                publisher.keep_position()
            publisher.publish(through, time.time_ns())
            return [publisher.position]
        finally:
            producer.close()

    def _sliced(self, positions: Sequence[PublishPosition], through: int) -> Sequence[PublishPosition]:
        """Publish in the slices that there are; return where they stand."""
        connector = self.context.connector
        run = SlicedRun(
            self.context,
            self._producers,
            registrar_of(self.context),
            headers_of(connector),
            form_of(connector),
            self.damage,
            positions,
        )
        self.tries.append(run)
        run.publish(through)
        return run.positions

    @property
    def _producers(self) -> Producers:
        return _producers(self.context.connector, self.settings)

    def result(self, seconds: float) -> PublishResult:
        """Tell what was done and what is left."""
        batch = self.tries[-1].position.batch - 1
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

    def _publisher(self, producer: RecordProducer, position: PublishPosition) -> BatchPublisher:
        connector = self.context.connector
        options = connector.publish.kafka
        registrar = registrar_of(self.context)
        return BatchPublisher(
            producer,
            lambda wanted: self._made(replace(wanted, registrar=registrar)),
            headers_of(connector),
            form_of(connector),
            options.records_at_once,
            self.context.stopping,
            RefusedRecords.of(self.context).add if options.sets_apart else None,
            position,
        )

    def _made(self, wanted: Wanted) -> Iterator[Made]:
        made = captured_records(self.context, wanted, self.damage)
        return made if self.heartbeats is None else self.heartbeats.between(made)

    def _first(self, through: int) -> PublishPosition:
        """Return where the first run of a connector begins."""
        earliest = self.context.connector.publish.kafka.start == "earliest"
        return PublishPosition(self.context.connector.name, 1 if earliest else through + 1)
