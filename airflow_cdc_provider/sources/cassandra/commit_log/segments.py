"""Segments in cdc_raw: names, index files, headers and bytes (reference §1, §2, §15).

A folder has ``CommitLog-<version>-<id>.log`` and ``CommitLog-<version>-<id>_cdc.idx``. The index is decimal
text: the position up to which the log is durable, and ``COMPLETED`` on a second line once the segment is
closed. The server rewrites it in place, so a reader may find it empty or truncated: then its position
is too low, never too high, and the next read corrects it. Recordings may have the log as ``.log.gz``; nodes
have none.

An agent that copies segments elsewhere must copy a segment before its index.

Whoever may write to the folder may make any file in it. Only regular files are opened, and a file or a folder
that can't be read doesn't hide the others: it is listed with its fault.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost, TransientError
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES, open_regular, read_start
from airflow_cdc_provider.sources.cassandra.payload import VERSIONS
from airflow_cdc_provider.transfer.errors import ERRORS
from airflow_cdc_provider.transfer.segments import is_host_id, is_plausible

_LOG_NAME: Final = re.compile(r"CommitLog-([1-9][0-9]{0,2})-([1-9][0-9]{0,17})\.log(\.gz)?")
_INDEX_NAME: Final = re.compile(r"CommitLog-([1-9][0-9]{0,2})-([1-9][0-9]{0,17})_cdc\.idx")
_INDEX_TEXT: Final = re.compile(rb"([0-9]{1,10})(?![0-9])(\s+COMPLETED\s*)?")
_LARGEST_INDEX_BYTES: Final = 64
_HEADER: Final = struct.Struct(">iqH")
_PARAMETERS: Final = ("compressionClass", "encCipher", "encKeyAlias", "encIV")
"""The parameters of a header that are used: each slice of a plan has them."""
_LONGEST_PARAMETER: Final = 1000
_FIRST_WITH_INDEX: Final = 7
_INDEX_TRIES: Final = 5
_INDEX_PAUSE_SECONDS: Final = 0.002
ONLY_NODE: Final = "node"
"""Origin of segments that lie directly in the folder, where no host id is declared."""

UNKNOWN: Final = 0
"""Segment id in place of all segments of a node whose folder can't be read."""

_ALWAYS_PLAUSIBLE_BYTES: Final = 64 << 20
_LIKELY_RATIO: Final = 64
_PIECE_BYTES: Final = 1 << 20


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
        fault: Why the segment can't be read, or its index can't be that of a node; empty if they can.
    """

    origin: str
    segment: int
    version: int
    path: str
    size_bytes: int
    index: Index | None
    index_changed_at: float = 0.0
    index_broken: bool = False
    fault: str = ""

    @property
    def complete(self) -> bool:
        """Whether the segment is closed. A compressed file without an index is from a recording."""
        if self.index is None:
            return self.version < _FIRST_WITH_INDEX or self.path.endswith(".gz")
        return self.index.completed


def list_segments(
    folder: str | Path, node: str = "", *, recorded: bool = False
) -> dict[str, list[SegmentFile]]:
    """List segments by node, each node's in the order in which it wrote them.

    Args:
        folder: One folder per node, named by its host id, or one node's segments.
        node: That node's host id.
        recorded: Whether it is a recording: only there a ``.log.gz`` is usable, elsewhere it is a fault.

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
    own = _list_node(top, node or ONLY_NODE, recorded)
    nodes = {name: segments for name in _folders(top) if (segments := _list_child(top, name, recorded))}
    if own:  # what may lie next to them hides no segment
        nodes = {name: segments for name, segments in nodes.items() if segments[0].segment != UNKNOWN}
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
    listed = {node or ONLY_NODE: (top, _list_node(top, node or ONLY_NODE, True))}
    listed |= {name: (top / name, _list_child(top, name, True)) for name in _folders(top)}
    for origin, (node_folder, segments) in listed.items():
        files = {file.segment: file for file in segments}
        if UNKNOWN in files:
            continue
        names = (_INDEX_NAME.fullmatch(name) for name in os.listdir(node_folder))
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


def _folders(top: Path) -> list[str]:
    """List the folders of nodes, and links to folders that are named like one."""
    names = (child.name for child in top.iterdir() if child.is_dir())
    return sorted(name for name in names if is_host_id(name) and name != ERRORS)


def _list_child(top: Path, name: str, recorded: bool) -> list[SegmentFile]:
    """List the segments of a node's folder; if it can't be read, a single one that names the reason."""
    folder = top / name
    try:
        if folder.is_symlink():
            raise OSError(0, "it is a link, not a folder")
        return _list_node(folder, name, recorded)
    except OSError as error:
        fault = f"folder {folder} can't be read: {error.strerror}"
        return [SegmentFile(name, UNKNOWN, 0, str(folder), 0, None, fault=fault)]


def _list_node(folder: Path, origin: str, recorded: bool) -> list[SegmentFile]:
    names = sorted(os.listdir(folder))
    logs: dict[int, dict[int, str]] = {}
    for name in names:
        if match := _LOG_NAME.fullmatch(name):  # a .log comes before its .log.gz, which is ignored
            logs.setdefault(int(match[2]), {}).setdefault(int(match[1]), name)
    found = []
    indexes = set(names)
    for segment, versions in sorted(logs.items()):
        version, name = max(versions.items())
        bare = SegmentFile(origin, segment, version, str(folder / name), 0, None)
        if len(versions) > 1:
            bare = replace(
                bare, fault=f"{folder} has several segments {segment}: {', '.join(versions.values())}"
            )
        elif name.endswith(".gz") and not recorded:
            bare = replace(bare, fault=f"{bare.path} is compressed, which only a recording's segments may be")
        elif not is_plausible(segment):
            bare = replace(bare, fault=f"{bare.path} has an id that no node can have given by now")
        with suppress(FileNotFoundError):  # deleted after it was listed: skip it
            found.append(_with_status(bare, indexed=_index_path(bare).name in indexes))
    tries = 1
    while tries < _INDEX_TRIES and any(file.index_broken for file in found):
        time.sleep(_INDEX_PAUSE_SECONDS)
        tries += 1
        found = [_with_index(file, indexed=True) if file.index_broken else file for file in found]
    return found


def _index_path(file: SegmentFile) -> Path:
    return Path(file.path).with_name(f"CommitLog-{file.version}-{file.segment}_cdc.idx")


def _with_status(file: SegmentFile, *, indexed: bool) -> SegmentFile:
    if file.fault:
        return file
    try:
        descriptor = open_regular(file.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return replace(file, fault=f"{file.path} can't be read: {error.strerror}")
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size > LARGEST_SEGMENT_BYTES:
        return replace(file, fault=f"{file.path} has {size} bytes, more than a segment can have")
    return _with_index(replace(file, size_bytes=size), indexed=indexed)


def _with_index(file: SegmentFile, *, indexed: bool) -> SegmentFile:
    """Read an index, when it was written, and whether it is malformed."""
    file, path = replace(file, index_broken=False, fault=""), _index_path(file)
    if not indexed:
        return file
    try:
        text, status = read_start(path, _LARGEST_INDEX_BYTES)
    except FileNotFoundError:
        return file
    except OSError as error:
        return replace(file, index_broken=True, fault=f"{path} can't be read: {error.strerror}")
    match = _INDEX_TEXT.match(text)
    if match is None or int(match[1]) > LARGEST_SEGMENT_BYTES:
        # An empty one is being rewritten.
        fault = f"{path} has no position: it starts with {text[:20]!r}" if text else ""
        return replace(file, index_broken=True, fault=fault)
    broken = text[match.end() :].strip() != b""
    index = Index(int(match[1]), match[2] is not None)
    return replace(file, index=index, index_changed_at=status.st_mtime, index_broken=broken)


def most_plausible_bytes(stored: int) -> int:
    """Return how many bytes compressed ones may plausibly hold, so that few can't fill the memory."""
    return max(_ALWAYS_PLAUSIBLE_BYTES, _LIKELY_RATIO * stored)


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
    parameters: Mapping[str, str] = field(default_factory=dict)
    length: int = _HEADER.size + 6

    @property
    def compression(self) -> str:
        """Simple name of the compressor's class, empty for none."""
        return self.parameters.get("compressionClass", "").rsplit(".", 1)[-1]

    @property
    def encryption(self) -> str:
        """The cipher, empty for none. It decides the layout if there are both."""
        return self.parameters.get("encCipher", "")

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


def _parameters(text: bytes, path: str) -> Mapping[str, str]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptInput(f"the header of segment {path} is corrupt", expected="parameters as a JSON object")
    texts = {name: found[name] for name in _PARAMETERS if isinstance(found.get(name), str)}
    return {name: text[:_LONGEST_PARAMETER] for name, text in texts.items()}


class SegmentBytes:
    """Random access to the bytes of a segment file.

    A ``.gz`` file is decompressed into a file without a name.

    Args:
        path: The file.

    Raises:
        PositionLost: The file was deleted.
        CorruptInput: It isn't a regular file, or the ``.gz`` file can't be decompressed, or holds implausibly
            much.
        TransientError: It can't be read; also raised when it is read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with self._errors():
            self._file: IO[bytes] = os.fdopen(open_regular(path), "rb")  # closed by __exit__
        if path.endswith(".gz"):
            with self._file as packed:
                self._file = self._unpacked(packed)
        self.length = os.fstat(self._file.fileno()).st_size

    def read(self, at: int, length: int) -> bytes:
        """Return up to ``length`` bytes from an offset; fewer at the end of the file."""
        with self._errors():
            self._file.seek(at)
            return self._file.read(length)

    def _unpacked(self, packed: IO[bytes]) -> IO[bytes]:
        most = min(most_plausible_bytes(os.fstat(packed.fileno()).st_size), LARGEST_SEGMENT_BYTES)
        with ExitStack() as opened:
            file = opened.enter_context(tempfile.TemporaryFile())
            with self._errors(), gzip.GzipFile(fileobj=packed) as pieces:
                while piece := pieces.read(_PIECE_BYTES):
                    file.write(piece)
                    if file.tell() > most:
                        raise CorruptInput(
                            f"{self.path} isn't decompressed", expected=f"at most {most} bytes", found="more"
                        )
                file.flush()
            opened.pop_all()  # closed by __exit__
        return file

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise PositionLost(
                f"segment {self.path} was deleted before it was read",
                remedy="take a new snapshot of the tables, or set a later offset: airflow cdc offsets set",
            ) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptInput(f"{self.path} can't be decompressed", found=str(error)) from error
        except OSError as error:
            kind = CorruptInput if error.errno == errno.EINVAL else TransientError
            raise kind(f"segment {self.path} can't be read", found=error.strerror or str(error)) from error

    def __enter__(self) -> SegmentBytes:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()
