"""Signals as documents: read from the inserts of a collection, and the marks that snapshots write to it.

A signal is an inserted document of exactly three members, read by their position: its id (``_id``, of any
type; an ObjectId as its hexadecimal digits, other types but strings as Extended JSON), its type, its data (a
document or JSON text). Marks are ``{_id: "<chunk>-open", type: "snapshot-window-open", payload: ""}`` and the
same with ``close``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import bson
from bson import ObjectId, json_util
from bson.errors import BSONError
from pymongo import MongoClient, errors

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals.signal import WINDOW_MARKS, Arrived, NoSignal, signal_from
from airflow_cdc_provider.sources.mongodb.server_errors import UNAUTHORIZED, translated

_CHANNEL: Final = "source"
_MEMBERS: Final = 3


def signals_of(events: Iterable[bytes]) -> list[Arrived]:
    """Read what change events of a signal collection ask for; only inserts do.

    Args:
        events: The events' BSON, in the order of the stream.
    """
    arrived = []
    for event in events:
        try:
            change = bson.decode(event)
        except BSONError:  # a broken event is set apart by the capture, and told there
            continue
        if change.get("operationType") == "insert" and (found := _signal(change["fullDocument"])):
            arrived.append(found)
    return arrived


def _signal(document: dict[str, Any]) -> Arrived | None:
    members = list(document.values())
    identity = _text(members[0])
    if len(members) != _MEMBERS:
        return NoSignal(identity, _CHANNEL, f"it has {len(members)} members: {', '.join(document)}"[:200])
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


def write_marks(
    client: MongoClient,
    collection: str,
    chunks: Sequence[str],
    strategy: str,
    *,
    opening: bool,
) -> None:
    """Write or remove the marks of chunks.

    Args:
        client: The deployment.
        collection: ``database.collection`` of signals.
        chunks: Names of the chunks.
        strategy: ``insert_insert`` or ``insert_delete``: whether the end of a chunk is a document of its own,
            or the end of the one that opened it.
        opening: Whether the chunks begin.

    Raises:
        ConfigurationError: The user may not write there.
        TransientError: The server doesn't answer.
    """
    database, _, name = collection.partition(".")
    marked = client[database][name]
    try:
        with translated(f"marks can't be written to {collection}"):
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
            f"the user may not write marks of snapshots to {collection}",
            expected=f"the actions insert and remove on {collection}, as snapshot.incremental.watermarks: "
            f"{strategy} asks for",
            remedy="grant them, or set watermarks: none, which needs no right to write",
        ) from error
