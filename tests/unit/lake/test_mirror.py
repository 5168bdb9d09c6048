from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.lake.mirror import fingerprints, row_ids

PAIRS = st.lists(
    st.tuples(st.binary(max_size=4), st.one_of(st.none(), st.binary(max_size=4))), min_size=1, max_size=20
)


@given(PAIRS)
def test_ids_are_equal_exactly_where_rows_are(pairs: list[tuple[bytes, bytes | None]]) -> None:
    shown = [(k, None if c is None else b"\x40" + c) for k, c in pairs]

    ids = row_ids(
        pa.array([k for k, _ in shown], pa.binary()), pa.array([c for _, c in shown], pa.binary())
    ).to_pylist()

    assert len(set(ids)) == len(set(shown))


@given(PAIRS)
def test_fingerprints_are_equal_exactly_where_all_columns_are(
    pairs: list[tuple[bytes, bytes | None]],
) -> None:
    columns = [
        pa.array([k for k, _ in pairs], pa.binary()),
        pa.array([c for _, c in pairs], pa.binary()),
        pa.array([None if c is None else len(c) for _, c in pairs], pa.int8()),
    ]

    assert len(set(fingerprints(columns).to_pylist())) == len(set(pairs))
