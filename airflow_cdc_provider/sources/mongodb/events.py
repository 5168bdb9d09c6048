"""Change events and snapshot documents as Arrow columns: what an envelope is made of, without the envelope.

Works on raw bytes (see :mod:`airflow_cdc_provider.sources.mongodb.bson`): one kernel finds the places
of the members that count, :mod:`airflow_cdc_provider.sources.mongodb.extended_json` writes their texts. Which
server events give a row, and where a row's members come from: ``docs/formats/mongodb-events.md``, sections
2 to 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.kernels import kernel
from airflow_cdc_provider.changes.text_kernels import binary_slices, gather_text
from airflow_cdc_provider.sources.mongodb.bson import (
    DOCUMENT as BSON_DOCUMENT,
)
from airflow_cdc_provider.sources.mongodb.bson import (
    MAX_DEPTH,
    name_end,
    read_i32,
    read_u64,
    validate,
    value_end,
)
from airflow_cdc_provider.sources.mongodb.extended_json import BROKEN, render
from airflow_cdc_provider.sources.mongodb.extended_json_values import DOCUMENT, KEY, UPDATED

FullDocument = Literal["lookup", "post_image", "none"]

UPDATE_DESCRIPTION: Final = pa.struct(
    [
        pa.field("removedFields", pa.list_(pa.utf8())),
        pa.field("updatedFields", pa.utf8()),
        pa.field(
            "truncatedArrays",
            pa.list_(pa.struct([pa.field("field", pa.utf8()), pa.field("size", pa.int32())])),
        ),
    ]
)

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("database", pa.utf8()),
        pa.field("collection", pa.utf8()),
        pa.field("op", pa.utf8()),
        pa.field("id", pa.utf8()),
        pa.field("before", pa.utf8()),
        pa.field("after", pa.utf8()),
        pa.field("update_description", UPDATE_DESCRIPTION),
        pa.field("source_ms", pa.int64()),
        pa.field("ord", pa.int32()),
        pa.field("lsid", pa.utf8()),
        pa.field("txn_number", pa.int64()),
        pa.field("wall_ms", pa.int64()),
    ]
)
"""Columns of decoded events, one row per data event.

``row``                 its row in the input.
``op``                  ``r``, ``c``, ``u`` or ``d``.
``id``                  Extended JSON of ``_id`` alone, profile KEY; ``null`` if there is none.
``before``, ``after``   whole documents, profile DOCUMENT.
``update_description``  of updates: removed paths, set paths and values (profile UPDATED), truncated arrays.
``source_ms``           the server's wall clock, else the second of the cluster time; null for snapshot reads.
``ord``                 increment of the cluster time, -1 without one.
``lsid``, ``txn_number``  of events in a transaction or a retryable write, both or none.
``wall_ms``             the server's wall clock, null if unknown or 0.
"""


@dataclass(frozen=True)
class MongodbEvents:
    """What became of raw events.

    Args:
        events: Batch of :data:`EVENT_SCHEMA`, in the order of the input.
        undecodable: Input rows left out because they are broken.
        reasons: A text for each of them.
    """

    events: pa.RecordBatch
    undecodable: Sequence[int] = ()
    reasons: Sequence[str] = ()


def decode_stream(payloads: pa.Array, *, full_document: FullDocument, pre_images: bool) -> MongodbEvents:
    """Decode raw change events.

    Args:
        payloads: Change event documents (binary). Those that change no document (drop ...) give no row.
        full_document: Where an update's whole document comes from; ``none`` leaves it out always.
        pre_images: Whether the document before the change is shown where the event has it.
    """
    data, starts, ends, _ = binary_slices(payloads)
    count = len(starts)
    kinds = np.zeros((count, _SLOTS), np.uint8)
    first = np.zeros((count, _SLOTS), np.int64)
    last = np.zeros((count, _SLOTS), np.int64)
    ops = np.zeros(count, np.int8)
    _scan(data, starts, ends, kinds, first, last, ops)
    broken = ops == _OP_BROKEN
    rows = np.flatnonzero(ops > 0)
    ops, kinds, first, last = ops[rows], kinds[rows], first[rows], last[rows]

    updates = ops == _OP_UPDATE
    if full_document == "none":
        kinds[updates, _FULL] = 0
    if not pre_images:
        kinds[:, _BEFORE] = 0
    kinds[~updates, _UPDATED] = 0
    in_session = (kinds[:, _LSID] == 3) & (kinds[:, _TXN] == 18)
    kinds[~in_session, _LSID] = 0

    columns: dict[str, pa.Array] = {}
    damaged = np.zeros(len(rows), np.bool_)
    for name, slot, profile in (
        ("id", _ID, KEY),
        ("before", _BEFORE, DOCUMENT),
        ("after", _FULL, DOCUMENT),
        ("updated", _UPDATED, UPDATED),
        ("lsid", _LSID, DOCUMENT),
    ):
        columns[name], status = render(data, kinds[:, slot], first[:, slot], last[:, slot], profile)
        damaged |= status == BROKEN
    removed, bad = _removed_fields(data, kinds[:, _REMOVED], first[:, _REMOVED], last[:, _REMOVED])
    damaged |= bad
    truncated, bad = _truncated_arrays(data, kinds[:, _TRUNCATED], first[:, _TRUNCATED], last[:, _TRUNCATED])
    damaged |= bad

    seconds = _numbers(data, kinds[:, _CLUSTER] == 17, first[:, _CLUSTER] + 4, 4)
    increments = _numbers(data, kinds[:, _CLUSTER] == 17, first[:, _CLUSTER], 4)
    wall = _numbers(data, kinds[:, _WALL] == 9, first[:, _WALL], 8)
    wall_known = (kinds[:, _WALL] == 9) & (wall != 0)
    source_known = wall_known | (kinds[:, _CLUSTER] == 17)
    batch = pa.record_batch(
        [
            pa.array(rows, pa.int64()),
            _strings(data, kinds[:, _DATABASE], first[:, _DATABASE], last[:, _DATABASE]),
            _strings(data, kinds[:, _COLLECTION], first[:, _COLLECTION], last[:, _COLLECTION]),
            pa.array(_OP_NAMES[ops]),
            pc.fill_null(columns["id"], "null"),
            columns["before"],
            columns["after"],
            pa.StructArray.from_arrays(
                [removed, columns["updated"], truncated],
                fields=list(UPDATE_DESCRIPTION),
                mask=pa.array(~updates),
            ),
            pa.array(np.where(wall_known, wall, (seconds & 0xFFFFFFFF) * 1000), mask=~source_known),
            pa.array(np.where(kinds[:, _CLUSTER] == 17, increments, -1).astype(np.int32)),
            columns["lsid"],
            pa.array(_numbers(data, in_session, first[:, _TXN], 8), mask=~in_session),
            pa.array(wall, mask=~wall_known),
        ],
        schema=EVENT_SCHEMA,
    )
    bad_rows = np.concatenate([np.flatnonzero(broken), rows[damaged]])
    return MongodbEvents(
        batch.filter(pa.array(~damaged)) if damaged.any() else batch,
        tuple(int(row) for row in np.sort(bad_rows)),
        tuple("the change event is broken BSON or lacks ns or documentKey" for _ in bad_rows),
    )


def decode_snapshot(documents: pa.Array, database: str, collection: str) -> MongodbEvents:
    """Decode documents that a snapshot read.

    Args:
        documents: Whole documents (binary), in the order of reading.
        database: Where they come from.
        collection: Likewise.
    """
    data, starts, ends, _ = binary_slices(documents)
    count = len(starts)
    kinds = np.zeros(count, np.uint8)
    first = np.zeros(count, np.int64)
    last = np.zeros(count, np.int64)
    ops = np.zeros(count, np.int8)
    _scan_documents(data, starts, ends, kinds, first, last, ops)
    ids, id_status = render(data, kinds, first, last, KEY)
    whole = np.where(ops > 0, 3, 0).astype(np.uint8)
    after, status = render(data, whole, starts, ends, DOCUMENT)
    good = (ops > 0) & (id_status != BROKEN) & (status != BROKEN)
    nothing = pa.nulls(count)
    columns = {
        "row": pa.array(np.arange(count)),
        "database": pa.repeat(database, count),
        "collection": pa.repeat(collection, count),
        "op": pa.repeat("r", count),
        "id": pc.fill_null(ids, "null"),
        "after": after,
        "ord": pa.repeat(pa.scalar(-1, pa.int32()), count),
    }
    batch = pa.record_batch(
        [columns.get(field.name, nothing).cast(field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
    )
    bad_rows = np.flatnonzero(~good)
    return MongodbEvents(
        batch if good.all() else batch.filter(pa.array(good)),
        tuple(int(row) for row in bad_rows),
        tuple("the document is broken BSON" for _ in bad_rows),
    )


def split_documents(
    data: np.ndarray, *, change_events: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cut concatenated BSON documents apart and step over what is no document.

    After a broken place, reading goes on where a whole document begins that is followed by another one or by
    the end, or that is a change event by its members. So a document inside a broken one is not taken for one
    of the row; of other documents than change events, one between two broken places may be lost with them.

    Args:
        data: The bytes (``uint8``).
        change_events: Whether they are change events.

    Returns:
        Starts and ends of the documents, starts and ends of the broken places (``int64``).
    """
    room = len(data) // 3 + 2  # a broken place of one byte and a document of five can alternate
    starts = np.empty(room, np.int64)
    ends = np.empty(room, np.int64)
    kept, lost = _split(np.ascontiguousarray(data, np.uint8), starts, ends, change_events)
    return starts[:kept], ends[:kept], starts[len(starts) - lost :][::-1], ends[len(ends) - lost :][::-1]


_SLOTS: Final = 13
_DATABASE, _COLLECTION, _ID, _FULL, _BEFORE, _UPDATED, _REMOVED, _TRUNCATED = range(8)
_CLUSTER, _WALL, _LSID, _TXN, _OPERATION = range(8, 13)

_OP_BROKEN: Final = -1
_OP_INSERT: Final = 1
_OP_UPDATE: Final = 2
_OP_REPLACE: Final = 3
_OP_DELETE: Final = 4
_OP_NAMES: Final = np.array(["", "c", "u", "u", "d"], dtype=object)


def _name(text: str) -> np.ndarray:
    return np.frombuffer(text.encode() + b"\0", np.uint8)


_N_OPERATION: Final = _name("operationType")
_N_NS: Final = _name("ns")
_N_DB: Final = _name("db")
_N_COLL: Final = _name("coll")
_N_KEY: Final = _name("documentKey")
_N_ID: Final = _name("_id")
_N_FULL: Final = _name("fullDocument")
_N_BEFORE: Final = _name("fullDocumentBeforeChange")
_N_DESCRIPTION: Final = _name("updateDescription")
_N_UPDATED: Final = _name("updatedFields")
_N_REMOVED: Final = _name("removedFields")
_N_TRUNCATED: Final = _name("truncatedArrays")
_N_CLUSTER: Final = _name("clusterTime")
_N_WALL: Final = _name("wallTime")
_N_LSID: Final = _name("lsid")
_N_TXN: Final = _name("txnNumber")
_N_FIELD: Final = _name("field")
_N_SIZE: Final = _name("newSize")
_O_INSERT: Final = _name("insert")
_O_UPDATE: Final = _name("update")
_O_REPLACE: Final = _name("replace")
_O_DELETE: Final = _name("delete")


@kernel
def _equals(data: np.ndarray, at: int, end: int, name: np.ndarray) -> bool:
    if end - at != len(name):
        return False
    same = True
    for i in range(len(name)):
        same &= data[at + i] == name[i]
    return same


@kernel
def _find(data: np.ndarray, start: int, end: int, name: np.ndarray) -> tuple[int, int, int]:
    """Find a member of a document: its type (0: none, -1: broken), where its value starts and ends."""
    at = start + 4
    while at < end - 1:
        kind = int(data[at])
        stop = name_end(data, at + 1, end - 1)
        if stop < 0:
            return -1, 0, 0
        following = value_end(data, kind, stop + 1, end - 1)
        if following < 0:
            return -1, 0, 0
        if _equals(data, at + 1, stop + 1, name):
            return kind, stop + 1, following
        at = following
    return 0, 0, 0


@kernel
def _keep(
    kinds: np.ndarray, first: np.ndarray, last: np.ndarray, slot: int, found: tuple[int, int, int]
) -> None:
    """Note a member; null counts as none."""
    if found[0] not in (0, -1, 10):
        kinds[slot], first[slot], last[slot] = found[0], found[1], found[2]


@kernel
def _scan(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    kinds: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    ops: np.ndarray,
) -> None:
    """Find the members of each change event; see the slots above."""
    stack = np.empty(MAX_DEPTH, np.int64)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        ops[row] = _OP_BROKEN
        if _whole(data, start, end, stack) != end:
            continue
        operation = _find(data, start, end, _N_OPERATION)
        if operation[0] != 2:
            continue
        at, stop = operation[1] + 4, operation[2]
        op = 0
        if _equals(data, at, stop, _O_INSERT):
            op = _OP_INSERT
        elif _equals(data, at, stop, _O_UPDATE):
            op = _OP_UPDATE
        elif _equals(data, at, stop, _O_REPLACE):
            op = _OP_REPLACE
        elif _equals(data, at, stop, _O_DELETE):
            op = _OP_DELETE
        else:
            ops[row] = 0
            continue
        namespace = _find(data, start, end, _N_NS)
        key = _find(data, start, end, _N_KEY)
        if namespace[0] != 3 or key[0] != 3:
            continue
        k, f, e = kinds[row], first[row], last[row]
        _keep(k, f, e, _DATABASE, _find(data, namespace[1], namespace[2], _N_DB))
        _keep(k, f, e, _COLLECTION, _find(data, namespace[1], namespace[2], _N_COLL))
        if k[_DATABASE] != 2 or k[_COLLECTION] != 2:
            continue
        _keep(k, f, e, _ID, _find(data, key[1], key[2], _N_ID))
        _keep(k, f, e, _FULL, _find(data, start, end, _N_FULL))
        _keep(k, f, e, _BEFORE, _find(data, start, end, _N_BEFORE))
        _keep(k, f, e, _CLUSTER, _find(data, start, end, _N_CLUSTER))
        _keep(k, f, e, _WALL, _find(data, start, end, _N_WALL))
        _keep(k, f, e, _LSID, _find(data, start, end, _N_LSID))
        _keep(k, f, e, _TXN, _find(data, start, end, _N_TXN))
        description = _find(data, start, end, _N_DESCRIPTION)
        if description[0] == 3:
            _keep(k, f, e, _UPDATED, _find(data, description[1], description[2], _N_UPDATED))
            _keep(k, f, e, _REMOVED, _find(data, description[1], description[2], _N_REMOVED))
            _keep(k, f, e, _TRUNCATED, _find(data, description[1], description[2], _N_TRUNCATED))
        ops[row] = op


@kernel
def _scan_documents(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    kinds: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    ops: np.ndarray,
) -> None:
    """Find ``_id`` of each document."""
    stack = np.empty(MAX_DEPTH, np.int64)
    for row in range(len(starts)):
        if _whole(data, starts[row], ends[row], stack) == ends[row]:
            found = _find(data, starts[row], ends[row], _N_ID)
            if found[0] >= 0:
                ops[row] = _OP_INSERT
            if found[0] not in (0, -1, 10):
                kinds[row], first[row], last[row] = found[0], found[1], found[2]


@kernel
def _whole(data: np.ndarray, start: int, limit: int, stack: np.ndarray) -> int:
    """Return where a document ends that is whole to its leaves; -1 for any other."""
    end = value_end(data, BSON_DOCUMENT, start, limit)
    if end < 0 or validate(data, start, end, stack)[0] != 0:
        return -1
    return end


@kernel
def _split(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, change_events: bool) -> tuple[int, int]:
    """Fill documents from the front, broken places from the back; return how many of each."""
    stack = np.empty(MAX_DEPTH, np.int64)
    size = len(data)
    at, kept, lost = 0, 0, 0
    while at < size:
        end = _whole(data, at, size, stack)
        if end >= 0:
            starts[kept], ends[kept] = at, end
            kept += 1
            at = end
            continue
        broken = at
        at += 1
        while at < size:
            end = _whole(data, at, size, stack)
            if end >= 0:
                if end == size or _whole(data, end, size, stack) >= 0:
                    break
                named = _find(data, at, end, _N_OPERATION)[0] == 2 and _find(data, at, end, _N_NS)[0] == 3
                if change_events and named:
                    break
            at += 1
        lost += 1
        starts[len(starts) - lost], ends[len(ends) - lost] = broken, at
    return kept, lost


def _strings(data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> pa.Array:
    valid = kinds == 2
    return gather_text(data, first + 4, last - 1, valid)


@kernel
def _numbers(data: np.ndarray, valid: np.ndarray, first: np.ndarray, width: int) -> np.ndarray:
    """Read numbers of 4 or 8 bytes; those of 4 as unsigned's bits in a signed number."""
    values = np.zeros(len(valid), np.int64)
    for row in range(len(valid)):
        if valid[row]:
            values[row] = read_i32(data, first[row]) if width == 4 else np.int64(read_u64(data, first[row]))
    return values


def _removed_fields(
    data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[pa.Array, np.ndarray]:
    """Read arrays of strings; null where there is none or it is empty."""
    count = _count_elements(data, kinds, first, last)
    offsets, total = _list_offsets(count)
    inner_kinds, inner_first, inner_last = _elements(data, kinds, first, last, total)
    bad = _rows_of(offsets, inner_kinds != 2) | (count < 0)
    texts = _strings(data, inner_kinds, inner_first, inner_last)
    return _lists(offsets, texts), bad


def _truncated_arrays(
    data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[pa.Array, np.ndarray]:
    """Read arrays of ``{field, newSize}``; null where there is none or it is empty."""
    count = _count_elements(data, kinds, first, last)
    offsets, total = _list_offsets(count)
    inner_kinds, inner_first, inner_last = _elements(data, kinds, first, last, total)
    fields = np.zeros((total, 2), np.uint8)
    at = np.zeros((total, 2), np.int64)
    end = np.zeros((total, 2), np.int64)
    _truncations(data, inner_kinds, inner_first, inner_last, fields, at, end)
    bad = _rows_of(offsets, (fields[:, 0] != 2) | (fields[:, 1] != 16)) | (count < 0)
    values = pa.StructArray.from_arrays(
        [
            _strings(data, fields[:, 0], at[:, 0], end[:, 0]),
            pa.array(_numbers(data, fields[:, 1] == 16, at[:, 1], 4).astype(np.int32)),
        ],
        names=["field", "size"],
    )
    return _lists(offsets, values), bad


def _list_offsets(count: np.ndarray) -> tuple[np.ndarray, int]:
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(np.maximum(count, 0), out=offsets[1:])
    return offsets, int(offsets[-1])


def _lists(offsets: np.ndarray, values: pa.Array) -> pa.Array:
    empty = offsets[1:] == offsets[:-1]
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(empty))


def _rows_of(offsets: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Tell which lists have a flagged element."""
    before = np.concatenate([[0], np.cumsum(flags)])
    return before[offsets[1:]] != before[offsets[:-1]]


@kernel
def _count_elements(data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Count the elements of arrays; -1 for a broken one."""
    counts = np.zeros(len(kinds), np.int64)
    for row in range(len(kinds)):
        if kinds[row] != 4:
            continue
        at, end = first[row] + 4, last[row]
        while at < end - 1:
            stop = name_end(data, at + 1, end - 1)
            at = value_end(data, data[at], stop + 1, end - 1) if stop >= 0 else -1
            if at < 0:
                counts[row] = -1
                break
            counts[row] += 1
    return counts


@kernel
def _elements(
    data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the elements that :func:`_count_elements` counted."""
    inner_kinds = np.zeros(total, np.uint8)
    inner_first = np.zeros(total, np.int64)
    inner_last = np.zeros(total, np.int64)
    counts = _count_elements(data, kinds, first, last)
    n = 0
    for row in range(len(kinds)):
        at = first[row] + 4
        for _ in range(counts[row]):
            value = name_end(data, at + 1, last[row]) + 1
            following = value_end(data, data[at], value, last[row])
            inner_kinds[n], inner_first[n], inner_last[n] = data[at], value, following
            n += 1
            at = following
    return inner_kinds, inner_first, inner_last


@kernel
def _truncations(
    data: np.ndarray,
    kinds: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    fields: np.ndarray,
    at: np.ndarray,
    end: np.ndarray,
) -> None:
    for row in range(len(kinds)):
        if kinds[row] == 3:
            _keep(fields[row], at[row], end[row], 0, _find(data, first[row], last[row], _N_FIELD))
            _keep(fields[row], at[row], end[row], 1, _find(data, first[row], last[row], _N_SIZE))
