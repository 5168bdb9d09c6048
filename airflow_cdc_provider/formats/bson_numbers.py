"""Converts BSON numbers to exact values: kernels for doubles and decimal128.

A decimal128 is a sign, a 113-bit coefficient (two 64-bit halves) and an exponent. Layout (IEEE 754-2008,
binary integer significand), high half::

    bit 63 sign | 62..49 exponent + 6176 | 48..0 coefficient    unless bits 62 and 61 are both set
    bit 63 sign | 62..58 = 11110 infinity, 11111 NaN
    bit 63 sign | 62, 61 = 11 | 60..47 exponent + 6176          a coefficient too large, which counts as 0

A coefficient above 10^34 - 1 counts as 0 too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.kernels import Int, walker
from airflow_cdc_provider.formats.shortest_decimal import multiply_high

_MASK32: Final = np.uint64(0xFFFF_FFFF)
_U32: Final = np.uint64(32)
_HIDDEN_BIT: Final = np.uint64(1 << 52)
_FRACTION: Final = np.uint64((1 << 52) - 1)

NAN_BITS: Final = np.uint64(0x7FF8_0000_0000_0000)
INFINITY_BITS: Final = np.uint64(0x7FF0_0000_0000_0000)
SIGN_BIT: Final = np.uint64(1 << 63)

FINITE: Final = 0
INFINITE: Final = 1
NOT_A_NUMBER: Final = 2


@walker
def decimal_parts(high: Int, low: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Split a decimal128 into its parts.

    Returns:
        Class (FINITE, INFINITE, NOT_A_NUMBER), negative or not, coefficient's high and low half, exponent.
    """
    negative = (high >> np.uint64(63)) == 1
    combination = (high >> np.uint64(58)) & np.uint64(0x1F)
    nothing = np.uint64(0)
    if combination == 0x1F:
        return NOT_A_NUMBER, negative, nothing, nothing, np.int64(0)
    if combination == 0x1E:
        return INFINITE, negative, nothing, nothing, np.int64(0)
    if (combination >> np.uint64(3)) == 3:
        exponent = np.int64((high >> np.uint64(47)) & np.uint64(0x3FFF)) - 6176
        return FINITE, negative, nothing, nothing, exponent
    exponent = np.int64((high >> np.uint64(49)) & np.uint64(0x3FFF)) - 6176
    upper = high & np.uint64((1 << 49) - 1)
    largest_high = np.uint64(0x1ED09BEAD87C0)
    largest_low = np.uint64(0x378D8E63FFFFFFFF)
    if upper > largest_high or (upper == largest_high and low > largest_low):
        return FINITE, negative, nothing, nothing, exponent
    return FINITE, negative, upper, low, exponent


@walker
def divide_128(high: Int, low: Int, divisor: Int) -> tuple[Int, Int, Int]:
    """Divide a 128-bit number by one below 2^32: quotient's high and low half, remainder."""
    quotient_high = high // divisor
    rest = high % divisor
    part = (rest << _U32) | (low >> _U32)
    upper = part // divisor
    rest = part % divisor
    part = (rest << _U32) | (low & _MASK32)
    return quotient_high, (upper << _U32) | (part // divisor), part % divisor


@walker
def reduced_decimal(high: Int, low: Int, exponent: Int) -> tuple[Int, Int, Int]:
    """Remove the trailing decimal zeros of a coefficient other than 0."""
    ten = np.uint64(10)
    while True:
        next_high, next_low, rest = divide_128(high, low, ten)
        if rest != 0:
            return high, low, np.int64(exponent)
        high = next_high
        low = next_low
        exponent += 1


@walker
def decimal_as_double(high: Int, low: Int, exponent: Int) -> tuple[Int, Int]:
    """Return the double that equals coefficient * 10^exponent exactly.

    Args:
        high: High half of a coefficient other than 0.
        low: Low half.
        exponent: Power of ten.

    Returns:
        Whether there is one, and its bits without sign.
    """
    high, low, exponent = reduced_decimal(high, low, exponent)
    five = np.uint64(5)
    power_of_two = exponent
    while exponent < 0:  # c / 10^n is a double only if 5^n divides c, so 48 rounds at most
        high, low, rest = divide_128(high, low, five)
        if rest != 0:
            return False, np.uint64(0)
        exponent += 1
    while low & np.uint64(1) == 0:  # the coefficient isn't 0, so this ends
        low = (low >> np.uint64(1)) | (high << np.uint64(63))
        high >>= np.uint64(1)
        power_of_two += 1
    while exponent > 0:
        if high != 0 or low >= (_HIDDEN_BIT << np.uint64(1)):
            return False, np.uint64(0)
        low *= five
        exponent -= 1
    if high != 0 or low >= (_HIDDEN_BIT << np.uint64(1)):
        return False, np.uint64(0)
    while low < _HIDDEN_BIT:
        low <<= np.uint64(1)
        power_of_two -= 1
    biased = power_of_two + 1075
    if biased < 1 or biased > 2046:
        return False, np.uint64(0)
    return True, (np.uint64(biased) << np.uint64(52)) | (low & _FRACTION)


@walker
def integer_as_double(value: Int) -> tuple[Int, Int]:
    """Return the double that equals an int64 exactly: whether there is one, and its bits."""
    if value == 0:
        return True, np.uint64(0)
    sign = SIGN_BIT if value < 0 else np.uint64(0)
    size = ~np.uint64(value) + np.uint64(1) if value < 0 else np.uint64(value)
    power_of_two = np.int64(0)
    while size & np.uint64(1) == 0:
        size >>= np.uint64(1)
        power_of_two += 1
    if size >= (_HIDDEN_BIT << np.uint64(1)):
        return False, np.uint64(0)
    while size < _HIDDEN_BIT:
        size <<= np.uint64(1)
        power_of_two -= 1
    return True, sign | (np.uint64(power_of_two + 1075) << np.uint64(52)) | (size & _FRACTION)


@walker
def double_as_integer(bits: Int) -> tuple[Int, Int]:
    """Return the int64 that equals a double exactly: whether there is one, and its value."""
    fraction = bits & _FRACTION
    biased = np.int64((bits >> np.uint64(52)) & np.uint64(0x7FF))
    negative = (bits >> np.uint64(63)) == 1
    if biased == 0:
        return fraction == 0, np.int64(0)
    if biased == 0x7FF:
        return False, np.int64(0)
    c = _HIDDEN_BIT | fraction
    q = biased - 1075
    if q > 11 or q < -52:
        return False, np.int64(0)
    if q > 10:  # 2^63 and more: only -2^63 fits
        return negative and c == _HIDDEN_BIT, np.int64(-(2**63))
    if q < 0:
        if c & ((np.uint64(1) << np.uint64(-q)) - np.uint64(1)) != 0:
            return False, np.int64(0)
        size = np.int64(c >> np.uint64(-q))
    else:
        size = np.int64(c << np.uint64(q))
    return True, -size if negative else size


@walker
def scaled_decimal(high: Int, low: Int, exponent: Int, scale: int) -> tuple[Int, Int, Int]:
    """Convert coefficient * 10^exponent to an integer of units of 10^-scale.

    Returns:
        Whether that is exact and below 10^38, and the number's high and low half.
    """
    nothing = np.uint64(0)
    if high == 0 and low == 0:
        return True, nothing, nothing
    ten = np.uint64(10)
    shift = exponent + scale
    while shift < 0:
        high, low, rest = divide_128(high, low, ten)
        if rest != 0:
            return False, nothing, nothing
        shift += 1
    limit_high = np.uint64(0x4B3B4CA85A86C47A)  # 10^38
    limit_low = np.uint64(0x098A224000000000)
    while shift > 0:
        if high >= np.uint64(1) << np.uint64(60):
            return False, nothing, nothing
        high = high * ten + multiply_high(low, ten)
        low *= ten
        shift -= 1
    if high > limit_high or (high == limit_high and low >= limit_low):
        return False, nothing, nothing
    return True, high, low
