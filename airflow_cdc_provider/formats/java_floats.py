"""Floating-point numbers as Java 19 and later write them: ``toString`` of Double and Float, in Numba.

Databases and converters that run on the JVM write numbers in this form, so byte-equal events and rows require
it. The digits are the shortest decimal that reads back (:mod:`.shortest_decimal`), or instead of one
digit the closest two (``4.9E-324``). The layout is plain
from 10^-3 up to 10^7 and ``d.dddE-n`` elsewhere, always with a digit after the point. Older JDKs sometimes
write more digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, kernel
from airflow_cdc_provider.formats.shortest_decimal import shortest_decimal

_U0, _U1, _U10, _U63 = (np.uint64(n) for n in (0, 1, 10, 63))

DOUBLE_CHARACTERS: Final = 26
"""Maximum length of a double: ``-2.2250738585072014E-308`` has 24."""


@kernel
def write_number(bits: Int, is_float: bool, out: Bytes, at: Int) -> Int:
    """Write one finite number.

    Args:
        bits: Its IEEE 754 bits; 32 of them for a float.
        is_float: Whether it is a 32-bit float.
        out: Output buffer with at least :data:`DOUBLE_CHARACTERS` free bytes.
        at: Offset to write at.

    Returns:
        The offset after the text.
    """
    sign = np.uint64(31) if is_float else _U63
    if bits >> sign != _U0:
        out[at] = 45
        at += 1
    magnitude = bits & ((_U1 << sign) - _U1)
    if magnitude == _U0:
        out[at], out[at + 1], out[at + 2] = 48, 46, 48
        return at + 3
    f, exponent = shortest_decimal(magnitude, is_float, True)
    digits = np.empty(20, np.uint8)
    length = 0
    while f != _U0:
        digits[length] = np.uint8(f % _U10) + np.uint8(48)
        f //= _U10
        length += 1
    for i in range(length // 2):  # most significant first
        digits[i], digits[length - 1 - i] = digits[length - 1 - i], digits[i]
    point = length + exponent  # digits before the point
    if 0 < point <= 7:
        for i in range(point):
            out[at] = digits[i] if i < length else 48
            at += 1
        out[at] = 46
        at += 1
        if length <= point:
            out[at] = 48
            return at + 1
        for i in range(point, length):
            out[at] = digits[i]
            at += 1
        return at
    if -3 < point <= 0:
        out[at], out[at + 1] = 48, 46
        at += 2
        for _ in range(-point):
            out[at] = 48
            at += 1
        for i in range(length):
            out[at] = digits[i]
            at += 1
        return at
    out[at], out[at + 1] = digits[0], 46
    at += 2
    if length == 1:
        out[at] = 48
        at += 1
    for i in range(1, length):
        out[at] = digits[i]
        at += 1
    out[at] = 69
    at += 1
    power = point - 1
    if power < 0:
        out[at] = 45
        at += 1
        power = -power
    scale = 100 if power >= 100 else 10 if power >= 10 else 1
    while scale:
        out[at] = 48 + power // scale % 10
        at += 1
        scale //= 10
    return at
