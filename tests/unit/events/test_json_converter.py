from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    ConnectSchema,
    ConnectType,
    struct,
)
from airflow_cdc_provider.events.json_converter import quote, to_json


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("boolean", [True, False, None], ["true", "false", "null"]),
        ("int8", [-5, None], ["-5", "null"]),
        ("int64", [9007199254740993], ["9007199254740993"]),
        ("double", [1e7, None, 0.1], ["1.0E7", "null", "0.1"]),
        ("double", [float("nan"), float("-inf"), 2.5], ['"NaN"', '"-Infinity"', "2.5"]),
        ("string", ['a"b', None, ""], ['"a\\"b"', "null", '""']),
        ("bytes", [b"\xca\xfe\x00", b"", None], ['"yv4A"', '""', "null"]),
    ],
)
def test_values_have_jacksons_text(kind: ConnectType, values: list[object], texts: list[str]) -> None:
    assert to_json(ConnectSchema(kind), pa.array(values)).to_pylist() == texts


def test_floats_are_not_widened() -> None:
    assert to_json(ConnectSchema("float"), pa.array([0.1, 1.5], pa.float32())).to_pylist() == ["0.1", "1.5"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("é中", '"é中"'),
        ("\x01\x1f\b\t\n\f\r", '"\\u0001\\u001F\\b\\t\\n\\f\\r"'),
        ("🙂x", '"\\uD83D\\uDE42x"'),
        ("\x7f/\u2028", '"\x7f/\u2028"'),
    ],
)
def test_only_what_must_be_is_escaped(text: str, written: str) -> None:
    assert quote(pa.array([text])).to_pylist() == [written]


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))))
def test_quoted_text_reads_back(values: list[str | None]) -> None:
    quoted = quote(pa.array(values, pa.utf8())).to_pylist()
    assert [None if text is None else json.loads(text) for text in quoted] == values


def test_nested_values_are_joined_and_nulls_stay_at_their_level() -> None:
    schema = struct(
        "s",
        ("a", ConnectSchema("array", optional=True, items=struct("i", ("x", INT64)))),
        ("m", ConnectSchema("map", optional=True, keys=STRING, items=OPTIONAL_STRING)),
        ("n", ConnectSchema("map", optional=True, keys=INT64, items=OPTIONAL_STRING)),
        ("snapshot", SNAPSHOT),
    )
    kind = pa.struct(
        [
            ("a", pa.list_(pa.struct([("x", pa.int64())]))),
            ("m", pa.map_(pa.utf8(), pa.utf8())),
            ("n", pa.map_(pa.int64(), pa.utf8())),
            ("snapshot", pa.utf8()),
        ]
    )
    rows = pa.array(
        [
            {"a": [{"x": 1}, {"x": 2}], "m": {"k": "v", "l": None}, "n": {7: "v"}, "snapshot": "true"},
            {"a": [], "m": {}, "n": {}, "snapshot": None},
            {"a": None, "m": None, "n": None, "snapshot": None},
            None,
        ],
        kind,
    )
    assert to_json(schema, rows).to_pylist() == [
        '{"a":[{"x":1},{"x":2}],"m":{"k":"v","l":null},"n":[[7,"v"]],"snapshot":"true"}',
        '{"a":[],"m":{},"n":[],"snapshot":"false"}',
        '{"a":null,"m":null,"n":null,"snapshot":"false"}',
        "null",
    ]
    assert to_json(schema, rows.slice(1, 1)).to_pylist() == [
        '{"a":[],"m":{},"n":[],"snapshot":"false"}',
    ]


def test_a_schemas_members_are_in_converters_order() -> None:
    schema = struct(
        "top", ("a", ConnectSchema("array", items=STRING, optional=True)), ("b", SNAPSHOT), version=1
    )
    assert schema.to_json() == (
        '{"type":"struct","fields":[{"type":"array","items":{"type":"string","optional":false},"optional":true,'
        '"field":"a"},{"type":"string","optional":true,"name":"io.debezium.data.Enum","version":1,"parameters":'
        '{"allowed":"true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},'
        '"default":"false","field":"b"}],"optional":false,"name":"top","version":1}'
    )
