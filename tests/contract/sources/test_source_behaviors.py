"""The guarantees of :mod:`airflow_cdc_provider.sources.contract`, the same for every source.

The classes in :mod:`.subjects` say how each database is written to, and what its source can't do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA, SNAPSHOT
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics, Source
from tests.contract.sources.harness import (
    GROUP,
    Captured,
    Delete,
    Put,
    Rows,
    SourceUnderTest,
    Write,
    begin,
    by_position,
    capture,
    comparable,
    keys_of,
    merged,
    refused,
    sent,
    stored,
)

pytestmark = pytest.mark.integration

SMALL = ReadLimit(bytes=600, changes=4, tasks=2)


@dataclass(frozen=True)
class Story:
    """A table with a past.

    Args:
        table: The table.
        start: Where a connector started before the first change.
        captured: All of its changes, in one batch if the source can.
        rows: The rows that are left.
        writes: How many writes there were.
    """

    table: str
    start: Offset | None
    captured: Captured
    rows: Rows
    writes: int

    @property
    def head(self) -> Offset:
        """Return the offset after the last change."""
        assert self.captured.offset is not None
        return self.captured.offset


@pytest.fixture(scope="module")
def story(subject: SourceUnderTest) -> Story:
    """A table whose rows were inserted, updated several times, and deleted, and another one next to it."""
    table, other = subject.create("story"), subject.create("other")
    with subject.source(table) as source:
        start = begin(source)
    writes = 0
    for turn in range(2):
        own: list[Write] = [Put(number, turn) for number in range(turn * 4, 8 + turn * 4)]
        own += [Put(5, 10 * turn + n, f"turn {turn}") for n in range(6)]
        own += [Delete(turn), Put(3, turn, "again"), Delete(7)]
        subject.write(table, *own)
        subject.write(other, Put(1, turn))
        subject.settle()
        writes += len(own)
    with subject.source(table) as source:
        captured = capture(source, start)
    return Story(table, start, captured, subject.rows(table), writes)


def test_a_captured_table_has_the_rows_of_its_database(subject: SourceUnderTest, story: Story) -> None:
    with subject.source(story.table) as source:
        source.learn(story.captured.of_kind(SCHEMA))
        assert source.tables() == [story.table]
        assert merged(source, story.table, story.captured.records) == story.rows


def test_only_selected_tables_yield_changes(story: Story) -> None:
    assert Counter(change["source_table"] for change in story.captured.changes) == {story.table: story.writes}


def test_a_part_that_is_read_again_gives_the_same_changes(subject: SourceUnderTest, story: Story) -> None:
    with subject.source(story.table) as source:
        head = source.head()
        plan = source.plan(story.start, head, ReadLimit())
        reader, parts = sent(source.reader()), sent(list(plan.partitions))
        assert parts
        for part in parts:
            first, again = (
                pa.Table.from_batches(sent(reader).read([sent(part)], ReadMetrics()), CHANGE_SCHEMA)
                for _ in range(2)
            )
            for origin in first["origin"].unique().to_pylist():
                own, own_again = (comparable(t.filter(pc.equal(t["origin"], origin))) for t in (first, again))
                assert own == own_again


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_new_process_and_any_number_of_tasks_give_the_same_changes(
    subject: SourceUnderTest, story: Story, tasks: int
) -> None:
    with subject.source(story.table) as source:
        again = capture(source, story.start, head=story.head, limit=ReadLimit(tasks=tasks))
    assert by_position(again.changes) == by_position(story.captured.changes)


def test_capture_resumed_from_each_stored_offset_loses_and_repeats_nothing(
    subject: SourceUnderTest, story: Story
) -> None:
    captured = Captured(story.start)
    for _ in range(100):
        with subject.source(story.table) as source:  # a process that is killed after three batches
            source.learn(captured.of_kind(SCHEMA))
            capture(source, None, head=story.head, limit=SMALL, earlier=captured, most_batches=3)
        if captured.plans[-1].at_head:
            break
    assert len(captured.plans) > 1
    assert by_position(captured.changes) == by_position(story.captured.changes)
    places = [(change["origin"], change["position"]) for change in captured.changes]
    assert len(set(places)) == story.writes


def test_changes_of_a_row_come_in_the_order_in_which_they_were_written(
    subject: SourceUnderTest, story: Story
) -> None:
    with subject.source(story.table) as source:
        captured = capture(source, story.start, head=story.head, limit=SMALL)
        keys = keys_of(source, story.table, captured)
    positions: dict[Any, list[bytes]] = {}
    for key, change in zip(keys, captured.changes, strict=True):
        positions.setdefault((change["origin"], key), []).append(change["position"])
    assert max(len(found) for found in positions.values()) > 10
    assert all(found == sorted(found) for found in positions.values())


def test_a_capture_ends_at_the_head_that_it_was_given(subject: SourceUnderTest) -> None:
    table = subject.create("headed")
    with subject.source(table) as source:
        start = begin(source)
    subject.write(table, Put(1, 1), Put(2, 1))
    subject.settle()
    with subject.source(table) as source:
        head = stored(source.head())
    subject.write(table, Put(1, 2), Put(3, 2))
    subject.settle()
    with subject.source(table) as source:
        captured = capture(source, start, head=head)
        before = merged(source, table, captured.records)
        first = len(captured.changes)
        at_head = source.plan(captured.offset, head, ReadLimit())
        none = [batch for part in at_head.partitions for batch in source.reader().read([part], ReadMetrics())]
        capture(source, None, earlier=captured)
        after = merged(source, table, captured.records)
    if "head" not in subject.limitations:
        assert before == {1: (1, "plain"), 2: (1, "plain")}
        assert first == 2
        assert sum(batch.num_rows for batch in none) == 0
    assert len(captured.changes) == 4
    assert at_head.at_head
    assert after == subject.rows(table)


def test_batches_keep_their_limit(subject: SourceUnderTest) -> None:
    table = subject.create("limited")
    with subject.source(table) as source:
        start = begin(source)
    for group in range(3):
        subject.write(table, *(Put(number, group) for number in range(GROUP)))
        subject.settle()
    with subject.source(table, **subject.small_batches) as source:
        captured = capture(source, start, limit=SMALL)
    sizes = [sum(kind == "change" for kind in batch["kind"].to_pylist()) for batch in captured.batches]
    assert sum(sizes) == 3 * GROUP
    assert max(sizes) <= SMALL.changes + subject.indivisible


def test_offsets_are_validated(subject: SourceUnderTest, story: Story) -> None:
    with subject.source(story.table) as source:
        for plan in story.captured.plans:
            source.validate_offset(plan.end)
            source.validate_offset(stored(plan.end))
        for wrong in _wrong_offsets(story.head):
            with pytest.raises(ConfigurationError) as refusal:
                source.validate_offset(wrong)
            assert refusal.value.expected, wrong


def _wrong_offsets(offset: Offset) -> Iterator[Any]:
    origin, position = next(iter(offset.items()))
    yield {**offset, origin: 5}
    yield {**offset, origin: {}}
    yield {**offset, origin: {**position, "v": 999}}
    yield {**offset, origin: {name: [] for name in position}}


def test_lost_changes_are_reported_and_capture_continues_after_them(subject: SourceUnderTest) -> None:
    table = subject.create("lost")
    offset = stored(subject.lose(table))
    with subject.source(table) as source:
        head = source.head()
        lost, after = source.gaps(offset)
        if not lost:
            with pytest.raises(PositionLost) as loss:
                source.plan(offset, head, ReadLimit())
            assert loss.value.remedy
            following = source.offset_after_loss()
        else:
            assert all(one.message for one in lost)
            following = after
        subject.write(table, Put(12, 3))
        subject.settle()
        captured = capture(source, None if following is None else stored(following))
        rows = merged(source, table, captured.records)
    assert rows[12] == (3, "plain")


def test_ranges_of_a_snapshot_have_each_row_once_whenever_they_are_read(
    subject: SourceUnderTest, story: Story
) -> None:
    with subject.source(story.table) as source:
        source.learn(story.captured.of_kind(SCHEMA))
        source.seek_to(story.head)
        if "snapshot" in subject.limitations:
            with pytest.raises(ConfigurationError, match=r"snapshot"):
                source.plan_snapshot(story.table)
            assert source.feed_is_complete
            return
        plan = source.plan_snapshot(story.table)
        first = [_read_range(source, one) for one in plan.ranges]
        as_stored = json.loads(json.dumps(source.planned_ranges.to_json(plan.ranges)))
    with subject.source(story.table) as source:  # another run resumes with the ranges that are left
        source.learn(story.captured.of_kind(SCHEMA))
        source.seek_to(story.head)
        ranges, _ = source.planned_ranges.take(as_stored, len(as_stored))
        again = [_read_range(source, one) for one in ranges]
        found = [merged(source, story.table, records) for records in first]
        found_again = [merged(source, story.table, records) for records in again]
    assert list(ranges) == list(plan.ranges)
    assert sum(pc.sum(pc.equal(records["kind"], SNAPSHOT)).as_py() or 0 for records in first) == len(
        story.rows
    )
    assert {row_id: row for rows in found for row_id, row in rows.items()} == story.rows
    assert found == found_again


def _read_range(source: Source, one: Any) -> pa.Table:
    return pa.Table.from_batches(
        sent(source.snapshot_reader()).read([sent(one)], ReadMetrics()), CHANGE_SCHEMA
    )


def test_a_broken_change_is_quarantined_or_located(subject: SourceUnderTest) -> None:
    table = subject.create("broken")
    with subject.source(table) as source:
        start = begin(source)
    subject.write(table, Put(1, 1))
    subject.write_broken(table)
    with subject.source(table) as source:
        captured = capture(source, start, damage=subject.damage)
        reasons = refused(source, table, captured)
        rows = merged(source, table, captured.records)
    assert rows == {1: (1, "plain"), 3: (1, "plain")}
    assert len(reasons) == 1
    assert reasons[0]

    strict = {**subject.options(table).get("advanced", {}), "strict": True}
    if "strict" in subject.limitations:
        with pytest.raises(ConfigurationError, match="strict"), subject.source(table, advanced=strict):
            pass
        return
    with (
        subject.source(table, advanced=strict) as source,
        pytest.raises(CorruptInput, match=subject.place_of_broken),
    ):
        capture(source, start, damage=subject.damage)


def test_a_healthy_source_has_no_errors_and_is_closed_twice(subject: SourceUnderTest, story: Story) -> None:
    with subject.source(story.table) as source:
        findings = source.check()
        assert findings
        assert [finding for finding in findings if finding.level == "error"] == []
        source.close()
