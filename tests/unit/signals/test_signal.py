"""Texts of signals, and what their data say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.signals.payloads import (
    Condition,
    InvalidSignal,
    Matching,
    Names,
    SnapshotPayload,
    read_execute,
    read_stop,
)
from airflow_cdc_provider.signals.signal import MalformedSignal, Signal, signal_of, signal_of_text


def test_a_signal_has_an_id_of_its_own_or_that_of_its_place() -> None:
    text = '{"id": 7, "type": "log", "data": "{\\"message\\": \\"m\\"}"}'
    assert signal_of_text(text, "file", otherwise="x") == Signal("7", "log", {"message": "m"}, "file")
    assert signal_of({"type": "log"}, "file", otherwise="x") == Signal("x", "log", {}, "file")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"type": "coffee"}', "its type is 'coffee'"),
        ('{"type": null}', "its type is None"),
        ('{"type": "log", "data": "x"}', "its data is not JSON"),
        ('{"type": "log", "data": [1]}', "its data is not a JSON object"),
    ],
)
def test_what_is_no_signal_says_why(text: str, reason: str) -> None:
    found = signal_of_text(text, "file", otherwise="line-1")
    assert isinstance(found, MalformedSignal)
    assert found.id == "line-1"
    assert reason in found.reason


@given(st.text())
def test_no_text_raises(text: str) -> None:
    assert signal_of_text(text, "file", otherwise="x").channel == "file"


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        (r"shop\.orders", "shop.orders", True),
        ("shop.orders", "shopXorders", True),
        ("orders", "shop.orders", False),
        (r"shop\..*", "shop.a.b", True),
        ('"shop"."a.b"', "shop.a.b", True),
        ('"shop"."a.b"', "shop.aXb", False),
        ('"shop"."say ""no"""', 'shop.say "no"', True),
        ('"shop.orders"', "shop.orders", True),
    ],
)
def test_names_are_expressions_or_exact_parts_in_quotes(pattern: str, name: str, meant: bool) -> None:
    assert Names.read([pattern], Matching()).take(name) is meant


def test_a_snapshot_request_is_read_completely() -> None:
    data = {
        "type": "Blocking",
        "data-collections": ["a.b", "a.c"],
        "additional-conditions": [
            {"data-collection": "a.b", "filter": {"x": 1}},
            {"data-collection": "a.*", "filter": '{"y": 2}'},
        ],
    }
    request = read_execute(data, Matching())
    conditions = (Condition(Names(("a.b",)), '{"x": 1}'), Condition(Names(("a.*",)), '{"y": 2}'))
    assert request == SnapshotPayload("blocking", Names(("a.b", "a.c")), conditions)
    assert [request.filter_of(table) for table in ("a.b", "a.c", "b.b")] == ['{"x": 1}', '{"y": 2}', ""]
    assert read_execute({"data-collections": "a.b, a.c"}, Matching()).names == Names(("a.b", "a.c"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "names no table"),
        ({"data-collections": [1]}, "not a list of names"),
        ({"data-collections": ["("]}, "not a regular expression"),
        ({"data-collections": ["a"], "type": "full"}, "neither incremental nor blocking"),
        ({"data-collections": ["a"], "surrogate-key": "k"}, "surrogate-key"),
        ({"data-collections": ["a"], "additional-conditions": {}}, "not a list"),
        ({"data-collections": ["a"], "additional-conditions": [{"filter": "x"}]}, "lacks data-collection"),
    ],
)
def test_a_request_that_is_invalid_says_why(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSignal, match=reason):
        read_execute(data, Matching())


def test_a_stop_must_say_what_kind_of_snapshot_it_means() -> None:
    assert read_stop({"type": "INCREMENTAL"}, Matching()) == ("incremental", None)
    assert read_stop({"type": "blocking", "data-collections": ["a"]}, Matching()) == (
        "blocking",
        Names(("a",)),
    )
    for kind in (None, "initial"):
        with pytest.raises(InvalidSignal, match="type must be incremental or blocking"):
            read_stop({"type": kind}, Matching())
