from __future__ import annotations

import json
import struct
from typing import Any

import bson
import numpy as np
import pytest
from bson import json_util
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.formats.extended_json import JSON_UTIL, MIRROR, Texts, write_values
from tests.unit.sources.mongodb.documents import (
    DECIMALS,
    DOCUMENTS,
    DOUBLES,
    MUTATIONS,
    READ,
    mutated,
    raw_document,
    raw_element,
    raw_string,
)


def written(*documents: bytes, ascii_only: bool = True) -> Texts:
    data = as_bytes(b"".join(documents))
    spans = split_documents(data)
    return write_values(
        data, np.full(len(spans), 3), spans.starts, spans.ends, JSON_UTIL if ascii_only else MIRROR
    )


def text(document: bytes, *, ascii_only: bool = True) -> str:
    found = written(document, ascii_only=ascii_only)
    found.column.validate(full=True)
    return str(found.column[0].as_py())


def is_a_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(is_a_reference(v) for v in value.values())
    if isinstance(value, list):
        return any(is_a_reference(v) for v in value)
    return isinstance(value, bson.Code) and is_a_reference(value.scope or {})


@given(DOCUMENTS.filter(lambda d: not is_a_reference(d)), st.booleans())
def test_text_is_json_utils_canonical_text(document: dict[str, Any], ascii_only: bool) -> None:
    data = bson.encode(document)
    expected = json_util.dumps(
        bson.decode(data, READ),
        json_options=json_util.CANONICAL_JSON_OPTIONS,
        ensure_ascii=ascii_only,
    )
    assert text(data, ascii_only=ascii_only) == expected


@given(DOUBLES)
def test_doubles_have_the_digits_of_repr(value: float) -> None:
    names = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    expected = names.get(repr(value), repr(value))
    assert text(bson.encode({"d": value})) == f'{{"d": {{"$numberDouble": "{expected}"}}}}'


@given(DECIMALS)
def test_decimals_are_written_by_their_specification(value: bson.Decimal128) -> None:
    assert text(bson.encode({"d": value})) == f'{{"d": {{"$numberDecimal": "{value}"}}}}'


def test_what_pythons_types_lose_is_kept() -> None:
    document = raw_document(
        raw_element(0x06, "u"),
        raw_element(0x0E, "s", raw_string(b"sym")),
        raw_element(0x0C, "p", raw_string(b"db.c") + bytes(range(12))),
        raw_element(0x10, "dup", struct.pack("<i", 1)),
        raw_element(0x10, "dup", struct.pack("<i", 2)),
        raw_element(0x0B, "r", b"a/b\0zl\0"),
    )
    assert text(document) == (
        '{"u": {"$undefined": true}, "s": {"$symbol": "sym"}, "p": {"$dbPointer": {"$ref": "db.c", "$id": '
        '{"$oid": "000102030405060708090a0b"}}}, "dup": {"$numberInt": "1"}, "dup": {"$numberInt": "2"}, '
        '"r": {"$regularExpression": {"pattern": "a/b", "options": "zl"}}}'
    )


def test_a_date_of_any_year_is_exact() -> None:
    for value in (-(2**63), -1, 2**63 - 1):
        data = raw_document(raw_element(0x09, "d", struct.pack("<q", value)))
        assert text(data) == f'{{"d": {{"$date": {{"$numberLong": "{value}"}}}}}}'


@pytest.mark.parametrize(
    "broken", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x28\xa1"]
)
def test_bytes_that_are_no_utf8_show_as_replacement_and_are_counted(broken: bytes) -> None:
    document = raw_document(raw_element(2, "s", raw_string(broken)))
    for ascii_only in (True, False):
        found = written(document, bson.encode({"s": "é"}), ascii_only=ascii_only)
        found.column.validate(full=True)
        assert found.not_utf8 == 1
        assert "\ufffd" in json.loads(found.column[0].as_py())["s"]
        assert json.loads(found.column[1].as_py())["s"] == "é"


@given(DOCUMENTS, MUTATIONS)
def test_broken_bytes_give_null_or_text_and_no_crash(
    document: dict[str, Any], changes: list[tuple[int, int]]
) -> None:
    data = as_bytes(mutated(bson.encode(document), changes))
    whole = np.array([0]), np.array([len(data)])
    write_values(data, np.array([3]), *whole, JSON_UTIL).column.validate(full=True)


def test_room_grows_with_texts_that_are_much_longer_than_their_bytes() -> None:
    documents = [bson.encode({"s": "\x01" * 50_000, "a": [None] * n}) for n in range(200)]
    found = written(*documents)
    assert found.column.to_pylist() == [json_util.dumps(bson.decode(d)) for d in documents]


def test_absent_values_are_null() -> None:
    nothing = write_values(as_bytes(b""), np.array([0]), np.array([-1]), np.array([-1]), JSON_UTIL)
    assert nothing.column.to_pylist() == [None]
