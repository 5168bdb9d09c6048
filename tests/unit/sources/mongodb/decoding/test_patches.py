from __future__ import annotations

from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.mongodb.decoding.patches import apply_patches
from tests.oracles.mongodb_updates import hides_a_move, hides_an_order, update_description
from tests.unit.sources.mongodb.documents import MUTATIONS, SCALARS, TEXT, mutated, raw_document, raw_element

NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "d", "0", "1", "$x", ""]), TEXT.filter(lambda t: not {".", "\0"} & set(t))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=6)


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """Change a value somewhere; members of documents keep their order, and new ones go to the end."""
    if isinstance(value, dict) and draw(st.booleans()):
        out = {}
        for name, member in value.items():
            what = draw(st.integers(0, 5))
            if what == 0:
                continue
            out[name] = draw(changed(member)) if what < 3 else member
        return out | {
            n: v for n, v in draw(st.dictionaries(NAMES, VALUES, max_size=2)).items() if n not in value
        }
    if isinstance(value, list) and draw(st.booleans()):
        out_list = [draw(changed(v)) if draw(st.integers(0, 2)) == 0 else v for v in value]
        out_list = out_list[: draw(st.integers(0, len(value)))] if draw(st.booleans()) else out_list
        return out_list + draw(st.lists(VALUES, max_size=2))
    return draw(VALUES)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    states = [draw(DOCUMENTS)]
    for _ in range(draw(st.integers(0, 3))):
        after = draw(changed(states[-1]))
        states.append(after if isinstance(after, dict) else {})
    return states


def in_order(value: Any) -> Any:
    """Sort the members of documents by name."""
    if isinstance(value, dict):
        return {name: in_order(value[name]) for name in sorted(value)}
    return [in_order(member) for member in value] if isinstance(value, list) else value


def patch(**members: Any) -> bytes:
    return bson.encode(members)


def applied(document: Any, *patches: bytes) -> bytes | None:
    documents = pa.array([document if isinstance(document, bytes) else bson.encode(document)], pa.binary())
    offsets = np.array([0, len(patches)])
    (out,) = apply_patches(documents, pa.array(patches, pa.binary()), offsets).to_pylist()
    return out


def set_fields(document: Any, fields: dict[str, Any], **others: Any) -> Any:
    out = applied(document, patch(updatedFields=fields, removedFields=[], truncatedArrays=[], **others))
    return None if out is None else list(bson.decode(out).items())


@given(st.lists(histories(), max_size=4))
@example([[{"a": None, "b": {"b": None, "a": None}}, {"b": {"a": None, "b": None}}]])
@example([[{"a": None, "b": None}, {"b": None, "a": False}]])
def test_documents_become_byte_for_byte_what_they_became_at_the_server(
    histories: list[list[dict[str, Any]]],
) -> None:
    patches, offsets = [], [0]
    for states in histories:
        for before, after in pairwise(states):
            patches.append(bson.encode(update_description(before, after)))
        offsets.append(len(patches))
    bases = pa.array([bson.encode(states[0]) for states in histories], pa.binary())

    found = apply_patches(bases, pa.array(patches, pa.binary()), np.array(offsets))

    found.validate(full=True)
    for states, document in zip(histories, found.to_pylist(), strict=True):
        if document is None:
            assert any(hides_a_move(before, after) for before, after in pairwise(states))
        elif any(hides_an_order(before, after) for before, after in pairwise(states)):
            assert bson.encode(in_order(bson.decode(document))) == bson.encode(in_order(states[-1]))
        else:
            assert document == bson.encode(states[-1])


def test_a_new_field_goes_to_the_end_and_a_known_one_stays() -> None:
    assert set_fields({"a": 1, "b": 2}, {"a": "longer", "c": 3}) == [("a", "longer"), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "x": 1, "a": 5}),
        ({"a": 1, "b": 2}, {"b": 2, "x": 1, "a": 1}),
        ({"d": {"a": 1, "b": 2}}, {"d": {"b": 2, "x": [], "a": 1}}),
    ],
)
def test_a_field_that_went_to_the_end_is_recognised(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert applied(before, bson.encode(update_description(before, after))) == bson.encode(after)


def test_a_field_that_may_have_moved_to_the_end_is_refused() -> None:
    assert set_fields({"a": 1, "b": 2}, {"a": 1}) is None
    assert set_fields({"a": [1, 2], "b": 2}, {"a.0": 1}) == [("a", [1, 2]), ("b", 2)]


def test_an_index_beyond_the_end_is_filled_up_with_nulls() -> None:
    before = {"a": list(range(9)), "z": 1}
    assert set_fields(before, {"a.11": "x"}) == [("a", [*range(9), None, None, "x"]), ("z", 1)]


def test_numbers_are_names_in_documents_and_indexes_in_arrays() -> None:
    before = {"a": {"0": "x"}, "b": ["x"], "c": [{"0": ["x"]}]}
    fields = {"a.0": 1, "b.0": 1, "c.0.0.0": 1, "c.0.1": 2}
    assert set_fields(before, fields) == [("a", {"0": 1}), ("b", [1]), ("c", [{"0": [1], "1": 2}])]


@pytest.mark.parametrize(
    ("before", "fields", "after"),
    [
        ({"a.b": 1}, {"a.b": 2}, {"a.b": 2}),
        ({"x": 1}, {"a.b": 2}, {"x": 1, "a.b": 2}),
        ({"a.b": {"c": 1}}, {"a.b.c": 2}, {"a.b": {"c": 2}}),
        ({"a": 1, "a.b": 1}, {"a.b": 2}, {"a": 1, "a.b": 2}),
    ],
)
def test_names_with_dots_are_found(
    before: dict[str, Any], fields: dict[str, Any], after: dict[str, Any]
) -> None:
    assert set_fields(before, fields) == list(after.items())


@pytest.mark.covers("MDB-XM-07")
def test_an_ambiguous_path_is_refused_unless_the_server_resolves_it() -> None:
    before = {"a": {"b": 1}, "a.b": 1}
    assert set_fields(before, {"a.b": 2}) is None
    assert set_fields(before, {"a.b": 2}, disambiguatedPaths={"a.b": ["a.b"]}) == [
        ("a", {"b": 1}),
        ("a.b", 2),
    ]
    assert set_fields(before, {"a.b": 2}, disambiguatedPaths={"a.b": ["a", "b"]}) == [
        ("a", {"b": 2}),
        ("a.b", 1),
    ]
    assert set_fields({"a": {"b": 1}}, {"a.c": 2}, disambiguatedPaths={"a.c": ["a.c"]}) == [
        ("a", {"b": 1}),
        ("a.c", 2),
    ]
    assert set_fields({"a": [[0]]}, {"a.0.0": 2}, disambiguatedPaths={"a.0.0": ["a", 0, 0]}) == [("a", [[2]])]


@pytest.mark.parametrize(
    "wrong",
    [
        patch(removedFields=["b"]),
        patch(removedFields=["l.0"]),
        patch(truncatedArrays=[{"field": "a", "newSize": 0}]),
        patch(truncatedArrays=[{"field": "l", "newSize": 5}]),
        patch(truncatedArrays=[{"field": "l"}]),
        patch(updatedFields={"l.x": 1}),
        patch(updatedFields={"l.00": 1}),
        patch(updatedFields={"l.0.x": 1}),
        patch(updatedFields={"l.99999999999": 1}),
        patch(updatedFields={"a.b": 1}, disambiguatedPaths={"a.b": ["a", "b"]}),
        patch(updatedFields={"a": 1}, disambiguatedPaths={"a": [0]}),
        patch(updatedFields={"a": 1}, disambiguatedPaths={"a": []}),
    ],
)
def test_an_update_that_does_not_fit_its_document_is_refused(wrong: bytes) -> None:
    assert applied({"a": 1, "l": [1, 2]}, wrong) is None


def test_members_of_one_name_are_refused_where_they_matter() -> None:
    one, two = (raw_element(16, "a", bytes([n, 0, 0, 0])) for n in (1, 2))
    twice = raw_document(one, two, raw_element(10, "b"))
    assert applied(twice, patch(updatedFields={"a": 3})) is None
    assert applied(twice, patch(updatedFields={"b": 3})) is not None


def test_no_document_stays_none_and_harms_none() -> None:
    documents = pa.array([None, bson.encode({}), None], pa.binary())
    patches = pa.array([patch(updatedFields={"a": 1})] * 3, pa.binary())
    found = apply_patches(documents, patches, np.array([0, 1, 2, 3])).to_pylist()
    assert found == [None, bson.encode({"a": 1}), None]


def test_documents_grow_as_far_as_they_must() -> None:
    before = {"a": [], "b": "x" * 1000}
    assert set_fields(before, {"a.50000": 1}) == [("a", [*[None] * 50000, 1]), ("b", "x" * 1000)]


@pytest.mark.parametrize("length", [0, 4, 6, 2**31 - 1, 2**32 - 1])
def test_a_document_that_is_with_a_wrong_length_is_refused(length: int) -> None:
    damaged = length.to_bytes(4, "little") + bson.encode({})[4:]
    assert applied(damaged, patch(updatedFields={"a": 1})) is None


@given(histories(), MUTATIONS)
def test_damage_is_survived(states: list[dict[str, Any]], changes: list[tuple[int, int]]) -> None:
    after = states[-1]
    described = mutated(bson.encode(update_description(states[0], after)), changes)
    applied(states[0], described)
    applied(mutated(bson.encode(states[0]), changes), bson.encode(update_description(states[0], after)))
