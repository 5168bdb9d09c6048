"""Finds the oldest time in the server's oplog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import MongoClient, errors

BEGIN: Final = Timestamp(1, 1)
"""A time before all changes."""


def oldest_time(client: MongoClient, accepts: Callable[[Timestamp], bool], now: Timestamp) -> Timestamp:
    """Return the first cluster time from which the server can still stream.

    ``serverStatus`` reports it to users with the privilege. For other users, and for sharded clusters, it is
    searched: back from now in doubling steps, then by bisection, to the second. A set that never truncated
    its oplog accepts any time; the result is then :data:`BEGIN`.

    Args:
        client: The client.
        accepts: Whether a stream can start at a time.
        now: The current cluster time.
    """
    if (known := _oldest_by_status(client)) is not None:
        return known
    if accepts(BEGIN):
        return BEGIN
    step = 64
    kept = now.time
    while kept > step and accepts(Timestamp(kept - step, 0)):
        kept -= step
        step *= 2
    lost = max(kept - step, 0)
    while kept - lost > 1:
        middle = (kept + lost) // 2
        if accepts(Timestamp(middle, 0)):
            kept = middle
        else:
            lost = middle
    return Timestamp(kept, 0)


def _oldest_by_status(client: MongoClient) -> Timestamp | None:
    try:
        status: Mapping[str, Any] = client.admin.command("serverStatus", oplog=1)
    except errors.OperationFailure:
        return None
    time_of_first = status.get("oplog", {}).get("earliestOptime")
    return time_of_first if isinstance(time_of_first, Timestamp) else None
