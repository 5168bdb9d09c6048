"""Interfaces of the source and the target of a transfer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import Store


class Vanished(Exception):  # not an error: the node frees space
    """A segment was deleted while it was read."""


class Source(Protocol):
    """Source of segments."""

    store: Store

    def segments(self) -> list[Segment]:
        """List segments, by number."""

    def durable_bytes(self, segment: Segment) -> int:
        """Return the number of bytes from the segment's start that will never change again.

        Raises:
            CorruptInput: The segment's header is corrupt.
            Vanished: The segment was deleted.
        """

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        """Yield the segment's bytes between two file offsets. If it raises, don't use what it yielded.

        Raises:
            CorruptInput: They differ from what was shipped.
            Vanished: The segment was deleted.
        """

    def remove(self, segment: Segment) -> None:
        """Remove a segment. If it is killed in between, the segment looks like one without changes."""


class Target(Protocol):
    """Target of segments."""

    store: Store

    def landed(self) -> dict[str, Segment]:
        """Return the stored segments by name."""

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        """Yield a stored segment's bytes, as :meth:`Source.read`."""

    def give_up(self, segment: Segment) -> bool:
        """Record that the rest of a partially stored segment is lost.

        Returns:
            Whether readers of the target see that; else the partial segment must be quarantined.
        """

    def bring(self, segment: Segment, source: Source, end: int, passing: Passing) -> None:
        """Copy a segment's bytes up to a file offset, and then its idx.

        A reader sees the state before or after, and never an idx ahead of its data.

        Raises:
            CorruptInput: The copy differs from what was sent; readers don't see it.
            Vanished: The segment was deleted.
        """


def equal_start(target: Target, source: Source, segment: Segment, size_bytes: int) -> bool:
    """Return whether a target and a source have the same bytes at a segment's start, by their SHA-256.

    A target that can't be read doesn't have them.

    Raises:
        CorruptInput: The source can't be read.
        Vanished: The segment was deleted at the source.
    """
    sent = _digest(source.read(segment, 0, size_bytes))
    try:
        return _digest(target.read(segment, 0, size_bytes)) == sent
    except (CdcError, Vanished, OSError):
        return False


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


class Passing(Protocol):
    """Passes all copied bytes through; may throttle them."""

    def __call__(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Pass pieces through."""
