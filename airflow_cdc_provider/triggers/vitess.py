"""Triggers on the changes of a Vitess keyspace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from airflow_cdc_provider.hooks.state import stored_offset_async
from airflow_cdc_provider.hooks.vitess import VitessCdcHook, client_of
from airflow_cdc_provider.hooks.vitess_feed import Feed, Pending, look
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class _FeedTrigger(ObservingTrigger):
    """Looks at the stream after the stored offset."""

    def __init__(
        self,
        *,
        vitess_conn_id: str,
        connector: str,
        feed: Mapping[str, Any],
        poll_seconds: float,
        **question: Any,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            vitess_conn_id=vitess_conn_id,
            connector=connector,
            feed=dict(feed),
            **question,
        )
        self.vitess_conn_id = vitess_conn_id
        self.connector = connector
        self.feed = feed

    async def given(self) -> Given:
        """Look up the connection and the stored offset."""
        return Given(
            await VitessCdcHook(self.vitess_conn_id).connection_values_async(),
            await stored_offset_async(self.connector),
        )

    async def _look(self, given: Given) -> Pending:
        return await asyncio.to_thread(self._look_blocking, given)

    def _look_blocking(self, given: Given) -> Pending:
        feed = Feed(**{name: _tuple(value) for name, value in self.feed.items()})
        with client_of(dict(given.connection)) as client:
            return look(client, feed, given.offset)


class VitessNewsTrigger(_FeedTrigger):
    """Fires when there are changes after the stored offset.

    Args:
        vitess_conn_id: The connection.
        connector: Name of the connector whose stored offset counts.
        feed: Arguments of :class:`~airflow_cdc_provider.hooks.vitess_feed.Feed`.
        poll_seconds: Pause between looks.
    """

    def __init__(
        self,
        *,
        vitess_conn_id: str,
        connector: str,
        feed: Mapping[str, Any],
        poll_seconds: float = 10.0,
    ) -> None:
        super().__init__(
            vitess_conn_id=vitess_conn_id, connector=connector, feed=feed, poll_seconds=poll_seconds
        )

    async def observe(self, given: Given) -> Observation:
        """Look for the first change."""
        pending = await self._look(given)
        return Observation(pending.news, dict(vars(pending)))


class VitessLagTrigger(_FeedTrigger):
    """Fires when the oldest change not captured is young enough.

    Args:
        vitess_conn_id: The connection.
        connector: Name of the connector whose stored offset counts.
        feed: Arguments of :class:`~airflow_cdc_provider.hooks.vitess_feed.Feed`.
        max_lag_seconds: The greatest age allowed.
        poll_seconds: Pause between looks.
    """

    def __init__(
        self,
        *,
        vitess_conn_id: str,
        connector: str,
        feed: Mapping[str, Any],
        max_lag_seconds: float,
        poll_seconds: float = 30.0,
    ) -> None:
        super().__init__(
            vitess_conn_id=vitess_conn_id,
            connector=connector,
            feed=feed,
            poll_seconds=poll_seconds,
            max_lag_seconds=max_lag_seconds,
        )
        self.max_lag_seconds = max_lag_seconds

    async def observe(self, given: Given) -> Observation:
        """Measure the lag."""
        pending = await self._look(given)
        near = pending.lag_seconds is not None and pending.lag_seconds <= self.max_lag_seconds
        return Observation(near, dict(vars(pending)))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
