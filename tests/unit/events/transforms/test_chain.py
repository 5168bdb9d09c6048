"""The chain: which records a transform is for, what becomes of tombstones, and what Connect doesn't have."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.connect import OPTIONAL_STRING, struct
from airflow_cdc_provider.events.encoder import Converters, Destination, Envelope
from airflow_cdc_provider.events.transforms.chain import Chain
from airflow_cdc_provider.events.transforms.options import read_transforms
from airflow_cdc_provider.events.transforms.pieces import Piece, encode_pieces
from airflow_cdc_provider.exceptions import ConfigurationError
from tests.unit.events.transforms.changed_rows import KEY, VALUE, change, piece

EVENTS = [change(1, "c", "a@x"), change(2, "d", "b@x"), change(3, "u", None), change(4, "d", "d@y")]


def shown(*transforms: dict[str, Any], given: Piece | None = None) -> list[tuple[int, str, Any, Any]]:
    """Return row, topic, key and value of the records that come of events."""
    chain = Chain(read_transforms(list(transforms)))
    records = encode_pieces(chain.apply([given or piece(EVENTS)]), Converters())
    return [
        (one["row"], one["topic"], json.loads(one["key"]), one["value"] and json.loads(one["value"]))
        for one in records.to_pylist()
    ]


def rows(found: list[tuple[int, str, Any, Any]]) -> list[tuple[int, bool]]:
    """Return the rows of records, and whether they have a value."""
    return [(row // 10, value is not None) for row, _, _, value in found]


ALL = [(0, True), (1, True), (1, False), (2, True), (3, True), (3, False)]


def test_without_transforms_events_are_as_they_were() -> None:
    given = [piece(EVENTS)]
    assert Chain(()).apply(given) == given
    assert rows(shown()) == ALL


def test_tombstones_stay_behind_what_they_follow() -> None:
    assert shown({"type": "insert_header", "header": "x", "value": "y"}) == shown()


def test_errors_name_which_transform_of_which_topic_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"\(publish\.transforms\[1\], type cast, topic shop\.t\)"):
        shown({"type": "unwrap"}, {"type": "cast", "fields": {"email": "int32"}})


def test_a_filter_keeps_tombstones_unless_configured_otherwise() -> None:
    only_deletes = {"type": "filter", "condition": "value.op = 'd'"}
    assert rows(shown(only_deletes)) == [(1, True), (1, False), (3, True), (3, False)]
    assert rows(shown({**only_deletes, "tombstones": "drop"})) == [(1, True), (3, True)]
    kept = {"type": "filter", "condition": "value is null", "tombstones": "evaluate"}
    assert rows(shown(kept)) == [(1, False), (3, False)]
    assert rows(shown({"type": "filter", "condition": "value.after.email like '%x'"})) == [
        (0, True),
        (1, False),
        (3, False),
    ]
    assert shown({"type": "filter", "condition": "false", "tombstones": "drop"}) == []


@pytest.mark.parametrize(
    ("when", "left"),
    [
        ({"tombstone": True}, [one for one in ALL if one[1]]),
        ({"tombstone": False}, [one for one in ALL if not one[1]]),
        ({"tombstone": True, "negate": True}, [one for one in ALL if not one[1]]),
        ({"topic": "shop"}, ALL),
        ({"topic": "shop", "negate": True}, []),
        ({"topic": r"shop\.t", "tombstone": True}, [one for one in ALL if one[1]]),
        ({"header": "n"}, []),
        ({"header": "m"}, ALL),
        ({"condition": "key.id > 2"}, ALL[:3]),
        ({"condition": "value.after.email = 'a@x'", "negate": True}, ALL[:1]),
    ],
)
def test_a_predicate_chooses_the_records_that_a_transform_is_for(
    when: dict[str, Any], left: list[tuple[int, bool]]
) -> None:
    assert rows(shown({"type": "drop", "when": when})) == left


def test_topics_are_chosen_by_content() -> None:
    route = {"type": "route", "topic": "case when value.op = 'd' then topic || '.deleted' end"}
    found = shown(route, given=piece(EVENTS, ("shop.t", "shop.u")))
    assert [(row // 10, topic) for row, topic, _, _ in found] == [
        (0, "shop.t"),
        (1, "shop.u.deleted"),
        (1, "shop.u"),
        (2, "shop.t"),
        (3, "shop.u.deleted"),
        (3, "shop.u"),
    ]
    by_key = shown({"type": "route", "topic": "'k/' || cast(key.id as text)", "tombstones": "evaluate"})
    assert [topic for _, topic, _, _ in by_key] == ["k_1", "k_2", "k_2", "k_3", "k_4", "k_4"]


def test_fields_in_envelopes_are_reached_by_paths() -> None:
    found = shown(
        {"type": "mask", "fields": ["after.email", "before.email"], "when": {"topic": "shop.*"}},
        {"type": "fields", "exclude": ["before.id"], "renames": {"after.id": "number"}},
    )
    assert found[0][3] == {"before": None, "after": {"number": 1, "email": ""}, "op": "c"}
    assert found[1][3] == {"before": {"email": ""}, "after": None, "op": "d"}
    assert found[3][3]["after"] == {"number": 3, "email": None}


def test_texts_are_cut_by_characters() -> None:
    given = piece([change(1, "c", "𝄞grüße"), change(2, "u", None)])
    cut = shown({"type": "truncate", "fields": ["after.email", "op"], "length": 3}, given=given)
    assert [value["after"]["email"] for _, _, _, value in cut] == ["𝄞gr", None]


def test_hashes_are_of_salt_and_text_and_the_salt_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "hunter2")
    options = {"type": "hash", "fields": ["after.email", "before.email"], "salt": "${env:SALT}"}
    found = shown(options)
    assert found[0][3]["after"]["email"] == hashlib.sha256(b"hunter2a@x").hexdigest()
    assert found[3][3]["after"]["email"] is None
    short = shown({**options, "length": 8, "algorithm": "SHA-1", "version": "v1"})
    as_java = b"\xac\xed\x00\x05t\x00\x03a@x"
    assert short[0][3]["after"]["email"] == hashlib.sha1(b"hunter2" + as_java).hexdigest()[:8]  # noqa: S324
    assert "hunter2" not in repr(read_transforms([options]))
    with pytest.raises(ConfigurationError, match="salt: expected") as refused:
        read_transforms([{**options, "salt": "hunter2"}])
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="only strings can be hashed"):
        shown({**options, "fields": ["after.id"]})
    monkeypatch.delenv("SALT")
    with pytest.raises(ConfigurationError, match="environment variable SALT"):
        shown(options)


def test_rows_of_several_destinations_keep_their_schemas() -> None:
    other = struct("shop.u.Envelope", *VALUE.fields)
    given = piece(EVENTS, ("shop.t", "shop.u"))
    destinations = [given.envelope.destinations[0], replace(given.envelope.destinations[1], value=other)]
    given = replace(given, envelope=replace(given.envelope, destinations=destinations))
    chain = Chain(read_transforms([{"type": "fields", "exclude": ["before"]}]))
    records = encode_pieces(chain.apply([given]), Converters(schemas=True)).to_pylist()
    named = [json.loads(one["value"])["schema"]["name"] for one in records if one["value"]]
    assert named == ["shop.t.Envelope", "shop.u.Envelope", "shop.t.Envelope", "shop.u.Envelope"]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ({"type": "extract", "field": "absent"}, "field absent doesn't exist"),
        (
            {"type": "value_to_key", "fields": ["absent"], "when": {"tombstone": False}},
            "field absent for the key doesn't exist",
        ),
        (
            {"type": "value_to_header", "fields": ["absent"], "headers": ["h"], "operation": "copy"},
            "field absent for header h doesn't exist",
        ),
        ({"type": "mask", "fields": ["after"]}, "type struct can't be masked"),
        ({"type": "mask", "fields": ["after.id"], "replacement": "x"}, "is not a valid number for its field"),
        ({"type": "cast", "fields": {"op": "int8"}}, "can't be cast to int8"),
        ({"type": "cast", "fields": {"after": "string"}}, "type struct can't be cast"),
        ({"type": "timestamp", "field": "after", "to": "unix"}, "can't be converted to a time"),
        ({"type": "timestamp", "field": "op", "to": "unix", "format": "yyyy"}, "has another form"),
        ({"type": "fields", "renames": {"op": "after"}}, "duplicate field after"),
        ({"type": "filter", "condition": "value.opp = 'd'"}, "names opp"),
        ({"type": "rename_topic", "regex": ".*", "replacement": ""}, "empty topic name"),
    ],
)
def test_what_does_not_fit_the_records_is_reported(transform: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        shown(transform)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ({"type": "filter"}, r"publish.transforms\[0\].condition is missing"),
        ({"type": "filtr"}, r"invalid value for option publish.transforms\[0\].type: expected one of filter"),
        ({}, r"invalid value for option publish.transforms\[0\].type"),
        ({"type": "drop", "wen": {}}, r"unknown option publish.transforms\[0\].wen.*Did you mean when"),
        ({"type": "drop", "when": {"condition": "value.a +"}}, r"when.condition: expected"),
        ({"type": "drop", "when": {"topic": "("}}, r"when.topic: expected"),
        ({"type": "rename_topic", "regex": "(", "replacement": "x"}, "regex: expected"),
        ({"type": "rename_topic", "regex": ".*", "replacement": "$x"}, "replacement: expected"),
        ({"type": "fields"}, "has no effect: expected include or exclude or renames"),
        ({"type": "cast", "fields": {"a": "int9"}}, "fields: expected types of int8"),
        ({"type": "timestamp", "field": "a", "to": "string"}, "format is missing"),
        ({"type": "timestamp", "field": "a", "to": "string", "format": "MMMM"}, "format: expected"),
        ({"type": "header_to_value", "fields": ["a"], "headers": ["b", "c"], "operation": "move"}, "as many"),
        ({"type": "hash", "fields": ["a"], "salt": "${env:S}", "algorithm": "none"}, "algorithm: expected"),
    ],
)
def test_wrong_options_are_reported_by_their_path(transform: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read_transforms([transform])


def declared(kind: str, *transforms: dict[str, Any], **publish: Any) -> Connector:
    sources: dict[str, dict[str, Any]] = {
        "mongodb": {"conn_id": "m"},
        "cassandra": {"conn_id": "c", "cdc_raw": "/c"},
    }
    source = {"type": kind, **sources[kind]}
    return Connector.from_dict(
        {"name": "shop", "source": source, "publish": {**publish, "transforms": list(transforms)}}
    )


def test_a_declaration_keeps_its_transforms() -> None:
    made = declared(
        "cassandra",
        {"type": "filter", "condition": "value.op = 'd'", "when": {"topic": "a.*"}},
        {"type": "drop"},
    )
    assert [one.type for one in made.publish.transforms] == ["filter", "drop"]
    assert Connector.from_dict(made.to_dict()) == made


MASK = {"type": "mask", "fields": ["a"]}
LOOK = {"type": "filter", "condition": "value.after.a = 'x'"}


def test_transforms_that_access_fields_of_text_are_refused_with_the_remedy() -> None:
    for envelope in ("document", "cloudevents"):
        with pytest.raises(ConfigurationError, match="values have no fields"):
            declared("mongodb", MASK, envelope=envelope)
        with pytest.raises(ConfigurationError, match="accesses fields of text"):
            declared("mongodb", LOOK, envelope=envelope)
        declared(
            "mongodb",
            {**MASK, "target": "key"},
            {"type": "rename_topic", "regex": "a", "replacement": "b"},
            envelope=envelope,
        )
    with pytest.raises(ConfigurationError, match=r"accesses fields of text.*publish\.unwrap"):
        declared("mongodb", LOOK)
    with pytest.raises(ConfigurationError, match=r"JSON text.*publish\.unwrap"):
        declared("mongodb", {"type": "unwrap"})
    declared("mongodb", {"type": "filter", "condition": "value.op = 'd' and value.after is not null"})
    declared("mongodb", LOOK, unwrap={"enabled": True})
    with pytest.raises(ConfigurationError, match="changes fields, but"):
        declared("cassandra", MASK, envelope="datastax", value="avro")
    declared("cassandra", MASK, envelope="datastax")
    with pytest.raises(ConfigurationError, match="Cassandra's have cells"):
        declared("cassandra", {"type": "unwrap"})


def test_a_tombstone_never_keeps_a_key_that_its_event_has_no_more_unless_configured() -> None:
    key = {"type": "value_to_key", "fields": ["op"]}
    with pytest.raises(ConfigurationError, match="tombstone has no fields for the key"):
        shown(key)
    no_tombstones = {"type": "drop", "when": {"tombstone": True}}
    assert [one[2] for one in shown(no_tombstones, key)] == [{"op": op} for op in "cdud"]
    expected = shown({**key, "when": {"tombstone": False}})
    assert [one[2] for one in expected if one[3] is None] == [{"id": 2}, {"id": 4}]


def test_values_that_are_texts_have_no_fields() -> None:
    text = Envelope(
        [Destination("t", KEY, OPTIONAL_STRING)],
        np.zeros(1, np.int64),
        pa.array([{"id": 1}]),
        pa.array(["{}"]),
        np.zeros(1, np.bool_),
        verbatim=True,
    )
    with pytest.raises(ConfigurationError, match="values that are text"):
        Chain(read_transforms([MASK])).apply([Piece(text, np.zeros(1, np.int64))])
