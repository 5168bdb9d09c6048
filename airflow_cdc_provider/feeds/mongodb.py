"""Checks whether a MongoDB deployment has changes after an offset, and how old the oldest one is.

Each check opens a change stream after the offset, lets the server filter out unselected events, and reads a
few events at most. It never reads bulk data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition, token_time
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_WINDOWS_TRIED_SECONDS: Final = (259_200, 86_400, 28_800, 7_200, 3_600, 1_200, 300, 60)


@dataclass(frozen=True)
class Pending:
    """Result of one check.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest one by the server's clock, 0 for none; None before the first capture,
            or if the server didn't find the first selected change in time.
        table: Collection of the oldest one; empty for none.
        window_seconds: Time from the oplog's first entry to the offset; None before the first capture, or if
            the position is lost. If the login may not run ``serverStatus``, the longest of several times from
            1 minute to 3 days by which a stream can still be opened earlier, 0 for none.
        lost: Whether the oplog no longer reaches back to the offset, and the next run recovers from that.
    """

    news: bool
    lag_seconds: float | None
    table: str = ""
    window_seconds: float | None = None
    lost: bool = False


@dataclass(frozen=True)
class Feed:
    """The feed to check: a connector's options as JSON, so that a trigger can be serialized.

    Args:
        scope: ``deployment``, ``database`` or ``collection``.
        target: The database, or ``database.collection``.
        tables: Patterns of the selected tables.
        exclude_tables: Patterns of the excluded tables.
        recovers_from_loss: Whether the next run recovers from a lost position automatically.
        authentication_class: The connector's class that provides credentials; empty for none.
    """

    scope: str = "deployment"
    target: str = ""
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    recovers_from_loss: bool = False
    authentication_class: str = ""

    def pipeline(self) -> list[dict[str, Any]]:
        """Return the aggregation stages that select the tables on the server."""
        selection = Selection(tuple(self.tables), tuple(self.exclude_tables))
        return [{"$match": event_filter(selection)}, {"$project": {"ns": 1, "clusterTime": 1}}]


def async_client(values: dict[str, Any], authentication_class: str = "") -> AsyncMongoClient:
    """Build the client that triggers use.

    Args:
        values: The connection's values, as its hook returns them.
        authentication_class: The connector's class that provides credentials; empty for none.
    """
    from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues

    read = ConnectionValues.read(values, _CONNECT_TIMEOUT_SECONDS, authentication=authentication_class)
    return read.async_client()


async def look(
    client: AsyncMongoClient, feed: Feed, offset: Mapping[str, Any] | None, *, patience_seconds: float = 20.0
) -> Pending:
    """Check once.

    Args:
        client: The deployment.
        feed: The feed to check.
        offset: The MongoDB source's offset; None before the first capture.
        patience_seconds: How long the server may search for a selected event.

    Raises:
        PositionLost: The oplog no longer reaches back to the offset, and no run recovers from that.
        ConfigurationError: The login is refused, or the server has no change streams.
        TransientError: The server doesn't answer.
    """
    from pymongo.errors import OperationFailure

    from airflow_cdc_provider.sources.mongodb.driver.server_errors import LOST, translated

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    position = StreamPosition.from_offset(offset).unsplit
    try:
        with translated("can't check for changes"):
            head = (await client.admin.command("ping")).get("operationTime")
            window = await _window_seconds(client, feed, position)
            try:
                found, at_head = await _first_event(client, feed, position, head, patience_seconds)
            except OperationFailure as error:
                if error.code not in LOST or not position.token:
                    raise
                # The pipeline may filter out the token's event. Then the stream can only be opened by time.
                before = position.time - 1
                by_time = StreamPosition(before >> 32, before & LAST_INDEX)
                found, at_head = await _first_event(client, feed, by_time, head, patience_seconds)
    except PositionLost:
        if not feed.recovers_from_loss:
            raise
        return Pending(news=True, lag_seconds=None, lost=True)
    if found is None:
        return Pending(news=False, lag_seconds=0.0 if at_head else None, window_seconds=window)
    now = head.time if head is not None else time.time()
    table = ".".join(filter(None, [found["ns"].get("db", ""), found["ns"].get("coll", "")]))
    return Pending(True, float(max(now - found["clusterTime"].time, 0)), table, window)


async def _first_event(
    client: AsyncMongoClient, feed: Feed, position: StreamPosition, head: Any, patience_seconds: float
) -> tuple[Mapping[str, Any] | None, bool]:
    import bson

    start: dict[str, Any] = {"start_at_operation_time": position.start_time}
    if position.token:
        start = {"start_after": bson.decode(position.token)}
    # Without a token the stream starts with captured events of the position's own cluster time.
    known = 0 if position.token or position.index == LAST_INDEX else position.index + 1
    deadline = time.monotonic() + patience_seconds
    stream = await _watched(client, feed).watch(
        feed.pipeline(), max_await_time_ms=500, batch_size=known + 1, **start
    )
    async with stream:
        while True:
            event: Mapping[str, Any] | None = await stream.try_next()
            if event is not None:
                when = event["clusterTime"]
                if known and (when.time, when.inc) == (position.seconds, position.increment):
                    known -= 1
                    continue
                return event, False
            scanned_to = token_time(stream.resume_token or {})
            if head is not None and scanned_to >= (head.time << 32 | head.inc):
                return None, True
            if time.monotonic() > deadline:
                return None, False


def _watched(client: AsyncMongoClient, feed: Feed) -> Any:
    if feed.scope == "deployment":
        return client
    database, _, collection = feed.target.partition(".")
    return client[database][collection] if feed.scope == "collection" else client[database]


async def _window_seconds(client: AsyncMongoClient, feed: Feed, position: StreamPosition) -> float:
    from pymongo.errors import OperationFailure

    try:
        status = await client.admin.command("serverStatus", oplog=1)
    except OperationFailure:  # most logins lack the privilege
        status = {}
    first = status.get("oplog", {}).get("earliestOptime")  # absent in sharded clusters
    if first is not None:
        return float(position.seconds - first.time)
    for seconds in _WINDOWS_TRIED_SECONDS:
        if await _opens(client, feed, position.seconds - seconds):
            return float(seconds)
    return 0.0


async def _opens(client: AsyncMongoClient, feed: Feed, seconds: int) -> bool:
    """Return whether a stream can start at a cluster time."""
    from bson.timestamp import Timestamp

    from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated

    # Without a filter the first read ends at once: the server doesn't search for a selected event.
    watched = _watched(client, feed)
    try:
        with translated("can't determine the oplog's first entry"):
            stream = await watched.watch(
                start_at_operation_time=Timestamp(max(seconds, 1), 0), max_await_time_ms=1, batch_size=1
            )
            async with stream:
                await stream.try_next()
    except PositionLost:
        return False
    return True
