"""What a source that listens to a server's stream counts. Light: DAG files' side reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class StreamNumbers:
    """What a process met on one stream since it began.

    Args:
        connected: Whether the stream is open now.
        disconnects: Connections that were lost, and attempts to make one that failed.
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
    """

    connected: bool = False
    disconnects: int = 0
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
