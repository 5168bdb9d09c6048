"""Short descriptions of events and documents for logs and metrics: their identity, not their content."""

from __future__ import annotations

from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

_MOST_SHOWN: Final = 200
_RELAXED: Final = json_util.RELAXED_JSON_OPTIONS
_UNREADABLE: Final = "(unreadable)"
_WHOLE: Final[dict[str, Any]] = {
    "datetime_conversion": DatetimeConversion.DATETIME_AUTO,
    "unicode_decode_error_handler": "replace",
}
_LAZY: Final[CodecOptions[Any]] = CodecOptions(document_class=RawBSONDocument, **_WHOLE)
_PLAIN: Final[CodecOptions[Any]] = CodecOptions(**_WHOLE)


def describe_event(event: bytes) -> str:
    """Describe a change event by its operation, collection, key and position."""
    try:
        members = RawBSONDocument(event, _LAZY)
        namespace = members.get("ns", {})
        key = members.get("documentKey")
        parts = {
            "operation": members.get("operationType", ""),
            "collection": ".".join(filter(None, (namespace.get("db", ""), namespace.get("coll", "")))),
            "key": "" if key is None else _as_text(key),
            "position": "{0.time}:{0.inc}".format(members["clusterTime"]),
        }
    except (BSONError, KeyError, AttributeError, ValueError):  # broken, or a fragment without its head
        return _UNREADABLE
    return _joined(parts)


def renamed_from(event: bytes) -> str:
    """Return the collection that an event renames."""
    try:
        namespace = RawBSONDocument(event, _LAZY)["ns"]
        return f"{namespace['db']}.{namespace['coll']}"
    except (BSONError, KeyError, TypeError, ValueError):
        return _UNREADABLE


def describe_row(collection: str, document: bytes) -> str:
    """Describe a document that a snapshot has read."""
    try:
        key = _as_text({"_id": RawBSONDocument(document, _LAZY)["_id"]})
    except (BSONError, KeyError, ValueError):
        key = _UNREADABLE
    return _joined({"operation": "read", "collection": collection, "key": key})


def _as_text(value: Any) -> str:
    whole = bson.decode(value.raw if isinstance(value, RawBSONDocument) else bson.encode(value), _PLAIN)
    return json_util.dumps(whole, json_options=_RELAXED)


def _joined(parts: dict[str, str]) -> str:
    return ", ".join(f"{name}: {text[:_MOST_SHOWN]}" for name, text in parts.items() if text)
