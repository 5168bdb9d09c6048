"""Decoding: change records of one collection to contributions, and live documents to the mirror's columns.

The greatest version wins whole (model ``row``): the state of a row is its document, as BSON.

* insert, replace and snapshot carry the document; an update carries the one that the server looked up or
  recorded.
* An update whose look-up found nothing (``fullDocument: null``) adds nothing: the document was deleted or
  replaced since, and the change that did it follows.
* An update without a document can't be applied and is reported as undecodable: no ``fullDocument`` was asked
  for, or no post-image was recorded. Its row needs to be read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, ROW, UPSERT
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.sources.base import Decoded
from airflow_cdc_provider.sources.mongodb import change_event
from airflow_cdc_provider.sources.mongodb.arrow import binary_buffer, span_column
from airflow_cdc_provider.sources.mongodb.bson import DOCUMENT, FAULTS, NULL, Ints, find_in_all, validate_all
from airflow_cdc_provider.sources.mongodb.canonical_json import write_values
from airflow_cdc_provider.sources.mongodb.change_event import read_states
from airflow_cdc_provider.sources.mongodb.columns import DeclaredColumn, read_columns
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions

MISFITS: Final = b"cdc.misfits"
"""Metadata of a projected batch's schema: JSON, column -> values that it couldn't hold exactly."""

LAKE_TYPE: Final = b"cdc.lake_type"
"""Metadata of a field whose text the lake should store as another type: ``variant``."""

_NOTHING: Final = 0
_PUT: Final = 1
_REMOVE: Final = 2
_BROKEN: Final = 3
_NO_DOCUMENT: Final = 4
_NO_POST_IMAGE: Final = 5
_NO_KEY: Final = 6
_REASONS: Final = {
    _NO_DOCUMENT: "NO-DOCUMENT: the change carries no document; "
    "option full_document must be lookup or post_image",
    _NO_POST_IMAGE: "NO-POST-IMAGE: no post-image was recorded; turn on changeStreamPreAndPostImages for the "
    "collection, or use full_document: lookup",
    _NO_KEY: "NO-KEY: the change carries no documentKey._id",
}


@dataclass(eq=False)
class MongodbCodec:
    """Decodes one collection. Picklable; no I/O.

    Args:
        table: ``database.collection``.
        full_document: Where documents of updates come from (option ``full_document``).
        document_column: How the mirror holds the exact document (option ``document_column``).
        columns: The collection's declared columns.
    """

    table: str
    full_document: Literal["lookup", "post_image", "none"] = "lookup"
    document_column: Literal["extended_json", "variant", "none"] = "extended_json"
    columns: tuple[DeclaredColumn, ...] = ()
    model: Literal["row", "cell"] = "row"
    rules: str = ""
    drift: Drift = NO_DRIFT
    created_us: int = 0
    column_ids: frozenset[int] | None = None
    lived_by: tuple[str, ...] | None = None
    static_columns: None = None

    @classmethod
    def of(cls, table: str, options: MongodbOptions) -> MongodbCodec:
        """Build the codec of a collection by the source's options.

        Raises:
            ConfigurationError: A declared column is wrong.
        """
        declared = options.columns.get(table, {})
        columns = tuple(DeclaredColumn.parse(table, name, text) for name, text in declared.items())
        return cls(table, options.full_document, options.document_column, columns)

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``; rows of other kinds give nothing.

        Args:
            changes: Batch of ``CHANGE_SCHEMA``, all of this collection.
            fences: The collection's fences.
        """
        data, starts, ends = binary_buffer(changes.column("payload"))
        kind = changes.column("kind")
        is_change = pc.equal(kind, CHANGE).to_numpy(zero_copy_only=False)
        is_snapshot = pc.equal(kind, SNAPSHOT).to_numpy(zero_copy_only=False)
        operations, images, sound = read_states(
            data, np.where(is_change, starts, -1), np.where(is_change, ends, -1)
        )
        what = self._what(operations, images.kinds)
        what[~is_change] = _NOTHING
        what[is_change & ~sound] = _BROKEN
        what[is_snapshot] = _PUT
        no_key = changes.column("key").is_null().to_numpy(zero_copy_only=False)
        what[no_key & ((what == _PUT) | (what == _REMOVE))] = _NO_KEY
        has_state = what == _PUT
        state_starts = np.where(has_state, np.where(is_snapshot, starts, images.starts), -1)
        state_ends = np.where(is_snapshot, ends, images.ends)
        faults, places = np.zeros((2, len(starts)), np.int64)
        validate_all(data, state_starts, state_ends, faults, places)
        what[faults != 0] = _BROKEN
        taken = np.flatnonzero((what == _PUT) | (what == _REMOVE))
        is_put = what[taken] == _PUT
        chosen = _only(changes, taken)
        contributions = pa.RecordBatch.from_arrays(
            [
                chosen.column("key"),
                pa.repeat(pa.scalar(ROW, pa.int8()), len(taken)),
                pa.repeat(pa.scalar(b"", pa.binary()), len(taken)),
                pa.nulls(len(taken), pa.binary()),
                _generations(chosen, fences),
                chosen.column("version"),
                pa.array(np.where(is_put, UPSERT, DELETE).astype(np.int8)),
                span_column(pa.binary(), data, state_starts[taken], state_ends[taken]),
            ],
            schema=CONTRIBUTION_SCHEMA,
        )
        left_out = np.flatnonzero(what >= _BROKEN)
        whole, where = np.zeros((2, len(left_out)), np.int64)
        validate_all(data, starts[left_out], ends[left_out], whole, where)
        reasons = [
            _reason(int(what[row]), int(whole[n]), int(where[n] - starts[row]))
            for n, row in enumerate(left_out)
        ]
        return Decoded(contributions, tuple(int(row) for row in left_out), tuple(reasons))

    def mirror_schema(self) -> pa.Schema:
        """Return ``_id``, ``document`` unless switched off, and the declared columns."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        fields = [pa.field("_id", pa.string())]
        if self.document_column != "none":
            metadata = {LAKE_TYPE: b"variant"} if self.document_column == "variant" else None
            fields.append(pa.field("document", pa.string(), metadata=metadata))
        return pa.schema([*fields, *(pa.field(column.name, column.type) for column in self.columns)])

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show live rows as the mirror's columns.

        Values that their column can't hold exactly are null, and counted in the metadata :data:`MISFITS` of
        the batch's schema; it is there only if there are some.
        """
        data, starts, ends = binary_buffer(rows.column("state"))
        ids = write_values(data, *find_in_all(data, starts, ends, b"_id"), ascii_only=False)
        arrays = [ids.column]
        misfits = {"_id": ids.not_utf8}
        if self.document_column != "none":
            texts = write_values(data, _kinds(starts), starts, ends, ascii_only=False)
            arrays.append(texts.column)
            misfits["document"] = texts.not_utf8
        declared = read_columns(self.columns, data, starts, ends)
        for column, (array, count) in zip(self.columns, declared, strict=True):
            arrays.append(array)
            misfits[column.name] = count
        found = {name: count for name, count in misfits.items() if count}
        schema = self._schema.with_metadata({MISFITS: json.dumps(found).encode()}) if found else self._schema
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Show live documents as canonical Extended JSON, as ``json_util`` prints it, a text each."""
        data, starts, ends = binary_buffer(rows.column("state"))
        yield from write_values(data, _kinds(starts), starts, ends, ascii_only=True).column.to_pylist()

    def _what(self, operation: Ints, document_kinds: Ints) -> Ints:
        """Decide what each event does to its row."""
        has_document = document_kinds == DOCUMENT
        is_update = operation == change_event.UPDATE
        is_whole = (operation == change_event.INSERT) | (operation == change_event.REPLACE)
        missing = _NO_POST_IMAGE if self.full_document == "post_image" else _NOTHING
        return np.select(
            [
                operation == change_event.DELETE,
                (is_update | is_whole) & has_document,
                is_update & (document_kinds == NULL),
                is_update | is_whole,
            ],
            [_REMOVE, _PUT, missing, _NO_DOCUMENT],
            default=_NOTHING,
        )


def _only(changes: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """Take rows, of the columns that contributions need."""
    columns = changes.select(["key", "version", "generation", "origin", "position"])
    return columns if len(rows) == len(changes) else columns.take(pa.array(rows))


def _kinds(starts: Ints) -> Ints:
    return np.where(starts >= 0, DOCUMENT, 0)


def _reason(what: int, fault: int, place: int) -> str:
    if what == _BROKEN:
        return f"BROKEN-BSON: {FAULTS[fault] or 'there is no payload'}, at byte {place}"
    return _REASONS[what]


def _generations(changes: pa.RecordBatch, fences: Sequence[Fence]) -> pa.Array:
    """Give each row its generation (see :func:`airflow_cdc_provider.changes.fence.generation_at`)."""
    generations = changes.column("generation").fill_null(0)
    for fence in fences:
        later = pc.greater(changes.column("position"), pa.scalar(fence.position, pa.binary()))
        if fence.origin:
            later = pc.and_(later, pc.equal(changes.column("origin"), fence.origin))
        raised = pc.max_element_wise(generations, pa.scalar(fence.generation, pa.int64()))
        generations = pc.if_else(later.fill_null(False), raised, generations)
    return generations
