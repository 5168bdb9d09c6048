"""Whoever may write to a signal channel can request snapshots, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.snapshot_requests import (
    Reception,
    SignalState,
    SnapshotRequest,
    TableCopy,
    received,
)
from airflow_cdc_provider.jobs.signals import _fitting, logged_message
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.signal_topic import SignalTopic, TopicChannel
from airflow_cdc_provider.patterns import compile_cost, untrusted
from airflow_cdc_provider.signals import payloads
from airflow_cdc_provider.signals.files import FileChannel, FolderChannel
from airflow_cdc_provider.signals.payloads import Matching, read_execute
from airflow_cdc_provider.signals.signal import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    MOST_BYTES_AT_ONCE,
    MalformedSignal,
    ReceivedSignal,
    Signal,
    signal_of,
    signal_of_text,
)
from airflow_cdc_provider.sources.filters import CQL_FUNCTIONS, refused_filter
from airflow_cdc_provider.sources.mongodb.key_ranges import parse_filter
from airflow_cdc_provider.sources.mongodb.key_ranges import refused_filter as refused_query
from airflow_cdc_provider.sources.mongodb.signal_documents import parse_signals
from tests.bounded import bounded
from tests.unit.kafka.fake_signal_topic import FakeTopic

TABLES = (
    "shop.orders",
    "shop.größen",
    f"shop.{'a' * 250}",
    "shop.a\nb",
    "shop.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
)
_GOOD = Signal("good", "execute-snapshot", {"data-collections": [r"shop\.orders"]}, "file")
_DEEP = "[" * 100_000
_NESTED: list[Any] = []
for _ in range(5_000):
    _NESTED = [_NESTED]


def applied(*arrived: ReceivedSignal) -> Reception:
    """Return the effect of signals, with a good one after them; all is stored and printable."""
    found = received(SignalState(), [*arrived, _GOOD], TABLES, 5, refused_query)
    assert any(r.id == "good" and r.outcome == "queued" for r in found.state.records), found
    assert SignalState.from_plain(json.loads(json.dumps(found.state.to_plain()))) == found.state
    texts = [*found.warnings, *(r.id + r.detail for r in found.state.records)]
    assert all(len(text) < 1_000 for text in texts)
    assert all(r.id.isprintable() and r.detail.isprintable() for r in found.state.records)
    assert len(json.dumps(found.state.to_plain())) < 4 << 20
    return found


def asked(**data: Any) -> Signal:
    return Signal("1", "execute-snapshot", data, "file")


@pytest.mark.parametrize(
    "pattern",
    [
        "a{99999999999999999999}",
        "(" * 3_000 + ")" * 3_000,
        "(" * 400 + ")" * 400,
        r"(?:\w|[a-z]|.)*#",
        "(a+)+$",
        "(?:a*)*b",
        r"\pL{1000}",
        "(?:(?:(?:a{10}){10}){10}){10}",
        "x*" * 400,
        "(?=a)*",
        r"(a)\1",
        "\ud800",
        "a\0b",
        "[",
        "\\",
        "(?P<a>",
        "\u202e" * 100,
    ],
)
def test_no_pattern_stops_a_connector_or_takes_long(pattern: str) -> None:
    applied()
    with bounded(1):
        applied(asked(**{"data-collections": [pattern]}))
        condition = {"data-collection": pattern, "filter": "{}"}
        applied(asked(**{"data-collections": ["x", ".*"], "additional-conditions": [condition]}))
        applied(Signal("1", "stop-snapshot", {"type": "incremental", "data-collections": [pattern]}, "file"))


@pytest.mark.parametrize(
    "data",
    [
        {"data-collections": ["a" * 100] * 1_001},
        {"data-collections": [f"(?:{'.?' * 490}){n}" for n in range(1_000)]},
        {"data-collections": "," * 500_000},
        {"data-collections": _NESTED},
        {"data-collections": {"a": 1}},
        {"data-collections": [".*"], "type": _NESTED},
        {"data-collections": [".*"], "type": "x" * 1_000_000},
        {"data-collections": [".*"], "additional-conditions": _NESTED},
        {"data-collections": [".*"], "additional-conditions": [{"data-collection": ".*", "filter": _NESTED}]},
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": "a", "filter": "{}"}] * 101,
        },
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": ".*", "filter": "x" * 20_000}],
        },
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": ".*", "filter": _DEEP[:16_000]}],
        },
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": ".*", "filter": '{"n": 1' + "0" * 5_000 + "}"}],
        },
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": ".*", "filter": '{"n": {"$date": 1e400}}'}],
        },
        {
            "data-collections": [".*"],
            "additional-conditions": [{"data-collection": ".*", "filter": '{"n": 99999999999999999999}'}],
        },
        {"surrogate-key": "x"},
    ],
)
def test_no_data_stops_a_connector(data: Mapping[str, Any]) -> None:
    with bounded(1):
        found = applied(asked(**data))
    assert [r.outcome for r in found.state.records] == ["ignored", "queued"]


@pytest.mark.parametrize(
    "text",
    [
        _DEEP,
        '{"id": "1", "type": "log", "data": ' + _DEEP + "}",
        '{"id": ' + "9" * 5_000 + ', "type": "log"}',
        '{"id": "' + "x" * 100_000 + '", "type": "log"}',
        r'{"id": "\ud800\u0000\u001b[31m\u202e\n[CDC-CONFIGURATION] x", "type": "nothing"}',
        '{"id": {"$a": [1]}, "type": {"a": 1}, "data": 5}',
        '{"id": "1", "type": "log", "data": "{\\"a\\": ' + "9" * 5_000 + '}"}',
        '{"id": "1", "type": "pause-snapshot", "data": {"type": "' + "x" * 10_000 + '"}}',
        "x" * (LARGEST_BYTES + 1),
        "NaN",
        "\x00",
        "\u0085\u2028",
    ],
)
def test_no_text_stops_a_connector(text: str) -> None:
    with bounded(1):
        signal = signal_of_text(text, "file", otherwise="\u202e\x1b[2Kid")
        applied(signal)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
_ARGUMENTS = ("type", "data-collections", "additional-conditions", "message", "surrogate-key")
_TYPES = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "log", "x")


@given(
    identity=_JSON,
    kind=st.sampled_from(_TYPES) | _JSON,
    data=st.dictionaries(st.sampled_from(_ARGUMENTS), _JSON | st.just(["shop.*"])) | _JSON,
)
def test_whatever_a_signal_contains_the_next_one_is_applied(identity: Any, kind: Any, data: Any) -> None:
    signal = signal_of({"id": identity, "type": kind, "data": data}, "kafka", otherwise="own")
    if signal.id != "good":
        applied(signal)


def test_a_custom_channel_may_return_what_no_text_would() -> None:
    applied(
        Signal(cast(str, 7), "execute-snapshot", cast(Any, None), "x"),
        MalformedSignal("\n" * 900, "x", "\x1b" * 900),
    )


def test_queued_requests_are_bounded() -> None:
    tables = [f"shop.t{number}" for number in range(5_000)]
    many = [Signal(str(n), "execute-snapshot", {"data-collections": [".*"]}, "file") for n in range(8)]
    with bounded(2, 256):
        found = received(SignalState(), many, tables, 5, refused_query)
    outcomes = [r.outcome for r in found.state.records]
    assert outcomes == ["queued"] * 2 + ["ignored"] * 6


def documents(*texts: Mapping[str, Any]) -> list[bytes]:
    return [bson.encode({"operationType": "insert", "fullDocument": text}) for text in texts]


def test_no_document_stops_a_connector() -> None:
    nested: dict[str, Any] = {}
    for _ in range(150):
        nested = {"a": nested}
    found = parse_signals(
        [
            *documents(
                {}, {"_id": nested, "type": "log", "data": nested}, {"_id": 1, "a": 2, "b": 3, "c": 4}
            ),
            *documents({"_id": bson.Code("x"), "type": bson.Regex("a"), "data": bson.DBRef("a", 1)}),
            *documents({"_id": "1", "type": "log", "data": {"message": bson.Decimal128("NaN")}}),
            *documents({"_id": bson.DatetimeMS(2**62), "type": "log", "data": {"message": "x"}}),
            bson.encode({"operationType": "insert"}),
            bson.encode({"operationType": "insert", "fullDocument": 5}),
            b"\x05\0\0\0",
            b"",
        ]
    )
    assert len(found) == 8
    applied(*found)


@pytest.mark.parametrize("name", ["$where", "$function", "$accumulator"])
def test_a_signal_may_not_run_code_in_the_server(name: str) -> None:
    code = {name: {"body": "sleep(1e9)", "args": [], "lang": "js"}}
    for query in (
        code,
        {"a": {"$elemMatch": code}},
        {"$expr": code},
        {"$or": [{"a": 1}, {"$nor": [code]}]},
        {"$expr": {"$and": [{"$eq": [{"$cond": [code, 1, 2]}, 1]}]}},
    ):
        condition = {"data-collection": ".*", "filter": query}
        data = {"data-collections": [".*"], "additional-conditions": [condition]}
        found = applied(
            asked(**data),
            Signal(
                "2",
                "execute-snapshot",
                {**data, "additional-conditions": [{**condition, "filter": json.dumps(query)}]},
                "file",
            ),
        )
        assert [r.outcome for r in found.state.records] == ["ignored", "ignored", "queued"]
        assert name in found.state.records[0].detail
    assert refused_query('{"a": {"$gt": 5}, "$expr": {"$gt": ["$a", "$b"]}}') == ""


@pytest.mark.parametrize(
    "query",
    [
        '{"$or": [{"$ref": "x", "$id": 1, "$or": [{"$where": "while(1);"}]}]}',
        '{"a": {"$elemMatch": {"$ref": "x", "$id": 1, "$where": "while(1);"}}}',
        '{"a": {"$ref": "x", "$id": {"$where": "x"}, "$db": "y"}}',
        '{"a": {"$dbPointer": {"$ref": "x", "$id": {"$oid": "0123456789abcdef01234567"}}}}',
        '{"$expr": {"$_internalJsEmit": {"this": "$$ROOT", "eval": "function() {}"}}}',
        '{"$expr": {"$reduce": {"input": "$a", "initialValue": [], "in": {"$concatArrays": ["$$value"]}}}}',
        '{"$jsonSchema": {}}',
        '{"$": 1}',
        '{"$EQ": 1}',
        '{"a": {"$code": "while(1);"}}',
        '{"a": {"$code": "while(1);", "$scope": {"$where": 1}}}',
        '{"a": [[{"$regex": {"$function": {}}}]]}',
    ],
)
def test_operators_of_mongodb_that_are_not_known_are_refused(query: str) -> None:
    assert refused_query(query)
    trusted = json.loads(query)
    condition = {"data-collection": ".*", "filter": trusted}
    found = applied(asked(**{"data-collections": [".*"], "additional-conditions": [condition]}))
    assert found.state.records[0].outcome == "ignored"


@pytest.mark.parametrize(
    "query",
    [
        '{"a": {"$gt": 5}, "$expr": {"$gt": ["$a", {"$multiply": ["$b", 2]}]}}',
        '{"_id": {"$gt": {"$oid": "0123456789abcdef01234567"}}}',
        '{"t": {"$lt": {"$date": "2024-02-03T00:00:00Z"}}, "a": {"$regex": "^x", "$options": "i"}}',
        '{"b": {"$regularExpression": {"pattern": "x", "options": ""}}}',
        '{"n": {"$numberDecimal": "7.10"}, "$or": [{"a": null}, {"a": {"$exists": false}}]}',
    ],
)
def test_comparisons_are_queries(query: str) -> None:
    assert refused_query(query) == ""


@pytest.mark.parametrize("value", ['{"$numberDecimal": "foo"}', '{"$numberDouble": "x"}', '{"$date": 1e400}'])
def test_a_value_that_is_none_is_an_error_of_configuration(value: str) -> None:
    with pytest.raises(ConfigurationError, match="not valid Extended JSON"):
        parse_filter(f'{{"a": {value}}}')


_MEMBERS = st.sampled_from(["a", "$ref", "$id", "$db", "$or", "$elemMatch", "$expr", "$gt", "$regex", "b.c"])


@given(
    st.recursive(
        st.integers(0, 3) | st.just("x"),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(_MEMBERS | st.just("$where"), inner, max_size=4)
        ),
        max_leaves=10,
    )
)
def test_no_document_that_the_server_gets_has_an_operator_that_was_not_seen(value: Any) -> None:
    text = json.dumps({"$or": [value]})
    try:
        allowed = refused_query(text) == ""
    except ConfigurationError:
        return
    if allowed:
        sent = bson.encode(parse_filter(text))
        assert all(name not in sent for name in (b"$where\0", b"$ref\0", b"$id\0", b"$db\0"))


@pytest.mark.parametrize("bracket", ["(", "["])
def test_brackets_of_a_filter_are_no_deeper_than_any_parsers_stack(bracket: str) -> None:
    close = {"(": ")", "[": "]"}[bracket]
    assert refused_filter(f"a = {bracket * 8}1{close * 8}") == ""
    for depth in (9, 8_000):
        assert "brackets" in refused_filter(f"a = {bracket * depth}1{close * depth}")
        assert "brackets" in refused_filter(f"a = {'([' * depth}1{'])' * depth}")
        assert "brackets" in refused_filter(f"a = {{1: {bracket * depth}1{close * depth}}}")


@pytest.mark.parametrize(
    "where",
    [
        f"c1 IN ({','.join('0' * 2_700)}) AND c2 IN ({','.join('0' * 2_700)})",
        f"a in ({','.join('1' * 32)}) and b not in ({','.join('1' * 32)})",
        f"(a, b) IN ({','.join(['(1, 2)'] * 32)}) AND c IN ({','.join('1' * 32)})",
        " AND ".join(f"c{n} IN (1, 2)" for n in range(10)),
        f"a IN ({','.join('1' * 1_001)})",
        f"a IN ({','.join(['[1, 2]'] * 32)}) AND b = 1 AND c IN ({','.join(['{1: 2, 3: 4}'] * 32)})",
        f"token(a) IN ({','.join(['token(1)'] * 32)}) AND b IN ({','.join(['minTimeuuid(1)'] * 32)})",
    ],
)
def test_lists_of_a_filter_have_few_combinations(where: str) -> None:
    assert "combinations" in refused_filter(where, CQL_FUNCTIONS)


def test_a_list_of_a_filter_may_be_long() -> None:
    long = ",".join("1" * 1_000)
    where = f"a IN ({long}) AND b IN (1) AND (c, d) = (1, 2) AND e = [{long}]"
    assert refused_filter(where) == ""


@pytest.mark.parametrize(
    "where",
    [
        "status = 'open'",
        "a = 1 AND b <> -2.5e3 and c >= 'it''s'",
        "x in (1, 2) AND \"Quoted Name\" IN ('a')",
        "a = 0xcafe AND b = 123e4567-e89b-12d3-a456-426614174000",
        "tags CONTAINS 'x' AND m CONTAINS KEY 'k' AND m['k'] = {'a': 1}",
        "(a, b) > (1, 2)",
        "token(id) > -9223372036854775808",
        "a IS NOT NULL",
        "`a` != true",
    ],
)
def test_comparisons_are_filters(where: str) -> None:
    assert refused_filter(where, CQL_FUNCTIONS) == ""


@pytest.mark.parametrize(
    "where",
    [
        "",
        "a = 1 ALLOW FILTERING",
        "a = 1 LIMIT 1",
        "a = 1 PER PARTITION LIMIT 1",
        "a = 1 GROUP BY a",
        "a = 1 ORDER BY a",
        "a = 1 USING TIMEOUT 1ms",
        "a = 1; DROP TABLE x",
        "a = 1 -- rest",
        "a = 1 /* rest",
        "a = 1 # rest",
        "a = 1 //",
        "a = SLEEP(1000)",
        "a = sleep (1000)",
        "a = my.function(1)",
        "a = `sleep`(1)",
        "a = (SELECT password FROM mysql.user)",
        "a IN (SELECT 1)",
        "a = LOAD_FILE('/etc/passwd')",
        "a = 1 UNION SELECT * FROM b",
        "a = 1 INTO OUTFILE '/tmp/x'",
        "a = 1 FOR UPDATE",
        "a = ?",
        "a = :name",
        "a = @@version",
        "a = 'x\\' OR 1 = 1",
        "a = 'x",
        "a = 1) OR (b = 2",
        "a = (1",
        "a = 1 AND",
        "a = 1 \x00",
        "1",
        "a BETWEEN 1 AND b SOUNDS LIKE x",
        "(" * 8_000,
        "'" * 16_001,
        "a = 1 " * 2_000,
        "1-" * 8_000,
    ],
)
def test_other_filters_of_a_signal_are_refused(where: str) -> None:
    with bounded(1):
        if where != "1":  # a lone value: the server refuses it
            assert refused_filter(where, CQL_FUNCTIONS)


@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "1",
                "'x'",
                "=",
                "and",
                "in",
                "(",
                ")",
                "[",
                "]",
                ",",
                ".",
                "limit",
                "select",
                "not",
                "sleep",
                " ",
                "--",
                ";",
            ]
        ),
        max_size=12,
    )
)
def test_a_filter_never_has_two_words_in_a_row_or_a_call(parts: list[str]) -> None:
    where = " ".join(parts)
    if refused_filter(where) == "":
        words = [part for part in parts if part.strip()]
        operands = {"a", "1", "'x'", "limit", "select", "sleep"}
        assert not {"--", ";"} & set(words)
        for one, other in pairwise(words):
            assert not (one in operands and other in {*operands, "("}), where


def test_a_flood_of_signals_is_received_in_parts(tmp_path: Path) -> None:
    file = tmp_path / "signals.txt"
    file.write_text("x\n" * (MOST_AT_ONCE * 100))
    channel = FileChannel(file)
    with bounded(2):
        found = channel.receive()
        assert len(found) == MOST_AT_ONCE + 1
        applied(*found)
    channel.done()
    assert channel.receive() == []


_WIDE = '{"type":"log","data":{"a":[' + ",".join(["[{}]"] * 12_000) + "]}}"
"""A text that takes 34 times as much memory once it is parsed."""


_LONG = json.dumps({"type": "log", "data": {"message": "x" * 60_000}})


def test_signals_that_are_large_once_they_are_parsed_are_received_in_parts(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:04}.json").write_text(_WIDE)
    channel = FolderChannel(tmp_path)
    with bounded(4, 320):
        found = channel.receive()
    assert 100 < sum(isinstance(one, Signal) for one in found) == len(found) < 150
    channel.done()
    assert len(list(tmp_path.iterdir())) == 150 - len(found)


def test_files_of_signals_are_received_in_parts(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"s.txt.taken-{number:04}").write_text(_LONG)
    (tmp_path / "s.txt").write_text("\n" * 7_000_000 + '{"type": "log"}')
    channel = FileChannel(tmp_path / "s.txt")
    sizes = []
    with bounded(2):
        while found := channel.receive():
            assert sum(isinstance(one, Signal) for one in found) == len(found)
            sizes.append(len(found))
            channel.done()
    assert (len(sizes), sum(sizes)) == (3, 201)


def test_a_reception_of_a_topic_is_bounded() -> None:
    topic = FakeTopic(name="s")
    for _ in range(200):
        topic.add(_LONG)
        topic.add("x" * (LARGEST_BYTES + 1))
    settings = SignalTopic(ClientSettings({"bootstrap.servers": "localhost:1"}), "s", "shop", "g", 0.1)
    channel = TopicChannel(settings, topic, topic.consumer)
    channel.resume(None)
    with bounded(2):
        first = channel.receive()
    assert sum(isinstance(one, Signal) for one in first) <= MOST_BYTES_AT_ONCE // len(_LONG)
    assert channel.receive() == first, "the others wait"


def test_a_reception_of_documents_is_bounded() -> None:
    assert _fitting([LARGEST_BYTES] * 1_001) == MOST_BYTES_AT_ONCE // LARGEST_BYTES
    assert _fitting([0] * 1_001) == MOST_AT_ONCE
    assert _fitting([]) == 0


def test_the_patterns_of_all_conditions_and_of_a_flood_are_bounded() -> None:
    tables = [f"shop.{'a' * 38}{number:05}" for number in range(1_000)]
    slow = [f"(?:.?a?){{{900 - number}}}(?:.?){{90}}#" for number in range(100)]
    condition = [{"data-collection": pattern, "filter": "{}"} for pattern in slow]
    many = asked(**{"data-collections": [".*"], "additional-conditions": condition})
    assert "regular expressions" in applied(many).state.records[0].detail
    few = replace(many, data={"data-collections": slow[:4], "additional-conditions": condition[4:5]})
    stop = Signal("stop", "stop-snapshot", {"type": "incremental", "data-collections": slow[:4]}, "file")
    every = {"type": "incremental"}
    running = received(SignalState(), [_GOOD], TABLES, 5, refused_query).state
    flood = [replace(one, id=f"{one.id}{n}") for n in range(500) for one in (few, stop)]
    with patch.object(payloads, "_MOST_WORK", 200_000_000), bounded(4):
        found = received(running, [*flood, replace(stop, data=every)], tables, 5, refused_query)
    assert "at once" in found.state.records[-3].detail
    assert found.state.records[-1].outcome == "followed", "to stop all needs no pattern"


def _classes(count: int, number: int) -> str:
    """Return a pattern with an own text, of which RE2 keeps a large tree and a tiny program."""
    return "(?i)(?:" + r"\w" * count + f"{number:04}){{0}}a"


def test_patterns_are_not_kept_after_their_signal() -> None:
    applied()
    with bounded(2, 40):
        applied(*(replace(asked(**{"data-collections": [_classes(120, n)]}), id=f"{n}") for n in range(20)))


def test_patterns_of_a_signal_are_bounded_before_they_are_compiled() -> None:
    with bounded(1, 96):
        names = [_classes(480, number) for number in range(40)]
        condition = [{"data-collection": name, "filter": "{}"} for name in names]
        for data in (
            {"data-collections": names},
            {"data-collections": [".*"], "additional-conditions": condition},
        ):
            assert "regular expressions" in applied(asked(**data)).state.records[0].detail


@pytest.mark.parametrize("pattern", [r"\w" * 400, "a{0,1000}" * 100, "(?:a{31}){31}" * 60 + "["])
def test_patterns_that_do_not_compile_are_counted_too(pattern: str) -> None:
    flood = [replace(asked(**{"data-collections": [f"{n:04}{pattern}"]}), id=f"{n}") for n in range(200)]
    with patch.object(payloads, "_MOST_WORK", 60_000_000), bounded(1):
        found = received(SignalState(), flood, TABLES, 5, refused_query)
    assert "at once" in found.state.records[-1].detail


@pytest.mark.parametrize(
    "unit",
    [
        *(
            r"\w",
            r"\pL",
            r"\PL",
            r"[\pL\pN]",
            r"[^\w]",
            r"\d\s",
            "[!-\U0010ffff]",
            "a{0,1000}",
            "a{1000}|",
            "k",
        ),
        *("(?:.?a){0,500}", "(?:|){1000}", "[Ā-\u0fff]{1000}", ".?", "(?:x{31}){31}", "()", r"\pL{1000}"),
    ],
)
def test_no_pattern_costs_more_than_is_counted(unit: str) -> None:
    pattern = f"(?i)(?:{unit * (980 // len(unit))})"
    compile_cost(pattern)
    with (
        bounded(0.01 + 100e-9 * compile_cost(pattern), 8 + (20 * compile_cost(pattern) >> 20)),
        suppress(ValueError),
    ):
        untrusted(pattern)


def test_a_stop_of_many_tables_is_one_event() -> None:
    tables = [f"shop.{number:04}{'ab'[number % 2]}" for number in range(1_000)]
    stop = Signal("", "stop-snapshot", {"type": "incremental"}, "file")
    some = replace(stop, data={"type": "incremental", "data-collections": [".*a"]})
    every = asked(**{"data-collections": [".*"]})
    flood = [replace(one, id=f"{n}-{at}") for n in range(20) for at, one in enumerate((every, some, stop))]
    with bounded(1):
        found = received(SignalState(), flood, tables, 5, refused_query)
    assert [event.kind for event in found.events] == ["tables_stopped", "aborted"] * 10
    assert [len(event.tables) for event in found.events] == [500] * 20
    assert "too many tables" in found.warnings[0]


def test_a_stop_of_many_requests_takes_linear_time() -> None:
    requests = (
        SnapshotRequest(str(n), "incremental", "file", 1, (TableCopy(f"s.{n}"),)) for n in range(5_000)
    )
    stop = Signal("x", "stop-snapshot", {"type": "incremental", "data-collections": [".*"]}, "file")
    with bounded(0.5):
        found = received(SignalState(tuple(requests)), [stop], (), 5, refused_query)
    assert (len(found.events), found.state.requests) == (5_000, ())


def test_conditions_with_the_same_pattern_are_one() -> None:
    same = [{"data-collection": "a+", "filter": str(number)} for number in range(100)]
    data = {"data-collections": ["a"], "additional-conditions": same}
    assert [one.filter for one in read_execute(data, Matching()).conditions] == ["0"]


def test_a_message_for_the_log_does_not_multiply_the_offset() -> None:
    with bounded(1):
        line = logged_message("{}" * 5_000, "x" * 1_000_000)
    assert len(line) == 100_000
    assert logged_message("at {}, {}", "5") == "at 5, {}"


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "signals"
    folder.mkdir()
    os.mkfifo(folder / "a.json")
    (folder / "b.json").symlink_to("/dev/zero")
    (folder / "c.json").mkdir()
    (folder / "d.json").write_bytes(b"x" * (LARGEST_BYTES + 1))
    (folder / "e.json").write_text('{"id": "e", "type": "log"}')
    channel = FolderChannel(folder)
    with bounded(1):
        found = channel.receive()
    assert [(type(one).__name__, one.id) for one in found] == [("MalformedSignal", "d"), ("Signal", "e")]
    channel.done()
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json", "c.json"]
    own = tmp_path / "file-signals.txt"
    os.mkfifo(own)
    (tmp_path / "file-signals.txt.taken-1").symlink_to("/etc/hostname")
    assert FileChannel(own).receive() == []
