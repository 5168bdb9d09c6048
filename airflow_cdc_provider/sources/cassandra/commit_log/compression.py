"""Decompress the bodies of compressed sections (reference §3.2).

Decoders are registered by the simple names of Cassandra's compressor classes.

Arrow's codecs return as many bytes as requested, with uninitialized memory where a block has fewer. So the
length in the block itself is read and compared first: only the block's bytes are returned, and a wrong length
in a section header never causes an allocation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker

SectionDecoder = Callable[[bytes, int], bytes]
"""Decompresses a section's body (without the leading length), given its decompressed length."""

UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, zlib.error)
"""Exceptions that decoders raise for invalid bytes."""


_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LARGEST_WINDOW: Final = 8 << 20
"""What each decoder should support: RFC 8878, 3.1.1.1.2."""


def lz4(body: bytes, length: int) -> bytes:
    """Decompress Cassandra's LZ4 format: the decompressed length, little-endian, then a raw block."""
    if int.from_bytes(body[:4], "little") != length:
        raise ValueError("the two lengths of the block differ")
    if not length:
        return b""
    return _unpack("lz4_raw", body[4:], length, int(_lz4_length(np.frombuffer(body, np.uint8)[4:])))


def snappy(body: bytes, length: int) -> bytes:
    """Decompress a raw Snappy block, which starts with its decompressed length as a varint."""
    held = 0
    for index, byte in enumerate(body[:5]):
        held |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    return _unpack("snappy", body, length, held)


def zstd(body: bytes, length: int) -> bytes:
    """Decompress a Zstandard frame; as a stream if its header has no decompressed length."""
    held = _zstd_length(body)
    if held < 0:
        if _zstd_window(body[5]) > max(_LARGEST_WINDOW, 2 * length):
            raise ValueError("the frame needs too much memory")
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            return bytes(stream.read(length + 1))
    return _unpack("zstd", body, length, held)


def _unpack(codec: str, block: bytes, length: int, held: int) -> bytes:
    if held != length:
        raise ValueError(f"expected a block of {length} bytes, got {held}")
    return bytes(pa.Codec(codec).decompress(block, length, asbytes=True))


def _zstd_length(body: bytes) -> int:
    """Read the decompressed length in a frame's header (RFC 8878, 3.1.1.1), -1 if it has none."""
    if body[:4] != _ZSTD_MAGIC or len(body) < 6:
        raise ValueError("not a Zstandard frame")
    descriptor = body[4]
    alone = descriptor >> 5 & 1
    size = (alone, 2, 4, 8)[descriptor >> 6]
    at = 6 - alone + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(body[at : at + size], "little") + (256 if size == 2 else 0) if size else -1


def _zstd_window(descriptor: int) -> int:
    """Read the size of the decoder's buffer from its byte in a frame's header (RFC 8878, 3.1.1.1.2)."""
    base = 1 << 10 + (descriptor >> 3)
    return base + base // 8 * (descriptor & 7)


@walker
def _lz4_length(block: Bytes) -> Int:
    """Add up the decompressed lengths of a raw LZ4 block's sequences; -1 if they don't end with the block.

    A sequence::

        u4 count of literals, u4 length of the match - 4 | [more of the count] | literals | u16 offset |
        [more of the length]

    A count of 15 continues in bytes of 255, up to a byte below 255. The last sequence ends after its
    literals.
    """
    end = len(block)
    at = np.int64(0)
    total = np.int64(0)
    while at < end:
        token = np.int64(block[at])
        count, at = _lz4_number(block, at + 1, end, token >> 4)
        if at < 0 or count > end - at:
            return np.int64(-1)
        at += count
        total += count
        if at == end:
            return total
        if end - at < 2:
            return np.int64(-1)
        count, at = _lz4_number(block, at + 2, end, token & 15)
        if at < 0:
            return np.int64(-1)
        total += count + 4
    return np.int64(-1)


@walker
def _lz4_number(block: Bytes, at: Int, end: Int, first: Int) -> tuple[Int, Int]:
    """Read a number of four bits or more: return it, and the offset after it or -1."""
    number = np.int64(first)
    more = number == 15
    while more:
        if at >= end:
            return number, np.int64(-1)
        byte = np.int64(block[at])
        number += byte
        at += 1
        more = byte == 255
    return number, np.int64(at)


DECODERS: Final[dict[str, SectionDecoder]] = {
    "LZ4Compressor": lz4,
    "SnappyCompressor": snappy,
    "ZstdCompressor": zstd,
    "DeflateCompressor": lambda body, length: zlib.decompressobj().decompress(body, length + 1),
    "NoopCompressor": lambda body, length: body[:length],
}
