"""Writes numbers and bytes in the format of canonical Extended JSON."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from airflow_cdc_provider.formats.kernels import kernel
from airflow_cdc_provider.formats.shortest_decimal import shortest_decimal
from airflow_cdc_provider.sources.mongodb.numbers import (
    FINITE,
    INFINITE,
    INFINITY_BITS,
    SIGN_BIT,
    decimal_parts,
    divide_128,
)

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_NAN: Final = np.frombuffer(b"NaN", np.uint8)
_INFINITY: Final = np.frombuffer(b"Infinity", np.uint8)


@kernel
def put(text: Any, out: Any, used: int) -> Any:
    """Write bytes unchanged; return the bytes used."""
    for i in range(len(text)):
        out[used + i] = text[i]
    return used + len(text)


@kernel
def put_hex(data: Any, start: int, end: int, out: Any, used: int) -> Any:
    """Write bytes as lower-case hex digits; return the bytes used."""
    for i in range(start, end):
        out[used] = _HEX[data[i] >> 4]
        out[used + 1] = _HEX[data[i] & 15]
        used += 2
    return used


@kernel
def put_unsigned(value: Any, out: Any, used: int) -> Any:
    """Write a uint64 in decimal; return the bytes used."""
    length = 1
    rest = value // np.uint64(10)
    while rest > 0:
        rest //= np.uint64(10)
        length += 1
    for i in range(length):
        out[used + length - 1 - i] = 0x30 + value % np.uint64(10)
        value //= np.uint64(10)
    return used + length


@kernel
def put_integer(value: Any, out: Any, used: int) -> Any:
    """Write an int64 in decimal; return the bytes used."""
    size = np.uint64(value)
    if value < 0:
        out[used] = 0x2D
        used += 1
        size = ~size + np.uint64(1)
    return put_unsigned(size, out, used)


@kernel
def _put_zeros(count: int, out: Any, used: int) -> Any:
    for i in range(count):
        out[used + i] = 0x30
    return used + count


@kernel
def put_double(bits: Any, out: Any, used: int) -> Any:
    """Write a double in the format of Python's ``repr``, with Extended JSON's ``NaN`` and ``Infinity``."""
    size = bits & ~SIGN_BIT
    if size > INFINITY_BITS:
        return put(_NAN, out, used)
    if bits != size:
        out[used] = 0x2D
        used += 1
    if size == INFINITY_BITS:
        return put(_INFINITY, out, used)
    digits, exponent = shortest_decimal(size, False, False)
    end = put_unsigned(digits, out, used)
    length = end - used
    point = length + exponent
    if digits == 0:
        point = 1
    if point > 16 or point < -3:
        end = _insert_point(out, used, end, 1) if length > 1 else end
        out[end] = 0x65
        power = point - 1
        out[end + 1] = 0x2D if power < 0 else 0x2B
        power = -power if power < 0 else power
        end = _put_zeros(1, out, end + 2) if power < 10 else end + 2
        return put_unsigned(np.uint64(power), out, end)
    if point <= 0:
        return _lead_with_zeros(out, used, end, -point)
    if point >= length:
        end = _put_zeros(point - length, out, end)
        out[end] = 0x2E
        out[end + 1] = 0x30
        return end + 2
    return _insert_point(out, used, end, point)


@kernel
def _insert_point(out: Any, start: int, end: int, index: int) -> Any:
    for i in range(end, start + index, -1):
        out[i] = out[i - 1]
    out[start + index] = 0x2E
    return end + 1


@kernel
def _lead_with_zeros(out: Any, start: int, end: int, zeros: int) -> Any:
    shift = zeros + 2
    for i in range(end - 1, start - 1, -1):
        out[i + shift] = out[i]
    out[start] = 0x30
    out[start + 1] = 0x2E
    _put_zeros(zeros, out, start + 2)
    return end + shift


@kernel
def put_decimal(high: Any, low: Any, out: Any, used: int) -> Any:
    """Write a decimal128 by the rules of its specification; return the bytes used."""
    kind, negative, high, low, exponent = decimal_parts(high, low)
    if kind not in (FINITE, INFINITE):
        return put(_NAN, out, used)
    if negative:
        out[used] = 0x2D
        used += 1
    if kind == INFINITE:
        return put(_INFINITY, out, used)
    billion = np.uint64(1_000_000_000)
    parts = np.empty(5, np.uint64)
    count = 0
    while True:
        high, low, parts[count] = divide_128(high, low, billion)
        count += 1
        if high == 0 and low == 0:
            break
    end = put_unsigned(parts[count - 1], out, used)
    for i in range(count - 2, -1, -1):
        part = parts[i]
        for j in range(9):
            out[end + 8 - j] = 0x30 + part % np.uint64(10)
            part //= np.uint64(10)
        end += 9
    length = end - used
    adjusted = exponent + length - 1
    if exponent > 0 or adjusted < -6:
        end = _insert_point(out, used, end, 1) if length > 1 else end
        out[end] = 0x45
        out[end + 1] = 0x2D if adjusted < 0 else 0x2B
        return put_unsigned(np.uint64(-adjusted if adjusted < 0 else adjusted), out, end + 2)
    if exponent == 0:
        return end
    if length + exponent <= 0:
        return _lead_with_zeros(out, used, end, -(length + exponent))
    return _insert_point(out, used, end, length + exponent)
