"""The lag of an offset: of its slowest group, by a clock that may be set back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.scylla.position import TablePosition

MOMENTS = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 1, 10**15, 1_700_000_000_000_000]))


@given(MOMENTS, st.dictionaries(st.sampled_from("abc"), MOMENTS), MOMENTS)
def test_a_lag_is_never_negative_and_is_that_of_the_slowest_group(
    read_to_us: int, ahead: dict[str, int], now_us: int
) -> None:
    position = TablePosition(7, read_to_us, ahead)
    timeline: Any = SimpleNamespace(begins_ms=[7], groups=lambda generation: ["a", "b", "c"])

    lag = position.lag(lambda: timeline, now_us)

    slowest = min(max(read_to_us, ahead.get(group, 0)) for group in "abc")
    assert lag["seconds"] == round(max(now_us - slowest, 0) / 1e6, 3)
    assert all(0 <= seconds <= lag["seconds"] for seconds in lag["ahead"].values())


def test_streams_are_not_queried_while_all_groups_are_at_the_same_position() -> None:
    def queried() -> Any:
        raise AssertionError

    assert TablePosition(7, 1_000_000).lag(queried, 3_500_000)["seconds"] == 2.5
