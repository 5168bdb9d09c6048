"""Triggers of topics: the lag of publishing behind capture, and of consumer groups behind topics."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.connections.kafka import kafka_values_async
from airflow_cdc_provider.feeds.topics import look_at_group, look_at_publishing
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.tasks.state import stored_async
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class _TopicTrigger(ObservingTrigger):
    """Queries brokers.

    Args:
        kafka_conn_id: The brokers' connection.
        consumer: Settings of consumers.
        poll_seconds: Pause between observations.
        arguments: The subclass's arguments.
    """

    def __init__(
        self, *, kafka_conn_id: str, consumer: Mapping[str, Any], poll_seconds: float = 30.0, **arguments: Any
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds, kafka_conn_id=kafka_conn_id, consumer=dict(consumer), **arguments
        )
        self.kafka_conn_id = kafka_conn_id
        self.consumer = dict(consumer)

    @abstractmethod
    def look(self, settings: ClientSettings, given: Given) -> Observation:
        """Check once; may block."""

    async def given(self) -> Given:
        """Look up the connection."""
        return Given(await kafka_values_async(self.kafka_conn_id))

    async def observe(self, given: Given) -> Observation:
        """Check in a thread: the library's calls block."""
        settings = ClientSettings(given.connection, consumer=self.consumer, retry_timeout_seconds=30.0)
        return await asyncio.to_thread(self.look, settings, given)


class PublishLagTrigger(_TopicTrigger):
    """Fires when publishing is close enough to capture.

    Args:
        connector: Name of the connector.
        positions_topic: The topic of its positions.
        max_batches: The maximum number of unpublished batches; None for no limit.
        max_lag_seconds: The greatest allowed age of the oldest one; None for no limit.
        arguments: Further arguments, as for all triggers of topics.
    """

    def __init__(
        self,
        *,
        connector: str,
        positions_topic: str,
        max_batches: int | None,
        max_lag_seconds: float | None,
        **arguments: Any,
    ) -> None:
        super().__init__(
            connector=connector,
            positions_topic=positions_topic,
            max_batches=max_batches,
            max_lag_seconds=max_lag_seconds,
            **arguments,
        )
        self.connector = connector
        self.positions_topic = positions_topic
        self.max_batches = max_batches
        self.max_lag_seconds = max_lag_seconds

    async def given(self) -> Given:
        """Look up the connection, and the batches that runs reported."""
        found = await super().given()
        return Given(found.connection, batches=await stored_async(self.connector, "batches"))

    def look(self, settings: ClientSettings, given: Given) -> Observation:
        """Measure the lag."""
        positions = PositionsTopic(settings, self.positions_topic, self.connector)
        lag = look_at_publishing(positions, given.batches)
        near = lag.pending_batches is not None and lag.lag_seconds is not None
        if lag.pending_batches is not None and self.max_batches is not None:
            near = near and lag.pending_batches <= self.max_batches
        if lag.lag_seconds is not None and self.max_lag_seconds is not None:
            near = near and lag.lag_seconds <= self.max_lag_seconds
        return Observation(near, dict(vars(lag)))


class ConsumerLagTrigger(_TopicTrigger):
    """Fires when a consumer group is close enough to the ends of topics.

    Args:
        group_id: The group.
        topics: Anchored regular expressions of topics.
        every_topic: Whether to include topics for which the group has committed no offset.
        without: Names of excluded topics.
        max_lag: The greatest allowed number of unread messages.
        wait_for_first_commit: Whether to wait for a group that has committed no offset.
        arguments: Further arguments, as for all triggers of topics.
    """

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        every_topic: bool,
        without: Sequence[str],
        max_lag: int,
        wait_for_first_commit: bool,
        **arguments: Any,
    ) -> None:
        super().__init__(
            group_id=group_id,
            topics=list(topics),
            every_topic=every_topic,
            without=list(without),
            max_lag=max_lag,
            wait_for_first_commit=wait_for_first_commit,
            **arguments,
        )
        self.group_id = group_id
        self.topics = tuple(topics)
        self.every_topic = every_topic
        self.without = tuple(without)
        self.max_lag = max_lag
        self.wait_for_first_commit = wait_for_first_commit

    def look(self, settings: ClientSettings, given: Given) -> Observation:
        """Measure the lag."""
        del given
        lag = look_at_group(
            settings,
            self.group_id,
            self.topics,
            every_topic=self.every_topic,
            without=self.without,
            wait_for_first_commit=self.wait_for_first_commit,
            max_lag=self.max_lag,
        )
        near = lag.lag is not None and lag.lag <= self.max_lag
        return Observation(near, {"lag": lag.lag, "topics": dict(lag.topics)})
