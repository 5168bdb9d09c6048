"""Snapshots: a collection cut into ``_id`` ranges that are read in parallel, as raw batches.

Ranges are bounded by ``min`` and ``max`` on the ``_id`` index, which know the one order over all BSON types;
``$gt`` and ``$lt`` compare within a type only and would pass over the others. The boundaries are every n-th
``_id``, found by walking the index, so a range has its share of the documents whatever the types and gaps.
The first range has no lower bound and the last no upper one: together they hold everything, also what is
inserted meanwhile. (With ``min`` alone the server leaves out an ``_id`` of maxKey, so the last range asks for
that one by itself.)

Each read asks for data no older than the cluster time taken just before it, majority-committed, and gives its
rows that time as version. The read may see later states; those come again as changes, with the same or a
later content and a greater version. Where updates come without documents (``full_document: none``) the read
is of that very cluster time, for what is applied to a document must be just what it lacks. The server keeps
past states for some minutes (``minSnapshotHistoryWindowInSeconds``); a read that takes longer goes on as of a
later time.

A range that is interrupted goes on after its last ``_id``.

Chunks of a snapshot beside the stream are ranges too, read at an exact cluster time where the server can
(:mod:`.chunks`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from bson import json_util
from bson.errors import BSONError
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.sources.base import SnapshotPlan
from airflow_cdc_provider.sources.mongodb.bson import Spans, find_in_all
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    cluster_time,
    pinned_client,
)
from airflow_cdc_provider.sources.mongodb.cursor_life import kept_alive
from airflow_cdc_provider.sources.mongodb.event_words import row_in_words
from airflow_cdc_provider.sources.mongodb.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, ORIGIN, StreamPlace
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawBatch, RawCursor
from airflow_cdc_provider.sources.mongodb.records import snapshot_records
from airflow_cdc_provider.sources.mongodb.server_errors import translated
from airflow_cdc_provider.sources.pauses import pauses

log = logging.getLogger(__name__)

_NO_HISTORY: Final = (72, 239, 246)
"""An option that isn't known, a snapshot that is too old, one that isn't there: read concern ``snapshot``."""
_LARGEST_RANGE: Final = 1_000_000
_SMALLEST_RANGE: Final = 1_000


@dataclass(frozen=True)
class SnapshotRange:
    """One range of a collection's snapshot.

    Args:
        table: ``database.collection``.
        number: Of the range, from 0.
        lower: BSON of ``{_id: first}``, inclusive; empty for none.
        upper: BSON of ``{_id: end}``, exclusive; empty for none.
        where: Filter as Extended JSON, empty for none.
        begun_at: Cluster time of the plan, which each read must have reached.
        at: Cluster time at which it is read, exactly, as long as the server can; 0: as it is then.
        last: BSON of ``{_id: last}``, read as well although it is not below ``upper``; empty for none.
        batch: Documents asked for at a time; 0: as the options say.
    """

    table: str
    number: int
    lower: bytes
    upper: bytes
    where: str
    begun_at: int
    at: int = 0
    last: bytes = b""
    batch: int = 0


def parse_filter(where: str | None) -> Mapping[str, Any]:
    """Read a filter in Extended JSON.

    Raises:
        ConfigurationError: It is no JSON object.
    """
    try:
        query = json_util.loads(where) if where else {}
    except (ValueError, TypeError, BSONError) as error:
        raise ConfigurationError("the snapshot's filter is no Extended JSON", found=str(error)) from error
    if not isinstance(query, dict):
        raise ConfigurationError(
            "the snapshot's filter is wrong", expected='a query such as {"status": "open"}', found=where or ""
        )
    return query


def plan_snapshot(client: MongoClient, table: str, where: str | None, ranges_at_least: int) -> SnapshotPlan:
    """Cut a collection into ranges of equal numbers of documents.

    Raises:
        ConfigurationError: The filter is wrong, or ``table`` is no collection.
    """
    parse_filter(where)
    begun = cluster_time(client)
    database, _, collection = table.partition(".")
    with translated(f"{table} can't be counted"):
        rows = client[database][collection].estimated_document_count()
    ranges = max(min(ranges_at_least, rows // _SMALLEST_RANGE), -(-rows // _LARGEST_RANGE), 1)
    bounds = [b"", *_boundaries(client, database, collection, rows, ranges), b""]
    at = (begun.time << 32) | begun.inc
    return SnapshotPlan(
        table=table,
        ranges=tuple(
            SnapshotRange(table, number, lower, upper, where or "", at)
            for number, (lower, upper) in enumerate(pairwise(bounds))
        ),
        # Behind all events that the reads see, but before the rows of a read at the same cluster time.
        position=StreamPlace(begun.time, begun.inc, LAST_INDEX - 1).position,
        origin=ORIGIN,
        estimated_rows=rows,
    )


def _boundaries(
    client: MongoClient, database: str, collection: str, rows: int, ranges: int
) -> Iterator[bytes]:
    """Give the BSON of every n-th ``{_id}``."""
    step = rows // ranges
    at = b""
    for _ in range(ranges - 1):
        command: dict[str, Any] = {
            "find": collection,
            "projection": {"_id": 1},
            "hint": {"_id": 1},
            "skip": step,
            "limit": 1,
            "singleBatch": True,
        }
        if at:
            command["min"] = RawBSONDocument(at)
        cursor = RawCursor(client, database, command, 1, f"{database}.{collection} can't be cut into ranges")
        batch = cursor.next()
        cursor.close()
        if not len(batch.documents):
            return
        at = batch.data[batch.documents.starts[0] : batch.documents.ends[0]].tobytes()
        yield at


@dataclass(frozen=True)
class _Progress:
    """How far a range has been read: its last document's ``{_id}`` and key, and the documents so far."""

    last: bytes = b""
    key: bytes = b""
    rows: int = 0


def range_reader(values: ConnectionValues, options: MongodbOptions) -> RangeReader:
    """Return what reads ranges. It holds the connection's values; its text doesn't show them."""
    exact = options.full_document == "none"
    return RangeReader(values, options.advanced, options.stream.comment, exact)


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges. Picklable.

    Args:
        values: The connection.
        advanced: Options of the source.
        comment: Begins the comment that names its cursors.
        lost: Called with 1 for each connection that is lost; None for nobody.
    """

    values: ConnectionValues = field(repr=False)
    advanced: MongodbAdvanced
    comment: str
    exact: bool
    lost: Callable[[int], None] | None = field(default=None, repr=False)

    def __call__(self, part: SnapshotRange) -> Iterator[pa.RecordBatch]:
        """Read a range."""
        return _read_range(self, part)

    def counting(self, lost: Callable[[int], None]) -> RangeReader:
        """Return one that tells of the connections that it loses."""
        return replace(self, lost=lost)

    def row_in_words(self, rows: pa.RecordBatch) -> str:
        """Say which document the last one of a batch is."""
        last = rows.slice(rows.num_rows - 1)
        return row_in_words(last["source_table"][0].as_py(), last["payload"][0].as_py())


def _read_range(reader: RangeReader, part: SnapshotRange) -> Iterator[pa.RecordBatch]:
    progress = _Progress()
    left = pauses(reader.advanced)
    while True:
        client = pinned_client(reader.values)
        try:
            for batch, reached in _read_on(client, part, progress, reader):
                progress = reached
                left = pauses(reader.advanced)
                yield batch
            return
        except (ConfigurationError, TransientError) as error:
            if part.at and history_gone(error):
                log.info("range %d of %s is read as it is now: %s", part.number, part.table, error)
                part = replace(part, at=0)
                continue
            if isinstance(error, ConfigurationError):
                raise
            if reader.lost is not None:
                reader.lost(1)
            pause = next(left, None)
            if pause is None:
                raise
            log.warning(
                "range %d of %s interrupted after %d rows, goes on: %s",
                part.number,
                part.table,
                progress.rows,
                error,
            )
            time.sleep(pause)
        finally:
            client.close()


def _read_on(
    client: MongoClient, part: SnapshotRange, progress: _Progress, reader: RangeReader
) -> Iterator[tuple[pa.RecordBatch, _Progress]]:
    """Read a range from where it stands; give each batch with the progress after it."""
    at = part.at
    if not at:
        now = cluster_time(client)
        at = max((now.time << 32) | now.inc, part.begun_at)
    size = part.batch or reader.advanced.fetch_size
    for command in _finds(part, progress.last or part.lower, at, reader):
        cursor = RawCursor(
            client,
            part.table.partition(".")[0],
            command,
            size,
            f"the snapshot of {part.table} can't be read",
        )
        every = reader.advanced.session_refresh_seconds
        with kept_alive(cursor, every) if reader.advanced.no_cursor_timeout else nullcontext():
            while cursor.alive:
                reply = cursor.next()
                spans = _without_repeated(reply, progress)
                if not len(spans):
                    continue
                records = snapshot_records(
                    reply.data,
                    spans,
                    table=part.table,
                    time=at,
                    number=part.number,
                    first_row=progress.rows,
                    captured_us=time.time_ns() // 1000,
                )
                progress = _after(reply, spans, progress)
                yield records, progress
        cursor.close()


def _finds(part: SnapshotRange, lower: bytes, at: int, reader: RangeReader) -> Iterator[dict[str, Any]]:
    query = parse_filter(part.where)
    command: dict[str, Any] = {
        "find": part.table.partition(".")[2],
        "filter": query,
        "hint": {"_id": 1},
        "batchSize": part.batch or reader.advanced.fetch_size,
        "noCursorTimeout": reader.advanced.no_cursor_timeout,
        "readConcern": read_concern(at, exact=bool(part.at) or reader.exact),
        "comment": f"{reader.comment} snapshot",
    }
    bounds = {}
    if lower:
        bounds["min"] = RawBSONDocument(lower)
    if part.upper:
        bounds["max"] = RawBSONDocument(part.upper)
    if not part.upper or lower != part.upper:
        yield command | bounds
    if part.last:
        # {_id: value} with its name, which is as long, changed to {$eq: value}: no value is taken apart.
        equal = RawBSONDocument(part.last[:5] + b"$eq" + part.last[8:])
        yield command | {"filter": {"$and": [query, {"_id": equal}]}}
    if lower and not part.upper:
        yield command | {"filter": {"$and": [query, {"_id": MaxKey()}]}}


def history_gone(error: CdcError) -> bool:
    """Tell whether the server can't read at the cluster time that was asked for."""
    cause = error.__cause__
    return isinstance(cause, OperationFailure) and cause.code in _NO_HISTORY


def read_concern(at: int, *, exact: bool) -> dict[str, Any]:
    """Return what asks for majority-committed data of a cluster time: as of it exactly, or of it or later."""
    time = Timestamp(at >> 32, at & 0xFFFF_FFFF)
    return (
        {"level": "snapshot", "atClusterTime": time}
        if exact
        else {"level": "majority", "afterClusterTime": time}
    )


def _without_repeated(reply: RawBatch, progress: _Progress) -> Spans:
    """Leave out the document that an interrupted range begins with again."""
    spans = reply.documents
    if not progress.key or not len(spans):
        return spans
    key, _ = _identity(reply, Spans(spans.starts[:1], spans.ends[:1], 0))
    first = 1 if key == progress.key else 0
    return Spans(spans.starts[first:], spans.ends[first:], spans.stopped_at)


def _after(reply: RawBatch, spans: Spans, progress: _Progress) -> _Progress:
    key, element = _identity(reply, Spans(spans.starts[-1:], spans.ends[-1:], 0))
    return _Progress(element, key, progress.rows + len(spans))


def _identity(reply: RawBatch, spans: Spans) -> tuple[bytes, bytes]:
    """Return the key of one document and the BSON of its ``{_id}``."""
    kinds, starts, ends = find_in_all(reply.data, spans.starts, spans.ends, b"_id")
    key, _ = canonical_keys(reply.data, kinds, starts, ends)
    value = reply.data[int(starts[0]) : int(ends[0])].tobytes()
    body = bytes([int(kinds[0])]) + b"_id\0" + value
    return key.tobytes(), (len(body) + 5).to_bytes(4, "little") + body + b"\0"
