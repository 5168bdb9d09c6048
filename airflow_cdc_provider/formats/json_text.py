"""Kernels that scan JSON text in place.

The grammar is strictly RFC 8259: no comments, no trailing commas, no leading zeros, no control characters in
strings. The caller must ensure that the text is UTF-8.

Guarantees: no read outside a text, for any input; a text nested deeper than :data:`DEEPEST` is broken.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker

ABSENT: Final = 0
"""Kind of a missing value, and of invalid JSON."""
NULL: Final = 1
FALSE: Final = 2
TRUE: Final = 3
INTEGER: Final = 4
"""A number without decimal point and exponent."""
NUMBER: Final = 5
"""Any other number."""
STRING: Final = 6
OBJECT: Final = 7
ARRAY: Final = 8

DEEPEST: Final = 256
"""Maximum nesting depth of objects and arrays."""


def scan_texts(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Scan texts in a buffer; a negative start means none.

    Returns:
        Start and end of each value, without surrounding blanks, and its kind; -1, -1 and :data:`ABSENT` for
        none, or for invalid JSON.
    """
    first, last = np.full((2, len(starts)), -1, np.int64)
    kinds = np.zeros(len(starts), np.int64)
    _read(data, starts, ends, first, last, kinds, np.zeros(DEEPEST, np.uint8))
    return first, last, kinds


@walker
def skip_blank(data: Bytes, at: Int, end: Int) -> Int:
    """Return the offset of the next non-blank byte."""
    while at < end and (data[at] == 0x20 or data[at] == 0x0A or data[at] == 0x0D or data[at] == 0x09):
        at += 1
    return at


@walker
def skip_string(data: Bytes, at: Int, end: Int) -> Int:
    """Return the offset after a string, given that of its first quote; -1 if it is broken."""
    if at >= end or data[at] != 0x22:
        return np.int64(-1)
    at += 1
    while at < end:
        byte = data[at]
        if byte == 0x22:
            return at + 1
        if byte < 0x20:
            return np.int64(-1)
        if byte == 0x5C:
            at += 1
            if at >= end:
                return np.int64(-1)
            byte = data[at]
            if byte == 0x75:
                if end - at < 5:
                    return np.int64(-1)
                for i in range(1, 5):
                    if hex_digit(data[at + i]) < 0:
                        return np.int64(-1)
                at += 4
            elif byte not in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
                return np.int64(-1)
        at += 1
    return np.int64(-1)


@walker
def hex_digit(byte: Int) -> Int:
    """Return the value of a hexadecimal digit, -1 for any other byte."""
    if 0x30 <= byte <= 0x39:
        return np.int64(byte) - 0x30
    lower = np.int64(byte) | 0x20
    if 0x61 <= lower <= 0x66:
        return lower - 0x57
    return np.int64(-1)


@walker
def _skip_digits(data: Bytes, at: Int, end: Int) -> Int:
    while at < end and 0x30 <= data[at] <= 0x39:
        at += 1
    return at


@walker
def _skip_number(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Return the kind of a number and the offset after it; kind 0 if it is broken."""
    kind = np.int64(INTEGER)
    if data[at] == 0x2D:
        at += 1
    after = _skip_digits(data, at, end)
    if after == at or (data[at] == 0x30 and after > at + 1):
        return np.int64(ABSENT), at
    at = after
    if at < end and data[at] == 0x2E:
        kind = np.int64(NUMBER)
        after = _skip_digits(data, at + 1, end)
        if after == at + 1:
            return np.int64(ABSENT), at
        at = after
    if at < end and (data[at] == 0x65 or data[at] == 0x45):
        kind = np.int64(NUMBER)
        at += 1
        if at < end and (data[at] == 0x2B or data[at] == 0x2D):
            at += 1
        after = _skip_digits(data, at, end)
        if after == at:
            return np.int64(ABSENT), at
        at = after
    return kind, at


@walker
def _is_word(data: Bytes, at: Int, end: Int, a: Int, b: Int, c: Int, d: Int) -> bool:
    return end - at >= 4 and data[at] == a and data[at + 1] == b and data[at + 2] == c and data[at + 3] == d


@walker
def _skip_scalar(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Return the kind of a scalar value and the offset after it; kind 0 if it is broken."""
    byte = data[at]
    if byte == 0x22:
        after = skip_string(data, at, end)
        if after < 0:
            return np.int64(ABSENT), at
        return np.int64(STRING), after
    if _is_word(data, at, end, 0x6E, 0x75, 0x6C, 0x6C):
        return np.int64(NULL), at + 4
    if _is_word(data, at, end, 0x74, 0x72, 0x75, 0x65):
        return np.int64(TRUE), at + 4
    if byte == 0x66 and _is_word(data, at + 1, end, 0x61, 0x6C, 0x73, 0x65):
        return np.int64(FALSE), at + 5
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        return _skip_number(data, at, end)
    return np.int64(ABSENT), at


@walker
def skip_name(data: Bytes, at: Int, end: Int) -> Int:
    """Return the offset after a member's name and colon, -1 if it is broken."""
    at = skip_string(data, skip_blank(data, at, end), end)
    if at < 0:
        return at
    at = skip_blank(data, at, end)
    if at >= end or data[at] != 0x3A:
        return np.int64(-1)
    return at + 1


@walker
def skip_value(data: Bytes, at: Int, end: Int, stack: Bytes) -> tuple[Int, Int]:
    """Return the kind of the value at an offset, which is not blank, and the offset after it.

    Args:
        data: A buffer.
        at: Start of the value.
        end: End of the text.
        stack: Scratch space for open values, one byte per nesting level.

    Returns:
        Kind and offset; kind :data:`ABSENT` if it is broken.
    """
    depth = 0
    outer = np.int64(ABSENT)
    while True:
        at = skip_blank(data, at, end)
        if at >= end:
            return np.int64(ABSENT), at
        byte = data[at]
        complete = True
        if byte in (0x7B, 0x5B):
            kind = np.int64(OBJECT) if byte == 0x7B else np.int64(ARRAY)
            if depth == len(stack):
                return np.int64(ABSENT), at
            at = skip_blank(data, at + 1, end)
            if at < end and data[at] == byte + 2:
                at += 1
            else:
                stack[depth] = byte
                depth += 1
                complete = False
                if byte == 0x7B:
                    at = skip_name(data, at, end)
                    if at < 0:
                        return np.int64(ABSENT), at
        else:
            kind, at = _skip_scalar(data, at, end)
            if kind == ABSENT:
                return kind, at
        if outer == ABSENT:
            outer = kind
        while complete and depth > 0:
            at = skip_blank(data, at, end)
            if at >= end:
                return np.int64(ABSENT), at
            byte = data[at]
            at += 1
            if byte == 0x2C:
                complete = False
                if stack[depth - 1] == 0x7B:
                    at = skip_name(data, at, end)
                    if at < 0:
                        return np.int64(ABSENT), at
            elif byte == stack[depth - 1] + 2:
                depth -= 1
            else:
                return np.int64(ABSENT), at
        if complete:
            return outer, at


@walker
def _read(data: Bytes, starts: Ints, ends: Ints, first: Ints, last: Ints, kinds: Ints, stack: Bytes) -> None:
    for row in range(len(starts)):
        if starts[row] < 0 or ends[row] > len(data):
            continue
        at = skip_blank(data, starts[row], ends[row])
        kind, after = skip_value(data, at, ends[row], stack)
        if kind != ABSENT and skip_blank(data, after, ends[row]) == ends[row]:
            first[row] = at
            last[row] = after
            kinds[row] = kind
