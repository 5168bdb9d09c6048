"""Decodes change events and snapshot documents to Arrow columns, from which envelopes are built.

Works on raw bytes (see :mod:`airflow_cdc_provider.formats.bson`): one kernel finds the offsets of the
relevant members, :mod:`airflow_cdc_provider.formats.extended_json` writes their texts.
``docs/formats/mongodb-events.md``, sections 2 to 6, describes which server events result in a row, and the
origin of each column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_slices
from airflow_cdc_provider.formats.bson import DOCUMENT as BSON_DOCUMENT
from airflow_cdc_provider.formats.bson import MAX_DEPTH, validate, value_end
from airflow_cdc_provider.formats.extended_json import BROKEN, CANONICAL, DOCUMENT, KEY, UPDATED, write_values
from airflow_cdc_provider.formats.kernels import Bytes, Ints, kernel
from airflow_cdc_provider.sources.mongodb.events.field_rules import FieldRules, Rewritten
from airflow_cdc_provider.sources.mongodb.events.members import (
    as_name,
    as_names,
    equals,
    find_member,
    find_members,
    keep_member,
    numbers,
    strings,
)
from airflow_cdc_provider.sources.mongodb.events.raw_values import shard_keys, values_as_documents
from airflow_cdc_provider.sources.mongodb.events.update_lists import removed_fields, truncated_arrays

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

``row``                 row number in the input.
``op``                  ``r``, ``c``, ``u`` or ``d``.
``id``                  Extended JSON of the ``_id`` value, profile KEY; ``null`` if there is none.
``before``, ``after``   whole documents, profile DOCUMENT.
``update_description``  of updates: removed paths, set paths and values (profile UPDATED), truncated arrays.
``source_ms``           the server's wall clock, else the second of the cluster time; null for snapshot reads.
``ord``                 increment of the cluster time, -1 without one.
``lsid``, ``txn_number``  of events in a transaction or a retryable write; servers send both or none.
``wall_ms``             the server's wall clock, null if unknown or 0.
"""


JSON_FORMS: Final[Mapping[str, tuple[int, int]]] = {
    "legacy": (DOCUMENT, UPDATED),
    "strict": (DOCUMENT, DOCUMENT),
    "relaxed": (KEY, KEY),
    "extended": (CANONICAL, CANONICAL),
}
"""Profiles of documents and of updatedFields, by Debezium's ``json.serialization.mode``."""

RAW_COLUMNS: Final = (
    pa.field("id_bson", pa.large_binary()),
    pa.field("before_bson", pa.large_binary()),
    pa.field("after_bson", pa.large_binary()),
    pa.field("updated_bson", pa.large_binary()),
)
"""Optional columns for transforms, in BSON: ``{id: key}``, documents, ``updatedFields``."""


@dataclass(frozen=True)
class EventForm:
    """Format of decoded events.

    Args:
        json: Format of documents, a name in :data:`JSON_FORMS`. Keys are always relaxed, ``lsid`` strict.
        document_key: Keys are the whole ``documentKey`` (shard key and ``_id``) instead of ``_id`` only.
        shard_key: Paths of the shard key of the collection that a snapshot reads.
        rules: Fields to leave out or rename, except in keys.
        raw: Whether to add :data:`RAW_COLUMNS`.
        tokens: Whether to add a column ``token``: the resume token, null for rows of snapshots.
    """

    json: str = "legacy"
    document_key: bool = False
    shard_key: tuple[str, ...] = ()
    rules: FieldRules = field(default_factory=lambda: FieldRules(()))
    raw: bool = False
    tokens: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns of the events."""
        more = [pa.field("token", pa.utf8())] if self.tokens else []
        return pa.schema([*EVENT_SCHEMA, *more, *(RAW_COLUMNS if self.raw else ())])


@dataclass(frozen=True)
class MongodbEvents:
    """The result of decoding raw events.

    Args:
        events: Batch of :data:`EVENT_SCHEMA`, in the order of the input.
        undecodable: Input rows that are left out: they are broken, or can't be rendered.
        reasons: The reason for each of them.
        inexact_keys: Number of events by collection whose key has bytes that are not UTF-8.
    """

    events: pa.RecordBatch
    undecodable: Sequence[int] = ()
    reasons: Sequence[str] = ()
    inexact_keys: Mapping[str, int] = field(default_factory=dict)


def decode_stream(
    payloads: pa.Array, *, full_document: FullDocument, pre_images: bool, form: EventForm = EventForm()
) -> MongodbEvents:
    """Decode raw change events.

    Args:
        payloads: Change event documents (binary). Those that change no document (drop ...) result in no row.
        full_document: Source of an update's full document; ``none`` always leaves it out.
        pre_images: Whether to include the document before the change if the event has it.
        form: Format of the events.

    Returns:
        The decoded events, and the undecodable rows.
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
    for slot in (_UPDATED, _REMOVED, _TRUNCATED):
        kinds[~updates, slot] = 0
    numbered = kinds[:, _TXN] == 18
    kinds[kinds[:, _LSID] != BSON_DOCUMENT, _LSID] = 0

    databases = strings(data, kinds[:, _DATABASE], first[:, _DATABASE], last[:, _DATABASE])
    collections = strings(data, kinds[:, _COLLECTION], first[:, _COLLECTION], last[:, _COLLECTION])
    rendered = _Rendered(form, data, databases, collections)
    id_slot = _KEY if form.document_key else _ID
    columns: dict[str, pa.Array] = {
        "id": rendered.key(data, kinds[:, id_slot], first[:, id_slot], last[:, id_slot]),
        "before": rendered.document("before_bson", kinds[:, _BEFORE], first[:, _BEFORE], last[:, _BEFORE]),
        "after": rendered.document("after_bson", kinds[:, _FULL], first[:, _FULL], last[:, _FULL]),
        "updated": rendered.updated(
            "updated_bson", kinds[:, _UPDATED], first[:, _UPDATED], last[:, _UPDATED]
        ),
        "lsid": rendered.value(kinds[:, _LSID], first[:, _LSID], last[:, _LSID], DOCUMENT),
    }
    lists = (form.rules, rendered.masks)
    removed, bad = removed_fields(data, kinds[:, _REMOVED], first[:, _REMOVED], last[:, _REMOVED], *lists)
    rendered.damaged |= bad
    truncated, bad = truncated_arrays(
        data, kinds[:, _TRUNCATED], first[:, _TRUNCATED], last[:, _TRUNCATED], *lists
    )
    rendered.damaged |= bad
    if form.tokens:
        columns["token"] = strings(data, kinds[:, _TOKEN], first[:, _TOKEN], last[:, _TOKEN]).cast(pa.utf8())
    if form.raw:
        rendered.raw["id_bson"] = values_as_documents(
            data, kinds[:, id_slot], first[:, id_slot], last[:, id_slot], b"id"
        )

    seconds = numbers(data, kinds[:, _CLUSTER] == 17, first[:, _CLUSTER] + 4, 4)
    increments = numbers(data, kinds[:, _CLUSTER] == 17, first[:, _CLUSTER], 4)
    wall = numbers(data, kinds[:, _WALL] == 9, first[:, _WALL], 8)
    wall_known = (kinds[:, _WALL] == 9) & (wall != 0)
    source_known = wall_known | (kinds[:, _CLUSTER] == 17)
    columns |= {
        "row": pa.array(rows, pa.int64()),
        "database": databases,
        "collection": collections,
        "op": pa.array(_OP_NAMES[ops]),
        "update_description": pa.StructArray.from_arrays(
            [removed, columns.pop("updated"), truncated],
            fields=list(UPDATE_DESCRIPTION),
            mask=pa.array(~updates),
        ),
        "source_ms": pa.array(np.where(wall_known, wall, (seconds & 0xFFFFFFFF) * 1000), mask=~source_known),
        "ord": pa.array(np.where(kinds[:, _CLUSTER] == 17, increments, -1).astype(np.int32)),
        "txn_number": pa.array(numbers(data, numbered, first[:, _TXN], 8), mask=~numbered),
        "wall_ms": pa.array(wall, mask=~wall_known),
        **rendered.raw,
    }
    batch = pa.record_batch([columns[f.name] for f in form.schema], schema=form.schema)
    return _build_result(
        batch,
        {
            **dict.fromkeys(
                map(int, np.flatnonzero(broken)), "the change event is broken BSON or lacks ns or documentKey"
            ),
            **{
                int(rows[row]): reason
                for row, reason in rendered.reasons(
                    "the change event is broken BSON or lacks ns or documentKey"
                ).items()
            },
        },
        rendered,
    )


def decode_snapshot(
    documents: pa.Array,
    database: str,
    collection: str,
    form: EventForm = EventForm(),
    versions: pa.Array | None = None,
) -> MongodbEvents:
    """Decode documents that a snapshot read.

    Args:
        documents: Whole documents (binary), in the order of reading.
        database: Their database.
        collection: Their collection.
        form: Format of the events.
        versions: For rows of incremental snapshots: the versions of their records, which are their positions
            in the stream (:mod:`.position`). Events contain them as changes do.

    Returns:
        The decoded events, and the undecodable rows.
    """
    data, starts, ends, _ = binary_slices(documents)
    count = len(starts)
    kinds = np.zeros(count, np.uint8)
    first = np.zeros(count, np.int64)
    last = np.zeros(count, np.int64)
    ops = np.zeros(count, np.int8)
    _scan_documents(data, starts, ends, kinds, first, last, ops)
    whole = np.where(ops > 0, 3, 0).astype(np.uint8)
    rendered = _Rendered(form, data, pa.repeat(database, count), pa.repeat(collection, count))
    rendered.damaged |= ops <= 0
    after = rendered.document("after_bson", whole, starts, ends)
    key_data = data
    if form.document_key:
        key_data, kinds, first, last = shard_keys(data, whole, starts, ends, form.shard_key)
    ids = rendered.key(key_data, kinds, first, last)
    if form.raw:
        rendered.raw["id_bson"] = values_as_documents(key_data, kinds, first, last, b"id")
    nothing = pa.nulls(count)
    columns = {
        "row": pa.array(np.arange(count)),
        "database": pa.repeat(database, count),
        "collection": pa.repeat(collection, count),
        "op": pa.repeat("r", count),
        "id": ids,
        "after": after,
        **_moments(versions, count),
        **rendered.raw,
    }
    schema = form.schema
    batch = pa.record_batch([columns.get(f.name, nothing).cast(f.type) for f in schema], schema=schema)
    return _build_result(batch, rendered.reasons("the document is broken BSON"), rendered)


def _moments(versions: pa.Array | None, count: int) -> dict[str, pa.Array]:
    """Return the columns with cluster time and increment of snapshot rows, as far as known."""
    if versions is None:
        return {"ord": pa.repeat(pa.scalar(-1, pa.int32()), count)}
    data, starts, _, _ = binary_slices(versions)
    times = data[starts[:, None] + np.arange(8)].view(">u4").astype(np.int64)
    return {"source_ms": pa.array(times[:, 0] * 1000), "ord": pa.array(times[:, 1].astype(np.int32))}


class _Rendered:
    """Renders values and documents, and tracks the rows that can't be rendered.

    Args:
        form: Format of the events.
        data: The buffer.
        databases: Database of each row.
        collections: Collection of each row.
    """

    def __init__(self, form: EventForm, data: np.ndarray, databases: pa.Array, collections: pa.Array) -> None:
        self._form = form
        self._data = data
        self._names = (databases, collections)
        self.masks = form.rules.masks(databases, collections) if form.rules else []
        self.damaged = np.zeros(len(databases), np.bool_)
        self._clashes = np.full(len(databases), -1, np.int64)
        self._inexact = np.zeros(len(databases), np.bool_)
        self.raw: dict[str, pa.Array] = {}

    def key(self, data: np.ndarray, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> pa.Array:
        """Render the keys of records."""
        text, status, self._inexact = write_values(data, kinds, first, last, KEY)
        self.damaged |= status == BROKEN
        return pc.fill_null(text, "null")

    def value(self, kinds: np.ndarray, first: np.ndarray, last: np.ndarray, profile: int) -> pa.Array:
        """Render values unchanged."""
        text, status, _ = write_values(self._data, kinds, first, last, profile)
        self.damaged |= status == BROKEN
        return text

    def document(self, raw: str, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> pa.Array:
        """Render whole documents after applying the rules; store them as raw column too if requested."""
        return self._ruled(raw, kinds, first, last, JSON_FORMS[self._form.json][0], dotted=False)

    def updated(self, raw: str, kinds: np.ndarray, first: np.ndarray, last: np.ndarray) -> pa.Array:
        """Render documents whose member names are paths, likewise."""
        return self._ruled(raw, kinds, first, last, JSON_FORMS[self._form.json][1], dotted=True)

    def _ruled(
        self, raw: str, kinds: np.ndarray, first: np.ndarray, last: np.ndarray, profile: int, *, dotted: bool
    ) -> pa.Array:
        found = Rewritten(self._data, first, last, np.empty(0))
        if self._form.rules:
            found = self._form.rules.rewrite(
                self._data, kinds == BSON_DOCUMENT, first, last, self.masks, dotted=dotted
            )
            self._clashes = np.where(self._clashes < 0, found.clashes, self._clashes)
        text, status, _ = write_values(found.data, kinds, found.starts, found.ends, profile)
        self.damaged |= status == BROKEN
        if self._form.raw:
            self.raw[raw] = values_as_documents(found.data, kinds, found.starts, found.ends)
        return text

    @property
    def left_out(self) -> np.ndarray:
        """Rows that are left out (bool)."""
        return self.damaged | (self._clashes >= 0)

    @property
    def inexact_keys(self) -> Counter[str]:
        """Number of rows by collection whose key has bytes that are not UTF-8."""
        rows = pa.array(np.flatnonzero(self._inexact & ~self.left_out))
        names = (column.take(rows).to_pylist() for column in self._names)
        return Counter(f"{database}.{collection}" for database, collection in zip(*names, strict=True))

    def reasons(self, broken: str) -> dict[int, str]:
        """Return why rows are left out, by row."""
        return {
            int(row): broken if self.damaged[row] else self._form.rules.reason(int(self._clashes[row]))
            for row in np.flatnonzero(self.left_out)
        }


def _build_result(batch: pa.RecordBatch, reasons: Mapping[int, str], rendered: _Rendered) -> MongodbEvents:
    left_out = sorted(reasons)
    kept = batch.filter(pa.array(~rendered.left_out)) if rendered.left_out.any() else batch
    texts = tuple(reasons[row] for row in left_out)
    return MongodbEvents(kept, tuple(left_out), texts, rendered.inexact_keys)


def split_documents(
    data: np.ndarray, *, change_events: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Split concatenated BSON documents and skip bytes that are not a document.

    After broken bytes, reading continues at the next valid document that is followed by another one or by the
    end, or that has the members of a change event. So a document nested in a broken one is not mistaken for a
    top-level one; a document between two broken sections may be lost with them unless it is a change event.

    Args:
        data: The bytes (``uint8``).
        change_events: Whether they are change events.

    Returns:
        Starts and ends of the documents, starts and ends of the broken sections (``int64``).
    """
    capacity = len(data) // 3 + 2  # a broken section of one byte and a document of five can alternate
    starts = np.empty(capacity, np.int64)
    ends = np.empty(capacity, np.int64)
    kept, lost = _split(np.ascontiguousarray(data, np.uint8), starts, ends, change_events)
    return starts[:kept], ends[:kept], starts[len(starts) - lost :][::-1], ends[len(ends) - lost :][::-1]


_SLOTS: Final = 15
_DATABASE, _COLLECTION, _ID, _FULL, _BEFORE, _UPDATED, _REMOVED, _TRUNCATED = range(8)
_CLUSTER, _WALL, _LSID, _TXN, _OPERATION, _KEY, _TOKEN = range(8, 15)

_OP_BROKEN: Final = -1
_OP_INSERT: Final = 1
_OP_UPDATE: Final = 2
_OP_REPLACE: Final = 3
_OP_DELETE: Final = 4
_OP_NAMES: Final = np.array(["", "c", "u", "u", "d"], dtype=object)


_N_OPERATION: Final = as_name("operationType")
_N_NS: Final = as_name("ns")
_N_DB: Final = as_name("db")
_N_COLL: Final = as_name("coll")
_N_ID: Final = as_name("_id")
_N_DATA: Final = as_name("_data")
_N_UPDATED: Final = as_name("updatedFields")
_N_REMOVED: Final = as_name("removedFields")
_N_TRUNCATED: Final = as_name("truncatedArrays")
_TOP: Final = (
    "operationType",
    "ns",
    "documentKey",
    "_id",
    "updateDescription",
    "fullDocument",
    "fullDocumentBeforeChange",
    "clusterTime",
    "wallTime",
    "lsid",
    "txnNumber",
)
_T_OPERATION, _T_NS, _T_KEY, _T_TOKEN, _T_DESCRIPTION = range(5)
_TOP_NAMES, _TOP_ENDS = as_names(_TOP)
_KEPT: Final = tuple(
    (slot, _TOP.index(name))
    for slot, name in (
        (_KEY, "documentKey"),
        (_FULL, "fullDocument"),
        (_BEFORE, "fullDocumentBeforeChange"),
        (_CLUSTER, "clusterTime"),
        (_WALL, "wallTime"),
        (_LSID, "lsid"),
        (_TXN, "txnNumber"),
    )
)
"""Slots of members that are stored unchanged, and their indexes in the names above."""
_O_INSERT: Final = as_name("insert")
_O_UPDATE: Final = as_name("update")
_O_REPLACE: Final = as_name("replace")
_O_DELETE: Final = as_name("delete")


@kernel
def _scan(data: Bytes, starts: Ints, ends: Ints, kinds: Ints, first: Ints, last: Ints, ops: Ints) -> None:
    """Find the members of each change event; see the slots above."""
    stack = np.empty(MAX_DEPTH, np.int64)
    top_kinds, top_first, top_last = np.empty((3, len(_TOP_ENDS)), np.int64)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        ops[row] = _OP_BROKEN
        if _valid_end(data, start, end, stack) != end:
            continue
        find_members(data, start, end, _TOP_NAMES, _TOP_ENDS, top_kinds, top_first, top_last)
        if top_kinds[_T_OPERATION] != 2:
            continue
        at, stop = top_first[_T_OPERATION] + 4, top_last[_T_OPERATION]
        op = 0
        if equals(data, at, stop, _O_INSERT):
            op = _OP_INSERT
        elif equals(data, at, stop, _O_UPDATE):
            op = _OP_UPDATE
        elif equals(data, at, stop, _O_REPLACE):
            op = _OP_REPLACE
        elif equals(data, at, stop, _O_DELETE):
            op = _OP_DELETE
        else:
            ops[row] = 0
            continue
        if top_kinds[_T_NS] != 3 or top_kinds[_T_KEY] != 3:
            continue
        k, f, e = kinds[row], first[row], last[row]
        namespace, namespace_end = top_first[_T_NS], top_last[_T_NS]
        keep_member(k, f, e, _DATABASE, find_member(data, namespace, namespace_end, _N_DB))
        keep_member(k, f, e, _COLLECTION, find_member(data, namespace, namespace_end, _N_COLL))
        if k[_DATABASE] != 2 or k[_COLLECTION] != 2:
            continue
        for slot, top in _KEPT:
            keep_member(k, f, e, slot, (top_kinds[top], top_first[top], top_last[top]))
        if top_kinds[_T_TOKEN] == 3:
            keep_member(k, f, e, _TOKEN, find_member(data, top_first[_T_TOKEN], top_last[_T_TOKEN], _N_DATA))
        keep_member(k, f, e, _ID, find_member(data, top_first[_T_KEY], top_last[_T_KEY], _N_ID))
        if top_kinds[_T_DESCRIPTION] == 3:
            at, stop = top_first[_T_DESCRIPTION], top_last[_T_DESCRIPTION]
            keep_member(k, f, e, _UPDATED, find_member(data, at, stop, _N_UPDATED))
            keep_member(k, f, e, _REMOVED, find_member(data, at, stop, _N_REMOVED))
            keep_member(k, f, e, _TRUNCATED, find_member(data, at, stop, _N_TRUNCATED))
        ops[row] = op


@kernel
def _scan_documents(
    data: Bytes, starts: Ints, ends: Ints, kinds: Ints, first: Ints, last: Ints, ops: Ints
) -> None:
    """Find ``_id`` of each document."""
    stack = np.empty(MAX_DEPTH, np.int64)
    for row in range(len(starts)):
        if _valid_end(data, starts[row], ends[row], stack) == ends[row]:
            found = find_member(data, starts[row], ends[row], _N_ID)
            if found[0] >= 0:
                ops[row] = _OP_INSERT
            if found[0] not in (0, -1, 10):
                kinds[row], first[row], last[row] = found[0], found[1], found[2]


@kernel
def _valid_end(data: Bytes, start: int, limit: int, stack: Ints) -> int:
    """Return the end of a document that is valid to its leaves; -1 for any other."""
    end = value_end(data, BSON_DOCUMENT, start, limit)
    if end < 0 or validate(data, start, end, stack)[0] != 0:
        return -1
    return end


@kernel
def _split(data: Bytes, starts: Ints, ends: Ints, change_events: bool) -> tuple[int, int]:
    """Fill documents from the front, broken sections from the back; return the number of each."""
    stack = np.empty(MAX_DEPTH, np.int64)
    size = len(data)
    at, kept, lost = 0, 0, 0
    while at < size:
        end = _valid_end(data, at, size, stack)
        if end >= 0:
            starts[kept], ends[kept] = at, end
            kept += 1
            at = end
            continue
        broken = at
        at += 1
        while at < size:
            end = _valid_end(data, at, size, stack)
            if end >= 0:
                if end == size or _valid_end(data, end, size, stack) >= 0:
                    break
                named = (
                    find_member(data, at, end, _N_OPERATION)[0] == 2
                    and find_member(data, at, end, _N_NS)[0] == 3
                )
                if change_events and named:
                    break
            at += 1
        lost += 1
        starts[len(starts) - lost], ends[len(ends) - lost] = broken, at
    return kept, lost
