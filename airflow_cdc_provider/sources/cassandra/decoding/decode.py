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

from airflow_cdc_provider.changes.cells import ROW_STRICT
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, UPSERT, unresolved_keys
from airflow_cdc_provider.changes.fence import EVENT_US, Fence, newest_event
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_parts, column_of
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.sources.cassandra.decoding.mutation import read_update
from airflow_cdc_provider.sources.cassandra.payload import VERSIONS, Position
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.cql.decoding.clustering import comparable_clusterings
from airflow_cdc_provider.sources.cql.decoding.programs import Program, compile_tables, find_table
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUNDS_AT,
    CHANGE,
    FAILED_AT,
    ROWS_AT,
    SCOPE,
    STATE_END,
    STATES_AT,
    Sink,
    grow,
    new_sink,
)
from airflow_cdc_provider.sources.cql.decoding.snapshot_rows import read_snapshot_row
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_CLUSTERING,
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
_MOST_BYTES: Final = np.iinfo(np.int32).max


def decode_updates(schema: TableSchema, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
    """Decode changes of kind ``change`` and ``snapshot`` of one table.

    Args:
        schema: The table; its static and regular columns have their ids.
        changes: Batch of ``CHANGE_SCHEMA``; further columns are ignored.
        fences: The table's fences; they give each contribution its generation.

    Returns:
        The contributions, in the order of the changes; and the rows that could not be decoded, each with a
        reason that starts with its code (``reasons``) and has the byte offset in the payload.

    Raises:
        ConfigurationError: The batch decodes to more than 2 GiB of cell rows, the limit of an Arrow batch.
    """
    return UpdateDecoder(schema).decode(changes, fences)


class UpdateDecoder:
    """Decodes changes of one table, with its schema compiled: create one for many batches. Picklable.

    Args:
        schema: As for :func:`decode_updates`.
        former: Whether to skip changes of other table ids, which are of dropped tables of the same name.
            Otherwise they are undecodable.
    """

    def __init__(self, schema: TableSchema, *, former: bool = False) -> None:
        self.schema = schema
        self.former = former
        self._program = compile_tables([schema])

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes: see :func:`decode_updates`.

        An update of a counter table has no values: it marks its partition as unresolved.
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
        rows = sink.rows[: sink.cursor[ROWS_AT]]
        clusterings, ends, malformed = comparable_clusterings(sink, self._program)
        failures[rows[malformed, CHANGE], 0] = BAD_CLUSTERING
        skipped = malformed
        if self.former:
            dropped = self._of_former(changes, failures)
            failures[dropped, 0] = 0
            skipped = malformed | dropped[rows[:, CHANGE]]
        if sink.cursor[STATES_AT] > _MOST_BYTES:
            raise ConfigurationError(
                "a batch of changes decodes to more cell rows than an Arrow column can hold",
                expected=f"at most {_MOST_BYTES} bytes",
                found=str(sink.cursor[STATES_AT]),
                remedy="lower spark.sql.execution.arrow.maxRecordsPerBatch",
            )
        if self.schema.liveness_column:
            of_rows = rows[:, SCOPE] == ROW
            sink.states[np.concatenate(([0], rows[:, STATE_END]))[:-1][of_rows] + 1] |= ROW_STRICT
        nulls = pa.nulls(len(rows), pa.binary())
        contributions = pa.RecordBatch.from_arrays(
            [
                pc.take(changes.column("key"), pa.array(rows[:, CHANGE])),
                pa.array(rows[:, SCOPE].astype(np.int8)),
                clusterings,
                ends,
                pa.array(generations(changes, fences)[rows[:, CHANGE]]),
                nulls,
                pa.array(np.full(len(rows), UPSERT, np.int8)),
                column_of(pa.binary(), sink.states, np.concatenate(([0], rows[:, STATE_END]))),
            ],
            schema=CONTRIBUTION_SCHEMA,
        )
        valid = (failures[rows[:, CHANGE], 0] == 0) & ~skipped
        if skipped.any():
            contributions = contributions.filter(pa.array(valid))
        failed = np.flatnonzero(failures[:, 0])
        return Decoded(
            contributions=contributions,
            undecodable=failed.tolist(),
            reasons=[
                _reason(data[offsets[i] : offsets[i + 1]], int(failures[i, 0]), int(failures[i, 1]))
                for i in failed
            ],
            rows=rows[valid, CHANGE],
        )

    def _of_former(self, changes: pa.RecordBatch, failures: Ints) -> Flags:
        """Return which changes are of a dropped table, by the id in an update or a snapshot record."""
        found = failures[:, 0] == OTHER_TABLE
        of = changes.column("schema_id")
        if of.null_count < len(of):
            found |= pc.not_equal(of, self.schema.id).fill_null(False).to_numpy(zero_copy_only=False)
        return found


def _decode_all(data: Bytes, offsets: Ints, program: Program) -> tuple[Sink, Ints]:
    count = len(offsets) - 1
    failures = np.zeros((count, 2), np.int64)
    sink = new_sink(int(offsets[-1] - offsets[0]), 2 * count, len(program.column_id))
    done = _decode(data, offsets, 0, program, sink, failures)
    while done < count:
        sink = grow(sink)
        done = _decode(data, offsets, done, program, sink, failures)
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
    own = changes.column("generation").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    for fence in fences:
        after = pc.greater(changes.column("position"), pa.scalar(fence.position, pa.binary()))
        if fence.origin:
            after = pc.and_(after, pc.equal(changes.column("origin"), fence.origin))
        is_after = after.fill_null(False).to_numpy(zero_copy_only=False)
        own = np.where(is_after, np.maximum(own, fence.generation), own)
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
def _decode(
    data: Bytes,
    offsets: Ints,
    first: Int,
    program: Program,
    sink: Sink,
    failures: Ints,
) -> Int:
    """Decode payloads from number ``first`` until all are done or the sink is full.

    Args:
        data: The payloads, concatenated.
        offsets: Offset of each, then the end of the last.
        first: Number of the first to decode.
        program: The compiled table.
        sink: Receives the contributions.
        failures: Receives reason and offset per payload; reason 0 for success.

    Returns:
        Number of the first payload that was not decoded.
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
