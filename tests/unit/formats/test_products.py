"""Products that have more than 64 bits, against Python's integers."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.products import fits, saturated

LEAST, MOST = -(2**63), 2**63 - 1
FACTORS = st.sampled_from([1, 2, 1000, 1_000_000, 1_000_000_000, 86_400_000])


def edges() -> st.SearchStrategy[int]:
    near = [
        value + delta
        for factor in (1, 2, 1000, 1_000_000, 1_000_000_000, 86_400_000)
        for value in (LEAST // factor, MOST // factor, 0)
        for delta in (-1, 0, 1)
    ]
    return st.one_of(st.sampled_from([n for n in near if LEAST <= n <= MOST]), st.integers(LEAST, MOST))


@given(number=edges(), factor=FACTORS)
def test_products_saturate_as_javas_time_units_do(number: int, factor: int) -> None:
    numbers = pa.array([number, None], pa.int64())
    exact = number * factor
    assert saturated(numbers, factor).to_pylist() == [min(max(exact, LEAST), MOST), None]
    (found, missing) = fits(numbers, factor).to_pylist()
    assert missing is None
    assert LEAST <= exact <= MOST if found else not LEAST + factor < exact < MOST - factor
