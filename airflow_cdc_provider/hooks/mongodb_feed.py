"""Whether a MongoDB deployment has changes after an offset, and how old the oldest of them is.

One look opens a change stream after the offset, lets the server skip what the connector does not select, and
takes at most one event. It never reads bulk data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient

_HISTORY_LOST: Final = 286
_UNUSABLE_TOKENS: Final = (9, 260, 50811)
_NOT_ALLOWED: Final = (13, 18, 8000)


@dataclass(frozen=True)
class Pending:
    """What one look saw.

    Args:
        news: Whether there are changes after the offset.
        lag_seconds: Age of the oldest of them by the server's clock, 0 for none; None before the first
            capture, or where the server needs longer to find the first change that is selected.
        table: Where the oldest is, empty for none.
        window_seconds: How far the offset is ahead of the oplog's begin, None if it can't be told.
    """

    news: bool
    lag_seconds: float | None
    table: str = ""
    window_seconds: float | None = None


@dataclass(frozen=True)
class Feed:
    """What to watch; a connector's options as JSON, so that a trigger can carry it.

    Args:
        scope: ``deployment``, ``database`` or ``collection``.
        target: The database, or database and collection with a dot between.
        tables: Patterns of the tables that count.
        exclude_tables: Patterns of those that do not.
    """

    scope: str = "deployment"
    target: str = ""
    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()

    def pipeline(self) -> list[dict[str, Any]]:
        """Return the aggregation stages that select the tables on the server."""
        name = {"$concat": ["$ns.db", ".", "$ns.coll"]}
        wanted: list[dict[str, Any]] = [{"$regexMatch": {"input": name, "regex": _either(self.tables)}}]
        if self.exclude_tables:
            wanted.append({"$not": [{"$regexMatch": {"input": name, "regex": _either(self.exclude_tables)}}]})
        return [{"$match": {"$expr": {"$and": wanted}}}, {"$project": {"ns": 1, "clusterTime": 1}}]


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
        PositionLost: The oplog no longer reaches back to the offset.
        ConfigurationError: The login is refused, or the server has no change streams.
        TransientError: The server does not answer.
    """
    from pymongo.errors import OperationFailure, PyMongoError

    if offset is None:
        return Pending(news=True, lag_seconds=None)
    try:
        head = (await client.admin.command("ping")).get("operationTime")
        window = await _window_seconds(client, offset)
        found, at_head = await _first_event(client, feed, offset, head, patience_seconds)
    except OperationFailure as error:
        raise _refused(error) from error
    except PyMongoError as error:
        raise TransientError("MongoDB does not answer", found=type(error).__name__) from error
    if found is None:
        return Pending(news=False, lag_seconds=0.0 if at_head else None, window_seconds=window)
    seconds = found["clusterTime"].time
    now = head.time if head is not None else time.time()
    table = f"{found['ns']['db']}.{found['ns']['coll']}"
    return Pending(True, float(max(now - seconds, 0)), table, window)


async def _first_event(
    client: AsyncMongoClient, feed: Feed, offset: Mapping[str, Any], head: Any, patience_seconds: float
) -> tuple[Mapping[str, Any] | None, bool]:
    watched: Any = client
    if feed.scope != "deployment":
        database, _, collection = feed.target.partition(".")
        watched = client[database][collection] if feed.scope == "collection" else client[database]
    deadline = time.monotonic() + patience_seconds
    stream = await watched.watch(feed.pipeline(), max_await_time_ms=500, batch_size=1, **_start(offset))
    async with stream:
        while True:
            event: Mapping[str, Any] | None = await stream.try_next()
            if event is not None:
                return event, False
            reached = token_time(stream.resume_token)
            if head is not None and reached is not None and reached >= (head.time, head.inc):
                return None, True
            if time.monotonic() > deadline:
                return None, False


def _start(offset: Mapping[str, Any]) -> dict[str, Any]:
    from bson import Timestamp

    place = offset.get("stream", {})
    token = place.get("token")
    if token:
        return {"start_after": {"_data": token} if isinstance(token, str) else token}
    when = place.get("time")
    if isinstance(when, (list, tuple)) and len(when) == 2:
        return {"start_at_operation_time": Timestamp(int(when[0]), int(when[1]))}
    raise ConfigurationError(
        "the stored offset has an unknown form",
        expected="a resume token or a cluster time",
        found=str(place)[:80],
    )


async def _window_seconds(client: AsyncMongoClient, offset: Mapping[str, Any]) -> float | None:
    from pymongo.errors import OperationFailure

    place = offset.get("stream", {})
    when = place.get("time")
    reached = when[0] if isinstance(when, (list, tuple)) and when else None
    if reached is None and place.get("token"):
        token = token_time(place["token"])
        reached = token[0] if token else None
    if reached is None:
        return None
    try:
        first = await client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
    except OperationFailure:  # no right to read local; the window is a bonus
        return None
    return None if first is None else float(reached - first["ts"].time)


def token_time(token: Any) -> tuple[int, int] | None:
    """Return the cluster time inside a resume token, None if it has another form."""
    data = token.get("_data") if isinstance(token, Mapping) else token
    if not isinstance(data, str) or not re.match(r"82[0-9A-Fa-f]{16}", data):
        return None
    return int(data[2:10], 16), int(data[10:18], 16)


def _refused(error: Any) -> CdcError:
    code = error.code
    if code == _HISTORY_LOST:
        return PositionLost(
            "MongoDB's oplog no longer holds the changes after the stored offset",
            remedy="enlarge the oplog, then take a snapshot: CdcOffsetsOperator(action='reset'), then sync",
        )
    if code in _UNUSABLE_TOKENS:
        return PositionLost("MongoDB does not take the stored offset", found=f"error {code}")
    if code in _NOT_ALLOWED:
        return ConfigurationError(
            "MongoDB refuses the connection's user",
            expected="a login with the roles readAnyDatabase, or read on what is watched",
            found=f"error {code}",
        )
    if error.has_error_label("ResumableChangeStreamError") or code in (
        6,
        7,
        89,
        91,
        189,
        11600,
        13435,
        13436,
    ):
        return TransientError("MongoDB does not answer as it should", found=f"error {code}")
    return ConfigurationError(
        "MongoDB refuses to open a change stream", found=f"error {code}: {error.details}"[:200]
    )


def _either(patterns: tuple[str, ...]) -> str:
    return "^(?:" + "|".join(f"(?:{pattern})" for pattern in patterns) + ")$"
