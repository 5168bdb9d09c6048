from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MinKey, ObjectId
from hypothesis import given

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.declared_columns import DeclaredColumn, declared_columns
from airflow_cdc_provider.sources.mongodb.decoding.columns import arrow_type, read_columns
from tests.unit.sources.mongodb.documents import (
    DECIMALS,
    DOUBLES,
    INT64,
    raw_document,
    raw_element,
    raw_string,
)

NAN = float("nan")
UTC = dt.UTC


def read(type_name: str, *values: Any, path: str = "v") -> tuple[list[Any], int]:
    """Read values as a column; plain bytes are whole documents."""
    documents = [v if type(v) is bytes else bson.encode({"v": v}) for v in values]
    data = as_bytes(b"".join(documents))
    spans = split_documents(data)
    column = DeclaredColumn.parse("db.c", "x", f"{path} {type_name}")
    ((array, misfits),) = read_columns([column], data, spans.starts, spans.ends)
    array.validate(full=True)
    assert array.type == arrow_type(column)
    return array.to_pylist(), misfits


@pytest.mark.parametrize(
    ("type_name", "fits", "misfits"),
    [
        ("boolean", [(True, True), (False, False)], [1, "true"]),
        ("tinyint", [(127, 127), (-128, -128), (Int64(5), 5), (5.0, 5)], [128, -129, 0.5, "5", NAN, True]),
        ("smallint", [(32767, 32767)], [32768]),
        ("int", [(2**31 - 1, 2**31 - 1), (Decimal128("7.00"), 7), (Decimal128("1E3"), 1000)], [Int64(2**31)]),
        (
            "bigint",
            [(Int64(2**63 - 1), 2**63 - 1), (-(2.0**63), -(2**63)), (Decimal128(str(-(2**63))), -(2**63))],
            [2.0**63, Decimal128("9223372036854775808"), 1e300, Decimal128("0.5"), Decimal128("NaN")],
        ),
        (
            "double",
            [
                (0.1, 0.1),
                (3, 3.0),
                (Int64(2**53), 2.0**53),
                (Decimal128("0.5"), 0.5),
                (Decimal128("-Infinity"), float("-inf")),
            ],
            [Int64(2**53 + 1), Decimal128("0.1"), "1"],
        ),
        ("float", [(0.5, 0.5), (3, 3.0), (float("inf"), float("inf"))], [0.1, 2**24 + 1, 1e300]),
        (
            "decimal(6,2)",
            [
                (9.99, Decimal("9.99")),
                (5, Decimal("5.00")),
                (Int64(-9999), Decimal("-9999.00")),
                (Decimal128("1.5"), Decimal("1.50")),
                (Decimal128("12E2"), Decimal("1200.00")),
            ],
            [9.999, 10000, Decimal128("0.001"), NAN, 1e300, Decimal128("1E6000"), Decimal128("Infinity")],
        ),
        ("decimal(38,0)", [(Decimal128("9" * 34), Decimal("9" * 34))], [Decimal128("1E38")]),
        (
            "date",
            [
                (dt.datetime(2024, 2, 29, tzinfo=UTC), dt.date(2024, 2, 29)),
                (DatetimeMS(-86_400_000), dt.date(1969, 12, 31)),
            ],
            [DatetimeMS(1), DatetimeMS(2**63 - 1)],
        ),
        (
            "timestamp",
            [(DatetimeMS(-1), dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC))],
            [DatetimeMS(253_402_300_800_000), DatetimeMS(-(2**63)), bson.Timestamp(1, 1)],
        ),
        (
            "string",
            [
                ("é😀", "é😀"),
                (Code("f()"), "f()"),
                (ObjectId("0" * 23 + "f"), "0" * 23 + "f"),
                (Binary(bytes(range(16)), 4), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
            ],
            [1, Binary(bytes(16), 3), MinKey(), {"a": 1}],
        ),
        (
            "binary",
            [(Binary(b"a", 128), b"a"), (Binary(b"old", 2), b"old"), (ObjectId("61" * 12), b"a" * 12)],
            ["a"],
        ),
    ],
)
def test_a_value_lands_exactly_or_is_null_and_counted(
    type_name: str, fits: list[tuple[Any, Any]], misfits: list[Any]
) -> None:
    assert read(type_name, *(value for value, _ in fits)) == ([found for _, found in fits], 0)
    assert read(type_name, *misfits) == ([None] * len(misfits), len(misfits))


def test_nothing_null_and_undefined_are_null_and_no_misfits() -> None:
    undefined = raw_document(raw_element(0x06, "v"))
    for type_name in ("bigint", "string", "timestamp", "decimal(5,1)", "boolean", "binary", "double"):
        assert read(type_name, bson.encode({}), None, undefined) == ([None] * 3, 0)


def test_a_symbol_is_text_and_broken_utf8_is_a_misfit() -> None:
    symbol, broken = (
        raw_document(raw_element(k, "v", raw_string(t))) for k, t in ((0x0E, b"s"), (2, b"\xff"))
    )
    assert read("string", symbol, broken) == (["s", None], 1)


def test_json_takes_every_value() -> None:
    assert read("json", {"a": [1, None]}, "é", bson.encode({})) == (
        ['{"a": [{"$numberInt": "1"}, null]}', '"é"', None],
        0,
    )


def test_a_path_reaches_into_documents_and_arrays() -> None:
    document = bson.encode({"a": [{"b": 1}, {"b": 2}]})
    assert read("int", document, path="a.1.b") == ([2], 0)


@given(DOUBLES)
def test_a_double_is_a_decimal_if_its_shortest_text_fits(value: float) -> None:
    expected, exact = None, True
    if np.isfinite(value):
        expected = Decimal(repr(value))
        exact = expected == round(expected, 10) if abs(expected) < 10**18 else False
    assert read("decimal(28,10)", value) == (([expected], 0) if np.isfinite(value) and exact else ([None], 1))


@given(DECIMALS)
def test_a_decimal_is_a_double_only_if_equal(value: Decimal128) -> None:
    ((found,), misfits) = read("double", value)
    number = value.to_decimal()
    if misfits:
        assert found is None
        assert number.is_finite()
        assert Decimal(float(number)) != number
    else:
        assert repr(found) == "nan" if number.is_nan() else Decimal(found) == number


@given(INT64)
def test_a_whole_number_passes_through_every_type_that_holds_it(value: int) -> None:
    for form in (Int64(value), Decimal128(str(value))):
        assert read("bigint", form) == ([value], 0)
        assert read("decimal(19,0)", form) == ([Decimal(value)], 0)
        ((found,), misfits) = read("double", form)
        assert misfits or int(found) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("_id", "a string", "rename the column, for example to _id__2"),
        ("x", "a", "unknown type"),
        ("x", "a varchar", "unknown type"),
        ("x", "a..b int", "dotted.path type"),
        ("x", "a decimal(39,2)", "p <= 38"),
        ("x", "a decimal(2,3)", "s <= p"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=r"db\.c, column") as caught:
        declared_columns("db.c", {name: text})
    assert message in str(caught.value)


def test_a_type_may_hold_spaces_and_capitals() -> None:
    assert arrow_type(DeclaredColumn.parse("db.c", "x", " a.b  DECIMAL( 10, 2 ) ")) == pa.decimal128(10, 2)


def test_no_rows_give_an_empty_column() -> None:
    column = DeclaredColumn.parse("db.c", "x", "v string")
    empty = np.empty(0, np.int64)
    ((array, misfits),) = read_columns([column], as_bytes(struct.pack("<i", 0)), empty, empty)
    assert (len(array), misfits) == (0, 0)
