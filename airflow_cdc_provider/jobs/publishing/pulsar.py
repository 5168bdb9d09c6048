"""The publish stage for Pulsar: each record once and in order, as for Kafka.

Pulsar's transactions have no fencing of producers, so this stage doesn't use them. A record's sequence id is
``batch * 2**31 + its number in the batch``: increasing, and the same each time the batch is built. The next
run sends the records of a killed one again, and the broker drops them. See ``docs/design/publishing.md``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_matching, wait_for_servers
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag, require_batch
from airflow_cdc_provider.jobs.publishing.pulsar_position import PulsarPosition, PulsarPositionTable
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.lake.layout import PUBLISHED
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings
from airflow_cdc_provider.sources.base import Source
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.iceberg import IcebergLake

_NUMBER_BITS = 31
"""Bits of a sequence id for the number in a batch."""


def publish_to_pulsar(job: Job, stores: Stores, source: Source, connections: Connections) -> PublishResult:
    """Publish all batches of the changes table that aren't published yet.

    Raises:
        ConfigurationError: The connection, a permission or a topic's schema is invalid; the options changed
            within a batch; a record is too large; or the broker doesn't deduplicate.
        TransientError: The brokers didn't respond for ``publish.pulsar.retry_timeout_seconds``.
        CommitConflict: Another run publishes this connector's events.
        CorruptInput: A record can't be decoded and the source is strict.
        OffsetMissing: The stored position is of another changes table.
    """
    connector = as_published(job.connector)
    options = connector.publish.pulsar
    settings = ClientSettings.of_connection(connections.pulsar)
    job = replace(job, spec=replace(job.spec, tables=()), connector=connector)
    run = _Publishing(job, stores, source, settings, SkippedRecords(strict=connector.source.strict))
    started = time.monotonic()
    wait_for_servers(run.through_head, lambda: run.sent, options, job.stopping, connector.name)
    result = run.result(time.monotonic() - started)
    log.info("%s: published through batch %d: %d records", connector.name, result.batch, result.records)
    return result


def published_to_pulsar(connector: Connector, lake: IcebergLake) -> PublishPosition | None:
    """Return the stored position, None for none."""
    stored = _table(connector, lake).read()
    return stored.position if stored else None


def publish_to_pulsar_from(connector: Connector, stores: Stores, batch: int) -> None:
    """Let the next run start with a batch, under a new producer name.

    Raises:
        ConfigurationError: The batch neither exists nor is the next one.
    """
    require_batch(stores.changes, batch)
    table = _table(connector, stores.lake)
    try:
        table.read()
    except OffsetMissing as error:
        log.warning("%s: %s", connector.name, error)
    table.store(PulsarPosition(_new_name(connector), PublishPosition(connector.name, batch)))


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


@dataclass
class _Publishing:
    """One run of one or more tries."""

    job: Job
    stores: Stores
    source: Source
    settings: ClientSettings
    skipped: SkippedRecords
    tries: list[BatchPublisher] = field(default_factory=list)
    off: set[str] = field(default_factory=set)

    @property
    def sent(self) -> int:
        """Number of sends of all tries."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest batch."""
        connector = self.job.connector
        options = connector.publish.pulsar
        through = self.stores.changes.state().batch
        form = f"{form_of(connector)} {options.namespace}"
        table = _table(self.job.connector, self.stores.lake)
        stored = table.read()
        if stored is None:
            first = 1 if options.start == "earliest" else through + 1
            stored = PulsarPosition(_new_name(connector), PublishPosition(connector.name, first))
            table.store(stored)
        at = stored.position
        require_matching(at, form, through)
        if at.now_ns and at.form != form:
            require_matching(replace(at, records=max(1, at.records)), form, through)
        if at.batch > through:
            self.tries.append(self._publisher(table, self._producer(stored), stored, form))
            return
        # Records of the batch may have been sent already: they keep their build time.
        now_ns = at.now_ns or time.time_ns()
        at = replace(at, now_ns=now_ns, form=form)
        producer = self._producer(stored)
        publisher = self._publisher(table, producer, replace(stored, position=at), form)
        self.tries.append(publisher)
        table.store(PulsarPosition(stored.producer, at))
        try:
            publisher.publish(through, now_ns)
        finally:
            self.off |= producer.undeduplicated
        if publisher.position.batch > through:
            publisher.position = replace(publisher.position, now_ns=0)
            table.store(PulsarPosition(stored.producer, publisher.position))

    def result(self, seconds: float) -> PublishResult:
        """Return what was published and what is pending."""
        batch = self.tries[-1].position.batch - 1
        off = [f"the broker doesn't deduplicate topic {topic}" for topic in sorted(self.off)]
        return PublishResult(
            batch=batch,
            records=sum(one.records for one in self.tries),
            transactions=self.sent,
            pending_batches=self.stores.changes.state().batch - batch,
            lag_seconds=publishing_lag(self.stores.changes, batch),
            seconds=round(seconds, 3),
            findings=(*self.skipped.report(), *off),
        )

    def _producer(self, stored: PulsarPosition) -> PulsarProducer:
        namespace = self.job.connector.publish.pulsar.namespace
        return PulsarProducer(self.settings, stored.producer, namespace)

    def _publisher(
        self, table: PulsarPositionTable, producer: PulsarProducer, stored: PulsarPosition, form: str
    ) -> BatchPublisher:
        options = self.job.connector.publish.pulsar
        return BatchPublisher(
            Sender(producer, table, stored.producer, options.delivery == "exactly_once"),
            self._events,
            (),
            form,
            options.records_per_commit,
            self.job.stopping,
            None,
            stored.position,
        )

    def _events(self, request: EventRequest) -> Iterator[EventBatch]:
        own = source_plugin(self.job.connector.type).events()
        return with_sequence_ids(own.captured_records(self.stores, self.source, request, self.skipped))


def _table(connector: Connector, lake: IcebergLake) -> PulsarPositionTable:
    return PulsarPositionTable(lake.table(connector.published_table, PUBLISHED))


def _new_name(connector: Connector) -> str:
    """Return a new producer name, since brokers drop records of known producers as duplicates."""
    return f"{connector.name}.{uuid.uuid4().hex[:16]}"
