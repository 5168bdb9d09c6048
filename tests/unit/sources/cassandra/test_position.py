"""The offset's form and arithmetic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.position import (
    MOST_RANGES,
    WHOLE,
    NodeOffset,
    read_offset,
    whole_segments,
    write_offset,
)

steps = st.lists(st.tuples(st.integers(1, 60), st.one_of(st.just(WHOLE), st.integers(1, 99))), max_size=60)


@given(steps)
def test_each_segment_is_where_it_was_last_advanced_to(taken: list[tuple[int, int]]) -> None:
    node = NodeOffset()
    for segment, position in taken:
        node = node.advance(segment, position)
    last = dict(taken)
    assert {s: node.position(s) for s in range(1, 61)} == {
        s: last.get(s, node.position(s)) for s in range(1, 61)
    }
    assert all(node.position(s) in (0, WHOLE) for s in range(1, 61) if s not in last)


@given(steps)
def test_offset_survives_json(taken: list[tuple[int, int]]) -> None:
    node = NodeOffset()
    for segment, position in taken:
        node = node.advance(segment, position)
    text = json.dumps(write_offset({"host": node}), sort_keys=True)
    assert read_offset(json.loads(text)) == {"host": node}


def test_adjacent_segments_are_one_range_in_any_order() -> None:
    node = NodeOffset()
    for segment in (5, 7, 6, 9, 8, 4):
        node = node.advance(segment, WHOLE)
    assert node.done == ((4, 9),)


def test_the_lowest_ranges_of_removed_segments_are_dropped_and_nothing_else_counts_as_read() -> None:
    node = NodeOffset()
    for segment in range(0, 2 * (MOST_RANGES + 3), 2):
        node = node.advance(segment + 10, WHOLE)
    assert len(node.done) == MOST_RANGES + 3
    assert node.without_removed([12]).done == (node.done[1], *node.done[4:])
    assert node.without_removed(range(600)) == node
    assert node.without_removed([]).done == node.done[3:]
    assert [node.without_removed([]).position(segment) for segment in (10, 11, 15, 16)] == [0, 0, 0, WHOLE]


@given(st.lists(st.integers(1, 40), max_size=40))
def test_exactly_the_segments_that_were_read_count_as_read(read: list[int]) -> None:
    node = NodeOffset()
    for segment in read:
        node = node.advance(segment, WHOLE)
    assert node.done == whole_segments(read)
    assert {s for s in range(42) if node.position(s)} == {*read} | {0}


def test_open_segment_below_the_floor_is_still_open() -> None:
    node = NodeOffset(floor=100, open={50: 7})
    assert node.position(50) == 7
    assert node.advance(50, WHOLE).position(50) == WHOLE


def test_person_may_give_floor_and_open_alone() -> None:
    (node,) = read_offset({"host": {"v": 1, "floor": 100, "open": {"101": 4096}}}).values()
    assert (node.position(100), node.position(101), node.position(102)) == (WHOLE, 4096, 0)
    assert read_offset(None) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"host": 5},
        {"host": {}},
        {"host": {"v": 2, "floor": 1}},
        {"host": {"v": 1, "floor": -1}},
        {"host": {"v": 1, "floor": "1"}},
        {"host": {"v": 1, "floor": True}},
        {"host": {"v": 1, "segment": 5}},
        {"host": {"v": 1, "done": [[1]]}},
        {"host": {"v": 1, "open": {"x": 1}}},
        {"host": {"v": 1, "open": {"1": None}}},
    ],
)
def test_malformed_offsets_are_rejected_with_an_example(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="floor"):
        read_offset(wrong)  # type: ignore[arg-type]
