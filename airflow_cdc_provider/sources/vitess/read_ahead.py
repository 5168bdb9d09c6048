"""Responses of an open stream, fetched by a thread while those before are worked on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from airflow_cdc_provider.exceptions import CdcError


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


class ReadAhead:
    """Fetches responses until those that wait have so many bytes.

    Args:
        responses: The stream; :meth:`close` ends it.
        most_bytes: When to wait for the reader, about.
    """

    def __init__(self, responses: Responses, most_bytes: int) -> None:
        self._responses = responses
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._failure: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fetch, name="cdc-vstream", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    def next(self, timeout_seconds: float) -> bytes | None:
        """Return the next response; None if none came in time (see :meth:`take`)."""
        responses = self.take(timeout_seconds, 0)
        return responses[0] if responses else None

    def take(self, timeout_seconds: float, most_bytes: int) -> list[bytes]:
        """Return the responses that wait, or the next one; none if none came in time.

        Args:
            timeout_seconds: How long to wait for the first.
            most_bytes: Of several: of so many bytes at most.

        Raises:
            StreamEnded: The server has ended the stream.
            CdcError: The stream broke; what came before was given.
        """
        until = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._waiting and self._failure is None:
                left = until - time.monotonic()
                if left <= 0:
                    return []
                self._changed.wait(left)
            if not self._waiting:
                assert self._failure is not None
                raise self._failure
            responses = [self._waiting.popleft()]
            taken = len(responses[0])
            while self._waiting and taken + len(self._waiting[0]) <= most_bytes:
                responses.append(self._waiting.popleft())
                taken += len(responses[-1])
            self._bytes -= taken
            self._changed.notify_all()
            return responses

    def close(self) -> None:
        """End the stream; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._responses.cancel()
        self._thread.join()

    def _fetch(self) -> None:
        failure: Exception = StreamEnded("VTGate has ended the stream")
        try:
            for response in self._responses:
                with self._changed:
                    while self._bytes >= self._most_bytes and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._waiting.append(response)
                    self._bytes += len(response)
                    self._changed.notify_all()
        except CdcError as error:
            failure = error
        finally:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
