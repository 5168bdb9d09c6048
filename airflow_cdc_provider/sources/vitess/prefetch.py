"""Prefetches the responses of an open stream in a thread while earlier responses are processed.

The buffer is limited by bytes and by row changes. At a limit the thread stops reading from the stream, gRPC's
flow control applies backpressure to VTGate, and nothing is dropped. Buffered responses belong to no plan: a
stream that is reopened delivers them again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.formats.kernels import walker
from airflow_cdc_provider.formats.protobuf_wire import LEN, next_field

_EVENT: Final = 1
"""Field of ``VStreamResponse``: an event."""
_ROW_EVENT: Final = 5
"""Field of ``VEvent``: the body of a ROW event."""
_ROW_CHANGE: Final = 2
"""Field of ``RowEvent``: a row change."""
_STOP_CHECK_SECONDS: Final = 0.2


class Responses(Protocol):
    """An open stream, such as :class:`.vtgate.RawStream`."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield responses as they arrive."""
        ...

    def cancel(self) -> None:
        """Cancel the stream. Safe to call from any thread."""
        ...


class StreamEnded(Exception):
    """The server ended the stream without an error."""


@dataclass(frozen=True)
class BufferLimit:
    """Limit of the buffer. A response is added while the buffer is below it, so one response may exceed it.

    Args:
        bytes: Maximum number of bytes; 0: no limit.
        events: Maximum number of row changes; 0: no limit.
    """

    bytes: int
    events: int = 0

    def allows(self, buffered: BufferedStats) -> bool:
        """Return whether another response may be added."""
        return not (self.bytes and buffered.bytes >= self.bytes) and not (
            self.events and buffered.events >= self.events
        )


@dataclass
class BufferedStats:
    """Size of the buffer: row changes and bytes now, and their maximum so far."""

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


class Prefetcher:
    """Fetches responses until the buffer limit is reached.

    Args:
        responses: The stream; :meth:`close` cancels it.
        limit: Limit of the buffer.
        buffered: Statistics to update; None for new ones.
    """

    def __init__(
        self, responses: Responses, limit: BufferLimit, buffered: BufferedStats | None = None
    ) -> None:
        self._responses = responses
        self._limit = limit
        self._buffered = BufferedStats() if buffered is None else buffered
        self._fetched: deque[tuple[bytes, int]] = deque()
        self._failure: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fetch, name="cdc-vstream", daemon=True)
        self._thread.start()

    def next(self, timeout_seconds: float) -> bytes | None:
        """Return the next response; None after the timeout (see :meth:`take`)."""
        responses = self.take(timeout_seconds, 0)
        return responses[0] if responses else None

    def take(
        self, timeout_seconds: float, max_bytes: int, stopping: Callable[[], bool] = lambda: False
    ) -> list[bytes]:
        """Return the buffered responses, or the next one.

        Args:
            timeout_seconds: How long to wait for the first response.
            max_bytes: Maximum total size, if more than one response is returned.
            stopping: Returns whether to stop waiting.

        Returns:
            The responses; none after the timeout.

        Raises:
            StreamEnded: The server ended the stream.
            CdcError: The stream failed; all responses before the failure were returned.
        """
        until = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._fetched and self._failure is None:
                left = until - time.monotonic()
                if left <= 0 or stopping():
                    return []
                self._changed.wait(min(left, _STOP_CHECK_SECONDS))
            if not self._fetched:
                assert self._failure is not None
                raise self._failure
            response, events = self._fetched.popleft()
            responses, size = [response], len(response)
            while self._fetched and size + len(self._fetched[0][0]) <= max_bytes:
                response, more = self._fetched.popleft()
                responses.append(response)
                size += len(response)
                events += more
            self._buffered.add(-events, -size)
            self._changed.notify_all()
            return responses

    def close(self) -> None:
        """Cancel the stream and drop the buffered responses."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._responses.cancel()
        self._thread.join()
        for response, events in self._fetched:
            self._buffered.add(-events, -len(response))
        self._fetched.clear()

    def _fetch(self) -> None:
        failure: Exception = StreamEnded("VTGate ended the stream")
        try:
            for response in self._responses:
                events = int(_count_changes(np.frombuffer(response, np.uint8)))
                with self._changed:
                    while not self._limit.allows(self._buffered) and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._fetched.append((response, events))
                    self._buffered.add(events, len(response))
                    self._changed.notify_all()
        except CdcError as error:
            failure = error
        finally:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()


@walker
def _count_changes(data: Any) -> Any:
    """Count the row changes of a response, up to the first invalid byte; the parser reports that one."""
    count = np.int64(0)
    at = np.int64(0)
    while at < len(data):
        number, kind, _, event, after = next_field(data, at, len(data))
        if number < 0:
            break
        if number == _EVENT and kind == LEN:
            while event < after:
                inner, kind, _, row, end = next_field(data, event, after)
                if inner < 0:
                    break
                if inner == _ROW_EVENT and kind == LEN:
                    while row < end:
                        member, kind, _, _, last = next_field(data, row, end)
                        if member < 0:
                            break
                        if member == _ROW_CHANGE and kind == LEN:
                            count += 1
                        row = last
                event = end
        at = after
    return count
