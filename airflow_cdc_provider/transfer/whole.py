"""Segments as in ``cdc_raw`` and in the landing area: whole files, each with its idx.

A reader reads the idx first, and the segment up to its position. So a segment is written before its idx, and
removed after it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.transfer.layout import Passing, Source, Vanished
from airflow_cdc_provider.transfer.segments import LARGEST_INDEX_BYTES, Index, Segment, segment_number
from airflow_cdc_provider.transfer.stores import FolderStore, Store
from airflow_cdc_provider.transfer.whole_sections import durable_end

_PATIENCE_SECONDS: Final = 0.5
_HALF: Final = re.compile(r"([0-9]{1,10}\s{0,2}[A-Z]{0,9})?")
"""What an idx file may have while the node writes it."""

_log = logger(__name__)


class WholeSegments:
    """Source and target of whole segments.

    Args:
        store: Their store.
        host: The node's host id.
    """

    def __init__(self, store: Store, host: str) -> None:
        self.store = store
        self.host = host

    def segments(self) -> list[Segment]:
        """List segments with their idx files, by number.

        Sizes are read after the idx files, so a segment is never shorter than its idx's position.
        """
        items = self.store.items()
        names = {i.name for i in items if i.size_bytes <= LARGEST_INDEX_BYTES or segment_number(i.name)}
        found = []
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for name in names:
            if (number := segment_number(name)) is not None:
                bare = Segment(self.host, number[1], number[0], None, 0, 0.0)
                found.append(replace(bare, index=self._index(bare.index_name, names, deadline)))
        now = {item.name: item for item in self.store.items()}
        sized = [
            replace(segment, size_bytes=now[segment.name].size_bytes, modified=now[segment.name].modified)
            for segment in found
            if segment.name in now
        ]
        return sorted(sized, key=lambda segment: segment.id)

    def landed(self) -> dict[str, Segment]:
        """Return the segments by name."""
        return {segment.name: segment for segment in self.segments()}

    def durable_bytes(self, segment: Segment) -> int:
        """Return the number of bytes of a segment that may be copied."""

        def read(begin: int, end: int) -> bytes:
            return b"".join(self.read(segment, begin, end))

        return durable_end(read, segment)

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        """Yield a segment's bytes."""
        try:
            yield from self.store.read(segment.name, begin, end)
        except FileNotFoundError:
            raise Vanished(segment.name) from None
        except PermissionError as error:
            raise ConfigurationError(
                f"{segment.name} can't be read",
                expected="a file that this user can read",
                found=error.strerror or "",
                remedy="set Cassandra's umask to allow its group to read, and join it: docs/transfer.md",
            ) from error

    def has(self, segment: Segment) -> bool:
        """Return whether a segment of this name was written, with its idx, if it has one."""
        names = [segment.name] if segment.index is None else [segment.name, segment.index_name]
        try:
            for name in names:
                next(iter(self.store.read(name, 0, 1)), None)
        except FileNotFoundError:
            return False
        return True

    def remove(self, segment: Segment) -> None:
        """Remove a segment, its idx first."""
        self.store.remove(segment.index_name)
        self.store.remove(segment.name)

    def bring(self, segment: Segment, source: Source, end: int, passing: Passing) -> None:
        """Copy a segment, then its idx.

        The part of a growing segment that a local target already has is reused. A finished one is copied
        whole: its source may be removed then, and what was stored may have changed meanwhile.
        """
        begin = self._sound_bytes(segment, end)
        sent = passing(source.read(segment, begin, end))
        here = self.store.read(segment.name, 0, begin) if begin else iter(())
        self.store.write(segment.name, whole(segment, chain(here, sent), end))
        if segment.index is not None:
            self.store.write(segment.index_name, [segment.index.text.encode()])

    def give_up(self, segment: Segment) -> bool:
        """Do nothing: only capture reads from here, and it can't distinguish lost from growing segments."""
        del segment
        return False

    def _sound_bytes(self, segment: Segment, end: int) -> int:
        """Return the number of stored bytes of a growing segment, which an earlier transfer copied."""
        if segment.complete or not isinstance(self.store, FolderStore):
            return 0
        index = self._index(segment.index_name, (segment.index_name,), time.monotonic() + _PATIENCE_SECONDS)
        if index is None or index.completed:
            return 0
        size = self.store.size_bytes(segment.name)
        return size if size <= end else 0

    def _index(self, name: str, names: Container[str], deadline: float) -> Index | None:
        """Read an idx file, with retries while the node writes it; None if it is missing or unreadable."""
        if name not in names:
            return None
        while True:
            try:
                text = b"".join(self.store.read(name, 0, LARGEST_INDEX_BYTES)).decode("ascii", "replace")
            except FileNotFoundError:
                return None
            except (CdcError, OSError) as error:
                _log.warning("%s can't be read: %s", name, error)
                return None
            index = Index.parse(text)
            if index is not None or _HALF.fullmatch(text) is None or time.monotonic() > deadline:
                return index
            time.sleep(0.02)


def whole(segment: Segment, pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pass pieces through, and verify their total size.

    Raises:
        CorruptInput: The size differs.
    """
    found = 0
    for piece in pieces:
        found += len(piece)
        yield piece
    if found != size:
        raise CorruptInput(f"{segment.name} ends early", expected=f"{size} bytes", found=str(found))
