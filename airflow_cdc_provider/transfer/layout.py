"""What a transfer asks of the place that segments come from, and of the one that they go to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import Store


class Vanished(Exception):  # no error: the node makes room
    """A segment went away while it was read."""


class Source(Protocol):
    """Where segments come from."""

    store: Store

    def segments(self) -> list[Segment]:
        """List segments, by number."""

    def durable_bytes(self, segment: Segment) -> int:
        """Return how many bytes from the segment's beginning will never change again.

        Raises:
            CorruptInput: The segment's header is broken.
            Vanished: It is gone.
        """

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        """Yield the segment's bytes between two file offsets.

        Raises:
            CorruptInput: They aren't what was shipped.
            Vanished: It is gone.
        """

    def remove(self, segment: Segment) -> None:
        """Remove a segment, so that killed in between it looks like one that has nothing to read."""


class Target(Protocol):
    """Where segments go to."""

    store: Store

    def landed(self) -> dict[str, Segment]:
        """Return what stands there, by the segment's name."""

    def give_up(self, segment: Segment) -> bool:
        """Note that the rest of a segment that stands here in part will never come.

        Returns:
            Whether whoever reads from here will see it; else the stump has to be set apart.
        """

    def bring(self, segment: Segment, source: Source, end: int, passing: Passing) -> None:
        """Bring a segment's bytes up to a file offset, and then the idx that speaks of them.

        A reader sees what stood there before, or what stands there afterwards, and never an idx ahead of its
        data.

        Raises:
            CorruptInput: What arrived isn't what was sent; nothing of it can be seen.
            Vanished: The segment is gone.
        """


class Passing(Protocol):
    """Sees all bytes that travel; may hold them up."""

    def __call__(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Hand pieces on."""
