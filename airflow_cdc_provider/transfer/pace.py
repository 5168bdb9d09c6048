"""How fast bytes travel, and who is told how far they got."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_TELL_EVERY_SECONDS: Final = 5.0
_MIB: Final = 1024 * 1024


class Pace:
    """Counts what travels in all threads of a transfer, holds it up, and says a line now and then.

    Args:
        bytes_per_second: At most so many, all threads together; None for as many as can be.
        tell: Takes a line of progress.
    """

    def __init__(
        self, bytes_per_second: float | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._limit = bytes_per_second
        self._tell = tell
        self._lock = threading.Lock()
        self._free_at = self._begun = self._told_at = time.monotonic()
        self._segments = self._all_segments = self.travelled_bytes = 0

    def expect(self, segments: int) -> None:
        """Say how many segments there are to bring."""
        self._all_segments = segments
        self._begun = self._told_at = time.monotonic()

    def finished_one(self) -> None:
        """Count a segment that was brought."""
        with self._lock:
            self._segments += 1

    def __call__(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Hand pieces on, no faster than allowed."""
        for piece in pieces:
            self._wait_for_turn(len(piece))
            yield piece

    def _wait_for_turn(self, size: int) -> None:
        with self._lock:
            now = time.monotonic()
            self.travelled_bytes += size
            wait = 0.0
            if self._limit is not None:
                self._free_at = max(self._free_at, now) + size / self._limit
                wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
        self._tell_now_and_then()

    def _tell_now_and_then(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._tell is not None and now - self._told_at >= _TELL_EVERY_SECONDS:
                self._told_at = now
                self._tell(self._line(now))

    def _line(self, now: float) -> str:
        mib = self.travelled_bytes / _MIB
        return (
            f"{self._segments} of {self._all_segments} segments, {mib:.0f} MiB, "
            f"{mib / max(now - self._begun, 0.001):.1f} MiB/s"
        )
