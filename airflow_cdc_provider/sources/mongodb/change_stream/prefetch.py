"""A change stream's cursor with prefetched replies.

The server needs several times as long for an event as the reader, so without prefetching both would be idle
in turn. Replies are prefetched while the server has events available; prefetching ends with an empty reply,
and the caller then waits for new events itself.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch, RawCursor
from airflow_cdc_provider.sources.prefetch import BufferedStats, BufferLimit, Prefetch


class PrefetchingCursor:
    """A cursor with prefetched replies. Not thread-safe: for one caller at a time.

    Args:
        cursor: The cursor, for exclusive use.
        limit: Limits of the buffer; None: no prefetching.
        is_last: Whether no reply is needed after this one.
        buffered: Counters of the buffer.
    """

    def __init__(
        self,
        cursor: RawCursor,
        limit: BufferLimit | None,
        is_last: Callable[[RawBatch], bool],
        buffered: BufferedStats,
    ) -> None:
        self._cursor = cursor
        self._limit = limit
        self._is_last = is_last
        self._buffered = buffered
        self._prefetch: Prefetch[RawBatch] | None = None

    @property
    def alive(self) -> bool:
        """Whether there is more to read."""
        return self._prefetch is not None or self._cursor.alive

    def next(self, wait_ms: int | None = None) -> RawBatch:
        """Return the next reply.

        Args:
            wait_ms: How long the server may wait for new events; None for the reply that opens the cursor.

        Raises:
            CdcError: The server failed; the cursor can't be used any more.
        """
        reply = None
        if self._prefetch is not None:
            reply = self._prefetch.next()
            if self._prefetch.exhausted:
                self._prefetch = None
        if reply is None or (not len(reply.documents) and wait_ms is not None and self._cursor.alive):
            # An empty prefetched reply, the last one, did not wait for new events.
            reply = self._cursor.next(wait_ms)
        if self._limit is not None and self._prefetch is None and not self._ends_with(reply):
            self._prefetch = Prefetch(
                lambda: self._cursor.next(1), _size, self._limit, self._buffered, is_last=self._ends_with
            )
        return reply

    def close(self) -> None:
        """Close the cursor on the server, after the reply that is being fetched."""
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None
        self._cursor.close()

    def _ends_with(self, reply: RawBatch) -> bool:
        return not len(reply.documents) or not self._cursor.alive or self._is_last(reply)


def _size(reply: RawBatch) -> tuple[int, int]:
    return len(reply.documents), len(reply.data)
