"""Measures how far publishing is behind capture, and a consumer group behind the topics' ends.

The lag is a difference of offsets, which reads no data. But transaction markers and records of aborted
transactions occupy offsets that consumers never receive. So if few offsets remain, or more than allowed, the
messages are counted, only as many as needed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Partition
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings

_CALL_SECONDS: Final = 30.0
_COUNTED_OFFSETS: Final = 100
"""Ranges of up to this many offsets of a partition are always counted by message."""
_COUNT_SECONDS: Final = 10.0
"""The time limit for counting the messages of longer ranges, per check."""

ReadRange = Callable[[MessageRange], Iterable[Sequence[Any]]]
"""Reads the messages of a range in batches."""


@dataclass(frozen=True)
class PublishingLag:
    """How far publishing is behind.

    Args:
        batch: The last batch of the changes table up to which all are published; 0 for none.
        newest_batch: The newest batch that a run reported; None before the first.
        pending_batches: The number of unpublished batches; None before the first capture.
        lag_seconds: Time since the oldest of them was committed, as runs reported it; 0 for none.
    """

    batch: int
    newest_batch: int | None = None
    pending_batches: int | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True)
class GroupLag:
    """How far a consumer group is behind.

    Args:
        lag: The number of uncommitted messages; None if the group has committed no offset.
        topics: The same by selected topic.
    """

    lag: int | None
    topics: Mapping[str, int] = field(default_factory=dict)


def look_at_publishing(positions: PositionsTopic, stored: Mapping[str, Any] | None) -> PublishingLag:
    """Compare the stored position with the batches that runs reported.

    Args:
        positions: The connector's positions.
        stored: ``batches`` of the connector's state in Airflow.

    Raises:
        ConfigurationError: The login is refused, or a permission is missing.
        TransientError: The brokers don't answer.
        OffsetMissing: The position of a slice is missing.
    """
    position = positions.slowest()
    return lag_of(position.batch - 1 if position else 0, stored, time.time())


def lag_of(batch: int, stored: Mapping[str, Any] | None, now: float) -> PublishingLag:
    """Return how far a published batch is behind.

    Args:
        batch: The last published batch.
        stored: As for :func:`look_at_publishing`.
        now: Epoch seconds.
    """
    batches = stored["commits"] if stored else []
    if not batches:
        return PublishingLag(batch)
    newest = int(batches[-1][0])
    oldest = next((committed_at for number, committed_at in batches if number > batch), None)
    seconds = 0.0 if oldest is None else round(max(now - oldest, 0.0), 3)
    return PublishingLag(batch, newest, max(newest - batch, 0), seconds)


def look_at_group(
    settings: ClientSettings,
    group: str,
    topics: Sequence[str],
    *,
    every_topic: bool,
    without: Sequence[str],
    wait_for_first_commit: bool = True,
    max_lag: int = 0,
) -> GroupLag:
    """Compare a group's committed offsets with the ends of topics.

    Args:
        settings: Settings of the clients.
        group: Its ``group.id``.
        topics: Anchored regular expressions.
        every_topic: Whether to include topics for which the group has committed no offset.
        without: Names of excluded topics.
        wait_for_first_commit: Whether the lag of a group without committed offsets is unknown, and topics
            must exist; else that lag is zero.
        max_lag: Up to this many messages the lag is exact; above it may be a difference of offsets.

    Raises:
        ConfigurationError: No topic is selected, the login is refused, or a permission is missing.
        TransientError: The brokers don't answer.
    """
    nothing = GroupLag(None if wait_for_first_commit else 0)
    cluster = ClusterTopics(settings)
    found = {name: one for name, one in cluster.topics(topics).items() if name not in without}
    if not found and not wait_for_first_commit:
        return nothing
    if not found:
        raise ConfigurationError(
            "no topic is selected",
            expected=f"topics that match {', '.join(topics)}",
            found=f"none on {settings.servers}",
            remedy="correct the expressions, or grant the connection's user the right READ on the topics",
        )
    partitions = [(name, number) for name, topic in found.items() for number in topic.partitions]
    committed = _committed(settings, group, partitions)
    if not committed:
        return nothing
    followed = {topic for topic, _ in committed}
    counted = [one for one in partitions if every_topic or one[0] in followed]
    begins, ends = cluster.begins(counted), cluster.ends(counted)
    left = [MessageRange(*one, max(committed.get(one, 0), begins[one]), ends[one]) for one in counted]
    hasty = replace(settings, retry_timeout_seconds=min(_COUNT_SECONDS, settings.retry_timeout_seconds))
    lags = lags_of(
        left, max_lag, lambda some: read_range(settings, some), lambda some: read_range(hasty, some)
    )
    topic_lags = dict.fromkeys(sorted({topic for topic, _ in counted}), 0)
    for one, lag in zip(left, lags, strict=True):
        topic_lags[one.topic] += lag
    return GroupLag(sum(lags), topic_lags)


def lags_of(
    left: Sequence[MessageRange], max_lag: int, read: ReadRange, read_hastily: ReadRange
) -> list[int]:
    """Count the messages of ranges.

    Args:
        left: The ranges.
        max_lag: Counts are exact up to this many messages in all ranges, unless counting takes too long.
        read: Reads short ranges.
        read_hastily: Reads long ranges: stops after :data:`_COUNT_SECONDS` without a message.

    Returns:
        The number of messages, or of offsets, per range.

    Raises:
        TransientError: As ``read``.
    """
    lags = [max(one.end - one.start, 0) for one in left]
    for number, one in enumerate(left):
        if 0 < lags[number] <= _COUNTED_OFFSETS:
            lags[number] = sum(len(some) for some in read(one))
    deadline = time.monotonic() + _COUNT_SECONDS
    for number, one in enumerate(left):
        if lags[number] > _COUNTED_OFFSETS and sum(lags) > max_lag:
            exact = _count_some(read_hastily(one), max_lag, deadline)
            if exact is None:
                break
            lags[number] = exact
    return lags


def _count_some(messages: Iterable[Sequence[Any]], most: int, deadline: float) -> int | None:
    """Count messages; return None if there are more than ``most``, or if the deadline passes."""
    count = 0
    try:
        for some in messages:
            count += len(some)
            if count > most or time.monotonic() > deadline:
                return None
    except errors.BrokersUnavailable:  # or only aborted records for that long: keep the difference of offsets
        return None
    return count


def _committed(settings: ClientSettings, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Return the offsets that a group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    last = errors.LastError()
    admin: Any = errors.client_of(AdminClient, settings.of_admin(), last)
    requested = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in partitions])
    try:
        listed = admin.list_consumer_group_offsets([requested], request_timeout=_CALL_SECONDS)
        found = listed[group].result().topic_partitions
    except KafkaException as error:
        doing, right = f"listing the offsets of group {group}", f"DESCRIBE on group {group}"
        raise errors.error_of(error.args[0], doing, last.error, right=right) from None
    return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}


def topics_of_prefix(prefix: str, delimiter: str) -> str:
    """Return the regular expression of all topics with a connector's prefix."""
    return rf"{re.escape(prefix + delimiter)}.*"
