"""Reads signals from the inserts of a collection, and writes the watermarks of snapshots to it.

A signal is an inserted document of exactly three members, identified by their order: its id (``_id``, of any
type; an ObjectId as its hexadecimal digits, other types except strings as Extended JSON), its type, its data
(a document or JSON text). Watermarks are ``{_id: "<chunk>-open", type: "snapshot-window-open", payload: ""}``
and the same with ``close``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import bson
from bson import CodecOptions, ObjectId, json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from pymongo import MongoClient, errors

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals.signal import WINDOW_MARKS, MalformedSignal, ReceivedSignal, signal_from
from airflow_cdc_provider.sources.mongodb.driver.server_errors import UNAUTHORIZED, translated

_CHANNEL: Final = "source"
_MEMBERS: Final = 3
_ANY_DATE: Final = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_AUTO)


def parse_signals(events: Iterable[bytes]) -> list[ReceivedSignal]:
    """Read signals from change events of a signal collection; only inserts are signals.

    Args:
        events: The events' BSON, in the order of the stream.

    Returns:
        The signals, and inserts that are not valid signals.
    """
    arrived: list[ReceivedSignal] = []
    for event in events:
        try:
            change = bson.decode(event, _ANY_DATE)
            is_insert = change.get("operationType") == "insert"
            found = _signal(change["fullDocument"]) if is_insert else None
        except BSONError:  # the capture quarantines and reports broken events
            continue
        except Exception as error:  # noqa: BLE001 - the next run would meet the same document again
            identity = hashlib.sha256(event).hexdigest()[:16]
            found = MalformedSignal(identity, _CHANNEL, f"it can't be read: {type(error).__name__}: {error}")
        if found:
            arrived.append(found)
    return arrived


def _signal(document: dict[str, Any]) -> ReceivedSignal | None:
    members = list(document.values())
    identity = _text(members[0])
    if len(members) != _MEMBERS:
        return MalformedSignal(
            identity, _CHANNEL, f"it has {len(members)} members: {', '.join(document)}"[:200]
        )
    _, kind, data = members
    if kind in WINDOW_MARKS:
        return None
    if isinstance(data, dict):
        data = json.loads(json_util.dumps(data, json_options=json_util.RELAXED_JSON_OPTIONS))
    return signal_from(identity, kind, data, _CHANNEL)


def _text(identity: object) -> str:
    if isinstance(identity, str):
        return identity
    return str(identity) if isinstance(identity, ObjectId) else json_util.dumps(identity)


def write_watermarks(
    client: MongoClient, collection: str, chunks: Sequence[str], strategy: str, *, opening: bool
) -> None:
    """Write or remove the watermarks of chunks.

    Args:
        client: A client of the deployment.
        collection: ``database.collection`` of signals.
        chunks: Names of the chunks.
        strategy: ``insert_insert`` or ``insert_delete``: whether a chunk's end is marked by a second
            document, or by deleting the first one.
        opening: Whether to mark the start of the chunks; otherwise their end.

    Raises:
        ConfigurationError: The user may not write to the collection.
        TransientError: The server doesn't respond.
    """
    database, _, name = collection.partition(".")
    marked = client[database][name]
    try:
        with translated(f"watermarks can't be written to {collection}"):
            if opening or strategy == "insert_insert":
                side = "open" if opening else "close"
                marked.insert_many(
                    [
                        {"_id": f"{chunk}-{side}", "type": f"snapshot-window-{side}", "payload": ""}
                        for chunk in chunks
                    ]
                )
            else:
                marked.delete_many({"_id": {"$in": [f"{chunk}-open" for chunk in chunks]}})
    except ConfigurationError as error:
        cause = error.__cause__
        if not isinstance(cause, errors.OperationFailure) or cause.code != UNAUTHORIZED:
            raise
        raise ConfigurationError(
            f"the user may not write watermarks of snapshots to {collection}",
            expected=f"the actions insert and remove on {collection}, as snapshot.incremental.watermarks: "
            f"{strategy} requires",
            remedy="grant them, or set watermarks: none, which requires no write privileges",
        ) from error
