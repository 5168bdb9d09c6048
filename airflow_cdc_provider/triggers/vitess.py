"""Triggers of the changes of a Vitess keyspace."""

from __future__ import annotations

import asyncio

from airflow_cdc_provider.hooks.vitess import VitessCdcHook
from airflow_cdc_provider.sources.vitess.pending import Feed, Pending, client_of, look, look_at_shards
from airflow_cdc_provider.triggers.feed import FeedTrigger, LagTrigger, NewsTrigger
from airflow_cdc_provider.triggers.observing import Given, Observation


class _VStreamTrigger(FeedTrigger):
    """Checks the stream; ``feed`` has the arguments of ``sources.vitess.pending.Feed``."""

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
    """Fires when the oldest uncaptured change is young enough; see :class:`.feed.LagTrigger`."""


class VitessReshardTrigger(_VStreamTrigger):
    """Fires when no reshard is in progress and the stored offset has a position of each serving shard."""

    async def observe(self, given: Given) -> Observation:
        """Compare the shards with tablets, the serving shards and the offset's shards."""
        return await asyncio.to_thread(self._observe_blocking, given)

    def _observe_blocking(self, given: Given) -> Observation:
        with client_of(dict(given.connection)) as client:
            found = look_at_shards(client, Feed(**self.feed), given.offset)
        done = not found.resharding and not found.missing
        return Observation(done, {name: list(value) for name, value in vars(found).items()})
