from __future__ import annotations

from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.column_names import RESERVED, clashing_column, column_names, distinct_fields

NAMES = st.lists(
    st.text("aAbB1_.-x26eäÄİ\u0131Kk\u017fsßẞ \U0001f600`\n", max_size=6), max_size=12, unique=True
)


def forms(name: str) -> set[str]:
    """Return what engines may compare instead of a name: by Spark's, Java's and DuckDB's rules."""
    by_character = "".join(lower if len(lower := c.upper().lower()) == 1 else c for c in name)
    return {name, name.lower(), name.upper(), name.casefold(), by_character}


@given(NAMES)
def test_no_two_columns_can_be_taken_for_each_other(names: list[str]) -> None:
    found = column_names(names)
    assert list(found) == names
    for one, other in combinations(found.values(), 2):
        assert not forms(one) & forms(other)
        assert not one.lower().startswith(f"{other.lower()}.")
        assert not other.lower().startswith(f"{one.lower()}.")
    assert not any(name.lower() in RESERVED or name.lower().startswith("_cdc") for name in found.values())
    assert clashing_column(pa.schema([pa.field(name, pa.int32()) for name in found.values()])) == ""


@given(NAMES, NAMES)
def test_names_that_are_given_stay(names: list[str], more: list[str]) -> None:
    first = column_names(names)
    later = column_names([*more, *(name for name in names if name not in more)], first)
    assert {name: later[name] for name in names} == first
    assert len(set(later.values())) == len(later)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["name", "NAME", "Name"], ["name", "NAME__2", "Name__3"]),
        (["a", "a.b", "a_b", "A.B"], ["a", "a_b", "a_b__2", "A_B__3"]),
        (["a.b", "a", "a.b.c"], ["a.b", "a__2", "a_b_c"]),
        (["a.b", "a_x2Eb"], ["a.b", "a_x2Eb__2"]),
        (["1a", "_1a", "", "_"], ["1a", "_1a__2", "_", "___2"]),
        (["first name", "zip-code", "ä", "Ä"], ["first name", "zip-code", "ä", "Ä__2"]),
        (["_pos", "_cdc", "_CDC_id"], ["_pos__2", "x_cdc", "x_CDC_id"]),
    ],
)
def test_of_names_that_clash_the_oldest_is_kept(names: list[str], found: list[str]) -> None:
    assert list(column_names(names).values()) == found


def test_fields_of_a_struct_may_have_names_that_a_mirror_reserves() -> None:
    assert distinct_fields(["_pos", "_cdc", "a", "A"]) == ["_pos", "_cdc", "a", "A__2"]


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"a": pa.int32(), "A": pa.int32()}, "A"),
        ({"a": pa.struct({"b": pa.int32()}), "a.b": pa.int32()}, "a.b"),
        ({"l": pa.list_(pa.struct({"x": pa.int32(), "X": pa.int32()}))}, "l.item.X"),
        ({"m": pa.map_(pa.string(), pa.struct({"x": pa.int32(), "X": pa.int32()}))}, "m.entries.value.X"),
        ({"a": pa.struct({"b": pa.int32(), "c": pa.int32()}), "b": pa.int32()}, ""),
        ({"_file": pa.string()}, "_file"),
    ],
)
def test_a_column_that_engines_confuse_is_found(schema: dict[str, pa.DataType], found: str) -> None:
    assert clashing_column(pa.schema(list(schema.items()))) == found
