"""Moving commit-log segments between folders so that no reader ever sees half of one.

A segment and its idx are two files; a reader reads the idx first and the segment up to it. So the segment's
copy is put in place whole (temporary name, checksum, rename) before the idx that speaks of it, and the idx
goes first when a segment goes. Every step can be repeated: a run that was killed is made good by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from airflow_cdc_provider.exceptions import CorruptInput, TransientError
from airflow_cdc_provider.hooks.cdc_raw import Segment, list_segments, read_index
from airflow_cdc_provider.hooks.commit_log_offset import is_consumed, is_passed

AfterCommit = Literal["keep", "delete", "archive"]
AfterTransfer = Literal["keep", "delete"]

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_TEMPORARY: Final = ".part"


@dataclass
class TransferCounts:
    """What a transfer did."""

    copied: int = 0
    copied_bytes: int = 0
    unchanged: int = 0
    vanished: int = 0
    deleted: int = 0
    archived: int = 0


@dataclass(frozen=True)
class Transfer:
    """Brings one node's segments to a landing folder, and clears away what is done with.

    Args:
        cdc_raw: The node's folder.
        landing: The node's folder in the landing area.
        host: The node's host id.
        offset: The connector's offset, None if nothing was captured yet.
        after_transfer: ``delete`` frees finished segments in ``cdc_raw`` once their copies stand.
        after_commit: What becomes of captured segments, in both folders.
        archive: The node's folder in the archive, for ``archive``.
    """

    cdc_raw: Path
    landing: Path
    host: str
    offset: Mapping[str, Any] | None = None
    after_transfer: AfterTransfer = "keep"
    after_commit: AfterCommit = "keep"
    archive: Path | None = None

    def run(self) -> TransferCounts:
        """Transfer once.

        Raises:
            TransientError: Another transfer of this node runs.
            CorruptInput: A copy differs from what was read; nothing of it is left.
            OSError: The landing folder can't be written to.
        """
        counts = TransferCounts()
        self.landing.mkdir(parents=True, exist_ok=True)
        with _alone(self.landing):
            for leftover in self.landing.glob(f".*{_TEMPORARY}"):
                leftover.unlink(missing_ok=True)
            for segment in list_segments(str(self.cdc_raw), self.host):
                try:
                    self._bring(segment, counts)
                except FileNotFoundError:  # the node dropped it to make room
                    counts.vanished += 1
            if self.after_commit != "keep":
                for segment in list_segments(str(self.landing), self.host):
                    if is_consumed(segment, self.offset) or (
                        not segment.readable and is_passed(segment, self.offset)
                    ):
                        self._clear_away(segment, counts)
        return counts

    def _bring(self, segment: Segment, counts: TransferCounts) -> None:
        target = self.landing / segment.log.name
        if is_consumed(segment, self.offset):
            if self.after_commit != "keep":
                remove(segment)
                counts.deleted += 1
            return
        landed = read_index(self.landing / segment.index_path.name, patience_seconds=0)
        if not segment.readable:
            # No changes yet; or we were killed while removing it, and the copy stands.
            if landed is not None and landed.completed and self.after_transfer == "delete":
                remove(segment)
            return
        known = landed.text if landed is not None else None
        wanted = segment.index.text if segment.index is not None else None
        if target.exists() and known == wanted and (wanted or target.stat().st_size == segment.size_bytes):
            counts.unchanged += 1
        else:
            counts.copied_bytes += copy_whole(segment.log, target)
            if segment.index is not None:
                write_whole(segment.index.text.encode(), self.landing / segment.index_path.name)
            counts.copied += 1
        if segment.complete and self.after_transfer == "delete":
            remove(segment)
            counts.deleted += 1

    def _clear_away(self, segment: Segment, counts: TransferCounts) -> None:
        if self.after_commit == "archive" and self.archive is not None and segment.readable:
            self.archive.mkdir(parents=True, exist_ok=True)
            copy_whole(segment.log, self.archive / segment.log.name)
            if segment.index is not None:
                write_whole(segment.index.text.encode(), self.archive / segment.index_path.name)
            counts.archived += 1
        remove(segment)
        counts.deleted += 1


def copy_whole(source: Path, target: Path) -> int:
    """Copy a file so that ``target`` is the old file or the whole new one at any moment.

    Returns:
        Bytes copied.

    Raises:
        CorruptInput: What was written reads back differently.
    """
    temporary = target.with_name(f".{target.name}{_TEMPORARY}")
    size = checksum = 0
    with source.open("rb") as read, temporary.open("wb") as write:
        while chunk := read.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
            size += write.write(chunk)
        write.flush()
        os.fsync(write.fileno())
    if (size, checksum) != _size_and_checksum(temporary):
        temporary.unlink()
        raise CorruptInput(
            f"the copy of {source} to {target.parent} differs", expected=f"{size} bytes, same CRC"
        )
    _put(temporary, target)
    return size


def write_whole(content: bytes, target: Path) -> None:
    """Write a small file so that ``target`` is the old file or the whole new one at any moment."""
    temporary = target.with_name(f".{target.name}{_TEMPORARY}")
    with temporary.open("wb") as write:
        write.write(content)
        write.flush()
        os.fsync(write.fileno())
    _put(temporary, target)


def remove(segment: Segment) -> None:
    """Remove a segment, its idx first."""
    segment.index_path.unlink(missing_ok=True)
    segment.log.unlink(missing_ok=True)


def _put(temporary: Path, target: Path) -> None:
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _size_and_checksum(path: Path) -> tuple[int, int]:
    size = checksum = 0
    with path.open("rb") as read:
        while chunk := read.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return size, checksum


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".transfer.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TransientError(f"another transfer to {folder} is running") from None
        yield
