"""Names and metadata of commit-log segments and their idx files (reference §1, §15).

Cassandra 4.0 and later links each segment into ``cdc_raw`` when it is created and writes
``CommitLog-<version>-<id>_cdc.idx`` (the durable position, then ``COMPLETED``) next to it; 3.11 (segment
version 6) moves whole segments there and writes no idx.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES

_HOST_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_LOG: Final = re.compile(r"CommitLog-([1-9][0-9]{0,2})-(0|[1-9][0-9]{0,17})\.log")
_INDEX: Final = re.compile(r"([0-9]{1,10})(\r?\nCOMPLETED)?\s{0,8}")
LARGEST_INDEX_BYTES: Final = 64
_LAST_VERSION_WITHOUT_INDEX: Final = 6
_CLOCK_SKEW_MS: Final = 86_400_000


@dataclass(frozen=True, order=True)
class Index:
    """An idx file: the durable position of a segment.

    Args:
        end: Logical position; entries that end at or before it are durable.
        completed: Whether the segment is complete.
        text: The file's text.
    """

    end: int
    completed: bool
    text: str

    @classmethod
    def parse(cls, text: str) -> Index | None:
        """Parse an idx file's text; None if it is half-written, because the node rewrites it in place."""
        match = _INDEX.fullmatch(text)
        if match is None or (match.group(2) is None and text.endswith("\n")):
            return None
        if int(match.group(1)) > LARGEST_SEGMENT_BYTES:
            return None
        return cls(int(match.group(1)), match.group(2) is not None, text)


@dataclass(frozen=True)
class Segment:
    """A segment and its idx.

    Args:
        host: The node's host id; empty if the folder doesn't name it.
        id: The segment's number; it ascends on each node.
        version: Version of the format.
        index: None while the segment has no changes of CDC tables, and always for 3.11.
        size_bytes: Size of the segment's file.
        modified: Epoch seconds of its last write.
        lost: Whether the node dropped it before it was completely shipped, so that it is partial.
    """

    host: str
    id: int
    version: int
    index: Index | None
    size_bytes: int
    modified: float
    lost: bool = False

    @property
    def name(self) -> str:
        """The segment's file name."""
        return f"CommitLog-{self.version}-{self.id}.log"

    @property
    def index_name(self) -> str:
        """The idx file's name."""
        return f"CommitLog-{self.version}-{self.id}_cdc.idx"

    @property
    def complete(self) -> bool:
        """Whether the node has finished the segment, and it has changes."""
        return self.version <= _LAST_VERSION_WITHOUT_INDEX or (
            self.index is not None and self.index.completed
        )

    @property
    def readable(self) -> bool:
        """Whether the segment has durable changes."""
        return self.version <= _LAST_VERSION_WITHOUT_INDEX or self.index is not None


def is_plausible(segment: int) -> bool:
    """Return whether a node can have given a segment this id by now.

    A node counts up from the time of its start in milliseconds, slower than time passes.
    """
    return segment <= time.time_ns() // 1_000_000 + _CLOCK_SKEW_MS


def is_host_id(name: str) -> bool:
    """Return whether a name may be a host id: it is valid in a path, a URL and a command of ``sftp``."""
    return _HOST_ID.fullmatch(name) is not None


def require_host_id(host_id: str) -> str:
    """Return a valid host id.

    Raises:
        ConfigurationError: It has invalid characters.
    """
    if not is_host_id(host_id):
        raise ConfigurationError(
            "invalid host_id", expected="the result of SELECT host_id FROM system.local", found=repr(host_id)
        )
    return host_id


def segment_number(name: str) -> tuple[int, int] | None:
    """Return version and id of a segment's file name; None for other names."""
    match = _LOG.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None
