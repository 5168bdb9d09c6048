"""Rows built from a topic's events: what counts, what is deleted, and what can't be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.jobs.comparing.reported_rows import RowForm, reported_by
from airflow_cdc_provider.jobs.comparing.row_comparison import compare_reported
from airflow_cdc_provider.lake.compare import Comparison
from airflow_cdc_provider.sources.cassandra.events.source_events import CassandraSourceEvents
from airflow_cdc_provider.sources.scylla.events.source_events import ScyllaSourceEvents

CELLS = RowForm(
    operations=CassandraSourceEvents.operations,
    exact_deletions=CassandraSourceEvents.exact_deletions,
    partition=("p",),
    clustering=("c",),
    static_columns=("s",),
    left_out=("tags",),
)
SCYLLA = replace(
    CELLS,
    operations=ScyllaSourceEvents.operations,
    exact_deletions=ScyllaSourceEvents.exact_deletions,
)
MERGED = replace(CELLS, left_out=(), whole=True)
WHOLE = replace(MERGED, enveloped=False, in_cells=False)
NOW_US = 1_000_000

Event = tuple[dict[str, Any], Any]


def cell(value: Any, until_us: int | None = None) -> dict[str, Any]:
    return {"value": value, "deletion_ts": until_us, "set": True}


def row(c: int | None = 1, p: int = 1) -> dict[str, Any]:
    return {"p": p, "c": c}


def event(op: str, key: dict[str, Any], ts_us: int, **cells: Any) -> Event:
    after = {**{name: cell(value) for name, value in key.items()}, **cells, "_range_start": None}
    return key, {"op": op, "source": {"ts_us": ts_us, "ts_ms": 0}, "after": after}


def compared(topic: list[Event], mirror: list[Event], form: RowForm = CELLS) -> Comparison:
    sides = []
    for events, of_mirror in ((topic, False), (mirror, True)):
        keys, values = (
            pa.array([None if one is None else json.dumps(one).encode() for one in part], pa.binary())
            for part in ([key for key, _ in events], [value for _, value in events])
        )
        sides.append(reported_by(keys, values, np.arange(len(events)), form, of_mirror=of_mirror))
    return compare_reported(pa.Table.from_batches(sides), form, NOW_US)


def counts(topic: list[Event], mirror: list[Event], form: RowForm = CELLS) -> tuple[int, ...]:
    """Equal, only in the topic, only in the mirror, different, unreported, not compared."""
    found = compared(topic, mirror, form)
    assert found.samples or found.only_left + found.only_right + found.different == 0
    return (
        found.equal,
        found.only_left,
        found.only_right,
        found.different,
        found.unreported,
        found.not_compared,
    )


def mirrored(key: dict[str, Any], **values: Any) -> Event:
    return event("c", key, 0, **{name: cell(value) for name, value in values.items()})


def test_cells_of_several_events_make_a_row_by_their_write_times_not_their_places() -> None:
    topic = [
        event("i", row(), 10, a=cell(1), b=cell("x")),
        event("u", row(), 30, a=cell(3)),
        event("u", row(), 20, a=cell(2), b=cell(None)),
    ]
    assert counts(topic, [mirrored(row(), a=3)]) == (1, 0, 0, 0, 0, 0)
    wrong = compared(topic, [mirrored(row(), a=2, b="x")])
    assert wrong.different == 1
    assert wrong.samples == ({"key": json.dumps(row()), "columns": ["a", "b"]},)


def test_copies_of_other_nodes_change_nothing() -> None:
    topic = [event("i", row(), 10, a=cell(1)), event("u", row(), 20, a=cell(2))]
    assert counts(topic + topic[:1], [mirrored(row(), a=2)]) == (1, 0, 0, 0, 0, 0)


def test_a_deletion_takes_what_is_not_later_and_wins_ties() -> None:
    topic = [event("i", row(), 10, a=cell(1)), event("d", row(), 99, a=cell(None, 10))]
    assert counts(topic, []) == (0, 0, 0, 0, 0, 0)
    assert counts(topic, [mirrored(row(), a=1)]) == (0, 0, 1, 0, 0, 0)
    assert counts([*topic, event("u", row(), 11, a=cell(2))], [mirrored(row(), a=2)]) == (1, 0, 0, 0, 0, 0)
    assert counts(topic[:1], []) == (0, 1, 0, 0, 0, 0), "its delete is lost"


def test_times_of_deletions_and_expiries_may_be_in_ms() -> None:
    ms = replace(CELLS, deletion_unit_us=1000)
    topic = [event("i", row(), 10_500, a=cell(1)), event("d", row(), 10_700, a=cell(None, 10))]
    assert counts(topic, [], form=ms) == (0, 0, 0, 0, 0, 0)
    later = [*topic, event("i", row(), 10_701, a=cell(2))]
    assert counts(later, [mirrored(row(), a=2)], form=ms) == (1, 0, 0, 0, 0, 0)
    expiring = [event("i", row(), 10, a=cell(1, NOW_US // 1000 + 1))]
    assert counts(expiring, [mirrored(row(), a=1)], form=ms) == (1, 0, 0, 0, 0, 0)


def test_a_deletion_of_a_partition_takes_its_rows_and_static_columns_alone() -> None:
    static = row(None)
    topic = [
        event("i", row(1), 10, a=cell(1)),
        event("u", static, 10, s=cell("old")),
        event("i", row(1, 2), 10, a=cell(1)),
        event("d", static, 20, a=cell(None, 20)),
        event("i", row(2), 30, a=cell(1)),
    ]
    assert counts(topic, [mirrored(row(2), a=1), mirrored(row(1, 2), a=1)]) == (2, 0, 0, 0, 0, 0)


def test_static_columns_are_compared_in_events_of_their_own_and_not_in_rows() -> None:
    topic = [event("i", row(), 10, a=cell(1)), event("u", row(None), 10, s=cell("x"))]
    mirror = [mirrored(row(), a=1, s="other"), mirrored(row(None), s="x")]
    assert counts(topic, mirror) == (2, 0, 0, 0, 0, 0)
    assert counts(topic, [mirror[0], mirrored(row(None), s="y")]) == (1, 0, 0, 1, 0, 0)


def test_a_row_sent_before_a_deletion_of_a_range_is_not_compared() -> None:
    topic = [
        event("i", row(1), 10, a=cell(1)),
        event("r", row(None), 20),
        event("i", row(2), 30, a=cell(1)),
    ]
    assert counts(topic, [mirrored(row(2), a=1)]) == (1, 0, 0, 0, 0, 1)
    assert counts(topic, [mirrored(row(1), a=5), mirrored(row(2), a=1)]) == (1, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_sent_at_the_time_of_a_deletion_of_a_range_is_not_compared(first: int) -> None:
    topic = [event("r", row(None), 10), event("i", row(1), 10, a=cell(1))]
    assert counts([topic[first], topic[1 - first]], []) == (0, 0, 0, 0, 0, 1)


def test_rows_whose_columns_are_all_left_out_are_not_compared() -> None:
    assert counts([(row(1), {})], [(row(1), {})], form=WHOLE) == (0, 0, 0, 0, 0, 1)


def test_values_that_are_missing_in_the_topic_are_not_taken_for_equal() -> None:
    topic = [event("u", row(), 10, a=cell(1))]
    assert counts(topic, [mirrored(row(), a=1, b=2)]) == (0, 0, 0, 0, 1, 0)
    assert counts(topic, [mirrored(row(), a=2, b=2)]) == (0, 0, 0, 1, 0, 0)


def test_columns_that_are_sent_in_part_are_not_compared() -> None:
    topic = [event("i", row(), 10, a=cell(1), tags=cell(["x"]))]
    assert counts(topic, [mirrored(row(), a=1, tags=["x", "y"])]) == (1, 0, 0, 0, 0, 0)
    alone = [event("u", row(), 10, tags=cell(["x"]))]
    assert counts(alone, []) == (0, 0, 0, 0, 0, 1), "whether the row lives isn't known"
    assert counts(alone, [mirrored(row(), tags=["y"])]) == (1, 0, 0, 0, 0, 0)


def test_what_has_expired_is_gone_on_both_sides() -> None:
    topic = [event("i", row(), 10, a=cell(1, NOW_US)), event("i", row(2), 10, a=cell(1, NOW_US + 1))]
    assert counts(topic, [mirrored(row(2), a=1)]) == (1, 0, 0, 0, 0, 0)


def test_a_row_that_may_have_outlived_its_cells_is_not_compared() -> None:
    topic = [event("i", row(), 10, a=cell(1, NOW_US))]
    assert counts(topic, [mirrored(row())]) == (0, 0, 0, 0, 0, 1)
    assert counts(topic, []) == (0, 0, 0, 0, 0, 0)


def test_a_null_has_no_expiry() -> None:
    assert counts([event("i", row(), 10, a=cell(None, 5))], [mirrored(row())]) == (1, 0, 0, 0, 0, 0)


def test_a_row_of_updates_alone_lives_by_its_cells_and_an_insert_by_itself() -> None:
    assert counts([event("u", row(), 10, a=cell(None))], []) == (0, 0, 0, 0, 0, 0)
    assert counts([event("i", row(), 10, a=cell(None))], []) == (0, 1, 0, 0, 0, 0)


def test_numbers_are_equal_as_they_are_written_and_text_whoever_escaped_it() -> None:
    topic = [event("i", row(), 10, a=cell("é"), b=cell([1, {"x": None}]))]
    assert counts(topic, [mirrored(row(), a="é", b=[1, {"x": None}])]) == (1, 0, 0, 0, 0, 0)


def test_changes_of_scylla_of_one_time_count_by_their_places() -> None:
    topic = [
        (row(), {"op": "c", "source": {"ts_us": 5}, "after": {"p": 1, "c": 1, "a": {"value": 1}, "b": None}}),
        (row(), {"op": "d", "source": {"ts_us": 5}, "after": None}),
        (row(), None),
        (row(), {"op": "u", "source": {"ts_us": 5}, "after": {"p": 1, "c": 1, "a": {"value": 2}, "b": None}}),
    ]
    assert counts(topic, [mirrored(row(), a=2)], form=SCYLLA) == (1, 0, 0, 0, 0, 0)
    assert counts(topic[:3], [mirrored(row(), a=1)], form=SCYLLA) == (0, 0, 1, 0, 0, 0)


def test_the_last_whole_row_counts_with_all_of_its_columns() -> None:
    topic: list[Event] = [
        (row(1), {"a": 1, "b": 2, "s": None}),
        (row(1), {"a": 3, "b": None, "s": "stale"}),
        (row(2), {"a": 1, "b": 1, "s": None}),
        (row(2), None),
        (row(3), {}),
        (row(None), {"s": "x"}),
    ]
    mirror: list[Event] = [(row(1), {"a": 3, "b": None, "s": None}), (row(None), {"s": "x"})]
    assert counts(topic, mirror, form=WHOLE) == (2, 0, 0, 0, 0, 0)
    assert counts(topic, [(row(1), {"a": 3, "b": 2, "s": None})], form=WHOLE) == (0, 1, 0, 1, 0, 0)


def test_nothing_on_both_sides_is_equal_to_nothing() -> None:
    assert counts([], [mirrored(row(), a=1)]) == (0, 0, 1, 0, 0, 0)
    assert counts([event("d", row(), 1)], []) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(("key", "value"), [(None, {"op": "i"}), (row(), {"op": "x"}), (row(), {"a": 1})])
def test_an_event_without_a_row_is_an_error(key: Any, value: Any) -> None:
    with pytest.raises(CorruptInput):
        compared([(key, value)], [])


def test_rows_as_merges_left_them_are_ordered_by_the_topic_alone() -> None:
    gone = event("d", row(None), 9, v=cell(None, 9), s=cell(None, 9))
    topic = [event("i", row(), 8, v=cell(1)), event("u", row(None), 8, s=cell(1)), gone]
    mirror = [event("i", row(), 0, v=cell(2))]
    # Written before the event of its partition's deletion, perhaps to another partition of the topic.
    rewritten = [event("i", row(), 5, v=cell(2)), *topic[1:]]
    assert counts([*topic, event("u", row(), 7, v=cell(2))], mirror, MERGED) == (1, 0, 0, 0, 0, 0)
    assert counts(rewritten, mirror, MERGED) == (1, 0, 0, 0, 0, 0)
    assert counts(topic, mirror, MERGED) == (0, 0, 0, 1, 0, 0)
