"""Numbers of CQL requests, by futures that a test ends itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from airflow_cdc_provider.sources.cql.driver.request_metrics import RequestMetrics


@dataclass
class Future:
    """A fake of the driver's future, which calls back once per page."""

    ends: list[Callable[[bool], None]] = field(default_factory=list)

    def add_callbacks(
        self, callback: Any, errback: Any, *, callback_args: tuple[Any], errback_args: tuple[Any]
    ) -> None:
        self.ends.append(
            lambda well: callback(None, *callback_args) if well else errback(TimeoutError(), *errback_args)
        )

    def end(self, *, well: bool = True) -> None:
        for one in self.ends:
            one(well)


class Session:
    """A fake of the driver's session: keeps the listeners."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Future], None]] = []

    def add_request_init_listener(self, listener: Callable[[Future], None]) -> None:
        self.listeners.append(listener)

    def request(self) -> Future:
        future = Future()
        for listener in self.listeners:
            listener(future)
        return future


def watched() -> tuple[Session, RequestMetrics]:
    session, metrics = Session(), RequestMetrics()
    metrics.watch(cast(Any, session))
    return session, metrics


def test_before_the_first_request_there_are_no_numbers() -> None:
    numbers = RequestMetrics().numbers()
    assert (numbers.requests, numbers.errors, numbers.mean_seconds, numbers.p99_seconds) == (0, 0, None, None)


def test_latencies_are_accurate_to_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    session, metrics = watched()
    times = [number / 1000 for number in range(1, 1001)]
    for seconds in times:
        future = session.request()
        now += seconds
        future.end()
    numbers = metrics.numbers()
    assert numbers.requests == 1000
    assert numbers.mean_seconds == pytest.approx(sum(times) / 1000)
    assert numbers.max_seconds == pytest.approx(1.0)
    for reported, true in (
        (numbers.p50_seconds, 0.5),
        (numbers.p95_seconds, 0.95),
        (numbers.p99_seconds, 0.99),
    ):
        assert reported is not None
        assert true <= reported <= true * 1.091


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e9])
def test_no_time_falls_out_of_the_buckets(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    session, metrics = watched()
    future = session.request()
    now = seconds
    future.end()
    assert metrics.numbers().p50_seconds == metrics.numbers().max_seconds == seconds


def test_failures_count_by_class_and_requests_in_flight_separately() -> None:
    session, metrics = watched()
    session.request().end(well=False)
    session.request().end()
    session.request()
    numbers = metrics.numbers()
    assert (numbers.requests, numbers.errors, numbers.in_flight) == (2, 1, 1)
    assert numbers.errors_by_class == {"TimeoutError": 1}


def test_further_pages_are_no_requests_and_their_failure_is_an_error() -> None:
    session, metrics = watched()
    future = session.request()
    future.end()
    future.end()
    future.end(well=False)
    numbers = metrics.numbers()
    assert (numbers.requests, numbers.pages, numbers.errors, numbers.in_flight) == (1, 1, 1, 0)


def test_threads_lose_no_request_and_memory_stays_the_same() -> None:
    session, metrics = watched()
    size = len(metrics._counts)

    def work() -> None:
        for number in range(2000):
            session.request().end(well=number % 4 != 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = metrics.numbers()
    assert (numbers.requests, numbers.errors, numbers.in_flight) == (8000, 2000, 0)
    assert len(metrics._counts) == size
