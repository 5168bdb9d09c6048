"""From messages to mirrors, without a broker: what each kind of event does to a row."""

from __future__ import annotations

import base64
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.changes.column_names import clashing_column
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.debezium.converters import TextConverter
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.states import spellings
from tests.conftest import ROOT
from tests.unit.sources.debezium.debezium_messages import (
    PLACEHOLDER,
    Table,
    column,
    event,
    feed_of,
    framed,
    rows,
)

FIXTURES = ROOT / "tests" / "fixtures"
ID = column("id", "int32")
NAME = column("name", "string")


def key(number: int) -> dict[str, int]:
    return {"id": number}


def test_rows_follow_creates_updates_reads_and_deletes() -> None:
    table = Table()
    table.take(
        (key(1), event("c", None, {"id": 1, "name": "a"})),
        (key(2), event("r", None, {"id": 2, "name": "b"})),
        (key(1), event("u", {"id": 1, "name": "a"}, {"id": 1, "name": "c"})),
    )
    shown = table.take((key(2), event("d", {"id": 2, "name": "b"}, None)), (key(2), None))
    assert rows(shown) == {1: {"name": "c"}}
    assert table.kinds == {"change": 5, "schema": 1}


def test_a_tombstone_alone_deletes_and_after_a_delete_changes_nothing() -> None:
    table = Table()
    table.take((key(1), event("c", None, {"id": 1})), (key(2), event("c", None, {"id": 2})))
    assert rows(table.take((key(1), None))) == {2: {}}
    shown = table.take((key(2), event("d", {"id": 2})), (key(2), None), (key(2), event("c", None, {"id": 2})))
    assert rows(shown) == {2: {}}


def test_the_same_messages_again_change_nothing() -> None:
    pairs = [
        (key(1), event("c", None, {"id": 1, "name": "a"})),
        (key(1), event("u", None, {"id": 1, "name": PLACEHOLDER})),
        (key(1), event("d", {"id": 1}, None)),
        (key(1), event("c", None, {"id": 1, "name": "z"})),
    ]
    table = Table()
    first = rows(table.take(*pairs))
    assert rows(table.merge(table.records[0])) == first == {1: {"name": "z"}}
    # As Debezium sends them again after a restart: with new offsets.
    assert rows(table.take(*pairs)) == first


def test_a_key_is_one_with_a_schema_and_without() -> None:
    table = Table()
    schema = {"type": "struct", "fields": [ID], "optional": False, "name": "server.shop.orders.Key"}
    table.take((key(1), event("c", None, {"id": 1, "name": "é"})))
    shown = table.take((b'{"schema": ' + json.dumps(schema).encode() + b', "payload": {"id": 1}}', None))
    assert rows(shown) == {}


def test_an_update_of_the_primary_key_moves_the_row() -> None:
    table = Table()
    table.take((key(1), event("c", None, {"id": 1, "name": "a"})))
    shown = table.take(
        (key(1), event("d", {"id": 1, "name": "a"}, None)),
        (key(1), None),
        (key(9), event("c", None, {"id": 9, "name": "a"})),
    )
    assert rows(shown) == {9: {"name": "a"}}


def test_values_that_an_event_does_not_have_stay_as_they_were() -> None:
    raw = base64.b64encode(PLACEHOLDER.encode()).decode()
    digits = list(PLACEHOLDER.encode())
    table = Table()
    table.take(
        (key(1), event("c", None, {"id": 1, "t": "long", "b": "AQI=", "l": [1], "n": 1})),
        (key(1), event("u", None, {"id": 1, "t": PLACEHOLDER, "b": "AwQ=", "l": digits, "n": 2})),
    )
    shown = table.take((key(1), event("u", None, {"id": 1, "t": PLACEHOLDER, "b": raw, "l": digits, "n": 3})))
    assert rows(shown) == {1: {"t": "long", "b": "AwQ=", "l": "[1]", "n": 3}}


ARRAYS: dict[str, Any] = {
    "bytes": [base64.b64encode(PLACEHOLDER.encode()).decode()],
    "texts": [PLACEHOLDER],
    "doubles": [float(byte) for byte in PLACEHOLDER.encode()],
    "booleans": [True] * len(PLACEHOLDER),
    "decimals": [base64.b64encode(bytes([byte])).decode() for byte in PLACEHOLDER.encode()],
}
ARRAYS["variable_decimals"] = [{"scale": 0, "value": one} for one in ARRAYS["decimals"]]
MAPS: dict[str, Any] = {
    "map": {PLACEHOLDER: PLACEHOLDER},
    "map_as_text": f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}',
}


@pytest.mark.parametrize("form", [*ARRAYS, *MAPS])
def test_unavailable_values_are_detected_in_every_form_of_postgresqls_connector(form: str) -> None:
    table = Table()
    table.take((key(1), event("c", None, {"id": 1, "v": "old"})))
    shown = table.take((key(1), event("u", None, {"id": 1, "v": {**ARRAYS, **MAPS}[form]})))
    assert rows(shown) == {1: {"v": "old"}}


def test_where_nothing_else_is_known_of_a_row_a_value_that_is_not_there_is_null() -> None:
    table = Table()
    first = table.take((key(1), event("u", None, {"id": 1, "name": PLACEHOLDER, "n": 2})))
    assert rows(first) == {1: {"n": 2}}
    later = table.take((key(1), event("u", None, {"id": 1, "name": "a", "n": PLACEHOLDER})))
    assert rows(later) == {1: {"name": "a", "n": 2}}


def test_a_truncate_ends_what_was_before_it() -> None:
    table = Table()
    table.take((key(1), event("c", None, {"id": 1})), (key(2), event("c", None, {"id": 2})))
    shown = table.take((None, event("t")), (key(3), event("c", None, {"id": 3})))
    assert rows(shown) == {3: {}}
    assert rows(table.merge(table.records[0])) == {3: {}}
    assert rows(table.take((None, event("t")))) == {}


def test_after_a_truncate_partitions_that_came_later_count() -> None:
    table = Table()
    table.take((None, event("t")), (key(1), event("c", None, {"id": 1, "n": 1})))
    later = feed_of("server.shop.orders", partition=1, epoch=1, is_only=False)
    shown = table.take((key(1), event("u", None, {"id": 1, "n": 2})), feed=later)
    assert rows(shown) == {1: {"n": 2}}


def test_a_truncate_among_several_partitions_is_quarantined() -> None:
    table = Table(feed=feed_of("server.shop.orders", is_only=False))
    shown = table.take((key(1), event("c", None, {"id": 1})), (None, event("t")))
    assert rows(shown) == {1: {}}
    assert table.kinds["quarantine"] == 1


def test_a_message_that_is_no_event_is_quarantined_with_its_position() -> None:
    table = Table()
    good = event("c", None, {"id": 1})
    table.take(
        (key(1), good),
        (key(2), b"\x00\x00\x00\x00\x01avro"),
        (b"{", good),
        (key(3), {"some": "thing"}),
        (key(4), b'"text"'),
        (key(5), framed(good, [])["schema"] and {"schema": {"type": "nonsense"}, "payload": good}),
        (key(6), event("x", None, {"id": 6})),
        (None, good),
    )
    quarantined = [row for row in table.records[0].to_pylist() if row["kind"] == "quarantine"]
    found = [(row["reason"].partition(":")[0], row["position"][-1]) for row in quarantined]
    assert found == [
        ("MALFORMED", 1),
        ("MALFORMED", 2),
        ("NO-ENVELOPE", 3),
        ("MALFORMED", 4),
        ("BAD-SCHEMA", 5),
    ]
    assert "topic server.shop.orders, partition 0, offset 1" in quarantined[0]["reason"]
    assert quarantined[0]["payload"] == b"\x00\x00\x00\x00\x01avro"
    assert [reason.partition(":")[0] for reason in table.reasons] == ["NO-ENVELOPE", "NO-KEY"]


def test_a_strict_source_stops_at_the_first_of_them() -> None:
    with pytest.raises(CorruptInput, match="offset 1"):
        Table(feed=feed_of("server.shop.orders", strict=True)).take(
            (key(1), event("c", None, {"id": 1})), (key(2), b"rubbish")
        )


DDL = {"source": {}, "databaseName": "shop", "ddl": "drop table x", "ts_ms": 1, "tableChanges": []}
OF_NO_ROW = [
    ({"serverName": "server"}, {"ts_ms": 1}),
    ({"serverName": "server"}, {"vgtid": "[]", "ts_ms": 1}),
    ({"id": "1"}, {"status": "END", "id": "1", "event_count": 2, "data_collections": None, "ts_ms": 1}),
    ({"databaseName": "shop"}, DDL),
    ({"prefix": "p"}, {"op": "m", "ts_ms": 1, "source": {}, "message": {"prefix": "p", "content": ""}}),
    (None, None),
]


@pytest.mark.parametrize("unwrapped", [False, True])
def test_messages_without_a_row_are_skipped_and_counted(unwrapped: bool) -> None:
    feed = feed_of("server", selects=lambda name: name == "topics.server", unwrapped=unwrapped)
    table = Table(feed=feed, form=Form(unwrapped, spellings(PLACEHOLDER)))
    row = {"id": 1} if unwrapped else event("c", None, {"id": 1})
    assert rows(table.take((key(1), row), *OF_NO_ROW)) == {1: {}}
    assert {why: count for (_, why), count in table.skipped.items()} == {
        "heartbeat": 2,
        "transaction": 1,
        "schema_change": 1,
        "message": 1,
        "tombstone": 1,
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"connector": "mysql", "db": "shop", "table": "orders"}, "shop.orders"),
        ({"connector": "postgresql", "db": "d", "schema": "public", "table": "orders"}, "public.orders"),
        ({"connector": "sqlserver", "db": "d", "schema": "dbo", "table": "orders"}, "d.dbo.orders"),
        ({"connector": "informix", "db": "d", "schema": "shop", "table": "orders"}, "d.shop.orders"),
        ({"connector": "mongodb", "db": "shop", "collection": "orders"}, "shop.orders"),
        ({"connector": "vitess", "db": "", "keyspace": "shop", "table": "orders"}, "shop.orders"),
    ],
)
def test_an_event_names_its_table(source: dict[str, Any], name: str) -> None:
    table = Table(feed=feed_of("routed", selects=lambda table: table != "shop.other"))
    feed = feed_of("routed", selects=lambda table: table != "shop.other")
    object.__setattr__(feed, "table", "")
    object.__setattr__(table.feed, "table", name)
    other = {"connector": "mysql", "db": "shop", "table": "other"}
    table.take(
        (key(1), event("c", None, {"id": 1}) | {"source": source}),
        (key(2), event("c", None, {"id": 2}) | {"source": other}),
        (key(1), None),
        (key(3), event("c", None, {"id": 3}) | {"source": {}}),
        feed=feed,
    )
    records = [row for row in table.records[0].to_pylist() if row["kind"] == "change"]
    assert [row["source_table"] for row in records] == [name]
    assert dict(table.skipped) == {
        ("routed/0", "unselected"): 1,
        ("routed/0", "tombstone"): 1,
    }
    assert table.kinds["quarantine"] == 1


def test_a_schema_gives_columns_their_types_and_a_new_one_adds_and_widens_them() -> None:
    table = Table()
    first = [ID, NAME, column("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2")]
    table.take((key(1), framed(event("c", None, {"id": 1, "name": "a", "price": "AfQ="}), first)))
    second = [column("id", "int64"), column("at", "int64", "io.debezium.time.MicroTimestamp"), NAME]
    shown = table.take((key(2), framed(event("c", None, {"id": 2**40, "at": 5, "name": "b"}), second)))
    assert shown.schema.names == ["id", "at", "name", "price", "_rest"]
    assert shown.schema.field("id").type == pa.int64()
    assert rows(shown)[1] == {"name": "a", "price": Decimal("5.00")}
    assert rows(shown)[2**40]["name"] == "b"


def test_a_column_that_changes_its_type_is_rewritten() -> None:
    table = Table()
    table.take((key(1), framed(event("c", None, {"id": 1, "v": "12"}), [ID, column("v", "string")])))
    table.take((key(2), framed(event("c", None, {"id": 2, "v": "x"}), [ID, column("v", "string")])))
    shown = table.take((key(3), framed(event("c", None, {"id": 3, "v": 7}), [ID, column("v", "int32")])))
    assert table.codec is not None
    assert table.codec.drift.replaced == {"v"}
    assert table.codec.rows_to_rewrite == "true"
    assert rows(shown) == {1: {"v": 12}, 2: {"_rest": '{"v":"x"}'}, 3: {"v": 7}}


def test_rows_without_schema_get_columns_by_their_values() -> None:
    table = Table()
    table.take(
        (key(1), event("c", None, {"id": 1, "b": True, "s": "x", "o": {"a": [1]}, "f": 1.5, "z": None}))
    )
    shown = table.take(
        (key(2), event("c", None, {"id": 2, "b": "no", "s": "y", "f": 2, "big": 2**40, "new": 1}))
    )
    types = {one.name: one.type for one in shown.schema}
    assert types["b"] == pa.bool_()
    assert types["big"] == pa.int64()
    assert "z" not in types
    assert rows(shown) == {
        1: {"b": True, "s": "x", "o": '{"a":[1]}', "f": 1.5},
        2: {"s": "y", "f": 2.0, "big": 2**40, "new": 1, "_rest": '{"b":"no"}'},
    }


def test_a_schema_takes_over_columns_that_were_inferred() -> None:
    table = Table()
    table.take((key(1), event("c", None, {"id": 1, "at": 1_000_000, "note": "n"})))
    fields = [ID, column("at", "int64", "io.debezium.time.MicroTimestamp")]
    shown = table.take((key(2), framed(event("c", None, {"id": 2, "at": 2_000_000}), fields)))
    assert pa.types.is_timestamp(shown.schema.field("at").type)
    assert {number: row["at"].second for number, row in rows(shown).items()} == {1: 1, 2: 2}
    assert rows(shown)[1]["note"] == "n"


def test_unwrapped_rows_put_themselves() -> None:
    table = Table(feed=feed_of("server.shop.orders", unwrapped=True), form=Form(True, spellings(PLACEHOLDER)))
    table.take(
        (key(1), {"id": 1, "name": "a", "__deleted": "false", "__op": "c"}),
        (key(2), {"id": 2, "name": "b", "__op": "r"}),
        (key(3), {"id": 3, "name": "c", "__op": "c"}),
        (key(4), {"id": 4, "name": "d"}),
    )
    shown = table.take(
        (key(2), {"id": 2, "name": "b", "__deleted": "true"}),
        (key(3), {"id": 3, "__op": "d"}),
        (key(4), None),
    )
    assert rows(shown) == {1: {"name": "a"}}
    assert shown.schema.names == ["id", "name", "_rest"]


def test_rows_with_columns_that_events_of_no_row_have_are_rows() -> None:
    table = Table(feed=feed_of("server.shop.jobs", unwrapped=True), form=Form(True, spellings(PLACEHOLDER)))
    jobs: list[dict[str, Any]] = [
        {"id": 1, "status": "new", "event_count": 2},
        {"id": 2, "ts_ms": 3},
        {"id": 3, "ddl": "x", "databaseName": "shop"},
        {"id": 4, "op": "m", "message": "hello", "source": "web"},
        {"id": 5, "op": "c", "after": "midnight", "source": "web"},
    ]
    shown = table.take(*((key(job["id"]), job) for job in jobs), ({"ts_ms": 9}, {"id": 6, "ts_ms": 9}))
    assert set(rows(shown)) == {1, 2, 3, 4, 5, 6}
    assert not table.skipped


def test_envelopes_among_unwrapped_rows_are_quarantined() -> None:
    table = Table(feed=feed_of("server.shop.orders", unwrapped=True), form=Form(True, spellings(PLACEHOLDER)))
    assert rows(table.take((key(1), {"id": 1}), (key(2), event("c", None, {"id": 2})))) == {1: {}}
    quarantined = [row["reason"] for row in table.records[0].to_pylist() if row["kind"] == "quarantine"]
    assert [reason.partition(":")[0] for reason in quarantined] == ["ENVELOPE"]
    other = Table(feed=feed_of("server.shop.orders", unwrapped=True, takes_envelopes=True), form=table.form)
    assert other.take((key(1), event("c", None, {"id": 2}))).num_rows == 1, "a comparison unwraps them"


@pytest.mark.parametrize("nothing", [None, b"null", b'{"schema":null,"payload":null}'])
def test_rows_without_a_key_are_reported_and_never_merged(nothing: bytes | None) -> None:
    table = Table()
    shown = table.take(
        (key(1), event("c", None, {"id": 1})),
        (nothing, event("c", None, {"id": 2})),
        (nothing, event("c", None, {"id": 3})),
    )
    assert rows(shown) == {1: {}}
    assert [reason.partition(":")[0] for reason in table.reasons] == ["NO-KEY", "NO-KEY"]


def test_names_that_no_text_of_a_lake_can_have_stop_no_table() -> None:
    table = Table()
    shown = table.take(
        (key(1), b'{"op":"c","after":{"id":1,"\\ud800":"x"}}'),
        (key(2), framed(event("c", None, {"id": 2, "": "y"}), [ID, column("", "string")])),
    )
    assert rows(shown) == {1: {"_rest": r'{"\ud800":"x"}'}, 2: {"_": "y"}}


@pytest.mark.parametrize("half", ["\ud800", "x\udc00", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_in_the_rest_as_it_is(half: str) -> None:
    table, fields = Table(), [ID, column("v", "string")]
    shown = table.take(
        (key(1), framed(event("c", None, {"id": 1, "v": half}), fields)),
        (key(2), framed(event("c", None, {"id": 2, "v": "\U0001f600"}), fields)),
        (key(3), event("c", None, {"id": 3, "v": half})),
    )
    found = rows(shown)
    assert found[2] == {"v": "\U0001f600"}
    assert [json.loads(found[number].pop("_rest")) for number in (1, 3)] == [{"v": half}] * 2
    assert (found[1], found[3]) == ({}, {})


def test_columns_that_engines_cannot_distinguish_have_other_names() -> None:
    inside = {"type": "struct", "optional": True, "field": "a", "fields": [column("b", "int32")]}
    table = Table()
    table.take((key(1), framed(event("c", None, {"id": 1, "name": "x"}), [ID, NAME])))
    fields = [ID, column("NAME", "string"), column("a.b", "int32"), inside, NAME, column("_pos", "int32")]
    row = {"id": 2, "NAME": "X", "a.b": 3, "a": {"b": 4}, "name": "y", "_pos": 5}
    shown = table.take((key(2), framed(event("c", None, row), fields)))
    assert shown.schema.names == ["id", "NAME__2", "a.b", "a__2", "name", "_pos__2", "_rest"]
    assert rows(shown) == {
        1: {"name": "x"},
        2: {"NAME__2": "X", "a.b": 3, "a__2": {"b": 4}, "name": "y", "_pos__2": 5},
    }
    # The same names without a schema: values are in the same columns, others get columns by the same rule.
    shown = table.take((key(3), event("c", None, {"id": 3, "NAME": "Z", "a.b": 6, "Id": 7, "_rest": 8})))
    assert rows(shown)[3] == {"NAME__2": "Z", "a.b": 6, "Id__2": 7, "_rest__2": 8}


NAMES = st.lists(st.text("aAbB1_.-\u0131`", max_size=3), min_size=1, max_size=4, unique=True)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), NAMES), max_size=5))
def test_names_stay_whether_rows_have_schemas_or_not(batches: list[tuple[bool, bool, list[str]]]) -> None:
    """The memory is that of a merge, or of one that was killed before its commit."""
    table, before = Table(), dict[str, str]()
    for number, (has_schema, is_killed, names) in enumerate(batches):
        memory = table.memory
        row = {"id": number, **{name: index for index, name in enumerate(names)}}
        message = event("c", None, row)
        fields = [ID, *(column(name, "int32") for name in names)]
        shown = table.take((key(number), framed(message, fields) if has_schema else message))
        assert table.codec is not None
        now = {one.name: one.column for one in table.codec.inferred.fields} | table.codec.rows.lake_names
        assert {name: now[name] for name in before} == before
        assert clashing_column(shown.schema) == ""
        assert rows(shown)[number] == {now[name]: index for index, name in enumerate(names)}
        before = now
        if is_killed:
            table.memory = table.codec.reserve(memory) or memory


def test_structs_whose_fields_engines_cannot_distinguish_are_json() -> None:
    inside = [column("A", "int32"), column("a", "int32")]
    first = [ID, {"type": "struct", "optional": True, "field": "both", "fields": inside}]
    first.append({"type": "struct", "optional": True, "field": "one", "fields": inside[:1]})
    second = [ID, {"type": "struct", "optional": True, "field": "one", "fields": inside[1:]}]
    table = Table()
    table.take(
        (key(1), framed(event("c", None, {"id": 1, "both": {"A": 1, "a": 2}, "one": {"A": 3}}), first))
    )
    shown = table.take((key(2), framed(event("c", None, {"id": 2, "one": {"a": 4}}), second)))
    assert rows(shown)[1]["both"] == '{"A":1,"a":2}'
    assert [one.name for one in shown.schema.field("one").type] == ["a"]
    assert rows(shown)[2]["one"] == {"a": 4}
    assert rows(shown)[1]["_rest"] == '{"one":{"A":3}}'


def test_text_keys_are_taken_as_they_are() -> None:
    table = Table(feed=feed_of("server.shop.orders", key_converter=TextConverter()))
    shown = table.take(
        (b"k-1", event("c", None, {"id": 1})), (b"k-2", event("c", None, {"id": 2})), (b"k-1", None)
    )
    assert rows(shown) == {2: {}}


def fixture(path: Path, *, framed: bool) -> list[tuple[str, bytes | None, bytes | None]]:
    found = []
    with gzip.open(path) as lines:
        for line in lines:
            one = json.loads(line)
            sides = (one["key"], one["value"])
            raw = [None if s is None else (json.dumps(s) if framed else s).encode() for s in sides]
            found.append((one["topic"], raw[0], raw[1]))
    return found


def replayed(messages: list[tuple[str, bytes | None, bytes | None]], topic: str) -> dict[bytes, Any]:
    """Replay a topic in Python: the row after each key's last event."""
    found: dict[bytes, Any] = {}
    for name, raw_key, raw in messages:
        if name != topic or raw_key is None:
            continue
        body = None if raw is None else json.loads(raw)
        if body is not None and set(body) == {"schema", "payload"}:
            body = body["payload"]
        after = None if body is None else body["after"]
        after = json.loads(after) if isinstance(after, str) else after
        if after is not None:
            found[raw_key] = after
        elif body is None or body["op"] == "d":
            found.pop(raw_key, None)
    return found


@pytest.mark.parametrize(
    "topic", ["cdc.shop.item", "cdc.shop.evolve", "cdc.shop.orders", "cdc.shop.types_num"]
)
def test_events_of_vitess_connector_give_its_rows(topic: str) -> None:
    messages = fixture(FIXTURES / "vitess" / "events" / "default.events.jsonl.gz", framed=True)
    own = [(raw_key, value) for name, raw_key, value in messages if name == topic]
    table = Table(feed=feed_of(topic))
    shown = table.take(*own[: len(own) // 2])
    shown = table.take(*own[len(own) // 2 :])
    assert not table.reasons
    expected = {json.dumps(row, sort_keys=True) for row in replayed(messages, topic).values()}
    assert shown.num_rows == len(expected) > 0
    assert table.codec is not None and table.known is not None
    states = table.known.filter(pa.compute.equal(table.known["op"], 0)).combine_chunks().to_batches()[0]
    again = {json.dumps(json.loads(one), sort_keys=True) for one in table.codec.to_json(states)}
    assert again == expected


def test_documents_of_mongodbs_connector_are_rows() -> None:
    messages = fixture(FIXTURES / "mongodb" / "events" / "default.jsonl.gz", framed=False)
    table = Table(feed=feed_of("default.shop.flat"))
    shown = table.take(*[(k, v) for name, k, v in messages if name == "default.shop.flat"])
    expected = replayed(messages, "default.shop.flat")
    assert shown.num_rows == len(expected) > 0
    assert table.codec is not None and table.known is not None
    states = table.known.filter(pa.compute.equal(table.known["op"], 0)).combine_chunks().to_batches()[0]
    again = {json.dumps(json.loads(one), sort_keys=True) for one in table.codec.to_json(states)}
    assert again == {json.dumps(one, sort_keys=True) for one in expected.values()}
