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


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"v": 2, "tables": {}, "step": null}', '{"v": 1}'])
def test_an_invalid_position_is_an_error(text: str | None) -> None:
    with pytest.raises(OffsetMissing, match="can't be read"):
        MergedPosition.from_json(text)
