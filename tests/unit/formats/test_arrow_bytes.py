from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import (
    binary_buffer,
    binary_parts,
    binary_slices,
    column_of,
    gather_text,
    join,
    span_column,
    without_first_bytes,
)

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


KINDS = st.sampled_from([pa.binary(), pa.large_binary(), pa.utf8(), pa.large_utf8()])
VALUES = st.lists(st.none() | st.text(max_size=5), max_size=8)


@given(VALUES, KINDS, st.integers(0, 3))
def test_arrays_are_viewed_and_built_again(values: list[str | None], kind: pa.DataType, skipped: int) -> None:
    array = pa.array(values, pa.utf8()).cast(kind).slice(skipped)
    expected = array.to_pylist()

    data, offsets, valid = binary_parts(array)
    slices = [data[a:b].tobytes() for a, b in pairwise(offsets)]
    assert slices == [b"" if v is None else v if isinstance(v, bytes) else v.encode() for v in expected]
    assert valid.tolist() == [v is not None for v in expected]
    built = column_of(kind, data, offsets, valid)
    built.validate(full=True)
    assert built.to_pylist() == expected

    spans = binary_buffer(array)
    assert [start < 0 and end < 0 for start, end in zip(*spans[1:], strict=True)] == (~valid).tolist()
    for form in (
        span_column(kind, *spans),
        span_column(kind, spans[0], spans[1][::-1], spans[2][::-1])[::-1],
    ):
        form.validate(full=True)
        assert form.to_pylist() == expected


@given(VALUES, VALUES, KINDS)
def test_chunks_are_viewed_as_one_array(
    first: list[str | None], second: list[str | None], kind: pa.DataType
) -> None:
    chunked = pa.chunked_array([pa.array(part, pa.utf8()).cast(kind) for part in (first, second)], kind)
    assert column_of(kind, *binary_parts(chunked)).to_pylist() == chunked.to_pylist()


def test_invalid_text_is_replaced() -> None:
    data, starts, ends, valid = binary_slices(pa.array([b"a\xff", None, b"b"], pa.binary()))
    assert gather_text(data, starts, ends, valid).to_pylist() == ["a\ufffd", None, "b"]
    assert gather_text(data, starts[2:], ends[2:], valid[2:]).to_pylist() == ["b"]
    assert without_first_bytes(pa.array([b"ab", b"c"]), 1).to_pylist() == [b"b", b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.utf8()])
def test_offsets_that_32_bits_can_not_hold_are_refused_instead_of_wrapped(kind: pa.DataType) -> None:
    with pytest.raises(OverflowError, match="2147483648 bytes don't fit one Arrow column"):
        column_of(kind, np.zeros(1, np.uint8), np.array([0, 2**31], np.int64))
    with pytest.raises(OverflowError):
        span_column(kind, np.zeros(1, np.uint8), np.array([0]), np.array([2**31]))
