"""Pulsar as a target: each record once and in order, as for Kafka.

Pulsar's transactions have no fencing of producers, so this stage doesn't use them. A record's sequence id is
``batch * 2**31 + its number in the batch``: increasing, and the same each time the batch is built. The next
run sends the records of a killed one again, and the broker drops them. See ``docs/design/publishing.md``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.publish.pulsar import PulsarOptions
from airflow_cdc_provider.events.event_batches import EventBatch
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.publication import Try
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.targets.pulsar_position import PulsarPosition, PulsarPositionTable
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.lake.layout import PUBLISHED
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings

_NUMBER_BITS = 31
"""Bits of a sequence id for the number in a batch."""


def as_published(connector: Connector) -> Connector:
    """Return the connector with Pulsar's topic names, and with schemas for records."""
    publish = connector.publish
    pattern = f"{publish.pulsar.topic_prefix}{{database}}.{{table}}"
    return replace(connector, publish=replace(publish, topic_pattern=pattern, schemas=True))


def with_sequence_ids(found: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Add a column with sequence ids to records."""
    batch, count = -1, 0
    for events in found:
        if events.batch != batch:
            batch, count = events.batch, 0
        rows = events.records.num_rows
        ids = np.arange(count, count + rows, dtype=np.int64) + (batch << _NUMBER_BITS)
        count += rows
        yield replace(events, records=events.records.append_column("sequence", pa.array(ids)))


@dataclass
class Sender:
    """Sends records, and stores the position after the broker has stored them.

    Args:
        producer: Sends records.
        table: Stores the position.
        name: The producer's name.
        exactly_once: Whether to raise an error if the broker doesn't deduplicate.
    """

    producer: PulsarProducer
    table: PulsarPositionTable
    name: str
    exactly_once: bool

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        """Send records and store the position after them.

        Raises:
            ConfigurationError: The broker doesn't deduplicate. The records are published, once.
            CdcError: As the producer, and the table.
        """
        del headers  # each record of Cassandra has its own headers
        if records:
            self.producer.send(records)
        self.table.store(PulsarPosition(self.name, position))
        if self.exactly_once and (off := self.producer.undeduplicated):
            raise ConfigurationError(
                f"the broker doesn't deduplicate topic {min(off)}",
                expected="deduplication, without which a killed run's records are duplicated",
                remedy="set brokerDeduplicationEnabled=true, or pulsar-admin namespaces set-deduplication "
                "--enable TENANT/NAMESPACE; or choose publish.pulsar.delivery: at_least_once. What was sent "
                "is stored once, and so is its position",
            )


@dataclass(frozen=True)
class PulsarTarget:
    """The connector's topics.

    Args:
        job: The job, with the connector of :func:`as_published`.
        dead_letters: Stores dead letters.
        connections: Connection values.
        table: Stores the position.
        undeduplicated: Gets the topics whose broker doesn't deduplicate.
    """

    job: Job
    dead_letters: DeadLetters
    connections: Connections
    table: PulsarPositionTable
    undeduplicated: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, job: Job, stores: Stores, connections: Connections) -> Self:
        """Return the target of a job."""
        table = stores.lake.table(job.connector.published_table, PUBLISHED)
        return cls(job, DeadLetters.of(job.connector, stores), connections, PulsarPositionTable(table))

    @property
    def retries(self) -> PulsarOptions:
        """How long, and how often, to retry."""
        return self.job.connector.publish.pulsar

    @property
    def findings(self) -> Sequence[str]:
        """The topics whose broker doesn't deduplicate, and the first dead letters."""
        found = [f"the broker doesn't deduplicate topic {one}" for one in sorted(self.undeduplicated)]
        return [*found, *self.dead_letters.findings]

    def publish(self, origin: Changes, tries: list[Try]) -> None:
        """Publish to the last batch; see :class:`.publication.Target`."""
        settings = ClientSettings.of_connection(self.connections.pulsar)
        stored = self.table.read()
        if stored is None:
            stored = PulsarPosition(_new_name(self.job.connector), origin.first)
            self.table.store(stored)
        at = origin.start(stored.position)
        if at.now_ns and at.form != origin.form:
            require_matching(replace(at, records=max(1, at.records)), origin.form, origin.through)
        producer = PulsarProducer(settings, stored.producer, self.retries.namespace)
        pending = at.batch <= origin.through
        if pending:
            # Records of the batch may have been sent already: they keep their build time.
            at = replace(at, now_ns=at.now_ns or time.time_ns(), form=origin.form)
        sender = Sender(producer, self.table, stored.producer, self.retries.delivery == "exactly_once")
        publisher = BatchPublisher(
            sender=sender,
            build=lambda request: with_sequence_ids(origin.build(request)),
            form=origin.form,
            records_per_commit=self.retries.records_per_commit,
            position=at,
            stopping=self.job.stopping,
            quarantine=self.dead_letters.add if self.job.connector.publish.writes_dead_letters else None,
        )
        tries.append(publisher)
        if not pending:
            return
        self.table.store(PulsarPosition(stored.producer, at))
        try:
            publisher.publish(origin.through, at.now_ns)
        finally:
            self.undeduplicated.update(producer.undeduplicated)
        if publisher.position.batch > origin.through:
            publisher.position = replace(publisher.position, now_ns=0)
            self.table.store(PulsarPosition(stored.producer, publisher.position))

    def stored(self) -> PublishPosition | None:
        """Return the stored position, None for none."""
        stored = self.table.read()
        return stored.position if stored else None

    def reset(self, origin: Changes, batch: int) -> None:
        """Let the next run start with a batch, under a new producer name."""
        origin.require(batch)
        try:
            self.table.read()
        except OffsetMissing as error:
            log.warning("%s: %s", origin.name, error)
        self.table.store(PulsarPosition(_new_name(self.job.connector), origin.at(batch)))


def _new_name(connector: Connector) -> str:
    """Return a new producer name, since brokers drop records of known producers as duplicates."""
    return f"{connector.name}.{uuid.uuid4().hex[:16]}"
