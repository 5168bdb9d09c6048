"""Triggers of the logs of a ScyllaDB cluster: their lag, and changes of their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_cdc_provider.feeds.scylla import Feed, GroupLags, StreamChanges, look_at_lags, look_at_streams
from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger
from airflow_cdc_provider.triggers.observing import Given, Observation

if TYPE_CHECKING:
    from cassandra.cluster import Session

_ANSWER_SECONDS: Final = 10.0
_Found = TypeVar("_Found", GroupLags, StreamChanges)


class _LogTrigger(FeedTrigger):
    """Checks a cluster's logs; ``feed`` has the arguments of :mod:`~airflow_cdc_provider.feeds.scylla`."""

    def hook(self) -> ScyllaCdcHook:
        return ScyllaCdcHook(self.source_conn_id)

    async def look(self, given: Given) -> GroupLags:
        return await self._check(look_at_lags, given)

    async def _check(
        self, check: Callable[[Session, Feed, Mapping[str, Any] | None], _Found], given: Given
    ) -> _Found:
        """Run a check in a thread: the driver's calls block."""
        return await asyncio.to_thread(self._check_blocking, check, given)

    def _check_blocking(
        self, check: Callable[[Session, Feed, Mapping[str, Any] | None], _Found], given: Given
    ) -> _Found:
        from airflow_cdc_provider.sources.cql.connection import open_session

        session = open_session(given.connection, timeout_seconds=_ANSWER_SECONDS)
        try:
            return check(session, Feed(**self.feed), given.offset)
        finally:
            session.cluster.shutdown()


class ScyllaLagTrigger(_LogTrigger, LagTrigger):
    """Fires when no group of streams is too far behind the clock; see :class:`.feed.LagTrigger`."""


class ScyllaGenerationTrigger(_LogTrigger):
    """Fires when a table has streams that the capture hasn't switched to."""

    async def observe(self, given: Given) -> Observation:
        """Compare the streams of the stored offset with the existing ones."""
        found = await self._check(look_at_streams, given)
        return Observation(bool(found.changed), dict(vars(found)))
