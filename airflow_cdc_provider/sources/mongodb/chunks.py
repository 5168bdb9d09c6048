"""Chunks of incremental snapshots: a collection in the order of ``_id``, up to the largest one at the start.

If that is above 4 KiB, they go up to the end of the collection: it is stored with each offset.

A chunk is read at one exact cluster time, that of the position up to which the stream is committed (read
concern ``snapshot`` with ``atClusterTime``, MongoDB 5.0). So each of its documents contains all changes that
were committed before it and none after: the stream's own position is the watermark, nothing is written to the
source, and no window of keys is kept in memory.

If the server can't read at that time any more (it keeps 300 s, ``minSnapshotHistoryWindowInSeconds``), or not
at all (capped collections, a newly created collection), the chunk is read at the current time. It may then
contain changes that the stream has not delivered yet; the stream delivers them after it, with the same or a
later content, and they win. Either way no change before a chunk is newer than the chunk.

Boundaries are found by walking the ``_id`` index, as in snapshots (:mod:`.key_ranges`), so the order is the
index's own: one BSON type after the other, strings by bytes or by the collection's collation.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.contract import ChunkPlan, ChunkRequest
from airflow_cdc_provider.sources.mongodb.connection import cluster_time
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import as_timestamp
from airflow_cdc_provider.sources.mongodb.key_ranges import (
    SnapshotRange,
    first_id,
    history_expired,
    parse_filter,
)
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, MOST_BYTES, StreamPosition, token_time

_MOST_PARTS: Final = 4096
"""Maximum number of ranges of one plan."""
_MOST_BOUNDS: Final = 64 << 20
_MOST_SHOWN: Final = 200
_WHOLE: Final = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""Decodes dates outside of Python's range too."""


def maximum_key(client: MongoClient, table: str, where: str) -> str:
    """Return the largest ``_id`` of a collection for :func:`plan_chunks`; empty for an empty collection.

    Raises:
        ConfigurationError: The filter is invalid, or the collection can't be read.
    """
    parse_filter(where)
    found = first_id(client, table, {"sort": {"_id": -1}, "readConcern": {"level": "majority"}})
    if len(found) > MOST_BYTES:
        found = bson.encode({"_id": MaxKey()})
    return base64.b64encode(found).decode()


def plan_chunks(client: MongoClient, request: ChunkRequest) -> ChunkPlan:
    """Plan the next chunks of a collection; its filter is Extended JSON.

    Raises:
        CdcError: The server is unreachable, or refuses the reads.
    """
    now = cluster_time(client)
    at = min(_passed(StreamPosition.from_offset(request.position)), now.time << 32 | now.inc)
    last = base64.b64decode(request.maximum)
    lower = base64.b64decode(request.start)
    ranges: list[SnapshotRange] = []
    done, size = False, 0
    while not done and len(ranges) < min(request.parts, _MOST_PARTS) and size < _MOST_BOUNDS:
        upper = _bound(client, request.table, at, lower, last, request.chunks * request.chunk_size)
        done, size = not upper, size + len(upper)
        ranges.append(
            SnapshotRange(
                request.table,
                # Unique among all ranges that are read at the same cluster time.
                (request.number * _MOST_PARTS + len(ranges)) & 0xFFFF_FFFF,
                lower,
                upper or last,
                request.where,
                at,
                at=at,
                last=last if done else b"",
                batch=request.chunk_size,
            )
        )
        lower = upper
    return ChunkPlan(tuple(ranges), base64.b64encode(lower).decode(), done)


def _passed(position: StreamPosition) -> int:
    """Return the last cluster time of which a position has passed an event, so that no later one is read.

    The token of a position between events precedes all events of its own cluster time, which may still
    follow. A position without token has passed all events of its time.
    """
    time = token_time(bson.decode(position.token)) if position.token else 0
    return time - 1 if time and position.index == LAST_INDEX else position.time


def _bound(client: MongoClient, table: str, at: int, lower: bytes, last: bytes, rows: int) -> bytes:
    """Return the upper bound of a range with this many documents; empty if it includes the last one."""
    if lower == last:
        return b""
    below: dict[str, Any] = {"max": RawBSONDocument(last)}
    if lower:
        below["min"] = RawBSONDocument(lower)
    if upper := _ids_at(client, table, at, {**below, "skip": rows}):
        return upper
    # The last document does not fit into the range if ``rows`` documents precede it.
    return last if _ids_at(client, table, at, {**below, "skip": rows - 1}) else b""


def _ids_at(client: MongoClient, table: str, at: int, options: Mapping[str, Any]) -> bytes:
    """Search at a cluster time, or at the current time if the server can't."""
    exactly = {"level": "snapshot", "atClusterTime": as_timestamp(at)}
    try:
        return first_id(client, table, {**options, "readConcern": exactly})
    except (ConfigurationError, TransientError) as error:
        if not history_expired(error):
            raise
        return first_id(client, table, {**options, "readConcern": {"level": "majority"}})


def format_key(key: str) -> str:
    """Return a chunk's boundary as Extended JSON; empty for the start or end of the collection."""
    if not key:
        return ""
    return json_util.dumps(bson.decode(base64.b64decode(key), _WHOLE)["_id"])[:_MOST_SHOWN]
