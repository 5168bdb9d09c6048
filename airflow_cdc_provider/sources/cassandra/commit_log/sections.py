"""Sections of a segment: the chain of sync markers, and each section's plain bytes (reference §3).

A marker follows the header, and then the end of each section::

    0   i32  file offset of the next marker: this section's body lies between
    4   u32  CRC-32 over low and high half of the segment id and this marker's file offset

The chain ends at the end of the file or at a marker of zeros. Entries never span sections, so sections can be
read in any order and in parallel.

Positions are logical: the header's length, and for each section 8 bytes for its marker and the length of its
plain bytes. In a plain segment they equal file offsets.

A :data:`~.compression.SectionDecoder` decodes a section's body to plain bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.kernels import Bytes, Int, kernel
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES
from airflow_cdc_provider.sources.cassandra.commit_log.checksum import crc32
from airflow_cdc_provider.sources.cassandra.commit_log.compression import DECODERS, UNREADABLE, SectionDecoder
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, section_decrypter
from airflow_cdc_provider.sources.cassandra.commit_log.segments import (
    Descriptor,
    SegmentBytes,
    most_plausible_bytes,
)
from airflow_cdc_provider.sources.cql.reasons import MARKER_CHECKSUM, MARKER_TARGET, SECTION_UNREADABLE
from airflow_cdc_provider.sources.cql.wire import read_i32

_MARKER: Final = struct.Struct(">iI")
MARKER_BYTES: Final = _MARKER.size
_LENGTH_BYTES: Final = 4
_LONGEST_SECTION: Final = 256 << 20
"""Plain bytes: a section has what a node wrote in ten seconds, and is never longer than a segment."""

_MOST_SECTIONS: Final = 1 << 20
"""A node that syncs each write makes some hundred thousand."""

_FIRST_SEARCHED_BYTES: Final = 4 << 10
_SEARCHED_BYTES: Final = 16 << 20


class Section(NamedTuple):
    """One section.

    ``start``, ``stop``  file offsets of its body
    ``position``         logical position of its first plain byte
    ``end``              logical position after its last
    """

    start: int
    stop: int
    position: int
    end: int


class CorruptRange(NamedTuple):
    """A corrupt range of a segment.

    ``position``  logical position of its start
    ``length``    its length in the file, in bytes
    ``reason``    one of :mod:`airflow_cdc_provider.sources.cql.reasons`
    ``sample``    its first bytes
    """

    position: int
    length: int
    reason: int
    sample: bytes = b""


class Chain(NamedTuple):
    """The sections of a segment, in order.

    ``sections``  the reachable sections
    ``damage``    corrupt ranges in the chain itself
    ``end``       logical position of the end of the data
    """

    sections: Sequence[Section]
    damage: Sequence[CorruptRange]
    end: int


def section_decoder(descriptor: Descriptor, path: str, keys: Keys | None = None) -> SectionDecoder | None:
    """Return the decoder of a segment's sections, None for a plain segment.

    Args:
        descriptor: The segment's header.
        path: The segment, for errors.
        keys: Keys of encrypted segments.

    Raises:
        ConfigurationError: The compression or encryption is unsupported, or the key is missing.
    """
    if descriptor.plain:
        return None
    if descriptor.encryption:
        return section_decrypter(descriptor, path, keys)
    if descriptor.compression not in DECODERS:
        raise ConfigurationError(
            f"segment {path} is compressed with {descriptor.compression}",
            expected=f"one of {', '.join(DECODERS)}",
        )
    return DECODERS[descriptor.compression]


def walk_sections(
    source: SegmentBytes, descriptor: Descriptor, *, complete: bool, trust_zero_checksum: bool = False
) -> Chain:
    """Walk the chain of markers. Reads only the markers, and the lengths at the start of compressed sections.

    A marker's checksum covers the segment id and its own file offset, but not its target. So a marker found
    by scanning is genuine, while one with a wrong target looks valid.

    Args:
        source: The segment.
        descriptor: Its header.
        complete: Whether the segment is closed. If so, an invalid marker is damage, and the reader scans for
            the next valid one, which loses at most one section. Else the chain ends there for now: a marker's
            two words are not written atomically.
        trust_zero_checksum: In a plain segment, accept a marker whose checksum is zero.

    Returns:
        The sections and the corrupt ranges.
    """
    sections: list[Section] = []
    damage: list[CorruptRange] = []
    position = at = descriptor.length
    while True:
        stop, crc = 0, 0
        if at <= source.length - MARKER_BYTES:
            stop, crc = _MARKER.unpack(source.read(at, MARKER_BYTES).ljust(MARKER_BYTES, b"\0"))
        crc_matches = crc == _marker_crc(descriptor.segment, at) or (
            trust_zero_checksum and descriptor.plain and crc == 0 and stop != 0
        )
        valid = crc_matches and at + MARKER_BYTES <= stop <= source.length
        if not valid and complete and sections:
            before = sections[-1]
            skipped_marker = _next_marker(source, descriptor.segment, before.start, at)
            if skipped_marker >= 0:  # the previous marker points past this one
                damage.append(CorruptRange(before.position - MARKER_BYTES, MARKER_BYTES, MARKER_TARGET))
                end = before.position + skipped_marker - before.start if descriptor.plain else before.end
                sections[-1] = Section(before.start, skipped_marker, before.position, end)
                position, at = end, skipped_marker
                continue
        if not valid:
            ended = at > source.length - MARKER_BYTES or (not crc_matches and stop == 0 and crc == 0)
            if ended or not complete:
                break
            stop = _next_marker(source, descriptor.segment, at + MARKER_BYTES, source.length)
            if stop < 0 and descriptor.plain:
                stop = source.length  # the last section: its entries end at the zeros
            lost = MARKER_BYTES if stop >= 0 else source.length - at
            damage.append(CorruptRange(position, lost, MARKER_TARGET if crc_matches else MARKER_CHECKSUM))
            if stop < 0:
                break
        start = at + MARKER_BYTES
        length = stop - start
        if not descriptor.plain:
            length = int.from_bytes(source.read(start, _LENGTH_BYTES), "big")
        if len(sections) == _MOST_SECTIONS or not _plausible(
            source, descriptor, position + MARKER_BYTES, stop - start, length
        ):
            if complete:
                damage.append(CorruptRange(position, source.length - at, SECTION_UNREADABLE))
            break
        position += MARKER_BYTES
        sections.append(Section(start, stop, position, position + length))
        position += length
        at = stop
    return Chain(sections, damage, position)


def _plausible(source: SegmentBytes, descriptor: Descriptor, position: int, stored: int, length: int) -> bool:
    """Return whether a section may have as many plain bytes: a few stored ones must not fill the memory."""
    if length > _LONGEST_SECTION or position + length > LARGEST_SEGMENT_BYTES:
        return False
    return descriptor.plain or (
        stored >= _LENGTH_BYTES
        and length <= most_plausible_bytes(stored)
        and position + length <= most_plausible_bytes(source.length)
    )


def plain_sections(
    source: SegmentBytes, descriptor: Descriptor, sections: Sequence[Section], keys: Keys | None = None
) -> Iterator[tuple[Section, bytes | CorruptRange]]:
    """Yield the plain bytes of sections, or the damage where they can't be decoded.

    Raises:
        ConfigurationError: See :func:`section_decoder`.
    """
    decode = section_decoder(descriptor, source.path, keys)
    for section in sections:
        body = source.read(section.start, section.stop - section.start)
        length = section.end - section.position
        if decode is None:
            yield section, body if len(body) == length else unreadable(section, body)
            continue
        try:
            plain = decode(body[_LENGTH_BYTES:], length) if length else b""
        except UNREADABLE:
            plain = b""
        yield section, plain if len(plain) == length else unreadable(section, body)


def unreadable(section: Section, body: bytes) -> CorruptRange:
    """Return the damage of a section whose bytes can't be decoded, or are missing."""
    return CorruptRange(section.position, section.stop - section.start, SECTION_UNREADABLE, body)


def _marker_crc(segment: int, at: int) -> int:
    return zlib.crc32(struct.pack(">III", segment & 0xFFFFFFFF, segment >> 32 & 0xFFFFFFFF, at))


def _next_marker(source: SegmentBytes, segment: int, at: int, limit: int) -> int:
    """Return the file offset of the first valid marker from ``at`` and before ``limit``, -1 for none."""
    state = zlib.crc32(struct.pack(">II", segment & 0xFFFFFFFF, segment >> 32 & 0xFFFFFFFF))
    size = _FIRST_SEARCHED_BYTES
    while at < limit:
        # What is read is proportional to the distance of the marker: there may be one each 8 bytes.
        data = np.frombuffer(source.read(at, min(limit - at, size) + MARKER_BYTES - 1), np.uint8)
        if (found := int(_find_marker(data, at, source.length, state))) >= 0:
            return found
        at, size = at + size, min(2 * size, _SEARCHED_BYTES)
    return -1


@kernel
def _find_marker(data: Bytes, offset: Int, file_length: Int, state: Int) -> Int:
    """Search for a marker in the bytes from file ``offset``; ``state`` is the CRC of the segment id."""
    word = np.empty(4, np.uint8)
    for at in range(len(data) - 7):
        stop = read_i32(data, at)
        file_offset = offset + at
        if stop < file_offset + 8 or stop > file_length:
            continue
        for i in range(4):
            word[i] = np.uint8((file_offset >> (24 - 8 * i)) & 0xFF)
        if crc32(word, np.int64(0), np.int64(4), state) == read_i32(data, at + 4) & 0xFFFFFFFF:
            return file_offset
    return np.int64(-1)
