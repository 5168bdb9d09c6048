"""Limits the bandwidth of a transfer, and reports its progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_REPORT_EVERY_SECONDS: Final = 5.0
_MIB: Final = 1024 * 1024


class Pace:
    """Counts the bytes of all threads of a transfer, throttles them, and reports progress periodically.

    Args:
        bytes_per_second: Limit of all threads together; None for no limit.
        report: Receives a line of progress.
    """

    def __init__(
        self, bytes_per_second: float | None = None, report: Callable[[str], None] | None = None
    ) -> None:
        self._limit = bytes_per_second
        self._report = report
        self._lock = threading.Lock()
        self._free_at = self._started_at = self._reported_at = time.monotonic()
        self._segments = self._all_segments = self.travelled_bytes = 0

    def expect(self, segments: int) -> None:
        """Set the number of segments to copy."""
        self._all_segments = segments
        self._started_at = self._reported_at = time.monotonic()

    def finished_one(self) -> None:
        """Count a copied segment."""
        with self._lock:
            self._segments += 1

    def __call__(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass pieces through, no faster than the limit."""
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
        self._report_progress()

    def _report_progress(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._report is not None and now - self._reported_at >= _REPORT_EVERY_SECONDS:
                self._reported_at = now
                self._report(self._line(now))

    def _line(self, now: float) -> str:
        mib = self.travelled_bytes / _MIB
        return (
            f"{self._segments} of {self._all_segments} segments, {mib:.0f} MiB, "
            f"{mib / max(now - self._started_at, 0.001):.1f} MiB/s"
        )
