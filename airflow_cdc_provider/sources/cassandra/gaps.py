"""Detect segments that were deleted unread.

A node with ``cdc_block_writes: false`` deletes the oldest segments when cdc_raw is full. Segment ids alone
are not sufficient: a node numbers all its segments, and only those with changes of captured tables stay in
``cdc_raw``. There are three signs of a gap:

* A segment that was read in part is missing while later segments of its node are present.
* A transfer found that the node deleted a segment before its end was transferred, and recorded it in the
  errors folder.
* In the node's own folder: no segment that was read is left, ids are missing before the first segment
  present, and either a loss is known, or the folder of a node that deletes segments has no space for two
  more. The node deletes the oldest first and only to free space, so otherwise nothing unread was deleted. The
  missing segments may have held no change: then the new snapshot was not needed.

A node without any segment is not a gap: its folder may just not be mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path

from airflow_cdc_provider.sources.cassandra.capture import LogFolder, noted_segments
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentFile, list_segments
from airflow_cdc_provider.sources.cassandra.position import WHOLE, NodeOffset, read_offset, write_offset
from airflow_cdc_provider.sources.contract import Offset
from airflow_cdc_provider.transfer.errors import ERRORS, reports_loss
from airflow_cdc_provider.transfer.segments import is_plausible
from airflow_cdc_provider.transfer.space import default_total_bytes
from airflow_cdc_provider.transfer.stores import FolderStore

DropsAbove = Callable[[str], int | None]
"""Returns the bytes in cdc_raw above which a node deletes segments, 0 for the default; None if it doesn't."""


def find_gaps(folder: LogFolder, offset: Offset | None, drops_above: DropsAbove) -> tuple[list[str], Offset]:
    """Find segments that were deleted unread after an offset.

    Args:
        folder: The folder of segments.
        offset: The stored offset; None, before the first batch, has no gap: the initial snapshots contain the
            changes lost before.
        drops_above: Called only if a node's own folder looks as if segments had been deleted.

    Returns:
        A text per gap, and the offset with the lost segments marked as read.
    """
    listed = list_segments(folder.path, folder.node, recorded=folder.recorded)
    if offset is None:
        noted = {origin: sorted(_noted(folder, origin, NodeOffset())) for origin in listed}
        nodes = {o: reduce(_after, lost, NodeOffset()) for o, lost in noted.items() if lost}
        return [], write_offset(nodes) if nodes else {}
    found: list[str] = []
    nodes = {}
    for origin, stored in read_offset(offset).items():
        node = stored
        files = listed.get(origin, [])
        deleted = sorted(_deleted_in_part(node, files))
        if deleted and folder.beyond_index and drops_above(origin) is None:
            # Segments read without an index may have held no captured change: the node removes those.
            node, deleted = reduce(_after, deleted, node), []
        lost = sorted({*deleted, *_noted(folder, origin, node)})
        after = reduce(_after, lost, node)
        found += [f"segment {one} of node {origin} was deleted before it was read completely" for one in lost]
        missing = None if _is_landing(folder, origin) else _missing(after, files)
        if missing:
            cap = None if lost else drops_above(origin)
            if lost or (cap is not None and _is_full(folder, files, cap)):
                first, last = missing
                after = after.advance(last, WHOLE)
                found.append(
                    f"segments {first} to {last} of node {origin} were deleted unread, if they held changes"
                )
        nodes[origin] = after
    return found, write_offset(nodes)


def _after(node: NodeOffset, segment: int) -> NodeOffset:
    return node.advance(segment, WHOLE)


def _deleted_in_part(node: NodeOffset, files: Sequence[SegmentFile]) -> Iterator[int]:
    present = {file.segment for file in files}
    newest = max((file.segment for file in files if not file.fault), default=0)
    return (s for s, position in node.open.items() if position > 0 and s not in present and s < newest)


def _noted(folder: LogFolder, origin: str, node: NodeOffset) -> Iterator[int]:
    errors = FolderStore(Path(folder.path, ERRORS, origin))
    for segment, name in noted_segments(folder, origin):
        if is_plausible(segment) and node.position(segment) != WHOLE and reports_loss(errors, name):
            yield segment


def _missing(node: NodeOffset, files: Sequence[SegmentFile]) -> tuple[int, int] | None:
    """Return the first and last id that are missing before the first segment present."""
    read = max([node.floor, *node.open, *(last for _, last in node.done)])
    first = min((file.segment for file in files), default=0)
    return (read + 1, first - 1) if read and first > read + 1 else None


def _is_landing(folder: LogFolder, origin: str) -> bool:
    return Path(folder.path, origin).is_dir()


def _is_full(folder: LogFolder, files: Sequence[SegmentFile], cap_bytes: int) -> bool:
    used = sum(file.size_bytes for file in files)
    largest = max(file.size_bytes for file in files)
    return used + 2 * largest > (cap_bytes or default_total_bytes(Path(folder.path)))
