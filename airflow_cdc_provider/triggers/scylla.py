"""Triggers on the logs of a ScyllaDB cluster: how far they are read, and whether their streams changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
from airflow_cdc_provider.hooks.scylla_feed import (
    Feed,
    GroupLags,
    StreamChanges,
    look_at_lags,
    look_at_streams,
)
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger
from airflow_cdc_provider.triggers.observing import Given, Observation

if TYPE_CHECKING:
    from cassandra.cluster import Session

_ANSWER_SECONDS: Final = 10.0
_Found = TypeVar("_Found", GroupLags, StreamChanges)


class _LogTrigger(FeedTrigger):
    """Looks at a cluster's logs; ``feed`` are arguments of :class:`.scylla_feed.Feed`."""

    def hook(self) -> ScyllaCdcHook:
        return ScyllaCdcHook(self.source_conn_id)

    async def look(self, given: Given) -> GroupLags:
        return await self._asked(look_at_lags, given)

    async def _asked(
        self, question: Callable[[Session, Feed, Mapping[str, Any] | None], _Found], given: Given
    ) -> _Found:
        """Ask in a thread: the driver's calls block."""
        return await asyncio.to_thread(self._ask, question, given)

    def _ask(
        self, question: Callable[[Session, Feed, Mapping[str, Any] | None], _Found], given: Given
    ) -> _Found:
        from airflow_cdc_provider.sources.cql.driver.connect import open_session

        session = open_session(given.connection, timeout_seconds=_ANSWER_SECONDS)
        try:
            return question(session, Feed(**self.feed), given.offset)
        finally:
            session.cluster.shutdown()


class ScyllaLagTrigger(_LogTrigger, LagTrigger):
    """Fires when every group of streams is read nearly to the clock; see :class:`.feed.LagTrigger`."""


class ScyllaGenerationTrigger(_LogTrigger):
    """Fires when a table has streams that the capture hasn't gone over to."""

    async def observe(self, given: Given) -> Observation:
        """Compare the streams of the stored offset with those that there are."""
        found = await self._asked(look_at_streams, given)
        return Observation(bool(found.changed), dict(vars(found)))
