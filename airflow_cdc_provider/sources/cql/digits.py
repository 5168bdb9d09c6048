"""Decimal digits of integers of any length, for varint and decimal.

A varint is a big-endian two's complement number; a decimal is an int32 scale and such a number.
"""

from __future__ import annotations

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker


@walker
def write_digits(data: Bytes, start: Int, end: Int, scratch: Int) -> Int:
    """Write the decimal digits of a number's magnitude, as 0..9, the most significant first.

    Args:
        data: Bytes.
        start: Offset of the number.
        end: End of the number; it has at least one byte.
        scratch: Scratch arrays for numbers of that length; ``digits`` receives the digits.

    Returns:
        The number of digits written; a zero is one digit.
    """
    digits, limbs = scratch.digits, scratch.limbs
    negative = data[start] >= 128
    length = end - start
    if length <= 8:
        # This is also correct for the least 64-bit number, whose magnitude fits in 64 bits unsigned.
        value = np.int64(-1) if negative else np.int64(0)
        for i in range(length):
            value = (value << 8) | np.int64(data[start + i])
        rest = np.uint64(-value) if negative else np.uint64(value)
        count = _reversed_digits(rest, digits, 0, False)
        _reverse(digits, count)
        return count
    limbs_count = (length + 3) // 4
    limbs[:limbs_count] = 0
    carry = np.uint64(1) if negative else np.uint64(0)
    for i in range(length):
        byte = np.uint64(data[end - 1 - i])
        if negative:
            byte = (np.uint64(255) - byte) + carry
            carry = byte >> np.uint64(8)
            byte &= np.uint64(255)
        limbs[i // 4] |= byte << np.uint64(8 * (i % 4))
    top = limbs_count
    while top > 0 and limbs[top - 1] == 0:
        top -= 1
    count = 0
    billion = np.uint64(1_000_000_000)
    while top > 0:
        rest = np.uint64(0)
        for i in range(top - 1, -1, -1):
            part = (rest << np.uint64(32)) | limbs[i]
            limbs[i] = part // billion
            rest = part - limbs[i] * billion
        while top > 0 and limbs[top - 1] == 0:
            top -= 1
        count = _reversed_digits(rest, digits, count, top > 0)
    if count == 0:
        digits[0] = 0
        count = 1
    _reverse(digits, count)
    return count


@walker
def _reversed_digits(value: Int, digits: Bytes, count: Int, padded: Int) -> Int:
    """Append the digits of a number, the least significant first; nine of them if ``padded``."""
    begin = count
    ten = np.uint64(10)
    while value > 0 or count == begin or (padded and count < begin + 9):
        next_value = value // ten
        digits[count] = np.uint8(value - next_value * ten)
        value = next_value
        count += 1
    return count


@walker
def _reverse(digits: Bytes, count: Int) -> None:
    for i in range(count // 2):
        digits[i], digits[count - 1 - i] = digits[count - 1 - i], digits[i]
