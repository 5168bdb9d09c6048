from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import INT64, STRING, struct
from airflow_cdc_provider.events.names import adjust_names, adjusted_field, adjusted_schema
from airflow_cdc_provider.exceptions import ConfigurationError


@pytest.mark.covers("CAS-D3X-12")
@pytest.mark.parametrize(
    ("name", "schema", "field", "unicode_schema", "unicode_field"),
    [
        ("a.b_c1", "a.b_c1", "a_b_c1", "a.b_u005fc1", "a_u002eb_u005fc1"),
        ("my-name", "my_name", "my_name", "my_u002dname", "my_u002dname"),
        ("1a", "_1a", "_1a", "_u0031a", "_u0031a"),
        ("٣²a", "__a", "__a", "_u663_u00b2a", "_u663_u00b2a"),  # Debezium keeps such a digit
        ("cdc.2024..1c.", "cdc._2024._._1c._", "cdc_2024__1c_", "cdc._u0032024._._u0031c._", ...),
        ("_a", "_a", "_a", "_u005fa", "_u005fa"),
        ("ä\tж", "___", "___", "_u00e4_u009_u436", "_u00e4_u009_u436"),
        ("x🙂", "x__", "x__", "x_ud83d_ude42", "x_ud83d_ude42"),
        ("", "", "_", "", "_"),
    ],
)
def test_names_become_what_debezium_makes_of_them(
    name: str, schema: str, field: str, unicode_schema: str, unicode_field: Any
) -> None:
    assert adjusted_schema(name, "avro") == schema
    assert adjusted_field(name, "avro") == field
    # A number of one digit gets two zeros, and one of three none, as Debezium's code has it.
    assert adjusted_schema(name, "avro_unicode") == unicode_schema
    assert unicode_field in (adjusted_field(name, "avro_unicode"), ...)
    assert adjusted_schema(name, "none") == adjusted_field(name, "none") == name


VALID = "[A-Za-z_][A-Za-z0-9_]*"


@given(st.one_of(st.text(min_size=1), st.text("a1._", min_size=1)))
def test_adjusted_names_are_valid_in_avro(name: str) -> None:
    for mode in ("avro", "avro_unicode"):
        assert re.fullmatch(VALID, adjusted_field(name, mode)), repr(name)
        assert all(re.fullmatch(VALID, part) for part in adjusted_schema(name, mode).split(".")), repr(name)


def test_two_fields_never_get_one_name() -> None:
    same = struct("s", ("a-b", STRING), ("a b", INT64))
    with pytest.raises(ConfigurationError, match="'a-b' and 'a b' would both be named 'a_b'"):
        adjust_names(same, "none", "avro")
    kept = adjust_names(same, "none", "avro_unicode")
    assert [name for name, _ in kept.fields] == ["a_u002db", "a_u0020b"]
