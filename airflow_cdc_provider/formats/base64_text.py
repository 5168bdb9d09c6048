"""Base64 (RFC 4648) of columns, and the kernel that writes it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import text_array
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)


def base64_texts(
    data: Bytes, starts: Ints, ends: Ints, *, url_safe: bool = False, quoted: bool = False
) -> pa.Array:
    """Encode spans with padding; null where a start is negative.

    Args:
        data: A buffer.
        starts: Start of each value.
        ends: Its end.
        url_safe: Whether to write ``-`` and ``_`` instead of ``+`` and ``/``.
        quoted: Whether to write JSON strings, of type large_string.
    """
    valid = starts >= 0
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.where(valid, (ends - starts + 2) // 3 * 4 + 2 * quoted, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_all(data, starts, ends, quoted, out)
    if url_safe:
        out[out == ord("+")] = ord("-")
        out[out == ord("/")] = ord("_")
    return text_array(out, offsets, valid, wide=quoted)


@walker
def _write_all(data: Bytes, starts: Ints, ends: Ints, quoted: bool, out: Bytes) -> None:
    at = np.int64(0)
    for row in range(len(starts)):
        if starts[row] >= 0 and quoted:
            at = write_quoted_base64(data, starts[row], ends[row], out, at)
        elif starts[row] >= 0:
            at = write_base64(data, starts[row], ends[row], out, at)


@walker
def write_quoted_base64(data: Bytes, start: Int, end: Int, out: Bytes, at: Int) -> Int:
    """Write bytes like :func:`write_base64`, in quotes."""
    out[at] = 34
    at = write_base64(data, start, end, out, at + 1)
    out[at] = 34
    return at + 1


@walker
def write_base64(data: Bytes, start: Int, end: Int, out: Bytes, at: Int) -> Int:
    """Write bytes in base64, standard alphabet, padded; return the offset after the text."""
    while start + 3 <= end:
        group = np.int64(data[start]) << 16 | np.int64(data[start + 1]) << 8 | np.int64(data[start + 2])
        for i in range(4):
            out[at + i] = _ALPHABET[(group >> (18 - 6 * i)) & 63]
        at += 4
        start += 3
    if start < end:
        group = np.int64(data[start]) << 16
        if start + 2 == end:
            group |= np.int64(data[start + 1]) << 8
        out[at], out[at + 1] = _ALPHABET[group >> 18], _ALPHABET[(group >> 12) & 63]
        out[at + 2] = _ALPHABET[(group >> 6) & 63] if start + 2 == end else 61
        out[at + 3] = 61
        at += 4
    return np.int64(at)
