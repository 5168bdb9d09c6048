"""Segments in cdc_raw: names, index files, headers and bytes (reference §1, §2, §15).

A folder has ``CommitLog-<version>-<id>.log`` and ``CommitLog-<version>-<id>_cdc.idx``. The index is decimal
text: the position up to which the log is durable, and ``COMPLETED`` on a second line once the segment is
closed. The server rewrites it in node_folder, so a reader may find it empty or truncated: then its position
is too low, never too high, and the next read corrects it. Recordings may have the log as ``.log.gz``.

An agent that copies segments elsewhere must copy a segment before its index.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.cassandra.payload import VERSIONS

_LOG_NAME: Final = re.compile(r"CommitLog-(\d+)-(\d+)\.log(\.gz)?")
_INDEX_NAME: Final = re.compile(r"CommitLog-(\d+)-(\d+)_cdc\.idx")
_INDEX_TEXT: Final = re.compile(rb"(\d+)(\s+COMPLETED\s*)?")
_HEADER: Final = struct.Struct(">iqH")
_FIRST_WITH_INDEX: Final = 7
_INDEX_TRIES: Final = 5
_INDEX_PAUSE_SECONDS: Final = 0.002
ONLY_NODE: Final = "node"
"""Origin of segments that lie directly in the folder, where no host id is declared."""


@dataclass(frozen=True)
class Index:
    """A segment's index.

    Args:
        end: Logical position up to which the log is durable. For a segment that the server replayed after a
            crash, it is the length of the file instead.
        completed: Whether the segment is closed; then it is read to the end of its data.
    """

    end: int
    completed: bool


@dataclass(frozen=True)
class SegmentFile:
    """One segment in a folder.

    Args:
        origin: The node's host id.
        segment: Its id.
        version: Format version in its name.
        path: Path of the file.
        size_bytes: Length of the file, compressed if it is ``.gz``.
        index: Its index; None without one: it has no tracked write so far.
        index_changed_at: When the index was last written, in epoch seconds; 0 without one.
        index_broken: Whether the index is malformed. It can be for a moment while the server rewrites it.
    """

    origin: str
    segment: int
    version: int
    path: str
    size_bytes: int
    index: Index | None
    index_changed_at: float = 0.0
    index_broken: bool = False

    @property
    def complete(self) -> bool:
        """Whether the segment is closed. A compressed file without an index is from a recording."""
        if self.index is None:
            return self.version < _FIRST_WITH_INDEX or self.path.endswith(".gz")
        return self.index.completed


def list_segments(folder: str | Path, node: str = "") -> dict[str, list[SegmentFile]]:
    """List segments by node, each node's in the order in which it wrote them.

    Args:
        folder: One folder per node, named by its host id, or one node's segments.
        node: That node's host id.

    Returns:
        Segments by host id.

    Raises:
        ConfigurationError: The folder is missing, or has both segments and folders with segments.
    """
    top = Path(folder)
    if not top.is_dir():
        raise ConfigurationError(
            f"the folder of segments {top} doesn't exist",
            expected="cdc_raw of a node, or a folder with one folder per node named by host id",
        )
    own = _list_node(top, node or ONLY_NODE)
    nodes = {
        child.name: segments
        for child in sorted(top.iterdir())
        if child.is_dir() and (segments := _list_node(child, child.name))
    }
    if own and nodes:
        raise ConfigurationError(
            f"{top} has both segments and folders with segments",
            expected="either one node's segments or one folder per node",
            found=f"{len(own)} segments and the folders {', '.join(nodes)}",
        )
    return nodes if nodes or not (own or node) else {node or ONLY_NODE: own}


def list_faults(folder: str | Path, node: str = "") -> list[tuple[str, int, str]]:
    """List what is wrong with a recording's indexes: node, segment id and a text for each.

    Not useful for a folder that a node or an agent still writes: there such faults are transient.
    """
    top = Path(folder)
    faults = []
    for origin, node_folder in [
        (node or ONLY_NODE, top),
        *((c.name, c) for c in sorted(top.iterdir()) if c.is_dir()),
    ]:
        files = {file.segment: file for file in _list_node(node_folder, origin)}
        names = (_INDEX_NAME.fullmatch(path.name) for path in node_folder.iterdir())
        indexed = sorted({int(match[2]) for match in names if match})
        for segment in indexed:
            file = files.get(segment)
            if file is None:
                faults.append((origin, segment, "its index exists, but the segment is missing"))
            elif file.index_broken:
                faults.append((origin, segment, "its index is broken; it was read to the end of its data"))
            elif file.index and not file.index.completed and segment != indexed[-1]:
                reason = f"its index is not COMPLETED; it was read to position {file.index.end}"
                faults.append((origin, segment, reason))
    return faults


def _list_node(folder: Path, origin: str) -> list[SegmentFile]:
    logs: dict[int, tuple[Path, int]] = {}
    indexes: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := _LOG_NAME.fullmatch(path.name):
            if path.suffix == ".log" or int(match[2]) not in logs:
                logs[int(match[2])] = path, int(match[1])
        elif match := _INDEX_NAME.fullmatch(path.name):
            indexes[int(match[2])] = path
    found = []
    for segment, (path, version) in sorted(logs.items()):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue  # deleted after it was listed: skip it
        index, changed_at, broken = _read_index(indexes.get(segment))
        found.append(SegmentFile(origin, segment, version, str(path), size, index, changed_at, broken))
    return found


def _read_index(path: Path | None) -> tuple[Index | None, float, bool]:
    """Read an index, when it was written, and whether it is malformed."""
    if path is None:
        return None, 0.0, False
    for _ in range(_INDEX_TRIES):
        try:
            text = path.read_bytes()
            changed_at = path.stat().st_mtime
        except FileNotFoundError:
            return None, 0.0, False
        if match := _INDEX_TEXT.match(text):
            broken = text[match.end() :].strip() != b""
            return Index(int(match[1]), match[2] is not None), changed_at, broken
        time.sleep(_INDEX_PAUSE_SECONDS)
    return None, 0.0, True


@dataclass(frozen=True)
class Descriptor:
    """A segment's header.

    Args:
        version: Format version.
        segment: The segment's id.
        parameters: Compression or encryption; empty for a plain segment.
        length: Length of the header in bytes: the first sync marker follows.
    """

    version: int
    segment: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    length: int = _HEADER.size + 6

    @property
    def compression(self) -> str:
        """Simple name of the compressor's class, empty for none."""
        return str(self.parameters.get("compressionClass") or "").rsplit(".", 1)[-1]

    @property
    def encryption(self) -> str:
        """The cipher, empty for none. It decides the layout if there are both."""
        return str(self.parameters.get("encCipher") or "")

    @property
    def plain(self) -> bool:
        """Whether entries are in the file verbatim, at their logical positions."""
        return not self.compression and not self.encryption


def read_descriptor(data: bytes, path: str) -> Descriptor:
    """Parse a header; ``data`` is the start of a segment, at least 64 KiB of it or all.

    ::

        0     i32  version
        4     i64  segment id
        12    u16  length N of the parameters
        14    N    JSON object
        14+N  u32  CRC-32 over version, low and high half of the id, N as 32 bits, and the N bytes

    Raises:
        CorruptInput: The header is truncated or its checksum is wrong.
        ConfigurationError: The format version is unsupported.
    """
    if len(data) >= _HEADER.size:
        version, segment, length = _HEADER.unpack_from(data)
        end = _HEADER.size + length
        if len(data) >= end + 4:
            words = struct.pack(">iIIi", version, segment & 0xFFFFFFFF, segment >> 32 & 0xFFFFFFFF, length)
            crc = zlib.crc32(data[_HEADER.size : end], zlib.crc32(words))
            if crc == int.from_bytes(data[end : end + 4], "big"):
                if version not in VERSIONS:
                    raise ConfigurationError(
                        f"segment {path} has an unsupported format version",
                        expected=f"one of {', '.join(map(str, VERSIONS))} (Cassandra 3.0 to 5.0)",
                        found=str(version),
                    )
                return Descriptor(version, segment, _parameters(data[_HEADER.size : end], path), end + 4)
    raise CorruptInput(f"the header of segment {path} is corrupt", expected="a matching checksum")


def _parameters(text: bytes, path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptInput(f"the header of segment {path} is corrupt", expected="parameters as a JSON object")
    return found


class SegmentBytes:
    """Random access to the bytes of a segment file; ``.gz`` files are decompressed as a whole.

    Args:
        path: The file.

    Raises:
        PositionLost: The file was deleted.
        CorruptInput: The ``.gz`` file can't be decompressed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._whole = b""
        try:
            self._file = Path(path).open("rb")  # noqa: SIM115  # closed by __exit__
            if path.endswith(".gz"):
                with self._file, gzip.open(self._file) as unpacked:
                    self._whole = unpacked.read()
        except FileNotFoundError as error:
            raise PositionLost(
                f"segment {path} was deleted before it was read",
                remedy="take a new snapshot of the tables, or set a later offset: airflow cdc offsets set",
            ) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptInput(f"{path} can't be decompressed", found=str(error)) from error
        self.length = len(self._whole) if self._file.closed else Path(path).stat().st_size

    def read(self, at: int, length: int) -> bytes:
        """Return up to ``length`` bytes from an offset; fewer at the end of the file."""
        if self._file.closed:
            return self._whole[at : at + length]
        self._file.seek(at)
        return self._file.read(length)

    def __enter__(self) -> SegmentBytes:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()
