from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.vitess.task_offsets import (
    Layout,
    ShardOffset,
    TaskKey,
    assign_shards,
    migrated,
    newest,
)

FOUR = ("shop/-40", "shop/40-80", "shop/80-c0", "shop/c0-")
NAMES = st.sets(st.sampled_from([f"shop/{n:02x}-{n + 1:02x}" for n in range(40)]), min_size=1)


def at(number: int, **more: Any) -> ShardOffset:
    return ShardOffset(f"MySQL56/{number}", number, **more)


def kept(
    generation: int, tasks: int, places: Mapping[str, ShardOffset]
) -> dict[TaskKey, dict[str, ShardOffset]]:
    """What tasks have stored that share these shards."""
    return {
        TaskKey(generation, tasks, task): {shard: places[shard] for shard in share}
        for task, share in enumerate(assign_shards(places, tasks))
    }


def together(tasks: Mapping[TaskKey, Mapping[str, ShardOffset]]) -> dict[str, ShardOffset]:
    return {shard: offset for share in tasks.values() for shard, offset in share.items()}


PLACES = {shard: at(number) for number, shard in enumerate(FOUR, 1)}


@pytest.mark.covers("VIT-OFS-05")
def test_four_shards_are_assigned_to_two_tasks_round_robin() -> None:
    assert assign_shards(reversed(FOUR), 2) == [("shop/-40", "shop/80-c0"), ("shop/40-80", "shop/c0-")]


@given(NAMES, st.integers(1, 50))
def test_every_shard_has_one_task_and_assignments_differ_by_at_most_one(names: set[str], tasks: int) -> None:
    assignments = assign_shards(names, tasks)

    assert sorted(shard for share in assignments for shard in share) == sorted(names)
    assert len(assignments) == min(tasks, len(names))
    assert max(map(len, assignments)) - min(map(len, assignments)) <= 1
    for number, shard in enumerate(sorted(names)):
        assert shard in assignments[number % len(assignments)]


@pytest.mark.covers("VIT-OFS-06")
def test_keys_are_named_by_task_number_of_tasks_and_generation() -> None:
    assert [str(TaskKey(1, 2, task)) for task in range(2)] == ["task0_2_1", "task1_2_1"]
    assert TaskKey.parse("task1_2_3") == TaskKey(3, 2, 1)
    assert TaskKey.parse("") == TaskKey(0, 1, 0)
    with pytest.raises(ConfigurationError, match="not a valid key of a task"):
        TaskKey.parse("task1")


@pytest.mark.covers("VIT-OFS-07")
def test_two_tasks_become_four_with_unchanged_positions() -> None:
    moved = migrated(kept(1, 2, PLACES), Layout(2, 4, 2), FOUR, {})

    assert [str(key) for key in moved] == ["task0_4_2", "task1_4_2", "task2_4_2", "task3_4_2"]
    assert [list(share) for share in moved.values()] == [[shard] for shard in FOUR]
    assert together(moved) == PLACES


@given(NAMES, st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
def test_a_migration_keeps_every_position(names: set[str], before: int, after: int, generation: int) -> None:
    places = {shard: at(number) for number, shard in enumerate(sorted(names))}
    really = min(before, len(names))
    if really == min(after, len(names)):
        return

    moved = migrated(kept(generation, really, places), Layout(generation + 1, after, really), names, {})

    assert together(moved) == places
    assert {(key.generation, key.tasks) for key in moved} == {(generation + 1, min(after, len(names)))}


@pytest.mark.covers("VIT-OFS-08")
def test_a_plain_offset_counts_as_generation_0_of_one_task() -> None:
    plain = {TaskKey.parse(""): PLACES}

    assert together(migrated(plain, Layout(1, 2, 1), FOUR, {})) == PLACES
    with pytest.raises(
        ConfigurationError, match=r"generation 0 has offsets of another number of tasks: expected 1"
    ):
        migrated(plain, Layout(1, 2, 3), FOUR, {})


@pytest.mark.covers("VIT-OFS-09", "VIT-OFS-04")
def test_there_are_no_more_tasks_than_shards_and_the_next_generation_must_match() -> None:
    first = migrated({TaskKey.parse(""): PLACES}, Layout(1, 9, 1), FOUR, {})
    assert {key.tasks for key in first} == {4}

    with pytest.raises(
        ConfigurationError, match=r"another number of tasks: expected 4, found 9.*prev\.num\.tasks"
    ):
        migrated(first, Layout(2, 2, 9), FOUR, {})
    assert together(migrated(first, Layout(2, 2, 4), FOUR, {})) == PLACES


@pytest.mark.covers("VIT-OFS-10")
def test_the_present_generation_wins_over_the_one_before_and_that_over_configuration() -> None:
    before = kept(1, 2, {shard: PLACES[shard] for shard in FOUR[:3]})
    current = {TaskKey(2, 3, 0): {FOUR[0]: at(11)}}
    configured = dict.fromkeys(FOUR, at(99))

    found = together(migrated({**before, **current}, Layout(2, 3, 2), FOUR, configured))

    assert [found[shard] for shard in FOUR] == [at(11), at(2), at(3), at(99)]


@pytest.mark.covers("VIT-OFS-03")
def test_another_number_of_tasks_needs_the_next_generation() -> None:
    stored = {**kept(0, 1, PLACES), **kept(1, 2, PLACES)}

    with pytest.raises(ConfigurationError, match="a new number of tasks needs the next generation"):
        migrated(stored, Layout(1, 4, 1), FOUR, {})
    assert together(migrated(stored, Layout(1, 2, 1), FOUR, {})) == PLACES


@pytest.mark.covers("VIT-OFS-11")
@pytest.mark.parametrize(
    ("stored", "layout", "topology", "message"),
    [
        (kept(1, 2, PLACES), Layout(2, 4, 2), FOUR[:3], "more shards than exist.*shop/c0-"),
        (kept(1, 2, PLACES), Layout(2, 2, 2), FOUR, "as many tasks and the same shards"),
        ({TaskKey(1, 2, 0): {FOUR[0]: at(1)}}, Layout(2, 4, 2), FOUR, "found none of task1_2_1"),
        ({}, Layout(2, 4, 2), FOUR, "found none of task0_2_1, task1_2_1"),
    ],
)
def test_a_migration_that_would_lose_positions_is_rejected(
    stored: dict[TaskKey, dict[str, ShardOffset]], layout: Layout, topology: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        migrated(stored, layout, topology, dict.fromkeys(FOUR, at(99)))


def test_stored_shards_that_were_resharded_meanwhile_are_kept() -> None:
    halves = {"shop/-80": at(1), "shop/80-": at(2)}

    moved = migrated(kept(1, 2, halves), Layout(2, 1, 2), FOUR, {})

    assert together(moved) == halves
    halved = {**kept(1, 2, halves), TaskKey(2, 1, 0): halves}
    assert together(migrated(halved, Layout(2, 1, 2), FOUR, {})) == halves


@pytest.mark.covers("VIT-OFS-12")
@given(NAMES, st.integers(2, 9))
def test_copies_that_are_not_finished_keep_their_last_keys(names: set[str], tasks: int) -> None:
    last = {"table_name": "orders", "lastpk": {"fields": [], "rows": [{"lengths": ["1"], "values": "7"}]}}
    places = {shard: at(number, copying=(last,)) for number, shard in enumerate(sorted(names))}
    if len(names) == 1:
        return

    assert together(migrated({TaskKey.parse(""): places}, Layout(1, tasks, 1), names, {})) == places


def test_without_a_layout_the_last_generation_counts_and_must_be_whole() -> None:
    stored = {**kept(0, 1, dict.fromkeys(FOUR, at(50))), **kept(1, 2, PLACES)}
    assert newest(stored) == PLACES

    del stored[TaskKey(1, 2, 1)]
    with pytest.raises(ConfigurationError, match="found none of task1_2_1"):
        newest(stored)
