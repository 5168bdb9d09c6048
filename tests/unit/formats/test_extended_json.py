from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import (
    Binary,
    Code,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.extended_json import (
    BROKEN,
    CANONICAL,
    DOCUMENT,
    DONE,
    KEY,
    LINES,
    UPDATED,
    Texts,
    write_values,
)

OID = ObjectId("596e275826f08b2730779e1f")
DAY = datetime.datetime(2019, 5, 27, 13, 58, 28, tzinfo=datetime.UTC)


def written(documents: Sequence[bytes | None], profile: int) -> Texts:
    data, starts, ends, valid = binary_slices(pa.array(documents, pa.binary()))
    return write_values(data, np.where(valid, 3, 0), starts, ends, profile)


def text(document: bytes, profile: int) -> str:
    texts, status, _ = written([document], profile)
    assert status.tolist() == [DONE]
    return str(texts[0])


def value_text(value: object, profile: int) -> str:
    whole = text(bson.encode({"v": value}), profile)
    assert whole.startswith('{"v": ')
    return whole[len('{"v": ') : -1]


def element(kind: int, value: bytes, name: bytes = b"v") -> bytes:
    body = bytes([kind]) + name + b"\0" + value
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


@pytest.mark.covers(
    "MDB-EVT-03", "MDB-EVT-04", "MDB-EVT-05", "MDB-EVT-07", "MDB-EVT-08", "MDB-EVT-16", "MDB-XS-06"
)
@pytest.mark.parametrize(
    ("value", "document", "key", "canonical"),
    [
        (12.34, "12.34", "12.34", '{"$numberDouble": "12.34"}'),
        (1.0, "1.0", "1.0", '{"$numberDouble": "1.0"}'),
        (1e7, "1.0E7", "1.0E7", '{"$numberDouble": "1.0E7"}'),
        (1e-4, "1.0E-4", "1.0E-4", '{"$numberDouble": "1.0E-4"}'),
        (float("nan"), "NaN", '{"$numberDouble": "NaN"}', '{"$numberDouble": "NaN"}'),
        (float("-inf"), "-Infinity", '{"$numberDouble": "-Infinity"}', '{"$numberDouble": "-Infinity"}'),
        ("text", '"text"', '"text"', '"text"'),
        ({}, "{}", "{}", "{}"),
        ([], "[]", "[]", "[]"),
        ([1, [2]], "[1,[2]]", "[1,[2]]", '[{"$numberInt": "1"},[{"$numberInt": "2"}]]'),
        (
            Binary(b"kafka"),
            '{"$binary": "a2Fma2E=","$type": "00"}',
            '{"$binary": {"base64": "a2Fma2E=","subType": "00"}}',
            '{"$binary": {"base64": "a2Fma2E=","subType": "00"}}',
        ),
        (
            Binary(b"old", 2),
            '{"$binary": "b2xk","$type": "02"}',
            '{"$binary": {"base64": "b2xk","subType": "02"}}',
            '{"$binary": {"base64": "b2xk","subType": "02"}}',
        ),
        (
            Binary(b"cipher", 6),
            '{"$binary": "Y2lwaGVy","$type": "06"}',
            '{"$binary": {"base64": "Y2lwaGVy","subType": "06"}}',
            '{"$binary": {"base64": "Y2lwaGVy","subType": "06"}}',
        ),
        (OID, '{"$oid": "596e275826f08b2730779e1f"}', *['{"$oid": "596e275826f08b2730779e1f"}'] * 2),
        (True, "true", "true", "true"),
        (
            DAY,
            '{"$date": 1558965508000}',
            '{"$date": "2019-05-27T13:58:28Z"}',
            '{"$date": {"$numberLong": "1558965508000"}}',
        ),
        (None, "null", "null", "null"),
        (
            Regex("a/b", "mi"),
            '{"$regex": "a/b","$options": "im"}',
            '{"$regularExpression": {"pattern": "a/b","options": "im"}}',
            '{"$regularExpression": {"pattern": "a/b","options": "im"}}',
        ),
        (Code("f()"), '{"$code": "f()"}', '{"$code": "f()"}', '{"$code": "f()"}'),
        (
            Code("f()", {"x": 1}),
            '{"$code": "f()","$scope": {"x": 1}}',
            '{"$code": "f()","$scope": {"x": 1}}',
            '{"$code": "f()","$scope": {"x": {"$numberInt": "1"}}}',
        ),
        (1234, "1234", "1234", '{"$numberInt": "1234"}'),
        (
            Timestamp(4294967295, 31),
            '{"$timestamp": {"t": 4294967295,"i": 31}}',
            '{"$timestamp": {"t": 4294967295,"i": 31}}',
            '{"$timestamp": {"t": 4294967295,"i": 31}}',
        ),
        (Int64(-(2**63)), '{"$numberLong": "-9223372036854775808"}', "-9223372036854775808", None),
        (Decimal128("1.50"), *['{"$numberDecimal": "1.50"}'] * 3),
        (Decimal128("1E+3"), *['{"$numberDecimal": "1E+3"}'] * 3),
        (Decimal128("-0"), *['{"$numberDecimal": "-0"}'] * 3),
        (Decimal128("0.0000001"), *['{"$numberDecimal": "1E-7"}'] * 3),
        (Decimal128("-Infinity"), *['{"$numberDecimal": "-Infinity"}'] * 3),
        (Decimal128("9" * 34), *[f'{{"$numberDecimal": "{"9" * 34}"}}'] * 3),
        (MinKey(), *['{"$minKey": 1}'] * 3),
        (MaxKey(), *['{"$maxKey": 1}'] * 3),
        (
            DBRef("c", 1),
            '{"$ref": "c","$id": 1}',
            '{"$ref": "c","$id": 1}',
            '{"$ref": "c","$id": {"$numberInt": "1"}}',
        ),
    ],
)
def test_each_type_has_the_java_drivers_text(
    value: object, document: str, key: str, canonical: str | None
) -> None:
    assert value_text(value, DOCUMENT) == document
    assert value_text(value, KEY) == key
    assert value_text(value, CANONICAL) == (document if canonical is None else canonical)


def test_retired_types_are_written() -> None:
    assert text(element(6, b""), DOCUMENT) == '{"v": {"$undefined": true}}'
    assert text(element(14, b"\x04\0\0\0sym\0"), KEY) == '{"v": {"$symbol": "sym"}}'
    pointer = element(12, b"\x05\0\0\0db.c\0" + OID.binary)
    assert text(pointer, KEY) == f'{{"v": {{"$ref": "db.c","$id": {{"$oid": "{OID}"}}}}}}'
    assert text(pointer, CANONICAL) == (
        f'{{"v": {{"$dbPointer": {{"$ref": "db.c","$id": {{"$oid": "{OID}"}}}}}}}}'
    )


@pytest.mark.covers("MDB-EVT-17")
def test_updated_fields_have_a_space_after_each_comma_at_any_depth() -> None:
    document = bson.encode({"a.b": [1, 2], "c": Binary(b"x"), "d": Timestamp(1, 2)})
    assert text(document, UPDATED) == (
        '{"a.b": [1, 2], "c": {"$binary": {"base64": "eA==", "subType": "00"}}, '
        '"d": {"$timestamp": {"t": 1, "i": 2}}}'
    )


@pytest.mark.parametrize(
    ("ms", "key"),
    [
        (0, '"1970-01-01T00:00:00Z"'),
        (-1, '{"$numberLong": "-1"}'),
        (123, '"1970-01-01T00:00:00.123Z"'),
        (100, '"1970-01-01T00:00:00.1Z"'),
        (951_782_400_000, '"2000-02-29T00:00:00Z"'),
        (253_402_300_799_999, '"9999-12-31T23:59:59.999Z"'),
        (253_402_300_800_000, '{"$numberLong": "253402300800000"}'),
    ],
)
def test_dates_are_iso_text_only_where_the_driver_writes_it(ms: int, key: str) -> None:
    document = element(9, ms.to_bytes(8, "little", signed=True))
    assert text(document, KEY) == f'{{"v": {{"$date": {key}}}}}'
    assert text(document, DOCUMENT) == f'{{"v": {{"$date": {ms}}}}}'


@pytest.mark.parametrize(
    ("character", "written"),
    [
        ('"', '\\"'),
        ("\\", "\\\\"),
        ("\b\f\n\r\t", "\\b\\f\\n\\r\\t"),
        ("/", "/"),
        ("\x01", "\\u0001"),
        ("\x7f", "\\u007f"),
        ("é中크", "é中크"),
        ("e\u0301", "e\\u0301"),
        ("\u2028", "\\u2028"),
        ("\ufeff", "\\ufeff"),
        ("🙂", "\\ud83d\\ude42"),
        ("\ue000", "\\ue000"),
    ],
)
def test_characters_are_escaped_by_category(character: str, written: str) -> None:
    assert value_text(character, DOCUMENT) == f'"{written}"'
    assert text(bson.encode({character + "k": 1}), DOCUMENT) == f'{{"{written}k": 1}}'


def test_text_that_is_no_utf8_is_replaced() -> None:
    assert text(element(2, b"\x05\0\0\0a\xff\xe4b\0"), DOCUMENT) == '{"v": "a\ufffd\ufffdb"}'


@pytest.mark.parametrize("others", [0, 40])
def test_of_a_repeated_name_the_last_value_is_at_the_first_position(others: int) -> None:
    names = [b"a", b"b", b"a", *(b"n%d" % i for i in range(others))]
    body = b"".join(
        b"\x10" + name + b"\0" + number.to_bytes(4, "little") for number, name in enumerate(names)
    )
    document = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    rest = "".join(f',"n{i}": {i + 3}' for i in range(others))
    assert text(document, DOCUMENT) == f'{{"a": 2,"b": 1{rest}}}'


def test_deep_documents_are_followed() -> None:
    document: dict[str, object] = {"leaf": 1}
    for _ in range(180):
        document = {"d": document}
    assert text(bson.encode(document), DOCUMENT) == '{"d": ' * 180 + '{"leaf": 1}' + "}" * 180


def test_a_broken_document_leaves_its_neighbours_alone() -> None:
    good = bson.encode({"a": 1})
    broken = bytearray(bson.encode({"a": "text", "b": 2}))
    broken[7] = 0x7F
    texts, status, _ = written([good, bytes(broken), None, good], DOCUMENT)
    assert texts.to_pylist() == ['{"a": 1}', None, None, '{"a": 1}']
    assert status.tolist() == [DONE, BROKEN, 0, DONE]


def test_many_short_members_fit_the_room() -> None:
    worst = element(11, b"\0\0", b"")
    body = worst[4:-1] * 5000
    document = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    # All names are equal, so one member is left; unequal ones take more bytes.
    assert text(document, UPDATED) == '{"": {"$regularExpression": {"pattern": "", "options": ""}}}'
    undefined = b"".join(b"\x06" + bytes([1 + i % 255]) * (1 + i // 255) + b"\0" for i in range(500))
    document = (len(undefined) + 5).to_bytes(4, "little") + undefined + b"\0"
    assert text(document, UPDATED).count("$undefined") == 500


@given(st.binary(max_size=200))
def test_any_bytes_are_done_or_broken(data: bytes) -> None:
    _, status, _ = written([data], DOCUMENT)
    assert status[0] in (DONE, BROKEN)


def test_flipped_bytes_never_make_text_that_is_no_utf8() -> None:
    source = random.Random(7)
    whole = bson.encode(
        {"a": {"b": [1, 2.5, "text", None]}, "c": Code("x", {"y": 1}), "d": Decimal128("1.1"), "e": DAY}
    )
    documents = []
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            changed[source.randrange(len(changed))] = source.randrange(256)
        documents.append(bytes(changed))
    for profile in (KEY, DOCUMENT, UPDATED, CANONICAL):
        texts, status, _ = written(documents, profile)
        texts.validate(full=True)
        assert {DONE, BROKEN} == set(status.tolist())


@pytest.mark.parametrize(
    ("options", "sorted_options"),
    [
        (b"x\xc3\xa9i", "ix\u00e9"),
        ("z\U0001f600é\ufb01".encode(), "z\u00e9\\ud83d\\ude00\ufb01"),
        ("\U0001f601\U0001f600".encode(), "\\ud83d\\ud83d\\ude00\\ude01"),
        (b"z\xffa", "az\ufffd"),
    ],
)
def test_options_of_a_regular_expression_are_sorted_as_javas_characters(
    options: bytes, sorted_options: str
) -> None:
    document = element(11, b"p\0" + options + b"\0")
    assert text(document, DOCUMENT) == f'{{"v": {{"$regex": "p","$options": "{sorted_options}"}}}}'


def test_lines_are_indented_as_the_java_driver_does_it() -> None:
    document = {"a": {"b": ["1", {"c": 'x,{"}'}]}, "d": {}, "e": [], "f": 1}
    lines = """{
  "a": {
    "b": [
      "1",
      {
        "c": "x,{\\"}"
      }
    ]
  },
  "d": {},
  "e": [],
  "f": {
    "$numberInt": "1"
  }
}"""
    assert text(bson.encode(document), LINES) == lines
    assert written([None], LINES).column.to_pylist() == [None]
