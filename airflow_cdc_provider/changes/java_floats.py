"""Floating-point numbers as Java 19 and later write them: ``toString`` of Double and Float, in Numba.

Databases and converters that run on the JVM write numbers in this form, so byte-equal events and rows require
it. The digits are those of Raffaello Giulietti's Schubfach (``jdk.internal.math.DoubleToDecimal``): the
shortest decimal that reads back, or instead of one digit the closest two (``4.9E-324``). The layout is plain
from 10^-3 up to 10^7 and ``d.dddE-n`` elsewhere, always with a digit after the point. Older JDKs sometimes
write more digits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.changes.kernels import kernel

DOUBLE_CHARACTERS: Final = 26
"""Maximum length of a double: ``-2.2250738585072014E-308`` has 24."""

_K_MIN: Final = -324
_K_MAX: Final = 292


def _powers() -> np.ndarray:
    """Return per k the halves (63 bits) of floor(beta) + 1: 10^-k = beta * 2^r, 2^125 <= beta < 2^126."""
    halves = np.empty((_K_MAX - _K_MIN + 1, 2), np.uint64)
    for k in range(_K_MIN, _K_MAX + 1):
        r = ((-k * 913_124_641_741) >> 38) - 125
        numerator, denominator = (10**-k, 1) if k <= 0 else (1, 10**k)
        beta = (numerator << -r) // denominator if r <= 0 else numerator // (denominator << r)
        halves[k - _K_MIN] = (beta + 1) >> 63, (beta + 1) & ((1 << 63) - 1)
    return halves


_G: Final = _powers()
_MASK_63: Final = np.uint64((1 << 63) - 1)
_MASK_32: Final = np.uint64((1 << 32) - 1)
_U0, _U1, _U2, _U10, _U63 = (np.uint64(n) for n in (0, 1, 2, 10, 63))


@kernel
def _high(a: np.uint64, b: np.uint64) -> np.uint64:
    """Upper 64 bits of a product."""
    s = np.uint64(32)
    a0, a1, b0, b1 = a & _MASK_32, a >> s, b & _MASK_32, b >> s
    low = a0 * b0
    middle = a1 * b0 + (low >> s)
    cross = a0 * b1 + (middle & _MASK_32)
    return a1 * b1 + (middle >> s) + (cross >> s)


@kernel
def _round_to_odd(g1: np.uint64, g0: np.uint64, cp: np.uint64) -> np.uint64:
    x1 = _high(g0, cp)
    y0 = g1 * cp
    y1 = _high(g1, cp)
    z = (y0 >> _U1) + x1
    w = y1 + (z >> _U63)
    return w | (((z & _MASK_63) + _MASK_63) >> _U63)


@kernel
def _round_to_odd_float(g: np.uint64, cp: np.uint64) -> np.uint64:
    x1 = _high(g, cp)
    return (x1 >> np.uint64(31)) | (((x1 & _MASK_32) + _MASK_32) >> np.uint64(32))


@kernel
def _shortest(q: int, c: np.uint64, is_float: bool) -> tuple[np.uint64, int]:
    """Return the decimal f * 10^k that represents c * 2^q."""
    out = c & _U1
    cb = c << _U2
    cbr = cb + _U2
    c_min = np.uint64(1 << 23) if is_float else np.uint64(1 << 52)
    q_min = -149 if is_float else -1074
    if c != c_min or q == q_min:
        cbl = cb - _U2
        k = (q * 661_971_961_083) >> 41
    else:
        cbl = cb - _U1
        k = (q * 661_971_961_083 - 274_743_187_321) >> 41
    g1 = _G[k - _K_MIN, 0]
    if is_float:
        h = np.uint64(q + ((-k * 913_124_641_741) >> 38) + 33)
        g = g1 + _U1
        vb = _round_to_odd_float(g, cb << h)
        vbl = _round_to_odd_float(g, cbl << h)
        vbr = _round_to_odd_float(g, cbr << h)
    else:
        h = np.uint64(q + ((-k * 913_124_641_741) >> 38) + 2)
        g0 = _G[k - _K_MIN, 1]
        vb = _round_to_odd(g1, g0, cb << h)
        vbl = _round_to_odd(g1, g0, cbl << h)
        vbr = _round_to_odd(g1, g0, cbr << h)
    s = vb >> _U2
    if s >= np.uint64(100):
        sp = (s // _U10) * _U10
        tp = sp + _U10
        lower_in = vbl + out <= sp << _U2
        upper_in = (tp << _U2) + out <= vbr
        if lower_in != upper_in:
            return (sp if lower_in else tp), k
    t = s + _U1
    lower_in = vbl + out <= s << _U2
    upper_in = (t << _U2) + out <= vbr
    if lower_in != upper_in:
        return (s if lower_in else t), k
    middle = (s + t) << _U1
    if vb < middle or (vb == middle and (s & _U1) == _U0):
        return s, k
    return t, k


@kernel
def _decimal(magnitude: np.uint64, is_float: bool) -> tuple[np.uint64, int]:
    """Return f and k of a finite positive number given by its bits without the sign."""
    width = np.uint64(23) if is_float else np.uint64(52)
    q_min = -149 if is_float else -1074
    tiny = np.uint64(8) if is_float else np.uint64(3)
    c_min = _U1 << width
    fraction = magnitude & (c_min - _U1)
    exponent = int(magnitude >> width)
    if exponent == 0:
        if fraction < tiny:
            f, k = _shortest(q_min, fraction * _U10, is_float)
            return f, k - 1
        return _shortest(q_min, fraction, is_float)
    c = c_min | fraction
    down = -q_min + 1 - exponent
    if 0 < down <= int(width):
        shift = np.uint64(down)
        whole = c >> shift
        if whole << shift == c:
            return whole, 0
    return _shortest(-down, c, is_float)


@kernel
def write_number(bits: np.uint64, is_float: bool, out: np.ndarray, at: int) -> int:
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
    f, exponent = _decimal(magnitude, is_float)
    digits = np.empty(20, np.uint8)
    count = 0
    while f != _U0:
        digits[count] = np.uint8(f % _U10) + np.uint8(48)
        f //= _U10
        count += 1
    first_zero = 0
    while digits[first_zero] == 48:
        first_zero += 1
    point = count + exponent  # digits before the point
    length = count - first_zero
    for i in range(length // 2 + length % 2):  # most significant first, without trailing zeros
        left, right = digits[count - 1 - i], digits[first_zero + i]
        digits[first_zero + i], digits[count - 1 - i] = left, right
    if 0 < point <= 7:
        for i in range(point):
            out[at] = digits[first_zero + i] if i < length else 48
            at += 1
        out[at] = 46
        at += 1
        if length <= point:
            out[at] = 48
            return at + 1
        for i in range(point, length):
            out[at] = digits[first_zero + i]
            at += 1
        return at
    if -3 < point <= 0:
        out[at], out[at + 1] = 48, 46
        at += 2
        for _ in range(-point):
            out[at] = 48
            at += 1
        for i in range(length):
            out[at] = digits[first_zero + i]
            at += 1
        return at
    out[at], out[at + 1] = digits[first_zero], 46
    at += 2
    if length == 1:
        out[at] = 48
        at += 1
    for i in range(1, length):
        out[at] = digits[first_zero + i]
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
