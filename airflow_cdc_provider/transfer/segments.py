"""What a commit-log segment and its idx file are called, and what they say (reference §1, §15).

Cassandra 4.0 and later links each segment into ``cdc_raw`` when it is created and writes
``CommitLog-<version>-<id>_cdc.idx`` (the end of what is durable, then ``COMPLETED``) beside it; 3.11 (segment
version 6) moves whole segments there and writes no idx.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError

_HOST_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_LOG: Final = re.compile(r"CommitLog-(\d+)-(\d+)\.log")
_INDEX: Final = re.compile(r"(\d+)(\r?\nCOMPLETED)?\s*")
_LAST_VERSION_WITHOUT_INDEX: Final = 6


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

    @classmethod
    def parse(cls, text: str) -> Index | None:
        """Read an idx file's text; None if it is half-written, as the node rewrites it in place."""
        match = _INDEX.fullmatch(text)
        if match is None or (match.group(2) is None and text.endswith("\n")):
            return None
        return cls(int(match.group(1)), match.group(2) is not None, text)


@dataclass(frozen=True)
class Segment:
    """A segment and what its idx says.

    Args:
        host: The node's host id, empty where the folder doesn't name it.
        id: The segment's number; greater is later on one node.
        version: Of the format.
        index: None while the segment has no changes of CDC tables, and always for 3.11.
        size_bytes: Of the segment's file.
        modified: Epoch seconds of its last write.
        lost: The node dropped it before its end was shipped; this is a stump.
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
        """Name of its file."""
        return f"CommitLog-{self.version}-{self.id}.log"

    @property
    def index_name(self) -> str:
        """Name of its idx file."""
        return f"CommitLog-{self.version}-{self.id}_cdc.idx"

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


def require_host_id(host_id: str) -> str:
    """Return a host id that can be the name of a folder, in a path, a URL and a command of ``sftp``.

    Raises:
        ConfigurationError: It would lead elsewhere.
    """
    if _HOST_ID.fullmatch(host_id) is None:
        raise ConfigurationError(
            "host_id is wrong", expected="what SELECT host_id FROM system.local shows", found=repr(host_id)
        )
    return host_id


def segment_number(name: str) -> tuple[int, int] | None:
    """Return version and id of a segment's file name, None if it is no segment's."""
    match = _LOG.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None
