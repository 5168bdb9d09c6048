from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.arrow_bytes import gather
from airflow_cdc_provider.formats.bson import (
    FAULTS,
    MAX_DEPTH,
    as_bytes,
    find_in_all,
    split_array,
    split_documents,
    validate,
    validate_all,
)
from tests.unit.sources.mongodb.documents import (
    DOCUMENTS,
    MUTATIONS,
    READ,
    mutated,
    raw_document,
    raw_element,
    raw_string,
)

STACK = np.empty(MAX_DEPTH, np.int64)


def fault(data: bytes) -> str:
    number, _ = validate(as_bytes(data), 0, len(data), STACK)
    return FAULTS[number]


@given(DOCUMENTS)
def test_every_document_that_pymongo_writes_is_valid(document: dict[str, Any]) -> None:
    assert fault(bson.encode(document)) == ""


@given(DOCUMENTS, MUTATIONS)
def test_damage_that_pymongo_refuses_is_found(
    document: dict[str, Any], changes: list[tuple[int, int]]
) -> None:
    data = mutated(bson.encode(document), changes)
    if fault(data) == "":
        bson.decode(data, READ)  # which raises InvalidBSON for any fault of structure


def test_deprecated_types_are_valid() -> None:
    document = raw_document(
        raw_element(0x06, "undefined"),
        raw_element(0x0E, "symbol", raw_string(b"s")),
        raw_element(0x0C, "pointer", raw_string(b"db.c") + bytes(12)),
    )
    assert fault(document) == ""


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"\x06\0\0\0\0", "the length of a document"),
        (b"\x05\0\0\0\x01", "end with a zero byte"),
        (raw_document(raw_element(0x55, "x")), "unknown element type"),
        (raw_document(raw_element(0x08, "x", b"\x02")), "neither 0 nor 1"),
        (raw_document(raw_element(0x02, "x", struct.pack("<i", 2**31 - 1) + b"a\0")), "leaves its document"),
        (raw_document(raw_element(0x02, "x", struct.pack("<i", -1) + b"a\0")), "leaves its document"),
        (raw_document(raw_element(0x02, "x", struct.pack("<i", 0))), "leaves its document"),
        (raw_document(raw_element(0x05, "x", struct.pack("<i", -5) + b"\0")), "leaves its document"),
        (raw_document(raw_element(0x03, "x", struct.pack("<i", 4))), "leaves its document"),
        (
            raw_document(raw_element(0x0F, "x", struct.pack("<i", 99) + raw_string(b""))),
            "leaves its document",
        ),
        (raw_document(b"\x10nameless"), "name isn't terminated"),
        (raw_document(raw_element(0x13, "x", bytes(15))), "leaves its document"),
    ],
)
def test_each_kind_of_damage_is_named(document: bytes, expected: str) -> None:
    assert expected in fault(document)


def test_nesting_beyond_the_limit_is_refused_without_a_crash() -> None:
    document = raw_document()
    for _ in range(MAX_DEPTH - 1):
        document = raw_document(raw_element(3, "d", document))
    assert fault(document) == ""
    for _ in range(3000):
        document = raw_document(raw_element(3, "d", document))
    assert "too deep" in fault(document)


@given(st.lists(DOCUMENTS, max_size=5), st.binary(max_size=6))
def test_concatenated_documents_are_split_up_to_the_first_invalid_one(
    documents: list[Any], rest: bytes
) -> None:
    encoded = [bson.encode(d) for d in documents]
    data = b"".join(encoded)
    spans = split_documents(as_bytes(data))
    assert [data[a:b] for a, b in zip(spans.starts, spans.ends, strict=True)] == encoded
    assert spans.stopped_at == len(data)
    broken = split_documents(as_bytes(data + b"\x01\0\0\0" + rest))
    assert (len(broken), broken.stopped_at) == (len(documents), len(data))


@given(st.lists(DOCUMENTS, max_size=30))
def test_an_array_of_documents_is_split_into_them(documents: list[Any]) -> None:
    encoded = [bson.encode(d) for d in documents]
    data = bson.encode({"nextBatch": [RawBSONDocument(d) for d in encoded]})
    kinds, starts, ends = find_in_all(as_bytes(data), np.array([0]), np.array([len(data)]), b"nextBatch")
    assert kinds[0] == 4
    spans = split_array(as_bytes(data), int(starts[0]), int(ends[0]))
    out, offsets = gather(as_bytes(data), spans.starts, spans.ends)
    parts = [out[a:b].tobytes() for a, b in pairwise(offsets)]
    assert parts == encoded


def test_one_broken_document_does_not_affect_the_others() -> None:
    documents = [bson.encode({"n": n, "s": "text"}) for n in range(5)]
    documents[2] = mutated(documents[2], [(4, 0x55)])
    data = b"".join(documents)
    spans = split_documents(as_bytes(data))
    faults, places = np.zeros(5, np.int64), np.zeros(5, np.int64)
    assert validate_all(as_bytes(data), spans.starts, spans.ends, faults, places) == 1
    assert np.flatnonzero(faults).tolist() == [2]
    assert places[2] == spans.starts[2] + 4
