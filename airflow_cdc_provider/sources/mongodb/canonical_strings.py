"""Writes strings in the format of canonical Extended JSON; bytes that are not UTF-8 become U+FFFD."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.formats.kernels import kernel

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def code_point(data: Any, pos: int, end: int) -> Any:
    """Decode one character: code point and length in bytes; code point -1, length 1 if it is not UTF-8."""
    lead = np.int64(data[pos])
    if lead < 0x80:
        return lead, 1
    if 0xC2 <= lead <= 0xDF:
        length = 2
        value = lead & 0x1F
        smallest = 0x80
    elif 0xE0 <= lead <= 0xEF:
        length = 3
        value = lead & 0x0F
        smallest = 0x800
    elif 0xF0 <= lead <= 0xF4:
        length = 4
        value = lead & 0x07
        smallest = 0x10000
    else:
        return np.int64(-1), 1
    if end - pos < length:
        return np.int64(-1), 1
    for i in range(1, length):
        following = np.int64(data[pos + i])
        if following & 0xC0 != 0x80:
            return np.int64(-1), 1
        value = (value << 6) | (following & 0x3F)
    if value < smallest or value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
        return np.int64(-1), 1
    return value, length


@kernel
def _put_escape(unit: int, out: Any, used: int) -> Any:
    out[used] = 0x5C
    out[used + 1] = 0x75
    for i in range(4):
        out[used + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return used + 6


@kernel
def _short_escape(byte: int) -> Any:
    if byte == 0x0A:
        return 0x6E
    if byte == 0x0D:
        return 0x72
    if byte == 0x09:
        return 0x74
    if byte == 0x08:
        return 0x62
    if byte == 0x0C:
        return 0x66
    return byte if byte in (0x22, 0x5C) else 0


@kernel
def put_string(data: Any, start: int, end: int, ascii_only: bool, out: Any, used: int, bad: Any) -> Any:
    """Write text in quotes; return the bytes used. ``bad[0]`` counts bytes that are not UTF-8."""
    out[used] = 0x22
    used += 1
    pos = start
    while pos < end:
        byte = np.int64(data[pos])
        if 0x20 <= byte < 0x7F and byte not in (0x22, 0x5C):
            out[used] = byte
            used += 1
            pos += 1
            continue
        if byte < 0x80:
            short = _short_escape(byte)
            if short:
                out[used] = 0x5C
                out[used + 1] = short
                used += 2
            elif byte == 0x7F and not ascii_only:
                out[used] = byte
                used += 1
            else:
                used = _put_escape(byte, out, used)
            pos += 1
            continue
        value, length = code_point(data, pos, end)
        if value < 0:
            bad[0] += 1
            if ascii_only:
                used = _put_escape(0xFFFD, out, used)
            else:
                out[used] = 0xEF
                out[used + 1] = 0xBF
                out[used + 2] = 0xBD
                used += 3
        elif not ascii_only:
            for i in range(length):
                out[used + i] = data[pos + i]
            used += length
        elif value < 0x10000:
            used = _put_escape(value, out, used)
        else:
            used = _put_escape(0xD7C0 + (value >> 10), out, used)
            used = _put_escape(0xDC00 + (value & 0x3FF), out, used)
        pos += length
    out[used] = 0x22
    return used + 1
