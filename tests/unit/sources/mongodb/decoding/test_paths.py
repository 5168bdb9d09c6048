from __future__ import annotations

import struct
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.bson import as_bytes, find_in_all
from airflow_cdc_provider.sources.mongodb.decoding.paths import Path, Paths
from tests.unit.sources.mongodb.documents import (
    DOCUMENTS,
    MUTATIONS,
    READ,
    mutated,
    raw_document,
    raw_element,
)


def values_at(data: bytes, *paths: Path) -> list[Any]:
    """Find the values at paths in one document, decoded by PyMongo; an ellipsis for none."""
    found = Paths(paths).find(as_bytes(data), np.array([0]), np.array([len(data)]))
    values: list[Any] = []
    for kind, start, end in zip(found.kinds[:, 0], found.starts[:, 0], found.ends[:, 0], strict=True):
        element = raw_element(int(kind), "v", data[start:end])
        values.append(bson.decode(raw_document(element), READ)["v"] if kind else ...)
    return values


def every_path(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """List all paths below a value, with their values."""
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = [(str(n), member) for n, member in enumerate(value)]
    else:
        return []
    found = []
    for name, member in members:
        found += [((*path, name), member), *every_path(member, (*path, name))]
    return found


@given(DOCUMENTS, st.randoms())
def test_every_path_gives_its_value_in_one_walk(document: dict[str, Any], rng: Any) -> None:
    data = bson.encode(document)
    expected = every_path(bson.decode(data, READ))
    rng.shuffle(expected)
    paths = [path for path, _ in expected]
    missing = [("not a member",), *((*path, "not below") for path in paths[:3])]
    found = values_at(data, *paths, *missing, *paths[:2])
    required = [value for _, value in expected]
    assert repr(found) == repr([*required, *[...] * len(missing), *required[:2]])


@given(DOCUMENTS)
def test_a_single_member_is_found_likewise(document: dict[str, Any]) -> None:
    data = bson.encode(document)
    whole = np.array([0]), np.array([len(data)])
    for name in document:
        kind, start, end = (a[0] for a in find_in_all(as_bytes(data), *whole, name.encode()))
        element = raw_element(int(kind), "v", data[start:end])
        assert repr(bson.decode(raw_document(element), READ)["v"]) == repr(values_at(data, (name,))[0])


def member(name: str, *inner: bytes) -> bytes:
    return raw_element(3, name, raw_document(*inner))


def number(name: str, value: int) -> bytes:
    return raw_element(0x10, name, struct.pack("<i", value))


def test_of_members_with_one_name_the_last_counts_whole() -> None:
    data = raw_document(
        number("x", 1),
        number("z", 9),
        member("a", number("b", 1), number("c", 1)),
        number("x", 2),
        member("a", number("c", 2)),
    )
    assert values_at(data, ("x",), ("a", "b"), ("a", "c"), ("z",)) == [2, ..., 2, 9]


def test_a_path_into_a_scalar_finds_nothing() -> None:
    assert values_at(bson.encode({"a": 1, "b": None}), ("a", "x"), ("b", "0"), ("a",)) == [..., ..., 1]


@given(
    DOCUMENTS, MUTATIONS, st.lists(st.sampled_from(["a", "b", "ab", "_id", "0", "1"]), min_size=1, max_size=3)
)
def test_broken_bytes_give_values_inside_the_document_or_none(
    document: dict[str, Any], changes: list[tuple[int, int]], path: list[str]
) -> None:
    data = as_bytes(mutated(bson.encode(document), changes))
    found = Paths([tuple(path)]).find(data, np.array([0]), np.array([len(data)]))
    assert 0 <= found.starts[0, 0] <= found.ends[0, 0] <= len(data)


@pytest.mark.parametrize("count", [0, 1])
def test_no_paths_and_no_documents_are_no_error(count: int) -> None:
    empty = np.empty(0, np.int64)
    assert Paths([("a",)] * count).find(as_bytes(b""), empty, empty).kinds.shape == (count, 0)
