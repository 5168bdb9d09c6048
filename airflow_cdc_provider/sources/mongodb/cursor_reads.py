"""Incremental reads by a cursor field: documents of a view, time series or collection since the last value.

After a full read, each read selects the documents whose field is at least the greatest value at the time when
the previous read was planned. That value is queried before the read begins, so documents that are written in
between are read now and again in the next read; so are all documents with exactly this value, as more of them
may have been written. A document that is read twice has the same ``_id``, so the mirror has it once.

Such a read doesn't detect deletions, nor documents whose value is less than the last one: a value that was
written late (``overlap_seconds`` reads further back), no value at all, or a value of another type (``$gte``
compares within a type). The next full read covers all of these. If the greatest value has another type than
the last one, or a type without a reliable order, the read is a full one.

The state that is stored between reads, as JSON::

    {"field": "at", "value": Extended JSON, "full_at": s}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern

from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated
from airflow_cdc_provider.sources.mongodb.position import MOST_BYTES

_NUMBERS: Final = (int, float, Int64, Decimal128)
_ORDERED: Final = (DatetimeMS, Timestamp, ObjectId, str)
_OPTIONS: Final[CodecOptions[Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_JSON: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS
)


@dataclass(frozen=True)
class CursorField:
    """The cursor field of a table.

    Args:
        field: The field, dotted if nested.
        overlap_seconds: How far before the last value a read starts, for times and ObjectIds.
        full_seconds: Interval between the starts of full reads; 0: only the first.
    """

    field: str
    overlap_seconds: float = 0.0
    full_seconds: float = 0.0

    def query_since(self, state: str, value: object, now: float) -> Mapping[str, Any] | None:
        """Return the query of the next read; None for a full read.

        Args:
            state: The state that the previous read stored, empty for none.
            value: The current greatest value, from :func:`greatest`.
            now: Epoch seconds.
        """
        previous = json.loads(state) if state else {}
        if previous.get("field") != self.field or not is_ordered(value):
            return None
        if self.full_seconds and now - previous["full_at"] >= self.full_seconds:
            return None
        last = json_util.loads(json.dumps(previous["value"]), json_options=_JSON)
        if not is_ordered(last) or _bracket(last) != _bracket(value):
            return None
        return {self.field: {"$gte": _earlier(last, self.overlap_seconds)}}

    def next_state(self, value: object, state: str, now: float, *, full: bool) -> str:
        """Return the state for the next read, empty if that must be a full read.

        Args:
            value: The greatest value before this read.
            state: The state that the previous read stored.
            now: Epoch seconds at which this read was planned.
            full: Whether this is a full read.
        """
        if not is_ordered(value):
            return ""
        full_at = now if full else json.loads(state)["full_at"]
        extended_json = json.loads(json_util.dumps(value, json_options=_JSON))
        found = json.dumps({"field": self.field, "value": extended_json, "full_at": full_at}, sort_keys=True)
        return found if len(found) <= MOST_BYTES else ""  # it is stored with each offset


def greatest(client: MongoClient, table: str, field: str, where: Mapping[str, Any]) -> object:
    """Return the current greatest value of a field by the server's order; None if there is none.

    Args:
        client: The client.
        table: ``database.collection``.
        field: The field.
        where: Query that selects the documents.

    Raises:
        CdcError: The server is unreachable, or refuses the read.
    """
    database, _, name = table.partition(".")
    concern = ReadConcern("majority")
    collection = client[database].get_collection(name, codec_options=_OPTIONS, read_concern=concern)
    stages: list[Mapping[str, Any]] = [
        *([{"$match": where}] if where else []),
        {"$sort": {field: -1}},
        {"$limit": 1},
        {"$project": {"_id": 0, "value": f"${field}"}},
    ]
    with translated(f"the greatest {field} of {table} can't be read"):
        found = list(collection.aggregate(stages, allowDiskUse=True))
    return found[0].get("value") if found else None


def is_ordered(value: object) -> bool:
    """Return whether reads can continue from a value: a number, text, time or ObjectId."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, float) and math.isnan(value):  # NaN has no order
        return False
    if isinstance(value, Decimal128) and value.to_decimal().is_nan():
        return False
    return isinstance(value, (*_NUMBERS, *_ORDERED))


def _bracket(value: object) -> type:
    """Return a representative of the types that compare with each other."""
    if isinstance(value, _NUMBERS):
        return float
    return next(kind for kind in _ORDERED if isinstance(value, kind))


def _earlier(value: Any, seconds: float) -> Any:
    """Return a time some seconds before a value; other values unchanged."""
    if not seconds:
        return value
    if isinstance(value, DatetimeMS):
        return DatetimeMS(max(int(value) - round(seconds * 1000), -(1 << 63)))
    if isinstance(value, Timestamp):
        return Timestamp(max(value.time - round(seconds), 0), 0)
    if isinstance(value, ObjectId):
        created = int.from_bytes(value.binary[:4], "big")
        return ObjectId(max(created - round(seconds), 0).to_bytes(4, "big") + bytes(8))
    return value
