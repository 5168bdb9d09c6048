"""Shared parts of kernels that convert bytes to text: views of Arrow columns, text columns, base64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.byte_kernels import copy
from airflow_cdc_provider.changes.kernels import kernel, walker

_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def binary_slices(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """View a binary or string array without copying its bytes.

    Returns:
        The bytes (``uint8``); the start and the end of each row (``int64``); whether it is not null (bool).
    """
    buffers = column.buffers()
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if len(column) == 0 or buffers[1] is None:
        empty = np.empty(0, np.int64)
        return np.empty(0, np.uint8), empty, empty, np.empty(0, np.bool_)
    offsets = np.frombuffer(buffers[1], np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64, copy=False)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.empty(0, np.uint8)
    return data, offsets[:-1], offsets[1:], column.is_valid().to_numpy(zero_copy_only=False)


def text_array(
    out: np.ndarray, offsets: np.ndarray, valid: np.ndarray, *, binary: bool = False, wide: bool = False
) -> pa.Array:
    """Wrap written bytes as an Arrow array without copying them.

    Args:
        out: The bytes (``uint8``); those after the last offset are ignored.
        offsets: One more than rows (``int64``).
        valid: Whether a row is not null (bool).
        binary: Bytes instead of text, for data that may not be UTF-8.
        wide: Use the large form, which is always used above 2 GiB in total.

    Returns:
        ``string`` or ``binary``, or their large forms.
    """
    wide = wide or bool(offsets[-1] >= 2**31)
    kind = (
        (pa.large_binary() if wide else pa.binary()) if binary else (pa.large_utf8() if wide else pa.utf8())
    )
    mask = None if valid.all() else pa.array(valid).buffers()[1]
    place = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(valid), [mask, place, pa.py_buffer(out[: offsets[-1]])])


def join(*parts: pa.Array | str) -> pa.LargeStringArray:
    """Concatenate columns of text, at least one, and constants; a null in any makes the row null.

    Arrow's ``binary_join_element_wise`` does the same, but looks up the type of each part in each row.
    """
    return _joined([part.encode() if isinstance(part, str) else part for part in parts], binary=False)


def join_bytes(*parts: pa.Array | bytes) -> pa.LargeBinaryArray:
    """Concatenate bytes like :func:`join`; columns may also be text."""
    return _joined(parts, binary=True)


def _joined(parts: Sequence[pa.Array | bytes], *, binary: bool) -> pa.Array:
    columns, constants = [], [b""]
    for part in parts:
        if isinstance(part, bytes):
            constants[-1] += part
        else:
            columns.append(part)
            constants.append(b"")
    count = len(columns[0])
    if not count:
        return pa.array([], pa.large_binary() if binary else pa.large_utf8())
    pieces = []
    piece_bounds = np.empty((len(columns), count + 1), np.int64)
    valid = np.ones(count, np.bool_)
    before = 0
    for number, column in enumerate(columns):
        data, starts, ends, present = binary_slices(column)
        pieces.append(data[starts[0] : ends[-1]])
        piece_bounds[number, 0] = before
        np.add(ends, before - starts[0], out=piece_bounds[number, 1:])
        before = piece_bounds[number, -1]
        if column.null_count:
            valid &= present
    sizes = np.diff(piece_bounds, axis=1).sum(axis=0) + sum(map(len, constants))
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.where(valid, sizes, 0), out=offsets[1:])
    # Arrow's pool reuses memory; NumPy's memory must often be mapped first.
    out = np.frombuffer(pa.allocate_buffer(int(offsets[-1])), np.uint8)
    bounds = np.cumsum([0, *map(len, constants)])
    between = np.frombuffer(b"".join(constants), np.uint8)
    _write_joined(np.concatenate(pieces), piece_bounds, between, bounds, valid, out)
    return text_array(out, offsets, valid, binary=binary, wide=True)


@walker
def _write_joined(
    data: np.ndarray,
    piece_bounds: np.ndarray,
    between: np.ndarray,
    bounds: np.ndarray,
    valid: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write constants and pieces of the row alternately, with a constant first and last."""
    at = np.int64(0)
    last = len(piece_bounds)
    for row in range(len(valid)):
        if not valid[row]:
            continue
        for piece in range(last):
            at = copy(between, bounds[piece], bounds[piece + 1] - bounds[piece], out, at)
            start = piece_bounds[piece, row]
            at = copy(data, start, piece_bounds[piece, row + 1] - start, out, at)
        at = copy(between, bounds[last], bounds[last + 1] - bounds[last], out, at)


def gather_text(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Copy slices that should be UTF-8 to a string array; invalid bytes become U+FFFD."""
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
    """Write bytes in base64, standard alphabet, padded; return the offset after the text."""
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
