"""Compressors of sections: what makes plain bytes of a compressed body (reference §3.2).

They go by the simple names of Cassandra's classes. A new one needs nothing but one more line.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

SectionDecoder = Callable[[bytes, int], bytes]
"""Makes plain bytes of a section's body (without the length that leads it), given their length."""

UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, zlib.error)
"""What a decoder raises for bytes that aren't what they should be."""


def lz4(body: bytes, length: int) -> bytes:
    """Unpack Cassandra's form of LZ4: the plain length, little-endian, then a raw block."""
    if int.from_bytes(body[:4], "little") != length:
        raise ValueError("the two lengths of the block differ")
    return bytes(pa.Codec("lz4_raw").decompress(body[4:], length, asbytes=True)) if length else b""


def _pyarrow(codec: str) -> SectionDecoder:
    return lambda body, length: bytes(pa.Codec(codec).decompress(body, length, asbytes=True))


DECODERS: Final[dict[str, SectionDecoder]] = {
    "LZ4Compressor": lz4,
    "SnappyCompressor": _pyarrow("snappy"),
    "ZstdCompressor": _pyarrow("zstd"),
    "DeflateCompressor": lambda body, length: zlib.decompressobj().decompress(body, length + 1),
    "NoopCompressor": lambda body, length: body[:length],
}
