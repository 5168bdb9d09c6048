"""Decodes changes of one table to contributions: payload bytes in, cell rows out, one kernel call per batch.

An undecodable payload yields no contributions, but a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import generations
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.formats.arrow_bytes import binary_parts, column_of
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.contract import Decoded
from airflow_cdc_provider.sources.cql.decoding.contributions import fill_sink, to_decoded
from airflow_cdc_provider.sources.cql.decoding.programs import Program, compile_tables
from airflow_cdc_provider.sources.cql.decoding.sink import BOUNDS_AT, FAILED_AT, ROWS_AT, STATES_AT, Sink
from airflow_cdc_provider.sources.cql.decoding.snapshot_rows import read_snapshot_row
from airflow_cdc_provider.sources.cql.reasons import (
    NO_SPACE,
    UNKNOWN_OPERATION,
    UNKNOWN_SCHEMA,
    UNKNOWN_TAG,
    describe,
)
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import SNAPSHOT_TAG
from airflow_cdc_provider.sources.scylla.decoding.fields import Keys
from airflow_cdc_provider.sources.scylla.decoding.log_rows import read_change
from airflow_cdc_provider.sources.scylla.decoding.programs import COLUMNS, LogProgram, compile_logs
from airflow_cdc_provider.sources.scylla.decoding.rows import UNKNOWN_READ_TIME
from airflow_cdc_provider.sources.scylla.log_table import LogTable
from airflow_cdc_provider.sources.scylla.payload import CHANGE_TAG, Position, time_us

_UNKNOWN_VERSION: Final = -1
_DROPPED_TABLE: Final = -2
"""Version of a change that belongs to a dropped table of the same name: it is skipped."""

_POSITION_BYTES: Final = 40


class LogDecoder:
    """A table's schema and the versions of its log, compiled for decoding: reuse it for many batches.

    Args:
        schema: The table; its static and regular columns have their ids.
        logs: Versions of its log. Changes of versions with another table id belong to a dropped table of the
            same name and are skipped.
    """

    def __init__(self, schema: TableSchema, logs: Sequence[LogTable]) -> None:
        self.schema = schema
        own = [log for log in logs if log.table_id in ("", schema.id) or not schema.id]
        self._dropped_table = {log.schema_id for log in logs} - {log.schema_id for log in own}
        self._versions = {log.schema_id: number for number, log in enumerate(own)}
        self._log = compile_logs(schema, own)
        self._program = compile_tables([schema])

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``.

        Args:
            changes: Batch of ``CHANGE_SCHEMA``; further columns are ignored.
            fences: The table's fences; they give each contribution its generation.

        Returns:
            The contributions, in the order of the changes; and the undecodable rows, each with a reason that
            begins with its code and names table, stream and time.

        Raises:
            ConfigurationError: The cell rows of the batch exceed 2 GiB, the limit of an Arrow batch.
        """
        data, offsets, _ = binary_parts(changes.column("payload"))
        count = len(changes)
        failures = np.zeros((count, 2), np.int64)
        keys = Keys(np.empty(int(offsets[-1] - offsets[0]) + 1, np.uint8), np.zeros(count + 1, np.int64))
        fields = np.empty((int(self._log.versions[:, COLUMNS].max(initial=0)), 2), np.int64)
        given = (self._versions_of(changes), _read_at(changes), self._log, self._program)
        sink = fill_sink(
            offsets,
            self._program,
            lambda first, sink: _decode(data, offsets, first, *given, sink, keys, fields, failures),
        )
        return to_decoded(
            sink,
            self._program,
            pc.coalesce(changes.column("key"), column_of(pa.binary(), keys.data, keys.ends)),
            generations(changes, fences),
            failures,
            partial(self._reason, changes),
        )

    def _versions_of(self, changes: pa.RecordBatch) -> Ints:
        """Return the version number of each change; a snapshot row's record has the table's id instead."""
        ids = pc.fill_null(changes.column("schema_id"), "").dictionary_encode()
        known = {**self._versions, **dict.fromkeys(self._dropped_table, _DROPPED_TABLE)}
        numbers = np.array([known.get(i, _UNKNOWN_VERSION) for i in ids.dictionary.to_pylist()], np.int64)
        versions: Ints = numbers[ids.indices.to_numpy(zero_copy_only=False)]
        tags = pc.binary_slice(changes.column("payload"), 0, 1)
        rows = pc.equal(tags, bytes([SNAPSHOT_TAG])).fill_null(False).to_numpy(zero_copy_only=False)
        if rows.any() and self.schema.id:
            other = pc.not_equal(changes.column("schema_id"), self.schema.id).fill_null(False)
            versions = np.where(rows & other.to_numpy(zero_copy_only=False), _DROPPED_TABLE, versions)
        return versions

    def _reason(self, changes: pa.RecordBatch, row: int, reason: int, at: int) -> str:
        payload = changes.column("payload")[row].as_py() or b""
        where = f"{self.schema.full_name}, byte {at} of {len(payload)}"
        position = changes.column("position")[row].as_py() or b""
        if payload[:1] == bytes([CHANGE_TAG]) and len(position) == _POSITION_BYTES:
            found = Position.unpack(position)
            where += f",  stream {found.stream.hex()}, written at {time_us(found.time)} us"
        if reason == UNKNOWN_OPERATION:
            where += f",  code {int.from_bytes(payload[at : at + 1], 'big', signed=True)}"
        return describe(reason, where)


def _read_at(changes: pa.RecordBatch) -> Ints:
    """Return when each record was read, in epoch seconds."""
    micros = changes.column("captured_at").cast(pa.timestamp("us")).cast(pa.int64())
    seconds = pc.fill_null(pc.divide(micros, 1_000_000), UNKNOWN_READ_TIME)
    found: Ints = seconds.to_numpy(zero_copy_only=False)
    return found


@walker
def _decode(
    data: Bytes,
    offsets: Ints,
    first: Int,
    versions: Ints,
    read_at: Ints,
    log: LogProgram,
    program: Program,
    sink: Sink,
    keys: Keys,
    fields: Ints,
    failures: Ints,
) -> Int:
    """Decode payloads from number ``first`` until all are done or the sink is full; return the next number.

    ``keys`` receives the partition keys of changes, ``failures`` reason and byte offset per payload, reason 0
    for success; ``fields`` is scratch space with a row per column of the log.
    """
    cursor = sink.cursor
    for change in range(first, len(offsets) - 1):
        rows_at, states_at, bounds_at = cursor[ROWS_AT], cursor[STATES_AT], cursor[BOUNDS_AT]
        start, end = offsets[change], offsets[change + 1]
        keys.ends[change + 1] = keys.ends[change]
        if versions[change] == _DROPPED_TABLE:
            continue
        cursor[FAILED_AT] = start
        tag = np.int64(data[start]) if start < end else np.int64(0)
        if tag == SNAPSHOT_TAG:
            result = read_snapshot_row(data, start, end, np.int64(change), program, sink)
        elif tag != CHANGE_TAG:
            result = np.int64(-UNKNOWN_TAG)
        elif versions[change] < 0:
            result = np.int64(-UNKNOWN_SCHEMA)
        else:
            result = read_change(
                data,
                start + 1,
                end,
                np.int64(change),
                versions[change],
                read_at[change],
                log,
                sink,
                keys,
                fields,
            )
        if result < 0:
            cursor[ROWS_AT], cursor[STATES_AT], cursor[BOUNDS_AT] = rows_at, states_at, bounds_at
            keys.ends[change + 1] = keys.ends[change]
            if result == -NO_SPACE:
                return change
            failures[change, 0] = -result
            failures[change, 1] = cursor[FAILED_AT] - start
    return len(offsets) - 1
