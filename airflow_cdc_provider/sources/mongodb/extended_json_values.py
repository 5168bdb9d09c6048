"""Text of single BSON values in Extended JSON.

:mod:`airflow_cdc_provider.sources.mongodb.extended_json` describes the profiles and combines the values.
Kernels write to ``out`` at an offset and return the end of the text; the caller must check the value's bounds
and the capacity of ``out``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from airflow_cdc_provider.formats.base64_text import write_base64
from airflow_cdc_provider.formats.byte_kernels import OFFSET, load_little64, store_little64
from airflow_cdc_provider.formats.java_floats import write_number
from airflow_cdc_provider.formats.kernels import kernel
from airflow_cdc_provider.sources.mongodb.bson import name_end, read_i32, read_u64

KEY: Final = 0
DOCUMENT: Final = 1
UPDATED: Final = 2
CANONICAL: Final = 3


def _text(value: str) -> np.ndarray:
    return np.frombuffer(value.encode(), np.uint8)


_NULL: Final = _text("null")
_TRUE: Final = _text("true")
_FALSE: Final = _text("false")
_NAN: Final = _text("NaN")
_INFINITY: Final = _text("Infinity")
_DOUBLE: Final = _text('{"$numberDouble": "')
_INT: Final = _text('{"$numberInt": "')
_LONG: Final = _text('{"$numberLong": "')
_DECIMAL: Final = _text('{"$numberDecimal": "')
_OID: Final = _text('{"$oid": "')
_DATE: Final = _text('{"$date": ')
_BINARY_1: Final = _text('{"$binary": "')
_BINARY_2: Final = _text('{"$binary": {"base64": "')
_TYPE_1: Final = _text('"$type": "')
_TYPE_2: Final = _text('"subType": "')
_REGEX_1: Final = _text('{"$regex": "')
_REGEX_2: Final = _text('{"$regularExpression": {"pattern": "')
_OPTIONS_1: Final = _text('"$options": "')
_OPTIONS_2: Final = _text('"options": "')
_REF: Final = _text('{"$ref": "')
_POINTER: Final = _text('{"$dbPointer": ')
_ID: Final = _text('"$id": ')
CODE: Final = _text('{"$code": "')
SCOPE: Final = _text('"$scope": ')
_SYMBOL: Final = _text('{"$symbol": "')
_TIMESTAMP: Final = _text('{"$timestamp": {"t": ')
_INCREMENT: Final = _text('"i": ')
_UNDEFINED: Final = _text('{"$undefined": true}')
_MIN_KEY: Final = _text('{"$minKey": 1}')
_MAX_KEY: Final = _text('{"$maxKey": 1}')
_HEX: Final = _text("0123456789abcdef")
_HEX_UPPER: Final = _text("0123456789ABCDEF")

_LAST_ISO_MS: Final = 253_402_300_799_999


_ONES: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_BLANKS: Final = np.uint64(0x2020202020202020)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_POWERS: Final = np.array([10**n for n in range(20)], np.uint64)


@kernel
def put(out: np.ndarray, at: int, text: np.ndarray) -> int:
    """Write bytes unchanged."""
    at &= OFFSET
    for i in range(len(text)):
        out[at + i] = text[i]
    return at + len(text)


@kernel
def write_separator(out: np.ndarray, at: int, spaced: bool) -> int:
    """Write the comma between members."""
    out[at] = 44
    if spaced:
        out[at + 1] = 32
        return at + 2
    return at + 1


@kernel
def _close(out: np.ndarray, at: int) -> int:
    """Write a quote and a brace."""
    out[at], out[at + 1] = 34, 125
    return at + 2


@kernel
def _integer(out: np.ndarray, at: int, value: int) -> int:
    at &= OFFSET
    magnitude = np.uint64(value)
    if value < 0:
        out[at] = 45
        at += 1
        magnitude = ~magnitude + np.uint64(1)
    count = 1
    while count < len(_POWERS) and magnitude >= _POWERS[count]:
        count += 1
    index = at + count
    while True:
        index -= 1
        out[index] = np.uint8(magnitude % np.uint64(10)) + np.uint8(48)
        magnitude //= np.uint64(10)
        if magnitude == np.uint64(0):
            break
    return at + count


@kernel
def _padded(out: np.ndarray, at: int, value: int, width: int) -> int:
    for i in range(width):
        out[at + width - 1 - i] = 48 + value % 10
        value //= 10
    return at + width


@kernel
def _unit(out: np.ndarray, at: int, unit: int) -> int:
    out[at], out[at + 1] = 92, 117
    for i in range(4):
        out[at + 2 + i] = _HEX[(unit >> (12 - 4 * i)) & 15]
    return at + 6


@kernel
def _code_point(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Decode one UTF-8 character; an invalid one is U+FFFD, with the length that Java's decoder consumes."""
    first = int(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return 0xFFFD, 1
    if at + 1 >= end:
        return 0xFFFD, 1
    second = int(data[at + 1])
    if second & 0xC0 != 0x80:
        return 0xFFFD, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | second & 0x3F, 2
    if first < 0xF0:
        if first == 0xE0 and second < 0xA0:
            return 0xFFFD, 1
        if at + 2 >= end or data[at + 2] & 0xC0 != 0x80:
            return 0xFFFD, 2
        point = (first & 0x0F) << 12 | (second & 0x3F) << 6 | int(data[at + 2]) & 0x3F
        return (0xFFFD if 0xD800 <= point < 0xE000 else point), 3
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0xFFFD, 1
    if at + 2 >= end or data[at + 2] & 0xC0 != 0x80:
        return 0xFFFD, 2
    if at + 3 >= end or data[at + 3] & 0xC0 != 0x80:
        return 0xFFFD, 3
    point = (first & 0x07) << 18 | (second & 0x3F) << 12
    return point | (int(data[at + 2]) & 0x3F) << 6 | int(data[at + 3]) & 0x3F, 4


@kernel
def _is_plain(word: np.uint64) -> bool:
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


@kernel
def write_characters(
    data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, escaped: np.ndarray
) -> int:
    """Write the inside of a JSON string."""
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
        point, size = _code_point(data, start, end)
        short = 0
        if point in (34, 92):
            short = point
        elif point == 8:
            short = 98
        elif point == 12:
            short = 102
        elif point == 10:
            short = 110
        elif point == 13:
            short = 114
        elif point == 9:
            short = 116
        if short:
            out[at], out[at + 1] = 92, short
            at += 2
        elif point > 0xFFFF:
            at = _unit(out, at, 0xD800 + ((point - 0x10000) >> 10))
            at = _unit(out, at, 0xDC00 + ((point - 0x10000) & 0x3FF))
        elif escaped[point]:
            at = _unit(out, at, point)
        elif point == 0xFFFD:
            out[at], out[at + 1], out[at + 2] = 0xEF, 0xBF, 0xBD
            at += 3
        else:
            for i in range(size):
                out[at + i] = data[start + i]
            at += size
        start += size
    return at


@kernel
def _options(data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, escaped: np.ndarray) -> int:
    """Write a regular expression's options, sorted by UTF-16 unit as in the Java driver."""
    units = np.empty(end - start, np.int64)
    count = 0
    while start < end:
        point, size = _code_point(data, start, end)
        start += size
        if point > 0xFFFF:
            units[count] = 0xD800 + ((point - 0x10000) >> 10)
            count += 1
            point = 0xDC00 + ((point - 0x10000) & 0x3FF)
        units[count] = point
        count += 1
    text = np.empty(3, np.uint8)
    for unit in np.sort(units[:count]):
        if 0xD800 <= unit < 0xE000:
            at = _unit(out, at, unit)
        elif unit < 0x80:
            text[0] = unit
            at = write_characters(text, 0, 1, out, at, escaped)
        elif unit < 0x800:
            text[0], text[1] = 0xC0 | unit >> 6, 0x80 | unit & 0x3F
            at = write_characters(text, 0, 2, out, at, escaped)
        else:
            text[0], text[1], text[2] = 0xE0 | unit >> 12, 0x80 | (unit >> 6) & 0x3F, 0x80 | unit & 0x3F
            at = write_characters(text, 0, 3, out, at, escaped)
    return at


@kernel
def _hexadecimal(data: np.ndarray, start: int, end: int, out: np.ndarray, at: int) -> int:
    for i in range(start, end):
        out[at], out[at + 1] = _HEX[data[i] >> 4], _HEX[data[i] & 15]
        at += 2
    return at


@kernel
def _date(out: np.ndarray, at: int, ms: int, profile: int) -> int:
    at = put(out, at, _DATE)
    if profile == DOCUMENT:
        at = _integer(out, at, ms)
    elif profile == CANONICAL or ms < 0 or ms > _LAST_ISO_MS:
        at = _close(out, _integer(out, put(out, at, _LONG), ms))
    else:
        days, rest = ms // 86_400_000, ms % 86_400_000
        era_day = days + 719_468  # civil date from days, proleptic Gregorian, years from March
        era = era_day // 146_097
        day_of_era = era_day - era * 146_097
        year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        from_march = (5 * day_of_year + 2) // 153
        month = from_march + 3 if from_march < 10 else from_march - 9
        out[at] = 34
        at = _padded(out, at + 1, year_of_era + era * 400 + (1 if month <= 2 else 0), 4)
        out[at] = 45
        at = _padded(out, at + 1, month, 2)
        out[at] = 45
        at = _padded(out, at + 1, day_of_year - (153 * from_march + 2) // 5 + 1, 2)
        out[at] = 84
        at = _padded(out, at + 1, rest // 3_600_000, 2)
        out[at] = 58
        at = _padded(out, at + 1, rest // 60_000 % 60, 2)
        out[at] = 58
        at = _padded(out, at + 1, rest // 1000 % 60, 2)
        if rest % 1000:
            out[at] = 46
            at = _padded(out, at + 1, rest % 1000, 3)
            while out[at - 1] == 48:
                at -= 1
        out[at], out[at + 1] = 90, 34
        at += 2
    out[at] = 125
    return at + 1


@kernel
def _decimal128(data: np.ndarray, start: int, out: np.ndarray, at: int) -> int:
    """Write an IEEE 754 decimal in the format of ``org.bson.types.Decimal128``."""
    low, high = read_u64(data, start), read_u64(data, start + 8)
    top = int(high >> np.uint64(58)) & 31
    negative = high >> np.uint64(63) != np.uint64(0)
    if top == 31:
        return put(out, at, _NAN)
    if negative:
        out[at] = 45
        at += 1
    if top == 30:
        return put(out, at, _INFINITY)
    limbs = np.zeros(4, np.int64)
    if top >> 3 == 3:  # the coefficient would exceed 34 digits: zero
        exponent = (int(high >> np.uint64(47)) & 0x3FFF) - 6176
    else:
        exponent = (int(high >> np.uint64(49)) & 0x3FFF) - 6176
        limbs[0] = int(high >> np.uint64(32)) & 0x1FFFF
        limbs[1] = int(high & np.uint64(0xFFFFFFFF))
        limbs[2] = int(low >> np.uint64(32))
        limbs[3] = int(low & np.uint64(0xFFFFFFFF))
    digits = np.empty(40, np.uint8)
    count = 0
    while True:
        rest = 0
        for i in range(4):
            group = rest << 32 | limbs[i]
            limbs[i], rest = group // 10, group % 10
        digits[count] = 48 + rest
        count += 1
        if not (limbs[0] | limbs[1] | limbs[2] | limbs[3]):
            break
    adjusted = exponent + count - 1
    if exponent <= 0 and adjusted >= -6:
        point = count + exponent
        if point <= 0:
            out[at], out[at + 1] = 48, 46
            at += 2
            for _ in range(-point):
                out[at] = 48
                at += 1
        for i in range(count):
            if i == point and i > 0:
                out[at] = 46
                at += 1
            out[at] = digits[count - 1 - i]
            at += 1
        return at
    out[at] = digits[count - 1]
    at += 1
    if count > 1:
        out[at] = 46
        at += 1
        for i in range(1, count):
            out[at] = digits[count - 1 - i]
            at += 1
    out[at] = 69
    at += 1
    if adjusted > 0:
        out[at] = 43
        at += 1
    return _integer(out, at, adjusted)


@kernel
def _double(data: np.ndarray, start: int, out: np.ndarray, at: int, profile: int) -> int:
    bits = read_u64(data, start)
    exponent = (bits >> np.uint64(52)) & np.uint64(0x7FF)
    finite = exponent != np.uint64(0x7FF)
    wrapped = profile == CANONICAL or (not finite and profile != DOCUMENT)
    if wrapped:
        at = put(out, at, _DOUBLE)
    if finite:
        at = write_number(bits, False, out, at)
    elif bits & np.uint64((1 << 52) - 1):
        at = put(out, at, _NAN)
    else:
        if bits >> np.uint64(63):
            out[at] = 45
            at += 1
        at = put(out, at, _INFINITY)
    return _close(out, at) if wrapped else at


@kernel
def write_scalar(
    data: np.ndarray,
    kind: int,
    start: int,
    end: int,
    out: np.ndarray,
    at: int,
    profile: int,
    escaped: np.ndarray,
) -> int:
    """Write a scalar value; the caller has checked its bounds."""
    spaced = profile == UPDATED
    if kind == 1:
        return _double(data, start, out, at, profile)
    if kind == 2:
        out[at] = 34
        at = write_characters(data, start + 4, end - 1, out, at + 1, escaped)
        out[at] = 34
        return at + 1
    if kind == 5:
        subtype = data[start + 4]
        first = start + 9 if subtype == 2 else start + 5  # the old type repeats its length
        at = put(out, at, _BINARY_1) if profile == DOCUMENT else put(out, at, _BINARY_2)
        at = write_base64(data, first, end, out, at)
        out[at] = 34
        at = write_separator(out, at + 1, spaced)
        at = put(out, at, _TYPE_1) if profile == DOCUMENT else put(out, at, _TYPE_2)
        out[at], out[at + 1] = _HEX_UPPER[subtype >> 4], _HEX_UPPER[subtype & 15]
        at = _close(out, at + 2)
        if profile != DOCUMENT:
            out[at] = 125
            at += 1
        return at
    if kind == 6:
        return put(out, at, _UNDEFINED)
    if kind == 7:
        return _close(out, _hexadecimal(data, start, end, out, put(out, at, _OID)))
    if kind == 8:
        return put(out, at, _TRUE) if data[start] else put(out, at, _FALSE)
    if kind == 9:
        return _date(out, at, np.int64(read_u64(data, start)), profile)
    if kind == 10:
        return put(out, at, _NULL)
    if kind == 11:
        pattern = name_end(data, start, end)
        at = put(out, at, _REGEX_1) if profile == DOCUMENT else put(out, at, _REGEX_2)
        at = write_characters(data, start, pattern, out, at, escaped)
        out[at] = 34
        at = write_separator(out, at + 1, spaced)
        at = put(out, at, _OPTIONS_1) if profile == DOCUMENT else put(out, at, _OPTIONS_2)
        at = _close(out, _options(data, pattern + 1, end - 1, out, at, escaped))
        if profile != DOCUMENT:
            out[at] = 125
            at += 1
        return at
    if kind == 12:
        if profile == CANONICAL:
            at = put(out, at, _POINTER)
        at = write_characters(data, start + 4, end - 13, out, put(out, at, _REF), escaped)
        out[at] = 34
        at = put(out, write_separator(out, at + 1, spaced), _ID)
        at = _close(out, _hexadecimal(data, end - 12, end, out, put(out, at, _OID)))
        out[at] = 125
        at += 1
        if profile == CANONICAL:
            out[at] = 125
            at += 1
        return at
    if kind == 13:
        return _close(out, write_characters(data, start + 4, end - 1, out, put(out, at, CODE), escaped))
    if kind == 14:
        return _close(out, write_characters(data, start + 4, end - 1, out, put(out, at, _SYMBOL), escaped))
    if kind == 16:
        if profile == CANONICAL:
            return _close(out, _integer(out, put(out, at, _INT), read_i32(data, start)))
        return _integer(out, at, read_i32(data, start))
    if kind == 17:
        at = _integer(out, put(out, at, _TIMESTAMP), read_i32(data, start + 4) & 0xFFFFFFFF)
        at = put(out, write_separator(out, at, spaced), _INCREMENT)
        at = _integer(out, at, read_i32(data, start) & 0xFFFFFFFF)
        out[at], out[at + 1] = 125, 125
        return at + 2
    if kind == 18:
        if profile in (DOCUMENT, CANONICAL):
            return _close(out, _integer(out, put(out, at, _LONG), np.int64(read_u64(data, start))))
        return _integer(out, at, np.int64(read_u64(data, start)))
    if kind == 19:
        return _close(out, _decimal128(data, start, out, put(out, at, _DECIMAL)))
    return put(out, at, _MIN_KEY) if kind == 255 else put(out, at, _MAX_KEY)
