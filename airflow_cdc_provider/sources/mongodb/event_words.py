"""Events and documents in a few words, for people: which it is, not what it holds."""

from __future__ import annotations

from typing import Final

import bson
from bson import json_util
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

_MOST_SHOWN: Final = 200
_RELAXED: Final = json_util.RELAXED_JSON_OPTIONS
_UNREADABLE: Final = "an event that can't be read"


def in_words(event: bytes) -> str:
    """Say what a change event is: its operation, collection, key and place."""
    try:
        members = RawBSONDocument(event)
        namespace = members.get("ns", {})
        key = members.get("documentKey")
        parts = {
            "operation": members.get("operationType", ""),
            "collection": ".".join(filter(None, (namespace.get("db", ""), namespace.get("coll", "")))),
            "key": "" if key is None else json_util.dumps(bson.decode(key.raw), json_options=_RELAXED),
            "position": "{0.time}:{0.inc}".format(members["clusterTime"]),
        }
    except (BSONError, KeyError, AttributeError, ValueError):  # broken, or a fragment without its head
        return _UNREADABLE
    return _joined(parts)


def row_in_words(collection: str, document: bytes) -> str:
    """Say which document a snapshot has read."""
    try:
        key = json_util.dumps({"_id": bson.decode(document)["_id"]}, json_options=_RELAXED)
    except (BSONError, KeyError, ValueError):
        return _UNREADABLE
    return _joined({"operation": "read", "collection": collection, "key": key})


def _joined(parts: dict[str, str]) -> str:
    return ", ".join(f"{name}: {text[:_MOST_SHOWN]}" for name, text in parts.items() if text)
