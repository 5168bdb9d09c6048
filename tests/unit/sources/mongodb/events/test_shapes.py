"""Documents as typed structs, against the values that the driver decodes."""

from __future__ import annotations

from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.mongodb.events.raw_values import chosen_members, with_id
from airflow_cdc_provider.sources.mongodb.events.shapes import ArrayEncoding, typed_documents
from tests.unit.sources.mongodb.documents import (
    DOCUMENTS,
    NAMES,
    READ,
    mutated,
    raw_document,
    raw_element,
    raw_string,
)

SIMPLE = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.just("text"), st.just(ObjectId(b"a" * 12))
)
NESTED: st.SearchStrategy[Any] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
ENCODINGS: list[ArrayEncoding] = ["array", "document", "mixed"]
TREES = st.dictionaries(NAMES, NESTED, max_size=4)


def typed(documents: list[bytes | None], arrays: ArrayEncoding = "array") -> tuple[list[Any], dict[int, str]]:
    groups, reasons = typed_documents(pa.array(documents, pa.large_binary()), arrays)
    rows: list[Any] = [None] * len(documents)
    for group in groups:
        for row, value in zip(group.rows, group.documents.to_pylist(), strict=True):
            rows[row] = value
    return rows, reasons


def by_position(value: Any) -> Any:
    if isinstance(value, list):
        return {f"_{n}": by_position(item) for n, item in enumerate(value)}
    if isinstance(value, dict):
        return {name: by_position(item) for name, item in value.items()}
    return str(value) if isinstance(value, ObjectId) else value


@pytest.mark.covers("MDB-XD-31")
@given(st.lists(TREES, min_size=1, max_size=5))
def test_by_position_every_document_keeps_all_its_values(documents: list[dict[str, Any]]) -> None:
    rows, reasons = typed([bson.encode(d) for d in documents], "document")
    assert reasons == {}
    assert rows == [by_position(d) for d in documents]
    assert [list(row) for row in rows] == [list(bson.decode(bson.encode(d))) for d in documents]


@pytest.mark.covers("MDB-XD-31")
@pytest.mark.parametrize(
    ("value", "converted"),
    [
        (1.5, 1.5),
        (Int64(2**60), 2**60),
        (Binary(b"old", 2), b"old"),
        (ObjectId("65a000000000000000000001"), "65a000000000000000000001"),
        (DatetimeMS(-(2**63)), -(2**63)),
        (Timestamp(2**32 - 1, 7), -1000),
        (Decimal128("1E+3"), "1E+3"),
        (Regex("a/b", "mi"), {"regex": "a/b", "options": "im"}),
        (Code("f()"), "f()"),
        (Code("f()", {"x": 1}), '{"$code": "f()","$scope": {"x": 1}}'),
        (MinKey(), '{"$minKey": 1}'),
        ([1, None, 2], [1, None, 2]),
        ([], []),
        ([None], [None]),
        ([{"a": 1}, {"b": "x"}], [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
        ([[1], [2, 3], []], [[1], [2, 3], []]),
        ([{"a": []}, {"a": [1]}], [{"a": []}, {"a": [1]}]),
        ({}, {}),
    ],
)  # fmt: skip
def test_each_type_has_its_family(value: Any, converted: Any) -> None:
    rows, reasons = typed([bson.encode({"v": value}), None])
    assert (rows, reasons) == ([{"v": converted}, None], {})


@pytest.mark.parametrize(
    ("value", "converted"),
    [
        ([1, "a"], ["1", '"a"']),
        ([1, None, 2.5], ["1", None, "2.5"]),
        ([1, Int64(2)], ["1", "2"]),
        ([{"a": 1}, [2]], ['{"a": 1}', "[2]"]),
        ([{"a": 1}, {"a": "x", "b": 2}], [{"a": "1", "b": None}, {"a": '"x"', "b": 2}]),
        ([[1], ["x", None], []], [["1"], ['"x"', None], []]),
        ([[1, "a"], [2]], [["1", '"a"'], ["2"]]),
        ([1, 2], [1, 2]),
        ([None], [None]),
        ({"$numberInt": [1, {"$date": "x"}]}, {"$numberInt": ["1", '{"$date": "x"}']}),
    ],
)  # fmt: skip
def test_elements_of_several_types_are_extended_json_if_so_declared(value: Any, converted: Any) -> None:
    assert typed([bson.encode({"v": value})], "mixed") == ([{"v": converted}], {})


@given(st.lists(TREES, min_size=1, max_size=5))
def test_no_mixture_of_types_in_arrays_fails_a_document(documents: list[dict[str, Any]]) -> None:
    raw = [bson.encode(d) for d in documents]
    rows, reasons = typed(raw, "mixed")
    assert reasons == {}
    uniform, mixed = typed(raw)
    for row, (found, alike) in enumerate(zip(rows, uniform, strict=True)):
        assert set(found) == set(documents[row])
        assert alike == found or row in mixed, "arrays of one type are the same in both"
        for name, value in documents[row].items():
            if isinstance(value, list):
                assert [item is None for item in found[name]] == [item is None for item in value]


def test_documents_of_one_shape_share_a_struct_whatever_their_arrays_length() -> None:
    documents = [bson.encode({"a": [{"x": n}] * n, "b": n}) for n in range(1, 6)]
    groups, _ = typed_documents(pa.array(documents, pa.large_binary()))
    assert [group.rows.tolist() for group in groups] == [[0, 1, 2, 3, 4]]


def test_of_members_with_one_name_the_last_counts_at_the_position_of_the_first() -> None:
    twice = raw_document(
        raw_element(0x10, "a", b"\1\0\0\0"),
        raw_element(0x10, "b", b"\2\0\0\0"),
        raw_element(0x02, "a", raw_string(b"last")),
    )
    rows, _ = typed([twice])
    assert [*rows[0].items()] == [("a", "last"), ("b", 2)]


def test_a_name_that_is_no_text_fails_its_document_alone() -> None:
    broken = bytearray(bson.encode({"a": {"b": 1}}))
    broken[broken.index(b"b")] = 0xFF
    rows, reasons = typed([bytes(broken), bson.encode({"a": 1})])
    assert rows == [None, {"a": 1}]
    assert "not UTF-8" in reasons[0]


@given(
    DOCUMENTS,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.sampled_from(ENCODINGS),
)
def test_any_bytes_leave_the_kernels_alive(
    document: dict[str, Any],
    changes: list[tuple[int, int]],
    arrays: ArrayEncoding,
) -> None:
    data = mutated(bson.encode(document, codec_options=READ), changes)
    column = pa.array([data], pa.large_binary())
    groups, reasons = typed_documents(column, arrays)
    assert len(groups) + len(reasons) <= 1
    assert len(chosen_members(column, ["a", "_id"])) == 1


@given(TREES, NESTED)
def test_members_can_be_chosen_and_an_id_added(document: dict[str, Any], identity: Any) -> None:
    column = pa.array([bson.encode(document), None], pa.large_binary())
    keys = pa.array([bson.encode({"id": identity})] * 2, pa.large_binary())
    chosen, nothing = chosen_members(column, ["b", "a"]).to_pylist()
    assert nothing is None
    expected = {name: document[name] for name in ("b", "a") if name in document}
    assert list(bson.decode(chosen).items()) == list(expected.items())
    added, nothing = with_id(column, keys).to_pylist()
    assert nothing is None
    assert bson.decode(added) == (document if "_id" in document else {**document, "_id": identity})
