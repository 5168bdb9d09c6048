"""Backoff between attempts to connect to a server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final, Protocol

NO_LIMIT: Final = -1
"""As ``connect_attempts``: retry until the server answers."""


class Attempts(Protocol):
    """The retry options that every source with a server has."""

    @property
    def connect_attempts(self) -> int:
        """The number of retries; :data:`NO_LIMIT` for unlimited ones."""
        ...

    @property
    def connect_backoff_seconds(self) -> float:
        """The pause after the first failed attempt."""
        ...

    @property
    def connect_max_backoff_seconds(self) -> float:
        """The longest pause."""
        ...


def pauses(attempts: Attempts) -> Iterator[float]:
    """Yield the pause in seconds before each retry of a connection."""
    pause = attempts.connect_backoff_seconds
    unlimited = attempts.connect_attempts == NO_LIMIT
    for _ in repeat(None) if unlimited else range(attempts.connect_attempts):
        yield min(pause, attempts.connect_max_backoff_seconds)
        pause = min(2 * pause, attempts.connect_max_backoff_seconds)
