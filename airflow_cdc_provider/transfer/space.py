"""Measures how full ``cdc_raw`` is, how fast it fills, and when it will be full.

Cassandra refuses writes to tables with CDC (or drops the oldest segments, with ``cdc_block_writes: false``)
when a new segment would exceed ``cdc_total_space``: one segment before it is full. Live segments are linked
there when they are created, so they count too. (Both observed on 5.0.9.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments

RATE_WINDOW_SECONDS: Final = 900.0
"""The rate is computed from segments finished within this time."""

_LARGEST_DEFAULT_BYTES: Final = 4096 << 20


@dataclass(frozen=True)
class Space:
    """Space used in one node's ``cdc_raw``.

    Args:
        used_bytes: Size of all segments, including live ones, and idx files.
        total_bytes: The node's limit (``cdc_total_space``).
        segments: Number of segments.
        segment_bytes: Size of the largest segment: the node only creates a new one if it fits.
        oldest_seconds: Age of the oldest segment; None if there is none.
        bytes_per_second: Recent rate of segments with changes of CDC tables; None with fewer than two.
        unread_segments: The number of segments with changes that weren't captured to their end; None if
            unknown.
        oldest_unread_seconds: Age of the oldest of them; None if there is none or it is unknown.
        host: The node's host id; empty if the folder doesn't name it.
    """

    used_bytes: int
    total_bytes: int
    segments: int
    segment_bytes: int
    oldest_seconds: float | None
    bytes_per_second: float | None = None
    unread_segments: int | None = None
    oldest_unread_seconds: float | None = None
    host: str = ""

    @property
    def used_ratio(self) -> float:
        """Used fraction of the limit."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def left_bytes(self) -> int:
        """Bytes until one more segment doesn't fit; negative if it already doesn't."""
        return self.total_bytes - self.used_bytes - self.segment_bytes

    @property
    def full(self) -> bool:
        """Whether the node creates no further segment for changes."""
        return self.left_bytes < 0

    @property
    def seconds_to_full(self) -> float | None:
        """Time until it is full, at the current rate of segments; None without a rate."""
        if not self.bytes_per_second:
            return None
        return max(self.left_bytes, 0) / self.bytes_per_second

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, for an XCom."""
        seconds = self.seconds_to_full
        return {
            **vars(self),
            "used_ratio": round(self.used_ratio, 4),
            "seconds_to_full": None if seconds is None else round(seconds, 1),
        }


def measure(
    folder: Path,
    total_bytes: int | None = None,
    host: str = "",
    unread: Callable[[Segment], bool] | None = None,
) -> Space:
    """Measure one node's folder; files may vanish meanwhile.

    Args:
        folder: The node's ``cdc_raw``.
        total_bytes: The node's limit; None for Cassandra's default, see :func:`default_total_bytes`.
        host: The node's host id.
        unread: Returns whether a segment has uncaptured changes; None if that is unknown.

    Raises:
        OSError: The folder can't be read.
    """
    os.listdir(folder)  # a missing folder isn't an empty one
    store = FolderStore(folder)
    segments = WholeSegments(store, host).segments()
    now = time.time()
    waiting = None if unread is None else [segment for segment in segments if unread(segment)]
    return Space(
        used_bytes=sum(item.size_bytes for item in store.items() if item.name.startswith("CommitLog-")),
        total_bytes=total_bytes or default_total_bytes(folder),
        segments=len(segments),
        segment_bytes=max((segment.size_bytes for segment in segments), default=0),
        oldest_seconds=_oldest_seconds(segments, now),
        bytes_per_second=bytes_per_second(segments, now),
        unread_segments=None if waiting is None else len(waiting),
        oldest_unread_seconds=_oldest_seconds(waiting or (), now),
        host=host,
    )


def _oldest_seconds(segments: Sequence[Segment], now: float) -> float | None:
    return max((max(now - segment.modified, 0.0) for segment in segments), default=None)


def bytes_per_second(segments: Sequence[Segment], now: float) -> float | None:
    """Return the rate of segments with changes, by their modification times.

    Args:
        segments: All segments of one node.
        now: The time, in epoch seconds.

    Returns:
        Bytes of those finished in the last :data:`RATE_WINDOW_SECONDS` per second of it (or per second since
        the oldest one, if that is less); None with fewer than two.
    """
    ordered = sorted((s for s in segments if s.readable), key=lambda segment: segment.modified)
    if len(ordered) < 2:
        return None
    begin = max(ordered[0].modified, now - RATE_WINDOW_SECONDS)
    came = sum(segment.size_bytes for segment in ordered[1:] if segment.modified >= begin)
    return came / max(now - begin, 1.0)


def default_total_bytes(folder: Path) -> int:
    """Return Cassandra's default of ``cdc_total_space``.

    It is the lesser of 4096 MiB and an eighth of the volume.
    """
    volume = os.statvfs(folder)
    return min(_LARGEST_DEFAULT_BYTES, volume.f_blocks * volume.f_frsize // 8)
