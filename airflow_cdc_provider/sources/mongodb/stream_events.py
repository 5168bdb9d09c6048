"""What a change stream gave: whole events as raw bytes, and how they are put into slices for executors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.spans import Bytes, Ints, gather
from airflow_cdc_provider.sources.mongodb.bson import Spans
from airflow_cdc_provider.sources.mongodb.records import EventSlice

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Size at which a slice of events is closed; one reply of the server may exceed it."""


@dataclass(frozen=True)
class Events:
    """Whole events that follow each other in the stream.

    Args:
        data: The buffer that holds them.
        spans: Where they stand in it.
        times: Cluster time of each, seconds in the upper half.
        indexes: Number of each among the events of its cluster time.
    """

    data: Bytes
    spans: Spans
    times: npt.NDArray[np.uint64]
    indexes: Ints

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.spans)

    def part(self, first: int, end: int) -> Events:
        """Return those from a number to before another."""
        rows = slice(first, end)
        spans = Spans(self.spans.starts[rows], self.spans.ends[rows], self.spans.stopped_at)
        return Events(self.data, spans, self.times[rows], self.indexes[rows])

    def before(self, time: int) -> Events:
        """Return those of an earlier cluster time."""
        return self.part(0, int(np.searchsorted(self.times, np.uint64(time))))


@dataclass(frozen=True)
class Reply:
    """What one look at the stream brought.

    Args:
        events: Events that are whole now.
        took: How many events or fragments of events the server sent.
        waited: Whether the server waited for news as long as it may.
    """

    events: Sequence[Events]
    took: int
    waited: bool


@dataclass
class SlicedEvents:
    """The events of a plan on their way into slices."""

    slices: list[EventSlice] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    first_index: int = 0
    captured_us: int = 0
    open_bytes: int = 0
    total_bytes: int = 0
    changes: int = 0

    def add(self, events: Events) -> None:
        """Take in events; a slice that is large enough is closed."""
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
        """Close the open slice, if it holds anything."""
        if self.parts:
            self.slices.append(EventSlice(b"".join(self.parts), self.first_index, self.captured_us))
            self.parts = []
            self.open_bytes = 0
