"""The shortest decimal that reads back to a floating-point number: digits and a power of ten.

The algorithm is Raffaello Giulietti's Schubfach ("The Schubfach way to render doubles", 2020), as in Java's
``jdk.internal.math.DoubleToDecimal``; its table of powers of ten is computed with Python's integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Int, Words, walker

_K_MIN: Final = -324
_K_MAX: Final = 292


def _powers() -> Words:
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


@walker
def shortest_decimal(magnitude: Int, is_float: bool, two_digits: bool) -> tuple[Int, Int]:
    """Return the shortest decimal that reads back to a finite number.

    Args:
        magnitude: Its IEEE 754 bits without the sign.
        is_float: Whether it is a 32-bit float.
        two_digits: Whether to return the closest two digits where one is enough, as Java does.

    Returns:
        ``(digits, exponent)`` with value digits * 10^exponent; the digits have no trailing zeros, and zero is
        (0, 0).
    """
    if magnitude == _U0:
        return _U0, np.int64(0)
    digits, exponent = _decimal(magnitude, is_float, two_digits)
    while digits % _U10 == _U0:
        digits //= _U10
        exponent += 1
    return digits, np.int64(exponent)


@walker
def multiply_high(a: Int, b: Int) -> Int:
    """Return the upper 64 bits of the product of two unsigned numbers."""
    s = np.uint64(32)
    a0, a1, b0, b1 = a & _MASK_32, a >> s, b & _MASK_32, b >> s
    low = a0 * b0
    middle = a1 * b0 + (low >> s)
    cross = a0 * b1 + (middle & _MASK_32)
    return a1 * b1 + (middle >> s) + (cross >> s)


@walker
def _round_to_odd(g1: Int, g0: Int, cp: Int) -> Int:
    x1 = multiply_high(g0, cp)
    y0 = g1 * cp
    y1 = multiply_high(g1, cp)
    z = (y0 >> _U1) + x1
    w = y1 + (z >> _U63)
    return w | (((z & _MASK_63) + _MASK_63) >> _U63)


@walker
def _round_to_odd_float(g: Int, cp: Int) -> Int:
    x1 = multiply_high(g, cp)
    return (x1 >> np.uint64(31)) | (((x1 & _MASK_32) + _MASK_32) >> np.uint64(32))


@walker
def _shortest(q: Int, c: Int, is_float: bool, two_digits: bool) -> tuple[Int, Int]:
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
    if s >= np.uint64(100 if two_digits else 10):
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


@walker
def _decimal(magnitude: Int, is_float: bool, two_digits: bool) -> tuple[Int, Int]:
    width = np.uint64(23) if is_float else np.uint64(52)
    q_min = -149 if is_float else -1074
    tiny = np.uint64(8) if is_float else np.uint64(3)
    c_min = _U1 << width
    fraction = magnitude & (c_min - _U1)
    exponent = int(magnitude >> width)
    if exponent == 0:
        if two_digits and fraction < tiny:
            f, k = _shortest(q_min, fraction * _U10, is_float, two_digits)
            return f, k - 1
        return _shortest(q_min, fraction, is_float, two_digits)
    c = c_min | fraction
    down = -q_min + 1 - exponent
    if 0 < down <= int(width):
        shift = np.uint64(down)
        whole = c >> shift
        if whole << shift == c:
            return whole, 0
    return _shortest(-down, c, is_float, two_digits)
