"""Fields left out and renamed in raw BSON, against the same done to decoded documents."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.field_paths import FieldRule, field_rules
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.mongodb.events.decode import EventForm, decode_stream
from airflow_cdc_provider.sources.mongodb.events.field_rules import FieldRules
from tests.unit.sources.mongodb.documents import DOCUMENTS, READ, mutated

Document = dict[str, Any]
PARTS = st.sampled_from(["a", "b", "c", "0"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map(tuple)
RULES = st.lists(
    st.one_of(
        PATHS.map(lambda path: FieldRule("d.c", path)),
        st.tuples(PATHS, st.sampled_from(["new", "b", "c", "longer name"]))
        .filter(lambda p: p[0][-1] != p[1])
        .map(lambda p: FieldRule("d.c", p[0], p[1])),
    ),
    min_size=1,
    max_size=3,
)
NESTED: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(0, 9), st.just("text"), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(PARTS, inner, max_size=3)),
    max_leaves=12,
)
WHOLE = st.dictionaries(st.one_of(PARTS, st.just("new")), NESTED, max_size=4)
DOTTED = st.dictionaries(st.lists(PARTS, min_size=1, max_size=4).map(".".join), NESTED, max_size=4)


class Clash(Exception):
    """The new name already exists."""


def follow(value: Any, rule: FieldRule, node: int) -> None:
    """Apply a rule to a document, or to the documents of an array."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                follow(item, rule, node)
        return
    name = rule.path[node]
    if name not in value:
        return
    if node + 1 < len(rule.path):
        if isinstance(value[name], (dict, list)):
            follow(value[name], rule, node + 1)
        return
    moved = value.pop(name)
    if rule.new_name:
        if rule.new_name in value:
            raise Clash
        value[rule.new_name] = moved


def agreement(name: str, path: tuple[str, ...]) -> tuple[int, int]:
    """Return how many nodes of the path a dotted name holds, and which of its parts holds the last."""
    parts = name.split(".")
    numbers = [part.isdigit() for part in parts]
    best = (-1, 0)
    strips = len(parts) > 1 and not any(a and b for a, b in pairwise(numbers))
    for strip in (True, False) if strips else (False,):
        places = [i for i in range(len(parts)) if not (strip and numbers[i])]
        shared = min(len(places), len(path))
        if tuple(parts[i] for i in places[:shared]) == path[:shared]:
            best = max(best, (shared, places[shared - 1] if shared else 0), key=lambda b: b[0])
    return best


def renamed(name: str, rule: FieldRule) -> str | None:
    """Apply a rule to a dotted name; None if it is left out."""
    agreed, part = agreement(name, rule.path)
    if agreed < len(rule.path):
        return name
    if not rule.new_name:
        return None
    parts = name.split(".")
    return ".".join([*parts[:part], rule.new_name, *parts[part + 1 :]])


def follow_dotted(document: Document, rule: FieldRule) -> Document:
    kept: Document = {}
    moved: Document = {}
    for name, value in document.items():
        new_name = renamed(name, rule)
        if new_name is None:
            continue
        if new_name != name:
            if new_name in document:
                raise Clash
            moved[new_name] = value
            continue
        agreed, _ = agreement(name, rule.path)
        if agreed > 0 and isinstance(value, (dict, list)):
            follow(value, rule, agreed)
        kept[name] = value
    return {**kept, **moved}


def rewritten(documents: list[bytes], rules: list[FieldRule], *, dotted: bool) -> list[Document | int]:
    """Apply rules by the kernels; a number says which rule clashed."""
    compiled = FieldRules(rules)
    data, starts, ends, valid = binary_slices(pa.array(documents, pa.large_binary()))
    names = pa.array(["d"] * len(documents)), pa.array(["c"] * len(documents))
    found = compiled.rewrite(data, valid, starts, ends, compiled.masks(*names), dotted=dotted)
    return [
        int(found.clashes[row])
        if found.clashes[row] >= 0
        else bson.decode(found.data[found.starts[row] : found.ends[row]].tobytes(), READ)
        for row in range(len(documents))
    ]


def expected(document: Document, rules: list[FieldRule], *, dotted: bool) -> Document | int:
    value = bson.decode(bson.encode(document), READ)
    for number, rule in enumerate(rules):
        try:
            if dotted:
                value = follow_dotted(value, rule)
            else:
                follow(value, rule, 0)
        except Clash:
            return number
    return value


def in_order(value: Any) -> str:
    return repr(value)  # a dict's shows the order of its members


@pytest.mark.covers("MDB-FLD-01", "MDB-FLD-02", "MDB-FLD-03")
@given(st.lists(WHOLE, min_size=1, max_size=4), RULES)
def test_documents_become_what_the_rules_make_of_decoded_ones(
    documents: list[Document], rules: list[FieldRule]
) -> None:
    found = rewritten([bson.encode(d) for d in documents], rules, dotted=False)
    assert list(map(in_order, found)) == [in_order(expected(d, rules, dotted=False)) for d in documents]


@pytest.mark.covers("MDB-FLD-01", "MDB-FLD-02", "MDB-FLD-03")
@given(st.lists(DOTTED, min_size=1, max_size=4), RULES)
def test_updated_fields_become_what_the_rules_make_of_decoded_ones(
    documents: list[Document], rules: list[FieldRule]
) -> None:
    found = rewritten([bson.encode(d) for d in documents], rules, dotted=True)
    assert list(map(in_order, found)) == [in_order(expected(d, rules, dotted=True)) for d in documents]


@pytest.mark.covers("MDB-FLD-01", "MDB-FLD-02", "MDB-FLD-03")
@given(st.lists(st.lists(PARTS, min_size=1, max_size=4).map(".".join), max_size=6), RULES)
def test_paths_become_what_the_rules_make_of_their_texts(names: list[str], rules: list[FieldRule]) -> None:
    compiled = FieldRules(rules)
    masks = [np.ones(len(names), np.bool_)] * len(rules)
    texts, kept = compiled.rename(pa.array(names, pa.utf8()), masks)
    required: list[str | None] = list(names)
    for rule in rules:
        required = [name and renamed(name, rule) for name in required]
    assert texts.filter(pa.array(kept)).to_pylist() == [name for name in required if name is not None]


@given(
    DOCUMENTS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), RULES, st.booleans()
)
def test_any_bytes_leave_the_kernels_alive(
    document: Document, changes: list[tuple[int, int]], rules: list[FieldRule], dotted: bool
) -> None:
    data = mutated(bson.encode(document, codec_options=READ), changes)
    compiled = FieldRules(rules)
    buffer = np.frombuffer(data, np.uint8)
    there = np.ones(1, np.bool_)
    masks = [there] * len(rules)
    starts, ends = np.zeros(1, np.int64), np.array([len(data)])
    found = compiled.rewrite(buffer, there, starts, ends, masks, dotted=dotted)
    assert 0 <= found.starts[0] <= found.ends[0] <= len(found.data)


def test_only_the_collections_named_are_touched_whatever_their_case() -> None:
    rules = field_rules(["shop.*.a", "*.d.b"], [])
    assert rules[0].applies("SHOP", "any.thing")
    assert not rules[0].applies("shop2", "c")
    assert rules[1].applies("x", "D")
    assert not rules[1].applies("x", "e.d2")
    assert not field_rules(["s.p.a"], [])[0].applies("s", "q")
    documents = [bson.encode({"a": 1, "b": 2})] * 2
    compiled = FieldRules(rules)
    masks = compiled.masks(pa.array(["shop", "x"]), pa.array(["c", "d"]))
    assert [mask.tolist() for mask in masks] == [[True, False], [False, True]]
    data, starts, ends, valid = binary_slices(pa.array(documents, pa.large_binary()))
    found = compiled.rewrite(data, valid, starts, ends, masks, dotted=False)
    decoded = [bson.decode(found.data[s:e].tobytes()) for s, e in zip(found.starts, found.ends, strict=True)]
    assert decoded == [{"b": 2}, {"a": 1}]


@pytest.mark.covers("MDB-FLD-01")
def test_the_key_keeps_what_the_value_loses() -> None:
    event = bson.encode(
        {
            "operationType": "update",
            "ns": {"db": "shop", "coll": "c"},
            "documentKey": {"_id": {"secret": 1, "k": 2}},
            "fullDocument": {"_id": {"secret": 1, "k": 2}, "secret": 3, "x": [{"secret": 4}]},
            "updateDescription": {
                "updatedFields": {"x.0.secret": 4, "x.1": {"secret": 5, "y": 1}, "x.2": {"secret": 6}},
                "removedFields": ["secret", "x.3.secret", "kept"],
                "truncatedArrays": [{"field": "secret", "newSize": 1}, {"field": "x", "newSize": 2}],
            },
        }
    )
    exclude = ["shop.c._id.secret", "shop.c.secret", "shop.c.x.secret"]
    found = decode_stream(
        pa.array([event], pa.binary()),
        full_document="lookup",
        pre_images=True,
        form=EventForm(rules=FieldRules(field_rules(exclude, []))),
    )
    (row,) = found.events.to_pylist()
    assert row["id"] == '{"secret": 1,"k": 2}'
    assert row["after"] == '{"_id": {"k": 2},"x": [{}]}'
    assert row["update_description"] == {
        "removedFields": ["kept"],
        "updatedFields": '{"x.1": {"y": 1}, "x.2": {}}',
        "truncatedArrays": [{"field": "x", "size": 2}],
    }


@pytest.mark.covers("MDB-FLD-04")
@pytest.mark.parametrize(
    ("name", "value", "entry"),
    [
        ("field.exclude.list", "shop.c.a, shop.c", "shop.c"),
        ("field.exclude.list", "shop..a", "shop..a"),
        ("field.renames", "shop.c.a:b, shop.c.a", "shop.c.a"),
        ("field.renames", "shop.c:b", "shop.c:b"),
        ("field.renames", "shop.c.a:b:c", "shop.c.a:b:c"),
        ("field.renames", "shop.c.a:x.y", "shop.c.a:x.y"),
        ("field.renames", "shop.c.a:a", "shop.c.a:a"),
    ],
)
def test_a_wrong_entry_is_named(name: str, value: str, entry: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        from_debezium({"topic.prefix": "shop", name: value})
    assert repr(entry) in str(raised.value)
    assert name in str(raised.value)
