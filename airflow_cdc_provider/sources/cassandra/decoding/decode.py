"""Changes of one table to contributions: payload bytes in, cell rows out, one kernel call a batch.

Layouts of payloads: :mod:`airflow_cdc_provider.sources.cassandra.payload`; of cell rows:
:mod:`airflow_cdc_provider.changes.cells`; of updates: :mod:`.mutation`. A payload that
can't be decoded is left out whole, with its reason; nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_cdc_provider.changes.byte_kernels import Bytes, Int
from airflow_cdc_provider.changes.cells import ROW_STRICT
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, UPSERT, doubts
from airflow_cdc_provider.changes.fence import EVENT_US, Fence, newest_event
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Decoded
from airflow_cdc_provider.sources.cassandra.decoding.mutation import read_update
from airflow_cdc_provider.sources.cassandra.payload import VERSIONS, Position
from airflow_cdc_provider.sources.cql.buffers import binary_array, binary_parts
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
        reason that leads with its code (``reasons``) and names the byte of the payload.

    Raises:
        ConfigurationError: The batch makes more than 2 GiB of cell rows, which no Arrow batch can hold.
    """
    return UpdateDecoder(schema).decode(changes, fences)


class UpdateDecoder:
    """A table's schema compiled for decoding: make one for many batches. Picklable.

    Args:
        schema: As for :func:`decode_updates`.
        former: Changes of other table ids may be among them, of tables of this name that were dropped: pass
            them over. Without it they can't be decoded.
    """

    def __init__(self, schema: TableSchema, *, former: bool = False) -> None:
        self.schema = schema
        self.former = former
        self._program = compile_tables([schema])

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Do what :func:`decode_updates` does.

        An update of a counter table holds no values: it puts its partition in doubt.
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
        places: Any = np.concatenate([rows[np.asarray(read.rows, np.int64)], touched[first]])
        return Decoded(
            contributions=pa.concat_batches([read.contributions, doubts(keys.dictionary, 0)]),
            undecodable=rows[np.asarray(read.undecodable, np.int64)].tolist(),
            reasons=read.reasons,
            rows=places,
        )

    def _decode_updates(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        data, offsets, _ = binary_parts(changes.column("payload"))
        sink, failures = _decode_all(data, offsets, self._program)
        rows = sink.rows[: sink.cursor[ROWS_AT]]
        clusterings, ends, malformed = comparable_clusterings(sink, self._program)
        failures[rows[malformed, CHANGE], 0] = BAD_CLUSTERING
        left_out = malformed
        if self.former:
            dropped = self._of_former(changes, failures)
            failures[dropped, 0] = 0
            left_out = malformed | dropped[rows[:, CHANGE]]
        if sink.cursor[STATES_AT] > _MOST_BYTES:
            raise ConfigurationError(
                "a batch of changes makes more cell rows than one Arrow column holds",
                expected=f"at most {_MOST_BYTES} bytes",
                found=str(sink.cursor[STATES_AT]),
                remedy="lower spark.sql.execution.arrow.maxRecordsPerBatch",
            )
        if self.schema.lives_by:
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
                binary_array(sink.states, np.concatenate(([0], rows[:, STATE_END]))),
            ],
            schema=CONTRIBUTION_SCHEMA,
        )
        sound = (failures[rows[:, CHANGE], 0] == 0) & ~left_out
        if left_out.any():
            contributions = contributions.filter(pa.array(sound))
        failed = np.flatnonzero(failures[:, 0])
        return Decoded(
            contributions=contributions,
            undecodable=failed.tolist(),
            reasons=[
                _reason(data[offsets[i] : offsets[i + 1]], int(failures[i, 0]), int(failures[i, 1]))
                for i in failed
            ],
            rows=rows[sound, CHANGE],
        )

    def _of_former(self, changes: pa.RecordBatch, failures: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which changes are of a dropped table: an update's bytes say so, a snapshot row's record."""
        found = failures[:, 0] == OTHER_TABLE
        of = changes.column("schema_id")
        if of.null_count < len(of):
            found |= pc.not_equal(of, self.schema.id).fill_null(False).to_numpy(zero_copy_only=False)
        return found


def _decode_all(data: Bytes, offsets: NDArray[np.int64], program: Program) -> tuple[Sink, NDArray[np.int64]]:
    count = len(offsets) - 1
    failures = np.zeros((count, 2), np.int64)
    sink = new_sink(int(offsets[-1] - offsets[0]), 2 * count, len(program.column_id))
    done = _decode(data, offsets, 0, program, sink, failures)
    while done < count:
        sink = grow(sink)
        done = _decode(data, offsets, done, program, sink, failures)
    return sink, failures


def generations(changes: pa.RecordBatch, fences: Sequence[Fence]) -> NDArray[np.int64]:
    """Return each change's generation: its own or that of the last fence before it, whichever is higher.

    A node may have no record of the newest fence: it joined later, or the record was not kept. The id of a
    segment is the time of its node's start in ms, or a little more, so a segment with an id well above the
    fence's time was begun after it. What lies in other segments counts as older until the record is seen.

    Args:
        changes: Columns ``origin``, ``position`` and ``generation`` of changes.
        fences: The table's.
    """
    own = changes.column("generation").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    for fence in fences:
        after = pc.greater(changes.column("position"), pa.scalar(fence.position, pa.binary()))
        if fence.origin:
            after = pc.and_(after, pc.equal(changes.column("origin"), fence.origin))
        passed = after.fill_null(False).to_numpy(zero_copy_only=False)
        own = np.where(passed, np.maximum(own, fence.generation), own)
    if newest := newest_event(fences):
        generation = next(iter(newest)).generation
        known = {fence.origin for fence in newest}
        begun = Position(-(-(generation + EVENT_US) // 1000), _GREATEST_END, _GREATEST_END).pack()
        later = pc.and_(
            pc.greater(changes.column("position"), pa.scalar(begun, pa.binary())),
            pc.invert(pc.is_in(changes.column("origin"), value_set=pa.array(sorted(known), pa.string()))),
        )
        passed = later.fill_null(False).to_numpy(zero_copy_only=False)
        own = np.where(passed, np.maximum(own, generation), own)
    return own


def _reason(payload: Bytes, reason: int, at: int) -> str:
    place = f"byte {at} of {len(payload)}"
    if reason == UNKNOWN_COLUMN and payload[0] in VERSIONS:
        length, begin = read_uvint(payload, at, len(payload))
        place = f"{payload[begin : begin + length].tobytes().decode(errors='replace')!r} at {place}"
    return describe(reason, place)


@walker
def _decode(
    data: Bytes,
    offsets: NDArray[np.int64],
    first: Int,
    program: Program,
    sink: Sink,
    failures: NDArray[np.int64],
) -> Int:
    """Decode payloads from number ``first`` on, until all are done or the sink is full.

    Args:
        data: Payloads, one after the other.
        offsets: Where each begins, then where the last ends.
        first: Number of the first to decode.
        program: The table, compiled.
        sink: Gets the contributions.
        failures: Per payload, gets reason and offset in it; reason 0 for success.

    Returns:
        Number of the first payload that is not done.
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
