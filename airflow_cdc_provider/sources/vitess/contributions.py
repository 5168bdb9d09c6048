"""Decoding: records of one table to contributions, by the fields that each row came with.

* A row after a change is put; a row before is deleted where the change left none, or one of another key.
* A change of a shard that a reshard made, with a row before, proves that the row was there: it also deletes
  the rows of that key which the shard's ancestors had.
* A snapshot's record without a payload says that there is no row of its key.
* Tables without a key are read in full at each run: only records of snapshots count, each a row of its own.
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
from airflow_cdc_provider.changes.spans import Bytes, Ints, binary_buffer
from airflow_cdc_provider.sources.base import Decoded
from airflow_cdc_provider.sources.vitess.fields import TableShape
from airflow_cdc_provider.sources.vitess.history import TableHistory
from airflow_cdc_provider.sources.vitess.rows import (
    FAULTS,
    Bitmaps,
    Changes,
    bit_of_each,
    mark_unknown,
    read_changes,
    read_rows,
)
from airflow_cdc_provider.sources.vitess.states import key_prefix, write_keys, write_states

Mask = npt.NDArray[np.bool_]

_SOUND: Final = 0
_NO_FIELDS: Final = 1
_BROKEN: Final = 2
_WIDTH: Final = 3
_PARTIAL: Final = 4
_PARTIAL_JSON: Final = 5
_NO_KEY: Final = 6
_NO_ROW: Final = 7

_REASONS: Final = {
    _NO_FIELDS: "NO-FIELDS: the fields that the row came with aren't recorded",
    _PARTIAL: "PARTIAL-ROW: the binlog doesn't have all columns; set binlog_row_image to FULL on the shards' "
    "servers and take a snapshot of the table",
    _PARTIAL_JSON: "PARTIAL-JSON: the binlog has what an update did to a JSON value instead of the value; "
    "clear binlog_row_value_options on the shards' servers and take a snapshot of the table",
    _NO_KEY: "NO-KEY: a column of the key has no value",
    _NO_ROW: "NO-ROW: the change has neither a row before nor one after",
}


@dataclass
class _Made:
    """Pieces of contributions, each with the rows of the input that they are of."""

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
    """Decode changes of kind ``change`` and ``snapshot``; rows of other kinds give nothing.

    Args:
        changes: Batch of ``CHANGE_SCHEMA``, all of one table.
        history: The table's.
        lineage: Per shard its ancestors.
        fences: The table's.
    """
    data, starts, ends = binary_buffer(changes.column("payload"))
    is_change = pc.equal(changes.column("kind"), CHANGE).to_numpy(zero_copy_only=False)
    is_snapshot = pc.equal(changes.column("kind"), SNAPSHOT).to_numpy(zero_copy_only=False)
    wanted = is_change | is_snapshot
    faults = np.zeros(len(starts), np.int64)
    details: dict[int, str] = {}
    made = _Made()
    gone = np.flatnonzero(is_snapshot & (starts < 0))
    keys = changes.column("key")
    made.add(keys.take(pa.array(gone)), pa.nulls(len(gone), pa.binary()), DELETE, gone)
    wanted &= ~(is_snapshot & (starts < 0))
    names = pc.dictionary_encode(changes.column("schema_id"))
    name_of = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    faults[wanted & (name_of < 0)] = _NO_FIELDS
    parts = read_changes(data, np.where(wanted, starts, -1), ends)
    for number, name in enumerate(names.dictionary.to_pylist()):
        rows = np.flatnonzero(wanted & (name_of == number))
        shape = history.by_digest.get(_digest(name))
        if shape is None:
            faults[rows] = _NO_FIELDS
        elif len(rows):
            table = history.shapes[shape]
            group = _Group(data, parts, rows, table, history.digests[shape], is_change[rows])
            group.decode(changes, lineage, made, faults, details)
    left_out = np.flatnonzero(faults)
    reasons = [details.get(int(row)) or _REASONS[int(faults[row])] for row in left_out]
    order = np.concatenate(made.rows) if made.rows else np.empty(0, np.int64)
    return Decoded(
        _contributions(changes, made, order, fences),
        tuple(int(row) for row in left_out),
        tuple(reasons),
        order.tolist(),
    )


@dataclass(frozen=True)
class _Group:
    """Rows of a batch that came with the same fields."""

    data: Bytes
    parts: Changes
    rows: Ints
    shape: TableShape
    digest: bytes
    is_change: Mask

    def decode(
        self,
        changes: pa.RecordBatch,
        lineage: Mapping[str, Sequence[str]],
        made: _Made,
        faults: Ints,
        details: dict[int, str],
    ) -> None:
        """Add the contributions of the rows, or what is wrong with them."""
        width = len(self.shape.columns)
        before = self.parts.before.starts[self.rows], self.parts.before.ends[self.rows]
        after = self.parts.after.starts[self.rows], self.parts.after.ends[self.rows]
        has_before, has_after = before[0] >= 0, after[0] >= 0
        found = np.zeros(len(self.rows), np.int64)
        found[~has_before & ~has_after] = _NO_ROW
        old = read_rows(self.data, *before, width)
        new = read_rows(self.data, *after, width)
        for values, there in ((old, has_before), (new, has_after)):
            found[there & (values.counts != width)] = _WIDTH
            found[values.faults != 0] = _BROKEN
        data_columns = _only(self.parts.data_columns, self.rows)
        found[mark_unknown(self.data, new, data_columns) > 0] = _PARTIAL
        json_partial = _only(self.parts.json_partial, self.rows)
        for number in range(sum(column.type.word == "json" for column in self.shape.columns)):
            found[bit_of_each(self.data, json_partial, number) & (found == _SOUND)] = _PARTIAL_JSON
        found[self.parts.faults[self.rows] != 0] = _BROKEN
        own_faults = self.parts.faults[self.rows]
        for place in np.flatnonzero(found == _BROKEN):
            fault = int(own_faults[place] or old.faults[place] or new.faults[place])
            details[int(self.rows[place])] = f"BROKEN-ROW: {FAULTS[fault]}"
        for place in np.flatnonzero(found == _WIDTH):
            count = (
                old.counts[place] if has_before[place] and old.counts[place] != width else new.counts[place]
            )
            details[int(self.rows[place])] = f"ROW-WIDTH: {count} values for {width} columns"
        if not self.shape.key:
            self._decode_keyless(changes, made, found, after)
        else:
            shards = pc.dictionary_encode(changes.column("origin").take(pa.array(self.rows)))
            names = shards.dictionary.to_pylist()
            shard_of = shards.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            places = np.arange(len(self.rows))
            new_keys, no_new = write_keys(self.shape, self.data, new, places, names, shard_of)
            old_keys, no_old = write_keys(self.shape, self.data, old, places, names, shard_of)
            found[((has_after & no_new) | (has_before & no_old)) & (found == _SOUND)] = _NO_KEY
            sound = found == _SOUND
            puts = np.flatnonzero(sound & has_after)
            states = write_states(self.data, after[0][puts], after[1][puts], self.digest)
            made.add(new_keys.take(pa.array(puts)), states, UPSERT, self.rows[puts])
            moved = pc.not_equal(old_keys, new_keys).to_numpy(zero_copy_only=False)
            self._delete(made, old_keys, sound & has_before & (~has_after | moved))
            for child, name in enumerate(names):
                inherited = sound & has_before & self.is_change & (shard_of == child)
                for ancestor in lineage.get(name, ()):
                    some = np.flatnonzero(inherited)
                    keys, _ = write_keys(
                        self.shape, self.data, old, some, [ancestor], np.zeros(len(some), np.int64)
                    )
                    made.add(keys, pa.nulls(len(some), pa.binary()), DELETE, self.rows[some])
        faults[self.rows] = found

    def _delete(self, made: _Made, keys: pa.Array, which: Mask) -> None:
        some = np.flatnonzero(which)
        made.add(keys.take(pa.array(some)), pa.nulls(len(some), pa.binary()), DELETE, self.rows[some])

    def _decode_keyless(
        self, changes: pa.RecordBatch, made: _Made, found: Ints, after: tuple[Ints, Ints]
    ) -> None:
        """Put rows of snapshots by their places, of which no two have the same in a shard."""
        puts = np.flatnonzero((found == _SOUND) & (after[0] >= 0) & ~self.is_change)
        chosen = pa.array(self.rows[puts])
        shards = pc.dictionary_encode(changes.column("origin").take(chosen))
        prefixes = pa.array([key_prefix(name) for name in shards.dictionary.to_pylist()], pa.binary())
        keys = pc.binary_join_element_wise(
            prefixes.take(shards.indices),
            changes.column("position").take(chosen),
            pa.scalar(b"", pa.binary()),
        )
        states = write_states(self.data, after[0][puts], after[1][puts], self.digest)
        made.add(keys, states, UPSERT, self.rows[puts])


def _contributions(
    changes: pa.RecordBatch, made: _Made, order: Ints, fences: Sequence[Fence]
) -> pa.RecordBatch:
    chosen = changes.select(["version", "generation", "origin", "position"]).take(pa.array(order))
    count = len(order)
    operations = np.concatenate(made.operations) if made.operations else np.empty(0, np.int8)
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays(made.keys) if made.keys else pa.array([], pa.binary()),
            pa.repeat(pa.scalar(ROW, pa.int8()), count),
            pa.repeat(pa.scalar(b"", pa.binary()), count),
            pa.nulls(count, pa.binary()),
            generations(chosen, fences),
            chosen.column("version"),
            pa.array(operations),
            pa.concat_arrays(made.states) if made.states else pa.array([], pa.binary()),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )


def _only(bitmaps: Bitmaps, rows: Ints) -> Bitmaps:
    return Bitmaps(bitmaps.starts[rows], bitmaps.counts[rows])


def _digest(name: str) -> bytes:
    """Return the 16 bytes that a ``schema_id`` names; none for what is no such name."""
    try:
        return bytes.fromhex(name)
    except ValueError:
        return b""
