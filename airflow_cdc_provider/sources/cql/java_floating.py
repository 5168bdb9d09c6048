"""Format floating-point numbers like Java 8 to 18, as in Cassandra's JSON.

``Double.toString`` of these versions stops at the first digit after which the rest is less than half the
distance to the next number, but doesn't always return the shortest text: it halves that distance for powers
of two on both sides, requires two digits in exponential notation, and lets sums overflow in 64 bits. (Java 19
returns the shortest.) Verified against Java 17 with several hundred thousand numbers.
"""

from __future__ import annotations

import math

_BITS = {4: (23, 127), 8: (52, 1023)}
_LONGEST_POWER = 27
"""5**27 is the greatest power of five in 63 bits."""


def java_floating(value: bytes) -> str | None:
    """Format a float (4 bytes) or a double (8 bytes, big-endian); None for NaN and the infinities."""
    fraction_bits, bias = _BITS[len(value)]
    bits = int.from_bytes(value, "big")
    sign = "-" if bits >> (8 * len(value) - 1) else ""
    exponent = (bits >> fraction_bits) & (2 * bias + 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    if exponent == 2 * bias + 1:
        return None
    if exponent:
        fraction |= 1 << fraction_bits
    elif not fraction:
        return sign + "0.0"
    digits, power = _digits(fraction, max(exponent, 1) - bias - fraction_bits)
    return sign + _format(digits, power)


def _digits(fraction: int, exponent: int) -> tuple[str, int]:
    """Return the digits of ``fraction * 2**exponent`` and the power of ten of the first."""
    precision = fraction.bit_length()
    top = exponent + precision - 1
    zeros = (fraction & -fraction).bit_length() - 1
    odd = fraction >> zeros
    odd_bits = precision - zeros
    fractional_bits = max(0, -(exponent + zeros))
    if fractional_bits == 0 and top <= 62:
        return _whole_digits(odd << (exponent + zeros), top - precision - 1 if top > precision else 0)

    power = _estimated_power(odd, top)
    tens, fives = max(0, power), max(0, -power)
    # value = b / s and half the distance to the next number = m / s; common powers of two are cancelled,
    # because the sizes determine where sums overflow.
    b_twos = fives + fractional_bits + exponent + zeros
    s_twos = tens + fractional_bits
    m_twos = fives + fractional_bits + top - precision - (odd == 1)
    spare = min(b_twos, s_twos, m_twos)
    b_twos, s_twos, m_twos = b_twos - spare, s_twos - spare, m_twos - spare
    b = (odd * 5**fives) << b_twos
    s = 5**tens << s_twos
    m = 5**fives << m_twos
    b_size = odd_bits + b_twos + _size_of_five(fives)
    ten_s_size = s_twos + 1 + _size_of_five(tens + 1)
    size = 32 if b_size < 32 and ten_s_size < 32 else 64 if b_size < 64 and ten_s_size < 64 else 0
    return _generate(b, s, m, power, size)


def _generate(b: int, s: int, m: int, power: int, size: int) -> tuple[str, int]:
    """Generate digits until the rest is within ``m``; sums overflow in ``size`` bits, unless it is 0."""
    digits = ""
    first = True
    while True:
        digit, rest = divmod(b, s)
        b, m = 10 * rest, _wrap(10 * m, size)
        low = b < m
        high = _wrap(b + m, size) > 10 * s if size else b + m >= 10 * s
        if m <= 0:
            low = high = True
        if first and digit == 0 and not high:
            power -= 1
        else:
            digits += str(digit)
        if first and not -3 <= power < 8:
            low = high = False
        first = False
        if low or high:
            break
    excess = _wrap(2 * b - 10 * s, size)
    if high and (not low or excess > 0 or (excess == 0 and digit % 2)):
        rounded = str(int(digits) + 1).zfill(len(digits))
        power += len(rounded) - len(digits)
        digits = rounded
    return digits, power


def _wrap(number: int, size: int) -> int:
    if not size:
        return number
    half = 1 << (size - 1)
    return (number + half) % (2 * half) - half


def _whole_digits(number: int, excess_bits: int) -> tuple[str, int]:
    """Format an integer of 63 bits, rounded to the digits that its precision justifies."""
    dropped = int(excess_bits * math.log10(2)) if excess_bits > 1 else 0
    text = str(number)
    if dropped:
        unit = 10**dropped
        text = str((number + unit // 2) // unit)
    return text, len(text) + dropped - 1


def _estimated_power(odd: int, top: int) -> int:
    """Estimate the power of ten of the first digit; it may be one too high."""
    mantissa = odd / (1 << (odd.bit_length() - 1))
    return math.floor((mantissa - 1.5) * 0.289529654 + 0.176091259 + top * 0.301029995663981)


def _size_of_five(power: int) -> int:
    """Estimate the bits of a power of five."""
    return (5**power).bit_length() if power and power <= _LONGEST_POWER else 3 * power


def _format(digits: str, power: int) -> str:
    digits = digits.rstrip("0") or "0"
    if power < -3 or power >= 7:
        return f"{digits[0]}.{digits[1:] or '0'}E{power}"
    if power < 0:
        return "0." + "0" * (-power - 1) + digits
    digits = digits.ljust(power + 2, "0")
    return f"{digits[: power + 1]}.{digits[power + 1 :]}"
