"""Prefetching: a thread fetches a change stream's next replies while earlier ones are processed.

The server needs several times as long for an event as the reader, so without prefetching both would be idle
in turn. The thread fetches while the server has events available and the buffer is within its limits of
events and bytes: if processing is slow, fetching pauses until there is space (backpressure). The thread ends
with an empty reply; the caller then waits for new events itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from airflow_cdc_provider.sources.mongodb.raw_cursor import RawBatch, RawCursor


@dataclass(frozen=True)
class BufferLimit:
    """Limits of the buffer.

    Args:
        bytes: No reply is fetched while the buffer holds this many bytes; 0: no prefetching.
        events: No reply is fetched that might exceed this many events; 0: no limit.
        reply_events: Maximum number of events of one reply.
    """

    bytes: int
    events: int = 0
    reply_events: int = 0

    def permits(self, buffered: BufferedStats) -> bool:
        """Return whether another reply may be fetched."""
        return buffered.bytes < self.bytes and (
            not self.events or buffered.events + self.reply_events <= self.events
        )


@dataclass
class BufferedStats:
    """Events and bytes that are fetched and not yet consumed, and the maxima so far."""

    events: int = 0
    bytes: int = 0
    max_events: int = 0
    max_bytes: int = 0

    def add(self, reply: RawBatch, sign: int = 1) -> None:
        """Add a reply, or with ``sign`` -1 subtract it."""
        self.events += sign * len(reply.documents)
        self.bytes += sign * len(reply.data)
        self.max_events = max(self.max_events, self.events)
        self.max_bytes = max(self.max_bytes, self.bytes)


class Prefetcher:
    """A cursor with prefetched replies. Not thread-safe: for one caller at a time.

    Args:
        cursor: The cursor, for exclusive use.
        limit: Limits of the buffer.
        is_last: Whether no reply is needed after this one.
        buffered: Counters of the buffer; None for new ones.
    """

    def __init__(
        self,
        cursor: RawCursor,
        limit: BufferLimit,
        is_last: Callable[[RawBatch], bool],
        buffered: BufferedStats | None = None,
    ) -> None:
        self._cursor = cursor
        self._limit = limit
        self._is_last = is_last
        self._replies: deque[RawBatch | Exception] = deque()
        self._buffered = BufferedStats() if buffered is None else buffered
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
            wait_ms: How long the server may wait for new events; None for the reply that opens the cursor.

        Raises:
            CdcError: The server failed; the cursor can't be used any more.
        """
        reply = self._pop_fetched()
        if reply is None or (not len(reply.documents) and wait_ms is not None and self._cursor.alive):
            # An empty prefetched reply, the last one, did not wait for new events.
            reply = self._cursor.next(wait_ms)
        idle = self._thread is None and not self._replies
        if self._limit.bytes and idle and self._has_more(reply):
            self._thread = threading.Thread(target=self._fetch, name="mongodb prefetch", daemon=True)
            self._thread.start()
        return reply

    def close(self) -> None:
        """Close the cursor on the server, after the reply that is being fetched."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        for reply in self._replies:
            if isinstance(reply, RawBatch):
                self._buffered.add(reply, -1)
        self._replies.clear()
        self._cursor.close()

    def _pop_fetched(self) -> RawBatch | None:
        """Return the oldest prefetched reply, None if there is none and the thread has ended."""
        with self._changed:
            while not self._replies and self._thread is not None:
                self._changed.wait()
            if not self._replies:
                return None
            reply = self._replies.popleft()
            if isinstance(reply, Exception):
                raise reply
            self._buffered.add(reply, -1)
            self._changed.notify_all()
            return reply

    def _has_more(self, reply: RawBatch) -> bool:
        return len(reply.documents) > 0 and self._cursor.alive and not self._is_last(reply)

    def _fetch(self) -> None:
        has_more = True
        while has_more:
            with self._changed:
                while not self._limit.permits(self._buffered) and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
            reply: RawBatch | Exception
            try:
                reply = self._cursor.next(1)
            except Exception as error:  # noqa: BLE001  # raised by next(), in the caller's thread
                reply = error
            has_more = isinstance(reply, RawBatch) and self._has_more(reply)
            with self._changed:
                self._replies.append(reply)
                if isinstance(reply, RawBatch):
                    self._buffered.add(reply)
                if not has_more:
                    self._thread = None
                self._changed.notify_all()
