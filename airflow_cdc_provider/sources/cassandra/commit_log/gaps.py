"""Segments that are lost unread: a node with ``cdc_block_writes: false`` drops the oldest when it needs room.

Segment ids alone don't tell: a node counts all its segments, and only those with changes of captured tables
stay in ``cdc_raw``. Three things do:

* A segment that was read in part is gone while later ones of its node are there.
* A transfer saw that the node dropped one before its end was brought, and left a note in the errors folder.
* In the node's own folder: nothing that was read is left, ids are missing before the first that is there,
  and one is known to be lost, or there is no room for two segments more, on a node that drops. It drops the
  oldest first and only to make room, so without all of that nothing unread was dropped. What is missing may
  still have held no change: then the new snapshot was not needed.

A node none of whose segments is there is no gap: its folder may just not be mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path

from airflow_cdc_provider.sources.base import Offset
from airflow_cdc_provider.sources.cassandra.commit_log.capture import LogFolder
from airflow_cdc_provider.sources.cassandra.commit_log.offsets import (
    WHOLE,
    NodeOffset,
    read_offset,
    write_offset,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentFile, list_segments
from airflow_cdc_provider.transfer.errors import ERRORS, NOTE_SUFFIX, tells_loss
from airflow_cdc_provider.transfer.segments import segment_number
from airflow_cdc_provider.transfer.space import default_total_bytes
from airflow_cdc_provider.transfer.stores import FolderStore

DropsAbove = Callable[[str], int | None]
"""Tells of a node that drops segments above how many bytes in cdc_raw, 0 for the default; of others None."""


def find_gaps(folder: LogFolder, offset: Offset | None, drops_above: DropsAbove) -> tuple[list[str], Offset]:
    """Find what is lost between an offset and what is there.

    Args:
        folder: Where segments are.
        offset: The stored offset; None, before the first batch, has no gap: the snapshots to come have what
            was lost before.
        drops_above: Asked only where a node's own folder looks as if segments had been dropped.

    Returns:
        A text per gap, and the offset that takes what is lost for read.
    """
    listed = list_segments(folder.path, folder.node)
    if offset is None:
        noted = {origin: sorted(_noted(folder, origin, NodeOffset())) for origin in listed}
        nodes = {o: reduce(_after, lost, NodeOffset()) for o, lost in noted.items() if lost}
        return [], write_offset(nodes) if nodes else {}
    found: list[str] = []
    nodes = {}
    for origin, stored in read_offset(offset).items():
        node = stored
        files = listed.get(origin, [])
        begun = sorted(_begun_and_gone(node, files))
        if begun and folder.beyond_index and drops_above(origin) is None:
            # Read without an index file, it may have held no captured change, and then the node removes it.
            node, begun = reduce(_after, begun, node), []
        lost = sorted({*begun, *_noted(folder, origin, node)})
        after = reduce(_after, lost, node)
        found += [f"segment {one} of node {origin} is gone before it was read to its end" for one in lost]
        missing = None if _is_landing(folder, origin) else _missing(after, files)
        if missing:
            cap = None if lost else drops_above(origin)
            if lost or (cap is not None and _is_full(folder, files, cap)):
                first, last = missing
                after = after.advance(last, WHOLE)
                found.append(
                    f"segments {first} to {last} of node {origin} are gone unread, if they held changes"
                )
        nodes[origin] = after
    return found, write_offset(nodes)


def _after(node: NodeOffset, segment: int) -> NodeOffset:
    return node.advance(segment, WHOLE)


def _begun_and_gone(node: NodeOffset, files: Sequence[SegmentFile]) -> Iterator[int]:
    present = {file.segment for file in files}
    newest = max(present, default=0)
    return (s for s, position in node.open.items() if position > 0 and s not in present and s < newest)


def _noted(folder: LogFolder, origin: str, node: NodeOffset) -> Iterator[int]:
    errors = FolderStore(Path(folder.path, ERRORS, origin))
    for path in errors.path.glob("*" + NOTE_SUFFIX):
        name = path.name.removesuffix(NOTE_SUFFIX)
        number = segment_number(name)
        if number and node.position(number[1]) != WHOLE and tells_loss(errors, name):
            yield number[1]


def _missing(node: NodeOffset, files: Sequence[SegmentFile]) -> tuple[int, int] | None:
    """Return the first and last id that are missing before the first segment there is."""
    read = max([node.floor, *node.open, *(last for _, last in node.done)])
    first = min((file.segment for file in files), default=0)
    return (read + 1, first - 1) if read and first > read + 1 else None


def _is_landing(folder: LogFolder, origin: str) -> bool:
    return Path(folder.path, origin).is_dir()


def _is_full(folder: LogFolder, files: Sequence[SegmentFile], cap_bytes: int) -> bool:
    used = sum(file.size_bytes for file in files)
    largest = max(file.size_bytes for file in files)
    return used + 2 * largest > (cap_bytes or default_total_bytes(Path(folder.path)))
