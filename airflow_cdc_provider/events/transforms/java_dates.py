"""Formatting and parsing of times like Java's ``SimpleDateFormat`` in UTC, column by column.

Letters: ``y M d H h m s S a X Z z``; names of months and days are not supported, because they depend on the
    locale.
Parsing is as lenient as in Java: ``13`` is the first month of the next year, and trailing text is ignored.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import join

_PART: Final = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<plain>[^A-Za-z']+)")
_TEXT: Final = pa.large_utf8()
_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 10**11
"""Milliseconds of so many days, and of all that a text adds to them, have 64 bits."""
_MOST_DIGITS: Final = 9
_HALF_DAY: Final = 12
_OFFSETS: Final = {"X": "Z", "XX": "Z", "XXX": "Z", "Z": "+0000", "z": "UTC"}
_TWO_DIGIT_WINDOW_YEARS: Final = 80


def parts_of(pattern: str) -> list[tuple[str, str]]:
    """Split a format into ``("letters", "yyyy")`` and ``("text", "-")``."""
    found = []
    for part in _PART.finditer(pattern):
        if part["letters"]:
            found.append(("letters", part["letters"]))
        elif part["quoted"] is not None:
            found.append(("text", part["quoted"].replace("''", "'") or "'"))
        else:
            found.append(("text", part["plain"]))
    return found


def written(pattern: str, millis: pa.Array) -> pa.LargeStringArray:
    """Format times.

    Args:
        pattern: The format.
        millis: Milliseconds since 1970 (int64); nulls stay null.
    """
    numbers = millis.fill_null(0).to_numpy(zero_copy_only=False)
    pieces: list[pa.Array | str] = []
    for kind, text in parts_of(pattern):
        pieces.append(text if kind == "text" else _part(text, numbers))
    texts = join(*pieces) if any(not isinstance(one, str) for one in pieces) else None
    if texts is None:
        constant = pa.repeat(pa.scalar("".join(map(str, pieces)), _TEXT), len(millis))
        return pc.if_else(millis.is_valid(), constant, pa.scalar(None, _TEXT))
    return pc.if_else(millis.is_valid(), texts, pa.scalar(None, _TEXT))


def _part(letters: str, millis: np.ndarray) -> pa.Array | str:
    if letters in _OFFSETS:
        return _OFFSETS[letters]
    letter, width = letters[0], len(letters)
    hours = millis % _DAY_MS // 3_600_000
    if letter == "a":
        return pa.array(np.where(hours >= _HALF_DAY, "PM", "AM"), _TEXT)
    # Not Arrow's functions, whose years have 16 bits.
    days = (millis // _DAY_MS).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    years = months.astype("datetime64[Y]")
    year = years.astype(np.int64) + 1970
    year = np.where(year > 0, year, 1 - year)
    numbers = {
        "y": year % 100 if width == 2 else year,
        "M": (months - years).astype(np.int64) + 1,
        "d": (days - months).astype(np.int64) + 1,
        "H": hours,
        "h": (hours - 1) % _HALF_DAY + 1,
        "m": millis // 60_000 % 60,
        "s": millis // 1000 % 60,
        "S": millis % 1000,
    }
    return pc.utf8_lpad(pa.array(numbers[letter]).cast(_TEXT), width, "0")


def read(pattern: str, texts: pa.Array) -> pa.Int64Array:
    """Parse times.

    Args:
        pattern: The format.
        texts: The texts; nulls stay null.

    Returns:
        Milliseconds since 1970.

    Raises:
        ConfigurationError: A text doesn't match the format.
    """
    names, expression = _expression(pattern)
    texts = texts.cast(_TEXT)
    found = pc.extract_regex(texts, expression)
    if found.null_count > texts.null_count:
        raise _other_form(pattern)
    parts = {name: _number(found, name, pattern) for name in names}
    if "yy" in parts:
        parts["y"] = _near(parts.pop("yy"), datetime.now(UTC).year)
    if "h" in parts:
        half = pc.struct_field(found, "a") if "a" in names else None
        late = pc.equal(half, "PM").fill_null(False).to_numpy(zero_copy_only=False) if half is not None else 0
        parts["H"] = parts["h"] % _HALF_DAY + _HALF_DAY * late
    zeros = np.zeros(len(texts), np.int64)
    months = (parts.get("y", zeros + 1970) - 1970) * 12 + parts.get("M", zeros + 1) - 1
    days = (
        months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        + parts.get("d", zeros + 1)
        - 1
    )
    if (np.abs(days) > _MOST_DAYS).any():
        raise _other_form(pattern)
    millis = (
        days * _DAY_MS
        + parts.get("H", zeros) * 3_600_000
        + parts.get("m", zeros) * 60_000
        + parts.get("s", zeros) * 1000
        + parts.get("S", zeros)
    )
    if "o" in names:
        millis -= _offset(pc.struct_field(found, "o"))
    return pa.array(millis, mask=texts.is_null().to_numpy(zero_copy_only=False))


def _other_form(pattern: str) -> ConfigurationError:
    return ConfigurationError(
        "a text that a transform is to read as a time has another form",
        expected=pattern,
        remedy="choose the records by when, or correct the format",
    )


def _expression(pattern: str) -> tuple[list[str], str]:
    """Return the parts of a format, and the RE2 expression that matches them."""
    names: list[str] = []
    pieces = ["^"]
    parts = parts_of(pattern)
    for number, (kind, text) in enumerate(parts):
        if kind == "text":
            pieces.append(re.escape(text))
            continue
        letter = text[0]
        name = "yy" if text == "yy" else "o" if letter in "XZz" else letter
        if name in names:
            raise ConfigurationError(f"the format {pattern!r} names {letter} twice", expected="once")
        names.append(name)
        if name == "o":
            pieces.append("(?P<o>Z|UTC|GMT|[+-][0-9]{2}:?(?:[0-9]{2})?)")
        elif letter == "a":
            pieces.append("(?P<a>AM|PM)")
        else:
            touches = number + 1 < len(parts) and parts[number + 1][0] == "letters"
            pieces.append(f"(?P<{name}>[0-9]{{{len(text)}}})" if touches else f"(?P<{name}>[0-9]+)")
    return names, "".join(pieces)


def _number(found: pa.Array, name: str, pattern: str) -> np.ndarray:
    if name in ("a", "o"):
        return np.empty(0, np.int64)
    texts = pc.struct_field(found, name)
    if (pc.max(pc.utf8_length(pc.utf8_ltrim(texts, "0"))).as_py() or 0) > _MOST_DIGITS:
        raise _other_form(pattern)
    return texts.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def _near(years: np.ndarray, now_year: int) -> np.ndarray:
    """Map two-digit years to the range from 80 years ago to 20 years ahead, as Java does."""
    start = now_year - _TWO_DIGIT_WINDOW_YEARS
    return np.where(years < 100, start + (years - start) % 100, years)


def _offset(texts: pa.Array) -> np.ndarray:
    """Return UTC offsets in milliseconds; none for ``Z`` and names."""
    distinct = texts.dictionary_encode()
    known = []
    for text in distinct.dictionary.to_pylist():
        digits = re.sub(r"\D", "", text)
        minutes = int(digits[:2] or 0) * 60 + int(digits[2:4] or 0)
        known.append((-minutes if text.startswith("-") else minutes) * 60_000)
    of_row = pa.array(known, pa.int64()).take(distinct.indices)
    return of_row.fill_null(0).to_numpy(zero_copy_only=False)
