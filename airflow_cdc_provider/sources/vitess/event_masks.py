"""Columns that events hide or cut: ``column.truncate``, ``column.mask`` and ``column.mask.hash`` of Debezium.

Forms: ``truncate:N`` keeps the first N characters; ``mask:N`` shows N asterisks; ``hash:ALGORITHM:SALT`` and
``hash-v2:ALGORITHM:SALT`` show the digest of salt and value in hexadecimal, at most as long as the column is.
The first hashes a text as Java serialises it, as Debezium's first version does, the second its UTF-8.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import ConfigurationError

_FORM: Final = re.compile(r"(truncate|mask):(\d+)|(hash|hash-v2):([^:]+):(.+)", re.DOTALL)
_JAVA_STRING: Final = b"\xac\xed\x00\x05t"
_JAVA_LONG_STRING: Final = b"\xac\xed\x00\x05|"
_SHORT: Final = 0xFFFF


def mask_of(form: str, path: str, *, is_text: bool, length: int) -> Callable[[pa.Array], pa.Array] | None:
    """Return what hides a column.

    Args:
        form: How.
        path: The column, ``keyspace.table.column``.
        is_text: Whether events show it as text.
        length: Characters that it holds, 0 for no limit.

    Returns:
        None where there is nothing to cut.

    Raises:
        ConfigurationError: There is no such form or algorithm, or it can't hide the column.
    """
    found = _FORM.fullmatch(form)
    if found is None:
        raise ConfigurationError(
            f"publish.vitess.masks has no form for {path}",
            expected="truncate:N, mask:N, hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT",
            found=form.partition(":")[0],  # a salt is no text for a log
        )
    if found[1] == "truncate":
        return partial(_cut, int(found[2])) if is_text else None
    if not is_text:
        raise ConfigurationError(
            f"publish.vitess.masks can't hide {path}, which is no text",
            remedy="leave it out by publish.vitess.exclude_columns",
        )
    if found[1] == "mask":
        return partial(_hide, int(found[2]))
    algorithm = found[4].replace("-", "").lower()
    if algorithm not in hashlib.algorithms_available:
        raise ConfigurationError(f"publish.vitess.masks of {path}: no algorithm {found[4]}")
    return partial(_hash, algorithm, found[5].encode(), found[3] == "hash", length)


def _cut(size: int, column: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(column, 0, size)


def _hide(size: int, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), "*" * size, pa.scalar(None, column.type))


def _hash(algorithm: str, salt: bytes, as_java: bool, length: int, column: pa.Array) -> pa.Array:
    """Hash each distinct value once."""
    distinct = column.dictionary_encode()
    digests = []
    for text in distinct.dictionary.to_pylist():
        value = _serialised(text) if as_java else text.encode()
        digest = hashlib.new(algorithm, salt + value).hexdigest()
        digests.append(digest[:length] if length else digest)
    return pa.array(digests, pa.utf8()).take(distinct.indices)


def _serialised(text: str) -> bytes:
    """Return a text as ``java.io.ObjectOutputStream`` writes it: in modified UTF-8 behind its length."""
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
