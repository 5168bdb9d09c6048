"""What lies in a Cassandra node's ``cdc_raw`` folder, or in a folder of such folders, named by host id.

Only directory listings and the small idx files are read, never a segment. Files may vanish and idx files may
be half-written while we look: the node rewrites them in place (CASSANDRA-17416).

Facts: Cassandra 4.0 and later links each segment into the folder when it is created and writes
``CommitLog-<version>-<id>_cdc.idx`` (the end of what is durable, then ``COMPLETED``) beside it; 3.11 (segment
version 6) moves whole segments there and writes no idx.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_LOG: Final = re.compile(r"CommitLog-(\d+)-(\d+)\.log")
_INDEX: Final = re.compile(r"(\d+)(\r?\nCOMPLETED)?\s*")
_LAST_VERSION_WITHOUT_INDEX: Final = 6
_MIB: Final = 1024 * 1024
_SIZE: Final = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB|TiB)\s*")
_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": _MIB, "GiB": 1024 * _MIB, "TiB": 1024 * 1024 * _MIB}


@dataclass(frozen=True, order=True)
class Index:
    """An idx file: how far a segment is durable.

    Args:
        end: Logical position; entries that end at or before it are durable.
        completed: The segment will not grow.
        text: As it was read.
    """

    end: int
    completed: bool
    text: str


@dataclass(frozen=True)
class Segment:
    """A segment and what its idx says.

    Args:
        host: The node's host id, empty where the folder doesn't name it.
        id: The segment's number; greater is later on one node.
        version: Of the format.
        log: The segment.
        index: None while the segment has no changes of CDC tables, and always for 3.11.
        size_bytes: Of the segment's file.
        modified: Epoch seconds of its last write.
    """

    host: str
    id: int
    version: int
    log: Path
    index: Index | None
    size_bytes: int
    modified: float

    @property
    def index_path(self) -> Path:
        """Where the idx file is, or would be."""
        return self.log.with_name(f"{self.log.stem}_cdc.idx")

    @property
    def complete(self) -> bool:
        """Whether the node has finished it and there is something to read."""
        return self.version <= _LAST_VERSION_WITHOUT_INDEX or (
            self.index is not None and self.index.completed
        )

    @property
    def readable(self) -> bool:
        """Whether it holds durable changes."""
        return self.version <= _LAST_VERSION_WITHOUT_INDEX or self.index is not None


@dataclass(frozen=True)
class Space:
    """Room taken in ``cdc_raw``, of the node that has least left.

    Args:
        used_bytes: Taken by segments and idx files.
        total_bytes: What the node allows; beyond it, it refuses writes to CDC tables (or drops segments).
        segments: Number of segments.
        oldest_seconds: Age of the oldest segment, None if there is none.
        host: The node's host id, empty where the folder doesn't name it.
    """

    used_bytes: int
    total_bytes: int
    segments: int
    oldest_seconds: float | None
    host: str = ""

    @property
    def used_ratio(self) -> float:
        """Part of the room that is taken."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True)
class NodeSettings:
    """What ``cassandra.yaml`` says about CDC.

    Args:
        enabled: ``cdc_enabled``.
        cdc_raw: ``cdc_raw_directory``, None where the node uses its default.
        total_bytes: ``cdc_total_space``, None where the node computes it.
        check_interval_seconds: How often the node itself looks at the room.
    """

    enabled: bool
    cdc_raw: str | None
    total_bytes: int | None
    check_interval_seconds: float

    @classmethod
    def read(cls, path: str) -> NodeSettings:
        """Read a node's ``cassandra.yaml``.

        Raises:
            ConfigurationError: It is missing, unreadable or no such file.
        """
        import yaml

        try:
            values = yaml.safe_load(Path(path).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{path} can't be read", found=" ".join(str(error).split())) from error
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"{path} is no cassandra.yaml", found=type(values).__name__)
        total = _size(values.get("cdc_total_space"), 1) or _size(values.get("cdc_total_space_in_mb"), _MIB)
        interval = values.get("cdc_free_space_check_interval", values.get("cdc_free_space_check_interval_ms"))
        return cls(
            enabled=bool(values.get("cdc_enabled", False)),
            cdc_raw=values.get("cdc_raw_directory"),
            total_bytes=total or None,
            check_interval_seconds=_milliseconds(interval) / 1000,
        )


def node_folders(folder: str) -> dict[str, Path]:
    """Return the folders with segments, by host id.

    Args:
        folder: One node's ``cdc_raw`` (host id empty), or a folder with one per node.

    Raises:
        ConfigurationError: It is no folder that can be read.
    """
    root = Path(folder)
    try:
        entries = list(os.scandir(root))
    except OSError as error:
        raise ConfigurationError(
            f"folder {root} can't be read",
            expected="a node's cdc_raw, or a folder with one per node",
            found=error.strerror or str(error),
            remedy="mount it where Airflow's workers and its triggerer run",
        ) from error
    below = {entry.name: Path(entry.path) for entry in entries if entry.is_dir()}
    if any(_LOG.fullmatch(entry.name) for entry in entries) or not below:
        return {"": root}
    return below


def list_segments(folder: str, node: str = "") -> list[Segment]:
    """List the segments of a folder, by host and number.

    Args:
        folder: As for :func:`node_folders`.
        node: Host id of the node whose segments lie directly in it.
    """
    found = [
        segment for host, path in node_folders(folder).items() for segment in _segments(host or node, path)
    ]
    return sorted(found, key=lambda segment: (segment.host, segment.id))


def read_index(path: Path, *, patience_seconds: float = 0.5) -> Index | None:
    """Read an idx file.

    Args:
        path: The file.
        patience_seconds: How long to read again while it is empty or half-written.

    Returns:
        None if there is none, or it stays unreadable.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        match = _INDEX.fullmatch(text)
        if match and not (match.group(2) is None and text.endswith("\n")):
            return Index(int(match.group(1)), match.group(2) is not None, text)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


def measure(folder: str, total_bytes: int | None = None) -> Space:
    """Measure the node that has least room left.

    Args:
        folder: As for :func:`node_folders`.
        total_bytes: What a node allows; None for Cassandra's own rule, the lesser of 4096 MiB and an eighth
            of the volume.
    """
    measured = [_measure(host, path, total_bytes) for host, path in node_folders(folder).items()]
    return max(measured, key=lambda space: space.used_ratio)


def default_total_bytes(folder: Path) -> int:
    """Return the room that Cassandra allows where nothing is configured."""
    volume = os.statvfs(folder)
    return min(4096 * _MIB, volume.f_blocks * volume.f_frsize // 8)


def _measure(host: str, folder: Path, total_bytes: int | None) -> Space:
    used = segments = 0
    oldest: float | None = None
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if not entry.name.startswith("CommitLog-"):
                    continue
                used += status.st_size
                if _LOG.fullmatch(entry.name):
                    segments += 1
                    oldest = min(status.st_mtime, oldest if oldest is not None else status.st_mtime)
    age = None if oldest is None else max(time.time() - oldest, 0.0)
    return Space(used, total_bytes or default_total_bytes(folder), segments, age, host)


def _segments(host: str, folder: Path) -> Iterator[Segment]:
    for name in os.listdir(folder):
        match = _LOG.fullmatch(name)
        if match is None:
            continue
        log = folder / name
        with contextlib.suppress(FileNotFoundError):
            status = log.stat()
            index = read_index(folder / f"{log.stem}_cdc.idx")
            yield Segment(
                host, int(match.group(2)), int(match.group(1)), log, index, status.st_size, status.st_mtime
            )


def _size(value: Any, unit: int) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value * unit
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ConfigurationError("cdc_total_space is wrong", expected="a size as 4096MiB", found=repr(value))
    return int(match.group(1)) * _UNITS[match.group(2)]


def _milliseconds(value: Any) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s)?\s*", str(value if value is not None else 250))
    if match is None:
        return 250.0
    return float(match.group(1)) * (1000 if match.group(2) == "s" else 1)
