"""Moments as people write them: an ISO date, seconds since 1970, or a BSON timestamp as one number. Light."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final

EXPECTED: Final = (
    "an ISO date such as 2026-05-01T12:00:00Z, seconds since 1970, or a BSON timestamp as one number "
    "(seconds * 4294967296 + increment)"
)
_SECONDS: Final = 1 << 32


def read_moment(value: object) -> object:
    """Write what YAML makes of a moment (a date, a number) as text; return anything else as it is."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_moment(text: str) -> str:
    """Return what was expected if a text is no moment, else an empty text; an empty one is none."""
    try:
        parse_moment(text)
    except ValueError:
        return EXPECTED
    return ""


def parse_moment(text: str) -> int:
    """Read a moment.

    A date without an offset is in UTC; fractions of a second are cut off, so that nothing after the moment
    is missed. A number below 2**32 counts seconds.

    Returns:
        A BSON timestamp, seconds in the upper half; 0 for an empty text.

    Raises:
        ValueError: It is none, or before 1970 or after 2106, which no timestamp holds.
    """
    if not text:
        return 0
    if re.fullmatch(r"[0-9]+", text):
        number = int(text)
        value = number if number >= _SECONDS else number * _SECONDS
    else:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        value = int(moment.timestamp()) * _SECONDS
    if not 0 < value < 1 << 64:
        raise ValueError(text)
    return value
