"""Comparison of tables: agrees with Python's own, to any depth."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.lake.compare import compare_tables, values_equal

TYPE = pa.list_(pa.struct([("f", pa.float64()), ("m", pa.map_(pa.string(), pa.list_(pa.int32())))]))
VALUES = st.one_of(
    st.none(),
    st.lists(
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "f": st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
                    "m": st.one_of(
                        st.none(),
                        st.lists(
                            st.tuples(
                                st.sampled_from("ab"),
                                st.one_of(
                                    st.none(), st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=2)
                                ),
                            ),
                            max_size=2,
                            unique_by=lambda item: item[0],
                        ),
                    ),
                }
            ),
        ),
        max_size=3,
    ),
)


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: canonical(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(part) for part in value]
    return value


@given(st.lists(st.tuples(VALUES, VALUES), max_size=8), st.booleans())
def test_nested_values_are_equal_exactly_where_python_says_so(
    pairs: list[tuple[Any, Any]], twins: bool
) -> None:
    left = [a for a, _ in pairs]
    right = left if twins else [b for _, b in pairs]

    found = values_equal(pa.array(left, TYPE), pa.array(right, TYPE))

    assert found.tolist() == [canonical(a) == canonical(b) for a, b in zip(left, right, strict=True)]


def test_rows_are_matched_by_key_and_differences_are_named() -> None:
    left = pa.table({"id": pa.array([b"1", b"2", b"3"], pa.binary()), "a": [1, 2, 3], "b": ["x", "y", None]})
    right = pa.table({"id": pa.array([b"4", b"3", b"2"], pa.binary()), "a": [9, 3, 2], "b": ["x", None, "z"]})

    found = compare_tables(left, right, "id")

    assert (found.equal, found.only_left, found.only_right, found.different) == (1, 1, 1, 1)
    assert found.samples == (
        {"key": "31", "only": "left"},
        {"key": "34", "only": "right"},
        {"key": "32", "columns": ["b"]},
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_empty_side_has_nothing_in_common(side: str) -> None:
    rows = pa.table({"id": pa.array([b"1"], pa.binary()), "a": [1]})
    none = rows.slice(0, 0)

    found = compare_tables(rows, none, "id") if side == "right" else compare_tables(none, rows, "id")

    assert (found.equal, found.only_left, found.only_right) == (0, int(side == "right"), int(side == "left"))
