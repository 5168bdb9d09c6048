"""Several streams give what one stream gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics, sum_stream_metrics
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.parallel_streams import ParallelStreams, merged_groups
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.unit.sources.vitess.fake_vtgate import (
    Fails,
    FakeVtgate,
    Step,
    Waits,
    fields,
    gtid,
    journal,
    response,
    rows,
    transaction,
)
from tests.unit.sources.vitess.stream_capture import NONE_KNOWN, records_of

FOUR = ("-40", "40-80", "80-c0", "c0-")
ADVANCED = VitessAdvanced(connect_attempts=1, connect_backoff_seconds=0.01, stall_timeout_seconds=5.0)
PARTIAL_RESHARD = Fails(
    grpc.StatusCode.INTERNAL,
    "not all journaling participants are in the stream: journal: [...], stream: [...]",
)
ALL = ReadLimit()
SILENT_SECONDS = 15
"""After which a stream that says nothing counts as lost."""


class Cluster:
    """What shards have committed; each stream gets that of the shards that it asks for, shard after shard.

    Args:
        counts: How many transactions each shard has.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.requested: list[dict[str, str]] = []

    def __call__(self, request: Any) -> Sequence[Step]:
        at = {s.shard: s.gtid for s in request.vgtid.shard_gtids}
        self.requested.append(at)
        reported: dict[str, int | str] = dict(at)
        events: list[Any] = []
        for shard, place in at.items():
            done = int(place.rpartition("-")[2]) if ":1-" in place else 0
            for number in range(done + 1, self.counts[shard] + 1):
                reported[shard] = number
                change = rows("item", shard, (None, [f"{number}", shard]))
                inside = [fields("item", shard), change] if number == done + 1 else [change]
                events.append(response(*transaction(shard, reported, *inside)))
        return [*events, Waits()]

    def position(self, **more: ShardPosition) -> Position:
        places = {f"shop/{s}": ShardPosition(gtid(count), 1) for s, count in self.counts.items()}
        return Position({**places, **more})


def start_of(shards: Sequence[str]) -> Position:
    return Position({f"shop/{shard}": ShardPosition(gtid(1), 1) for shard in shards})


class Capture:
    """Streams of a fake VTGate."""

    def __init__(self, stack: ExitStack, script: Callable[[Any], Iterable[Step]], streams: int) -> None:
        self.server = stack.enter_context(FakeVtgate([script]))
        client = stack.enter_context(VtgateClient(ConnectionValues.read(self.server.connection)))
        options = VitessOptions(keyspace="shop", streams=streams, advanced=ADVANCED)
        self.created: list[VitessOptions] = []

        def make(own: VitessOptions, failing: Callable[[], bool]) -> ChangeStream:
            self.created.append(own)
            return ChangeStream(lambda: client, own, lambda: filter_of(None), **NONE_KNOWN, stopping=failing)

        self.streams = ParallelStreams(make, options)
        stack.callback(self.streams.close)

    @property
    def requested(self) -> list[list[str]]:
        return sorted([s.shard for s in request.vgtid.shard_gtids] for request in self.server.requests)

    def read(
        self, start: Position, head: Position, limit: ReadLimit = ALL
    ) -> tuple[dict[str, list[Any]], Position]:
        """Read to the head; return the changes of each shard, and the end."""
        found: dict[str, list[Any]] = {}
        while True:
            plan = self.streams.plan(start, head, limit)
            for record in records_of(plan.partitions, plan.records).to_pylist():
                if record["kind"] == CHANGE:
                    kept = [record[name] for name in ("position", "transaction", "schema_id", "payload")]
                    found.setdefault(record["origin"], []).append(kept)
            start = Position.from_offset(plan.end)
            if plan.at_head:
                return found, start


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=4, max_size=4), st.integers(2, 6), st.integers(1, 4000))
def test_several_streams_return_the_same_as_one(counts: list[int], streams: int, limit_bytes: int) -> None:
    cluster = Cluster(dict(zip(FOUR, counts, strict=True)))
    with ExitStack() as stack:
        one = Capture(stack, cluster, 1).read(start_of(FOUR), cluster.position())
        several = Capture(stack, cluster, streams)
        found = several.read(start_of(FOUR), cluster.position(), ReadLimit(bytes=limit_bytes))

    assert found == one
    assert {shard: len(changes) for shard, changes in found[0].items()} == {
        f"shop/{shard}": count - 1 for shard, count in cluster.counts.items() if count > 1
    }


def test_shards_are_assigned_as_to_debeziums_tasks_and_share_the_prefetch_limits() -> None:
    cluster = Cluster(dict.fromkeys(FOUR, 5))
    with ExitStack() as stack:
        capture = Capture(stack, cluster, 2)
        capture.read(start_of(FOUR), cluster.position())

        assert capture.requested == [["-40", "80-c0"], ["40-80", "c0-"]]
        assert {own.advanced.read_ahead_bytes for own in capture.created} == {ADVANCED.read_ahead_bytes // 2}
        assert capture.streams.counts.events == 16
        assert capture.streams.counts.queue_bytes_limit == ADVANCED.read_ahead_bytes
        assert capture.streams.counts.position == {f"shop/{shard}": gtid(5) for shard in FOUR}


def test_streams_stay_open_from_plan_to_plan_and_idle_shares_have_none() -> None:
    cluster = Cluster({**dict.fromkeys(FOUR, 9), "40-80": 1, "c0-": 1})
    with ExitStack() as stack:
        capture = Capture(stack, cluster, 2)
        capture.read(start_of(FOUR), cluster.position(), ReadLimit(bytes=1))

        assert capture.requested == [["-40", "80-c0"]]


def test_shards_of_a_reshard_are_assigned_again() -> None:
    before = Cluster({"-80": 5, "80-": 5})
    split = {"-40": 3, "40-80": 3, "80-": 7}

    def script(request: Any) -> Sequence[Step]:
        requested = {s.shard for s in request.vgtid.shard_gtids}
        if requested == {"-80"}:
            children: dict[str, int | str] = {"-40": 1, "40-80": 1}
            last = transaction(
                "-40", children, fields("item", "-40"), rows("item", "-40", (None, ["1", "x"]))
            )
            return [*before(request)[:-1], response(*last), Waits()]
        return Cluster(split if "-40" in requested or "40-80" in requested else {"80-": 7})(request)

    with ExitStack() as stack:
        capture = Capture(stack, script, 2)
        first, split_end = capture.read(
            start_of(("-80", "80-")),
            Position(
                {
                    "shop/-40": ShardPosition(gtid(1), 1),
                    "shop/40-80": ShardPosition(gtid(1), 1),
                    "shop/80-": ShardPosition(gtid(5), 1),
                }
            ),
        )
        assert split_end.shards["shop/-40"] == ShardPosition(gtid(1), 2, ("shop/-80",))

        found, end = capture.read(split_end, Cluster(split).position())

        assert capture.requested == [["-40", "80-"], ["-80"], ["40-80"], ["80-"]]
        assert {shard: place.set.count for shard, place in end.shards.items()} == {
            "shop/-40": 3,
            "shop/40-80": 3,
            "shop/80-": 7,
        }
        changes = [len(of_shard) for read in (first, found) for of_shard in read.values()]
        assert sum(changes) == 4 + 3 + 2 + 6


@pytest.mark.parametrize("head_is_merged", [True, False])
def test_merged_shards_are_read_by_one_stream(head_is_merged: bool) -> None:
    halves = Cluster({"-80": 5, "80-": 5})
    merged = transaction("-", {"-": 2}, fields("item", "-"), rows("item", "-", (None, ["1", "x"])))

    def script(request: Any) -> Sequence[Step]:
        if len(request.vgtid.shard_gtids) == 1:
            (requested,) = request.vgtid.shard_gtids
            if requested.gtid == gtid(6):  # behind the journal, nothing comes any more
                return [Waits()]
            reported = transaction(
                requested.shard, {requested.shard: 6}, journal(requested.shard, ["-80", "80-"], {"-": 1})
            )
            return [*halves(request)[:-1], response(*reported), PARTIAL_RESHARD]
        return [*halves(request)[:-1], response(*merged), Waits()]

    with ExitStack() as stack:
        capture = Capture(stack, script, 2)
        head = Position({"shop/-": ShardPosition(gtid(2), 1)})
        if not head_is_merged:
            head = Position({s: ShardPosition(gtid(6), 1) for s in ("shop/-80", "shop/80-")})

        found, end = capture.read(start_of(("-80", "80-")), head)

        assert end.shards == {"shop/-": ShardPosition(gtid(2), 2, ("shop/-80", "shop/80-"))}
        assert {shard: len(changes) for shard, changes in found.items()} == {
            "shop/-80": 4,
            "shop/80-": 4,
            "shop/-": 1,
        }
        assert capture.requested[:1] == ([["-80", "80-"]] if head_is_merged else [["-80"]])
        assert ["-80", "80-"] in capture.requested


def test_a_reshard_that_one_stream_cannot_follow_either_is_reported() -> None:
    with ExitStack() as stack:
        capture = Capture(stack, lambda request: [PARTIAL_RESHARD], 1)
        with pytest.raises(TransientError, match="not all journaling participants"):
            capture.read(start_of(FOUR), Cluster(dict.fromkeys(FOUR, 5)).position())


def test_a_stream_that_fails_ends_the_others_and_nothing_is_lost() -> None:
    cluster = Cluster(dict.fromkeys(FOUR, 5))
    broken = threading.Event()
    broken.set()
    blocked = threading.Event()

    def script(request: Any) -> Iterable[Step]:
        if broken.is_set():
            if any(s.shard == "40-80" for s in request.vgtid.shard_gtids):
                blocked.wait(10)
                return [Fails(grpc.StatusCode.PERMISSION_DENIED, "no")]
            return falling_silent(request)
        return cluster(request)

    def falling_silent(request: Any) -> Iterator[Step]:
        yield from cluster(request)[:2]
        blocked.set()
        yield Waits()

    with ExitStack() as stack:
        capture = Capture(stack, script, 2)
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match="PERMISSION_DENIED"):
            capture.streams.plan(start_of(FOUR), cluster.position(), ALL)
        assert time.monotonic() - began < SILENT_SECONDS / 2
        assert not capture.streams.counts.connected
        broken.clear()

        found, end = capture.read(start_of(FOUR), cluster.position())

        assert {shard: len(changes) for shard, changes in found.items()} == {f"shop/{s}": 4 for s in FOUR}
        assert end == cluster.position()
        assert capture.streams.counts.disconnects == 0


def test_shards_that_turned_into_one_are_joined() -> None:
    halves = ["shop/-40", "shop/40-80", "shop/80-c0", "shop/c0-"]

    assert merged_groups(halves, halves) == [(shard,) for shard in halves]
    assert merged_groups(halves, ["shop/-80", "shop/80-c0", "shop/c0-"]) == [
        ("shop/-40", "shop/40-80"),
        ("shop/80-c0",),
        ("shop/c0-",),
    ]
    assert merged_groups(halves, ["shop/-60", "shop/60-"]) == [tuple(halves)]
    assert merged_groups(halves, ["shop/-20", "shop/20-40", *halves[1:]]) == [(shard,) for shard in halves]


def test_numbers_of_streams_are_added() -> None:
    one = StreamMetrics(connected=True, events=2, last_event_at=5.0, position={"a": "1"}, last_event="x")
    other = StreamMetrics(disconnects=1, events=3, last_event_at=4.0, position={"b": "2"}, behind_seconds=7.0)

    assert sum_stream_metrics([one, other]) == StreamMetrics(
        connected=True,
        disconnects=1,
        events=5,
        last_event_at=5.0,
        position={"a": "1", "b": "2"},
        behind_seconds=7.0,
        last_event="x",
    )
    assert sum_stream_metrics([]) == StreamMetrics()
