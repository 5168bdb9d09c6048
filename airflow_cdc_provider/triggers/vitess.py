"""Triggers on the changes of a Vitess keyspace."""

from __future__ import annotations

import asyncio

from airflow_cdc_provider.hooks.vitess import VitessCdcHook, client_of
from airflow_cdc_provider.hooks.vitess_feed import Feed, Pending, look
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger, NewsTrigger
from airflow_cdc_provider.triggers.observing import Given


class _VStreamTrigger(FeedTrigger):
    """Looks at a keyspace's stream; ``feed`` are arguments of :class:`.vitess_feed.Feed`."""

    def hook(self) -> VitessCdcHook:
        return VitessCdcHook(self.source_conn_id)

    async def look(self, given: Given) -> Pending:
        return await asyncio.to_thread(self._look_blocking, given)

    def _look_blocking(self, given: Given) -> Pending:
        with client_of(dict(given.connection)) as client:
            return look(client, Feed(**self.feed), given.offset)


class VitessNewsTrigger(_VStreamTrigger, NewsTrigger):
    """Fires when there are changes after the stored offset; see :class:`.feed.NewsTrigger`."""


class VitessLagTrigger(_VStreamTrigger, LagTrigger):
    """Fires when the oldest change not captured is young enough; see :class:`.feed.LagTrigger`."""
