"""Parses the option ``start_at``: an ISO date, seconds since 1970, or a BSON timestamp as one number.

Imports no driver: read by DAG files.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final

EXPECTED: Final = (
    "an ISO date such as 2026-05-01T12:00:00Z, seconds since 1970, or a BSON timestamp as one number "
    "(seconds * 4294967296 + increment)"
)
_SECONDS: Final = 1 << 32


def read_start_time(value: object) -> object:
    """Convert a value that YAML has parsed as a date or a number to text; return other values unchanged."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_start_time(text: str) -> str:
    """Return the expected format if a text is not a valid time, else an empty text; an empty one is valid."""
    try:
        parse_start_time(text)
    except ValueError:
        return EXPECTED
    return ""


def parse_start_time(text: str) -> int:
    """Parse a time.

    A date without an offset is in UTC; fractions of a second are truncated, so that no later change is
    missed. A number below 2**32 is in seconds.

    Returns:
        A BSON timestamp, seconds in the upper half; 0 for an empty text.

    Raises:
        ValueError: The text is not a valid time, or outside of the range of timestamps, 1970 to 2106.
    """
    if not text:
        return 0
    if re.fullmatch(r"[0-9]+", text):
        number = int(text)
        value = number if number >= _SECONDS else number * _SECONDS
    else:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        value = int(time.timestamp()) * _SECONDS
    if not 0 < value < 1 << 64:
        raise ValueError(text)
    return value
