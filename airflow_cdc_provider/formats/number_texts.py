"""Kernels that parse numbers from MySQL's text to Arrow columns.

A number is either exact or marked as a misfit. Only binary floating-point numbers are rounded, correctly.
Different texts of the same number are equal: ``000042`` (ZEROFILL in a copy) and ``42``, ``.50`` and
``0.50``, `` 12 345.6`` with the blanks of Vitess 8, ``1.5`` and ``1.5E+00``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import column_of, fixed_column, span_column
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, Words, walker

WIDEST_DECIMAL: Final = 38
"""Maximum number of digits of a lake's decimal; MySQL's maximum is 65."""

_BLANK: Final = 32
_POINT: Final = 46
_MINUS: Final = 45
_PLUS: Final = 43
_ZERO: Final = 48
_MASK32: Final = np.uint64(0xFFFF_FFFF)
_U32: Final = np.uint64(32)
_FLOAT_DIGITS: Final = 6
_PLAIN_DIGITS: Final = 15


def read_integers(data: Bytes, starts: Ints, ends: Ints, bits: int) -> tuple[pa.Array, Flags]:
    """Parse integers.

    Args:
        data: A buffer.
        starts: First byte of each number's text, negative for none.
        ends: Byte after each.
        bits: Width of the column: 32 or 64.

    Returns:
        int32 or int64, null where there is no number or a misfit; and a mask of the misfits.
    """
    values = np.zeros(len(starts), np.int64)
    misfits = np.zeros(len(starts), np.bool_)
    _read_integers(data, starts, ends, np.uint64(1 << (bits - 1)), values, misfits)
    valid = (starts >= 0) & ~misfits
    if bits == 32:
        return fixed_column(pa.int32(), values.astype(np.int32), valid), misfits
    return fixed_column(pa.int64(), values, valid), misfits


def read_decimals(
    data: Bytes, starts: Ints, ends: Ints, precision: int, scale: int
) -> tuple[pa.Array, Flags]:
    """Parse decimal numbers of at most 38 digits.

    Returns:
        decimal128, null where there is no number or a misfit; and a mask of the misfits.
    """
    values = np.zeros((len(starts), 2), np.uint64)
    misfits = np.zeros(len(starts), np.bool_)
    _read_decimals(data, starts, ends, precision, scale, values, misfits)
    valid = (starts >= 0) & ~misfits
    return fixed_column(pa.decimal128(precision, scale), values, valid), misfits


def decimal_texts(data: Bytes, starts: Ints, ends: Ints, scale: int) -> tuple[pa.Array, Flags]:
    """Format decimal numbers as MySQL does: no blanks, a digit before the point and ``scale`` after it.

    Returns:
        Strings, null where there is no number or a misfit, such as more fractional digits; and a mask of the
        misfits.
    """
    count = len(starts)
    offsets = np.zeros(count + 1, np.int64)
    misfits = np.zeros(count, np.bool_)
    _measure_decimals(data, starts, ends, scale, offsets, misfits)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_decimals(data, starts, ends, scale, offsets, out)
    texts = column_of(pa.string(), out, offsets, (starts >= 0) & ~misfits)
    return texts, misfits


def read_floats(data: Bytes, starts: Ints, ends: Ints, kind: pa.DataType) -> tuple[pa.Array, Flags]:
    """Parse floating-point numbers, correctly rounded.

    Args:
        data: A buffer.
        starts: First byte of each number's text, negative for none.
        ends: Byte after each.
        kind: float32 or float64.

    Returns:
        Numbers, null where there is no number or a misfit, such as one out of range; and a mask of the
        misfits.
    """
    misfits = np.zeros(len(starts), np.bool_)
    _check_floats(data, starts, ends, misfits)
    raw = span_column(pa.string(), data, np.where(misfits, -1, starts), ends)
    numbers = raw.cast(kind)
    is_infinite = pc.is_inf(numbers).fill_null(False).to_numpy(zero_copy_only=False)
    if is_infinite.any():
        misfits |= is_infinite
        numbers = pc.if_else(pa.array(~is_infinite), numbers, pa.scalar(None, kind))
    return numbers, misfits


def float_texts(numbers: pa.Array) -> pa.Array:
    """Format floating-point numbers as MySQL's SELECT does.

    FLOAT has six digits. Numbers with up to 15 digits before the point or 14 zeros after it have no exponent
    (``my_gcvt`` in MySQL's ``strings/dtoa.cc``).
    """
    single = pa.types.is_float32(numbers.type)
    distinct = pc.dictionary_encode(numbers)
    texts = [_float_text(value, single=single) for value in distinct.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(distinct.indices)


def _float_text(value: float, *, single: bool) -> str:
    shortest = Decimal(f"{value:.{_FLOAT_DIGITS}g}" if single else repr(value)).normalize()
    sign, digits, exponent = shortest.as_tuple()
    assert isinstance(exponent, int)
    if not any(digits):
        return "-0" if sign else "0"
    written = "".join(map(str, digits))
    point = len(written) + exponent
    if point > -_PLAIN_DIGITS and (point <= _PLAIN_DIGITS or len(written) > point):
        return format(shortest, "f")
    mantissa = written[0] + ("." + written[1:] if len(written) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{point - 1}"


@walker
def _read_integers(data: Bytes, starts: Ints, ends: Ints, limit: Int, values: Ints, misfits: Flags) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        at = starts[row]
        end = ends[row]
        while at < end and data[at] == _BLANK:
            at += 1
        negative = at < end and data[at] == _MINUS
        if negative:
            at += 1
        valid_text = at < end
        size = np.uint64(0)
        while at < end:
            digit = np.uint64(data[at]) - np.uint64(_ZERO)
            if digit > np.uint64(9) or size > np.uint64(922337203685477580):
                valid_text = False
                break
            size = size * np.uint64(10) + digit
            at += 1
        if not valid_text or size > limit or (size == limit and not negative):
            misfits[row] = True
        elif negative:
            values[row] = np.int64(np.uint64(0) - size)
        else:
            values[row] = np.int64(size)


@walker
def _parts(data: Bytes, start: Int, end: Int, scale: Int) -> tuple[Int, Int, Int, Int]:
    """Scan a decimal's text.

    Returns:
        Whether it is a decimal with at most ``scale`` fractional digits (not counting further zeros), whether
        it is negative, the number of significant digits before the point, and of digits after it.
    """
    at = start
    integer_digits = 0
    fraction_digits = 0
    seen = False
    negative = False
    signed = False
    pointed = False
    nonzero = False
    while at < end:
        byte = data[at]
        at += 1
        if byte == _BLANK:
            continue
        if byte == _MINUS and not (signed or seen or pointed):
            negative = True
            signed = True
        elif byte == _POINT and not pointed:
            pointed = True
        elif _ZERO <= byte <= _ZERO + 9:
            seen = True
            if byte != _ZERO:
                nonzero = True
            if not pointed:
                if integer_digits or byte != _ZERO:
                    integer_digits += 1
            elif fraction_digits < scale:
                fraction_digits += 1
            elif byte != _ZERO:
                return False, False, 0, 0
        else:
            return False, False, 0, 0
    return seen, negative and nonzero, integer_digits, fraction_digits


@walker
def _read_decimals(
    data: Bytes, starts: Ints, ends: Ints, precision: Int, scale: Int, values: Words, misfits: Flags
) -> None:
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        valid_text, negative, integer_digits, fraction_digits = _parts(data, starts[row], ends[row], scale)
        if not valid_text or integer_digits + scale > precision:
            misfits[row] = True
            continue
        high = np.uint64(0)
        low = np.uint64(0)
        pointed = False
        left = fraction_digits
        for at in range(starts[row], ends[row]):
            byte = data[at]
            if byte == _POINT:
                pointed = True
            elif _ZERO <= byte <= _ZERO + 9:
                if pointed:
                    if left == 0:
                        break
                    left -= 1
                high, low = _times_ten(high, low, np.uint64(byte) - np.uint64(_ZERO))
        for _ in range(scale - fraction_digits):
            high, low = _times_ten(high, low, np.uint64(0))
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(low == 0)
        values[row, 0] = low
        values[row, 1] = high


@walker
def _times_ten(high: Int, low: Int, digit: Int) -> tuple[Int, Int]:
    ten = np.uint64(10)
    part = (low & _MASK32) * ten + digit
    upper = (low >> _U32) * ten + (part >> _U32)
    return high * ten + (upper >> _U32), (upper << _U32) | (part & _MASK32)


@walker
def _measure_decimals(
    data: Bytes, starts: Ints, ends: Ints, scale: Int, offsets: Ints, misfits: Flags
) -> None:
    total = np.int64(0)
    for row in range(len(starts)):
        if starts[row] >= 0:
            valid_text, negative, integer_digits, _ = _parts(data, starts[row], ends[row], scale)
            if valid_text:
                total += (1 if negative else 0) + max(integer_digits, 1) + (scale + 1 if scale else 0)
            else:
                misfits[row] = True
        offsets[row + 1] = total


@walker
def _write_decimals(data: Bytes, starts: Ints, ends: Ints, scale: Int, offsets: Ints, out: Bytes) -> None:
    for row in range(len(starts)):
        at = offsets[row]
        if at == offsets[row + 1]:
            continue
        _, negative, integer_digits, fraction_digits = _parts(data, starts[row], ends[row], scale)
        if negative:
            out[at] = _MINUS
            at += 1
        if integer_digits == 0:
            out[at] = _ZERO
            at += 1
        pointed = False
        started = False
        left = fraction_digits
        for index in range(starts[row], ends[row]):
            byte = data[index]
            if byte == _POINT:
                pointed = True
                if scale:
                    out[at] = _POINT
                    at += 1
            elif _ZERO <= byte <= _ZERO + 9:
                if pointed:
                    if left == 0:
                        break
                    left -= 1
                elif not started and byte == _ZERO:
                    continue
                started = True
                out[at] = byte
                at += 1
        if scale and not pointed:
            out[at] = _POINT
            at += 1
        for _ in range(scale - fraction_digits):
            out[at] = _ZERO
            at += 1


@walker
def _check_floats(data: Bytes, starts: Ints, ends: Ints, misfits: Flags) -> None:
    """Mark texts other than ``[-]digits[.digits][e[+-]digits]`` with a digit before the exponent."""
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        at = starts[row]
        end = ends[row]
        if at < end and data[at] == _MINUS:
            at += 1
        digits = 0
        while at < end and _ZERO <= data[at] <= _ZERO + 9:
            at += 1
            digits += 1
        if at < end and data[at] == _POINT:
            at += 1
            while at < end and _ZERO <= data[at] <= _ZERO + 9:
                at += 1
                digits += 1
        valid_text = digits > 0
        if at < end and (data[at] == 69 or data[at] == 101):
            at += 1
            if at < end and (data[at] == _MINUS or data[at] == _PLUS):
                at += 1
            valid_text = valid_text and at < end
            while at < end and _ZERO <= data[at] <= _ZERO + 9:
                at += 1
        misfits[row] = not valid_text or at != end
