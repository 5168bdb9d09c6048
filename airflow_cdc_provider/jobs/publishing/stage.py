"""The publish stage: each change to Kafka or Pulsar, or rows that merges changed to Kafka.

``docs/publishing.md`` describes the guarantees and their limits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.publishing.heartbeats import heartbeats_of
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.origins.merged_rows import MergedRows
from airflow_cdc_provider.jobs.publishing.publication import Publication, Target
from airflow_cdc_provider.jobs.publishing.targets.dead_letters import DeadLetters
from airflow_cdc_provider.jobs.publishing.targets.kafka import KafkaTarget, Producers
from airflow_cdc_provider.jobs.publishing.targets.pulsar import PulsarTarget, as_published
from airflow_cdc_provider.jobs.publishing.targets.slices import SlicedKafkaTarget
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.kafka.merged_position import MergedPosition
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source


def publish_events(job: Job, stores: Stores, source: Source, clients: Clients) -> PublishResult:
    """Publish all that isn't published yet, of all tables.

    Raises:
        ConfigurationError: There is no connection; or mirrors have no form to build events from.
        CdcError: As :meth:`.publication.Publication.run`.
    """
    job = replace(job, spec=replace(job.spec, tables=()))
    heartbeats = heartbeats_of(job.connector, stores.changes, clients)
    publication = _publication(job, stores, source, clients.connections, heartbeats)
    publication.run()
    result = publication.result()
    log.info(
        "%s: published through batch %d: %d records in %d transactions",
        job.connector.name,
        result.batch,
        result.records,
        result.transactions,
    )
    return result


def published_through(job: Job, stores: Stores, source: Source, connections: Connections) -> int | None:
    """Return the last published batch of the changes table, None for none. No producer is fenced.

    Raises:
        BrokersUnavailable: The brokers don't respond.
        OffsetMissing: A stored position can't be read.
    """
    publication = _publication(job, stores, source, connections)
    stored = publication.target.stored()
    return None if stored is None else publication.origin().published_through(stored)


def published_snapshots(connector: Connector, connections: Connections) -> MergedPosition | None:
    """Return the published snapshots of mirrors, None if no merge is published.

    Raises:
        BrokersUnavailable: The brokers don't respond.
        OffsetMissing: The stored position can't be read.
    """
    stored = Producers.of(connector, connections, MergedRows.suffix).topic.read()
    return None if stored is None else MergedPosition.from_json(stored.state)


def publish_from(job: Job, stores: Stores, source: Source, connections: Connections, batch: int) -> None:
    """Let the next run start with a batch, whatever was published before.

    Raises:
        ConfigurationError: Publishing can't start with the batch.
    """
    publication = _publication(job, stores, source, connections)
    publication.target.reset(publication.origin(), batch)


def _publication(
    job: Job,
    stores: Stores,
    source: Source,
    connections: Connections,
    heartbeats: Heartbeats | None = None,
) -> Publication[Any]:
    """Return the publication that the declaration chooses."""
    publish = job.connector.publish
    skipped = SkippedRecords(strict=job.connector.source.strict)
    letters = DeadLetters.of(job.connector, stores)
    if publish.kafka.after_merge:
        producers = Producers.of(job.connector, connections, MergedRows.suffix)
        in_one = KafkaTarget[MergedRows](job, letters, connections, producers, heartbeats)
        return Publication(lambda: MergedRows(job, stores, source, skipped), in_one)
    target: Target[Changes]
    if publish.pulsar.enabled:
        job = replace(job, connector=as_published(job.connector))
        stores = replace(stores, connector=job.connector)
        target = PulsarTarget.of(job, stores, connections)
    else:
        producers = Producers.of(job.connector, connections)
        target = SlicedKafkaTarget(job, letters, connections, producers, heartbeats)
    return Publication(lambda: Changes(job, stores, source, skipped), target)
