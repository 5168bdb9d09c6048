"""A node that writes segments of plain or compressed sections, for transfers to bring."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

from airflow_cdc_provider.transfer.chunks import ChunkedSegments
from airflow_cdc_provider.transfer.segments import Index
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments
from tests.unit.sources.cassandra.commit_logs import header, marker

HOST = "host-1"


class Node:
    """A node's cdc_raw.

    Args:
        cdc_raw: The folder.
        compressed: Whether sections are compressed; then logical positions are no file offsets.
        capacity_bytes: Length of a segment's file from its start, as of a mapped file.
    """

    def __init__(self, cdc_raw: Path, *, compressed: bool = False, capacity_bytes: int = 0) -> None:
        self.cdc_raw = cdc_raw
        self.capacity_bytes = capacity_bytes
        self._parameters = {"compressionClass": "DeflateCompressor"} if compressed else {}
        self._data: dict[int, bytes] = {}
        self._position: dict[int, int] = {}
        self._says: dict[int, str] = {}
        cdc_raw.mkdir(parents=True, exist_ok=True)

    def grows(self, number: int, section: bytes, *, ahead: bytes = b"") -> None:
        """Write one more section, sync it, and then one that isn't durable yet, if any is given."""
        data = self._data.get(number) or header(number, parameters=self._parameters)
        position = self._position.get(number, len(data))
        data = self._append(number, data, section)
        self._data[number] = data
        self._position[number] = position + 8 + len(section)
        self._put(number, self._append(number, data, ahead) if ahead else data)
        self.says(number, str(self._position[number]))

    def finishes(self, number: int, section: bytes = b"") -> None:
        """Write the last section, and COMPLETED."""
        self.grows(number, section)
        self.says(number, f"{self._position[number]}\nCOMPLETED")

    def says(self, number: int, text: str) -> None:
        """Write an idx file."""
        self._says[number] = text
        (self.cdc_raw / f"CommitLog-7-{number}_cdc.idx").write_text(text)

    def begins(self, number: int) -> None:
        """Make a segment without changes."""
        self._put(number, header(number, parameters=self._parameters))

    def breaks(self, number: int) -> None:
        """Spoil a segment's header."""
        log = self.log(number)
        log.write_bytes(b"\xff\xff" + log.read_bytes()[2:])

    def log(self, number: int) -> Path:
        """Return a segment's path."""
        return self.cdc_raw / f"CommitLog-7-{number}.log"

    def durable(self, number: int) -> bytes:
        """Return what is durable of a segment."""
        return self._data[number]

    @property
    def wrote(self) -> dict[str, bytes]:
        """All that it ever made durable, by file name, whatever became of it."""
        logs = {f"CommitLog-7-{number}.log": data for number, data in self._data.items()}
        return logs | {f"CommitLog-7-{n}_cdc.idx": text.encode() for n, text in self._says.items()}

    @property
    def segments(self) -> WholeSegments:
        """The node as a transfer's source."""
        return whole(self.cdc_raw)

    def _append(self, number: int, data: bytes, section: bytes) -> bytes:
        body = section
        if self._parameters:
            body = len(section).to_bytes(4, "big") + zlib.compress(section)
        return data + marker(number, len(data), len(data) + 8 + len(body)) + body

    def _put(self, number: int, data: bytes) -> None:
        log = self.log(number)
        log.touch()
        with log.open("r+b") as file:  # a node never cuts a segment that it has synced
            file.write(data.ljust(self.capacity_bytes, b"\0"))
            file.truncate()


def whole(folder: Path) -> WholeSegments:
    """Whole segments in a folder."""
    return WholeSegments(FolderStore(folder), HOST)


def chunked(folder: Path, chunk_bytes: int = 1000) -> ChunkedSegments:
    """Segments in chunks in a folder."""
    return ChunkedSegments(FolderStore(folder), HOST, chunk_bytes)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that don't compress, the same for a seed."""
    return random.Random(seed).randbytes(size)


def files(folder: Path) -> dict[str, bytes]:
    """Return the segments and idx files of a folder."""
    return {f.name: f.read_bytes() for f in sorted(folder.glob("CommitLog*"))} if folder.exists() else {}


def assert_equal_files(folder: Path, truth: dict[str, bytes]) -> None:
    """Compare a folder with what a node wrote; a failure names the files that differ, not their bytes."""
    found = files(folder)
    differing = {
        name: (_brief(found.get(name)), _brief(truth.get(name)))
        for name in sorted(found.keys() | truth.keys())
        if found.get(name) != truth.get(name)
    }
    assert differing == {}, "found, and expected"


def _brief(data: bytes | None) -> str | None:
    return data if data is None else f"{len(data)} bytes, {zlib.crc32(data):08x}: {data[:24]!r}"


def assert_nothing_half(folder: Path, truth: dict[str, bytes]) -> None:
    """A landing folder shows beginnings of segments only, none shorter than its idx says (plain segments).

    It may change meanwhile, so it is read as a reader does: the idx, then the segment.
    """
    for path in folder.glob("CommitLog*_cdc.idx") if folder.exists() else ():
        index = Index.parse(path.read_text())
        log = path.with_name(path.name.replace("_cdc.idx", ".log"))
        assert index is not None, f"{path.name} is half-written"
        assert log.stat().st_size >= index.end, f"{path.name} is ahead of its segment"
    for name, data in files(folder).items():
        if name.endswith(".log"):
            assert truth[name].startswith(data), f"{name} isn't what the node wrote"
