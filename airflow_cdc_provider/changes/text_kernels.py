"""What kernels that turn bytes into text share: views of Arrow columns, columns of written bytes, base64."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.kernels import kernel

_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def binary_slices(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Look into a binary or string array without copying its bytes.

    Returns:
        The bytes (``uint8``); where each row starts and ends in them (``int64``); whether it is not null
        (bool).
    """
    buffers = column.buffers()
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if len(column) == 0 or buffers[1] is None:
        empty = np.empty(0, np.int64)
        return np.empty(0, np.uint8), empty, empty, np.empty(0, np.bool_)
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.empty(0, np.uint8)
    return data, offsets[:-1], offsets[1:], column.is_valid().to_numpy(zero_copy_only=False)


def text_array(out: np.ndarray, offsets: np.ndarray, valid: np.ndarray, *, binary: bool = False) -> pa.Array:
    """Wrap written bytes as an Arrow array without copying them.

    Args:
        out: The bytes (``uint8``); those after the last offset are ignored.
        offsets: One more than rows (``int64``).
        valid: Whether a row is not null (bool).
        binary: Bytes instead of text, for what may not be UTF-8.

    Returns:
        ``string`` or ``binary``; the large forms above 2 GiB in all.
    """
    wide = bool(offsets[-1] >= 2**31)
    kind = (
        (pa.large_binary() if wide else pa.binary()) if binary else (pa.large_utf8() if wide else pa.utf8())
    )
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    place = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(valid), [mask, place, pa.py_buffer(out[: offsets[-1]])])


def gather_text(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Copy slices that should be UTF-8 to a string array; what is not becomes U+FFFD."""
    sizes = np.where(valid, ends - starts, 0)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _gather(data, starts, offsets, out)
    raw = text_array(out, offsets, valid, binary=True)
    text = pa.large_utf8() if pa.types.is_large_binary(raw.type) else pa.utf8()
    try:
        return raw.cast(text)
    except pa.ArrowInvalid:
        return pa.array([v if v is None else v.decode("utf-8", "replace") for v in raw.to_pylist()], text)


@kernel
def _gather(data: np.ndarray, starts: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(starts)):
        first = offsets[row]
        for i in range(offsets[row + 1] - first):
            out[first + i] = data[starts[row] + i]


@kernel
def write_base64(data: np.ndarray, start: int, end: int, out: np.ndarray, at: int) -> int:
    """Write bytes in base64, standard alphabet, padded; return where the text ends."""
    while start + 3 <= end:
        group = np.int64(data[start]) << 16 | np.int64(data[start + 1]) << 8 | np.int64(data[start + 2])
        for i in range(4):
            out[at + i] = _BASE64[(group >> (18 - 6 * i)) & 63]
        at += 4
        start += 3
    if start < end:
        group = np.int64(data[start]) << 16
        if start + 2 == end:
            group |= np.int64(data[start + 1]) << 8
        out[at], out[at + 1] = _BASE64[group >> 18], _BASE64[(group >> 12) & 63]
        out[at + 2] = _BASE64[(group >> 6) & 63] if start + 2 == end else 61
        out[at + 3] = 61
        at += 4
    return at
