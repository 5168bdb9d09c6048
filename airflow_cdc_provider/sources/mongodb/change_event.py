"""Change events: where their fields stand, and the facts that records and places are made of.

A change event is a document (reference/mongodb-event-format.md; MongoDB manual, "Change Events")::

    _id               resume token
    operationType     insert, update, replace, delete; drop, rename, dropDatabase, invalidate; others on
    demand clusterTime       timestamp: place in the deployment's order; shared by the operations of a
    transaction wallTime          date (6.0) ns, to            {db, coll}; ``to`` of a rename documentKey
    {shard key ..., _id} fullDocument, fullDocumentBeforeChange, updateDescription lsid, txnNumber   of a
    transaction or a retryable write splitEvent        {fragment, of}, in the fragments of an event over 16 MB

:func:`locate` finds these fields, :func:`scan` tells the places of events to whoever reads the stream, and
:func:`read_facts` gives what a change record needs; all without Python objects per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from airflow_cdc_provider.sources.mongodb.bson import (
    BINARY,
    DATE,
    DOCUMENT,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Bytes,
    Ints,
    Spans,
    find,
    name_end,
    read_i32,
    read_u64,
    value_end,
)

TOKEN: Final = 0
OPERATION: Final = 1
CLUSTER_TIME: Final = 2
WALL_TIME: Final = 3
FULL_DOCUMENT: Final = 4
BEFORE: Final = 5
NAMESPACE: Final = 6
RENAMED_TO: Final = 7
DOCUMENT_KEY: Final = 8
LSID: Final = 9
TXN_NUMBER: Final = 10
UPDATE: Final = 11
SPLIT: Final = 12
FIELDS: Final = (
    "_id",
    "operationType",
    "clusterTime",
    "wallTime",
    "fullDocument",
    "fullDocumentBeforeChange",
    "ns",
    "to",
    "documentKey",
    "lsid",
    "txnNumber",
    "updateDescription",
    "splitEvent",
)
"""Names of the fields that :func:`locate` finds, in the order of its columns."""

OPERATIONS: Final = (
    "",
    "insert",
    "update",
    "replace",
    "delete",
    "drop",
    "rename",
    "dropDatabase",
    "invalidate",
)
"""Operations by their numbers; 0 stands for all others."""
INSERT: Final = 1
UPDATE_OPERATION: Final = 2
REPLACE: Final = 3
DELETE: Final = 4
DROP_OPERATION: Final = 5
RENAME: Final = 6
INVALIDATE: Final = 8

_NUMBERS: Final = 7
_PLACES: Final = 4


@dataclass(frozen=True)
class Located:
    """Fields of many events: matrices with a row per event and a column per name in :data:`FIELDS`.

    Args:
        kinds: BSON type, 0 where the event has no such field.
        starts: First byte of the value.
        ends: Byte after the value.
    """

    kinds: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints


def _packed(names: tuple[str, ...]) -> tuple[Bytes, Ints]:
    joined = "".join(names).encode()
    offsets = np.concatenate([[0], np.cumsum([len(name.encode()) for name in names])])
    return np.frombuffer(joined, np.uint8), offsets.astype(np.int64)


_FIELD_NAMES, _FIELD_OFFSETS = _packed(FIELDS)
_OPERATION_NAMES, _OPERATION_OFFSETS = _packed(OPERATIONS)
_ID: Final = np.frombuffer(b"_id", np.uint8)
_DB: Final = np.frombuffer(b"db", np.uint8)
_COLL: Final = np.frombuffer(b"coll", np.uint8)
_SESSION_ID: Final = np.frombuffer(b"id", np.uint8)
_FRAGMENT: Final = np.frombuffer(b"fragment", np.uint8)
_OF: Final = np.frombuffer(b"of", np.uint8)


def locate(data: Bytes, starts: Ints, ends: Ints) -> Located:
    """Find the known top-level fields of events whose bytes are valid."""
    shape = (len(starts), len(FIELDS))
    located = Located(np.zeros(shape, np.uint8), np.full(shape, -1, np.int64), np.full(shape, -1, np.int64))
    _locate_all(data, starts, ends, located.kinds, located.starts, located.ends)
    return located


@dataclass(frozen=True)
class Facts:
    """What a record needs of each event; all are arrays with an item per event.

    Args:
        complete: Whether the event has an operation and a cluster time.
        operations: Number of the operation in :data:`OPERATIONS`.
        times: Cluster time, seconds in the upper half; of an event without, that of the one before.
        indexes: Number among the events of the cluster time.
        committed_us: Wall time, else the seconds of the cluster time, in us since 1970.
        txn_numbers: ``txnNumber``, where ``sessions`` has a place.
        id_kinds: BSON type of documentKey's ``_id``, 0 for none.
        databases: Place of ``ns.db``: start and end, -1 for none.
        collections: Place of ``ns.coll``.
        ids: Place of the ``_id`` value.
        sessions: Place of the session's UUID, 16 bytes.
    """

    complete: npt.NDArray[np.bool_]
    operations: Ints
    times: Ints
    indexes: Ints
    committed_us: Ints
    txn_numbers: Ints
    id_kinds: Ints
    databases: Ints
    collections: Ints
    ids: Ints
    sessions: Ints


def read_facts(data: Bytes, located: Located, first_index: int) -> Facts:
    """Read the facts of events in stream order.

    Args:
        data: The buffer.
        located: Their fields; an event that is to be passed over has none.
        first_index: Number of the first event among those of its cluster time.
    """
    count = len(located.kinds)
    numbers = np.zeros((_NUMBERS, count), np.int64)
    places = np.full((_PLACES, count, 2), -1, np.int64)
    _read_facts(data, located.kinds, located.starts, located.ends, first_index, numbers, places)
    return Facts(numbers[0] == 1, *numbers[1:], *places)


def operations(data: Bytes, located: Located) -> Ints:
    """Give the number of each event's operation in :data:`OPERATIONS`."""
    numbers = np.zeros(len(located.kinds), np.int64)
    _read_operations(data, located.kinds, located.starts, located.ends, numbers)
    return numbers


def number_namespaces(data: Bytes, databases: Ints, collections: Ints) -> tuple[list[str], Ints]:
    """Number namespaces: the distinct names and, per event, which; empty where a part is missing."""
    codes = np.zeros(len(databases), np.int64)
    firsts = np.zeros(256, np.int64)
    while (distinct := _number_names(data, databases, collections, codes, firsts)) > len(firsts):
        firsts = np.zeros(4 * len(firsts), np.int64)
    names = []
    for row in firsts[:distinct]:
        parts = [
            data[start:end].tobytes().decode(errors="replace")
            for start, end in (databases[row], collections[row])
        ]
        names.append(".".join(parts) if databases[row, 0] >= 0 and collections[row, 0] >= 0 else "")
    return names, codes


def namespace_in(data: Bytes, start: int, end: int) -> str:
    """Read ``database.collection`` from a namespace document; empty if a part is missing."""
    parts = []
    for name in (_DB, _COLL):
        kind, first, after = find(data, start, end, name)
        if kind != STRING:
            return ""
        parts.append(data[first + 4 : after - 1].tobytes().decode(errors="replace"))
    return ".".join(parts)


@dataclass(frozen=True)
class Scan:
    """What the driver needs of a batch of events before anyone decodes it.

    Args:
        times: Cluster time of each event, seconds in the upper half, 0 where there is none.
        indexes: Its number among the events of its cluster time.
        fragments: Which fragment of a split event it is, from 1; 0 for a whole event.
        invalidate: Whether the last one is an ``invalidate``.
    """

    times: npt.NDArray[np.uint64]
    indexes: Ints
    fragments: npt.NDArray[np.int64]
    fragments_in_all: npt.NDArray[np.int64]
    invalidate: bool


def scan(data: Bytes, spans: Spans, last_time: int, last_index: int) -> Scan:
    """Look at the places of events, going on after ``last_time`` and ``last_index`` (-1 for none)."""
    located = locate(data, spans.starts, spans.ends)
    times = np.zeros(len(spans), np.uint64)
    indexes = np.zeros(len(spans), np.int64)
    fragments = np.zeros(len(spans), np.int64)
    of = np.zeros(len(spans), np.int64)
    _scan(
        data,
        located.kinds,
        located.starts,
        located.ends,
        np.uint64(last_time),
        last_index,
        times,
        indexes,
        fragments,
        of,
    )
    last = _operation(data, located.starts[-1, OPERATION], located.ends[-1, OPERATION]) if len(spans) else 0
    return Scan(times, indexes, fragments, of, last == INVALIDATE)


@njit(cache=True, nogil=True)
def _locate_all(data: Any, starts: Any, ends: Any, kinds: Any, value_starts: Any, value_ends: Any) -> None:
    names = _FIELD_NAMES
    offsets = _FIELD_OFFSETS
    for row in range(len(starts)):
        if starts[row] < 0:
            continue
        pos = starts[row] + 4
        limit = ends[row] - 1
        while pos < limit:
            kind = np.int64(data[pos])
            stop = name_end(data, pos + 1, limit)
            if stop < 0:
                break
            after = value_end(data, kind, stop + 1, limit)
            if after < 0:
                break
            size = stop - pos - 1
            for field in range(len(offsets) - 1):
                if offsets[field + 1] - offsets[field] != size:
                    continue
                same = True
                for i in range(size):
                    if data[pos + 1 + i] != names[offsets[field] + i]:
                        same = False
                        break
                if same:
                    kinds[row, field] = kind
                    value_starts[row, field] = stop + 1
                    value_ends[row, field] = after
                    break
            pos = after


@njit(cache=True, nogil=True)
def _operation(data: Any, start: int, end: int) -> Any:
    """Return an operation's number; the value is a string's bytes."""
    if start < 0:
        return 0
    size = end - start - 5
    names = _OPERATION_NAMES
    offsets = _OPERATION_OFFSETS
    for number in range(1, len(offsets) - 1):
        if offsets[number + 1] - offsets[number] != size:
            continue
        same = True
        for i in range(size):
            if data[start + 4 + i] != names[offsets[number] + i]:
                same = False
                break
        if same:
            return number
    return 0


@njit(cache=True, nogil=True)
def _read_operations(data: Any, kinds: Any, starts: Any, ends: Any, numbers: Any) -> None:
    for row in range(len(kinds)):
        if kinds[row, OPERATION] == STRING:
            numbers[row] = _operation(data, starts[row, OPERATION], ends[row, OPERATION])


@njit(cache=True, nogil=True)
def _read_facts(
    data: Any, kinds: Any, starts: Any, ends: Any, first_index: int, numbers: Any, places: Any
) -> None:
    complete, operations, times, indexes, committed_us, txn_numbers, id_kinds = numbers
    databases, collections, ids, sessions = places
    last_time = np.uint64(0)
    last_index = np.int64(first_index - 1)
    for row in range(len(kinds)):
        has_time = kinds[row, CLUSTER_TIME] == TIMESTAMP
        time = read_u64(data, starts[row, CLUSTER_TIME]) if has_time else last_time
        if row == 0:
            last_time = time
        last_index = last_index + 1 if time == last_time else np.int64(0)
        last_time = time
        times[row] = np.int64(time)
        indexes[row] = last_index
        if not has_time or kinds[row, OPERATION] != STRING:
            continue
        complete[row] = 1
        operations[row] = _operation(data, starts[row, OPERATION], ends[row, OPERATION])
        if kinds[row, WALL_TIME] == DATE:
            committed_us[row] = np.int64(read_u64(data, starts[row, WALL_TIME])) * 1000
        else:
            committed_us[row] = np.int64(time >> np.uint64(32)) * 1_000_000
        if kinds[row, NAMESPACE] == DOCUMENT:
            start = starts[row, NAMESPACE]
            end = ends[row, NAMESPACE]
            _text_place(data, start, end, _DB, databases, row)
            _text_place(data, start, end, _COLL, collections, row)
        if kinds[row, DOCUMENT_KEY] == DOCUMENT:
            kind, start, end = find(data, starts[row, DOCUMENT_KEY], ends[row, DOCUMENT_KEY], _ID)
            id_kinds[row] = kind
            ids[row, 0] = start
            ids[row, 1] = end
        if kinds[row, LSID] == DOCUMENT and kinds[row, TXN_NUMBER] == INT64:
            kind, start, end = find(data, starts[row, LSID], ends[row, LSID], _SESSION_ID)
            if kind == BINARY:
                txn_numbers[row] = np.int64(read_u64(data, starts[row, TXN_NUMBER]))
                sessions[row, 0] = start + 5
                sessions[row, 1] = end


@njit(cache=True, nogil=True)
def _text_place(data: Any, start: int, end: int, name: Any, places: Any, row: int) -> None:
    kind, first, after = find(data, start, end, name)
    if kind == STRING:
        places[row, 0] = first + 4
        places[row, 1] = after - 1


@njit(cache=True, nogil=True)
def _same_text(data: Any, a: Any, b: Any) -> Any:
    if (a[0] < 0) != (b[0] < 0) or a[1] - a[0] != b[1] - b[0]:
        return False
    for i in range(a[1] - a[0]):  # noqa: SIM110  # a generator is no kernel code
        if data[a[0] + i] != data[b[0] + i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _number_names(data: Any, databases: Any, collections: Any, codes: Any, firsts: Any) -> Any:
    """Fill codes; return the number of distinct names, or more than ``firsts`` holds."""
    capacity = len(firsts)
    slots = np.full(4 * capacity, -1, np.int64)
    distinct = 0
    prime = np.uint64(1099511628211)
    for row in range(len(codes)):
        digest = np.uint64(14695981039346656037)
        for i in range(databases[row, 0], databases[row, 1]):
            digest = (digest ^ np.uint64(data[i])) * prime
        digest = (digest ^ np.uint64(0x2E)) * prime
        for i in range(collections[row, 0], collections[row, 1]):
            digest = (digest ^ np.uint64(data[i])) * prime
        slot = np.int64(digest % np.uint64(len(slots)))
        while True:
            code = slots[slot]
            if code < 0:
                if distinct == capacity:
                    return capacity + 1
                slots[slot] = distinct
                firsts[distinct] = row
                codes[row] = distinct
                distinct += 1
                break
            first = firsts[code]
            if _same_text(data, databases[row], databases[first]) and _same_text(
                data, collections[row], collections[first]
            ):
                codes[row] = code
                break
            slot = (slot + 1) % len(slots)
    return distinct


@njit(cache=True, nogil=True)
def _scan(
    data: Any,
    kinds: Any,
    starts: Any,
    ends: Any,
    last_time: Any,
    last_index: Any,
    times: Any,
    indexes: Any,
    fragments: Any,
    fragments_in_all: Any,
) -> None:
    for row in range(len(kinds)):
        time = last_time
        if kinds[row, CLUSTER_TIME] == TIMESTAMP:
            time = read_u64(data, starts[row, CLUSTER_TIME])
            times[row] = time
        if kinds[row, SPLIT] == DOCUMENT:
            kind, start, _ = find(data, starts[row, SPLIT], ends[row, SPLIT], _FRAGMENT)
            fragments[row] = read_i32(data, start) if kind == INT32 else 0
            kind, start, _ = find(data, starts[row, SPLIT], ends[row, SPLIT], _OF)
            fragments_in_all[row] = read_i32(data, start) if kind == INT32 else 0
        if fragments[row] <= 1:
            last_index = last_index + 1 if time == last_time else np.int64(0)
        last_time = time
        indexes[row] = last_index
