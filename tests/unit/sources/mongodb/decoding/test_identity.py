from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.bson import as_bytes, find_in_all
from airflow_cdc_provider.sources.mongodb.decoding.identity import canonical_keys
from tests.unit.sources.mongodb.documents import (
    DECIMALS,
    DOUBLES,
    INT32,
    INT64,
    MUTATIONS,
    VALUES,
    mutated,
    raw_document,
    raw_element,
    raw_string,
)


def key_in(document: bytes) -> bytes:
    data = as_bytes(document)
    keys, offsets = canonical_keys(data, *find_in_all(data, np.array([0]), np.array([len(data)]), b"_id"))
    assert offsets[-1] == len(keys)
    return keys.tobytes()


def key(value: Any) -> bytes:
    return key_in(bson.encode({"_id": value}))


EQUAL = [
    [1, 1.0, Int64(1), Decimal128("1.00"), Decimal128("0.1E1")],
    [0, 0.0, -0.0, Decimal128("0E+3"), Decimal128("-0")],
    [-1, Int64(-1), Decimal128("-1.0")],
    [0.5, Decimal128("0.50")],
    [float("nan"), Decimal128("NaN"), Decimal128("-NaN")],
    [float("inf"), Decimal128("Infinity")],
    [float("-inf"), Decimal128("-Infinity")],
    [Int64(2**53), 2.0**53, Decimal128("9007199254740992")],
    [Int64(2**53 + 1), Decimal128("9007199254740993")],
    [Int64(-(2**63)), -(2.0**63), Decimal128("-9223372036854775808")],
    [Int64(2**63 - 1), Decimal128("9223372036854775807")],
    [2.0**63, Decimal128("9223372036854775808")],
    [0.1],
    [Decimal128("0.1")],
    [1e22, Decimal128("1E22")],
    [1e23, Decimal128("99999999999999991611392")],
    [Decimal128("1E23")],
    [Decimal128("2E+6000"), Decimal128("20E+5999")],
    ["a"],
    [""],
    [None],
    [True],
    [False],
    [{}],
    [{"a": 1}, {"a": 1.0}],
    [{"a": 1, "b": 2}],
    [{"b": 2, "a": 1}],
    [{"a": [1, {"b": 2}]}, {"a": [1.0, {"b": Int64(2)}]}],
    [{"a": [{"b": 2}, 1]}],
    [{"a": {"0": 1}}],
    [{"a": [1]}],
    [Binary(b"x", 0)],
    [Binary(b"x", 5)],
    [Timestamp(1, 0)],
    [Code("1")],
    [Code("1", {"a": 1}), Code("1", {"a": 1.0})],
    [Code("1", {})],
    [MinKey()],
    [MaxKey()],
]


def test_values_have_one_key_exactly_if_mongodb_takes_them_for_one() -> None:
    keys = [{key(value) for value in group} for group in EQUAL]
    assert [len(group) for group in keys] == [1] * len(EQUAL)
    assert len(set().union(*keys)) == len(EQUAL)


def test_a_symbol_is_the_same_as_its_string() -> None:
    symbol = raw_document(raw_element(0x0E, "_id", raw_string(b"x")))
    assert key_in(symbol) == key("x")


def exact(value: Any) -> tuple[str, Any]:
    """Return the class and the exact value of a number, in Python."""
    number = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if number.is_nan():
        return "nan", None
    if number.is_infinite():
        return "infinite", number > 0
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1) ** sign
    if not whole:
        return "finite", (0, 0)
    while whole % 10 == 0:
        whole //= 10
        exponent += 1
    return "finite", (whole, exponent)


NUMBERS = st.one_of(INT32, INT64.map(Int64), DOUBLES, DECIMALS)


@given(NUMBERS, NUMBERS)
def test_numbers_have_one_key_exactly_if_their_values_are_equal(a: Any, b: Any) -> None:
    assert (key(a) == key(b)) == (exact(a) == exact(b))


@given(INT64)
def test_a_whole_number_has_one_key_in_every_type(value: int) -> None:
    keys = {key(Int64(value)), key(Decimal128(str(value)))}
    if float(value) == value and -(2**53) <= value <= 2**53:
        keys.add(key(float(value)))
    assert len(keys) == 1


@given(VALUES)
def test_keys_depend_on_the_value_only(value: Any) -> None:
    first, second = (bson.encode({**before, "_id": value}) for before in ({}, {"x": 1}))
    assert key_in(first) == key_in(second) != b""


@given(VALUES, MUTATIONS)
def test_broken_bytes_give_no_key_or_some_key_and_no_crash(
    value: Any, changes: list[tuple[int, int]]
) -> None:
    key_in(mutated(bson.encode({"_id": value}), changes))


def test_a_document_without_id_has_no_key() -> None:
    assert key_in(bson.encode({"x": 1})) == b""


@pytest.mark.parametrize("count", [0, 3])
def test_keys_of_many_values_are_concatenated(count: int) -> None:
    documents = [bson.encode({"_id": n}) for n in range(count)]
    data = as_bytes(b"".join(documents))
    ends = np.cumsum([len(d) for d in documents]).astype(np.int64) if count else np.empty(0, np.int64)
    starts = ends - len(documents[0]) if count else ends
    keys, offsets = canonical_keys(data, *find_in_all(data, starts, ends, b"_id"))
    parts = [keys[a:b].tobytes() for a, b in pairwise(offsets)]
    assert parts == [key(n) for n in range(count)]
