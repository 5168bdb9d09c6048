"""Reads by a cursor field: which of them are full reads, and at which value the others start."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bson import json_util
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import ChunkRequest
from airflow_cdc_provider.sources.mongodb.change_stream.stages import check_copy_stages
from airflow_cdc_provider.sources.mongodb.cursor_reads import CursorField
from airflow_cdc_provider.sources.mongodb.options import MongodbCopy, MongodbOptions
from airflow_cdc_provider.sources.mongodb.source import MongodbSource

NOW = 1_800_000_000.0
BY_SEQ = CursorField("seq")


def after_full(value: object, cursor: CursorField = BY_SEQ, at: float = NOW) -> str:
    return cursor.next_state(value, "", at, full=True)


@pytest.mark.parametrize(
    ("value", "next_value"),
    [
        (7, 7),
        (7, 2.5),
        (Int64(2**60), Decimal128("1")),
        ("a", "b"),
        (DatetimeMS(-5), DatetimeMS(2**52)),
        (DatetimeMS(2**59), DatetimeMS(2**60)),
        (Timestamp(5, 1), Timestamp(6, 0)),
        (ObjectId("60" * 12), ObjectId("61" * 12)),
    ],
)
def test_the_next_read_continues_at_the_last_value(value: Any, next_value: Any) -> None:
    left = after_full(value)
    query = BY_SEQ.query_since(left, next_value, NOW)
    assert query is not None
    found = query["seq"]["$gte"]
    assert type(found) is type(value) or isinstance(value, int)
    assert (int(found), int(value)) if isinstance(value, DatetimeMS) else (found == value)
    text = json_util.dumps(query, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert json.loads(text)["seq"]["$gte"] == json.loads(left)["value"], "the plan keeps it as it is"


@pytest.mark.parametrize(
    ("before", "value"),
    [
        (None, 1),
        (1, "1"),
        ("1", 1),
        (DatetimeMS(1), Timestamp(1, 1)),
        (1, None),
        (1, True),
        (1, [3]),
        (1, {"a": 1}),
        (1, float("nan")),
        (1, Decimal128("NaN")),
        (None, None),
    ],
)
def test_what_has_no_order_to_rely_on_is_read_in_full(before: Any, value: Any) -> None:
    assert BY_SEQ.query_since(after_full(before), value, NOW) is None


def test_another_field_is_another_order() -> None:
    assert CursorField("at").query_since(after_full(1), 1, NOW) is None


def test_readings_in_full_come_again_after_their_time() -> None:
    daily = CursorField("seq", full_seconds=86_400)
    left = after_full(1, daily)
    left = daily.next_state(2, left, NOW + 3600, full=False)
    assert daily.query_since(left, 3, NOW + 86_399) == {"seq": {"$gte": 2}}
    assert daily.query_since(left, 3, NOW + 86_400) is None
    assert BY_SEQ.query_since(after_full(1), 3, NOW * 2) is not None, "never again, unless it is said"


@pytest.mark.parametrize(
    ("value", "earlier"),
    [
        (DatetimeMS(90_000), DatetimeMS(60_000)),
        (Timestamp(90, 4), Timestamp(60, 0)),
        (Timestamp(9, 4), Timestamp(0, 0)),
        (ObjectId(f"{1_000_030:08x}" + "ab" * 8), ObjectId(f"{1_000_000:08x}" + "00" * 8)),
        (DatetimeMS(-(2**63) + 5), DatetimeMS(-(2**63))),
        (ObjectId(bytes(3) + b"\1" + b"ab" * 4), ObjectId(bytes(12))),
        (ObjectId(b"\xff" * 12), ObjectId((2**32 - 31).to_bytes(4, "big") + bytes(8))),
        (90, 90),
        ("90", "90"),
    ],
)
def test_an_overlap_reads_times_further_back(value: Any, earlier: Any) -> None:
    overlapping = CursorField("seq", overlap_seconds=30)
    query = overlapping.query_since(after_full(value), value, NOW)
    assert query == {"seq": {"$gte": earlier}}


def test_a_cursor_is_of_a_table_in_batches() -> None:
    source = {"type": "mongodb", "batch": [r"shop\.v.*"], "batch_cursors": {"shop.views": "at"}}
    Connector.from_dict({"name": "shop", "source": source})
    with pytest.raises(ConfigurationError, match=r"source\.batch_cursors .* found shop\.orders"):
        Connector.from_dict({"name": "shop", "source": {**source, "batch_cursors": {"shop.orders": "at"}}})


@pytest.mark.covers("MDB-XM-02")
@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"$group": {"_id": "$a"}}, "one of $match"),
        ({"$out": "elsewhere"}, "one of $match"),
        ({"$merge": "elsewhere"}, "one of $match"),
        ({"$unwind": "$lines"}, "one of $match"),
        ({"$unset": ["_id"]}, "keep _id"),
        ({"$project": {"_id": 0, "a": 1}}, "keep _id"),
        ({"$set": {"_id": 1}}, "keep _id"),
        ({"$match": {}, "$sort": {}}, "one operator each"),
        ({"$match": {"at": {1, 2}}}, "values that JSON has"),
    ],
)
def test_stages_of_copies_that_lose_documents_identity_are_refused(stage: Any, message: str) -> None:
    assert message in check_copy_stages([stage])
    with pytest.raises(ConfigurationError, match=r"source\.copy\.pipeline"):
        Connector.from_dict({"name": "shop", "source": {"type": "mongodb", "copy": {"pipeline": [stage]}}})


def test_stages_of_copies_do_not_go_with_updates_without_documents() -> None:
    source = {"type": "mongodb", "copy": {"pipeline": '[{"$unset": "card"}]'}}
    assert check_copy_stages([{"$unset": "card"}, {"$project": {"a": 1}}, {"$sort": {"a": 1}}]) == ""
    Connector.from_dict({"name": "shop", "source": source})
    with pytest.raises(ConfigurationError, match=r"source\.copy\.pipeline changes"):
        Connector.from_dict({"name": "shop", "source": {**source, "full_document": "none"}})


def test_an_incremental_snapshot_is_refused_with_stages_of_copies() -> None:
    options = MongodbOptions(copy=MongodbCopy(pipeline=({"$unset": "card"},)))
    source = MongodbSource(options, {"host": "nowhere"}, lambda _: True)
    request = ChunkRequest(
        table="shop.orders",
        where="",
        start="",
        maximum="",
        position={"stream": {"v": 1, "t": 1, "i": 1, "token": ""}},
        parts=1,
        chunks=1,
        chunk_size=10,
        number=0,
    )
    with pytest.raises(ConfigurationError, match=r"source\.copy\.pipeline: expected .* blocking"):
        source.plan_chunks(request)
