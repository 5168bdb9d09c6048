from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.text_kernels import join

TYPES = st.sampled_from([pa.utf8(), pa.large_utf8()])
ROWS = st.lists(st.tuples(*[st.none() | st.text(max_size=70)] * 3), max_size=20)


@given(ROWS, st.lists(st.text(max_size=70), min_size=4, max_size=4), TYPES, st.integers(0, 3))
def test_texts_are_joined_as_arrow_joins_them(
    rows: list[tuple[str | None, ...]], constants: list[str], kind: pa.DataType, skipped: int
) -> None:
    columns = [pa.array([row[i] for row in rows], kind).slice(skipped) for i in range(3)]
    parts: list[pa.Array | str] = [constants[0], columns[0], constants[1], constants[2], *columns[1:]]
    parts.append(constants[3])
    pieces = [pa.scalar(p, pa.large_utf8()) if isinstance(p, str) else p.cast(pa.large_utf8()) for p in parts]
    expected = pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_utf8()))

    joined = join(*parts)

    joined.validate(full=True)
    assert joined.equals(expected)
