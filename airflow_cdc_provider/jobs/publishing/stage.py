"""The publish stage: publishes each change to Kafka or Pulsar, or rows that merges changed."""

from __future__ import annotations

from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.publishing import merged, publish, pulsar
from airflow_cdc_provider.jobs.spec import PublishResult


def publish_events(context: JobContext) -> PublishResult:
    """Publish all that isn't published yet.

    Raises:
        CdcError: As :func:`.publish.publish`, :func:`.merged.publish_merged` and
            :func:`.pulsar.publish_to_pulsar`.
    """
    if context.connector.publish.pulsar.enabled:
        return pulsar.publish_to_pulsar(context)
    if context.connector.publish.kafka.after_merge:
        return merged.publish_merged(context)
    return publish.publish(context)


def published_through(context: JobContext) -> int | None:
    """Return the last published batch of the changes table, None for none. No producer is fenced.

    Raises:
        BrokersUnavailable: The brokers don't respond.
        OffsetMissing: A stored position can't be read.
    """
    if context.connector.publish.kafka.after_merge:
        known = merged.published_merged(context)
        return None if known is None else merged.batch_of(context, known)
    to_pulsar = context.connector.publish.pulsar.enabled
    position = pulsar.published_to_pulsar(context) if to_pulsar else publish.published(context)
    return None if position is None else position.batch - 1


def publish_from(context: JobContext, batch: int) -> None:
    """Let the next run start with a batch, whatever was published before.

    Raises:
        ConfigurationError: The batch neither exists nor is the next one.
    """
    if context.connector.publish.pulsar.enabled:
        pulsar.publish_to_pulsar_from(context, batch)
    elif context.connector.publish.kafka.after_merge:
        merged.publish_merged_from(context, batch)
    else:
        publish.publish_from(context, batch)
