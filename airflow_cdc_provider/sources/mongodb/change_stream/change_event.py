"""Reads from change events the members that positions, records and contributions are built from.

A change event is a document (docs/formats/mongodb-events.md; MongoDB manual, "Change Events")::

    _id               resume token
    operationType     insert, update, replace, delete; drop, rename, dropDatabase, invalidate; others
    clusterTime       timestamp: position in the deployment's order; shared by a transaction's operations
    wallTime          date (6.0)
    ns, to            {db, coll}; ``to`` of a rename
    documentKey       {shard key ..., _id}
    fullDocument, fullDocumentBeforeChange, updateDescription
    lsid, txnNumber   of a transaction or a retryable write
    splitEvent        {fragment, of}, in the fragments of an event over 16 MB

:func:`scan` returns the positions of events for reading the stream, :func:`read_facts` the members for change
records, :func:`read_states` the documents; none of them creates Python objects per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.names import number_names
from airflow_cdc_provider.changes.record import LAST_MOMENT_US
from airflow_cdc_provider.formats.bson import (
    BINARY,
    DATE,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Spans,
    read_i32,
    read_u64,
)
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.mongodb.decoding.paths import Paths, Values

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
"""Operations by their numbers; 0 is any other operation."""
INSERT: Final = 1
UPDATE: Final = 2
REPLACE: Final = 3
DELETE: Final = 4
DROP: Final = 5
RENAME: Final = 6
INVALIDATE: Final = 8

_NAMES: Final = np.frombuffer("".join(OPERATIONS).encode(), np.uint8)
_OFFSETS: Final = np.cumsum([0, *map(len, OPERATIONS)])

_RECORD: Final = Paths(
    [
        ("operationType",),
        ("clusterTime",),
        ("wallTime",),
        ("ns", "db"),
        ("ns", "coll"),
        ("documentKey", "_id"),
        ("lsid", "id"),
        ("txnNumber",),
        ("to", "db"),
        ("to", "coll"),
    ]
)
_STATE: Final = Paths([("operationType",), ("fullDocument",), ("updateDescription",)])
_POSITION: Final = Paths(
    [("operationType",), ("clusterTime",), ("splitEvent", "fragment"), ("splitEvent", "of")]
)


@dataclass(frozen=True)
class Namespaces:
    """``db`` and ``coll`` of each event."""

    databases: Values
    collections: Values

    def name(self, data: Bytes, row: int) -> str:
        """Return ``database.collection`` of one event, empty where a part is missing."""
        parts = [self.databases.text(data, row), self.collections.text(data, row)]
        return ".".join(parts) if all(parts) else ""


@dataclass(frozen=True)
class Facts:
    """The members of events that records need; arrays have an item per event.

    Args:
        complete: Whether the event is valid at its top level, with an operation and a cluster time.
        operations: Number of the operation in :data:`OPERATIONS`.
        times: Cluster time, seconds in the upper half; for an event without one, that of the previous event.
        indexes: Index among the events of the cluster time.
        committed_us: Wall time, else the seconds of the cluster time, in us since 1970.
        namespaces: ``ns``.
        renamed_to: ``to``.
        ids: ``documentKey._id``.
        sessions: ``lsid.id``, if the event has a ``txnNumber`` too.
        txn_numbers: ``txnNumber``, if the event has an ``lsid`` too.
    """

    complete: npt.NDArray[np.bool_]
    operations: Ints
    times: Ints
    indexes: Ints
    committed_us: Ints
    namespaces: Namespaces
    renamed_to: Namespaces
    ids: Values
    sessions: Values
    txn_numbers: Ints


def read_facts(data: Bytes, spans: Spans, first_index: int) -> Facts:
    """Read the facts of events in stream order.

    Args:
        data: The buffer.
        spans: Spans of the events in it.
        first_index: Index of the first event among those of its cluster time.
    """
    found = _RECORD.find(data, spans.starts, spans.ends)
    operation, clock, wall, db, coll, identity, session, txn, to_db, to_coll = (
        found.values(row) for row in range(len(found.kinds))
    )
    times, indexes = np.zeros((2, len(spans)), np.int64)
    _count_on(data, clock.kinds, clock.starts, first_index, times, indexes)
    wall_ms = _u64(data, wall, wall.kinds == DATE)
    has_wall = (wall.kinds == DATE) & (wall_ms >= 0) & (wall_ms <= LAST_MOMENT_US // 1000)
    seconds = (times.view(np.uint64) >> np.uint64(32)).astype(np.int64)
    in_transaction = (session.kinds == BINARY) & (txn.kinds == INT64)
    return Facts(
        complete=found.sound & (operation.kinds == STRING) & (clock.kinds == TIMESTAMP),
        operations=operation_numbers(data, operation),
        times=times,
        indexes=indexes,
        committed_us=np.where(has_wall, wall_ms * 1000, seconds * 1_000_000),
        namespaces=Namespaces(db, coll),
        renamed_to=Namespaces(to_db, to_coll),
        ids=identity,
        sessions=Values(np.where(in_transaction, BINARY, 0), session.starts + 5, session.ends),
        txn_numbers=_u64(data, txn, in_transaction),
    )


class States(NamedTuple):
    """The documents of events.

    Args:
        operations: Number of each operation.
        documents: Spans of ``fullDocument``.
        patches: Spans of ``updateDescription``.
        sound: Whether the event is valid at its top level.
    """

    operations: Ints
    documents: Values
    patches: Values
    sound: npt.NDArray[np.bool_]


def read_states(data: Bytes, starts: Ints, ends: Ints) -> States:
    """Find operation, ``fullDocument`` and ``updateDescription`` of events.

    Args:
        data: The buffer.
        starts: First byte of each event, -1 for none.
        ends: Byte after.
    """
    found = _STATE.find(data, starts, ends)
    return States(operation_numbers(data, found.values(0)), found.values(1), found.values(2), found.sound)


@dataclass(frozen=True)
class Scan:
    """The members of a batch of events that the driver needs, without decoding it.

    Args:
        times: Cluster time of each event, seconds in the upper half; for one without, that of the previous.
        indexes: Index of each among the events of its cluster time.
        fragments: Number of the fragment of a split event, from 1; 0 for a complete event.
        fragment_counts: Number of fragments of the split event.
        invalidate: Whether the last event is an ``invalidate``.
    """

    times: npt.NDArray[np.uint64]
    indexes: Ints
    fragments: Ints
    fragment_counts: Ints
    invalidate: bool


def scan(data: Bytes, spans: Spans, last_time: int, last_index: int) -> Scan:
    """Read the positions of events after an event with ``last_time`` and ``last_index`` (-1: no event)."""
    found = _POSITION.find(data, spans.starts, spans.ends)
    operation, clock, fragment, of = (found.values(row) for row in range(len(found.kinds)))
    times, indexes, fragments, fragment_counts = np.zeros((4, len(spans)), np.int64)
    _read_i32s(data, fragment.kinds, fragment.starts, fragments)
    _read_i32s(data, of.kinds, of.starts, fragment_counts)
    before = np.uint64(last_time).astype(np.int64)
    _scan(data, clock.kinds, clock.starts, fragments, before, last_index, times, indexes)
    last = operation_numbers(data, Values(operation.kinds[-1:], operation.starts[-1:], operation.ends[-1:]))
    # Seconds of 2038 and later fill the upper bit.
    unsigned = times.view(np.uint64)
    return Scan(unsigned, indexes, fragments, fragment_counts, bool((last == INVALIDATE).any()))


def number_namespaces(data: Bytes, namespaces: Namespaces) -> tuple[list[str], Ints]:
    """Return the distinct namespaces and each event's index among them; empty where a part is missing."""
    bounds = np.stack([a for v in (namespaces.databases, namespaces.collections) for a in (v.starts, v.ends)])
    codes, firsts = number_names(data, bounds)
    return [namespaces.name(data, row) for row in firsts], codes


def operation_numbers(data: Bytes, operation: Values) -> Ints:
    """Return the number of each operation in :data:`OPERATIONS`."""
    numbers = np.zeros(len(operation.kinds), np.int64)
    _name_operations(data, operation.kinds, operation.starts, operation.ends, numbers)
    return numbers


def _u64(data: Bytes, values: Values, has: npt.NDArray[np.bool_]) -> Ints:
    out = np.zeros(len(has), np.int64)
    _read_u64s(data, has, values.starts, out)
    return out


@walker
def _name_operations(data: Bytes, kinds: Ints, starts: Ints, ends: Ints, numbers: Ints) -> None:
    for row in range(len(kinds)):
        if kinds[row] != STRING:
            continue
        size = ends[row] - starts[row] - 5
        for number in range(1, len(_OFFSETS) - 1):
            if _OFFSETS[number + 1] - _OFFSETS[number] != size:
                continue
            same = True
            for i in range(size):
                if data[starts[row] + 4 + i] != _NAMES[_OFFSETS[number] + i]:
                    same = False
                    break
            if same:
                numbers[row] = number
                break


@walker
def _read_u64s(data: Bytes, has: Flags, starts: Ints, out: Ints) -> None:
    for row in range(len(has)):
        if has[row]:
            out[row] = np.int64(read_u64(data, starts[row]))


@walker
def _read_i32s(data: Bytes, kinds: Ints, starts: Ints, out: Ints) -> None:
    for row in range(len(kinds)):
        if kinds[row] == INT32:
            out[row] = read_i32(data, starts[row])


@walker
def _count_on(data: Bytes, kinds: Ints, starts: Ints, first_index: int, times: Ints, indexes: Ints) -> None:
    last_time = np.int64(0)
    last_index = np.int64(first_index - 1)
    for row in range(len(kinds)):
        time = np.int64(read_u64(data, starts[row])) if kinds[row] == TIMESTAMP else last_time
        last_index = last_index + 1 if row == 0 or time == last_time else np.int64(0)
        last_time = time
        times[row] = time
        indexes[row] = last_index


@walker
def _scan(
    data: Bytes,
    kinds: Ints,
    starts: Ints,
    fragments: Ints,
    last_time: int,
    last_index: int,
    times: Ints,
    indexes: Ints,
) -> None:
    time_before = np.int64(last_time)
    index = np.int64(last_index)
    for row in range(len(kinds)):
        time = np.int64(read_u64(data, starts[row])) if kinds[row] == TIMESTAMP else time_before
        if fragments[row] <= 1:
            index = index + 1 if time == time_before else np.int64(0)
        time_before = time
        times[row] = time
        indexes[row] = index
