"""Cell-level reconciliation against an oracle that shares no code with it, and its algebra."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.lake.reconcile import reconcile_cells
from tests.chance import examples
from tests.oracles.cassandra_read_path import ROW, Contribution, Liveness, Reading, Row, kept, visible
from tests.oracles.contributions import NOW, as_kept, as_table, as_visible, fed_back, lists

RULES = st.sampled_from(["4.0", "3.11", "scylla"])
MOMENTS = st.sampled_from([NOW - 2, NOW - 1, NOW, NOW + 1, NOW + 2, NOW + 3])


@pytest.mark.covers("CAS-LIM-03")
@given(lists(max_size=25), MOMENTS, RULES)
@settings(max_examples=examples(600))
def test_shows_what_a_select_shows(found: list[Contribution], now: int, rules: str) -> None:
    assert as_visible(reconcile_cells(as_table(found), now, rules)) == visible(found, now, rules)


@given(lists(uncertain=True, max_size=20), MOMENTS, RULES, st.sampled_from([0, 1]), st.none() | MOMENTS)
@settings(max_examples=examples(600))
def test_keeps_what_can_still_matter(
    found: list[Contribution], now: int, rules: str, min_generation: int, purge: int | None
) -> None:
    result = reconcile_cells(
        as_table(found), now, rules, min_generation=min_generation, purge_before_seconds=purge
    )
    assert as_kept(result) == kept(found, now, rules, min_generation, purge)


@pytest.mark.covers("CAS-LIM-02", "CAS-LIM-03", "CAS-C50-02")
@given(lists(uncertain=True), st.randoms(use_true_random=False), RULES)
@settings(max_examples=examples(300))
def test_order_and_duplicates_do_not_matter(found: list[Contribution], random: object, rules: str) -> None:
    shuffled = [*found, *found[: len(found) // 2]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert as_kept(reconcile_cells(as_table(shuffled), NOW, rules)) == as_kept(
        reconcile_cells(as_table(found), NOW, rules)
    )


@pytest.mark.covers("CAS-C50-02")
@given(lists(uncertain=True), RULES)
@settings(max_examples=examples(300))
def test_a_second_time_changes_nothing(found: list[Contribution], rules: str) -> None:
    once = reconcile_cells(as_table(found), NOW, rules)
    twice = reconcile_cells(fed_back(once), NOW, rules)
    assert (twice.live.to_pylist(), twice.tombstones.to_pylist()) == (
        once.live.to_pylist(),
        once.tombstones.to_pylist(),
    )


@pytest.mark.parametrize("rules", ["4.0", "scylla"])
@given(st.lists(lists(uncertain=True, max_size=8), min_size=2, max_size=5), st.data())
@settings(max_examples=examples(500))
def test_any_portions_at_any_moments_end_the_same(
    rules: str, portions: list[list[Contribution]], data: st.DataObject
) -> None:
    moments = sorted(data.draw(MOMENTS) for _ in portions)
    result = reconcile_cells(as_table([]), moments[0], rules)
    for portion, now in zip(portions, moments, strict=True):
        result = reconcile_cells(pa.concat_tables([as_table(portion), fed_back(result)]), now, rules)
    whole = reconcile_cells(as_table([c for portion in portions for c in portion]), moments[-1], rules)
    assert as_kept(result).live == as_kept(whole).live
    assert as_kept(result).tombstones == as_kept(whole).tombstones


@given(st.lists(lists(uncertain=True, max_size=8), min_size=2, max_size=5))
@settings(max_examples=examples(300))
def test_any_portions_at_one_moment_end_the_same_by_the_rules_of_3_11(
    portions: list[list[Contribution]],
) -> None:
    result = reconcile_cells(as_table([]), NOW, "3.11")
    for portion in portions:
        result = reconcile_cells(pa.concat_tables([as_table(portion), fed_back(result)]), NOW, "3.11")
    whole = reconcile_cells(as_table([c for portion in portions for c in portion]), NOW, "3.11")
    assert as_kept(result).live == as_kept(whole).live
    assert as_kept(result).tombstones == as_kept(whole).tombstones


@given(lists(), MOMENTS, MOMENTS)
@settings(max_examples=examples(200))
def test_purging_shows_the_same(found: list[Contribution], now: int, purge: int) -> None:
    purged = reconcile_cells(as_table(found), now, purge_before_seconds=purge)
    assert as_visible(purged) == visible(found, now)
    assert as_visible(reconcile_cells(fed_back(purged), now)) == visible(found, now)


def test_nothing_comes_of_nothing() -> None:
    result = reconcile_cells(as_table([]), NOW)
    assert (result.live.num_rows, result.tombstones.num_rows, len(result.unresolved_keys)) == (0, 0, 0)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(KeyError):
        reconcile_cells(as_table([]), NOW, "2.2")


def test_a_row_that_only_an_expiring_liveness_is_known_to_keep_is_read_again_when_that_ends() -> None:
    read_us = (NOW - 5) * 1_000_000
    read = Contribution(b"a", ROW, b"", None, 0, Row(Reading(read_us)))
    logged = Contribution(b"a", ROW, b"", None, 0, Row(Liveness(read_us - 1, 600, NOW + 1)))
    before = reconcile_cells(as_table([read, logged]), NOW)
    assert (before.live["expires_at"].to_pylist(), len(before.unresolved_keys)) == ([NOW + 1], 0)
    after = reconcile_cells(fed_back(before), NOW + 1)
    assert (after.live.num_rows, after.unresolved_keys.to_pylist()) == (1, [b"a"])
    again = Contribution(b"a", ROW, b"", None, 0, Row(Reading((NOW + 2) * 1_000_000)))
    assert (
        len(reconcile_cells(pa.concat_tables([fed_back(after), as_table([again])]), NOW + 2).unresolved_keys)
        == 0
    )
