"""What a batch takes of each partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.debezium.capture import _shares


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 1000), min_size=1), st.integers(1, 3000))
def test_a_batch_takes_of_each_partition_and_no_more_than_it_may(left: dict[str, int], budget: int) -> None:
    taken = _shares(left, budget)
    assert all(0 < taken[name] <= left[name] for name in left)
    assert sum(taken.values()) <= max(budget, len(left))
    if sum(left.values()) <= budget:
        assert taken == left
