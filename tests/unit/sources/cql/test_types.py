from __future__ import annotations

import pytest

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import (
    LEXICAL_UUID,
    fixed_length,
    parse_java_type,
    parse_type,
    to_cql,
)

_M = "org.apache.cassandra.db.marshal."


@pytest.mark.parametrize(
    "text",
    [
        "int",
        "list<int>",
        "frozen<map<text, frozen<set<int>>>>",
        "frozen<tuple<int, frozen<list<text>>>>",
        "vector<float, 3>",
        "set<vector<text, 2>>",
        "'org.example.Own'",
    ],
)
def test_types_are_written_as_they_were_read(text: str) -> None:
    assert to_cql(parse_type(text)) == text


def test_nested_types_are_frozen_in_any_spelling() -> None:
    assert parse_type("list<frozen<set<int>>>") == parse_type("list< set<int> >")
    inner = parse_type("map<int, tuple<int, list<int>>>").parameters[1].parameters[1]
    assert inner.frozen
    assert parse_type("map<int, int>").multi_cell
    assert not parse_type("frozen<map<int, int>>").multi_cell


def test_user_types_are_found_by_name_in_any_spelling() -> None:
    own = CqlType("udt", (CqlType("int"),), fields=("a",), udt="k.My Type")
    looked_up = []

    def lookup(name: str) -> CqlType:
        looked_up.append(name)
        return own

    assert parse_type('frozen<"My Type">', lookup).frozen
    assert parse_type('k."My ""T"', lookup).multi_cell
    assert looked_up == ["My Type", 'k.My "T']
    assert to_cql(own) == '"My Type"'


def test_varchar_is_text() -> None:
    assert parse_type("VARCHAR") == CqlType("text")


@pytest.mark.parametrize(
    "text", ["", "list<int", "list<>", "map<int>", "nosuch", "vector<int>", "int int", "<"]
)
def test_text_that_is_not_a_type_is_rejected(text: str) -> None:
    with pytest.raises(SchemaUnknown):
        parse_type(text)


@pytest.mark.parametrize(
    ("java", "cql"),
    [
        (f"{_M}Int32Type", "int"),
        (f"{_M}ReversedType({_M}TimestampType)", "timestamp"),
        (f"{_M}FrozenType({_M}ListType({_M}UTF8Type))", "frozen<list<text>>"),
        (f"{_M}MapType({_M}Int32Type,{_M}SetType({_M}LongType))", "map<int, set<bigint>>"),
        (f"{_M}TupleType({_M}ByteType,{_M}InetAddressType)", "tuple<tinyint, inet>"),
        (f"{_M}VectorType({_M}FloatType , 3)", "vector<float, 3>"),
        ("com.example.Own(a=>1)", "'com.example.Own(a=>1)'"),
    ],
)
def test_java_classes_map_to_their_cql_types(java: str, cql: str) -> None:
    if "=>" in java:
        assert parse_java_type(java).name == "custom"
    else:
        assert parse_java_type(java) == parse_type(cql) == parse_type(f"'{java}'")


def test_a_java_user_type_keeps_its_names() -> None:
    fields = f"{b'a'.hex()}:{_M}Int32Type,{b'B c'.hex()}:{_M}ListType({_M}UTF8Type)"
    text = f"{_M}UserType(ks,{b'Name'.hex()},{fields})"
    assert parse_java_type(text) == CqlType(
        "udt",
        (CqlType("int"), CqlType("list", (CqlType("text"),), True)),
        fields=("a", "B c"),
        udt="ks.Name",
    )


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("int", 4),
        ("smallint", -1),
        ("date", -1),
        ("counter", -1),
        ("timeuuid", 16),
        ("boolean", 1),
        ("vector<float, 3>", 12),
        ("vector<vector<int, 2>, 5>", 40),
        ("vector<tinyint, 3>", -1),
        ("empty", 0),
        ("tuple<int>", -1),
        (f"'{LEXICAL_UUID}'", 16),
    ],
)
def test_only_types_of_cassandras_list_have_no_length_prefix(text: str, length: int) -> None:
    assert fixed_length(parse_type(text)) == length
