"""Expressions: read, refused, and evaluated as an SQL engine does."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import OPTIONAL_STRING, ConnectSchema, struct
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.transforms.evaluate import Scope, condition, text
from airflow_cdc_provider.events.transforms.expression import parse_expression, wrong_expression
from airflow_cdc_provider.exceptions import ConfigurationError
from tests.chance import examples

ROW = struct(
    "row",
    ("id", ConnectSchema("int32")),
    ("n", ConnectSchema("int64", optional=True)),
    ("d", ConnectSchema("double", optional=True)),
    ("s", OPTIONAL_STRING),
    ("b", ConnectSchema("boolean", optional=True)),
    ("deep", struct("deep", ("a.b", OPTIONAL_STRING), ("order", OPTIONAL_STRING), optional=True)),
    ("raw", ConnectSchema("bytes", optional=True)),
)
TYPES = pa.struct(
    [
        ("id", pa.int32()),
        ("n", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.utf8()),
        ("b", pa.bool_()),
        ("deep", pa.struct([("a.b", pa.utf8()), ("order", pa.utf8())])),
        ("raw", pa.binary()),
    ]
)
ROWS: list[dict[str, Any] | None] = [
    {
        "id": 1,
        "n": 5,
        "d": 1.5,
        "s": "grüße 𝄞",
        "b": True,
        "deep": {"a.b": "x", "order": "y"},
        "raw": b"\x00",
    },
    {"id": 2, "n": None, "d": None, "s": None, "b": None, "deep": None, "raw": None},
    {
        "id": 3,
        "n": -7,
        "d": -0.25,
        "s": "100%_\\",
        "b": False,
        "deep": {"a.b": None, "order": "z"},
        "raw": b"",
    },
    {"id": 4, "n": 0, "d": 3.0, "s": "", "b": True, "deep": {"a.b": "a.b", "order": None}, "raw": b"a"},
    {"id": 5, "n": 12, "d": 0.0, "s": " Abc ", "b": False, "deep": None, "raw": None},
]


def envelope_of(rows: list[Any], headers: dict[str, list[str | None]] | None = None) -> Envelope:
    key = struct("key", ("id", ConnectSchema("int32")))
    return Envelope(
        [Destination("shop.one", key, ROW), Destination("shop.two", key, ROW)],
        np.arange(len(rows)) % 2,
        pa.array([{"id": row and row["id"]} for row in rows], pa.struct([("id", pa.int32())])),
        pa.array(rows, TYPES),
        np.zeros(len(rows), np.bool_),
        {name: pa.array(texts, pa.large_utf8()) for name, texts in (headers or {}).items()},
        timestamp=pa.array(range(len(rows)), pa.int64()),
    )


def holds(expression: str, envelope: Envelope | None = None, *, lenient: bool = False) -> list[bool | None]:
    scope = Scope(envelope or envelope_of(ROWS), lenient)
    return condition(parse_expression(expression, "boolean"), scope).to_pylist()


def gives(expression: str) -> list[str | None]:
    return text(parse_expression(expression, "text"), Scope(envelope_of(ROWS))).to_pylist()


def test_parts_of_records_are_found_by_their_names() -> None:
    assert holds("topic = 'shop.one'") == [True, False, True, False, True]
    assert holds("key.id > 3") == [False, False, False, True, True]
    assert holds("timestamp = 2 and partition is null") == [False, False, True, False, False]
    assert holds("value.deep.order = 'z'") == [False, None, True, None, None]
    assert holds("value.deep.a.b = 'x'") == [True, None, None, False, None]
    assert holds('value."deep"."a.b" = \'a.b\'') == [False, None, None, True, None]
    assert holds("value is null", envelope_of([ROWS[0], None])) == [False, True]
    assert holds("value.raw is null") == [False, True, False, False, True]


def test_headers_are_read_as_texts() -> None:
    envelope = envelope_of(ROWS[:4], {"x-id": ['"a"', '"q\\"uoted"', None, "12"]})
    assert holds("headers['x-id'] in ('a', 'q\"uoted')", envelope) == [True, True, None, False]
    assert holds("cast(headers['x-id'] as bigint) = 12", envelope) == [None, None, None, True]
    assert holds("headers['none'] is null", envelope) == [True] * 4


def test_a_field_that_records_lack_is_named_with_those_that_they_have() -> None:
    with pytest.raises(ConfigurationError, match=r"names statu at .*shop\.one.*expected one of id, n, d, s"):
        holds("value.statu = 'x'")
    with pytest.raises(ConfigurationError, match="names x at"):
        holds("value.s.x = 'x'")
    assert holds("value.statu is null and value.deep.x is null", lenient=True) == [True] * 5


def test_types_that_do_not_fit_are_reported_with_their_position() -> None:
    with pytest.raises(ConfigurationError, match=r"character 1 \(value.id = 'x'\).*number and text"):
        holds("value.id = 'x'")
    with pytest.raises(ConfigurationError, match="expected a boolean, found number"):
        holds("value.id and true")
    with pytest.raises(ConfigurationError, match="expected a text, found bytes"):
        holds("length(value.raw) = 1")
    with pytest.raises(ConfigurationError, match="operands of one type"):
        holds("value.deep = 1")


@pytest.mark.parametrize(
    ("expression", "reported"),
    [
        ("", "one expression"),
        ("value.a =", "can't be read"),
        ("value.a = 1; drop table x", "one expression"),
        ("value.a in (select 1)", "found value.a IN"),
        ("select 1", "what the language of expressions has"),
        ("exists(select 1)", "what the language"),
        ("now() > 1", "what the language"),
        ("__import__('os') = 1", "what the language"),
        ("eval('1') = 1", "what the language"),
        ("random() < 0.5", "what the language"),
        ("other.x = 1", "begins with value"),
        ("headers = 'x'", "begins with value"),
        ("headers[value.a] = 'x'", "what the language"),
        ("topic.x = 'x'", "begins with value"),
        ("topic = 1", "number and text"),
        ("length(1) = 1", "expected a text"),
        ("topic like value.a", "pattern of like must be a literal"),
        ("value.a = 9223372036854775808", "64 bits"),
        ("value.a = 1e999", "64 bits"),
        ("value.a = 1_000", "what the language"),
        ("value.a in (value.b)", "list of literals"),
        ("trim(both 'x' from value.a) = 'a'", "what the language"),
        ("value.a + 1", "gives a number"),
        ("cast(value.a as date) is null", "cast as bigint"),
        ("value.*", "what the language"),
        ("starts_with(topic, value.a)", "pattern of starts_with must be a literal"),
        ("topic ilike 'a' escape 'x'", "what the language"),
    ],
)
def test_what_is_not_in_the_language_is_refused_before_any_record_comes(
    expression: str, reported: str
) -> None:
    assert reported in wrong_expression(expression, "boolean")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 400 + "true" + ")" * 400,
        "not " * 500 + "true",
        " or ".join(["value.a = 1"] * 600),
        "topic = '" + "x" * 20_000 + "'",
        "matches(topic, '" + "x" * 2_000 + "')",
        "case when true then " * 60 + "true" + " end" * 60,
    ],
)
def test_large_expressions_are_refused(expression: str) -> None:
    assert wrong_expression(expression, "boolean")


def test_expressions_that_take_other_engines_forever_are_quick() -> None:
    rows = [{**(ROWS[0] or {}), "s": "a" * 5_000 + "!"}]
    assert holds("matches(value.s, '(a+)+b')", envelope_of(rows)) == [False]
    with pytest.raises(ConfigurationError, match="patterns are RE2's"):
        holds("value.s rlike '(?=a)'")


def test_whole_numbers_with_more_digits_than_doubles_have_are_no_failure() -> None:
    many = 2**53 + 1
    envelope = envelope_of([{**(ROWS[0] or {}), "n": many}, {**(ROWS[0] or {}), "n": 2**63 - 1}])
    assert holds(f"value.n = {many}", envelope) == [True, False]
    assert holds("value.n > value.d and value.n > 1.5", envelope) == [True, True]
    assert holds("value.n + value.d > 0 and value.n / 2 > 1 and value.n % 2.0 >= 0", envelope) == [True, True]
    assert holds("coalesce(value.n, value.d) > 0 and value.n in (1.5, 2) is false", envelope) == [True, True]
    assert holds("cast(value.n as double) > 1 and cast(cast(value.n as text) as bigint) > 1", envelope) == [
        True,
        None,
    ]
    with pytest.raises(ConfigurationError, match=r"overflow.*cast one as double"):
        holds("value.n + 1 > 0", envelope)


def test_texts_for_topics() -> None:
    assert gives("topic || '-' || coalesce(value.s, 'none')")[1] == "shop.two-none"
    assert gives("case when value.b then 'yes' when not value.b then 'no' end") == [
        "yes",
        None,
        "no",
        "yes",
        "no",
    ]
    assert gives("case value.id when 1 then 'one' else lower(topic) end")[:2] == ["one", "shop.two"]
    assert gives("if(value.n > 0, 'plus', null)") == ["plus", None, None, None, "plus"]
    assert gives("regexp_replace(topic, '^shop[.]', '')") == ["one", "two", "one", "two", "one"]
    assert gives("replace(value.s, 'b', null)")[4] == " Ac "


WORDS = """
    value.s value.n value.b key.id topic headers['x'] 'a' 1 1.5 1_0 1e999 0x1f null true ( ) , [ ] . ; + - * /
    % || = <> < ~ :: -> @ :x and or not is in between like ilike rlike case when then else end select from
    values union interval cast as bigint date length lower if coalesce nullif matches exists any array -- /* '
    " \\
"""
TOKENS = [*re.findall(r"\S+", WORDS), "x ->", "\x00"]


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join), st.text(max_size=40)))
def test_whatever_is_written_is_refused_or_evaluated(expression: str) -> None:
    if wrong_expression(expression, "boolean"):
        return
    try:
        assert len(holds(expression, lenient=True)) == len(ROWS)
    except ConfigurationError as error:
        assert error.message


# DuckDB reads the same dialect: it evaluates what we do, over the same rows.
NUMBERS = st.sampled_from(["value.n", "value.id", "value.d", "1", "0", "-7", "1.5", "null"])
TEXTS = st.sampled_from(["value.s", "value.deep.order", "''", "'x'", "'grüße 𝄞'", "' Abc '", "null"])
COMPARED = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"])


def _numbers() -> st.SearchStrategy[str]:
    return st.recursive(
        NUMBERS,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            inner.map(lambda n: f"abs({n})"),
            inner.map(lambda n: f"(- {n})"),
            st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
            st.tuples(inner, inner).map(lambda t: f"nullif({t[0]}, {t[1]})"),
            TEXTS.map(lambda t: f"length({t})"),
        ),
        max_leaves=5,
    )


def _texts() -> st.SearchStrategy[str]:
    return st.recursive(
        TEXTS,
        lambda inner: st.one_of(
            inner.map(lambda t: f"lower({t})"),
            inner.map(lambda t: f"trim({t})"),
            inner.map(lambda t: f"substring({t}, 2, 3)"),
            st.tuples(inner, inner).map(lambda t: f"({t[0]} || {t[1]})"),
            st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
            st.tuples(st.sampled_from(["value.b", "value.n > 0"]), inner, inner).map(
                lambda t: f"case when {t[0]} then {t[1]} else {t[2]} end"
            ),
        ),
        max_leaves=4,
    )


def _conditions() -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.tuples(_numbers(), COMPARED, _numbers()).map(" ".join),
        st.tuples(_texts(), COMPARED, _texts()).map(" ".join),
        st.tuples(
            _texts(), st.sampled_from(["like", "not like", "ilike"]), st.sampled_from(["'%a%'", "'_'", "''"])
        ).map(" ".join),
        st.tuples(
            _numbers(), st.sampled_from(["in", "not in"]), st.sampled_from(["(1, 2)", "(5, null)", "(0)"])
        ).map(" ".join),
        st.tuples(
            _texts(), st.sampled_from(["in", "not in"]), st.sampled_from(["('x', '')", "('x', null)"])
        ).map(" ".join),
        st.tuples(_numbers(), _numbers(), _numbers()).map(lambda t: f"{t[0]} between {t[1]} and {t[2]}"),
        _texts().map(lambda t: f"{t} is null"),
        _texts().map(lambda t: f"starts_with({t}, 'x')"),
        _texts().map(lambda t: f"contains({t}, 'b')"),
        st.sampled_from(["value.b", "true", "value.b is true", "value.b is not true", "value.b is null"]),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda c: f"not ({c})"),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        ),
        max_leaves=5,
    )


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("rows", pa.table({"value": pa.array(ROWS, TYPES), "number": range(len(ROWS))}))
    return connection


@settings(max_examples=120, deadline=None)
@given(_conditions())
def test_conditions_mean_what_they_mean_in_sql(duck: duckdb.DuckDBPyConnection, expression: str) -> None:
    theirs = duck.sql(f"select ({expression})::boolean from rows order by number").fetchall()
    assert holds(expression) == [row[0] for row in theirs]
