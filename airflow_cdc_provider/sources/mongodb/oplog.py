"""How far back the server's oplog reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo import MongoClient, errors

BEGIN: Final = Timestamp(1, 1)
"""A time before all changes."""


def oldest_time(client: MongoClient, accepts: Callable[[Timestamp], bool], now: Timestamp) -> Timestamp:
    """Find the first cluster time from which the server can still stream.

    ``serverStatus`` tells it to users that may ask. For others, and for sharded clusters, times are tried:
    back from now in doubling steps, then by halving, to the second. A set that never dropped anything from
    its oplog takes any time; then it is :data:`BEGIN`.

    Args:
        client: A connection.
        accepts: Tells whether a stream can start at a time.
        now: The cluster time.
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
