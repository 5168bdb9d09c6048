"""Metrics of a source that reads a server's stream. Has no heavy imports: DAG files import it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

_GREATEST: Final = ("last_event_at", "last_empty_reply_at", "behind_seconds")


@dataclass
class StreamMetrics:
    """The metrics of one stream since the process started.

    Args:
        connected: Whether the stream is open now.
        disconnects: Lost connections and failed connection attempts.
        journals: Received journals of reshardings, one for each participating shard.
        elections: Changes of the primary, detected on reconnection; not detected by a stream of a secondary.
        replies: Responses of the server.
        empty_replies: Responses without events.
        events: Received events; the parts of a split event are counted separately.
        bytes: Bytes of these events.
        waited_seconds: Time spent waiting for the server.
        parsed_seconds: Time spent parsing event boundaries.
        last_event_at: When the last response with events arrived, epoch seconds; None before the first.
        last_empty_reply_at: When the last response without events arrived.
        position: The current position, by name.
        behind_seconds: Age of the last change on arrival, by the server's commit time; None before the first.
        last_event: Description of the last received event; empty before the first.
        last_transaction: The id of the last captured transaction; empty before the first.
        creates: Captured events that created a row.
        updates: Captured events that changed or replaced a row.
        deletes: Captured events that deleted a row.
        filtered: Received events of rows that the declaration doesn't select.
        broken: Unreadable events that were quarantined.
        transactions: Transactions with captured events; a stream emits them on commit.
        queue_events_limit: Maximum number of buffered events; 0 for no limit.
        queue_bytes_limit: Approximate maximum of buffered bytes.
        queue_events: Events in the buffer now.
        queue_bytes: Bytes in the buffer now.
        queue_events_max: Maximum number of buffered events so far.
        queue_bytes_max: Maximum of buffered bytes so far.
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


def sum_stream_metrics(numbers: Sequence[StreamMetrics]) -> StreamMetrics:
    """Combine the metrics of several streams."""
    total: dict[str, Any] = {}
    for one in fields(StreamMetrics):
        values = [getattr(number, one.name) for number in numbers]
        if one.name == "position":
            total[one.name] = {name: position for value in values for name, position in value.items()}
        elif one.name == "connected":
            total[one.name] = any(values)
        elif one.name in _GREATEST:
            total[one.name] = max((value for value in values if value is not None), default=None)
        elif isinstance(one.default, str):
            total[one.name] = next(filter(None, reversed(values)), "")
        else:
            total[one.name] = sum(values)
    return StreamMetrics(**total)
