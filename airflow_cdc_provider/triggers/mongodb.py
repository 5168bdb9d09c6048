"""Triggers of a MongoDB deployment's change stream."""

from __future__ import annotations

import asyncio

from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
from airflow_cdc_provider.sources.mongodb.pending import Feed, Pending, async_client, look
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger, NewsTrigger
from airflow_cdc_provider.triggers.observing import Given


class _ChangeStreamTrigger(FeedTrigger):
    """Checks the stream; ``feed`` has the arguments of ``sources.mongodb.pending.Feed``."""

    def hook(self) -> MongodbCdcHook:
        return MongodbCdcHook(self.source_conn_id)

    async def look(self, given: Given) -> Pending:
        feed = Feed(**self.feed)
        # The first call imports the driver and kernels, which would block the event loop for a second.
        client = await asyncio.to_thread(
            async_client, dict(given.connection), feed.options.authentication_class
        )
        async with client:
            return await look(client, feed, given.offset)


class MongodbNewsTrigger(_ChangeStreamTrigger, NewsTrigger):
    """Fires when there are changes after the stored offset; see :class:`.feed.NewsTrigger`."""


class MongodbLagTrigger(_ChangeStreamTrigger, LagTrigger):
    """Fires when the oldest uncaptured change is young enough; see :class:`.feed.LagTrigger`."""
