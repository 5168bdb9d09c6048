"""Segments in chunks, for a store that only writes whole files, such as a bucket.

A segment's durable part is a sequence of immutable files ``CommitLog-7-12.log.<from>-<to>`` (file offsets;
each ends at the end of a section), and the manifest ``CommitLog-7-12.json``, which is written after its
chunks::

    {"format": 1, "index": "<text of the idx>", "size_bytes": 65536, "position": 65000,
     "chunks": [{"from": 0, "to": 65536, "sha256": "..."}], "lost": false}

A reader that starts with the manifest only sees whole sections, and can verify each byte. A chunk that no
manifest names was left by a killed writer; a later writer removes it after an hour.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, CorruptInput, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES
from airflow_cdc_provider.transfer.layout import Passing, Source, Vanished, equal_start
from airflow_cdc_provider.transfer.segments import Index, Segment, segment_number
from airflow_cdc_provider.transfer.stores import Store, read_small
from airflow_cdc_provider.transfer.whole import whole
from airflow_cdc_provider.transfer.whole_sections import Mark, durable_marks

DEFAULT_CHUNK_BYTES: Final = 8 * 1024 * 1024
_FORMAT: Final = 1
_MOST_CHUNKS: Final = 4000
"""Of one writing. Manifests of twice as many have less than the 1 MiB that is read; a segment that has grown
to more is written again, in larger ones."""
_ORPHAN_SECONDS: Final = 3600
"""What another writer has written, and not named yet, is younger."""
_MANIFEST: Final = re.compile(r"(CommitLog-.*)\.json")
_CHUNK: Final = re.compile(r"CommitLog-[0-9]+-[0-9]+\.log\.[0-9]+-[0-9]+")

_log = logger(__name__)


@dataclass(frozen=True)
class Chunk:
    """One chunk: its file offsets, and its SHA-256 in hexadecimal."""

    begin: int
    end: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The stored part of a segment.

    Args:
        index: Text of the idx; None if the segment has none (Cassandra 3.11).
        position: Logical position at the end of the last chunk.
        chunks: The chunks from the segment's start, without a gap.
        lost: Whether the node dropped the segment before it was completely shipped.
    """

    index: str | None = None
    position: int = 0
    chunks: tuple[Chunk, ...] = ()
    lost: bool = False

    @property
    def size_bytes(self) -> int:
        """The size of the stored part."""
        return self.chunks[-1].end if self.chunks else 0

    def to_json(self) -> str:
        """Return the manifest as JSON."""
        chunks = [{"from": chunk.begin, "to": chunk.end, "sha256": chunk.sha256} for chunk in self.chunks]
        return json.dumps(
            {
                "format": _FORMAT,
                "index": self.index,
                "size_bytes": self.size_bytes,
                "position": self.position,
                "chunks": chunks,
                "lost": self.lost,
            }
        )

    @classmethod
    def from_json(cls, name: str, text: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptInput: The manifest is invalid, or has a gap.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            chunks = tuple(Chunk(c["from"], c["to"], c["sha256"]) for c in values["chunks"])
            ends = [0, *(chunk.end for chunk in chunks)]
            sound = values["format"] == _FORMAT and [chunk.begin for chunk in chunks] == ends[:-1]
            manifest = cls(values["index"], values["position"], chunks, bool(values.get("lost")))
            # Offsets become file names: they must be numbers.
            sound = sound and all(type(number) is int for number in (*ends, manifest.position))
            sound = sound and ends == sorted({*ends}) and ends[-1] <= LARGEST_SEGMENT_BYTES
            sound = sound and (manifest.index is None or isinstance(manifest.index, str))
            sound = sound and all(isinstance(chunk.sha256, str) for chunk in chunks)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptInput(
                f"{name} is not a manifest", found=text[:80].decode("ascii", "replace")
            ) from error
        if not sound:
            raise CorruptInput(f"{name} is not a manifest of format {_FORMAT} without a gap")
        return manifest


class ChunkedSegments:
    """Source and target of segments in chunks.

    Args:
        store: Their store.
        host: The node's host id.
        chunk_bytes: Minimum size after which a chunk ends at the next end of a section.
    """

    def __init__(self, store: Store, host: str, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        self.store = store
        self.host = host
        self.chunk_bytes = chunk_bytes

    def segments(self) -> list[Segment]:
        """List segments by their manifests, by number."""
        return sorted((segment for segment, _ in self._listed()), key=lambda segment: segment.id)

    def landed(self) -> dict[str, Segment]:
        """Return the segments by name; remove chunks that no manifest has named for an hour.

        One whose manifest can't be read now is none: its node, which may have removed it, hasn't dropped it.
        """
        listed = self._listed()
        known = [(segment, manifest) for segment, manifest in listed if isinstance(manifest, Manifest)]
        if len(known) == len(listed):  # else the chunks of the others are unknown
            self._clear_orphans(known)
        return {
            segment.name: segment for segment, found in listed if isinstance(found, (Manifest, CorruptInput))
        }

    def durable_bytes(self, segment: Segment) -> int:
        """Return the size of the stored part, which consists of whole sections."""
        return self._manifest(segment).size_bytes

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        """Yield a segment's bytes. A chunk's checksum is verified after its last byte, so use none before."""
        for chunk in self._manifest(segment).chunks:
            if chunk.end <= begin or chunk.begin >= end:
                continue
            name = _chunk_name(segment, chunk.begin, chunk.end)
            found, at = hashlib.sha256(), chunk.begin
            try:
                for piece in self.store.read(name, 0, chunk.end - chunk.begin + 1):
                    found.update(piece)
                    if wanted := piece[max(begin - at, 0) : max(min(end, chunk.end) - at, 0)]:
                        yield wanted
                    at += len(piece)
                    if at > chunk.end:
                        break
            except FileNotFoundError:
                if any(item.name == _manifest_name(segment) for item in self.store.items()):
                    raise CorruptInput(
                        f"chunk {name} is missing", expected="the chunk, which its manifest names"
                    ) from None
                raise Vanished(segment.name) from None
            if found.hexdigest() != chunk.sha256:
                raise CorruptInput(
                    f"chunk {name} differs from what was shipped",
                    expected=f"{chunk.end - chunk.begin} bytes with SHA-256 {chunk.sha256:.64}",
                    found=f"{at - chunk.begin} bytes with another SHA-256",
                )

    def remove(self, segment: Segment) -> None:
        """Remove a segment, its manifest first."""
        chunks = self._manifest(segment).chunks
        self.store.remove(_manifest_name(segment))
        for chunk in chunks:
            self.store.remove(_chunk_name(segment, chunk.begin, chunk.end))

    def bring(self, segment: Segment, source: Source, end: int, passing: Passing) -> None:
        """Write the new part of a segment as chunks, then the manifest."""
        known = self._growing(segment, end)
        if segment.complete and not equal_start(self, source, segment, known.size_bytes):
            known = Manifest()  # its source may be removed then, and what was stored has changed meanwhile
        chunks = list(known.chunks)
        position = known.position
        for begin, mark in self._split(segment, source, known, end):
            size = mark.offset - begin
            data = b"".join(whole(segment, passing(source.read(segment, begin, mark.offset)), size))
            self.store.write(_chunk_name(segment, begin, mark.offset), [data])
            chunks.append(Chunk(begin, mark.offset, hashlib.sha256(data).hexdigest()))
            position = mark.position
        text = segment.index.text if segment.index is not None else None
        manifest = Manifest(text, position, tuple(chunks))
        self.store.write(_manifest_name(segment), [manifest.to_json().encode()])
        if segment.complete:  # its source may be removed now
            self._require_chunks(segment, chunks)

    def give_up(self, segment: Segment) -> bool:
        """Mark a segment as lost in its manifest; a corrupt manifest is replaced."""
        try:
            known = self._manifest(segment)
        except CorruptInput:
            known = Manifest()
        manifest = replace(known, lost=True)
        self.store.write(_manifest_name(segment), [manifest.to_json().encode()])
        return True

    def _require_chunks(self, segment: Segment, chunks: Sequence[Chunk]) -> None:
        found = {item.name: item.size_bytes for item in self.store.items()}
        for chunk in chunks:
            name = _chunk_name(segment, chunk.begin, chunk.end)
            if found.get(name) != chunk.end - chunk.begin:
                raise TransientError(
                    f"chunk {name} is gone after it was written",
                    expected=f"{chunk.end - chunk.begin} bytes",
                    found="none" if name not in found else f"{found[name]} bytes",
                    remedy="run one shipper of a node, and let no other program write to its folder",
                )

    def _growing(self, segment: Segment, end: int) -> Manifest:
        """Return the stored part of a growing segment; empty if it must be shipped again from the start."""
        try:
            known = self._manifest(segment)
        except (CdcError, OSError):  # also one that only its writer may read
            return Manifest()
        finished = known.index is not None and known.index.endswith("COMPLETED")
        restart = finished or known.size_bytes > end or len(known.chunks) > _MOST_CHUNKS
        return Manifest() if restart else known

    def _listed(self) -> list[tuple[Segment, Manifest | CdcError | OSError]]:
        found = []
        for item in self.store.items():
            match = _MANIFEST.fullmatch(item.name)
            if match and (number := segment_number(f"{match[1]}.log")):
                found.append(self._segment(*number, item.modified))
        return found

    def _segment(
        self, version: int, number: int, modified: float
    ) -> tuple[Segment, Manifest | CdcError | OSError]:
        """Read one manifest. One that can't be read gives a segment that seems to grow; copying it raises."""
        bare = Segment(self.host, number, version, Index(0, False, ""), 0, modified)
        try:
            manifest = self._manifest(bare)
        except (CdcError, OSError) as error:
            _log.warning("the manifest of %s can't be read: %s", bare.name, error)
            return bare, error
        index = Index.parse(manifest.index) if manifest.index is not None else None
        size, lost = manifest.size_bytes, manifest.lost
        return replace(bare, index=index, size_bytes=size, lost=lost), manifest

    def _split(
        self, segment: Segment, source: Source, known: Manifest, end: int
    ) -> Iterator[tuple[int, Mark]]:
        """Yield start and end of each new chunk."""

        def read(begin: int, stop: int) -> bytes:
            return b"".join(source.read(segment, begin, stop))

        begin = last = Mark(known.size_bytes, known.position)
        after = last if known.chunks else None
        for mark in durable_marks(read, segment, after):
            last = Mark(min(mark.offset, end), mark.position)
            if last.offset - begin.offset >= max(self.chunk_bytes, end // _MOST_CHUNKS):
                yield begin.offset, last
                begin = last
        if last.offset > begin.offset:
            yield begin.offset, last

    def _manifest(self, segment: Segment) -> Manifest:
        name = _manifest_name(segment)
        try:
            return Manifest.from_json(name, read_small(self.store, name))
        except FileNotFoundError:
            return Manifest()

    def _clear_orphans(self, known: Sequence[tuple[Segment, Manifest]]) -> None:
        named = {_chunk_name(segment, c.begin, c.end) for segment, manifest in known for c in manifest.chunks}
        for item in self.store.items():
            unnamed = _CHUNK.fullmatch(item.name) and item.name not in named
            if unnamed and item.modified < time.time() - _ORPHAN_SECONDS:
                self.store.remove(item.name)


def _manifest_name(segment: Segment) -> str:
    return segment.name.removesuffix(".log") + ".json"


def _chunk_name(segment: Segment, begin: int, end: int) -> str:
    return f"{segment.name}.{begin}-{end}"
