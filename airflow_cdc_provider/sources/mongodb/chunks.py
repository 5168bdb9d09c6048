"""Chunks of a collection that is copied beside the stream: ``_id`` by ``_id`` up to the largest at the start.

A chunk is read at one exact cluster time, that of the place up to which the stream is committed (read concern
``snapshot`` with ``atClusterTime``, MongoDB 5.0). So what it shows of a document holds all changes that were
committed before it and none that come after it: the stream's own position is the watermark, nothing is
written to the source, and no window of keys has to be kept in memory.

Where the server can't read at that time any more (it keeps 300 s, ``minSnapshotHistoryWindowInSeconds``), or
not at all (capped collections, a collection that was just made), the chunk is read as it is now. It may then
show changes that the stream is still to tell; they come again after it, with the same or a later content, and
win. Either way nothing newer than what a chunk shows stands before it.

Boundaries are found by walking the ``_id`` index, as snapshots do (:mod:`.snapshot`), so the order is the
index's own: all BSON types after each other, strings by bytes or by the collection's collation.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.base import ChunkPlan, Offset
from airflow_cdc_provider.sources.mongodb.connection import cluster_time
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, token_time
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawCursor, as_timestamp
from airflow_cdc_provider.sources.mongodb.snapshot import SnapshotRange, history_gone, parse_filter

_MOST_PARTS: Final = 4096
"""Of one plan."""
_WHOLE: Final = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""Reads dates also beyond Python's."""


def maximum_key(client: MongoClient, table: str, where: str) -> str:
    """Return the largest ``_id`` of a collection, as :func:`plan_chunks` takes it; empty if it has none.

    Raises:
        ConfigurationError: The filter is wrong, or the collection can't be read.
    """
    parse_filter(where)
    found = _ids(client, table, {"sort": {"_id": -1}, "readConcern": {"level": "majority"}})
    return base64.b64encode(found).decode()


def plan_chunks(
    client: MongoClient,
    table: str,
    where: str,
    *,
    start: str,
    maximum: str,
    position: Offset,
    parts: int,
    chunks: int,
    chunk_size: int,
    number: int,
) -> ChunkPlan:
    """Cut the next chunks off a collection.

    Args:
        client: The deployment.
        table: ``database.collection``.
        where: Filter as Extended JSON, empty for none.
        start: Where they begin, from the plan before; empty for the beginning.
        maximum: From :func:`maximum_key`.
        position: The offset up to which the stream is committed.
        parts: How many ranges.
        chunks: Chunks of each.
        chunk_size: Documents of a chunk, counted before the filter; so many are asked for at a time.
        number: Numbers the plan.
    """
    now = cluster_time(client)
    at = min(_passed(StreamPlace.from_offset(position)), now.time << 32 | now.inc)
    last = base64.b64decode(maximum)
    lower = base64.b64decode(start)
    ranges: list[SnapshotRange] = []
    done = False
    while not done and len(ranges) < min(parts, _MOST_PARTS):
        upper = _bound(client, table, at, lower, last, chunks * chunk_size)
        done = not upper
        ranges.append(
            SnapshotRange(
                table,
                # Of its own among all rows that are read at the same cluster time.
                (number * _MOST_PARTS + len(ranges)) & 0xFFFF_FFFF,
                lower,
                upper or last,
                where,
                at,
                at=at,
                last=last if done else b"",
                batch=chunk_size,
            )
        )
        lower = upper
    return ChunkPlan(tuple(ranges), base64.b64encode(lower).decode(), done)


def _passed(place: StreamPlace) -> int:
    """Return the last cluster time of which a place has passed an event, so that no later one is read.

    The token of a place between events stands before all events of its own cluster time, which is perhaps
    still to come. A place without token has passed all events of its time.
    """
    time = token_time(bson.decode(place.token)) if place.token else 0
    return time - 1 if time and place.index == LAST_INDEX else place.time


def _bound(client: MongoClient, table: str, at: int, lower: bytes, last: bytes, rows: int) -> bytes:
    """Return where a range of so many documents ends; empty if it has the last one."""
    if lower == last:
        return b""
    below: dict[str, Any] = {"max": RawBSONDocument(last)}
    if lower:
        below["min"] = RawBSONDocument(lower)
    if upper := _ids_at(client, table, at, {**below, "skip": rows}):
        return upper
    # The last one would be one too many, if there are so many before it.
    return last if _ids_at(client, table, at, {**below, "skip": rows - 1}) else b""


def _ids_at(client: MongoClient, table: str, at: int, options: Mapping[str, Any]) -> bytes:
    """Search as it was at a cluster time, or as it is now if the server can't."""
    exactly = {"level": "snapshot", "atClusterTime": as_timestamp(at)}
    try:
        return _ids(client, table, {**options, "readConcern": exactly})
    except (ConfigurationError, TransientError) as error:
        if not history_gone(error):
            raise
        return _ids(client, table, {**options, "readConcern": {"level": "majority"}})


def show_key(key: str) -> str:
    """Show where a chunk begins or ends, as Extended JSON; empty for the ends of the collection."""
    if not key:
        return ""
    return json_util.dumps(bson.decode(base64.b64decode(key), _WHOLE)["_id"])


def _ids(client: MongoClient, table: str, options: Mapping[str, Any]) -> bytes:
    """Return the BSON of the first ``{_id}`` that a search by the index gives, empty for none."""
    database, _, collection = table.partition(".")
    command = {
        "find": collection,
        "projection": {"_id": 1},
        "hint": {"_id": 1},
        "limit": 1,
        "singleBatch": True,
        **options,
    }
    cursor = RawCursor(client, database, command, 1, f"{table} can't be cut into chunks")
    batch = cursor.next()
    cursor.close()
    if not len(batch.documents):
        return b""
    return batch.data[batch.documents.starts[0] : batch.documents.ends[0]].tobytes()
