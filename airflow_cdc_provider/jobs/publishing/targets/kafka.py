"""Kafka as a target: one producer, on the driver, in transactions with the position after their records.

No transaction is open while events are built: it starts when its records are complete. If brokers or a
registry don't respond, the run retries for ``publish.kafka.retry_timeout_seconds``; each try starts like a
new run, from the stored position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, Self

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher
from airflow_cdc_provider.jobs.publishing.publication import Origin, OriginT, Try, name_of
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.topics.rules import positions_under, topic_maker
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import TopicCreator
from airflow_cdc_provider.sources.encoding import headers_of, registry_settings


@dataclass(frozen=True)
class Producers:
    """Builds the producers of an origin. Picklable.

    Args:
        topic: The positions topic.
        transactional_id: The connector's transactional id; empty for delivery at least once.
        topics: Creates missing topics; None to leave that to brokers or operators.
        suffix: Suffix of the transactional id of an origin without slices; empty: the number of the slice.
    """

    topic: PositionsTopic = field(repr=False)
    transactional_id: str
    topics: TopicCreator | None = field(default=None, repr=False)
    suffix: str = ""

    @classmethod
    def of(cls, connector: Connector, connections: Connections, suffix: str = "") -> Self:
        """Return the producers of a connector's changes, or of another origin with a suffix to its name.

        Raises:
            ConfigurationError: As :func:`client_settings`.
        """
        settings = client_settings(connector, connections)
        options = connector.publish.kafka
        return cls(
            positions_topic(connector, settings, suffix),
            (options.transactional_id or connector.name) if options.delivery == "exactly_once" else "",
            topic_maker(connector, settings),
            suffix,
        )

    def of_slice(self, number: int = 0) -> RecordProducer:
        """Connect the producer of a slice."""
        own_id = self.transactional_id and f"{self.transactional_id}.{self.suffix or number}"
        return RecordProducer(self.topic.settings, self.topic, number, own_id, topics=self.topics)

    def fence_all(self) -> list[PublishPosition]:
        """Fence the producers of all slices, and return the positions of the slices; empty if there are none.

        Without fencing, an open transaction of a killed task may hide positions.

        Raises:
            BrokersUnavailable: The brokers don't respond.
            OffsetMissing: A position can't be read, or is missing.
            ConfigurationError: A login, permission or setting is invalid.
        """
        return self.topic.all_slices(self.fence)

    def fence(self, number: int) -> PublishPosition | None:
        """Fence a slice's producer, and return the position of the slice, None for none."""
        with closing(self.of_slice(number)) as producer:
            return producer.take_over()


@dataclass(frozen=True)
class KafkaTarget(Generic[OriginT]):
    """The connector's topics.

    Args:
        job: The job.
        dead_letters: Stores dead letters.
        connections: Connection values.
        producers: Builds producers.
        heartbeats: Sender of heartbeats between records and after them; None for none.
    """

    job: Job
    dead_letters: DeadLetters
    connections: Connections
    producers: Producers
    heartbeats: Heartbeats | None = None

    @property
    def retries(self) -> KafkaOptions:
        """How long, and how often, to retry."""
        return self.job.connector.publish.kafka

    @property
    def findings(self) -> Sequence[str]:
        """The first dead letters."""
        return self.dead_letters.findings

    def publish(self, origin: OriginT, tries: list[Try]) -> None:
        """Publish to the end of the origin; see :class:`.publication.Target`."""
        self.producers.topic.make(1)
        with closing(self.producers.of_slice()) as producer:
            self._publish_rest(origin, producer, _take_over(producer, origin), tries)
        self._beat(origin, tries)

    def stored(self) -> PublishPosition | None:
        """Return the stored position, None for none."""
        return self.producers.topic.read()

    def reset(self, origin: OriginT, batch: int) -> None:
        """Let the next run start with a batch, even if the stored position can't be read."""
        origin.require(batch)
        self.producers.topic.make(1)
        with closing(self.producers.of_slice()) as producer:
            producer.take_over(read=False)
            producer.publish((), (), origin.at(batch))

    def _publish_rest(
        self, origin: OriginT, producer: RecordProducer, stored: PublishPosition | None, tries: list[Try]
    ) -> BatchPublisher:
        """Publish from the stored position, which is final as the producer has fenced all others."""
        position = origin.start(stored)
        connector, options = self.job.connector, self.retries
        publisher = BatchPublisher(
            sender=producer,
            build=lambda request: self._events(origin, request),
            registrar=registrar_of(connector, self.connections),
            headers=headers_of(connector),
            form=origin.form,
            records_per_commit=options.records_per_commit,
            stopping=self.job.stopping,
            quarantine=self.dead_letters.add if connector.publish.writes_dead_letters else None,
            passes_topics=connector.publish.passes_rejected_topics,
            position=position,
        )
        tries.append(publisher)
        if stored is None and not origin.restarts:
            publisher.keep_position()
        origin.publish(publisher)
        return publisher

    def _events(self, origin: Origin, request: EventRequest) -> Iterator[EventBatch]:
        events = origin.build(request)
        return events if self.heartbeats is None else self.heartbeats.between(events)

    def _beat(self, origin: OriginT, tries: list[Try]) -> None:
        """Send a heartbeat if one is due."""
        if self.heartbeats is not None:
            self.heartbeats.published = origin.published_through(tries[-1].position)
            self.heartbeats.beat()
            if self.heartbeats.refused:
                tries[-1].refused["heartbeats"] = self.heartbeats.refused


def _take_over(producer: RecordProducer, origin: Origin) -> PublishPosition | None:
    try:
        return producer.take_over()
    except OffsetMissing as error:
        if not origin.restarts:
            raise
        log.warning("%s starts over: %s", origin.name, error)
        return None


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


def positions_topic(connector: Connector, settings: ClientSettings, suffix: str = "") -> PositionsTopic:
    """Return the topic of a connector's positions, for those of its changes or of another origin."""
    return positions_under(connector, settings, name_of(connector, suffix))
