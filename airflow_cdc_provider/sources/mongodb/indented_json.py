"""Indents Extended JSON as the Java driver's ``indent`` does: two spaces per level."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.kernels import kernel


def indented(texts: pa.Array) -> pa.Array:
    """Indent single-line JSON, without spaces after commas; null stays null."""
    data, starts, ends, valid = binary_slices(texts)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _write(data, starts, ends, valid, np.empty(0, np.uint8), offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write(data, starts, ends, valid, out, offsets)
    return text_array(out, offsets, valid)


@kernel
def _write(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    valid: np.ndarray,
    out: np.ndarray,
    offsets: np.ndarray,
) -> None:
    """Write the texts; with an empty ``out`` only measure them."""
    writes = len(out) > 0
    at = 0
    for row in range(len(starts)):
        level = 0
        in_text = False
        i = starts[row]
        while valid[row] and i < ends[row]:
            byte = data[i]
            breaks = 0  # 1: a line ends after the character, 2: before it
            size = 1
            if in_text:
                if byte == 92 and i + 1 < ends[row]:
                    size = 2
                elif byte == 34:
                    in_text = False
            elif byte == 34:
                in_text = True
            elif byte in (123, 91):
                if i + 1 < ends[row] and data[i + 1] in (125, 93):
                    size = 2  # empty: stays on its line
                else:
                    level += 1
                    breaks = 1
            elif byte in (125, 93):
                level -= 1
                breaks = 2
            elif byte == 44:
                breaks = 1
            if breaks == 2:
                at = _break_line(out, at, level, writes)
            for k in range(size):
                if writes:
                    out[at] = data[i + k]
                at += 1
            if breaks == 1:
                at = _break_line(out, at, level, writes)
            i += size
        offsets[row + 1] = at


@kernel
def _break_line(out: np.ndarray, at: int, level: int, writes: bool) -> int:
    size = 1 + 2 * max(level, 0)
    if writes:
        out[at] = 10
        for k in range(1, size):
            out[at + k] = 32
    return at + size
