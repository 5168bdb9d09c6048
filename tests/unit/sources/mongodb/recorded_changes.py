"""Recorded change events of MongoDB, and the records that are read from them."""

from __future__ import annotations

import gzip
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
from bson import DatetimeMS, Timestamp

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import EventSlice
from airflow_cdc_provider.sources.mongodb.reader import read_slice
from airflow_cdc_provider.sources.mongodb.selection import Selection

RAW = Path(__file__).parents[3] / "fixtures" / "mongodb" / "raw"
SHOP = Selection((r"shop\..*", r"shop2\..*"))


def recorded(name: str) -> bytes:
    return gzip.decompress((RAW / f"{name}.bson.gz").read_bytes())


def records(
    *events: bytes, selects: Any = SHOP, strict: bool = False, first_index: int = 0
) -> pa.RecordBatch:
    reader = pickle.loads(pickle.dumps(partial(read_slice, selects=selects, strict=strict)))
    batch = reader(EventSlice(b"".join(events), first_index, 1_700_000_000_000_000))
    batch.validate(full=True)
    assert batch.schema == CHANGE_SCHEMA
    return batch


def event(operation: str = "insert", **members: Any) -> bytes:
    values: dict[str, Any] = {
        "_id": {"_data": "82"},
        "operationType": operation,
        "clusterTime": Timestamp(10, 1),
        "wallTime": DatetimeMS(1_700_000_000_123),
        "ns": {"db": "shop", "coll": "a.b"},
        "documentKey": {"_id": 1},
        "fullDocument": {"_id": 1, "x": 2},
    }
    values.update(members)
    return bson.encode({name: value for name, value in values.items() if value is not ...})
