from __future__ import annotations

from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import DatetimeMS, Int64, Timestamp

from airflow_cdc_provider.sources.mongodb.events.decode import (
    EVENT_SCHEMA,
    decode_snapshot,
    decode_stream,
    split_documents,
)
from tests.unit.sources.mongodb.documents import raw_document, raw_element, raw_string


def change(**members: Any) -> bytes:
    event = {
        "_id": {"_data": "82"},
        "operationType": "update",
        "clusterTime": Timestamp(1_700_000_000, 3),
        "wallTime": DatetimeMS(1_700_000_000_123),
        "ns": {"db": "shop", "coll": "a.b"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1, "x": 2},
        "fullDocumentBeforeChange": {"_id": 1, "x": 1},
        "updateDescription": {"updatedFields": {"x": 2}, "removedFields": [], "truncatedArrays": []},
    }
    event.update(members)
    return bson.encode({name: value for name, value in event.items() if value is not ...})


def decoded(*events: bytes, full_document: Any = "lookup", pre_images: bool = True) -> list[dict[str, Any]]:
    found = decode_stream(pa.array(events, pa.binary()), full_document=full_document, pre_images=pre_images)
    assert found.undecodable == ()
    assert found.events.schema == EVENT_SCHEMA
    return found.events.to_pylist()


def test_keys_that_are_not_utf8_are_written_as_java_decodes_them_and_counted_by_collection() -> None:
    texts = [b"\xff", b"\xfe", b"\xef\xbf\xbd", b"x", b"\xe2\x82"]
    rows = [raw_document(raw_element(0x02, "_id", raw_string(text))) for text in texts]
    snapshot = decode_snapshot(pa.array(rows, pa.binary()), "shop", "a")
    assert snapshot.events["id"].to_pylist() == ['"\ufffd"'] * 3 + ['"x"', '"\ufffd"']
    assert snapshot.inexact_keys == {"shop.a": 3}
    events = [
        raw_document(
            raw_element(0x02, "operationType", raw_string(b"insert")),
            raw_element(3, "ns", bson.encode({"db": "shop", "coll": collection})),
            raw_element(3, "documentKey", row),
            raw_element(3, "fullDocument", row),
        )
        for row, collection in zip(rows, "abaaa", strict=True)
    ]
    stream = decode_stream(pa.array(events, pa.binary()), full_document="lookup", pre_images=False)
    assert stream.events["id"].to_pylist() == snapshot.events["id"].to_pylist()
    assert stream.inexact_keys == {"shop.a": 2, "shop.b": 1}


def test_an_update_has_its_parts() -> None:
    assert decoded(change()) == [
        {
            "row": 0,
            "database": "shop",
            "collection": "a.b",
            "op": "u",
            "id": "1",
            "before": '{"_id": 1,"x": 1}',
            "after": '{"_id": 1,"x": 2}',
            "update_description": {
                "removedFields": None,
                "updatedFields": '{"x": 2}',
                "truncatedArrays": None,
            },
            "source_ms": 1_700_000_000_123,
            "ord": 3,
            "lsid": None,
            "txn_number": None,
            "wall_ms": 1_700_000_000_123,
        }
    ]


@pytest.mark.covers("MDB-EVT-12")
def test_removed_and_truncated_paths_are_lists() -> None:
    description = {
        "updatedFields": {},
        "removedFields": ["a.b", "ü"],
        "truncatedArrays": [{"field": "t", "newSize": 3}, {"field": "u.v", "newSize": 0}],
    }
    (plain, event) = decoded(change(), change(updateDescription=description))
    assert plain["update_description"]["removedFields"] is None
    assert event["update_description"] == {
        "removedFields": ["a.b", "ü"],
        "updatedFields": "{}",
        "truncatedArrays": [{"field": "t", "size": 3}, {"field": "u.v", "size": 0}],
    }


@pytest.mark.covers("MDB-EVT-11", "MDB-CAP-02")
@pytest.mark.parametrize(
    ("operation", "op", "after"),
    [("insert", "c", True), ("replace", "u", True), ("update", "u", False), ("delete", "d", True)],
)
def test_mode_none_leaves_out_only_what_an_update_looked_up(operation: str, op: str, after: bool) -> None:
    (event,) = decoded(change(operationType=operation), full_document="none", pre_images=False)
    assert event["op"] == op
    assert event["before"] is None
    assert (event["after"] is not None) == after
    assert (event["update_description"] is not None) == (operation == "update")


@pytest.mark.covers("MDB-CAP-06", "MDB-CAP-14")
def test_a_looked_up_document_that_was_deleted_is_null() -> None:
    (event,) = decoded(change(fullDocument=None, fullDocumentBeforeChange=None))
    assert event["before"] is None
    assert event["after"] is None


@pytest.mark.covers("MDB-SRC-04", "MDB-XD-02")
def test_without_wall_clock_the_second_of_the_cluster_time_counts() -> None:
    missing, zero = decoded(change(wallTime=...), change(wallTime=DatetimeMS(0)))
    for event in (missing, zero):
        assert event["source_ms"] == 1_700_000_000_000
        assert event["wall_ms"] is None


def test_a_session_and_its_number_are_kept_each_by_itself() -> None:
    number = {"txnNumber": Int64(7)}
    found = decoded(change(lsid={"id": 1}), change(**number), change(lsid={"id": 1}, **number))
    assert [(event["lsid"], event["txn_number"]) for event in found] == [
        ('{"id": 1}', None),
        (None, 7),
        ('{"id": 1}', 7),
    ]


@pytest.mark.covers("MDB-EVT-20")
@pytest.mark.parametrize("identity", [1, 1.0, Int64(2**40), "é", {"b": 1, "a": [1.0]}, None, DatetimeMS(-1)])
def test_all_events_of_a_document_have_one_key(identity: Any) -> None:
    operations = ("insert", "update", "replace", "delete")
    keys = {
        e["id"]
        for e in decoded(*(change(operationType=o, documentKey={"_id": identity}) for o in operations))
    }
    read = decode_snapshot(pa.array([bson.encode({"_id": identity, "x": 1})], pa.binary()), "shop", "a.b")
    assert keys == {read.events["id"][0].as_py()}


def test_events_that_change_no_document_give_no_row() -> None:
    events = decoded(change(operationType="drop"), change(), change(operationType="invalidate", ns=...))
    assert [event["row"] for event in events] == [1]


def test_broken_events_are_reported_and_the_others_are_decoded() -> None:
    broken = bytearray(change())
    broken[4] = 0x77  # no BSON type
    events = [change(), bytes(broken), change(ns=...), b"", change()]
    found = decode_stream(pa.array(events, pa.binary()), full_document="lookup", pre_images=True)
    assert found.events["row"].to_pylist() == [0, 4]
    assert found.undecodable == (1, 2, 3)
    assert len(found.reasons) == 3


def test_a_sliced_array_is_read_at_its_offset() -> None:
    events = pa.array([change(documentKey={"_id": i}) for i in range(5)], pa.binary()).slice(3)
    found = decode_stream(events, full_document="lookup", pre_images=True)
    assert found.events["id"].to_pylist() == ["3", "4"]


@pytest.mark.covers("MDB-SRC-07")
def test_snapshot_documents_are_reads_without_position() -> None:
    documents = [bson.encode({"_id": "k", "a": 1}), b"broken", bson.encode({"a": 1})]
    found = decode_snapshot(pa.array(documents, pa.binary()), "shop", "c")
    assert found.undecodable == (1,)
    first, second = found.events.to_pylist()
    assert (first["op"], first["id"], first["after"], first["ord"]) == ("r", '"k"', '{"_id": "k","a": 1}', -1)
    assert (second["id"], second["source_ms"]) == ("null", None)


def spans(data: bytes, *, change_events: bool = True) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    starts, ends, lost, lost_ends = split_documents(
        np.frombuffer(data, np.uint8), change_events=change_events
    )
    return list(zip(starts.tolist(), ends.tolist(), strict=True)), list(
        zip(lost.tolist(), lost_ends.tolist(), strict=True)
    )


def test_reading_continues_after_a_broken_document() -> None:
    one = change()
    size = len(one)
    for damaged in (0, 1, 5, 40, size - 1):
        data = bytearray(one * 4)
        data[size + damaged] ^= 0x55
        kept, lost = spans(bytes(data))
        if not lost:  # a changed name or text is still BSON
            assert len(kept) == 4
            continue
        assert kept == [(0, size), (2 * size, 3 * size), (3 * size, 4 * size)]
        assert lost == [(size, 2 * size)]


def test_an_event_between_broken_sections_is_kept() -> None:
    one = change()
    kept, lost = spans(one + b"\xff" + one + b"\xff\xff" + one + b"\xff")
    assert [end - start for start, end in kept] == [len(one)] * 3
    assert [end - start for start, end in lost] == [1, 2, 1]


@pytest.mark.parametrize("change_events", [False, True])
def test_a_document_inside_a_broken_one_is_not_taken_for_one_of_the_row(*, change_events: bool) -> None:
    inner = {"inner": {"a": 1}}
    data = bytearray(bson.encode({"_id": 1, "last": inner}) + bson.encode({"_id": 2}))
    data[4] = 0x77
    kept, lost = spans(bytes(data), change_events=change_events)
    assert [data[start:end] for start, end in kept] == [bson.encode({"_id": 2})]
    assert len(lost) == 1


def test_a_truncated_end_is_one_broken_section() -> None:
    one = change()
    kept, lost = spans(one + one[:-9])
    assert kept == [(0, len(one))]
    assert lost == [(len(one), 2 * len(one) - 9)]


def test_nothing_is_no_document() -> None:
    assert spans(b"") == ([], [])
    assert spans(b"\x05") == ([], [(0, 1)])
