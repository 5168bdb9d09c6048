from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp, json_util
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.column_names import clashing_column
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, LIVE_ROW_SCHEMA, ROW, UPSERT
from airflow_cdc_provider.changes.drift import NO_DRIFT
from airflow_cdc_provider.changes.inferred_columns import REST, InferredColumns
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.options import MongodbInference, MongodbOptions
from tests.unit.sources.mongodb.documents import DOCUMENTS, READ, raw_document, raw_element

CANONICAL = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=READ.datetime_conversion
)


def codec(memory: Mapping[str, Any] | None = None, most: int = 200, **options: Any) -> MongodbCodec:
    infer = MongodbInference(("db.c",), most)
    return MongodbCodec.of("db.c", MongodbOptions(infer=infer, **options), memory)


def learned(of: MongodbCodec, *documents: Any) -> MongodbCodec:
    states = [d if isinstance(d, bytes) else bson.encode(d) for d in documents]
    rows = [
        {"key": b"k", "scope": ROW, "clustering": b"", "generation": 0, "op": UPSERT, "state": state}
        for state in states
    ]
    counts = of.tally(pa.RecordBatch.from_pylist(rows, schema=CONTRIBUTION_SCHEMA))
    return of.learn(pa.Table.from_batches([counts]))


def rendered(of: MongodbCodec, *documents: Any) -> list[dict[str, Any]]:
    states = [d if isinstance(d, bytes) else bson.encode(d) for d in documents]
    rows = pa.RecordBatch.from_pylist([{"state": state} for state in states], schema=LIVE_ROW_SCHEMA)
    projected = of.project(rows)
    projected.validate(full=True)
    assert projected.schema.names == of.mirror_schema().names
    return [dict(row) for row in projected.to_pylist()]


def types(of: MongodbCodec) -> dict[str, str]:
    assert of.inferred is not None
    return {one.name: one.type_name for one in of.inferred.fields}


@pytest.mark.parametrize(
    ("values", "type_name"),
    [
        ((True,), "boolean"),
        ((1, 2), "int"),
        ((1, Int64(2)), "bigint"),
        ((1, 2.5), "double"),
        ((Int64(1), 2.5), "double"),
        ((1, 2.5, Decimal128("1.1")), "decimal(38,18)"),
        (("a", Code("x"), ObjectId()), "string"),
        ((Binary(b"1" * 16, 4),), "string"),
        ((b"1", Binary(b"1" * 16, 4), b"2"), "binary"),
        ((DatetimeMS(0),), "timestamp"),
        (([1], {"a": 1}), "json"),
        ((Regex("a"), MaxKey()), "json"),
        ((Timestamp(1, 1),), "json"),
        ((None, 1), "int"),
        ((1, "a", "b"), "string"),
    ],
)
def test_a_column_has_the_type_that_its_values_need(values: tuple[Any, ...], type_name: str) -> None:
    assert types(learned(codec(), *({"v": value} for value in values))) == {"v": type_name}


def test_a_field_that_was_only_null_gets_its_column_with_its_first_value() -> None:
    first = learned(codec(), {"v": None, "a": 1})
    assert types(first) == {"a": "int"}
    assert types(learned(first, {"v": "x"})) == {"a": "int", "v": "string"}


def test_a_value_that_its_column_does_not_hold_is_stored_in_the_rest() -> None:
    of = learned(codec(), {"_id": 1, "n": 1, "s": "x"}, {"_id": 2, "n": 2})
    of = learned(of, {"n": "many", "s": 5, "t": Int64(2**62)}, {"t": 0.5})

    (first, second) = rendered(
        of, {"_id": 3, "n": "many", "s": 5, "t": Int64(2**62 + 1)}, {"_id": 4, "n": None, "t": 0.5}
    )

    assert (first["n"], first["s"], first["t"]) == (None, None, None)
    assert json.loads(first[REST]) == {
        "n": "many",
        "s": {"$numberInt": "5"},
        "t": {"$numberLong": str(2**62 + 1)},
    }
    assert (second["n"], second["t"], second[REST]) == (None, 0.5, None)
    assert of.findings() == [
        "n is int; values of type string are in _rest",
        "s is string; values of type int are in _rest",
    ]


def columns(of: MongodbCodec) -> dict[str, str]:
    """Return the column of each field."""
    assert of.inferred is not None
    return {one.name: one.column for one in of.inferred.fields}


def test_names_that_engines_confuse_have_columns_of_other_names() -> None:
    names = ["a", "A", "a.b", "", "document", "_ID", "_cdc_x", "_rest", "_file", "$x", "é 1", "`"]
    document = {"_id": 1, **{name: number for number, name in enumerate(names)}}
    of = learned(codec(), document)
    (row,) = rendered(of, document)
    assert list(columns(of).items()) == [
        ("a", "a"),
        ("A", "A__2"),
        ("a.b", "a_b"),
        ("", "_"),
        ("document", "document__2"),
        ("_ID", "_ID__2"),
        ("_cdc_x", "x_cdc_x"),
        ("_rest", "_rest__2"),
        ("_file", "_file__2"),
        ("$x", "$x"),
        ("é 1", "é 1"),
        ("`", "`"),
    ]
    assert [row[column] for column in columns(of).values()] == list(range(len(names)))
    assert row[REST] is None


def test_names_that_catalogs_reject_are_stored_in_the_rest() -> None:
    document = raw_document(
        raw_element(16, "x" * 129, b"\1\0\0\0"),
        b"\x10\xff\0\2\0\0\0",
        raw_element(16, "y" * 128, b"\3\0\0\0"),
    )
    of = learned(codec(), document)
    (row,) = rendered(of, document)
    assert list(columns(of)) == ["y" * 128]
    assert len(json.loads(row[REST])) == 2


NAMES = st.text("aAbB1_.-x26eäÄİ\u0131Kk`\n", max_size=4)


@given(st.lists(st.lists(NAMES, unique=True, max_size=5), min_size=1, max_size=5), st.randoms())
def test_a_column_keeps_its_name_whatever_documents_come_later(
    batches: list[list[str]], chance: random.Random
) -> None:
    """The codec is re-created from its memory for each batch, as by runs, or by one after a kill."""
    of, before = codec(), dict[str, str]()
    for names in batches:
        of = learned(of, *({name: 1} for name in chance.sample(names, len(names))))
        now = columns(of)
        assert {name: now[name] for name in before} == before
        assert now.keys() == before.keys() | set(names)
        assert clashing_column(of.mirror_schema()) == ""
        (row,) = rendered(of, {name: number for number, name in enumerate(names)})
        assert [row[now[name]] for name in names] == list(range(len(names)))
        before = now
        assert of.inferred is not None
        of = codec(chance.choice([of.remember(), of.inferred.to_memory()]))


def test_more_fields_than_allowed_are_stored_in_the_rest_until_the_limit_is_raised() -> None:
    few = learned(codec(most=1), {"a": 1, "b": 2})
    assert types(few) == {"a": "int"}
    assert json.loads(rendered(few, {"b": 2})[0][REST]) == {"b": {"$numberInt": "2"}}
    more = learned(codec(few.remember(), most=2), {"b": 2})
    assert types(more) == {"a": "int", "b": "int"}
    assert more.rows_to_rewrite == "`_rest` IS NOT NULL"
    assert more.remember()["left_out"]


def test_a_column_that_changes_its_type_is_recreated_and_all_rows_are_rewritten() -> None:
    before = learned(codec(), {"n": 1, "m": 1})
    wider = learned(codec(before.remember()), {"m": Int64(1)})
    assert (wider.drift, wider.rows_to_rewrite) == (NO_DRIFT, "")
    other = learned(codec(wider.remember()), {"n": 0.5})
    assert set(other.drift.replaced) == {"n"}
    assert other.rows_to_rewrite == "true"
    assert other.inferred is not None
    killed = codec(other.inferred.to_memory())
    assert (killed.drift.replaced, killed.rows_to_rewrite, types(killed)) == (
        frozenset({"n"}),
        "true",
        types(other),
    )
    assert codec(other.remember()).rows_to_rewrite == ""


def test_fields_that_are_known_change_nothing() -> None:
    of = learned(codec(), {"a": 1, "b": "x"})
    assert learned(of, {"a": 2}) is of
    assert InferredColumns.from_memory(of.remember()) == of.inferred


def test_declared_columns_come_first_and_replace_their_fields() -> None:
    of = learned(
        codec(columns={"db.c": {"n": "n decimal(4,2)", "city": "a.city string"}}),
        {"n": 1, "a": {"city": "x"}},
    )
    assert of.mirror_schema().names == ["_id", "document", "n", "city", "a", REST]
    held, not_held = rendered(of, {"n": 1, "a": {"city": "x"}}, {"n": 0.125})
    assert (held["city"], held[REST]) == ("x", None)
    assert (not_held["n"], json.loads(not_held[REST])) == (None, {"n": {"$numberDouble": "0.125"}})


def test_columns_may_be_declared_later_and_no_more() -> None:
    first = learned(codec(), {"n": 1, "a": {"city": "x"}})
    declared = {"db.c": {"N": "n bigint", "city": "a.city string"}}
    second = codec(first.remember(), columns=declared)
    assert second.mirror_schema().names == ["_id", "document", "N", "city", "a", REST]
    assert (second.drift.replaced, second.rows_to_rewrite) == (frozenset({"n"}), "true")
    assert codec(second.remember(), columns=declared).rows_to_rewrite == ""
    third = codec(second.remember(), columns={"db.c": {"city": "a.city json"}})
    assert (third.drift.replaced, third.rows_to_rewrite) == (frozenset({"N", "city"}), "true")
    assert rendered(third, {"n": 1})[0][REST] == '{"n": {"$numberInt": "1"}}'
    fourth = learned(codec(third.remember(), columns={"db.c": {"city": "a.city json"}}), {"n": 0.5})
    assert fourth.rows_to_rewrite == "`_rest` IS NOT NULL"
    assert types(fourth) == {"a": "json", "n": "double"}


def test_a_declared_column_takes_the_name_of_an_inferred_one_and_holds_its_own_field() -> None:
    first = learned(codec(), {"city": 1, "n": 1, "x.y": 2})
    declared = {"db.c": {"city": "a.city string", "total": "n bigint", "xy": "x.y int"}}
    second = codec(first.remember(), columns=declared)
    assert columns(second) == {"city": "city__2", "x.y": "x.y"}
    assert (second.drift.replaced, second.rows_to_rewrite) == (frozenset({"city", "n"}), "true")
    assert codec(second.remember(), columns=declared).drift == NO_DRIFT
    third = codec(second.remember())
    assert columns(third) == columns(second), "a column that has a name keeps it"


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["name", "NAME"], "NAME__2"),
        (["a", "a.b"], "a_b"),
        (["Document"], "Document__2"),
        (["_rest"], "_rest__2"),
        (["_cdc_id"], "x_cdc_id"),
        (["_pos"], "_pos__2"),
        ([""], "_"),
    ],
)
def test_declared_columns_that_engines_confuse_are_refused_by_the_declaration(
    names: list[str], remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"of db\.c, column {names[-1]}: .*example to {remedy}$"):
        MongodbOptions(columns={"db.c": dict.fromkeys(names, "v int")})


def test_members_of_one_name_are_all_there() -> None:
    document = raw_document(raw_element(16, "a", b"\1\0\0\0"), raw_element(16, "a", b"\2\0\0\0"))
    (row,) = rendered(learned(codec(), document), document)
    assert (row["a"], row[REST]) == (2, '{"a": {"$numberInt": "1"}}')


def test_a_mirror_created_without_inferred_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="created without inferred columns"):
        codec({})


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_each_value_is_in_its_column_or_in_the_rest(documents: list[dict[str, Any]]) -> None:
    of = learned(codec(), *documents)
    by_name = columns(of)

    for document, row in zip(documents, rendered(of, *documents), strict=True):
        rest = json.loads(row[REST] or "{}")
        left = {}
        for name, value in bson.decode(bson.encode(document), READ).items():
            if name == "_id" or value is None:
                continue
            in_column = name in by_name and row[by_name[name]] is not None
            assert in_column != (name in rest), name
            if not in_column:
                left[name] = value
        assert rest == json.loads(json_util.dumps(left, json_options=CANONICAL))
