"""Readings by a cursor field: of a view, time series or collection only what is at or beyond the last value.

A reading in full is followed by readings of documents whose field has the greatest value that there was when
the one before was planned, or a greater one. That value is asked for before the reading begins, so whatever
comes in between is read at once and once more the next time; so are all documents with just this value, for
more of them may have come. What is read twice is the same document under the same ``_id``, and the mirror has
it once.

Such a reading can't see that a document is gone, nor one whose value is less than the last one's: a value
that was written late (an overlap of time reads further back), no value at all, or one of another type (a
query by ``$gte`` compares within a type). All of these the next reading in full brings. When the greatest
value is of another type than the last one's, or of one that has no order to rely on, the reading is in full.

What is kept between readings, as JSON::

    {"field": "at", "value": Extended JSON, "full_at": s}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
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

from airflow_cdc_provider.sources.mongodb.server_errors import translated

_NUMBERS: Final = (int, float, Int64, Decimal128)
_ORDERED: Final = (DatetimeMS, Timestamp, ObjectId, str)
_OPTIONS: Final[CodecOptions[Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_JSON: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS
)


@dataclass(frozen=True)
class CursorField:
    """How a table is read by a cursor.

    Args:
        field: The field, dotted where it is nested.
        overlap_seconds: How far before the last value a reading begins, for times and ObjectIds.
        full_seconds: How long after the begin of one reading in full the next is due; 0: never again.
    """

    field: str
    overlap_seconds: float = 0.0
    full_seconds: float = 0.0

    def query_since(self, reached: str, value: object, now: float) -> Mapping[str, Any] | None:
        """Return the query of the next reading; None if it is to be in full.

        Args:
            reached: What the reading before left, empty for none.
            value: The greatest value that there is now, from :func:`greatest`.
            now: Epoch seconds.
        """
        before = json.loads(reached) if reached else {}
        if before.get("field") != self.field or not is_ordered(value):
            return None
        if self.full_seconds and now - before["full_at"] >= self.full_seconds:
            return None
        last = json_util.loads(json.dumps(before["value"]), json_options=_JSON)
        if not is_ordered(last) or _bracket(last) != _bracket(value):
            return None
        return {self.field: {"$gte": _earlier(last, self.overlap_seconds)}}

    def reached(self, value: object, before: str, now: float, *, full: bool) -> str:
        """Return what the next reading goes on from, empty if that must be in full.

        Args:
            value: The greatest value before this reading.
            before: What the reading before left.
            now: Epoch seconds at which this one was planned.
            full: Whether this one is in full.
        """
        if not is_ordered(value):
            return ""
        full_at = now if full else json.loads(before)["full_at"]
        shown = json.loads(json_util.dumps(value, json_options=_JSON))
        return json.dumps({"field": self.field, "value": shown, "full_at": full_at}, sort_keys=True)


def greatest(client: MongoClient, table: str, field: str, where: Mapping[str, Any]) -> object:
    """Return the greatest value that a field has now, by the server's order; None if there is none.

    Args:
        client: The connection.
        table: ``database.collection``.
        field: The field.
        where: Only of documents that this query selects.
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
    """Tell whether a value is one that readings can go on from: a number, text, time or ObjectId."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, float) and math.isnan(value):  # nothing compares with it
        return False
    if isinstance(value, Decimal128) and value.to_decimal().is_nan():
        return False
    return isinstance(value, (*_NUMBERS, *_ORDERED))


def _bracket(value: object) -> type:
    """Return what values compare with each other."""
    if isinstance(value, _NUMBERS):
        return float
    return next(kind for kind in _ORDERED if isinstance(value, kind))


def _earlier(value: Any, seconds: float) -> Any:
    """Return a time some seconds before a value; anything else as it is."""
    if not seconds:
        return value
    if isinstance(value, DatetimeMS):
        return DatetimeMS(int(value) - round(seconds * 1000))
    if isinstance(value, Timestamp):
        return Timestamp(max(value.time - round(seconds), 0), 0)
    if isinstance(value, ObjectId):
        return ObjectId.from_datetime(value.generation_time - timedelta(seconds=seconds))
    return value
