"""Digests of texts as Debezium masks columns with them: of a salt followed by the text, in hexadecimal.

Version 2 hashes the text's UTF-8, version 1 the text as ``java.io.ObjectOutputStream`` writes it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import pyarrow as pa

_JAVA_STRING: Final = b"\xac\xed\x00\x05t"
_JAVA_LONG_STRING: Final = b"\xac\xed\x00\x05|"
_SHORT: Final = 0xFFFF


def digests(algorithm: str, salt: bytes, column: pa.Array, *, as_java: bool, length: int) -> pa.Array:
    """Hash texts, each distinct one once.

    Args:
        algorithm: Name of a ``hashlib`` algorithm.
        salt: Bytes before each text.
        column: The texts; null stays null.
        as_java: Whether texts are hashed as Java serialises them.
        length: Number of characters of the digest to keep, 0 for all.
    """
    distinct = column.dictionary_encode()
    found = []
    for text in distinct.dictionary.to_pylist():
        value = _serialised(text) if as_java else text.encode()
        digest = hashlib.new(algorithm, salt + value).hexdigest()
        found.append(digest[:length] if length else digest)
    return pa.array(found, pa.utf8()).take(distinct.indices)


def _serialised(text: str) -> bytes:
    """Return a text as ``java.io.ObjectOutputStream`` writes it: its length and modified UTF-8."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    written = b"".join(_modified_utf8(unit) for unit in units)
    if len(written) <= _SHORT:
        return _JAVA_STRING + struct.pack(">H", len(written)) + written
    return _JAVA_LONG_STRING + struct.pack(">Q", len(written)) + written


def _modified_utf8(unit: int) -> bytes:
    if 0 < unit < 0x80:
        return bytes([unit])
    if unit < 0x800:
        return bytes([0xC0 | unit >> 6, 0x80 | unit & 0x3F])
    return bytes([0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F])
