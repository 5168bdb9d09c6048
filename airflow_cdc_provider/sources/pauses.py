"""Pauses between attempts to reach a server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final, Protocol

NO_LIMIT: Final = -1
"""As ``connect_attempts``: a server is tried until it answers."""


class Attempts(Protocol):
    """How often a server is tried: options that every source with a server has."""

    @property
    def connect_attempts(self) -> int:
        """How many failed attempts are followed by another one; :data:`NO_LIMIT` for all."""
        ...

    @property
    def connect_pause_seconds(self) -> float:
        """The pause after the first."""
        ...

    @property
    def connect_longest_pause_seconds(self) -> float:
        """The longest pause."""
        ...


def pauses(attempts: Attempts) -> Iterator[float]:
    """Give the pauses in seconds after failed attempts to reach a server; one more follows the last pause."""
    pause = attempts.connect_pause_seconds
    unlimited = attempts.connect_attempts == NO_LIMIT
    for _ in repeat(None) if unlimited else range(attempts.connect_attempts):
        yield min(pause, attempts.connect_longest_pause_seconds)
        pause = min(2 * pause, attempts.connect_longest_pause_seconds)
