"""Decode changes of one table to contributions: payload bytes to cell rows, in one kernel call per batch.

Layouts of payloads: :mod:`airflow_cdc_provider.sources.cassandra.payload`; of cell rows:
:mod:`airflow_cdc_provider.changes.cells`; of updates: :mod:`.mutation`. A payload that can't be decoded
contributes nothing and is reported with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import contribution
from airflow_cdc_provider.changes.cells import ROW_STRICT
from airflow_cdc_provider.changes.contribution import ROW, unresolved_keys
from airflow_cdc_provider.changes.fence import EVENT_US, Fence, newest_event
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cassandra.decoding.mutation import read_update
from airflow_cdc_provider.sources.cassandra.payload import VERSIONS, Position
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.cql.decoding.contributions import fill_sink, to_decoded
from airflow_cdc_provider.sources.cql.decoding.programs import Program, compile_tables, find_table
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUNDS_AT,
    FAILED_AT,
    ROWS_AT,
    SCOPE,
    STATE_END,
    STATES_AT,
    Sink,
)
from airflow_cdc_provider.sources.cql.decoding.snapshot_rows import read_snapshot_row
from airflow_cdc_provider.sources.cql.reasons import (
    NO_SPACE,
    OTHER_TABLE,
    TRAILING_BYTES,
    TRUNCATED,
    UNKNOWN_COLUMN,
    UNKNOWN_TAG,
    describe,
)
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import SNAPSHOT_TAG
from airflow_cdc_provider.sources.cql.wire import read_uvint

_TABLE_ID_BYTES: Final = 16
_GREATEST_END: Final = (1 << 32) - 1


class UpdateDecoder:
    """Decodes changes of one table, with its schema compiled: create one for many batches. Picklable.

    Args:
        schema: The table; its static and regular columns have their ids.
        former: Whether to skip changes of other table ids, which are of dropped tables of the same name.
            Otherwise they are undecodable.
    """

    def __init__(self, schema: TableSchema, *, former: bool = False) -> None:
        self.schema = schema
        self.former = former
        self._program = compile_tables([schema])

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``.

        An update of a counter table has no values: it marks its partition as unresolved.

        Args:
            changes: Batch of ``CHANGE_SCHEMA``; further columns are ignored.
            fences: The table's fences; they give each contribution its generation.

        Returns:
            The contributions, in the order of the changes; and the rows that could not be decoded, each with
            a reason that starts with its code and has the byte offset in the payload.

        Raises:
            ConfigurationError: The cell rows of the batch exceed 2 GiB, the limit of an Arrow batch.
        """
        if self.schema.counter:
            return self._decode_counters(changes, fences)
        return self._decode_updates(changes, fences)

    def _decode_counters(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        payloads = changes.column("payload")
        updates = pc.not_equal(pc.binary_slice(payloads, 0, 1), bytes([SNAPSHOT_TAG]))
        is_update = updates.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(~is_update)
        read = self._decode_updates(changes.filter(pc.invert(updates)), fences)
        own = pc.equal(pc.binary_slice(payloads, 1, 1 + _TABLE_ID_BYTES), bytes.fromhex(self.schema.id))
        touched = np.flatnonzero(is_update & own.to_numpy(zero_copy_only=False))
        keys = pc.take(changes.column("key"), pa.array(touched)).dictionary_encode()
        first = np.unique(keys.indices.to_numpy(zero_copy_only=False), return_index=True)[1]
        decoded_rows: Any = np.concatenate([rows[np.asarray(read.rows, np.int64)], touched[first]])
        return Decoded(
            contributions=pa.concat_batches([read.contributions, unresolved_keys(keys.dictionary, 0)]),
            undecodable=rows[np.asarray(read.undecodable, np.int64)].tolist(),
            reasons=read.reasons,
            rows=decoded_rows,
        )

    def _decode_updates(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        data, offsets, _ = binary_parts(changes.column("payload"))
        sink, failures = _decode_all(data, offsets, self._program)
        if self.schema.liveness_column:
            rows = sink.rows[: sink.cursor[ROWS_AT]]
            starts = np.concatenate(([0], rows[:, STATE_END]))[:-1]
            sink.states[starts[rows[:, SCOPE] == ROW] + 1] |= ROW_STRICT
        return to_decoded(
            sink,
            self._program,
            changes.column("key"),
            pa.array(generations(changes, fences)),
            failures,
            lambda row, *failure: _reason(data[offsets[row] : offsets[row + 1]], *failure),
            self._of_former(changes, failures) if self.former else None,
        )

    def _of_former(self, changes: pa.RecordBatch, failures: Ints) -> Flags:
        """Return which changes are of a dropped table, by the id in an update or a snapshot record."""
        found = failures[:, 0] == OTHER_TABLE
        of = changes.column("schema_id")
        if of.null_count < len(of):
            found |= pc.not_equal(of, self.schema.id).fill_null(False).to_numpy(zero_copy_only=False)
        return found


def _decode_all(data: Bytes, offsets: Ints, program: Program) -> tuple[Sink, Ints]:
    failures = np.zeros((len(offsets) - 1, 2), np.int64)
    sink = fill_sink(
        offsets, program, lambda first, sink: _decode(data, offsets, first, program, sink, failures)
    )
    return sink, failures


def generations(changes: pa.RecordBatch, fences: Sequence[Fence]) -> Ints:
    """Return each change's generation: its own or that of the last fence before it, whichever is higher.

    A node may have no record of the newest fence: it joined later, or the record was not kept. The id of a
    segment is the time of its node's start in ms, or slightly more, so a segment with an id well above the
    fence's time was created after it. Changes in other segments count as older until the record is read.

    Args:
        changes: Columns ``origin``, ``position`` and ``generation`` of changes.
        fences: The table's fences.

    Returns:
        The generation of each change.
    """
    own: Ints = contribution.generations(changes, fences).to_numpy(zero_copy_only=False)
    if newest := newest_event(fences):
        generation = next(iter(newest)).generation
        known = {fence.origin for fence in newest}
        first_after = Position(-(-(generation + EVENT_US) // 1000), _GREATEST_END, _GREATEST_END).pack()
        later = pc.and_(
            pc.greater(changes.column("position"), pa.scalar(first_after, pa.binary())),
            pc.invert(pc.is_in(changes.column("origin"), value_set=pa.array(sorted(known), pa.string()))),
        )
        is_later = later.fill_null(False).to_numpy(zero_copy_only=False)
        own = np.where(is_later, np.maximum(own, generation), own)
    return own


def _reason(payload: Bytes, reason: int, at: int) -> str:
    location = f"byte {at} of {len(payload)}"
    if reason == UNKNOWN_COLUMN and payload[0] in VERSIONS:
        length, begin = read_uvint(payload, at, len(payload))
        location = f"{payload[begin : begin + length].tobytes().decode(errors='replace')!r} at {location}"
    return describe(reason, location)


@walker
def _decode(data: Bytes, offsets: Ints, first: Int, program: Program, sink: Sink, failures: Ints) -> Int:
    """Decode payloads from number ``first`` until all are done or the sink is full; return the next number.

    ``failures`` receives reason and offset per payload; reason 0 for success.
    """
    cursor = sink.cursor
    for change in range(first, len(offsets) - 1):
        rows_at, states_at, bounds_at = cursor[ROWS_AT], cursor[STATES_AT], cursor[BOUNDS_AT]
        start, end = offsets[change], offsets[change + 1]
        cursor[FAILED_AT] = start
        tag = np.int64(data[start]) if start < end else np.int64(0)
        if tag == SNAPSHOT_TAG:
            result = read_snapshot_row(data, start, end, np.int64(change), program, sink)
        elif tag < VERSIONS[0] or tag > VERSIONS[-1]:
            result = np.int64(-UNKNOWN_TAG)
        elif end - start <= _TABLE_ID_BYTES:
            result = np.int64(-TRUNCATED)
        elif find_table(program, data, start + 1) != 0:
            result = np.int64(-OTHER_TABLE)
        else:
            result = read_update(data, start + 1, end, tag, np.int64(change), np.int64(0), program, sink)
        if result >= 0 and result != end:
            cursor[FAILED_AT] = result
            result = np.int64(-TRAILING_BYTES)
        if result < 0:
            cursor[ROWS_AT], cursor[STATES_AT], cursor[BOUNDS_AT] = rows_at, states_at, bounds_at
            if result == -NO_SPACE:
                return change
            failures[change, 0] = -result
            failures[change, 1] = cursor[FAILED_AT] - start
    return len(offsets) - 1
