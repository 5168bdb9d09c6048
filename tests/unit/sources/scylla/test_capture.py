"""Which time is read next: windows, their width, switches of streams; and offsets."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.scylla.capture import (
    GroupRead,
    Pace,
    Paces,
    Window,
    divide,
    group_reads,
    next_window,
)
from airflow_cdc_provider.sources.scylla.generations import Timeline, by_token, by_vnode
from airflow_cdc_provider.sources.scylla.position import TablePosition, read_offset, write_offset
from airflow_cdc_provider.sources.scylla.stream_ids import (
    first_time,
    sortable_time,
    stream_token,
    time_after,
    time_us,
    timeuuid,
    vnode_index,
)

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def timeline(*begins_ms: int) -> Timeline:
    return Timeline(begins_ms, lambda ms: {})


def test_a_stream_id_contains_token_and_vnode() -> None:
    stream = bytes.fromhex("c000000000000000aacd159e24000051")
    assert (stream_token(stream), vnode_index(stream)) == (-4611686018427387904, 5)


@pytest.mark.covers("SCY-STM-04", "SCY-STM-05", "SCY-STM-07")
def test_73728_streams_are_1024_groups() -> None:
    streams = [
        (number * 2**40 % 2**64).to_bytes(8, "big") + (number % 1024 << 4 | 1).to_bytes(8, "big")
        for number in range(4 * 256 * 72)
    ]
    groups = by_vnode(streams)
    assert len(groups) == 1024
    assert {len(group) for group in groups.values()} == {72}
    assert all(list(group) == sorted(group) for group in groups.values())


@pytest.mark.covers("SCY-STM-10")
def test_streams_of_tablets_are_groups_of_their_own() -> None:
    streams = [token.to_bytes(8, "big", signed=True) + (1).to_bytes(8, "big") for token in (-5, 0, 2**62)]
    assert by_token(streams) == {str(t): (s,) for t, s in zip((-5, 0, 2**62), streams, strict=True)}


@pytest.mark.covers("SCY-STM-03")
def test_twice_the_tasks_have_half_the_streams() -> None:
    reads = [GroupRead("s.t", str(n), 1, 0, 1, (bytes(15) + bytes([n]),) * 72) for n in range(64)]
    for tasks in (1, 2, 4, 8):
        parts = divide(reads, tasks, 256)
        assert [sum(len(r.streams) for r in part.reads) for part in parts] == [64 * 72 // tasks] * tasks
        assert sorted(r.group for part in parts for r in part.reads) == sorted(r.group for r in reads)
        assert sum(part.requests for part in parts) <= 256
    assert len(divide(reads[:3], 8, 256)) == 3
    assert [part.requests for part in divide(reads, 8, 3)] == [1] * 3, "one limit, however many tasks"
    assert divide([], 8, 256) == []


@given(st.integers(0, 2**52), st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8))
def test_times_sort_as_the_database_sorts_them(moment_us: int, one: bytes, other: bytes) -> None:
    first = first_time(moment_us)
    assert time_us(first) == moment_us
    times = [first[:8] + rest for rest in (one, other)]
    signed = [[b - 256 if b > 127 else b for b in time[8:]] for time in times]
    assert (sortable_time(times[0]) < sortable_time(times[1])) == (signed[0] < signed[1])
    for time in times:
        assert sortable_time(first) <= sortable_time(time) < sortable_time(first_time(moment_us + 1))
        assert timeuuid(sortable_time(time)) == time
        assert int.from_bytes(sortable_time(time_after(time)), "big") == 1 + int.from_bytes(
            sortable_time(time), "big"
        )


@pytest.mark.covers("SCY-GEN-02")
def test_a_window_ends_where_streams_change_and_the_next_begins_there() -> None:
    begins = timeline(1_000, 5_000, 9_000)
    window = next_window(TablePosition(1_000, 4_000_000), begins, 20_000_000, 10 * SECOND_US)
    assert window == Window(1_000, 4_000_000, 5_000_000)
    window = next_window(TablePosition(1_000, 5_000_000), begins, 20_000_000, SECOND_US)
    assert window == Window(5_000, 5_000_000, 6_000_000)
    # The head is the confidence window behind the clock: until it passes the switch, nothing newer is read.
    window = next_window(TablePosition(1_000, 4_000_000), begins, 4_500_000, 10 * SECOND_US)
    assert window == Window(1_000, 4_000_000, 4_500_000)
    assert next_window(TablePosition(1_000, 4_500_000), begins, 4_500_000, 10 * SECOND_US) is None
    window = next_window(TablePosition(1_000, 4_500_000), begins, 6_000_000, 10 * SECOND_US)
    assert window == Window(1_000, 4_500_000, 5_000_000)
    # None is skipped, however late they are found.
    window = next_window(TablePosition(1_000, 12_000_000), begins, 20_000_000, 10 * SECOND_US)
    assert window == Window(5_000, 5_000_000, 9_000_000)
    assert next_window(TablePosition(9_000, 20_000_000), begins, 20_000_000, SECOND_US) is None
    assert next_window(TablePosition(0, 0), timeline(), 20_000_000, SECOND_US) is None
    assert next_window(TablePosition(0, 0), begins, 20_000_000, SECOND_US) == Window(
        1_000, 1_000_000, 2_000_000
    )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True), st.integers(1, 60), st.data())
def test_windows_cover_each_set_of_streams_once_and_in_order(
    begins: list[int], width: int, data: st.DataObject
) -> None:
    known = sorted(begins)
    start = data.draw(st.integers(0, 250)) * 1000
    head = data.draw(st.integers(0, 300)) * 1000
    sets = timeline(*known)
    position, read = TablePosition(sets.at(start) or 0, start), []
    while window := next_window(position, sets, head, width * 1000):
        read.append(window)
        position = position.moved(window.generation_ms, window.end_us)
    expected = start if start >= known[0] * 1000 else known[0] * 1000
    for window in read:
        assert window.begin_us == expected
        assert sets.at(window.begin_us) == window.generation_ms == sets.at(window.end_us - 1)
        expected = window.end_us
    if head > max(start, known[0] * 1000):
        assert expected == head


@pytest.mark.covers("SCY-WIN-01")
def test_windows_widen_over_empty_time_and_narrow_under_load() -> None:
    paces = Paces(Pace.between(30 * SECOND_US, DAY_US))
    read = windows = 0
    while read < DAY_US:
        took = min(paces.of("t").width_us, DAY_US - read)
        read, windows, paces = read + took, windows + 1, paces.after({"t": took}, {})
    assert 50 * windows <= DAY_US // (30 * SECOND_US)
    for _ in range(40):
        paces = paces.after({"t": paces.of("t").width_us}, {"t": 1.5})
    assert paces.of("t").width_us == SECOND_US
    assert paces.after({"t": SECOND_US}, {"t": 0.8}).of("t") == paces.of("t")
    # The end of what there is says nothing of wider windows.
    assert Pace(100, 1, 1000).wider(50).width_us == 100
    fixed = Paces(Pace.between(100, 100))
    assert {fixed.after({"t": 100}, {"t": held}).of("t").width_us for held in (0.0, 9.0)} == {100}


def test_a_busy_table_has_narrow_windows_and_leaves_the_others_wide_ones() -> None:
    rates = {"busy": 4e-9, "even": 1e-9, "idle": 0.0}  # of what a batch may hold, per us
    paces = Paces(Pace.between(30 * SECOND_US, DAY_US))
    most = 0.0
    for number in range(60):
        read = {table: paces.of(table).width_us for table in rates}
        held = {table: rates[table] * width for table, width in read.items()}
        if number > 20:
            most = max(most, sum(held.values()))
            assert read["busy"] <= read["even"] < read["idle"]
        paces = paces.after(read, held)
    assert paces.of("idle").width_us == DAY_US
    assert 0.5 < most <= 1
    refused = paces.after({"idle": DAY_US, "even": 1}, {}, overloaded=True)
    assert refused.tables == paces.tables


@pytest.mark.covers("SCY-STM-06")
def test_an_offset_names_a_table_once_and_groups_that_are_ahead() -> None:
    positions = {"s.a": TablePosition(5, 7), "s.b": TablePosition(5, 7, {"3": 9})}
    offset = write_offset(positions)
    assert offset == {
        "s.a": {"v": 1, "generation": 5, "read_to": 7},
        "s.b": {"v": 1, "generation": 5, "read_to": 7, "groups": {"3": 9}},
    }
    assert read_offset(offset) == positions
    assert positions["s.b"].group_reads_from("3") == 9
    assert positions["s.b"].group_reads_from("4") == 7
    assert positions["s.b"].moved(5, 8).ahead == {"3": 9}
    assert positions["s.b"].moved(5, 9).ahead == positions["s.b"].moved(6, 8).ahead == {}
    truncated = TablePosition(5, 7, truncated_us=6, started_us=8)
    assert read_offset(write_offset({"s.a": truncated})) == {"s.a": truncated}
    assert (truncated.moved(6, 8).truncated_us, truncated.moved(6, 8).started_us) == (6, 0)


@pytest.mark.covers("SCY-OFF-03")
def test_twenty_thousand_groups_are_one_position_read_at_once() -> None:
    streams = tuple((number << 64 | number << 4 | 1).to_bytes(16, "big") for number in range(20_000))
    groups = by_vnode(streams)
    assert len(groups) == 20_000
    sets = Timeline((1_000,), lambda ms: groups)
    offset = write_offset({"s.t": TablePosition(1_000, 1_000_000)})
    for number in range(1, 101):
        position = read_offset(offset)["s.t"]
        window = next_window(position, sets, 10**9, 10_000)
        assert window is not None
        if number in (1, 100):
            parts = divide(group_reads("s.t", position, window, sets), 8, 256)
            assert sum(len(part.reads) for part in parts) == 20_000
        offset = write_offset({"s.t": position.moved(window.generation_ms, window.end_us)})
        assert len(json.dumps(offset)) < 100, "it doesn't grow, however often it is stored"
    # Groups with separate positions are also read exactly once.
    ahead = {str(number): 3_000_000 + number for number in range(20_000)}
    offset = write_offset({"s.t": TablePosition(1_000, 2_000_000, ahead)})
    began = process_time()
    stored = read_offset(json.loads(json.dumps(offset)))["s.t"]
    assert process_time() - began < 2
    assert stored.ahead == ahead
    reads = group_reads("s.t", stored, Window(1_000, 2_000_000, 4_000_000), sets)
    assert all(read.begin_us == 3_000_000 + int(read.group) for read in reads)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"v": 2, "generation": 1, "read_to": 1},
        {"v": 1, "generation": 1},
        {"v": 1, "generation": -1, "read_to": 1},
        {"v": 1, "generation": 1, "read_to": True},
        {"v": 1, "generation": 1, "read_to": 1, "window": 1},
        {"v": 1, "generation": 1, "read_to": 1, "groups": {"a": "b"}},
        {"v": 1, "generation": 1, "read_to": 1, "truncated": "now"},
        {"v": 1, "generation": 1, "read_to": 1, "started": -1},
    ],
)
def test_an_offset_of_another_form_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"invalid offset of s\.t"):
        read_offset({"s.t": value})
