"""Whether a MongoDB deployment has changes after an offset, and how old the oldest of them is.

One look opens a change stream after the offset, lets the server skip what the connector does not select, and
takes at most a few events. It never reads bulk data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, token_time
from airflow_cdc_provider.sources.mongodb.selection import Selection, event_filter

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

_WINDOWS_TRIED_SECONDS: Final = (259_200, 86_400, 28_800, 7_200, 3_600, 1_200, 300, 60)


@dataclass(frozen=True)
class Pending:
    """What one look saw.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest of them by the server's clock, 0 for none; None before the first
            capture, or where the server needs longer to find the first change that is selected.
        table: Where the oldest is, empty for none.
        window_seconds: How far the offset is ahead of the oplog's begin, None before the first capture. Where
            the login may not ask for the server's status, the longest of some times from 1 minute to 3 days
            by which the stream can still be opened earlier, 0 for none. None too where the position is lost.
        lost: Whether the oplog no longer reaches back to the offset, and the next run is to make that good.
    """

    news: bool
    lag_seconds: float | None
    table: str = ""
    window_seconds: float | None = None
    lost: bool = False


@dataclass(frozen=True)
class Feed:
    """What to watch; a connector's options as JSON, so that a trigger can carry it.

    Args:
        scope: ``deployment``, ``database`` or ``collection``.
        target: The database, or database and collection with a dot between.
        tables: Patterns of the tables that count.
        exclude_tables: Patterns of those that do not.
        mends_loss: Whether the run that is waited for goes on from a lost position by itself.
        authentication_class: The connector's class that gives credentials; empty for none.
    """

    scope: str = "deployment"
    target: str = ""
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    mends_loss: bool = False
    authentication_class: str = ""

    def pipeline(self) -> list[dict[str, Any]]:
        """Return the aggregation stages that select the tables on the server."""
        selection = Selection(tuple(self.tables), tuple(self.exclude_tables))
        return [{"$match": event_filter(selection)}, {"$project": {"ns": 1, "clusterTime": 1}}]


async def look(
    client: AsyncMongoClient, feed: Feed, offset: Mapping[str, Any] | None, *, patience_seconds: float = 20.0
) -> Pending:
    """Look once.

    Args:
        client: The deployment.
        feed: What to watch.
        offset: The MongoDB source's offset, None before the first capture.
        patience_seconds: How long to let the server skip what is not selected.

    Raises:
        PositionLost: The oplog no longer reaches back to the offset, and no run makes that good.
        ConfigurationError: The login is refused, or the server has no change streams.
        TransientError: The server does not answer.
    """
    from pymongo.errors import OperationFailure

    from airflow_cdc_provider.sources.mongodb.server_errors import LOST, translated

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    place = StreamPlace.from_offset(offset)
    try:
        with translated("can't look for changes"):
            head = (await client.admin.command("ping")).get("operationTime")
            window = await _window_seconds(client, feed, place)
            try:
                found, at_head = await _first_event(client, feed, place, head, patience_seconds)
            except OperationFailure as error:
                if error.code not in LOST or not place.token:
                    raise
                # The pipeline may hide the token's event: then the stream can be opened by time.
                before = place.time - 1
                by_time = StreamPlace(before >> 32, before & LAST_INDEX)
                found, at_head = await _first_event(client, feed, by_time, head, patience_seconds)
    except PositionLost:
        if not feed.mends_loss:
            raise
        return Pending(news=True, lag_seconds=None, lost=True)
    if found is None:
        return Pending(news=False, lag_seconds=0.0 if at_head else None, window_seconds=window)
    now = head.time if head is not None else time.time()
    table = ".".join(filter(None, [found["ns"].get("db", ""), found["ns"].get("coll", "")]))
    return Pending(True, float(max(now - found["clusterTime"].time, 0)), table, window)


async def _first_event(
    client: AsyncMongoClient, feed: Feed, place: StreamPlace, head: Any, patience_seconds: float
) -> tuple[Mapping[str, Any] | None, bool]:
    import bson

    start: dict[str, Any] = {"start_at_operation_time": place.start_time}
    if place.token:
        start = {"start_after": bson.decode(place.token)}
    # Without a token the stream begins with events of the place's own cluster time that were captured.
    known = 0 if place.token or place.index == LAST_INDEX else place.index + 1
    deadline = time.monotonic() + patience_seconds
    stream = await _watched(client, feed).watch(
        feed.pipeline(), max_await_time_ms=500, batch_size=known + 1, **start
    )
    async with stream:
        while True:
            event: Mapping[str, Any] | None = await stream.try_next()
            if event is not None:
                when = event["clusterTime"]
                if known and (when.time, when.inc) == (place.seconds, place.increment):
                    known -= 1
                    continue
                return event, False
            reached = token_time(stream.resume_token or {})
            if head is not None and reached >= (head.time << 32 | head.inc):
                return None, True
            if time.monotonic() > deadline:
                return None, False


def _watched(client: AsyncMongoClient, feed: Feed) -> Any:
    if feed.scope == "deployment":
        return client
    database, _, collection = feed.target.partition(".")
    return client[database][collection] if feed.scope == "collection" else client[database]


async def _window_seconds(client: AsyncMongoClient, feed: Feed, place: StreamPlace) -> float:
    from pymongo.errors import OperationFailure

    try:
        status = await client.admin.command("serverStatus", oplog=1)
    except OperationFailure:  # most logins may not ask
        status = {}
    first = status.get("oplog", {}).get("earliestOptime")  # sharded clusters tell none
    if first is not None:
        return float(place.seconds - first.time)
    for seconds in _WINDOWS_TRIED_SECONDS:
        if await _opens(client, feed, place.seconds - seconds):
            return float(seconds)
    return 0.0


async def _opens(client: AsyncMongoClient, feed: Feed, seconds: int) -> bool:
    """Tell whether a stream can start at a cluster time."""
    from bson.timestamp import Timestamp

    from airflow_cdc_provider.sources.mongodb.server_errors import translated

    # Without a filter the first read ends at once: it needs not pass over what isn't selected.
    watched = _watched(client, feed)
    try:
        with translated("the oplog's begin can't be told"):
            stream = await watched.watch(
                start_at_operation_time=Timestamp(max(seconds, 1), 0), max_await_time_ms=1, batch_size=1
            )
            async with stream:
                await stream.try_next()
    except PositionLost:
        return False
    return True
