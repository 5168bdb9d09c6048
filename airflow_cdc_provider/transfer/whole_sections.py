"""How much of a growing segment may be copied: whole sections, up to the durable position of its idx.

A marker follows a segment's header, and then each section (reference §2, §3)::

    header    i32 version, i64 id, u16 N, N bytes of JSON, u32 CRC-32
    marker    i32 file offset of the next marker, u32 CRC-32 over the segment id and this marker's offset

The idx file has a *logical* position, which counts plain bytes. In a compressed or encrypted segment it isn't
a file offset; the plain length of each section follows its marker.

Bytes before a durable marker never change again, so they are copied once.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES
from airflow_cdc_provider.transfer.segments import Segment

Read = Callable[[int, int], bytes]
"""Returns the bytes of a segment between two file offsets, fewer at the end of the file."""

_FIXED: Final = struct.Struct(">iqH")
_MARKER: Final = struct.Struct(">iI")
_LENGTH_BYTES: Final = 4
_CRC_BYTES: Final = 4


class Mark(NamedTuple):
    """A boundary between two sections: its file offset, and its logical position."""

    offset: int
    position: int


class Header(NamedTuple):
    """A segment's header: its length, and whether logical positions are file offsets."""

    length: int
    plain: bool


def read_header(read: Read, segment: Segment) -> Header:
    """Read a segment's header.

    Raises:
        CorruptInput: The checksum doesn't match, or it is the header of another segment.
    """
    fixed = read(0, _FIXED.size)
    if len(fixed) == _FIXED.size:
        version, number, length = _FIXED.unpack(fixed)
        rest = read(_FIXED.size, _FIXED.size + length + _CRC_BYTES)
        words = struct.pack(">iIIi", version, number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF, length)
        if zlib.crc32(rest[:length], zlib.crc32(words)) == int.from_bytes(rest[length:], "big"):
            if number != segment.id:
                raise CorruptInput(
                    f"the header of {segment.name} is that of another segment",
                    expected=str(segment.id),
                    found=str(number),
                )
            options = _options(rest[:length], segment)
            plain = not (options.get("compressionClass") or options.get("encCipher"))
            return Header(_FIXED.size + length + _CRC_BYTES, plain)
    raise CorruptInput(
        f"the header of {segment.name} is corrupt", expected="a header with a matching checksum"
    )


def _options(text: bytes, segment: Segment) -> dict[str, Any]:
    try:
        options = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise CorruptInput(f"the header of {segment.name} is corrupt", expected="parameters as a JSON object")
    return options


def durable_end(read: Read, segment: Segment) -> int:
    """Return the file offset up to which a segment may be copied, from the position of its idx.

    Raises:
        CorruptInput: The header is corrupt, or the segment ends before its idx's position.
    """
    header = read_header(read, segment)
    if segment.size_bytes > LARGEST_SEGMENT_BYTES:
        raise CorruptInput(
            f"{segment.name} is no segment",
            expected=f"at most {LARGEST_SEGMENT_BYTES} bytes",
            found=str(segment.size_bytes),
        )
    if segment.complete:
        return segment.size_bytes
    durable = segment.index.end if segment.index is not None else 0
    last = Mark(durable, durable) if header.plain else max(durable_marks(read, segment), default=Mark(0, 0))
    if last.offset > segment.size_bytes or last.position < durable:
        raise CorruptInput(
            f"{segment.name} ends before the position of its idx",
            expected=f"position {durable}",
            found=f"{min(last.position, segment.size_bytes)}",
        )
    return last.offset


def durable_marks(read: Read, segment: Segment, after: Mark | None = None) -> Iterator[Mark]:
    """Yield the ends of the durable sections, in order.

    Args:
        read: Reads the segment.
        segment: The segment. The last mark of a finished one is the end of its file.
        after: The mark to resume from, one that was yielded before.

    Raises:
        CorruptInput: The header is corrupt.
    """
    header = read_header(read, segment)
    mark = after or Mark(header.length, header.length)
    end = segment.index.end if segment.index is not None else 0
    if after is None and (segment.complete or mark.position <= end):
        yield mark
    while (following := _next(read, segment, header, mark)) is not None:
        if not segment.complete and following.position > end:
            return
        mark = following
        yield mark
    if segment.complete and mark.offset < segment.size_bytes:
        yield Mark(segment.size_bytes, mark.position)


def _next(read: Read, segment: Segment, header: Header, mark: Mark) -> Mark | None:
    """Return the next mark; None at the end of the chain, regular or not: capture distinguishes them."""
    data = read(mark.offset, mark.offset + _MARKER.size + _LENGTH_BYTES)
    if len(data) < _MARKER.size:
        return None
    offset, crc = _MARKER.unpack_from(data)
    words = struct.pack(">III", segment.id & 0xFFFFFFFF, segment.id >> 32 & 0xFFFFFFFF, mark.offset)
    body = mark.offset + _MARKER.size
    if crc != zlib.crc32(words) or not body <= offset <= segment.size_bytes:
        return None
    length = offset - body if header.plain else int.from_bytes(data[_MARKER.size :], "big")
    return Mark(offset, mark.position + _MARKER.size + length)
