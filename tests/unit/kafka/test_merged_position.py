"""Positions of publishing after merges."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.exceptions import OffsetMissing
from airflow_cdc_provider.kafka.merged_position import MergedPosition, PublishedSnapshot, Step

BEFORE, AFTER = PublishedSnapshot("table", "1", 4), PublishedSnapshot("table", "2", 9)
OTHER = PublishedSnapshot("other", "7", 3)


def test_a_position_is_read_as_it_was_written() -> None:
    for position in (
        MergedPosition(),
        MergedPosition({"db.é": BEFORE}),
        MergedPosition({"db.a": BEFORE}, Step("db.b", AFTER, ("document", "x"))),
        MergedPosition({"db.a": BEFORE}, failed=(Step("db.b", AFTER, (), 7, 5, "form"), Step("db.c", OTHER))),
    ):
        assert MergedPosition.from_json(position.to_json()) == position


def test_both_ends_of_a_step_are_kept_until_it_is_reached() -> None:
    under_way = MergedPosition({"db.a": BEFORE, "db.b": OTHER}, Step("db.a", AFTER))
    assert (under_way.snapshots("db.a"), under_way.snapshots("db.b")) == ({"1", "2"}, {"7"})
    assert under_way.snapshots("db.c") == set()
    reached = under_way.reached()
    assert reached == MergedPosition({"db.a": AFTER, "db.b": OTHER})
    assert reached.snapshots("db.a") == {"2"}
    assert reached.reached() == reached


def test_both_ends_of_a_failed_step_are_kept_until_it_is_resumed_and_reached() -> None:
    failed = MergedPosition({"db.a": BEFORE}, failed=(Step("db.a", AFTER, (), 7), Step("db.b", OTHER, (), 1)))
    assert (failed.snapshots("db.a"), failed.snapshots("db.b")) == ({"1", "2"}, {"7"})
    resumed = failed.within(failed.failed[0])
    assert (resumed.snapshots("db.a"), resumed.snapshots("db.b")) == ({"1", "2"}, {"7"})
    assert resumed.reached() == MergedPosition({"db.a": AFTER}, failed=failed.failed[1:])


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"v": 1, "tables": {}, "step": null}', '{"v": 2}'])
def test_an_invalid_position_is_an_error(text: str | None) -> None:
    with pytest.raises(OffsetMissing, match="can't be read"):
        MergedPosition.from_json(text)
