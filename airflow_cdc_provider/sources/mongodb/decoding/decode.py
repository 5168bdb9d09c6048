"""Decodes change records of one collection to contributions.

* Inserts, replaces and snapshot records contain the document; an update contains the one that the server
  looked up or recorded.
* An update whose look-up found nothing (``fullDocument: null``) contributes nothing: the document was deleted
  or replaced since, and that change follows.
* With ``full_document: none`` an update has only its ``updateDescription``: a patch, which the merge applies
  to the document in the mirror (:mod:`.patches`). So is an update whose post-image wasn't recorded: if the
  merge doesn't have the document, its key is unresolved, and re-read.
* Any other update without a document is reported as undecodable.
* A snapshot record without a payload means that the document doesn't exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    DELETE,
    PATCH,
    ROW,
    UPSERT,
    generations,
)
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, span_column
from airflow_cdc_provider.formats.bson import DOCUMENT, FAULTS, NULL, validate_all
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.mongodb.change_stream import change_event
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import States, read_states

FullDocument = Literal["lookup", "post_image", "none"]
"""Values of option ``full_document``."""

_NOTHING: Final = 0
_PUT: Final = 1
_REMOVE: Final = 2
_PATCHED: Final = 3
_BROKEN: Final = 4
_NO_DOCUMENT: Final = 5
_NO_POST_IMAGE: Final = 6
_NO_KEY: Final = 7
_CONTRIBUTING: Final = (_PUT, _REMOVE, _PATCHED)
_OPERATIONS: Final = np.array([0, UPSERT, DELETE, PATCH], np.int8)
_REASONS: Final = {
    _NO_DOCUMENT: "NO-DOCUMENT: the change has no document; update descriptions are applied only with "
    "full_document: none",
    _NO_POST_IMAGE: "NO-POST-IMAGE: no post-image was recorded; enable changeStreamPreAndPostImages for the "
    "collection, or use full_document: lookup",
    _NO_KEY: "NO-KEY: the change has no documentKey._id",
}


def decode(changes: pa.RecordBatch, fences: Sequence[Fence], full_document: FullDocument) -> Decoded:
    """Decode changes of kind ``change`` and ``snapshot``; rows of other kinds are ignored.

    Args:
        changes: Records of one collection.
        fences: Its fences.
        full_document: Source of the documents of updates (option ``full_document``).
    """
    data, starts, ends = binary_buffer(changes.column("payload"))
    kind = changes.column("kind")
    is_change = pc.equal(kind, CHANGE).to_numpy(zero_copy_only=False)
    is_snapshot = pc.equal(kind, SNAPSHOT).to_numpy(zero_copy_only=False)
    found = read_states(data, np.where(is_change, starts, -1), np.where(is_change, ends, -1))
    effects = _effects(found, full_document)
    effects[~is_change] = _NOTHING
    effects[is_change & ~found.sound] = _BROKEN
    effects[is_snapshot] = np.where(starts >= 0, _PUT, _REMOVE)[is_snapshot]
    no_key = changes.column("key").is_null().to_numpy(zero_copy_only=False)
    effects[no_key & np.isin(effects, _CONTRIBUTING)] = _NO_KEY
    state_spans = [(is_snapshot, starts, ends)]
    state_spans += [
        (effects == _PUT, found.documents.starts, found.documents.ends),
        (effects == _PATCHED, found.patches.starts, found.patches.ends),
    ]
    has_state = [((effects == _PUT) | (effects == _PATCHED)) & mask for mask, _, _ in state_spans]
    state_starts = np.select(has_state, [first for _, first, _ in state_spans], -1)
    state_ends = np.select(has_state, [last for _, _, last in state_spans], -1)
    faults, offsets = np.zeros((2, len(starts)), np.int64)
    validate_all(data, state_starts, state_ends, faults, offsets)
    effects[faults != 0] = _BROKEN
    rows = np.flatnonzero(np.isin(effects, _CONTRIBUTING))
    chosen = _take_rows(changes, rows)
    contributions = pa.RecordBatch.from_arrays(
        [
            chosen.column("key"),
            pa.repeat(pa.scalar(ROW, pa.int8()), len(rows)),
            pa.repeat(pa.scalar(b"", pa.binary()), len(rows)),
            pa.nulls(len(rows), pa.binary()),
            generations(chosen, fences),
            chosen.column("version"),
            pa.array(_OPERATIONS[effects[rows]]),
            span_column(pa.binary(), data, state_starts[rows], state_ends[rows]),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )
    left_out = np.flatnonzero(effects >= _BROKEN)
    faults, offsets = np.zeros((2, len(left_out)), np.int64)
    validate_all(data, starts[left_out], ends[left_out], faults, offsets)
    reasons = [
        _reason(int(effects[row]), int(faults[n]), int(offsets[n] - starts[row]))
        for n, row in enumerate(left_out)
    ]
    return Decoded(contributions, tuple(int(row) for row in left_out), tuple(reasons))


def _effects(found: States, full_document: FullDocument) -> Ints:
    """Return the effect of each event on its row."""
    operation, document_kinds = found.operations, found.documents.kinds
    has_document = document_kinds == DOCUMENT
    no_image = (document_kinds == NULL) & (full_document == "post_image")
    has_patch = (found.patches.kinds == DOCUMENT) & (no_image | (full_document == "none"))
    is_update = operation == change_event.UPDATE
    is_whole = (operation == change_event.INSERT) | (operation == change_event.REPLACE)
    missing = _NO_POST_IMAGE if full_document == "post_image" else _NOTHING
    return np.select(
        [
            operation == change_event.DELETE,
            (is_update | is_whole) & has_document,
            is_update & has_patch,
            is_update & (document_kinds == NULL),
            is_update | is_whole,
        ],
        [_REMOVE, _PUT, _PATCHED, missing, _NO_DOCUMENT],
        default=_NOTHING,
    )


def _take_rows(changes: pa.RecordBatch, rows: Ints) -> pa.RecordBatch:
    """Return rows with the columns that contributions need."""
    columns = changes.select(["key", "version", "generation", "origin", "position"])
    return columns if len(rows) == len(changes) else columns.take(pa.array(rows))


def _reason(effect: int, fault: int, offset: int) -> str:
    if effect == _BROKEN:
        return f"BROKEN-BSON: {FAULTS[fault] or 'the payload is missing'}, at byte {offset}"
    return _REASONS[effect]
