"""Members of JSON objects in MySQL's order: by the length of their names in bytes, then by their bytes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.vitess.json_order import in_mysqls_order

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)


def written(value: Any, *, as_mysql: bool) -> str:
    """Write a value with the members of objects in the order of the stream, or of MySQL."""
    match value:
        case dict():
            names = sorted(value, key=lambda name: (as_mysql and len(name.encode()), name.encode()))
            members = (f"{_quoted(name)}: {written(value[name], as_mysql=as_mysql)}" for name in names)
            return "{" + ", ".join(members) + "}"
        case list():
            return "[" + ", ".join(written(one, as_mysql=as_mysql) for one in value) + "]"
        case str():
            return _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@given(st.lists(VALUES | st.none(), max_size=5))
def test_members_are_in_mysqls_order(values: list[Any]) -> None:
    texts = [None if value is None else written(value, as_mysql=False) for value in values]
    ordered = in_mysqls_order(pa.array(texts, pa.string()).cast(pa.binary()))

    assert ordered.cast(pa.string()).to_pylist() == [
        None if value is None else written(value, as_mysql=True) for value in values
    ]


def test_text_that_is_no_json_stays_as_it_is() -> None:
    texts = [b'"base64:type15:AP8=", 1.0]', b'{"bb": 1, "a": 2', b"", None, b'{"bb":1,"a":2 }']

    assert in_mysqls_order(pa.array(texts)).to_pylist() == [*texts[:4], b'{"a":2 ,"bb":1}']
