"""Reading ahead: a change stream's next replies are fetched while the ones before are worked on.

The server needs several times as long for an event as whoever reads it, so a reader that asks only when it is
done leaves both idle in turn. A thread asks on as long as the server has events at once, and as long as what
waits is within a limit of bytes. An empty reply ends it: who then waits for news asks for itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from airflow_cdc_provider.sources.mongodb.connection import RawBatch, RawCursor


class ReadAhead:
    """A cursor whose next replies may be here already. For one caller at a time.

    Args:
        cursor: What to read; nobody else may use it.
        limit_bytes: No further reply is asked for while so much waits; 0: none is asked for ahead.
        is_last: Tells whether a reply is one after which none is wanted.
    """

    def __init__(self, cursor: RawCursor, limit_bytes: int, is_last: Callable[[RawBatch], bool]) -> None:
        self._cursor = cursor
        self._limit_bytes = limit_bytes
        self._is_last = is_last
        self._replies: deque[RawBatch | Exception] = deque()
        self._bytes = 0
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
        if self._limit_bytes and idle and self._goes_on(reply):
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
            self._bytes -= len(reply.data)
            self._changed.notify_all()
            return reply

    def _goes_on(self, reply: RawBatch) -> bool:
        return len(reply.documents) > 0 and self._cursor.alive and not self._is_last(reply)

    def _fetch(self) -> None:
        going_on = True
        while going_on:
            with self._changed:
                while self._bytes >= self._limit_bytes and not self._closing:
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
                    self._bytes += len(reply.data)
                if not going_on:
                    self._thread = None
                self._changed.notify_all()
