"""Triggers of a Cassandra node's ``cdc_raw`` folder, to which the triggerer must have access."""

from __future__ import annotations

import asyncio

from airflow_cdc_provider.feeds.cassandra import list_segments, measure_nodes
from airflow_cdc_provider.feeds.cassandra_offset import has_new_changes
from airflow_cdc_provider.tasks.state import stored_offset_async
from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.space import Space
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class CdcRawSpaceTrigger(ObservingTrigger):
    """Fires when ``cdc_raw`` exceeds a limit, or will soon be full.

    Args:
        cdc_raw: A node's ``cdc_raw``, or a folder with one per node.
        total_space_bytes: A node's limit; None for Cassandra's default.
        max_used_ratio: Fire at this fraction of the limit; None to ignore it.
        max_used_bytes: Fire at this number of bytes; None to ignore it.
        min_seconds_to_full: Fire if it will be full in less than this, at the recent rate of segments; None
            to ignore it.
        max_unread_seconds: Fire if the oldest segment that wasn't captured to its end is older than this;
            None to ignore it.
        connector: Name of the connector whose stored offset defines which segments were captured; empty for
            none.
        node: Host id of the node whose segments are directly in ``cdc_raw``.
        poll_seconds: Pause between observations.
    """

    def __init__(
        self,
        *,
        cdc_raw: str,
        total_space_bytes: int | None = None,
        max_used_ratio: float | None = None,
        max_used_bytes: int | None = None,
        min_seconds_to_full: float | None = None,
        max_unread_seconds: float | None = None,
        connector: str = "",
        node: str = "",
        poll_seconds: float = 60.0,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            cdc_raw=cdc_raw,
            total_space_bytes=total_space_bytes,
            max_used_ratio=max_used_ratio,
            max_used_bytes=max_used_bytes,
            min_seconds_to_full=min_seconds_to_full,
            max_unread_seconds=max_unread_seconds,
            connector=connector,
            node=node,
        )
        self.cdc_raw = cdc_raw
        self.total_space_bytes = total_space_bytes
        self.max_used_ratio = max_used_ratio
        self.max_used_bytes = max_used_bytes
        self.min_seconds_to_full = min_seconds_to_full
        self.max_unread_seconds = max_unread_seconds
        self.connector = connector
        self.node = node

    async def given(self) -> Given:
        """Return the stored offset, if a connector is given."""
        return Given(offset=await stored_offset_async(self.connector)) if self.connector else Given()

    async def observe(self, given: Given) -> Observation:
        """Measure each node; return one that exceeds a limit, else the fullest."""

        def unread(segment: Segment) -> bool:
            return has_new_changes(segment, given.offset)

        known = unread if self.connector else None
        nodes = await asyncio.to_thread(measure_nodes, self.cdc_raw, self.total_space_bytes, self.node, known)
        beyond = next((space for space in nodes if self._is_beyond(space)), None)
        return Observation(beyond is not None, (beyond or nodes[0]).to_dict())

    def _is_beyond(self, space: Space) -> bool:
        left, age = space.seconds_to_full, space.oldest_unread_seconds
        return (
            (self.max_used_ratio is not None and space.used_ratio >= self.max_used_ratio)
            or (self.max_used_bytes is not None and space.used_bytes >= self.max_used_bytes)
            or (self.min_seconds_to_full is not None and left is not None and left < self.min_seconds_to_full)
            or (self.max_unread_seconds is not None and age is not None and age > self.max_unread_seconds)
        )


class CdcRawNewSegmentsTrigger(ObservingTrigger):
    """Fires when there are durable changes after an offset.

    Args:
        cdc_raw: A node's segments, or a folder with one folder per node.
        connector: Name of the connector whose stored offset is compared.
        node: Host id of the node whose segments are directly in ``cdc_raw``.
        completed_only: Only count segments that the node has finished.
        poll_seconds: Pause between observations.
    """

    def __init__(
        self,
        *,
        cdc_raw: str,
        connector: str,
        node: str = "",
        completed_only: bool = False,
        poll_seconds: float = 10.0,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            cdc_raw=cdc_raw,
            connector=connector,
            node=node,
            completed_only=completed_only,
        )
        self.cdc_raw = cdc_raw
        self.connector = connector
        self.node = node
        self.completed_only = completed_only

    async def given(self) -> Given:
        """Return the stored offset."""
        return Given(offset=await stored_offset_async(self.connector))

    async def observe(self, given: Given) -> Observation:
        """Count the segments with new changes."""
        segments = await asyncio.to_thread(list_segments, self.cdc_raw, self.node)
        news = [
            segment
            for segment in segments
            if has_new_changes(segment, given.offset) and (segment.complete or not self.completed_only)
        ]
        hosts: dict[str, int] = {}
        for segment in news:
            hosts[segment.host] = hosts.get(segment.host, 0) + 1
        return Observation(bool(news), {"new_segments": len(news), "hosts": hosts})
