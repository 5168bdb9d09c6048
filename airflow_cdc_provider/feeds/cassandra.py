"""Lists and measures a Cassandra node's ``cdc_raw`` folder, or a folder of such folders, named by host id.

Only directory listings and the small idx files are read, never a segment. Files may vanish and idx files may
be half-written meanwhile: the node rewrites them in place (CASSANDRA-17416).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.transfer.errors import ERRORS
from airflow_cdc_provider.transfer.segments import Segment, is_host_id, segment_number
from airflow_cdc_provider.transfer.space import Space, measure
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments
from airflow_cdc_provider.yaml_file import read_yaml

_log = logger(__name__)

Found = TypeVar("Found")

_MIB: Final = 1024 * 1024
_SIZE: Final = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB|TiB)\s*")
_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": _MIB, "GiB": 1024 * _MIB, "TiB": 1024 * 1024 * _MIB}


@dataclass(frozen=True)
class NodeSettings:
    """The CDC settings of a ``cassandra.yaml``.

    Args:
        enabled: ``cdc_enabled``.
        cdc_raw: ``cdc_raw_directory``, else the default ``data/cdc_raw`` next to the file's ``conf`` folder;
            None if there is no such folder.
        total_bytes: ``cdc_total_space``; None if the node computes it.
        check_interval_seconds: How often the node checks its free space.
    """

    enabled: bool
    cdc_raw: str | None
    total_bytes: int | None
    check_interval_seconds: float

    @classmethod
    def read(cls, path: str) -> NodeSettings:
        """Read a node's ``cassandra.yaml``.

        Raises:
            ConfigurationError: The file is missing, unreadable or not a valid ``cassandra.yaml``.
        """
        try:
            values = read_yaml(path)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{path} can't be read", found=error.strerror or "") from error
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"{path} is not a valid cassandra.yaml", found=type(values).__name__)
        total = _size(values.get("cdc_total_space"), 1) or _size(values.get("cdc_total_space_in_mb"), _MIB)
        interval = values.get("cdc_free_space_check_interval", values.get("cdc_free_space_check_interval_ms"))
        return cls(
            enabled=bool(values.get("cdc_enabled", False)),
            cdc_raw=values.get("cdc_raw_directory") or _default_cdc_raw(Path(path)),
            total_bytes=total or None,
            check_interval_seconds=_milliseconds(interval) / 1000,
        )


def node_folders(folder: str) -> dict[str, Path]:
    """Return the segment folders by host id.

    Args:
        folder: One node's ``cdc_raw`` (its host id is empty), or a folder with one per node.

    Raises:
        ConfigurationError: The folder can't be read.
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
    folders = {entry.name: Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)}
    below = {name: path for name, path in folders.items() if is_host_id(name) and name != ERRORS}
    if any(segment_number(entry.name) for entry in entries) or not below:
        return {"": root}
    return below


def list_segments(folder: str, node: str = "") -> list[Segment]:
    """List the segments of a folder, by host and number.

    Args:
        folder: As for :func:`node_folders`.
        node: Host id of the node whose segments are directly in it.
    """

    def of_node(host: str, path: Path) -> list[Segment]:
        return WholeSegments(FolderStore(path), host or node).segments()

    found = [segment for segments in _of_nodes(folder, of_node) for segment in segments]
    return sorted(found, key=lambda segment: (segment.host, segment.id))


def measure_nodes(
    folder: str,
    total_bytes: int | None = None,
    node: str = "",
    unread: Callable[[Segment], bool] | None = None,
) -> list[Space]:
    """Measure the space that each node uses, the fullest node first.

    Args:
        folder: As for :func:`node_folders`.
        total_bytes: A node's limit; None for Cassandra's default, the lesser of 4096 MiB and an eighth of the
            volume.
        node: Host id of the node whose segments are directly in the folder.
        unread: Returns whether a segment has uncaptured changes; None if that is unknown.
    """

    def of_node(host: str, path: Path) -> Space:
        return measure(path, total_bytes, host or node, unread)

    return sorted(_of_nodes(folder, of_node), key=lambda space: space.used_ratio, reverse=True)


def _of_nodes(folder: str, of_node: Callable[[str, Path], Found]) -> list[Found]:
    """Observe each node; one whose folder can't be read doesn't hide the others.

    Raises:
        OSError: No folder can be read.
    """
    found, errors = [], []
    for host, path in node_folders(folder).items():
        try:
            found.append(of_node(host, path))
        except OSError as error:
            _log.warning("the segments in %s can't be read: %s", path, error.strerror)
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return found


def _default_cdc_raw(yaml: Path) -> str | None:
    folder = yaml.resolve().parent.parent / "data" / "cdc_raw"
    return str(folder) if yaml.resolve().parent.name == "conf" and folder.is_dir() else None


def _size(value: Any, unit: int) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value * unit
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ConfigurationError(
            "invalid value for cdc_total_space", expected="a size such as 4096MiB", found=repr(value)
        )
    return int(match.group(1)) * _UNITS[match.group(2)]


def _milliseconds(value: Any) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s)?\s*", str(value if value is not None else 250))
    if match is None:
        return 250.0
    return float(match.group(1)) * (1000 if match.group(2) == "s" else 1)
