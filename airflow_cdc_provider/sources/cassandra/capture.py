"""Plan reads: list cdc_raw, compute the lag, and select the next bounded batch (reference §15).

A growing segment is read up to the position that its index marks as durable, a closed one to its end. Batches
are split at section boundaries, which every reader finds again, so the same plan always yields the same
changes.

A segment that can't be read now doesn't stop the others: its file is none, its header is corrupt, its format
isn't supported, its key is missing, or it is gone after a part of it was read. It isn't part of any plan
until it can be read, and the offset doesn't count it as read, except that a recording's corrupt headers are
reported like other corrupt bytes.

A segment that is created and deleted between two runs can't be detected. The server deletes none while
``cdc_block_writes`` is true; anything else that cleans cdc_raw must delete only segments that the stored
offset lists as done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, check_key
from airflow_cdc_provider.sources.cassandra.commit_log.sections import (
    Chain,
    CorruptRange,
    Section,
    section_decoder,
    walk_sections,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import (
    ONLY_NODE,
    UNKNOWN,
    Descriptor,
    SegmentBytes,
    SegmentFile,
    list_segments,
    read_descriptor,
)
from airflow_cdc_provider.sources.cassandra.position import (
    MOST_KEPT_RANGES,
    WHOLE,
    NodeOffset,
    read_offset,
    whole_segments,
    write_offset,
)
from airflow_cdc_provider.sources.contract import Lag, Offset, Plan, ReadLimit, SegmentCounts
from airflow_cdc_provider.sources.cql.reasons import ENDS_EARLY, HEADER_MISMATCH, HEADER_UNREADABLE
from airflow_cdc_provider.transfer.errors import ERRORS, NOTE_SUFFIX
from airflow_cdc_provider.transfer.segments import segment_number

_LONGEST_HEADER: Final = 14 + 65535 + 4
_SLICE_BYTES: Final = 16 * 1024 * 1024
_SECTION_BYTES: Final = 256
_SEGMENT_BYTES: Final = 64 * 1024
"""What a section and a segment count at least, since a plan lists each: any number may be empty."""

Faults = dict[tuple[str, str], CdcError]
"""By host id and file, why it is skipped. Functions that are given none raise the first fault instead."""


@dataclass(frozen=True)
class LogFolder:
    """A folder of segments, and how to read them.

    Args:
        path: ``cdc_raw`` of one node, or a folder with one folder per node, named by its host id.
        node: Host id of the node, if its segments lie directly in the folder.
        beyond_index: Read growing segments past their index's durable position, and segments without an
            index: lower latency, but a crash of the node can revoke changes that were read.
        recorded: The folder is a recording that no node writes to: segments with a broken index are read to
            the end of their data.
        trust_zero_checksum: Accept sync markers with an unwritten checksum in uncompressed segments; each
            entry has its own checksum. Cassandra's property is ``cassandra.commitlog.allow_ignore_sync_crc``.
        strict: Fail on the first unreadable byte instead of quarantining it.
        keys: Keys of encrypted segments.
    """

    path: str
    node: str = ""
    beyond_index: bool = False
    recorded: bool = False
    trust_zero_checksum: bool = False
    strict: bool = False
    keys: Keys | None = None


@dataclass(frozen=True)
class SegmentSlice:
    """A slice of one segment: one partition of a plan. Picklable; always yields the same changes.

    Args:
        path: The segment.
        origin: The node's host id.
        descriptor: The segment's header.
        sections: The sections to read.
        after: Entries that end at or before this logical position were already read.
        damage: Corrupt ranges that planning found; this slice emits them.
        strict: See :class:`LogFolder`.
    """

    path: str
    origin: str
    descriptor: Descriptor
    sections: tuple[Section, ...]
    after: int
    damage: tuple[CorruptRange, ...]
    strict: bool = False


def head(folder: LogFolder, faults: Faults | None = None) -> Offset:
    """Return the position up to which every node's log is durable now.

    Args:
        folder: The folder of segments.
        faults: Collects the segments that can't be read.

    Raises:
        ConfigurationError: The folder doesn't exist.
    """
    return write_offset(
        {origin: _node_head(folder, files, faults) for origin, files in _list(folder).items()}
    )


def earliest(folder: LogFolder) -> Offset:
    """Return the offset before the first segment of every node."""
    return write_offset(dict.fromkeys(_list(folder), NodeOffset()))


def lag(folder: LogFolder, offset: Offset | None) -> Lag:
    """Return how much data is present and not yet read.

    ``seconds`` is the time since the oldest index with unread data was last written: the oldest unread change
    is at least that old. ``bytes`` counts a closed segment up to the end in its index. ``details`` has, for
    each node, the unread bytes and segments, the number of segments that were read and still exist
    (``kept``), and the newest segment that was read and still exists (``file``) with its logical
    ``position``.
    """
    nodes = read_offset(offset)
    total, oldest = 0, None
    details = {}
    for origin, files in _list(folder).items():
        node = nodes.get(origin, NodeOffset())
        unread, segments, kept = 0, 0, 0
        newest_read: dict[str, Any] = {}
        for file in files:
            if file.segment == UNKNOWN:
                continue
            position = node.position(file.segment)
            if position:
                end = file.index.end if file.index else file.size_bytes
                name = Path(file.path).name.removesuffix(".gz")
                newest_read = {"file": name, "position": min(position, end)}
            if position == WHOLE:
                kept += 1
                continue
            if not _usable(folder, file):
                continue
            end = file.index.end if file.index else file.size_bytes
            if end <= position:
                continue
            unread += end - position
            segments += 1
            if file.index_changed_at:
                oldest = min(oldest or file.index_changed_at, file.index_changed_at)
        total += unread
        details[origin] = {"segments": segments, "bytes": unread, "kept": kept, **newest_read}
    seconds = 0.0 if total == 0 else max(time.time() - oldest, 0.0) if oldest else None
    remarks = [
        f"node {origin} no longer has a folder in {folder.path}: mount it, or transfer its segments; if the "
        "node has left the cluster: airflow cdc offsets remove-origin"
        for origin, node in sorted(nodes.items())
        if _was_read(node) and not (folder.node or _has_folder(folder, origin))
    ]
    return Lag(seconds=seconds, bytes=total, details=details, remarks=remarks)


def faults_by_node(faults: Faults) -> dict[str, CdcError]:
    """Return one error per node, with the number of segments that are skipped."""
    found: dict[str, list[CdcError]] = {}
    for (origin, _), error in sorted(faults.items()):
        found.setdefault(origin, []).append(error)
    return {
        origin: type(first)(
            f"{first.message} ({more} more are skipped)" if (more := len(errors) - 1) else first.message,
            expected=first.expected,
            found=first.found,
            remedy=first.remedy,
        )
        for origin, errors in found.items()
        for first in errors[:1]
    }


def _was_read(node: NodeOffset) -> bool:
    return bool(node.floor or node.done or node.open)


def _has_folder(folder: LogFolder, origin: str) -> bool:
    return origin == ONLY_NODE or Path(folder.path, origin).is_dir()


def plan_segments(
    folder: LogFolder,
    start: Offset | None,
    head: Offset,
    limit: ReadLimit,
    faults: Faults | None = None,
) -> Plan:
    """Plan the next batch.

    Args:
        folder: The folder of segments.
        start: The stored offset, None to start from the first segment present.
        head: Where to stop, from :func:`head`.
        limit: The batch's size; ``bytes`` counts decompressed bytes of sections and is split between nodes.
            ``changes`` is ignored, because their number is unknown before reading.
        faults: Collects the segments that can't be read.

    Returns:
        The plan; its partitions are :class:`SegmentSlice`.

    Raises:
        PositionLost: Without ``faults``: a segment that was read in part is missing, or one that ``head``
            includes.
        ConfigurationError: An offset is malformed.
    """
    listed = _list(folder)
    begin, stop = read_offset(start), read_offset(head)
    nodes = {origin: begin.get(origin, NodeOffset()) for origin in {*listed, *begin}}
    partitions: list[SegmentSlice] = []
    segments: dict[str, SegmentCounts] = {}
    at_head = True
    left = limit.bytes
    for turn, origin in enumerate(sorted(nodes)):
        files = listed.get(origin, [])
        share = max(left // (len(nodes) - turn), 1)
        batch = _NodeBatch(folder, nodes[origin], stop.get(origin, NodeOffset()), share)
        batch.faults = faults
        batch.check_present(origin, files)
        batch.drop_removed(origin, files)
        partitions += batch.take(files)
        nodes[origin] = batch.offset
        segments[origin] = batch.segments
        left -= share - batch.left
        at_head = at_head and batch.at_head
    return Plan(end=write_offset(nodes), partitions=partitions, at_head=at_head, segments=segments)


class _NodeBatch:
    """One node's part of a batch while it is planned."""

    def __init__(self, folder: LogFolder, offset: NodeOffset, head: NodeOffset, share_bytes: int) -> None:
        self.folder = folder
        self.offset = offset
        self.head = head
        self.left = share_bytes
        self.faults: Faults | None = None
        self.at_head = True
        self.segments = SegmentCounts()

    def check_present(self, origin: str, files: Sequence[SegmentFile]) -> None:
        present = {file.segment for file in files}
        if UNKNOWN in present:
            return
        required = {segment for segment, position in self.offset.open.items() if position > 0}
        required |= set(self.head.open)
        required |= {segment for first, last in self.head.done for segment in range(first, last + 1)}
        for segment in sorted(required - present):
            if self.offset.position(segment) >= self.head_position(segment):
                continue
            lost = PositionLost(
                f"segment {segment} of node {origin} was deleted before it was read completely",
                expected=f"the segment in {self.folder.path}",
                found=f"{len(present)} other segments",
                remedy="take a new snapshot of the tables, or set a later offset: airflow cdc offsets set; "
                "if the node has left the cluster: airflow cdc offsets remove-origin",
            )
            if self.faults is None:
                raise lost
            self.faults[origin, str(segment)] = lost

    def drop_removed(self, origin: str, files: Sequence[SegmentFile]) -> None:
        """Bound the offset; losses that a transfer noted are kept, so that they aren't reported again."""
        present = {file.segment for file in files}
        if present - {UNKNOWN}:  # else the folder may not be mounted
            present |= {segment for segment, _ in noted_segments(self.folder, origin)}
            self.offset = self.offset.without_removed(sorted(present))

    def head_position(self, segment: int) -> int:
        """Return how far to read a segment; one that is open in the offset was growing at planning time."""
        position = self.head.position(segment)
        return WHOLE if segment in self.offset.open and position == 0 else position

    def take(self, files: Sequence[SegmentFile]) -> Iterator[SegmentSlice]:
        for file in files:
            position = self.offset.position(file.segment)
            allowed = self.head.position(file.segment)
            if position == WHOLE and file.segment != UNKNOWN:
                self._count(kept=1)
                continue
            if not _usable(self.folder, file):
                _report_fault(file, self.faults)
                continue
            if allowed <= position:
                continue
            self._count(waiting=1)
            if self.left <= 0:
                self.at_head = False
                continue
            kept = len(self.offset.done) + len(self.offset.open)
            if self.faults is not None and kept > MOST_KEPT_RANGES and file.segment not in self.offset.open:
                self.faults[file.origin, file.path] = ConfigurationError(
                    f"{file.path} is not read: too many segments are in its folder",
                    expected=f"at most {MOST_KEPT_RANGES} growing ones and separate ranges of others",
                    remedy="remove captured segments: after_commit of CommitLogTransferOperator",
                )
                continue
            yield from self._take_segment(file, position, allowed)

    def _take_segment(self, file: SegmentFile, position: int, allowed: int) -> Iterator[SegmentSlice]:
        opened = _opened(self.folder, file, self.faults)
        if opened is None:
            return
        descriptor, chain = opened
        pending = [s for s in chain.sections if s.end > position and s.end <= allowed]
        before = self.left
        taken = []
        for section in pending:
            if self.left <= 0:
                break
            taken.append(section)
            self.left -= max(section.end - section.position, _SECTION_BYTES)
        whole = allowed == WHOLE and len(taken) == len(pending)
        damage = tuple(chain.damage) if whole else ()
        if len(taken) < len(pending):
            self.at_head = False
        self._count(taken=1, read=len(taken) == len(pending))
        pieces = list(_split(taken, once=file.path.endswith(".gz"))) or ([()] if damage else [])
        if pieces:
            self.left = min(self.left, before - _SEGMENT_BYTES)
        for number, piece in enumerate(pieces, start=1):
            yield SegmentSlice(
                path=file.path,
                origin=file.origin,
                descriptor=descriptor,
                sections=tuple(piece),
                after=position,
                damage=damage if number == len(pieces) else (),
                strict=self.folder.strict,
            )
        if whole:
            self.offset = self.offset.advance(file.segment, WHOLE)
        elif taken:
            self.offset = self.offset.advance(file.segment, taken[-1].end)

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self.segments, name) + count for name, count in more.items()}
        self.segments = replace(self.segments, **counted)


def _split(sections: Sequence[Section], *, once: bool) -> Iterator[Sequence[Section]]:
    """Split sections into slices; a single one if each read must decompress the whole file."""
    piece: list[Section] = []
    size = 0
    for section in sections:
        piece.append(section)
        size += section.end - section.position
        if size >= _SLICE_BYTES and not once:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def noted_segments(folder: LogFolder, origin: str) -> Iterator[tuple[int, str]]:
    """Yield id and name of the segments of a node for which a transfer wrote a note."""
    for path in Path(folder.path, ERRORS, origin).glob("*" + NOTE_SUFFIX):
        name = path.name.removesuffix(NOTE_SUFFIX)
        if number := segment_number(name):
            yield number[1], name


def _list(folder: LogFolder) -> Mapping[str, list[SegmentFile]]:
    return list_segments(folder.path, folder.node, recorded=folder.recorded)


def _usable(folder: LogFolder, file: SegmentFile) -> bool:
    if file.fault and not file.index_broken:
        return False
    return file.complete or file.index is not None or _beyond_index(folder, file)


def _beyond_index(folder: LogFolder, file: SegmentFile) -> bool:
    return folder.beyond_index or (folder.recorded and file.index_broken)


def _report_fault(file: SegmentFile, faults: Faults | None) -> None:
    if not file.fault:
        return
    error = CorruptInput(
        file.fault,
        expected="a segment and its index as the node writes them, readable by the user that runs Spark",
        remedy="remove it, or replace it by the node's; the other segments are captured",
    )
    if faults is None:
        raise error
    faults[file.origin, file.path] = error


def _node_head(folder: LogFolder, files: Sequence[SegmentFile], faults: Faults | None = None) -> NodeOffset:
    usable = [file for file in files if _usable(folder, file)]
    growing = {}
    for file in usable:
        if file.complete:
            continue
        if (opened := _opened(folder, file, faults)) is not None and opened[1].sections:
            growing[file.segment] = opened[1].sections[-1].end
    return NodeOffset(done=whole_segments(f.segment for f in usable if f.complete), open=growing)


def _opened(folder: LogFolder, file: SegmentFile, faults: Faults | None) -> tuple[Descriptor, Chain] | None:
    """Read a segment's header and walk its sections; None if it can't be read."""
    if faults and (file.origin, file.path) in faults:
        return None
    try:
        return _open(folder, file)
    except CdcError as error:
        if faults is None:
            raise
        faults[file.origin, file.path] = error
    except OSError as error:
        _report_fault(replace(file, fault=f"{file.path} can't be read: {error.strerror}"), faults)
    return None


def _open(folder: LogFolder, file: SegmentFile) -> tuple[Descriptor, Chain]:
    """Read a segment's header and walk its sections, as far as they are durable."""
    unknown = Descriptor(file.version, file.segment)
    with SegmentBytes(file.path) as source:
        beginning = source.read(0, _LONGEST_HEADER)
        if not file.complete and not any(beginning[:20]):
            return unknown, Chain((), (), 0)  # just created, the header is not written yet
        try:
            descriptor = read_descriptor(beginning, file.path)
        except CorruptInput:
            if not file.complete and file.index is None:
                return unknown, Chain((), (), 0)  # the header is being written
            if not folder.recorded:
                raise
            return unknown, Chain((), [CorruptRange(0, source.length, HEADER_UNREADABLE, beginning)], 0)
        if (descriptor.version, descriptor.segment) != (file.version, file.segment):
            if not folder.recorded:
                raise CorruptInput(
                    f"the header of segment {file.path} is another segment's",
                    expected=f"version {file.version}, id {file.segment}",
                    found=f"version {descriptor.version}, id {descriptor.segment}",
                    remedy="remove it, or replace it by the node's",
                )
            return unknown, Chain((), [CorruptRange(0, source.length, HEADER_MISMATCH, beginning)], 0)
        section_decoder(descriptor, file.path, folder.keys)
        chain = walk_sections(
            source, descriptor, complete=file.complete, trust_zero_checksum=folder.trust_zero_checksum
        )
        if descriptor.encryption:
            check_key(source, descriptor, [section.start for section in chain.sections], folder.keys)
        if file.index is None:
            return descriptor, chain
        if not file.complete:
            durable = [s for s in chain.sections if _beyond_index(folder, file) or s.end <= file.index.end]
            return descriptor, chain._replace(sections=durable)
        # After a crash the server writes the file's length to the index.
        if chain.end < file.index.end != source.length:
            lost = CorruptRange(chain.end, file.index.end - chain.end, ENDS_EARLY)
            chain = chain._replace(damage=[*chain.damage, lost])
        return descriptor, chain
