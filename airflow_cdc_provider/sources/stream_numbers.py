"""What a source that listens to a server's stream counts. Light: DAG files' side reads it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

_GREATEST: Final = ("last_event_at", "last_empty_reply_at", "behind_seconds")


@dataclass
class StreamNumbers:
    """What a process met on one stream since it began.

    Args:
        connected: Whether the stream is open now.
        disconnects: Connections that were lost, and attempts to make one that failed.
        journals: Journals of reshards that came, one for each shard that took part.
        elections: Changes of the primary, seen when connecting anew. A stream of a secondary can't tell.
        replies: Replies of the server.
        empty_replies: Those without events.
        events: Events that came, those of the same event's parts counted each.
        bytes: Of these.
        waited_seconds: How long it waited for the server.
        parsed_seconds: How long it looked for the places of events.
        last_event_at: When the last reply with events came, epoch seconds; None before the first.
        last_empty_reply_at: When the last one without events came.
        position: The place that it has reached, by name.
        behind_seconds: Age of the last event when it came, by the server's clock of its commit; None before
            the first.
        last_event: The last event that came, in words; empty before the first.
        last_transaction: The id of the last transaction that was captured; empty before the first.
        creates: Captured events that created a row.
        updates: Those that changed or replaced one.
        deletes: Those that deleted one.
        filtered: Events of rows that the server sent and the declaration doesn't select.
        broken: Events that could not be read and were set apart.
        transactions: Transactions with captured events; a stream gives them when they are committed.
        queue_events_limit: Most events that may wait to be worked on; 0 for no such limit.
        queue_bytes_limit: Most bytes of such, about.
        queue_events: Events that wait now.
        queue_bytes: Bytes of them.
        queue_events_max: The most events that waited so far.
        queue_bytes_max: The most bytes.
    """

    connected: bool = False
    disconnects: int = 0
    journals: int = 0
    elections: int = 0
    replies: int = 0
    empty_replies: int = 0
    events: int = 0
    bytes: int = 0
    waited_seconds: float = 0.0
    parsed_seconds: float = 0.0
    last_event_at: float | None = None
    last_empty_reply_at: float | None = None
    position: Mapping[str, str] = field(default_factory=dict)
    behind_seconds: float | None = None
    last_event: str = ""
    last_transaction: str = ""
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    filtered: int = 0
    broken: int = 0
    transactions: int = 0
    queue_events_limit: int = 0
    queue_bytes_limit: int = 0
    queue_events: int = 0
    queue_bytes: int = 0
    queue_events_max: int = 0
    queue_bytes_max: int = 0


def added(numbers: Sequence[StreamNumbers]) -> StreamNumbers:
    """Return the numbers of several streams as those of one."""
    total: dict[str, Any] = {}
    for one in fields(StreamNumbers):
        values = [getattr(number, one.name) for number in numbers]
        if one.name == "position":
            total[one.name] = {name: place for value in values for name, place in value.items()}
        elif one.name == "connected":
            total[one.name] = any(values)
        elif one.name in _GREATEST:
            total[one.name] = max((value for value in values if value is not None), default=None)
        elif isinstance(one.default, str):
            total[one.name] = next(filter(None, reversed(values)), "")
        else:
            total[one.name] = sum(values)
    return StreamNumbers(**total)
