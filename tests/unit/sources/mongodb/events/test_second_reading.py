"""The driver's reading of documents against the Extended JSON of events."""

from __future__ import annotations

import json
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import json_util
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.bson import DOCUMENT
from airflow_cdc_provider.formats.extended_json import write_values
from airflow_cdc_provider.sources.mongodb.events.decode import JSON_FORMS
from airflow_cdc_provider.sources.mongodb.events.second_reading import shows
from tests.unit.sources.mongodb.documents import DOCUMENTS, READ, SCALARS, TEXT

PROFILES = sorted({profile for both in JSON_FORMS.values() for profile in both})
CANONICAL = json_util.CANONICAL_JSON_OPTIONS
LOOKS = ["$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$date", "$oid", "$binary", "$type"]
LOOKS += ["$symbol", "$undefined", "$code", "$scope", "$regex", "$options", "$ref", "$id", "$minKey"]
WRAPPED: st.SearchStrategy[dict[str, Any]] = st.one_of(
    SCALARS.map(lambda value: {"v": json.loads(json_util.dumps(value, json_options=CANONICAL))}),
    st.dictionaries(
        st.sampled_from(LOOKS),
        st.one_of(TEXT, st.integers(-5, 5), st.just("5"), st.just(True)),
        min_size=1,
        max_size=2,
    ).map(lambda value: {"v": value}),
)


def text_of(document: bytes, profile: int) -> str:
    data, starts, ends = binary_buffer(pa.array([document]))
    text: str = write_values(data, starts * 0 + DOCUMENT, starts, ends, profile).column[0].as_py()
    return text


@given(DOCUMENTS, st.sampled_from(PROFILES))
def test_every_document_is_recognised_in_every_form(document: dict[str, Any], profile: int) -> None:
    raw = bson.encode(document, codec_options=READ)
    assert shows(raw, text_of(raw, profile))


@given(WRAPPED, st.sampled_from(PROFILES))
def test_a_document_that_looks_like_a_value_is_not_taken_for_it(
    document: dict[str, Any], profile: int
) -> None:
    raw = bson.encode(document)
    assert shows(raw, text_of(raw, profile))
    try:
        typed = bson.encode(json_util.loads(json_util.dumps(document)))
    except (ValueError, TypeError, OverflowError, bson.errors.BSONError):
        return  # no Extended JSON
    text = text_of(typed, profile)
    assert shows(raw, text) == any(text == text_of(raw, one) for one in PROFILES)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, '"5"'), (5, "5.0"), (5.0, "5"), (True, "1"), (1, "true"), ("5", "5"), (None, "0"), ([], "{}"),
        ({}, "[]"),
        (5, '{"$numberLong": "5"}'), (5, '{"$numberInt": "6"}'), ([1, 2], "[1]"), ({"a": 1}, '{"b": 1}'),
        (bson.ObjectId("6" * 24), f'"{"6" * 24}"'), (bson.ObjectId("6" * 24), f'{{"$oid": "{"7" * 24}"}}'),
    ],
)  # fmt: skip
def test_another_value_is_noticed(value: Any, text: str) -> None:
    assert not shows(bson.encode({"v": value}), f'{{"v": {text}}}')
