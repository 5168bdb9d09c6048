"""How many requests a task has in flight, and how long it pauses when the cluster is too busy.

Each answer in good time allows a part of a request more, up to the task's share of the one limit; a slow
answer, or a refused request, halves what is allowed, once for all requests that were under way. So readers
give way to the cluster's own clients, and take what is free.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RetryPauses:
    """Pauses between attempts.

    Args:
        retries: How many attempts follow the first.
        first_seconds: The first pause; each is twice the one before.
        longest_seconds: The longest.
        jitter_percent: By how much each differs at random.
    """

    retries: int
    first_seconds: float
    longest_seconds: float
    jitter_percent: float

    def __iter__(self) -> Iterator[float]:
        """Give the pauses in seconds."""
        pause = self.first_seconds
        for _ in range(self.retries):
            jitter = self.jitter_percent / 100 * random.uniform(-1, 1)  # noqa: S311  # not for secrets
            yield min(pause, self.longest_seconds) * max(0.0, 1 + jitter)
            pause = min(2 * pause, self.longest_seconds)


@dataclass
class Throttle:
    """How many requests may be in flight.

    Args:
        most: The task's share of the limit.
        slow_seconds: An answer that takes longer is slow.
    """

    most: int
    slow_seconds: float
    allowed: float = field(init=False)
    _halved_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        """Begin with all that may be."""
        self.allowed = float(self.most)

    @property
    def requests(self) -> int:
        """How many requests may be in flight now."""
        return max(1, int(self.allowed))

    def answered(self, asked_at: float, answered_at: float) -> None:
        """Take in an answer: when it was asked for and when it came, in seconds of one clock."""
        if answered_at - asked_at > self.slow_seconds:
            self.overloaded(asked_at, answered_at)
        else:
            self.allowed = min(float(self.most), self.allowed + 1 / self.requests)

    def overloaded(self, asked_at: float, now: float) -> None:
        """Give way, unless that was done after the request was made."""
        if asked_at >= self._halved_at:
            self.allowed = max(1.0, self.allowed / 2)
            self._halved_at = now
