"""How far publishing is behind capture, and a consumer group behind the topics' ends.

Offsets are counted, which reads no data. But marks of transactions, and records of transactions that were
aborted, take offsets that no consumer is ever given: so where few offsets are left, or more than may be, the
messages are counted, no more of them than decide.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.errors import BrokersAway, LastError, client_of, error_of, require_library
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Partition
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings

_CALL_SECONDS: Final = 30.0
_COUNTED_OFFSETS: Final = 100
"""Up to so many offsets of a partition are read in any case."""
_COUNT_SECONDS: Final = 10.0
"""How long messages of a longer range are counted at most, in one look."""

ReadRange = Callable[[MessageRange], Iterable[Sequence[Any]]]
"""Reads the messages of a range, some at a time."""


@dataclass(frozen=True)
class PublishingLag:
    """How far publishing is behind.

    Args:
        batch: All batches of the changes table up to this one are published; 0 for none.
        newest_batch: The newest one that a run told; None before the first.
        pending_batches: How many aren't published; None before the first capture.
        lag_seconds: How long ago the oldest of them was committed, by what runs told; 0 for none.
    """

    batch: int
    newest_batch: int | None = None
    pending_batches: int | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True)
class GroupLag:
    """How far a consumer group is behind.

    Args:
        lag: Messages that it hasn't committed; None while it has committed nothing.
        topics: The same by topic, of those that count.
    """

    lag: int | None
    topics: Mapping[str, int] = field(default_factory=dict)


def look_at_publishing(positions: PositionsTopic, told: Mapping[str, Any] | None) -> PublishingLag:
    """Compare the stored position with the batches that runs told.

    Args:
        positions: Of the connector.
        told: ``batches`` of the connector's state in Airflow.

    Raises:
        ConfigurationError: The login or a right is wrong.
        TransientError: The brokers don't answer.
        OffsetMissing: The position of a slice is missing.
    """
    position = positions.least()
    return lag_of(position.batch - 1 if position else 0, told, time.time())


def lag_of(batch: int, told: Mapping[str, Any] | None, now: float) -> PublishingLag:
    """Tell how far a published batch is behind.

    Args:
        batch: The last one that is published.
        told: As for :func:`look_at_publishing`.
        now: Epoch seconds.
    """
    batches = told["told"] if told else []
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
    wait_for_begin: bool = True,
    max_lag: int = 0,
) -> GroupLag:
    """Compare a group's committed offsets with the ends of topics.

    Args:
        settings: Of clients.
        group: Its ``group.id``.
        topics: Anchored regular expressions.
        every_topic: Whether topics count of which the group has committed nothing.
        without: Names of topics that don't count.
        wait_for_begin: Whether the lag of a group is unknown that has committed nothing, and topics must be
            there; else it is none.
        max_lag: Up to so many messages the lag is exact; of more it may count offsets.

    Raises:
        ConfigurationError: No topic is selected; the login or a right is wrong.
        TransientError: The brokers don't answer.
    """
    nothing = GroupLag(None if wait_for_begin else 0)
    cluster = ClusterTopics(settings)
    found = {name: one for name, one in cluster.topics(topics).items() if name not in without}
    if not found and not wait_for_begin:
        return nothing
    if not found:
        raise ConfigurationError(
            "no topic is selected",
            expected=f"topics that match {', '.join(topics)}",
            found=f"none on {settings.servers}",
            remedy="correct the expressions, or give the connection's user the right READ on the topics",
        )
    partitions = [(name, number) for name, topic in found.items() for number in topic.partitions]
    committed = _committed(settings, group, partitions)
    if not committed:
        return nothing
    followed = {topic for topic, _ in committed}
    counted = [one for one in partitions if every_topic or one[0] in followed]
    begins, ends = cluster.begins(counted), cluster.ends(counted)
    left = [MessageRange(*one, max(committed.get(one, 0), begins[one]), ends[one]) for one in counted]
    hasty = replace(settings, retry_seconds=min(_COUNT_SECONDS, settings.retry_seconds))
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
        max_lag: Up to so many messages in all ranges together each count is exact, unless that takes long.
        read: Reads short ranges.
        read_hastily: Reads long ones: gives up after :data:`_COUNT_SECONDS` without a message.

    Returns:
        How many each has, or its offsets.

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
    """Count messages; None if there are more than so many, or that can't be told in time."""
    count = 0
    try:
        for some in messages:
            count += len(some)
            if count > most or time.monotonic() > deadline:
                return None
    except BrokersAway:  # or nothing but aborted records for that long: offsets are what is known
        return None
    return count


def _committed(settings: ClientSettings, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Return the offsets that a group has committed."""
    require_library()
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    last = LastError()
    admin: Any = client_of(AdminClient, settings.of_admin(), last)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in partitions])
    try:
        told = admin.list_consumer_group_offsets([wanted], request_timeout=_CALL_SECONDS)
        found = told[group].result().topic_partitions
    except KafkaException as error:
        doing, right = f"asking for the offsets of group {group}", f"DESCRIBE on group {group}"
        raise error_of(error.args[0], doing, last.error, right=right) from None
    return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}


def topics_of_prefix(prefix: str, delimiter: str) -> str:
    """Return the expression of all topics that begin with a connector's prefix."""
    return rf"{re.escape(prefix + delimiter)}.*"
