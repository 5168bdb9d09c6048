"""A second reading of documents, by the driver's decoder, to verify events that this package's kernels wrote.

It decides above all whether an object in an event is a document or the Extended JSON of a value: both have
the same text if a document has names such as ``$date``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

_RAW: Final[CodecOptions[Any]] = CodecOptions(
    RawBSONDocument,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)
_WRAPPERS: Final[Mapping[type, tuple[str, ...]]] = {
    type(None): ("$undefined",),
    str: ("$symbol",),
    Code: ("$code",),
    int: ("$numberInt",),
    Int64: ("$numberLong",),
    float: ("$numberDouble",),
    Decimal128: ("$numberDecimal",),
    ObjectId: ("$oid",),
    DatetimeMS: ("$date",),
    Timestamp: ("$timestamp",),
    Regex: ("$regex", "$regularExpression"),
    DBRef: ("$ref", "$dbPointer"),
    MinKey: ("$minKey",),
    MaxKey: ("$maxKey",),
}
"""First names of the Extended JSON of values, in all of its forms; of any other type ``$binary``."""
_BARE: Final[Mapping[type, type]] = {Int64: int}
"""Types that JSON reads as another one, if they have no wrapper."""
_READ_BACK: Final = (str, int, Int64, float, ObjectId)


def shows(document: bytes, text: str) -> bool:
    """Return whether Extended JSON, in any of its forms, is that of a document."""
    return _shows(RawBSONDocument(document, _RAW), json.loads(text))


def _shows(value: Any, shown: Any) -> bool:
    if isinstance(value, Mapping):
        same = isinstance(shown, dict) and list(value) == list(shown)
        return same and all(_shows(value[name], shown[name]) for name in shown)
    if isinstance(value, list):
        return isinstance(shown, list) and len(value) == len(shown) and all(map(_shows, value, shown))
    kind = type(value)
    if not isinstance(shown, dict):
        return type(shown) is _BARE.get(kind, kind) and _equal(value, shown)
    name, inner = next(iter(shown.items()), ("", None))
    known = name in _WRAPPERS.get(kind, ("$binary",))
    return known and (kind not in _READ_BACK or _equal(value, kind(inner)))


def _equal(value: Any, shown: Any) -> bool:
    """Compare plain values: NaN equals itself, and text with bytes that are not UTF-8 any other."""
    return repr(value) == repr(shown) or value == shown or (isinstance(value, str) and "\ufffd" in value)
