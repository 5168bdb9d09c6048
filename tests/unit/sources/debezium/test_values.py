from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.sources.debezium.connect_schema import ConnectField
from airflow_cdc_provider.sources.debezium.json_members import read_values
from airflow_cdc_provider.sources.debezium.numbers import decimal_texts, read_instants
from airflow_cdc_provider.sources.debezium.values import show

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
}


def unscaled(number: int) -> str:
    raw = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    return base64.b64encode(raw).decode()


def shown(schema: dict[str, Any], *values: Any) -> tuple[list[Any], list[bool]]:
    field = ConnectField.of(schema)
    data, found = read_values(pa.array([json.dumps(value).encode() for value in values], pa.binary()))
    array, misfits = show(data, found, field)
    array.validate(full=True)
    assert array.type == field.lake_type
    return array.to_pylist(), misfits.tolist()


@pytest.mark.parametrize(
    ("schema", "values", "expected", "misfits"),
    [
        ({"type": "int16"}, [1, None, 2**31, "x", 1.5], [1, None, None, None, None], [0, 0, 1, 1, 1]),
        ({"type": "int64"}, [-(2**63), 2**63], [-(2**63), None], [0, 1]),
        ({"type": "float"}, [0.5, 1e300], [0.5, None], [0, 1]),
        ({"type": "double"}, [3, "Infinity", "x"], [3.0, float("inf"), None], [0, 0, 1]),
        ({"type": "boolean"}, [True, False, 1], [True, False, None], [0, 0, 1]),
        ({"type": "string"}, ["é", 1, None], ["é", None, None], [0, 1, 0]),
        ({"type": "bytes"}, ["AQI=", "%"], [b"\x01\x02", None], [0, 1]),
        (
            {"type": "int32", "name": "io.debezium.time.Date"},
            [0, 18000, 3_000_000],
            [date(1970, 1, 1), date(2019, 4, 14), None],
            [0, 0, 1],
        ),
        (
            {"type": "int64", "name": "io.debezium.time.Timestamp"},
            [0, -1, 10**18, -(2**63)],
            [datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999000), None, None],
            [0, 0, 1, 1],
        ),
        (
            {"type": "int64", "name": "io.debezium.time.NanoTimestamp"},
            [2000, 2500],
            [datetime(1970, 1, 1, 0, 0, 0, 2), datetime(1970, 1, 1, 0, 0, 0, 2)],
            [0, 1],
        ),
        (
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
            [2.5, 2.0, -1.5, -0.001, 1700000000123456, "x", 1.5e-30, None, 1e300],
            [
                datetime(1970, 1, 1, 0, 0, 0, 2),
                datetime(1970, 1, 1, 0, 0, 0, 2),
                datetime(1969, 12, 31, 23, 59, 59, 999998),
                datetime(1969, 12, 31, 23, 59, 59, 999999),
                datetime(2023, 11, 14, 22, 13, 20, 123456),
                None,
                None,
                None,
                None,
            ],
            [1, 0, 1, 1, 0, 1, 1, 0, 1],
        ),
        ({"type": "int64", "name": "io.debezium.time.MicroTime"}, [2.5, -0.5], [2, -1], [1, 1]),
        ({"type": "int32", "name": "io.debezium.time.Time"}, [1.5], [None], [1]),
        ({"type": "int32", "name": "io.debezium.time.Time"}, [1500, -1], [1_500_000, -1000], [0, 0]),
        (
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
            ["2024-02-29T12:00:00.5+02:00", "2023-02-29T12:00:00Z", "2024-02-29 12:00:00"],
            [datetime(2024, 2, 29, 10, 0, 0, 500000, UTC), None, datetime(2024, 2, 29, 12, tzinfo=UTC)],
            [0, 1, 0],
        ),
        (
            {
                "type": "bytes",
                "name": DECIMAL,
                "parameters": {"scale": "2", "connect.decimal.precision": "5"},
            },
            [unscaled(12345), unscaled(-5), unscaled(123456), 1.25, ""],
            [Decimal("123.45"), Decimal("-0.05"), None, Decimal("1.25"), None],
            [0, 0, 1, 0, 1],
        ),
        (
            {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "40"}},
            [unscaled(1)],
            ["0." + 39 * "0" + "1"],
            [0],
        ),
        (
            VARIABLE,
            [{"scale": 2, "value": unscaled(123)}, {"scale": 2}, None],
            ["1.23", None, None],
            [0, 1, 0],
        ),
        (
            {"type": "struct", "fields": [{"type": "int32", "field": "a"}, {"type": "string", "field": "b"}]},
            [{"a": 1, "b": "x"}, {"b": None}, {"a": "no"}, []],
            [{"a": 1, "b": "x"}, {"a": None, "b": None}, None, None],
            [0, 0, 1, 1],
        ),
        (
            {"type": "array", "items": {"type": "int32", "name": "io.debezium.time.Date"}},
            [[0, None], [], ["x"], {}],
            [[date(1970, 1, 1), None], [], None, None],
            [0, 0, 1, 1],
        ),
        (
            {"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}},
            [{"a": 1}, {}, [["b", 2], ["c", None]], [["d"]], 1],
            [[("a", 1)], [], [("b", 2), ("c", None)], None, None],
            [0, 0, 0, 1, 1],
        ),
    ],
)
def test_each_type_is_converted_exactly_or_reported(
    schema: dict[str, Any], values: list[Any], expected: list[Any], misfits: list[int]
) -> None:
    assert shown(schema, *values) == (expected, [bool(one) for one in misfits])


@given(st.lists(st.integers(-(10**60), 10**60), min_size=1), st.integers(-5, 70))
def test_decimals_of_any_size_keep_all_their_digits(numbers: list[int], scale: int) -> None:
    raw = [number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True) for number in numbers]
    found, broken = decimal_texts(pa.array(raw, pa.binary()), np.full(len(raw), scale))
    assert not broken.any()
    for number, text in zip(numbers, found.to_pylist(), strict=True):
        assert Decimal(text) == Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
        assert "E" not in text
        assert len(text.partition(".")[2]) == max(scale, 0)


@given(st.lists(st.datetimes(), min_size=1))
def test_moments_are_those_of_the_calendar(moments: list[datetime]) -> None:
    texts = pa.array([moment.isoformat() + "Z" for moment in moments])
    found, broken, cut = read_instants(*binary_buffer(texts))
    assert not broken.any()
    assert not cut.any()
    assert found.tolist() == [(m - datetime(1970, 1, 1)) // timedelta(microseconds=1) for m in moments]


@given(st.lists(st.text(alphabet="0123456789-:T.Z+ ", max_size=30), min_size=1))
def test_a_text_that_is_no_timestamp_is_reported(texts: list[str]) -> None:
    found, broken, _ = read_instants(*binary_buffer(pa.array(texts)))
    for text, micros, wrong in zip(texts, found.tolist(), broken.tolist(), strict=True):
        if not wrong:
            moment = datetime.fromisoformat(text[:26] if len(text) > 26 and text[26].isdigit() else text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            assert micros == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
