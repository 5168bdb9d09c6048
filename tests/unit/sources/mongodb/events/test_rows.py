"""Rows of mirrors of MongoDB as events, without Spark."""

from __future__ import annotations

import json
import re
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, DatetimeMS, Decimal128, ObjectId, Regex, Timestamp, json_util
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.decode import EventForm, decode_snapshot, decode_stream
from airflow_cdc_provider.sources.mongodb.events.rows import MongodbRows
from airflow_cdc_provider.sources.mongodb.events.second_reading import shows
from tests.unit.sources.mongodb.documents import DOCUMENTS, MUTATIONS, READ, mutated

SECOND = 1_700_000_000
VERSION = SECOND.to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(4)
NOW_NS = 1_800_000_000_000_000_000


def declared(**publish: Any) -> Connector:
    return Connector.from_dict({"name": "p", "source": {"type": "mongodb"}, "publish": publish})


def built(rows: pa.RecordBatch, **publish: Any) -> list[tuple[Any, Any]]:
    events = MongodbRows(declared(**publish), "db.c")
    records = events.builder(NOW_NS, None, SkippedRecords(strict=True))(rows)
    assert records.num_rows == 0 or set(records["topic"].to_pylist()) == {"p.db.c"}
    keys, values = records["key"].to_pylist(), records["value"].to_pylist()
    return [(json.loads(k)["id"], json.loads(v) if v else None) for k, v in zip(keys, values, strict=True)]


def batch(ops: list[str], documents: list[Any]) -> pa.RecordBatch:
    states = [d if isinstance(d, bytes) else bson.encode(d) for d in documents]
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array(ops, pa.string()),
            "key": pa.array([b"k"] * len(ops), pa.binary()),
            "version": pa.array([VERSION] * len(ops), pa.binary()),
            "state": pa.array(states, pa.binary()),
        }
    )


def test_rows_are_published_whole_by_their_operation() -> None:
    found = built(batch(["c", "u", "r", "d"], [{"_id": n, "v": n} for n in range(4)]))
    assert [(key, value and value["op"]) for key, value in found] == [
        ("0", "c"),
        ("1", "u"),
        ("2", "r"),
        ("3", "d"),
        ("3", None),
    ]
    for (_, value), n in zip(found[:3], range(3), strict=True):
        assert json.loads(value["after"]) == {"_id": n, "v": n}
        assert (value["before"], value["updateDescription"]) == (None, None)
        assert (value["source"]["ts_ms"], value["source"]["ord"]) == (SECOND * 1000, 3)
    assert [value["source"]["snapshot"] for _, value in found[:4]] == ["false", "false", "true", "false"]
    deleted = found[3][1]
    assert (deleted["after"], deleted["source"]["ord"]) == (None, -1)
    assert deleted["source"]["ts_ms"] == NOW_NS // 1_000_000, "when it went isn't known"


LOOKALIKES: list[dict[str, Any]] = [
    {"price": {"$numberInt": "5"}, "n": 5},
    {"due": {"$date": "tomorrow"}},
    {"due": {"$date": {"$numberLong": "0"}}, "at": DatetimeMS(0)},
    {"schema": {"$id": "x", "$ref": "#/y"}},
    {"s": {"$symbol": "s"}, "u": {"$undefined": True}, "m": {"$minKey": 1}, "c": {"$code": "f()"}},
    {"b": {"$binary": {"base64": "AA==", "subType": "00"}}, "c": Binary(b"\0")},
    {"b": {"$binary": "AA==", "$type": "00"}, "list": [{"$oid": "6" * 24}, ObjectId("6" * 24)]},
    {"r": {"$regularExpression": {"pattern": "a", "options": ""}}, "q": Regex("a")},
    {"nan": {"$numberDouble": "NaN"}, "d": {"$numberDecimal": "1.50"}, "e": Decimal128("1.50")},
]


@pytest.mark.parametrize("json_form", ["legacy", "strict", "relaxed", "extended"])
@pytest.mark.parametrize("document", LOOKALIKES)
def test_documents_that_look_like_extended_json_are_published_as_among_changes(
    document: dict[str, Any], json_form: str
) -> None:
    document = {"_id": 1, **document}
    ((_, row),) = built(batch(["c"], [document]), mongodb={"json": json_form})
    event = bson.encode(
        {
            "_id": {"_data": "82"},
            "operationType": "insert",
            "clusterTime": Timestamp(SECOND, 3),
            "ns": {"db": "db", "coll": "c"},
            "documentKey": {"_id": 1},
            "fullDocument": document,
        }
    )
    form = EventForm(json_form)
    changed = decode_stream(pa.array([event]), full_document="lookup", pre_images=False, form=form).events
    assert row["after"] == changed["after"][0].as_py()
    assert shows(bson.encode(document), row["after"])


def test_a_row_without_an_event_is_reported_alone_with_table_and_key() -> None:
    documents = [{"_id": n, "v": [1, "a"] if n == 1 else [n]} for n in range(3)]
    connector = declared(unwrap={"enabled": True})
    skipped = SkippedRecords(strict=False)
    build = MongodbRows(connector, "db.c").builder(NOW_NS, None, skipped)
    records = build(batch(["c", "u", "c", "c"], [*documents, b"broken"]))
    assert [json.loads(value)["_id"] for value in records["value"].to_pylist()] == [0, 2]
    assert [text.split(":")[0] for text in skipped.undecodable] == ["db.c at 1", "db.c at 6b"]


@given(
    st.lists(st.tuples(DOCUMENTS, st.one_of(st.just([]), MUTATIONS)), min_size=1, max_size=4),
    st.sampled_from(
        [
            {},
            {"envelope": "document"},
            {"envelope": "cloudevents"},
            {"schemas": True},
            *({"unwrap": {"enabled": True, "array_encoding": one}} for one in ("array", "document", "mixed")),
            {"unwrap": {"enabled": True, "flatten": True, "array_encoding": "mixed"}},
            {"mongodb": {"json": "relaxed", "exclude_fields": ["db.c.a"], "rename_fields": ["db.c.b:c"]}},
        ]
    ),
)
def test_a_document_without_an_event_never_stops_others(
    documents: list[tuple[dict[str, Any], list[tuple[int, int]]]], publish: dict[str, Any]
) -> None:
    raw = [mutated(bson.encode({"_id": 1, **one}, codec_options=READ), changes) for one, changes in documents]
    first = bson.encode({"_id": 0, "v": 1})
    skipped = SkippedRecords(strict=False)
    build = MongodbRows(declared(**publish), "db.c").builder(NOW_NS, None, skipped)
    records = build(batch(["c"] * (len(raw) + 1), [first, *raw]))
    assert records.num_rows + len(skipped.undecodable) == len(raw) + 1
    assert records["row"].to_pylist() == sorted(records["row"].to_pylist())
    assert re.search(r'"id":"?0"?}', records["key"][0].as_py()), "of the first document"
    assert all(text.startswith("db.c at ") for text in skipped.undecodable)


def test_events_that_differ_from_the_drivers_reading_of_a_row_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = batch(["r"] * 300, [{"_id": n} for n in range(299)] + [{"_id": 299, "v": {"$numberInt": "5"}}])
    of_rows = MongodbRows(declared(), "db.c")
    assert of_rows.disagreement(rows) == ""

    def typed(documents: pa.Array, *more: Any) -> Any:
        """Read documents as text is read that has lost its types."""
        texts = [json_util.dumps(bson.decode(one)) for one in documents.to_pylist()]
        return decode_snapshot(pa.array([bson.encode(json_util.loads(text)) for text in texts]), *more)

    monkeypatch.setattr(mongodb_events, "decode_snapshot", typed)
    assert of_rows.disagreement(rows) == 'db.c, key 299: {"_id": 299,"v": 5}'
    renamed = declared(mongodb={"rename_fields": ["db.c.v:w"]})
    assert MongodbRows(renamed, "db.c").disagreement(rows) == "", "events have other names"


def test_choices_of_events_hold_for_rows_of_mirrors() -> None:
    rows = batch(["c", "u", "d"], [{"_id": n, "v": n, "w": 1} for n in range(3)])
    unwrapped = built(rows, unwrap={"enabled": True}, mongodb={"exclude_fields": ["db.c.w"]})
    assert [value for _, value in unwrapped[:2]] == [{"_id": 0, "v": 0}, {"_id": 1, "v": 1}]
    assert [key for key, _ in built(rows, tombstones=False, skipped_operations=["c"])] == ["1", "2"]


def test_empty_input_gives_no_events_and_broken_rows_are_reported() -> None:
    assert built(batch([], [])) == []
    with pytest.raises(CorruptInput, match=r"db\.c at 6b"):
        built(batch(["c"], [b"broken"]))
