"""Requests in flight and pauses: what a busy cluster makes a reader do."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.sources.scylla.throttle import RetryPauses, Throttle


def test_slow_answers_halve_what_is_in_flight_once_for_all_that_were_under_way() -> None:
    throttle = Throttle(most=64, slow_seconds=1.0)
    for _ in range(64):
        throttle.answered(sent_at=0.0, answered_at=5.0)
    assert throttle.requests == 32
    throttle.overloaded(sent_at=6.0, now=7.0)
    assert throttle.requests == 16
    for second in range(10, 20):
        throttle.overloaded(sent_at=float(second), now=second + 0.5)
    assert throttle.requests == 1


def test_answers_in_good_time_raise_it_again_up_to_the_limit() -> None:
    throttle = Throttle(most=8, slow_seconds=1.0)
    throttle.overloaded(0.0, 0.0)
    assert throttle.requests == 4
    for _ in range(100):
        throttle.answered(1.0, 1.1)
    assert throttle.requests == 8


@pytest.mark.covers("SCY-CFG-10")
def test_pauses_double_up_to_the_longest_and_differ_at_random() -> None:
    assert list(RetryPauses(6, 0.5, 3.0, 0.0)) == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]
    jittered = [pause for _ in range(50) for pause in RetryPauses(1, 1.0, 30.0, 20.0)]
    assert all(0.8 <= pause <= 1.2 for pause in jittered)
    assert len(set(jittered)) > 10
    assert list(RetryPauses(0, 1.0, 30.0, 0.0)) == []
