"""Prefetching: a thread fetches a stream's next items while earlier ones are processed.

The buffer is limited by events and bytes. At a limit the thread stops fetching (backpressure) until there is
space, and nothing is dropped. Buffered items belong to no plan: a stream that is reopened returns them again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_STOP_CHECK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class BufferLimit:
    """Limits of a buffer. An item is fetched while the buffer is below both.

    Args:
        bytes: Maximum number of bytes, which one item may exceed; 0: no limit.
        events: Maximum number of events; 0: no limit.
        item_events: Number of events for which there must be space before an item is fetched.
    """

    bytes: int
    events: int = 0
    item_events: int = 1

    def permits(self, buffered: BufferedStats) -> bool:
        """Return whether another item may be fetched."""
        return not (self.bytes and buffered.bytes >= self.bytes) and not (
            self.events and buffered.events + self.item_events > self.events
        )


@dataclass
class BufferedStats:
    """Events and bytes that are fetched and not yet consumed, and the maxima so far."""

    events: int = 0
    bytes: int = 0
    max_events: int = 0
    max_bytes: int = 0

    def add(self, events: int, size: int) -> None:
        """Add to the size; negative numbers subtract."""
        self.events += events
        self.bytes += size
        self.max_events = max(self.max_events, self.events)
        self.max_bytes = max(self.max_bytes, self.bytes)


class Prefetch(Generic[T]):
    """Fetches items in a thread until one is the last, or fetching fails.

    Args:
        fetch: Returns the next item; the thread calls it.
        measure: Returns the number of events and bytes of an item.
        limit: Limits of the buffer.
        buffered: Counters of the buffer; None for new ones.
        is_last: Whether no item follows this one.
        cancel: Interrupts ``fetch``; called by :meth:`close`.
    """

    def __init__(
        self,
        fetch: Callable[[], T],
        measure: Callable[[T], tuple[int, int]],
        limit: BufferLimit,
        buffered: BufferedStats | None = None,
        *,
        is_last: Callable[[T], bool] = lambda item: False,
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._fetch_one = fetch
        self._measure = measure
        self._limit = limit
        self._buffered = BufferedStats() if buffered is None else buffered
        self._is_last = is_last
        self._cancel = cancel
        self._fetched: deque[tuple[T, int, int]] = deque()
        self._failure: Exception | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fetch, name="cdc prefetch", daemon=True)
        self._thread.start()

    @property
    def exhausted(self) -> bool:
        """Whether the last item was fetched and returned."""
        with self._changed:
            return self._ended and not self._fetched

    def next(self, timeout_seconds: float = inf) -> T | None:
        """Return the next item; None after the timeout or the last item (see :meth:`take`)."""
        items = self.take(timeout_seconds, 0)
        return items[0] if items else None

    def take(
        self, timeout_seconds: float, max_bytes: int, stopping: Callable[[], bool] = lambda: False
    ) -> list[T]:
        """Return the buffered items, or the next one.

        Args:
            timeout_seconds: How long to wait for the first item.
            max_bytes: Maximum total size, if more than one item is returned.
            stopping: Returns whether to stop waiting.

        Returns:
            The items; none after the timeout or the last item.

        Raises:
            Exception: Fetching failed with it; all items before the failure were returned.
        """
        until = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._fetched:
                if self._failure is not None:
                    raise self._failure
                left = until - time.monotonic()
                if self._ended or left <= 0 or stopping():
                    return []
                self._changed.wait(min(left, _STOP_CHECK_SECONDS))
            items: list[T] = []
            total = 0
            while self._fetched and (not items or total + self._fetched[0][2] <= max_bytes):
                item, events, size = self._fetched.popleft()
                items.append(item)
                total += size
                self._buffered.add(-events, -size)
            self._changed.notify_all()
            return items

    def close(self) -> None:
        """Stop fetching, after the item that is being fetched, and drop the buffered items."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._cancel()
        self._thread.join()
        for _, events, size in self._fetched:
            self._buffered.add(-events, -size)
        self._fetched.clear()

    def _fetch(self) -> None:
        last = False
        while not last:
            with self._changed:
                while not self._limit.permits(self._buffered) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            try:
                item = self._fetch_one()
                last = self._is_last(item)
                events, size = self._measure(item)
            except Exception as error:  # noqa: BLE001  # raised by take(), in the caller's thread
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._fetched.append((item, events, size))
                self._buffered.add(events, size)
                self._ended = last
                self._changed.notify_all()
