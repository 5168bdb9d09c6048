"""Ranges of ``_id`` that together are a collection, and are read in parallel as raw batches.

Ranges are bounded by ``min`` and ``max`` on the ``_id`` index, which has one order over all BSON types;
``$gt`` and ``$lt`` compare within a type only and would skip the others. The boundaries are every n-th
``_id``, found by walking the index, so ranges have equal numbers of documents whatever the types and gaps.
The first range has no lower bound and the last no upper one, so the ranges cover the whole collection,
including concurrent inserts. (With ``min`` alone the server leaves out an ``_id`` of maxKey, so the last
range reads it with a separate query.)

Each read requests majority-committed data no older than the cluster time taken just before it, and uses that
time as the version of its rows. The read may see later states; those are also captured as changes, with the
same or a later content and a greater version. If updates have no documents (``full_document: none``), the
read is at exactly that cluster time, so that each document lacks exactly the updates that are applied to it.
(The server refuses that for capped collections, which are read like others.)
The server keeps past states for some minutes (``minSnapshotHistoryWindowInSeconds``); a read that takes
longer continues at a later time.

An interrupted range resumes after its last ``_id``.

Chunks of an incremental snapshot are ranges too, read at an exact cluster time if the server supports it
(:mod:`.chunks`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import bson
import pyarrow as pa
from bson import json_util
from bson.errors import BSONError
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError, listed
from airflow_cdc_provider.formats.bson import Spans, find_in_all
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.contract import ReadMetrics, SnapshotPlan
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues, cluster_time, pinned_client
from airflow_cdc_provider.sources.mongodb.decoding.identity import canonical_keys
from airflow_cdc_provider.sources.mongodb.driver.cursor_life import kept_alive
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch, RawCursor
from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, MOST_BYTES, ORIGIN, StreamPosition
from airflow_cdc_provider.sources.mongodb.records import snapshot_records

log = logger(__name__)

_ALLOWED: Final = re.compile(
    r"""(?x) \$ (?:
        eq | ne | gt | gte | lt | lte | in | nin | and | or | nor | not | exists | type | mod | regex |
        options | expr | all | elemMatch | size | bitsAllClear | bitsAllSet | bitsAnyClear | bitsAnySet
        | literal | cond | ifNull | cmp | add | subtract | multiply | divide | abs | ceil | floor |
        round | trunc | toLower | toUpper | strLenCP | isNumber | toBool | toDate | toDecimal | toDouble
        | toInt | toLong | toObjectId | toString | year | month | dayOfMonth | dayOfWeek | hour | minute
        | second | arrayElemAt
    )"""
)
"""Operators that filters of signals may have: none runs code, loops or multiplies its operands."""
_NO_HISTORY: Final = (72, 239, 246)
"""Errors of read concern ``snapshot``: unknown option, snapshot too old, snapshot unavailable."""
_LARGEST_RANGE: Final = 1_000_000
_SMALLEST_RANGE: Final = 1_000


@dataclass(frozen=True)
class SnapshotRange:
    """One range of a collection's snapshot.

    Args:
        table: ``database.collection``.
        number: Number of the range, from 0.
        lower: BSON of ``{_id: first}``, inclusive; empty for none.
        upper: BSON of ``{_id: end}``, exclusive; empty for none.
        where: Filter as Extended JSON, empty for none.
        planned_at: Cluster time of the plan; no read is older.
        at: Exact cluster time of the read, as long as the server keeps it; 0: the time of the read.
        last: BSON of ``{_id: last}``, read too although it is not below ``upper``; empty for none.
        batch: Documents per reply; 0: the option ``fetch_size``.
    """

    table: str
    number: int
    lower: bytes
    upper: bytes
    where: str
    planned_at: int
    at: int = 0
    last: bytes = b""
    batch: int = 0


def parse_filter(where: str | None) -> Mapping[str, Any]:
    """Read a filter in Extended JSON.

    Raises:
        ConfigurationError: Not a JSON object.
    """
    try:
        query = json_util.loads(where) if where else {}
        bson.encode(query)
    except (ValueError, TypeError, ArithmeticError, RecursionError, BSONError) as error:
        raise ConfigurationError(
            "the snapshot filter is not valid Extended JSON", found=str(error)
        ) from error
    if not isinstance(query, dict):
        raise ConfigurationError(
            "invalid snapshot filter", expected='a query such as {"status": "open"}', found=where or ""
        )
    return query


def refused_filter(where: str) -> str:
    """Return why a filter of a signal is refused: it has an operator that isn't allowed, or code.

    Judged is the BSON that the server gets, where a ``DBRef`` is a document with further members, too.

    Raises:
        ConfigurationError: Not a query.
    """
    left: list[object] = [RawBSONDocument(bson.encode(parse_filter(where)))]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if refused := [name for name in one if name.startswith("$") and not _ALLOWED.fullmatch(name)]:
                return f"operators that aren't allowed: {listed(refused)}"
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, bson.Code | bson.DBRef):
            return f"it has a value of type {type(one).__name__}"
    return ""


def plan_key_ranges(client: MongoClient, table: str, where: str | None, ranges_at_least: int) -> SnapshotPlan:
    """Split a collection into ranges of equal numbers of documents.

    Raises:
        ConfigurationError: The filter is invalid, or ``table`` is not a collection.
    """
    parse_filter(where)
    now = cluster_time(client)
    database, _, collection = table.partition(".")
    with translated(f"{table} can't be counted"):
        rows = client[database][collection].estimated_document_count()
    ranges = max(min(ranges_at_least, rows // _SMALLEST_RANGE), -(-rows // _LARGEST_RANGE), 1)
    bounds = [b"", *_boundaries(client, table, rows, ranges), b""]
    at = (now.time << 32) | now.inc
    return SnapshotPlan(
        table=table,
        ranges=tuple(
            SnapshotRange(table, number, lower, upper, where or "", at)
            for number, (lower, upper) in enumerate(pairwise(bounds))
        ),
        # After all events that the reads see, but before the rows of a read at the same cluster time.
        position=StreamPosition(now.time, now.inc, LAST_INDEX - 1).encoded,
        origin=ORIGIN,
        estimated_rows=rows,
    )


def _boundaries(client: MongoClient, table: str, rows: int, ranges: int) -> Iterator[bytes]:
    """Yield the BSON of every n-th ``{_id}``, but large ones: ranges are stored with each offset."""
    step = rows // ranges
    at = b""
    for _ in range(ranges - 1):
        at = first_id(client, table, {"skip": step, **({"min": RawBSONDocument(at)} if at else {})})
        if not at:
            return
        if len(at) <= MOST_BYTES:
            yield at


def first_id(client: MongoClient, table: str, options: Mapping[str, Any]) -> bytes:
    """Return the BSON of the first ``{_id}`` that a search by the index returns, empty for none."""
    database, _, collection = table.partition(".")
    command = {
        "find": collection,
        "projection": {"_id": 1},
        "hint": {"_id": 1},
        "limit": 1,
        "singleBatch": True,
        **options,
    }
    cursor = RawCursor(client, database, command, 1, f"{table} can't be split")
    batch = cursor.next()
    cursor.close()
    if not len(batch.documents):
        return b""
    return batch.data[batch.documents.starts[0] : batch.documents.ends[0]].tobytes()


@dataclass(frozen=True)
class _Progress:
    """Progress of a range: the last document's ``{_id}`` and key, and the number of documents so far."""

    last: bytes = b""
    key: bytes = b""
    rows: int = 0


def read_range(
    values: ConnectionValues, options: MongodbOptions, part: SnapshotRange, metrics: ReadMetrics
) -> Iterator[pa.RecordBatch]:
    """Read a range as snapshot records, and resume it after lost connections."""
    progress = _Progress()
    retry_pauses = pauses(options.advanced)
    while True:
        client = pinned_client(values)
        try:
            for batch, updated in _read_from(client, options, part, progress):
                progress = updated
                retry_pauses = pauses(options.advanced)
                yield batch
            return
        except (ConfigurationError, TransientError) as error:
            if part.at and history_expired(error):
                log.info("reading range %d of %s at the current time: %s", part.number, part.table, error)
                part = replace(part, at=0)
                continue
            if isinstance(error, ConfigurationError):
                raise
            metrics.counts["disconnects"] += 1
            pause = next(retry_pauses, None)
            if pause is None:
                raise
            log.warning(
                "range %d of %s interrupted after %d rows, resuming: %s",
                part.number,
                part.table,
                progress.rows,
                error,
            )
            time.sleep(pause)
        finally:
            client.close()


def _read_from(
    client: MongoClient, options: MongodbOptions, part: SnapshotRange, progress: _Progress
) -> Iterator[tuple[pa.RecordBatch, _Progress]]:
    """Read a range from its progress on; yield each batch with the progress after it."""
    at = part.at
    if not at:
        now = cluster_time(client)
        at = max((now.time << 32) | now.inc, part.planned_at)
    advanced = options.advanced
    size = part.batch or advanced.fetch_size
    exact = bool(part.at) or (options.full_document == "none" and not _is_capped(client, part.table))
    for command in _find_commands(options, part, progress.last or part.lower, at, exact=exact):
        cursor = RawCursor(
            client, part.table.partition(".")[0], command, size, f"the snapshot of {part.table} can't be read"
        )
        every = advanced.session_refresh_seconds
        with kept_alive(cursor, every) if advanced.no_cursor_timeout else nullcontext():
            while cursor.alive:
                reply = cursor.next()
                spans = _skip_repeated(reply, progress)
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
                progress = _advance(reply, spans, progress)
                yield records, progress
        cursor.close()


def _is_capped(client: MongoClient, table: str) -> bool:
    """Return whether a collection is capped; False if the user may not read that."""
    database, _, collection = table.partition(".")
    try:
        return bool(client[database][collection].options().get("capped"))
    except OperationFailure:
        return False


def _find_commands(
    options: MongodbOptions, part: SnapshotRange, lower: bytes, at: int, *, exact: bool
) -> Iterator[dict[str, Any]]:
    query, advanced = parse_filter(part.where), options.advanced
    command: dict[str, Any] = {
        "find": part.table.partition(".")[2],
        "filter": query,
        "hint": {"_id": 1},
        "batchSize": part.batch or advanced.fetch_size,
        "noCursorTimeout": advanced.no_cursor_timeout,
        "readConcern": read_concern(at, exact=exact),
        "comment": f"{options.stream.comment} snapshot",
    }
    bounds = {}
    if lower:
        bounds["min"] = RawBSONDocument(lower)
    if part.upper:
        bounds["max"] = RawBSONDocument(part.upper)
    if not part.upper or lower != part.upper:
        yield command | bounds
    if part.last:
        # {_id: value} becomes {$eq: value}: the names have the same length, so the value is not parsed.
        equal = RawBSONDocument(part.last[:5] + b"$eq" + part.last[8:])
        yield command | {"filter": {"$and": [query, {"_id": equal}]}}
    if lower and not part.upper:
        yield command | {"filter": {"$and": [query, {"_id": MaxKey()}]}}


def history_expired(error: CdcError) -> bool:
    """Return whether the server can't read at the requested cluster time."""
    cause = error.__cause__
    return isinstance(cause, OperationFailure) and cause.code in _NO_HISTORY


def read_concern(at: int, *, exact: bool) -> dict[str, Any]:
    """Return the read concern for majority-committed data at exactly a cluster time, or at it or later."""
    time = Timestamp(at >> 32, at & 0xFFFF_FFFF)
    return (
        {"level": "snapshot", "atClusterTime": time}
        if exact
        else {"level": "majority", "afterClusterTime": time}
    )


def _skip_repeated(reply: RawBatch, progress: _Progress) -> Spans:
    """Leave out the document with which a resumed range repeats."""
    spans = reply.documents
    if not progress.key or not len(spans):
        return spans
    key, _ = _identity(reply, Spans(spans.starts[:1], spans.ends[:1], 0))
    first = 1 if key == progress.key else 0
    return Spans(spans.starts[first:], spans.ends[first:], spans.stopped_at)


def _advance(reply: RawBatch, spans: Spans, progress: _Progress) -> _Progress:
    key, element = _identity(reply, Spans(spans.starts[-1:], spans.ends[-1:], 0))
    return _Progress(element, key, progress.rows + len(spans))


def _identity(reply: RawBatch, spans: Spans) -> tuple[bytes, bytes]:
    """Return the key of one document and the BSON of its ``{_id}``."""
    kinds, starts, ends = find_in_all(reply.data, spans.starts, spans.ends, b"_id")
    key, _ = canonical_keys(reply.data, kinds, starts, ends)
    value = reply.data[int(starts[0]) : int(ends[0])].tobytes()
    body = bytes([int(kinds[0])]) + b"_id\0" + value
    return key.tobytes(), (len(body) + 5).to_bytes(4, "little") + body + b"\0"
