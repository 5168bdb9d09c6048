"""Decodes records of one table to contributions, by the schema of each row.

* The after-image of a change is upserted; the before-image is deleted if there is no after-image, or if it
has
  another key.
* A change with a before-image in a shard that a reshard created proves that the row existed: it also deletes
the
  rows of that key in the shard's ancestors.
* A snapshot record without a payload means that no row has its key.
* Tables without a key are read in full at each run: only snapshot records count, and each is a separate row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, ROW, UPSERT, generations
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.vitess.fields import TableShape
from airflow_cdc_provider.sources.vitess.rows import (
    FAULTS,
    Bitmaps,
    Changes,
    bit_of_each,
    mark_unknown,
    read_changes,
    read_rows,
)
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from airflow_cdc_provider.sources.vitess.states import key_prefix, write_keys, write_states

_VALID: Final = 0
_NO_FIELDS: Final = 1
_BROKEN: Final = 2
_WIDTH: Final = 3
_PARTIAL: Final = 4
_PARTIAL_JSON: Final = 5
_NO_KEY: Final = 6
_NO_ROW: Final = 7

_REASONS: Final = {
    _NO_FIELDS: "NO-FIELDS: the fields of the row aren't recorded",
    _PARTIAL: "PARTIAL-ROW: the binlog doesn't contain all columns; set binlog_row_image to FULL on the "
    "shards' servers and take a snapshot of the table",
    _PARTIAL_JSON: "PARTIAL-JSON: the binlog contains an update of a JSON value instead of the value; "
    "clear binlog_row_value_options on the shards' servers and take a snapshot of the table",
    _NO_KEY: "NO-KEY: a key column is NULL",
    _NO_ROW: "NO-ROW: the change has neither a before-image nor an after-image",
}


@dataclass
class _Parts:
    """Columns of contributions in parts, each with the input rows from which it was built."""

    keys: list[pa.Array] = field(default_factory=list)
    states: list[pa.Array] = field(default_factory=list)
    operations: list[npt.NDArray[np.int8]] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)

    def add(self, keys: pa.Array, states: pa.Array, operation: int, rows: Ints) -> None:
        if len(rows):
            self.keys.append(keys)
            self.states.append(states)
            self.operations.append(np.full(len(rows), operation, np.int8))
            self.rows.append(rows)


def decode(
    changes: pa.RecordBatch,
    history: TableHistory,
    lineage: Mapping[str, Sequence[str]],
    fences: Sequence[Fence],
) -> Decoded:
    """Decode changes of kind ``change`` and ``snapshot``; ignore rows of other kinds.

    Args:
        changes: Batch of ``CHANGE_SCHEMA``, all of one table.
        history: Schema history of the table.
        lineage: Ancestors of each shard.
        fences: Fences of the table.

    Returns:
        The contributions, and the rows that can't be decoded with the reasons.
    """
    data, starts, ends = binary_buffer(changes.column("payload"))
    is_change = pc.equal(changes.column("kind"), CHANGE).to_numpy(zero_copy_only=False)
    is_snapshot = pc.equal(changes.column("kind"), SNAPSHOT).to_numpy(zero_copy_only=False)
    is_decodable = is_change | is_snapshot
    faults = np.zeros(len(starts), np.int64)
    details: dict[int, str] = {}
    parts = _Parts()
    absent = np.flatnonzero(is_snapshot & (starts < 0))
    keys = changes.column("key")
    parts.add(keys.take(pa.array(absent)), pa.nulls(len(absent), pa.binary()), DELETE, absent)
    is_decodable &= ~(is_snapshot & (starts < 0))
    names = pc.dictionary_encode(changes.column("schema_id"))
    name_of = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    faults[is_decodable & (name_of < 0)] = _NO_FIELDS
    changed_rows = read_changes(data, np.where(is_decodable, starts, -1), ends)
    for number, name in enumerate(names.dictionary.to_pylist()):
        rows = np.flatnonzero(is_decodable & (name_of == number))
        shape = history.by_digest.get(_digest(name))
        if shape is None:
            faults[rows] = _NO_FIELDS
        elif len(rows):
            table = history.shapes[shape]
            group = _Group(data, changed_rows, rows, table, history.digests[shape], is_change[rows])
            group.decode(changes, lineage, parts, faults, details)
    undecodable = np.flatnonzero(faults)
    reasons = [details.get(int(row)) or _REASONS[int(faults[row])] for row in undecodable]
    order = np.concatenate(parts.rows) if parts.rows else np.empty(0, np.int64)
    return Decoded(
        _contributions(changes, parts, order, fences),
        tuple(int(row) for row in undecodable),
        tuple(reasons),
        order.tolist(),
    )


@dataclass(frozen=True)
class _Group:
    """Rows of a batch that have the same fields."""

    data: Bytes
    changed_rows: Changes
    rows: Ints
    shape: TableShape
    digest: bytes
    is_change: Flags

    def decode(
        self,
        changes: pa.RecordBatch,
        lineage: Mapping[str, Sequence[str]],
        parts: _Parts,
        faults: Ints,
        details: dict[int, str],
    ) -> None:
        """Add the contributions of the rows, or their faults."""
        width = len(self.shape.columns)
        before = self.changed_rows.before.starts[self.rows], self.changed_rows.before.ends[self.rows]
        after = self.changed_rows.after.starts[self.rows], self.changed_rows.after.ends[self.rows]
        has_before, has_after = before[0] >= 0, after[0] >= 0
        found = np.zeros(len(self.rows), np.int64)
        found[~has_before & ~has_after] = _NO_ROW
        old = read_rows(self.data, *before, width)
        new = read_rows(self.data, *after, width)
        for values, is_present in ((old, has_before), (new, has_after)):
            found[is_present & (values.counts != width)] = _WIDTH
            found[values.faults != 0] = _BROKEN
        data_columns = _only(self.changed_rows.data_columns, self.rows)
        found[mark_unknown(self.data, new, data_columns) > 0] = _PARTIAL
        json_partial = _only(self.changed_rows.json_partial, self.rows)
        for number in range(sum(column.type.name == "json" for column in self.shape.columns)):
            found[bit_of_each(self.data, json_partial, number) & (found == _VALID)] = _PARTIAL_JSON
        found[self.changed_rows.faults[self.rows] != 0] = _BROKEN
        own_faults = self.changed_rows.faults[self.rows]
        for row_index in np.flatnonzero(found == _BROKEN):
            fault = int(own_faults[row_index] or old.faults[row_index] or new.faults[row_index])
            details[int(self.rows[row_index])] = f"BROKEN-ROW: {FAULTS[fault]}"
        for row_index in np.flatnonzero(found == _WIDTH):
            count = (
                old.counts[row_index]
                if has_before[row_index] and old.counts[row_index] != width
                else new.counts[row_index]
            )
            details[int(self.rows[row_index])] = f"ROW-WIDTH: {count} values for {width} columns"
        if not self.shape.key:
            self._decode_keyless(changes, parts, found, after)
        else:
            shards = pc.dictionary_encode(changes.column("origin").take(pa.array(self.rows)))
            names = shards.dictionary.to_pylist()
            shard_of = shards.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            row_indexes = np.arange(len(self.rows))
            new_keys, no_new = write_keys(self.shape, self.data, new, row_indexes, names, shard_of)
            old_keys, no_old = write_keys(self.shape, self.data, old, row_indexes, names, shard_of)
            found[((has_after & no_new) | (has_before & no_old)) & (found == _VALID)] = _NO_KEY
            valid = found == _VALID
            upserts = np.flatnonzero(valid & has_after)
            states = write_states(self.data, after[0][upserts], after[1][upserts], self.digest)
            parts.add(new_keys.take(pa.array(upserts)), states, UPSERT, self.rows[upserts])
            moved = pc.not_equal(old_keys, new_keys).to_numpy(zero_copy_only=False)
            self._delete(parts, old_keys, valid & has_before & (~has_after | moved))
            for child, name in enumerate(names):
                inherited = valid & has_before & self.is_change & (shard_of == child)
                for ancestor in lineage.get(name, ()):
                    rows = np.flatnonzero(inherited)
                    keys, _ = write_keys(
                        self.shape, self.data, old, rows, [ancestor], np.zeros(len(rows), np.int64)
                    )
                    parts.add(keys, pa.nulls(len(rows), pa.binary()), DELETE, self.rows[rows])
        faults[self.rows] = found

    def _delete(self, parts: _Parts, keys: pa.Array, which: Flags) -> None:
        rows = np.flatnonzero(which)
        parts.add(keys.take(pa.array(rows)), pa.nulls(len(rows), pa.binary()), DELETE, self.rows[rows])

    def _decode_keyless(
        self, changes: pa.RecordBatch, parts: _Parts, found: Ints, after: tuple[Ints, Ints]
    ) -> None:
        """Upsert snapshot rows with their position as the key, which is unique in a shard."""
        upserts = np.flatnonzero((found == _VALID) & (after[0] >= 0) & ~self.is_change)
        chosen = pa.array(self.rows[upserts])
        shards = pc.dictionary_encode(changes.column("origin").take(chosen))
        prefixes = pa.array([key_prefix(name) for name in shards.dictionary.to_pylist()], pa.binary())
        keys = pc.binary_join_element_wise(
            prefixes.take(shards.indices),
            changes.column("position").take(chosen),
            pa.scalar(b"", pa.binary()),
        )
        states = write_states(self.data, after[0][upserts], after[1][upserts], self.digest)
        parts.add(keys, states, UPSERT, self.rows[upserts])


def _contributions(
    changes: pa.RecordBatch, parts: _Parts, order: Ints, fences: Sequence[Fence]
) -> pa.RecordBatch:
    chosen = changes.select(["version", "generation", "origin", "position"]).take(pa.array(order))
    count = len(order)
    operations = np.concatenate(parts.operations) if parts.operations else np.empty(0, np.int8)
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays(parts.keys) if parts.keys else pa.array([], pa.binary()),
            pa.repeat(pa.scalar(ROW, pa.int8()), count),
            pa.repeat(pa.scalar(b"", pa.binary()), count),
            pa.nulls(count, pa.binary()),
            generations(chosen, fences),
            chosen.column("version"),
            pa.array(operations),
            pa.concat_arrays(parts.states) if parts.states else pa.array([], pa.binary()),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )


def _only(bitmaps: Bitmaps, rows: Ints) -> Bitmaps:
    return Bitmaps(bitmaps.starts[rows], bitmaps.counts[rows])


def _digest(name: str) -> bytes:
    """Return the 16 bytes of a ``schema_id``; empty if it is invalid."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""
