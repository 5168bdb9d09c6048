"""Complete events of a change stream as raw bytes, and their grouping into slices for executors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.formats.arrow_bytes import gather
from airflow_cdc_provider.formats.bson import Spans
from airflow_cdc_provider.formats.kernels import Bytes, Ints

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Size at which a slice of events is closed; one reply of the server may exceed it."""


@dataclass(frozen=True)
class Events:
    """Complete, consecutive events of a stream.

    Args:
        data: The buffer.
        spans: Spans of the events in it.
        times: Cluster time of each event, seconds in the upper half.
        indexes: Index of each among the events of its cluster time.
    """

    data: Bytes
    spans: Spans
    times: npt.NDArray[np.uint64]
    indexes: Ints

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.spans)

    def part(self, first: int, end: int) -> Events:
        """Return the events from one index to before another."""
        rows = slice(first, end)
        spans = Spans(self.spans.starts[rows], self.spans.ends[rows], self.spans.stopped_at)
        return Events(self.data, spans, self.times[rows], self.indexes[rows])

    def before(self, time: int) -> Events:
        """Return the events of an earlier cluster time."""
        return self.part(0, int(np.searchsorted(self.times, np.uint64(time))))


@dataclass(frozen=True)
class Reply:
    """The result of one read of the stream.

    Args:
        events: The events that are complete now.
        count: Number of events or fragments of events that the server sent.
        waited: Whether the server waited for new events as long as it may.
    """

    events: Sequence[Events]
    count: int
    waited: bool


@dataclass(frozen=True)
class EventSlice:
    """Change events of a partition in stream order: concatenated BSON and the start of their positions.

    Args:
        events: The documents.
        first_index: Index of the first event among those of its cluster time.
        captured_us: When they were read, in us since 1970.
    """

    events: bytes
    first_index: int
    captured_us: int


@dataclass
class SlicedEvents:
    """Groups the events of a plan into slices."""

    slices: list[EventSlice] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    first_index: int = 0
    captured_us: int = 0
    open_bytes: int = 0
    total_bytes: int = 0
    changes: int = 0

    def add(self, events: Events) -> None:
        """Add events; close the slice if it is large enough."""
        if not self.parts:
            self.first_index = int(events.indexes[0])
            self.captured_us = time.time_ns() // 1000
        data = gather(events.data, events.spans.starts, events.spans.ends)[0].tobytes()
        self.parts.append(data)
        self.open_bytes += len(data)
        self.total_bytes += len(data)
        self.changes += len(events)
        if self.open_bytes >= SLICE_BYTES:
            self.close()

    def close(self) -> None:
        """Close the open slice unless it is empty."""
        if self.parts:
            self.slices.append(EventSlice(b"".join(self.parts), self.first_index, self.captured_us))
            self.parts = []
            self.open_bytes = 0
