"""The publish stage of connectors that publish to Pulsar: each record once and in order, as to Kafka.

Pulsar's transactions know no producer that takes over from another, so nothing here is in one. A record's
sequence id is ``batch * 2**31 + its number in the batch``: the same whenever the batch is made, and growing.
What a killed run has sent the next one sends again, and the broker drops it. What makes that exact:
``docs/design/publishing.md``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events.captured import captured_records, is_strict
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, require_ours, wait_for_servers
from airflow_cdc_provider.jobs.publishing.form import form_of, publishing_lag, require_batch
from airflow_cdc_provider.jobs.publishing.standing import Standing, StandingTable
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.lake.layout import PUBLISHED
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings

_NUMBER_BITS = 31
"""Of a sequence id, for the number in a batch."""


def publish_to_pulsar(context: JobContext) -> PublishResult:
    """Publish what the changes table holds and isn't published.

    Raises:
        ConfigurationError: The connection, a right or a topic's schema is wrong; the form of events changed
            in the middle of a batch; a record is too large; or the broker doesn't deduplicate.
        TransientError: The brokers didn't answer for ``publish.pulsar.retry_seconds``.
        CommitConflict: Another run publishes this connector's events.
        CorruptInput: A record can't be decoded and the source is strict.
        OffsetMissing: The stored position is of another changes table.
    """
    connector = as_published(context.connector)
    options = connector.publish.pulsar
    settings = ClientSettings.of_connection(context.pulsar)
    everything = replace(context, spec=replace(context.spec, tables=()), connector=connector)
    run = _Publishing(everything, settings, Damage(strict=is_strict(connector)))
    began = time.monotonic()
    wait_for_servers(run.through_head, lambda: run.sent, options, context.stopping, connector.name)
    result = run.result(time.monotonic() - began)
    log.info("%s: published through batch %d: %d records", connector.name, result.batch, result.records)
    return result


def published_to_pulsar(context: JobContext) -> PublishPosition | None:
    """Return the stored position, None for none."""
    standing = _table(context).read()
    return standing.position if standing else None


def publish_to_pulsar_from(context: JobContext, batch: int) -> None:
    """Let the next run begin with a batch, under a name that no broker knows yet.

    Raises:
        ConfigurationError: There can be no such batch.
    """
    require_batch(context, batch)
    table = _table(context)
    try:
        table.read()
    except OffsetMissing as error:
        log.warning("%s: %s", context.connector.name, error)
    table.store(Standing(_new_name(context.connector), PublishPosition(context.connector.name, batch)))


def as_published(connector: Connector) -> Connector:
    """Return a connector with what follows from Pulsar: names of topics, and schemas beside records."""
    publish = connector.publish
    pattern = f"{publish.pulsar.topic_prefix}{{database}}.{{table}}"
    return replace(connector, publish=replace(publish, topic_pattern=pattern, schemas=True))


def numbered(found: Iterator[Made]) -> Iterator[Made]:
    """Give records their sequence ids: a column more."""
    batch, count = -1, 0
    for made in found:
        if made.batch != batch:
            batch, count = made.batch, 0
        rows = made.records.num_rows
        ids = np.arange(count, count + rows, dtype=np.int64) + (batch << _NUMBER_BITS)
        count += rows
        yield replace(made, records=made.records.append_column("sequence", pa.array(ids)))


@dataclass
class Sender:
    """Sends records, and stores the position when the broker has stored them.

    Args:
        producer: Sends.
        table: Stores.
        name: The producer's.
        exactly_once: Whether a broker that doesn't deduplicate ends it.
    """

    producer: PulsarProducer
    table: StandingTable
    name: str
    exactly_once: bool

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        """Send records and store the position after them.

        Raises:
            ConfigurationError: The broker doesn't deduplicate. The records are published, once.
            CdcError: As the producer, and the table.
        """
        del headers  # of Cassandra's events each has its own
        if records:
            self.producer.send(records)
        self.table.store(Standing(self.name, position))
        if self.exactly_once and (off := self.producer.undeduplicated):
            raise ConfigurationError(
                f"the broker doesn't deduplicate topic {min(off)}",
                expected="deduplication, without which a killed run's records come twice",
                remedy="set brokerDeduplicationEnabled=true, or pulsar-admin namespaces set-deduplication "
                "--enable TENANT/NAMESPACE; or choose publish.pulsar.delivery: at_least_once. What was sent "
                "is stored once, and so is its position",
            )


@dataclass
class _Publishing:
    """One run; what it counts outlives its tries."""

    context: JobContext
    settings: ClientSettings
    damage: Damage
    tries: list[BatchPublisher] = field(default_factory=list)
    off: set[str] = field(default_factory=set)

    @property
    def sent(self) -> int:
        """How often something was sent."""
        return sum(one.transactions for one in self.tries)

    def through_head(self) -> None:
        """Publish from the stored position to the newest batch."""
        connector = self.context.connector
        options = connector.publish.pulsar
        through = self.context.changes.state().batch
        form = f"{form_of(connector)} {options.namespace}"
        table = _table(self.context)
        standing = table.read()
        if standing is None:
            first = 1 if options.start == "earliest" else through + 1
            standing = Standing(_new_name(connector), PublishPosition(connector.name, first))
            table.store(standing)
        at = standing.position
        require_ours(at, form, through)
        if at.now_ns and at.form != form:
            require_ours(replace(at, records=max(1, at.records)), form, through)
        if at.batch > through:
            self.tries.append(self._publisher(table, self._producer(standing), standing, form))
            return
        # Records of the batch may have been sent already: they are made by the same clock again.
        now_ns = at.now_ns or time.time_ns()
        at = replace(at, now_ns=now_ns, form=form)
        producer = self._producer(standing)
        publisher = self._publisher(table, producer, replace(standing, position=at), form)
        self.tries.append(publisher)
        table.store(Standing(standing.producer, at))
        try:
            publisher.publish(through, now_ns)
        finally:
            self.off |= producer.undeduplicated
        if publisher.position.batch > through:
            publisher.position = replace(publisher.position, now_ns=0)
            table.store(Standing(standing.producer, publisher.position))

    def result(self, seconds: float) -> PublishResult:
        """Tell what was done and what is left."""
        batch = self.tries[-1].position.batch - 1
        off = [f"the broker doesn't deduplicate topic {topic}" for topic in sorted(self.off)]
        return PublishResult(
            batch=batch,
            records=sum(one.records for one in self.tries),
            transactions=self.sent,
            pending_batches=self.context.changes.state().batch - batch,
            lag_seconds=publishing_lag(self.context, batch),
            seconds=round(seconds, 3),
            findings=(*self.damage.told(), *off),
        )

    def _producer(self, standing: Standing) -> PulsarProducer:
        namespace = self.context.connector.publish.pulsar.namespace
        return PulsarProducer(self.settings, standing.producer, namespace)

    def _publisher(
        self, table: StandingTable, producer: PulsarProducer, standing: Standing, form: str
    ) -> BatchPublisher:
        options = self.context.connector.publish.pulsar
        return BatchPublisher(
            Sender(producer, table, standing.producer, options.delivery == "exactly_once"),
            self._made,
            (),
            form,
            options.records_at_once,
            self.context.stopping,
            None,
            standing.position,
        )

    def _made(self, wanted: Wanted) -> Iterator[Made]:
        return numbered(captured_records(self.context, wanted, self.damage))


def _table(context: JobContext) -> StandingTable:
    return StandingTable(context.lake.table(context.connector.published_table, PUBLISHED))


def _new_name(connector: Connector) -> str:
    """Return a producer's name that no broker has seen: else it would drop what it takes for repetitions."""
    return f"{connector.name}.{uuid.uuid4().hex[:16]}"
