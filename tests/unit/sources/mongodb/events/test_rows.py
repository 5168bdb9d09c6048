"""Rows of mirrors of MongoDB as events, without Spark."""

from __future__ import annotations

import json
from typing import Any

import bson
import pyarrow as pa
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.mongodb.events.rows import MongodbRows

SECOND = 1_700_000_000
VERSION = SECOND.to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(4)
NOW_NS = 1_800_000_000_000_000_000


def built(rows: pa.RecordBatch, *, as_text: bool = False, **publish: Any) -> list[tuple[Any, Any]]:
    connector = Connector.from_dict({"name": "p", "source": {"type": "mongodb"}, "publish": publish})
    events = MongodbRows(connector, "db.c", as_text=as_text)
    assert events.columns == (("document",) if as_text else ())
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


def test_documents_that_are_stored_as_text_are_published_like_those_stored_as_bson() -> None:
    rows = batch(["u", "d"], [{"_id": "a", "v": 1}, {"_id": "b"}])
    text = pa.array(['{"_id": "a", "v": {"$numberInt": "1"}}', '{"_id": "b"}'])
    as_text = rows.set_column(3, "state", pa.nulls(2, pa.binary())).append_column("document", text)
    assert built(as_text, as_text=True) == built(rows)


def test_choices_of_events_hold_for_rows_of_mirrors() -> None:
    rows = batch(["c", "u", "d"], [{"_id": n, "v": n, "w": 1} for n in range(3)])
    unwrapped = built(rows, unwrap={"enabled": True}, mongodb={"exclude_fields": ["db.c.w"]})
    assert [value for _, value in unwrapped[:2]] == [{"_id": 0, "v": 0}, {"_id": 1, "v": 1}]
    assert [key for key, _ in built(rows, tombstones=False, skipped_operations=["c"])] == ["1", "2"]


def test_empty_input_gives_no_events_and_broken_rows_are_reported() -> None:
    assert built(batch([], [])) == []
    with pytest.raises(CorruptInput, match=r"db\.c at 6b"):
        built(batch(["c"], [b"broken"]))
