"""Triggers on a MongoDB deployment's change stream."""

from __future__ import annotations

import asyncio

from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook, async_client
from airflow_cdc_provider.hooks.mongodb_feed import Feed, Pending, look
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger, NewsTrigger
from airflow_cdc_provider.triggers.observing import Given


class _ChangeStreamTrigger(FeedTrigger):
    """Looks at the change stream; ``feed`` are arguments of :class:`.mongodb_feed.Feed`."""

    def hook(self) -> MongodbCdcHook:
        return MongodbCdcHook(self.source_conn_id)

    async def look(self, given: Given) -> Pending:
        feed = Feed(**self.feed)
        # The first call imports the driver and kernels, which takes a second: not on the event loop.
        client = await asyncio.to_thread(async_client, dict(given.connection), feed.authentication_class)
        async with client:
            return await look(client, feed, given.offset)


class MongodbNewsTrigger(_ChangeStreamTrigger, NewsTrigger):
    """Fires when there are changes after the stored offset; see :class:`.feed.NewsTrigger`."""


class MongodbLagTrigger(_ChangeStreamTrigger, LagTrigger):
    """Fires when the oldest change not captured is young enough; see :class:`.feed.LagTrigger`."""
