"""Request counts and latencies of CQL sessions.

The driver's own metrics require an unmaintained library. This uses the driver's public request listener
instead, with constant memory: latencies are counted in buckets, eight per doubling, so a quantile is at most
9 % too high, never too low.

A request is measured from its creation by the session's caller to its response or failure, including the
driver's retries. The driver's internal requests (its control connection, ``prepare``) don't pass the
listener. Neither do further pages of a paged result: they are counted, but their latency is unknown.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cassandra.cluster import ResponseFuture, Session

_BUCKETS_PER_DOUBLING: Final = 8
_SHORTEST_SECONDS: Final = 1e-6
_BUCKETS: Final = 36 * _BUCKETS_PER_DOUBLING
"""The last one counts requests that take longer than 19 hours."""


@dataclass(frozen=True)
class RequestNumbers:
    """A snapshot of :class:`RequestMetrics`. Latencies are of all completed requests, including failed ones.

    Args:
        requests: Completed requests.
        errors: Failed requests among them.
        errors_by_class: Failed requests by the driver's error class.
        in_flight: Requests that are not completed.
        pages: Further pages of results that were received.
        mean_seconds: Mean latency of a request, None before the first.
        p50_seconds: Median latency.
        p95_seconds: 95th percentile of the latency.
        p99_seconds: 99th percentile of the latency.
        max_seconds: Maximum latency.
    """

    requests: int = 0
    errors: int = 0
    errors_by_class: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    pages: int = 0
    mean_seconds: float | None = None
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None
    max_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a JSON-serializable dict for XCom."""
        return asdict(self)


class RequestMetrics:
    """Counts the requests of any number of sessions. Safe to use from several threads.

    Example::

        metrics = RequestMetrics()
        metrics.watch(session)
        session.execute("SELECT release_version FROM system.local")
        assert metrics.numbers().requests == 1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self._errors: Counter[str] = Counter()
        self._started = 0
        self._ended = 0
        self._pages = 0
        self._seconds = 0.0
        self._longest = 0.0

    def watch(self, session: Session) -> None:
        """Count a session's requests from now on."""
        session.add_request_init_listener(self._begin)

    def numbers(self) -> RequestNumbers:
        """Return the current numbers."""
        with self._lock:
            ended, longest, counts = self._ended, self._longest, list(self._counts)
            totals = RequestNumbers(
                requests=ended,
                errors=self._errors.total(),
                errors_by_class=dict(sorted(self._errors.items())),
                in_flight=self._started - ended,
                pages=self._pages,
                mean_seconds=self._seconds / ended if ended else None,
                max_seconds=longest if ended else None,
            )
        if not ended:
            return totals
        quantiles = {f"p{percent}_seconds": _quantile(counts, percent, longest) for percent in (50, 95, 99)}
        return RequestNumbers(**{**vars(totals), **quantiles})

    def _begin(self, future: ResponseFuture) -> None:
        with self._lock:
            self._started += 1
        request = _Request(time.perf_counter())
        future.add_callbacks(self._answered, self._failed, callback_args=(request,), errback_args=(request,))

    def _answered(self, _: object, request: _Request) -> None:
        with self._lock:
            if request.ended:
                self._pages += 1
            else:
                self._end(request)

    def _failed(self, error: BaseException, request: _Request) -> None:
        with self._lock:
            self._errors[type(error).__name__] += 1
            if not request.ended:
                self._end(request)

    def _end(self, request: _Request) -> None:
        request.ended = True
        seconds = time.perf_counter() - request.began
        self._ended += 1
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
        self._counts[_bucket(seconds)] += 1


@dataclass
class _Request:
    began: float
    ended: bool = False


def _bucket(seconds: float) -> int:
    doublings = math.log2(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS)
    return min(math.floor(doublings * _BUCKETS_PER_DOUBLING), _BUCKETS - 1)


def _quantile(counts: list[int], percent: int, longest: float) -> float:
    """Return the upper bound of the bucket that contains the percentile."""
    rank = math.ceil(sum(counts) * percent / 100)
    seen = 0
    for number, count in enumerate(counts[:-1]):
        seen += count
        if seen >= rank:
            end: float = _SHORTEST_SECONDS * 2.0 ** ((number + 1) / _BUCKETS_PER_DOUBLING)
            return min(end, longest)
    return longest
