from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE, SCHEMA, TRANSACTION
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, ReshardStopped, TransientError
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.parallel_streams import ParallelStreams
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.protocol import RowChange, VStreamResponse
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.wire import scan, split_recording
from tests.unit.sources.vitess.fake_vtgate import (
    Fails,
    Step,
    Waits,
    event,
    fields,
    gtid,
    journal,
    response,
    rows,
    transaction,
    vgtid,
)
from tests.unit.sources.vitess.stream_capture import (
    ALL,
    EXPECTED,
    HEAD,
    HIGH1,
    LOW1,
    LOW2,
    NONE_KNOWN,
    START,
    Capture,
    at,
    changes,
    insert,
    options,
    records_of,
)

FIXTURES = Path(__file__).parents[3] / "fixtures" / "vitess"


@pytest.fixture
def stack() -> Any:
    with ExitStack() as one:
        yield one


@pytest.mark.covers("VIT-STR-01")
def test_a_plan_holds_all_rows_up_to_the_head_in_commit_order(stack: ExitStack) -> None:
    capture = Capture(stack, [[response(*LOW1), response(*LOW2, *HIGH1), Waits()]], options())

    records, plan = capture.read(START, HEAD)

    assert changes(records) == EXPECTED
    assert plan.at_head
    assert Position.from_offset(plan.end) == HEAD
    (request,) = capture.server.requests
    assert {s.shard: s.gtid for s in request.vgtid.shard_gtids} == {"-80": gtid(10), "80-": gtid(20)}
    positions = [r["position"] for r in records.to_pylist() if r["kind"] == CHANGE]
    assert [p.hex() for p in positions] == [
        "00000001" + f"{count:016x}" + "00000000" for count in (11, 12, 21)
    ]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 14), max_size=13))
def test_borders_of_responses_change_nothing(borders: list[int]) -> None:
    events = [*LOW1, *LOW2, *HIGH1]
    cuts = sorted({0, len(events), *(b for b in borders if b < len(events))})
    assembler = TransactionAssembler(
        START, slice_bytes=1, keep_empty=False, stops_at_journals=False, **NONE_KNOWN
    )
    for first, end in itertools.pairwise(cuts):
        assembler.add(response(*events[first:end]), 1)
    slices, schema_records = assembler.drain(1)

    assert changes(records_of(slices, schema_records)) == EXPECTED
    assert assembler.position == HEAD


@pytest.mark.covers("VIT-STR-08")
def test_rows_are_held_until_their_commit_comes(stack: ExitStack) -> None:
    open_ended: list[Step] = [response(*LOW1), response(*LOW2[:2]), Waits()]
    capture = Capture(stack, [open_ended], options())

    records, plan = capture.read(START, at(low=11))

    assert changes(records) == EXPECTED[:1]
    assert Position.from_offset(plan.end) == at(low=11, high=20)


@pytest.mark.covers("VIT-STR-07", "VIT-STR-06")
def test_a_stream_lost_inside_a_transaction_gives_the_whole_of_it_again(stack: ExitStack) -> None:
    lost: list[Step] = [
        response(*LOW1),
        response(*LOW2[:2]),
        Fails(grpc.StatusCode.UNAVAILABLE, "tablet gone"),
    ]
    again: list[Step] = [response(fields("item", "-80"), *LOW2), response(*HIGH1), Waits()]
    capture = Capture(stack, [lost, again], options())

    records, plan = capture.read(START, HEAD)

    assert changes(records) == EXPECTED
    assert plan.at_head
    second = capture.server.requests[1]
    assert {s.shard: s.gtid for s in second.vgtid.shard_gtids} == {"-80": gtid(11), "80-": gtid(20)}
    assert len(capture.pauses) == 1


@pytest.mark.covers("VIT-FLT-10")
def test_transactions_that_come_again_are_dropped_by_their_gtid(stack: ExitStack) -> None:
    lost: list[Step] = [response(*LOW1, *LOW2), Fails(grpc.StatusCode.UNAVAILABLE, "gone")]
    # As from a VTGate that forgot how far it had come: two that are known, one in parts, and a new one.
    older = insert("-80", 1, {"-80": 11, "80-": 20}, with_fields=True)
    again: list[Step] = [
        response(*older[:3]),
        response(*older[3:], *LOW2),
        response(*HIGH1, *LOW2),
        response(*insert("-80", 4, {"-80": 13, "80-": 21})),
        Waits(),
    ]
    capture = Capture(stack, [lost, again], options())

    records, plan = capture.read(START, at(low=13, high=21))

    assert changes(records) == [*EXPECTED, ("shop.item", "shop/-80", "4x")]
    ends = [r["transaction"] for r in records.to_pylist() if r["kind"] == TRANSACTION]
    assert ends == [gtid(11), gtid(12), gtid(21), gtid(13)]
    assert Position.from_offset(plan.end) == at(low=13, high=21)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(1, 70), max_size=20), st.booleans())
def test_whatever_comes_again_in_whatever_parts_counts_once(
    repeats: list[int], borders: list[int], cuts_often: bool
) -> None:
    steps = [LOW1, LOW2, HIGH1]
    order = list(steps)
    for place, number in enumerate(repeats):
        first = next(at for at, step in enumerate(order) if step is steps[number])
        order.insert(first + 1 + place % 3, steps[number])
    events = [one for step in order for one in step]
    cuts = sorted({0, len(events), *(b for b in borders if b < len(events))})
    assembler = TransactionAssembler(
        START,
        slice_bytes=1 if cuts_often else 1 << 20,
        keep_empty=False,
        stops_at_journals=False,
        **NONE_KNOWN,
    )
    for first, end in itertools.pairwise(cuts):
        assembler.add(response(*events[first:end]), 1)
    slices, schema_records = assembler.drain(1)

    assert sorted(changes(records_of(slices, schema_records))) == EXPECTED
    assert assembler.position == HEAD
    assert assembler.repeated == len(order) - 3


def test_a_transaction_restarted_in_chunks_counts_once(stack: ExitStack) -> None:
    incomplete = response(*LOW1[:3])
    capture = Capture(stack, [[incomplete, response(*LOW1), Waits()]], options(transaction_chunk_bytes=1000))

    records, _ = capture.read(START, at(low=11))

    assert changes(records) == EXPECTED[:1]
    assert capture.server.requests[0].flags.transaction_chunk_size == 1000


@pytest.mark.covers("VIT-STR-10")
def test_a_transaction_without_a_row_moves_the_offset_and_leaves_no_record(stack: ExitStack) -> None:
    empty = transaction("80-", {"-80": 10, "80-": 21})
    capture = Capture(stack, [[response(*empty), Waits()]], options())

    records, plan = capture.read(START, at(high=21))

    assert len(records) == 0
    assert Position.from_offset(plan.end) == at(low=10, high=21)


def test_transactions_without_rows_are_kept_if_enabled() -> None:
    assembler = TransactionAssembler(
        START, slice_bytes=1 << 20, keep_empty=True, stops_at_journals=False, **NONE_KNOWN
    )
    assembler.add(response(*transaction("80-", {"-80": 10, "80-": 21})), 1)
    slices, _ = assembler.drain(1)

    (one,) = records_of(slices, empty=True).to_pylist()

    assert one["kind"] == TRANSACTION
    assert one["payload"] == vgtid({"-80": 10, "80-": 21}).SerializeToString()


@pytest.mark.covers("VIT-STR-02")
def test_a_transactions_record_holds_the_vgtid_of_all_shards(stack: ExitStack) -> None:
    capture = Capture(stack, [[response(*LOW1), Waits()]], options())

    records, plan = capture.read(START, at(low=11))

    (end,) = (r for r in records.to_pylist() if r["kind"] == TRANSACTION)
    (change,) = (r for r in records.to_pylist() if r["kind"] == CHANGE)
    assert end["payload"] == vgtid({"-80": 11, "80-": 20}).SerializeToString()
    assert end["position"][:12] == change["position"][:12]
    assert end["transaction"] == change["transaction"] == gtid(11)
    assert {shard: value["gtid"] for shard, value in plan.end.items()} == {
        "shop/-80": gtid(11),
        "shop/80-": gtid(20),
    }


def test_a_limit_ends_a_plan_after_a_transaction_and_the_next_resumes(stack: ExitStack) -> None:
    capture = Capture(stack, [[response(*LOW1, *LOW2[:2]), response(*LOW2[2:], *HIGH1), Waits()]], options())
    limit = ReadLimit(bytes=1)

    first, plan = capture.read(START, HEAD, limit)
    second, last = capture.read(Position.from_offset(plan.end), HEAD, limit)

    assert not plan.at_head
    assert last.at_head
    assert changes(first) + changes(second) == EXPECTED
    assert len(capture.server.requests) == 1


def test_rows_bear_the_fields_that_came_last_before_them(stack: ExitStack) -> None:
    altered = transaction(
        "-80",
        {"-80": 12, "80-": 20},
        rows("item", "-80", (None, ["2", "x"])),
        fields("item", "-80", ("id", "name", "more")),
        rows("item", "-80", (None, ["3", "x", "y"])),
    )
    capture = Capture(stack, [[response(*LOW1), response(*altered), Waits()]], options())

    records, _ = capture.read(START, at(low=12))

    reported = {r["schema_id"]: r["payload"] for r in records.to_pylist() if r["kind"] == SCHEMA}
    used = [r["schema_id"] for r in records.to_pylist() if r["kind"] == CHANGE]
    assert len(reported) == 2
    assert used[0] == used[1] != used[2]
    assert set(used) == set(reported)


def test_shards_with_equal_tables_share_their_fields_name(stack: ExitStack) -> None:
    capture = Capture(stack, [[response(*LOW1, *LOW2, *HIGH1), Waits()]], options())

    records, _ = capture.read(START, HEAD)

    assert len({r["schema_id"] for r in records.to_pylist() if r["kind"] == CHANGE}) == 1


def test_a_ddl_statement_leaves_its_text(stack: ExitStack) -> None:
    ddl = [
        event("VGTID", "-80", vgtid=vgtid({"-80": 11, "80-": 20})),
        event("DDL", "-80", statement="alter table item add x int", timestamp=5),
    ]
    capture = Capture(stack, [[response(*ddl), Waits()]], options())

    records, _ = capture.read(START, at(low=11))

    (one,) = records.to_pylist()
    assert (one["kind"], one["schema_id"], one["payload"]) == (SCHEMA, "ddl", b"alter table item add x int")


def test_an_idle_shard_is_not_waited_for(stack: ExitStack) -> None:
    capture = Capture(stack, [[Waits()]], options())

    records, plan = capture.read(START, START)

    assert plan.at_head
    assert len(records) == 0
    assert capture.server.requests == []


def test_a_silent_stream_is_opened_again(stack: ExitStack) -> None:
    capture = Capture(stack, [[Waits()], [response(*LOW1), Waits()]], options(heartbeat_seconds=1))

    records, _ = capture.read(START, at(low=11))

    assert changes(records) == EXPECTED[:1]
    assert len(capture.server.requests) == 2
    assert capture.server.requests[0].flags.heartbeat_interval == 1


def test_a_stream_of_heartbeats_alone_fails_after_a_time(stack: ExitStack) -> None:
    beats = [response(event("HEARTBEAT"))] * 30
    capture = Capture(stack, [[*beats, *beats, Waits()]], options(heartbeat_seconds=1))
    capture.stream._options = VitessOptions(
        keyspace="shop", advanced=VitessAdvanced(stall_timeout_seconds=1.0, connect_attempts=0)
    )

    def slow(request: Any) -> Any:
        import time

        for beat in beats:
            time.sleep(0.1)
            yield beat

    capture.server._scripts = [slow]
    with pytest.raises(TransientError, match=r"no transaction for 1 s.*shop/-80"):
        capture.read(START, HEAD)


def test_transient_errors_are_retried_with_growing_pauses_and_then_raised(stack: ExitStack) -> None:
    failure = [Fails(grpc.StatusCode.UNAVAILABLE, "no tablet")]
    capture = Capture(stack, [failure], options())

    with pytest.raises(TransientError, match="no tablet"):
        capture.read(START, HEAD)

    assert capture.pauses == [0.01, 0.02, 0.04]


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "who", ConfigurationError),
        (grpc.StatusCode.UNKNOWN, "could not decode position", ConfigurationError),
        (
            grpc.StatusCode.UNKNOWN,
            "Cannot replicate because the source purged required binary logs",
            PositionLost,
        ),
        (
            grpc.StatusCode.FAILED_PRECONDITION,
            "shard provided in VGTID, -80, not found in the shop keyspace",
            PositionLost,
        ),
    ],
)
def test_configuration_errors_of_a_stream_are_raised_immediately(
    stack: ExitStack, code: grpc.StatusCode, text: str, error: type[Exception]
) -> None:
    capture = Capture(stack, [[Fails(code, text)]], options())

    with pytest.raises(error):
        capture.read(START, HEAD)

    assert capture.pauses == []


@pytest.mark.covers("VIT-FLT-05")
def test_columns_without_names_count_as_a_passing_fault(stack: ExitStack) -> None:
    bad = transaction("-80", {"-80": 11, "80-": 20}, fields("item", "-80", ("@1", "@2")))
    capture = Capture(stack, [[response(*bad), Waits()], [response(*LOW1), Waits()]], options())

    records, _ = capture.read(START, at(low=11))

    assert changes(records) == EXPECTED[:1]
    assert len(capture.pauses) == 1
    only_bad = Capture(stack, [[response(*bad), Waits()]], options())
    with pytest.raises(
        TransientError, match="Illegal prefix '@' for column: @1, from schema: shop, table: item"
    ):
        only_bad.read(START, at(low=11))


@pytest.mark.covers("VIT-STR-09")
def test_a_huge_transaction_in_many_responses_comes_whole(stack: ExitStack) -> None:
    many = [rows("item", "-80", *[(None, [str(n), "x" * 50]) for n in range(500)]) for _ in range(40)]
    whole = transaction("-80", {"-80": 11, "80-": 20}, fields("item", "-80"), *many)
    parts = [response(one) for one in whole]
    capture = Capture(
        stack,
        [[*parts[:20], Fails(grpc.StatusCode.UNAVAILABLE, "gone")], [*parts, Waits()]],
        options(transaction_chunk_bytes=4096),
    )

    records, plan = capture.read(START, at(low=11), ReadLimit(bytes=1))

    found = [r["position"] for r in records.to_pylist() if r["kind"] == CHANGE]
    assert len(found) == len(set(found)) == 20_000
    assert found == sorted(found)
    assert plan.at_head
    sent = capture.server.requests[1]
    assert [s.gtid for s in sent.vgtid.shard_gtids] == [gtid(10), gtid(20)]
    assert sent.flags.transaction_chunk_size == 4096


def recorded(name: str) -> list[bytes]:
    data, starts, ends = split_recording((FIXTURES / "reshard" / f"{name}.vstream").read_bytes())
    return [data[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]


def start_of(messages: Sequence[bytes]) -> Position:
    first = next(e for m in messages for e in VStreamResponse.FromString(m).events if e.type == 15)
    return Position(
        {
            s: ShardPosition(p.gtid, 1)
            for s, p in Position.of_vgtid(first.vgtid.SerializeToString()).shards.items()
        }
    )


@pytest.mark.recorded
@pytest.mark.parametrize("name", ["follow", "include_journal"])
@pytest.mark.covers("VIT-RSH-01")
def test_a_recorded_reshard_moves_the_offset_to_the_new_shards(name: str) -> None:
    messages = recorded(name)
    assembler = TransactionAssembler(
        start_of(messages), slice_bytes=1 << 14, keep_empty=False, stops_at_journals=False, **NONE_KNOWN
    )
    for message in messages:
        assembler.add(message, 1)
    slices, schema_records = assembler.drain(1)

    found = records_of(slices, schema_records)

    keys = sorted((origin, text[:3]) for _, origin, text in changes(found))
    assert keys == [("shop/40-80", "720"), ("shop/40-80", "721"), ("shop/80-", "722")]
    assert {s: (p.epoch, p.parents) for s, p in assembler.position.shards.items()} == {
        "shop/80-": (1, ()),
        "shop/-40": (2, ("shop/-80",)),
        "shop/40-80": (2, ("shop/-80",)),
    }
    lineage = [r["payload"] for r in found.to_pylist() if r["schema_id"] == "lineage"]
    assert sorted(lineage) == [b'{"shop/-40": ["shop/-80"]}', b'{"shop/40-80": ["shop/-80"]}']


@pytest.mark.recorded
@pytest.mark.covers("VIT-RSH-02")
def test_a_stream_stops_at_a_reshard_if_enabled_and_reports_the_next_offset(stack: ExitStack) -> None:
    messages = recorded("stop_on_reshard")
    start = start_of(messages)
    journal = next(e.journal for m in messages for e in VStreamResponse.FromString(m).events if e.type == 16)
    targets = {s.shard: s.gtid for s in journal.shard_gtids}
    new = {
        "80-": start.shards["shop/80-"].gtid,
        "-40": targets["-40"],
        "40-80": targets["40-80"].replace("1-246", "1-247"),
    }
    after = insert("40-80", 720, new, with_fields=True)
    capture = Capture(
        stack,
        [[*messages, Waits()], [*messages, Waits()], [response(*after), Waits()]],
        options(stop_on_reshard=True),
    )
    head = Position({"shop/40-80": ShardPosition(new["40-80"], 1), "shop/80-": start.shards["shop/80-"]})
    streams = ParallelStreams(lambda *_: capture.stream, options(stop_on_reshard=True))

    plan = streams.plan(start, head, ALL)
    stopped = Position.from_offset(plan.end)

    assert not plan.at_head
    assert set(stopped.shards) == {"shop/-80", "shop/80-"}
    assert [r["payload"] for r in plan.records if r["schema_id"] == "lineage"] == [
        b'{"shop/-40": ["shop/-80"]}',
        b'{"shop/40-80": ["shop/-80"]}',
    ]
    for _ in range(2):
        with pytest.raises(ReshardStopped, match="shop/-80 turned into shop/-40, shop/40-80") as reported:
            streams.plan(stopped, head, ALL)
    later = ParallelStreams(lambda *_: capture.stream, options(stop_on_reshard=True))
    again = later.plan(stopped, head, ALL)
    assert (again.end, again.at_head, list(again.partitions)) == (plan.end, False, [])
    with pytest.raises(ReshardStopped):
        later.plan(stopped, head, ALL)
    assert capture.server.requests[0].flags.stop_on_reshard
    assert not capture.server.requests[0].flags.include_reshard_journal_events

    given = Position.from_offset(json.loads(reported.value.found))
    assert {s: p.epoch for s, p in given.shards.items()} == {"shop/80-": 1, "shop/-40": 2, "shop/40-80": 2}
    assert given.shards["shop/-40"].gtid == targets["-40"]
    went_on = later.plan(given, head, ALL)
    assert changes(records_of(went_on.partitions)) == [("shop.item", "shop/40-80", "720x")]
    assert went_on.at_head
    reopened = {s.shard: s.gtid for s in capture.server.requests[2].vgtid.shard_gtids}
    assert {shard: reopened[shard] for shard in targets} == targets
    assert set(reopened) == {"80-", "-40", "40-80"}


@pytest.mark.recorded
@pytest.mark.covers("VIT-RSH-03")
def test_a_journal_is_seen_and_counted_without_a_stop(stack: ExitStack) -> None:
    messages = recorded("include_journal")
    start = start_of(messages)
    capture = Capture(stack, [[*messages, Waits()]], options())
    last = [e.vgtid for m in messages for e in VStreamResponse.FromString(m).events if e.type == 15][-1]
    head = Position.of_vgtid(last.SerializeToString())

    records, plan = capture.read(start, head)

    flags = capture.server.requests[0].flags
    assert (flags.include_reshard_journal_events, flags.stop_on_reshard) == (True, False)
    assert capture.stream.counts.journals == 1
    assert plan.at_head
    assert len(capture.server.requests) == 1
    assert len(changes(records)) == 3


@pytest.mark.recorded
@pytest.mark.covers("VIT-RSH-01")
def test_a_stream_lost_after_a_journal_resumes_with_the_new_shards(stack: ExitStack) -> None:
    messages = recorded("include_journal")
    start = start_of(messages)
    events = [VStreamResponse.FromString(m).events for m in messages]
    place, reported = next((n, e.journal) for n, inside in enumerate(events) for e in inside if e.type == 16)
    last = [e.vgtid for inside in events for e in inside if e.type == 15][-1]
    broken: list[Any] = [*messages[: place + 1], Fails(grpc.StatusCode.UNAVAILABLE, "gone")]
    capture = Capture(stack, [broken, [*messages[place + 1 :], Waits()]], options())

    records, plan = capture.read(start, Position.of_vgtid(last.SerializeToString()))

    assert plan.at_head
    assert len(changes(records)) == 3
    again = {s.shard: s.gtid for s in capture.server.requests[1].vgtid.shard_gtids}
    assert again.keys() == {"80-", "-40", "40-80"}
    assert {s.shard: s.gtid for s in reported.shard_gtids}.items() <= again.items()


def test_two_merging_shards_remain_before_their_journals_until_both_arrive() -> None:
    assembler = TransactionAssembler(
        Position({f"shop/{name}": ShardPosition(gtid(5), 1) for name in ("-40", "40-80", "80-")}),
        slice_bytes=1 << 20,
        keep_empty=False,
        stops_at_journals=False,
        **NONE_KNOWN,
    )

    def take(shard: str, shards: dict[str, int | str], *inside: Any) -> dict[str, str]:
        assembler.add(response(*transaction(shard, shards, *inside)), 1)
        return {name.removeprefix("shop/"): place.gtid for name, place in assembler.position.shards.items()}

    def change(shard: str, number: int) -> list[Any]:
        return [fields("item", shard), rows("item", shard, (None, [f"{number}", "x"]))]

    halves = ["-40", "40-80"]
    first = take("-40", {"-40": 6, "40-80": 5, "80-": 5}, journal("-40", halves, {"-80": 3}))
    between = take("40-80", {"-40": 6, "40-80": 6, "80-": 5}, *change("40-80", 1))
    both = take("40-80", {"-40": 6, "40-80": 7, "80-": 5}, journal("40-80", halves, {"-80": 3}))
    late = take("80-", {"-40": 6, "40-80": 7, "80-": 6}, *change("80-", 2))
    followed = take("-80", {"80-": 6, "-80": 4}, *change("-80", 3))

    assert first == {"-40": gtid(5), "40-80": gtid(5), "80-": gtid(5)}
    assert between == {"-40": gtid(5), "40-80": gtid(6), "80-": gtid(5)}
    assert both == {"-80": gtid(3), "80-": gtid(5)}
    assert late == {"-80": gtid(3), "80-": gtid(6)}
    assert followed == {"-80": gtid(4), "80-": gtid(6)}
    assert assembler.position.shards["shop/-80"].parents == ("shop/-40", "shop/40-80")
    slices, schema_records = assembler.drain(1)
    found = records_of(slices, schema_records)
    assert [origin for _, origin, _ in changes(found)] == ["shop/40-80", "shop/80-", "shop/-80"]
    assert [r["payload"] for r in schema_records if r["schema_id"] == "lineage"] == [
        b'{"shop/-80": ["shop/-40", "shop/40-80"]}'
    ]


def test_every_recorded_row_becomes_a_record() -> None:
    for file in sorted((FIXTURES / "vstream").glob("*.vstream")):
        data, starts, ends = split_recording(file.read_bytes())
        events = scan(data, starts, ends)
        first = next(n for n in range(len(events)) if events.types[n] == 20 and not events.table(n).shard)
        message = events.messages[first] + 1
        streamed = [data[a:b].tobytes() for a, b in zip(starts[message:], ends[message:], strict=True)]
        begin = Position({shard: ShardPosition("current") for shard in start_of(streamed).shards})
        assembler = TransactionAssembler(
            begin, slice_bytes=1 << 12, keep_empty=False, stops_at_journals=False, **NONE_KNOWN
        )
        expected = []
        for one in streamed:
            assembler.add(one, 1)
            expected += [
                change.SerializeToString()
                for event in VStreamResponse.FromString(one).events
                for change in event.row_event.row_changes
            ]
        records = records_of(*assembler.drain(1))
        found = [r["payload"] for r in records.to_pylist() if r["kind"] == CHANGE]
        assert [RowChange.FromString(p) for p in found] == [RowChange.FromString(p) for p in expected]
        assert expected


@pytest.mark.covers("VIT-STR-11", "VIT-SCO-21")
def test_flags_of_the_stream_match_the_options(stack: ExitStack) -> None:
    script: list[Step] = [response(*LOW1), Waits()]
    plain = Capture(stack, [script], options())
    chosen = Capture(
        stack,
        [script],
        options(
            minimize_skew=True,
            keyspace_heartbeats=True,
            journals=False,
            heartbeat_seconds=7,
            cells=("a", "b"),
            cell_preference="onlyspecified",
            tablet_order="inorder",
        ),
    )
    plain.read(START, at(low=11))
    chosen.read(START, at(low=11))

    flags = plain.server.requests[0].flags
    assert (flags.minimize_skew, flags.stream_keyspace_heartbeats, flags.stop_on_reshard) == (False,) * 3
    assert (flags.cells, flags.cell_preference, flags.tablet_order) == ("", "", "")
    assert (flags.transaction_chunk_size, flags.include_reshard_journal_events) == (0, True)
    flags = chosen.server.requests[0].flags
    assert (flags.minimize_skew, flags.stream_keyspace_heartbeats) == (True, True)
    assert (flags.cells, flags.cell_preference, flags.tablet_order) == ("a,b", "onlyspecified", "inorder")
    assert (flags.heartbeat_interval, flags.include_reshard_journal_events) == (7, False)
    with pytest.raises(ConfigurationError, match="has no effect with minimize_skew"):
        options(minimize_skew=True, transaction_chunk_bytes=1000)


def test_a_stream_and_its_readers_report_metrics(stack: ExitStack) -> None:
    def written(table: str, key: int, *changes: Any) -> list[Any]:
        shards: dict[str, int | str] = {"-80": key, "80-": 20}
        return transaction("-80", shards, fields(table, "-80"), rows(table, "-80", *changes))

    one, other = ["1", "a"], ["1", "b"]
    script: list[Step] = [
        response(*written("item", 11, (None, one), (one, other), (other, None))),
        response(*written("item", 12, (None, one))),
        response(*written("elsewhere", 13, (None, one), (None, other))),
        Waits(),
    ]
    capture = Capture(stack, [script], options())

    plan = capture.stream.plan(START, at(low=13), ReadLimit())

    numbers = capture.stream.counts
    assert (numbers.connected, numbers.disconnects, numbers.events) == (True, 0, 6)
    assert numbers.position == {"shop/-80": gtid(13), "shop/80-": gtid(20)}
    assert numbers.behind_seconds is not None
    metrics = ReadMetrics()
    list(SliceReader("shop.item".__eq__).read(plan.partitions, metrics))
    assert +metrics.counts == {"creates": 2, "updates": 1, "deletes": 1, "filtered": 2, "transactions": 2}
