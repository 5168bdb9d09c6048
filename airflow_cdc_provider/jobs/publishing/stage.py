"""The publish stage as ``publish.kafka.what`` wants it: each change, or what merges changed."""

from __future__ import annotations

from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.publishing import merged, publish
from airflow_cdc_provider.jobs.spec import PublishResult


def publish_events(context: JobContext) -> PublishResult:
    """Publish what isn't published.

    Raises:
        CdcError: As :func:`.publish.publish` and :func:`.merged.publish_merged`.
    """
    if context.connector.publish.kafka.after_merge:
        return merged.publish_merged(context)
    return publish.publish(context)


def published_through(context: JobContext) -> int | None:
    """Return the last batch of the changes table that is published, None if nothing is. Nobody is fenced.

    Raises:
        BrokersAway: The brokers don't answer.
        OffsetMissing: A stored position can't be read.
    """
    if context.connector.publish.kafka.after_merge:
        known = merged.published_merged(context)
        return None if known is None else merged.batch_of(context, known)
    position = publish.published(context)
    return None if position is None else position.batch - 1


def publish_from(context: JobContext, batch: int) -> None:
    """Let the next run begin with a batch, whatever was published before.

    Raises:
        ConfigurationError: There can be no such batch.
    """
    if context.connector.publish.kafka.after_merge:
        merged.publish_merged_from(context, batch)
    else:
        publish.publish_from(context, batch)
