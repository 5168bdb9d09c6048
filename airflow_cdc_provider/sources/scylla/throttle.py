"""Adaptive limit of a task's requests in flight, and backoff when the cluster is overloaded.

Each fast response raises the limit by a fraction of a request, up to the task's share of the total limit. A
slow response or a rejected request halves the limit, once for all requests that were in flight. Readers thus
yield to other clients of the cluster and use spare capacity.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RetryPauses:
    """Exponential backoff between attempts.

    Args:
        retries: Number of retries.
        first_seconds: The first pause; each further pause is twice as long.
        longest_seconds: The maximum pause.
        jitter_percent: Random variation of each pause.
    """

    retries: int
    first_seconds: float
    longest_seconds: float
    jitter_percent: float

    def __iter__(self) -> Iterator[float]:
        """Yield the pauses in seconds."""
        pause = self.first_seconds
        for _ in range(self.retries):
            jitter = self.jitter_percent / 100 * random.uniform(-1, 1)  # noqa: S311  # not for secrets
            yield min(pause, self.longest_seconds) * max(0.0, 1 + jitter)
            pause = min(2 * pause, self.longest_seconds)


@dataclass
class Throttle:
    """The limit of requests in flight.

    Args:
        most: The task's share of the total limit.
        slow_seconds: A response that takes longer is slow.
    """

    most: int
    slow_seconds: float
    allowed: float = field(init=False)
    _halved_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        """Start at the task's full share."""
        self.allowed = float(self.most)

    @property
    def requests(self) -> int:
        """The current limit of requests in flight."""
        return max(1, int(self.allowed))

    def answered(self, sent_at: float, answered_at: float) -> None:
        """Process a response, sent and answered at times in seconds of the same clock."""
        if answered_at - sent_at > self.slow_seconds:
            self.overloaded(sent_at, answered_at)
        else:
            self.allowed = min(float(self.most), self.allowed + 1 / self.requests)

    def overloaded(self, sent_at: float, now: float) -> None:
        """Halve the limit, unless it was halved after the request was sent."""
        if sent_at >= self._halved_at:
            self.allowed = max(1.0, self.allowed / 2)
            self._halved_at = now
