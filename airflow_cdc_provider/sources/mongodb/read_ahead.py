"""Reading ahead: a change stream's next replies are fetched while the ones before are worked on.

The server needs several times as long for an event as whoever reads it, so a reader that asks only when it is
done leaves both idle in turn. A thread asks on as long as the server has events at once, and as long as what
waits is within limits of events and of bytes: where they are worked on slowly, reading stops there and goes
on when there is room. An empty reply ends it: who then waits for news asks for itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from airflow_cdc_provider.sources.mongodb.raw_cursor import RawBatch, RawCursor


@dataclass(frozen=True)
class Room:
    """How much may wait.

    Args:
        bytes: No further reply is asked for while so many wait; 0: none is asked for ahead.
        events: None is asked for that might bring more events than these; 0: no such limit.
        reply_events: The most events of one reply.
    """

    bytes: int
    events: int = 0
    reply_events: int = 0

    def has(self, waiting: Waiting) -> bool:
        """Tell whether another reply may be asked for."""
        return waiting.bytes < self.bytes and (
            not self.events or waiting.events + self.reply_events <= self.events
        )


@dataclass
class Waiting:
    """What is fetched of a stream and not yet taken, and the most that was so far."""

    events: int = 0
    bytes: int = 0
    most_events: int = 0
    most_bytes: int = 0

    def add(self, reply: RawBatch, sign: int = 1) -> None:
        """Count a reply, or with ``sign`` -1 take it out."""
        self.events += sign * len(reply.documents)
        self.bytes += sign * len(reply.data)
        self.most_events = max(self.most_events, self.events)
        self.most_bytes = max(self.most_bytes, self.bytes)


class ReadAhead:
    """A cursor whose next replies may be here already. For one caller at a time.

    Args:
        cursor: What to read; nobody else may use it.
        room: How much may wait.
        is_last: Tells whether a reply is one after which none is wanted.
        waiting: To count what waits.
    """

    def __init__(
        self,
        cursor: RawCursor,
        room: Room,
        is_last: Callable[[RawBatch], bool],
        waiting: Waiting | None = None,
    ) -> None:
        self._cursor = cursor
        self._room = room
        self._is_last = is_last
        self._replies: deque[RawBatch | Exception] = deque()
        self._waiting = Waiting() if waiting is None else waiting
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def alive(self) -> bool:
        """Whether there is more to read."""
        with self._changed:
            return bool(self._replies) or self._thread is not None or self._cursor.alive

    def next(self, wait_ms: int | None = None) -> RawBatch:
        """Return the next reply.

        Args:
            wait_ms: How long the server may wait for news; None for the reply that opens the cursor.

        Raises:
            CdcError: By what the caller must do; after it the cursor is of no use.
        """
        reply = self._fetched()
        if reply is None or (not len(reply.documents) and wait_ms is not None and self._cursor.alive):
            # An empty reply that was fetched ahead, the last one then, did not wait for news.
            reply = self._cursor.next(wait_ms)
        idle = self._thread is None and not self._replies
        if self._room.bytes and idle and self._goes_on(reply):
            self._thread = threading.Thread(target=self._fetch, name="mongodb read ahead", daemon=True)
            self._thread.start()
        return reply

    def close(self) -> None:
        """End the cursor on the server, after the reply that is being fetched."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        for reply in self._replies:
            if isinstance(reply, RawBatch):
                self._waiting.add(reply, -1)
        self._replies.clear()
        self._cursor.close()

    def _fetched(self) -> RawBatch | None:
        """Return the oldest reply that was fetched ahead, None if nobody fetches."""
        with self._changed:
            while not self._replies and self._thread is not None:
                self._changed.wait()
            if not self._replies:
                return None
            reply = self._replies.popleft()
            if isinstance(reply, Exception):
                raise reply
            self._waiting.add(reply, -1)
            self._changed.notify_all()
            return reply

    def _goes_on(self, reply: RawBatch) -> bool:
        return len(reply.documents) > 0 and self._cursor.alive and not self._is_last(reply)

    def _fetch(self) -> None:
        going_on = True
        while going_on:
            with self._changed:
                while not self._room.has(self._waiting) and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
            reply: RawBatch | Exception
            try:
                reply = self._cursor.next(1)
            except Exception as error:  # noqa: BLE001  # raised by next(), in the caller's thread
                reply = error
            going_on = isinstance(reply, RawBatch) and self._goes_on(reply)
            with self._changed:
                self._replies.append(reply)
                if isinstance(reply, RawBatch):
                    self._waiting.add(reply)
                if not going_on:
                    self._thread = None
                self._changed.notify_all()
