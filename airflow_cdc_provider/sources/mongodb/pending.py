"""Checks whether a MongoDB deployment has changes after an offset, and how old the oldest one is.

Each check opens the capture's change stream after the offset, lets the server filter out unselected events,
and reads the names and times of a few events at most. It never reads bulk data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition, token_time
from airflow_cdc_provider.sources.mongodb.selection import Selection, is_captured

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_AWAIT_MS: Final = 50
_EVENTS: Final = 100
"""Events of a reply: some may be of tables that only the client can leave out."""
_WINDOWS_TRIED_SECONDS: Final = (259_200, 86_400, 28_800, 7_200, 3_600, 1_200, 300, 60)


@dataclass(frozen=True)
class Pending:
    """Result of one check.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest one by the server's clock, 0 for none; None before the first capture.
            If the server didn't find the first selected change in time, the age of the last event that it
            searched.
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
        source: The source's options that aren't default.
        tables: Patterns of the selected tables.
        exclude_tables: Patterns of the excluded tables.
        signals: The signal collection; empty for none.
        recovers_from_loss: Whether the next run recovers from a lost position automatically.
    """

    source: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    signals: str = ""
    recovers_from_loss: bool = False

    @cached_property
    def options(self) -> MongodbOptions:
        """The source's options."""
        return parse(MongodbOptions, dict(self.source), "source")

    @cached_property
    def selection(self) -> Selection:
        """The captured namespaces."""
        return Selection(tuple(self.tables), tuple(self.exclude_tables), self.signals)

    def stream(self) -> dict[str, Any]:
        """Return the arguments of a change stream with the events that a capture reads, without documents."""
        from airflow_cdc_provider.sources.mongodb.change_stream.pipeline import stream_pipeline

        stream = self.options.stream
        first, *stages = stream_pipeline(self.options, self.selection, split=False)
        names = {"show_expanded_events": "showExpandedEvents"}
        if stream.pipeline or stream.oversize == "skip":  # stages that may need documents
            names |= {
                "full_document": "fullDocument",
                "full_document_before_change": "fullDocumentBeforeChange",
            }
        given = {name: first["$changeStream"].get(member) for name, member in names.items()}
        project = {"$project": {"ns": 1, "to": 1, "clusterTime": 1}}
        return given | {"pipeline": [*stages, project], "collation": dict(stream.collation) or None}

    def kept(self, event: Mapping[str, Any]) -> str | None:
        """Return the table, or the database, of an event that a capture keeps; None for other events."""
        spaces = [space for space in (event.get("ns"), event.get("to")) if space]
        names = [f"{space['db']}.{space['coll']}" for space in spaces if "coll" in space]
        if not names:
            return str(spaces[0]["db"]) if spaces else ""
        captured = (name for name in names if is_captured(name, self.selection))
        return next((name for name in captured if not self.options.in_batches(name)), None)


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
    from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    position = StreamPosition.from_offset(offset).unsplit
    try:
        with translated("can't check for changes"):
            window = await _window_seconds(client, feed, position)
        return replace(await oldest(client, feed, position, patience_seconds), window_seconds=window)
    except PositionLost:
        if not feed.recovers_from_loss:
            raise
        return Pending(news=True, lag_seconds=None, lost=True)


async def oldest(
    client: AsyncMongoClient, feed: Feed, position: StreamPosition, patience_seconds: float
) -> Pending:
    """Find the oldest change after a position. This is the lag of a connector, wherever it is reported.

    Args:
        client: The deployment.
        feed: The feed to check.
        position: The position.
        patience_seconds: How long the server may search for a selected event.

    Raises:
        PositionLost: The oplog no longer reaches back to the position.
        ConfigurationError: The login is refused, or the server has no change streams.
        TransientError: The server doesn't answer.
    """
    from pymongo.errors import OperationFailure

    from airflow_cdc_provider.sources.mongodb.driver.server_errors import LOST, translated

    with translated("can't check for changes"):
        head = (await client.admin.command("ping")).get("operationTime")
        try:
            found, searched = await _first_event(client, feed, position, head, patience_seconds)
        except OperationFailure as error:
            if error.code not in LOST or not position.token:
                raise
            # The pipeline may filter out the token's event. Then the stream can only be opened by time.
            before = position.time - 1
            by_time = StreamPosition(before >> 32, before & LAST_INDEX)
            found, searched = await _first_event(client, feed, by_time, head, patience_seconds)
    now = head.time if head is not None else time.time()
    if found is None:
        at_head = head is not None and searched >= (head.time << 32 | head.inc)
        return Pending(False, 0.0 if at_head else float(max(now - (max(searched, position.time) >> 32), 0)))
    return Pending(True, float(max(now - found["clusterTime"].time, 0)), feed.kept(found) or "")


async def _first_event(
    client: AsyncMongoClient, feed: Feed, position: StreamPosition, head: Any, patience_seconds: float
) -> tuple[Mapping[str, Any] | None, int]:
    """Return the first selected event, if it was found in time, and the cluster time that was searched."""
    import bson

    start: dict[str, Any] = {"start_at_operation_time": position.start_time}
    if position.token:
        start = {"start_after": bson.decode(position.token)}
    # Without a token the stream starts with captured events of the position's own cluster time.
    known = 0 if position.token or position.index == LAST_INDEX else position.index + 1
    deadline = time.monotonic() + patience_seconds
    stream = await _watched(client, feed).watch(
        **feed.stream(), max_await_time_ms=_AWAIT_MS, batch_size=known + _EVENTS, **start
    )
    async with stream:
        while True:
            event: Mapping[str, Any] | None = await stream.try_next()
            if event is not None:
                when = event["clusterTime"]
                if known and (when.time, when.inc) == (position.seconds, position.increment):
                    known -= 1
                elif feed.kept(event) is not None:
                    return event, 0
            searched = token_time(stream.resume_token or {})
            at_head = head is not None and searched >= (head.time << 32 | head.inc)
            if (event is None and at_head) or time.monotonic() > deadline:
                return None, searched


def _watched(client: AsyncMongoClient, feed: Feed) -> Any:
    scope = feed.options.scope
    if scope == "deployment":
        return client
    database, _, collection = feed.options.target.partition(".")
    return client[database][collection] if scope == "collection" else client[database]


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
