"""Strings of Extended JSON from UTF-8: one kernel, with a table of the characters that are escaped."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Final

import numpy as np

from airflow_cdc_provider.formats.byte_kernels import OFFSET, load_little64, store_little64
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, kernel, walker

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_ONES: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_BLANKS: Final = np.uint64(0x2020202020202020)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_SURROGATE: Final = 0xD800
_REPLACEMENT: Final = 0xFFFD


@cache
def escapes_of_java() -> Flags:
    r"""Return per UTF-16 unit whether MongoDB's Java driver writes it as ``\uxxxx``.

    Characters of the general categories that the driver lists are not escaped. Unicode 14 and 15 (Python 3.11
    and 3.12, JDK 21) agree on them for the whole BMP.
    """
    kept = {"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Zs"}
    kept |= {"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So"}
    return np.fromiter((unicodedata.category(chr(u)) not in kept for u in range(65536)), np.bool_, 65536)


@cache
def escapes_of_python(*, ascii_only: bool) -> Flags:
    r"""Return per UTF-16 unit whether Python's ``json`` writes it as ``\uxxxx``."""
    units = np.arange(65536)
    return (units < 0x20) | (units > 0x7E) if ascii_only else units < 0x20


@walker
def write_hex(data: Bytes, start: Int, end: Int, out: Bytes, at: Int) -> Int:
    """Write bytes as lower-case hex digits; return the offset after them."""
    for i in range(start, end):
        out[at], out[at + 1] = _HEX[data[i] >> 4], _HEX[data[i] & 15]
        at += 2
    return at


@walker
def code_point(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Decode one UTF-8 character: code point and number of bytes.

    Returns:
        Code point -1 for bytes that aren't UTF-8, and how many of them Java's decoder replaces at once.
    """
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4 or at + 1 >= end:
        return np.int64(-1), 1
    second = np.int64(data[at + 1])
    if second & 0xC0 != 0x80:
        return np.int64(-1), 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | second & 0x3F, 2
    if first < 0xF0:
        if first == 0xE0 and second < 0xA0:
            return np.int64(-1), 1
        if at + 2 >= end or data[at + 2] & 0xC0 != 0x80:
            return np.int64(-1), 2
        point = (first & 0x0F) << 12 | (second & 0x3F) << 6 | np.int64(data[at + 2]) & 0x3F
        return (np.int64(-1) if _SURROGATE <= point < 0xE000 else point), 3
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return np.int64(-1), 1
    if at + 2 >= end or data[at + 2] & 0xC0 != 0x80:
        return np.int64(-1), 2
    if at + 3 >= end or data[at + 3] & 0xC0 != 0x80:
        return np.int64(-1), 3
    point = (first & 0x07) << 18 | (second & 0x3F) << 12
    return point | (np.int64(data[at + 2]) & 0x3F) << 6 | np.int64(data[at + 3]) & 0x3F, 4


@walker
def _is_plain(word: Int) -> bool:
    """Return whether eight bytes need no escaping in JSON: ASCII, no control, quote, backslash or DEL.

    Each term sets the high bit of bytes that need escaping; only such a byte can carry into the next one.
    """
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    controls = (word - _BLANKS) & ~word
    return (
        (
            controls
            | ((quotes - _ONES) & ~quotes)
            | ((backslashes - _ONES) & ~backslashes)
            | (word + _ONES)
            | word
        )
        & _HIGH_BITS
    ) == np.uint64(0)


@walker
def _write_unit(unit: Int, out: Bytes, at: Int) -> Int:
    out[at], out[at + 1] = 92, 117
    for i in range(4):
        out[at + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return at + 6


@walker
def write_string(
    data: Bytes, start: Int, end: Int, out: Bytes, at: Int, escapes: Flags, bytewise: bool, flaws: Bytes
) -> Int:
    """Write text in quotes; bytes that aren't UTF-8 become U+FFFD.

    Args:
        data: The buffer.
        start: First byte of the text.
        end: Byte after it.
        out: Output buffer, with enough space.
        at: Offset to write at.
        escapes: Per UTF-16 unit, whether it is escaped.
        bytewise: Replace each invalid byte, otherwise as many at once as Java does.
        flaws: Its first element becomes 1 if a byte was replaced.

    Returns:
        The offset after the text.
    """
    out[at & OFFSET] = 34
    at = write_characters(data, start, end, out, at + 1, escapes, bytewise, flaws)
    out[at & OFFSET] = 34
    return at + 1


@walker
def write_characters(
    data: Bytes, start: Int, end: Int, out: Bytes, at: Int, escapes: Flags, bytewise: bool, flaws: Bytes
) -> Int:
    """Write text like :func:`write_string`, without quotes."""
    start &= OFFSET
    at &= OFFSET
    while start < end:
        while end - start >= 8:
            word = load_little64(data, start)
            if not _is_plain(np.uint64(word)):
                break
            store_little64(out, at, word)
            start += 8
            at += 8
        while start < end:
            byte = data[start]
            if byte < 32 or byte > 126 or byte == 34 or byte == 92:  # noqa: PLR1714  a set is slower
                break
            out[at] = byte
            start += 1
            at += 1
        if start >= end:
            break
        point, size = code_point(data, start, end)
        if point < 0:
            flaws[0] = 1
            point = np.int64(_REPLACEMENT)
            size = 1 if bytewise else size
        short = _short_escape(point)
        if short:
            out[at], out[at + 1] = 92, short
            at += 2
        elif point > 0xFFFF and escapes[_SURROGATE]:
            at = _write_unit(0xD7C0 + (point >> 10), out, at)
            at = _write_unit(0xDC00 + (point & 0x3FF), out, at)
        elif point <= 0xFFFF and escapes[point]:
            at = _write_unit(point, out, at)
        elif point == _REPLACEMENT:
            out[at], out[at + 1], out[at + 2] = 0xEF, 0xBF, 0xBD
            at += 3
        else:
            for i in range(size):
                out[at + i] = data[start + i]
            at += size
        start += size
    return at


@walker
def _short_escape(point: Int) -> Int:
    if point > 92:
        return 0
    if point in (34, 92):
        return point
    if point == 10:
        return 110
    if point == 13:
        return 114
    if point == 9:
        return 116
    if point == 8:
        return 98
    return 102 if point == 12 else 0


@kernel
def write_sorted(data: Bytes, start: Int, end: Int, out: Bytes, at: Int, escapes: Flags, flaws: Bytes) -> Int:
    """Write text like :func:`write_string`, with its UTF-16 units sorted, as the Java driver does it."""
    units = np.empty(end - start, np.int64)
    count = 0
    while start < end:
        point, size = code_point(data, start, end)
        start += size
        if point < 0:
            flaws[0] = 1
            point = np.int64(_REPLACEMENT)
        if point > 0xFFFF:
            units[count] = 0xD7C0 + (point >> 10)
            count += 1
            point = 0xDC00 + (point & 0x3FF)
        units[count] = point
        count += 1
    text = np.empty(3, np.uint8)
    out[at] = 34
    at += 1
    for unit in np.sort(units[:count]):
        size = 3
        if _SURROGATE <= unit < 0xE000:
            at = _write_unit(unit, out, at)
            continue
        if unit < 0x80:
            text[0], size = unit, 1
        elif unit < 0x800:
            text[0], text[1], size = 0xC0 | unit >> 6, 0x80 | unit & 0x3F, 2
        else:
            text[0], text[1], text[2] = 0xE0 | unit >> 12, 0x80 | (unit >> 6) & 0x3F, 0x80 | unit & 0x3F
        at = write_characters(text, 0, size, out, at, escapes, False, flaws)
    out[at] = 34
    return at + 1
