"""Responses of an open stream, fetched by a thread while those before are worked on.

What waits is bounded by bytes and by row changes. A thread that meets a limit takes no more from the stream;
gRPC's flow control then holds up VTGate, and nothing is dropped. What waits is captured by no plan: a stream
that is opened again gives it again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.sources.vitess.protobuf import LEN, next_field

_EVENT: Final = 1
"""Field of ``VStreamResponse``: an event."""
_ROW_EVENT: Final = 5
"""Of ``VEvent``: what a ROW event holds."""
_ROW_CHANGE: Final = 2
"""Of ``RowEvent``: a row change."""
_STOP_CHECK_SECONDS: Final = 0.2


class Responses(Protocol):
    """An open stream, such as :class:`.vtgate.RawStream`."""

    def __iter__(self) -> Iterator[bytes]:
        """Give responses as they come."""
        ...

    def cancel(self) -> None:
        """End it from any thread."""
        ...


class StreamEnded(Exception):
    """The server has ended the stream and told no error."""


@dataclass(frozen=True)
class Room:
    """How much may wait; a response is let in while less does, so one of them may go beyond.

    Args:
        bytes: Bytes; 0: no such limit.
        events: Row changes; 0: no such limit.
    """

    bytes: int
    events: int = 0

    def has(self, waiting: Waiting) -> bool:
        """Tell whether another response may be let in."""
        return not (self.bytes and waiting.bytes >= self.bytes) and not (
            self.events and waiting.events >= self.events
        )


@dataclass
class Waiting:
    """What is fetched and not yet taken, and the most that was so far."""

    events: int = 0
    bytes: int = 0
    most_events: int = 0
    most_bytes: int = 0

    def add(self, events: int, size: int) -> None:
        """Count what came; negative numbers take out what was taken."""
        self.events += events
        self.bytes += size
        self.most_events = max(self.most_events, self.events)
        self.most_bytes = max(self.most_bytes, self.bytes)


class ReadAhead:
    """Fetches responses as long as there is room for them.

    Args:
        responses: The stream; :meth:`close` ends it.
        room: How much may wait.
        waiting: To count what does; None for a count of its own.
    """

    def __init__(self, responses: Responses, room: Room, waiting: Waiting | None = None) -> None:
        self._responses = responses
        self._room = room
        self._waiting = Waiting() if waiting is None else waiting
        self._fetched: deque[tuple[bytes, int]] = deque()
        self._failure: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fetch, name="cdc-vstream", daemon=True)
        self._thread.start()

    def next(self, timeout_seconds: float) -> bytes | None:
        """Return the next response; None if none came in time (see :meth:`take`)."""
        responses = self.take(timeout_seconds, 0)
        return responses[0] if responses else None

    def take(
        self, timeout_seconds: float, most_bytes: int, stopping: Callable[[], bool] = lambda: False
    ) -> list[bytes]:
        """Return the responses that wait, or the next one; none if none came in time.

        Args:
            timeout_seconds: How long to wait for the first.
            most_bytes: Of several: of so many bytes at most.
            stopping: Ends the waiting.

        Raises:
            StreamEnded: The server has ended the stream.
            CdcError: The stream broke; what came before was given.
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
            responses, taken = [response], len(response)
            while self._fetched and taken + len(self._fetched[0][0]) <= most_bytes:
                response, more = self._fetched.popleft()
                responses.append(response)
                taken += len(response)
                events += more
            self._waiting.add(-events, -taken)
            self._changed.notify_all()
            return responses

    def close(self) -> None:
        """End the stream; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._responses.cancel()
        self._thread.join()
        for response, events in self._fetched:
            self._waiting.add(-events, -len(response))
        self._fetched.clear()

    def _fetch(self) -> None:
        failure: Exception = StreamEnded("VTGate has ended the stream")
        try:
            for response in self._responses:
                events = int(_count_changes(np.frombuffer(response, np.uint8)))
                with self._changed:
                    while not self._room.has(self._waiting) and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._fetched.append((response, events))
                    self._waiting.add(events, len(response))
                    self._changed.notify_all()
        except CdcError as error:
            failure = error
        finally:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()


@walker
def _count_changes(data: Any) -> Any:
    """Count the row changes of a response, up to the first byte that is broken: its reader tells of that."""
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
