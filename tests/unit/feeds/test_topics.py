"""How far publishing is behind what runs reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airflow_cdc_provider.feeds import topics
from airflow_cdc_provider.feeds.topics import PublishingLag, ReadRange, lag_of, lags_of
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.tasks.state import append_commit

COMMITS: dict[str, Any] = {"commits": [[3, 100.0], [5, 200.0], [6, 300.0]]}


@pytest.mark.parametrize(
    ("batch", "commits", "expected"),
    [
        (0, None, PublishingLag(0)),
        (0, COMMITS, PublishingLag(0, 6, 6, 900.0)),
        (3, COMMITS, PublishingLag(3, 6, 3, 800.0)),
        (4, COMMITS, PublishingLag(4, 6, 2, 800.0)),
        (6, COMMITS, PublishingLag(6, 6, 0, 0.0)),
        (7, COMMITS, PublishingLag(7, 6, 0, 0.0)),
    ],
)
def test_the_oldest_batch_that_waits_gives_the_lag(
    batch: int, commits: dict[str, Any] | None, expected: PublishingLag
) -> None:
    assert lag_of(batch, commits, 1000.0) == expected


def test_batches_are_reported_once_and_start_over_with_a_new_table() -> None:
    commits = append_commit(None, 3, 100.0)
    assert commits == [[3, 100.0]]
    assert append_commit({"commits": commits}, 3, 101.0) == commits, "a run that committed nothing"
    assert append_commit({"commits": commits}, 5, 200.0) == [[3, 100.0], [5, 200.0]]
    assert append_commit({"commits": [[3, 100.0], [5, 200.0]]}, 1, 300.0) == [[1, 300.0]], "re-created"
    many = {"commits": [[n, float(n)] for n in range(1, 201)]}
    assert append_commit(many, 201, 201.0)[0] == [2, 2.0]


def span(offsets: int, partition: int = 0) -> MessageRange:
    return MessageRange("t", partition, 1000, 1000 + offsets)


def messages(read: list[int], *counts: int) -> ReadRange:
    """Give as many messages of each partition, ten at a time; note how many were taken."""

    def of_range(wanted: MessageRange) -> Iterator[Sequence[int]]:
        for begin in range(0, counts[wanted.partition], 10):
            some = range(begin, min(begin + 10, counts[wanted.partition]))
            read.append(len(some))
            yield some

    return of_range


@pytest.mark.parametrize(
    ("counts", "max_lag", "expected", "taken"),
    [
        ((0, 0), 0, [0, 0], 0),  # all of an aborted transaction, and its mark
        ((3, 4), 7, [3, 4], 7),
        ((3, 4), 2, [300_000, 500_000], 3),  # the first one alone is above max_lag
        ((400_000, 4), 25, [300_000, 500_000], 30),
        ((3, 4), 500_003, [3, 500_000], 3),  # near enough when the first one is known
        ((3, 4), 10**6, [300_000, 500_000], 0),
    ],
)
def test_where_more_offsets_are_left_than_may_be_messages_are_counted_no_more_than_decide(
    counts: tuple[int, int], max_lag: int, expected: list[int], taken: int
) -> None:
    read: list[int] = []
    count = messages(read, *counts)
    assert lags_of([span(300_000), span(500_000, 1)], max_lag, count, count) == expected
    assert sum(read) == taken


def test_short_ranges_are_always_read() -> None:
    read: list[int] = []
    assert lags_of([span(0), span(100, 1)], 10**6, messages(read, 0, 42), messages([])) == [0, 42]


def test_counting_that_takes_long_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(wanted: MessageRange) -> Iterator[Sequence[int]]:
        raise BrokersUnavailable("nothing comes")
        yield ()

    assert lags_of([span(200)], 5, silent, silent) == [200]
    with pytest.raises(BrokersUnavailable):
        lags_of([span(100)], 5, silent, silent)
    monkeypatch.setattr(topics, "_COUNT_SECONDS", -1.0)
    assert lags_of([span(200)], 50, silent, messages([], 20)) == [200]
