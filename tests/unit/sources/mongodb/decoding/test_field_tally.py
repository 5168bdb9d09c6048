from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import bson
import numpy as np
from bson import Binary
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.bson import as_bytes, split_documents
from airflow_cdc_provider.sources.mongodb.decoding.field_tally import (
    MOST_FIELDS,
    UUID,
    FieldTally,
    tally_fields,
)
from tests.unit.sources.mongodb.documents import DOCUMENTS, MUTATIONS, mutated, raw_document, raw_element


def tally(*documents: bytes, depth: int = 1) -> FieldTally:
    data = as_bytes(b"".join(documents))
    spans = split_documents(data)
    return tally_fields(data, spans.starts, spans.ends, depth=depth)


def kind_of(value: Any) -> int:
    if isinstance(value, Binary) and value.subtype == 4 and len(value) == 16:
        return UUID
    return bson.encode({"v": value})[4]


def fields_of(document: dict[str, Any], depth: int, path: tuple[str, ...] = ()) -> Iterator[Any]:
    for name, value in document.items():
        yield (*path, name), kind_of(value)
        if isinstance(value, dict) and depth > 1:
            yield from fields_of(value, depth - 1, (*path, name))


@given(st.lists(DOCUMENTS, max_size=6), st.integers(1, 3))
def test_each_field_is_counted_by_name_and_type(documents: list[dict[str, Any]], depth: int) -> None:
    found = tally(*map(bson.encode, documents), depth=depth)

    assert found.whole
    expected = Counter(field for document in documents for field in fields_of(document, depth))
    assert {(one.path, one.kind): one.count for one in found.fields} == expected


@given(DOCUMENTS, MUTATIONS)
def test_damage_is_survived(document: dict[str, Any], changes: list[tuple[int, int]]) -> None:
    tally(mutated(bson.encode(document), changes), depth=3)


def test_a_field_has_the_smallest_index_of_its_documents() -> None:
    found = tally(bson.encode({"a": 1, "b": 1}), bson.encode({"b": 2, "a": 2}), bson.encode({"a": "x"}))
    assert [(one.path[0], one.kind, one.first_index) for one in found.fields] == [
        ("a", 16, 0),
        ("b", 16, 0),
        ("a", 2, 0),
    ]


def test_members_of_one_name_count_each() -> None:
    (only,) = tally(raw_document(raw_element(10, "a"), raw_element(10, "a"))).fields
    assert only.count == 2


def test_documents_used_as_maps_are_counted_up_to_the_limit() -> None:
    found = tally(bson.encode({f"user {n}": n for n in range(MOST_FIELDS + 5)}), bson.encode({"user 3": 1}))
    assert not found.whole
    assert len(found.fields) == MOST_FIELDS
    assert found.fields[3].count == 2


def test_no_document_has_no_fields() -> None:
    nothing = np.full(2, -1)
    assert tally_fields(as_bytes(b"\0"), nothing, nothing) == FieldTally([], True)
