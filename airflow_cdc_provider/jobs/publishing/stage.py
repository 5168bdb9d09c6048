"""The publish stage: publishes each change to Kafka or Pulsar, or rows that merges changed."""

from __future__ import annotations

from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.publishing import merged, publish, pulsar
from airflow_cdc_provider.jobs.spec import PublishResult
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.base import Source


def publish_events(job: Job, stores: Stores, source: Source, clients: Clients) -> PublishResult:
    """Publish all that isn't published yet.

    Raises:
        CdcError: As :func:`.publish.publish`, :func:`.merged.publish_merged` and
            :func:`.pulsar.publish_to_pulsar`.
    """
    if job.connector.publish.pulsar.enabled:
        return pulsar.publish_to_pulsar(job, stores, source, clients.connections)
    if job.connector.publish.kafka.after_merge:
        return merged.publish_merged(job, stores, source, clients)
    return publish.publish(job, stores, source, clients)


def published_through(job: Job, stores: Stores, source: Source, connections: Connections) -> int | None:
    """Return the last published batch of the changes table, None for none. No producer is fenced.

    Raises:
        BrokersUnavailable: The brokers don't respond.
        OffsetMissing: A stored position can't be read.
    """
    if job.connector.publish.kafka.after_merge:
        known = merged.published_merged(job.connector, connections)
        return None if known is None else merged.batch_of(job, stores, source, known)
    to_pulsar = job.connector.publish.pulsar.enabled
    position = (
        pulsar.published_to_pulsar(job.connector, stores.lake)
        if to_pulsar
        else publish.published(job.connector, connections)
    )
    return None if position is None else position.batch - 1


def publish_from(job: Job, stores: Stores, source: Source, connections: Connections, batch: int) -> None:
    """Let the next run start with a batch, whatever was published before.

    Raises:
        ConfigurationError: The batch neither exists nor is the next one.
    """
    if job.connector.publish.pulsar.enabled:
        pulsar.publish_to_pulsar_from(job.connector, stores, batch)
    elif job.connector.publish.kafka.after_merge:
        merged.publish_merged_from(job, stores, source, connections, batch)
    else:
        publish.publish_from(job.connector, stores.changes, connections, batch)
