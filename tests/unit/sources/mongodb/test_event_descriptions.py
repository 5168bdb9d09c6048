"""Descriptions of events identify them, and never fail, whatever the events contain."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Timestamp

from airflow_cdc_provider.sources.mongodb.event_descriptions import describe_event, describe_row

EVENT: dict[str, Any] = {
    "_id": {"_data": "82"},
    "operationType": "update",
    "clusterTime": Timestamp(1_700_000_000, 4),
    "ns": {"db": "shop", "coll": "orders"},
    "documentKey": {"region": "eu", "_id": 7},
    "fullDocument": {"_id": 7, "card": "4111"},
}


def test_an_event_is_described_by_operation_collection_key_and_position() -> None:
    assert describe_event(bson.encode(EVENT)) == (
        'operation: update, collection: shop.orders, key: {"region": "eu", "_id": 7}, position: 1700000000:4'
    )
    dropped = {**EVENT, "operationType": "dropDatabase", "ns": {"db": "shop"}}
    dropped.pop("documentKey")
    assert describe_event(bson.encode(dropped)) == (
        "operation: dropDatabase, collection: shop, position: 1700000000:4"
    )


@pytest.mark.parametrize("key", [7, "x" * 5000, {"a": [1, {"b": 2}]}, b"\0\1", None, bson.Decimal128("1.0")])
def test_a_row_is_described_by_its_key_and_long_keys_are_truncated(key: Any) -> None:
    description = describe_row("shop.orders", bson.encode({"_id": key, "card": "4111"}))
    assert description.startswith('operation: read, collection: shop.orders, key: {"_id": ')
    assert len(description) < 300
    assert "4111" not in description


def test_what_can_not_be_read_is_said_to_be_so() -> None:
    far = bson.encode({"_id": 1, "d": bson.DatetimeMS(2**60)})
    assert '"_id": 1' in describe_row("shop.orders", far)
    not_utf8 = b"\x17\x00\x00\x00\x02_id\x00\x03\x00\x00\x00\xff\xfe\x00\x10a\x00\x01\x00\x00\x00\x00"
    assert describe_row("s.c", len(not_utf8).to_bytes(4, "little") + not_utf8[4:]).startswith(
        "operation: read"
    )
    for broken in (b"", b"\x05", bson.encode(EVENT)[:-9]):
        assert describe_event(broken) == "(unreadable)"
        assert describe_row("s.c", broken) == "operation: read, collection: s.c, key: (unreadable)"
    assert describe_event(bson.encode({"splitEvent": {"fragment": 2, "of": 2}})) == "(unreadable)"
