"""Snapshots: a separate VStream copies the table of each shard, as raw batches.

A table has one range per shard. VTGate copies a shard's tables sequentially and waits a second for each, so
ranges are read in parallel. The request of a range names its table and no position, which starts a copy
(``vtgate.proto``, ``tables_to_copy``).

Between the packets of a copy the tablet sends transactions of the binlog. They are skipped here, because the
main stream captures them. A packet changes the last key in its VGTID and has no timestamp; a transaction
repeats the last key and has one.

The rows of a packet have the version of its VGTID and include everything committed up to it. The main stream
must capture everything after it, so a copy that starts before the stored offset (a replica may lag) is
restarted. Each change that a packet doesn't include therefore arrives in the main stream with a greater
version.

An interrupted range resumes after its last key. A cancelled range starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics, SnapshotPlan
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import (
    LAST_ROW,
    MAX_TRANSACTIONS,
    Position,
    copy_key,
    next_epoch,
    position_key,
)
from airflow_cdc_provider.sources.vitess.prefetch import StreamEnded, prefetch
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Filter, VGtid, parse
from airflow_cdc_provider.sources.vitess.records import schema_record, snapshot_records
from airflow_cdc_provider.sources.vitess.requests import buffer_limit, quoted, stream_request
from airflow_cdc_provider.sources.vitess.schema_ids import schema_id
from airflow_cdc_provider.sources.vitess.unknown_charsets import with_charsets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import COMMIT, COPY_COMPLETED, FIELD, ROW, VGTID, scan

log = logger(__name__)

_SILENT_INTERVALS: Final = 3
_MAX_PAUSES: Final = 100


@dataclass(frozen=True)
class SnapshotRange:
    """A table of one shard.

    Args:
        table: ``keyspace.table``.
        planned_us: When it was planned, in µs since 1970: its rows sort after those of earlier snapshots.
        shard: Name of the shard.
        gtid: GTID set of the main stream when the range was planned.
        epoch: Epoch of the main stream when the range was planned.
        where: Filter in the syntax of VTGate's stream; empty for none.
    """

    table: str
    planned_us: int
    shard: str
    gtid: str
    epoch: int
    where: str


def plan_snapshot(
    position: Position, table: str, where: str | None, *, is_reference: bool = False
) -> SnapshotPlan:
    """Plan a range for each shard of a table.

    Args:
        position: Position of the main stream; changes captured before it belong to an earlier generation.
        table: ``keyspace.table``.
        where: Filter in the syntax of VTGate's stream: comparisons of columns with constants.
        is_reference: Whether all shards have the same rows, so that the first one is read.

    Returns:
        The ranges, and a fence per shard, including the ancestors of resharded shards.

    Raises:
        ConfigurationError: No shard of the table's keyspace is captured.
    """
    keyspace = table.partition(".")[0]
    own = {s: known for s, known in sorted(position.shards.items()) if s.partition("/")[0] == keyspace}
    if not own:
        raise ConfigurationError(
            f"no shard of {table} is captured", expected=", ".join(position.shards), found=keyspace
        )
    planned_us = time.time_ns() // 1000
    # After all changes up to the position and the rows of earlier copies at it, before the rows of this copy.
    fences = {s: copy_key(known.key, planned_us) for s, known in own.items()}
    first = next(iter(fences))
    # The mirror may still have unchanged rows of the parents of resharded shards. Children start above the
    # epochs of their parents and inherit their fences, so these must be below all changes of the children.
    for parent in {parent for known in own.values() for parent in known.parents} - own.keys():
        epoch = min(known.epoch for known in own.values() if parent in known.parents)
        fences[parent] = copy_key(position_key(max(epoch - 1, 0), MAX_TRANSACTIONS), planned_us)
    return SnapshotPlan(
        table=table,
        ranges=tuple(
            SnapshotRange(table, planned_us, s.partition("/")[2], known.gtid, known.epoch, where or "")
            for s, known in (islice(own.items(), 1) if is_reference else own.items())
        ),
        position=fences[first],
        origin=first,
        other_positions={s: fence for s, fence in fences.items() if s != first},
    )


@dataclass
class _Progress:
    """Progress of a copy: the VGTID entry to resume from, and the number of rows so far."""

    entry: Any = None
    rows: int = 0


@dataclass(frozen=True)
class RangeReader(Reader):
    """Reads ranges. Picklable; its ``repr`` doesn't contain the connection's values.

    Args:
        values: The connection.
        options: The source's options.
        sleep: Pauses for some seconds.
    """

    values: ConnectionValues = field(repr=False)
    options: VitessOptions
    sleep: Callable[[float], None] = time.sleep

    def read(self, parts: Iterable[SnapshotRange], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read ranges.

        Yields:
            Per range, a batch with the record of kind ``schema`` of its fields, then batches of its rows.

        Raises:
            TransientError: The server can't be reached, or remains behind the stored offset.
            ConfigurationError: The table doesn't exist, or the filter is invalid.
        """
        return (batch for part in parts for batch in self._read(part, metrics))

    def _read(self, snapshot_range: SnapshotRange, metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        progress = _Progress()
        pauses_left = self._pauses()
        with VtgateClient(self.values) as client:
            while True:
                before = progress.entry
                try:
                    yield from self._resume(client, snapshot_range, progress)
                    return
                except (TransientError, StreamEnded) as error:
                    metrics.counts["disconnects"] += 1
                    if progress.entry is not before:
                        pauses_left = self._pauses()
                    pause = next(pauses_left, None)
                    if pause is None:
                        if isinstance(error, StreamEnded):
                            raise TransientError(
                                f"the copy of {snapshot_range.table} ended before it was complete"
                            ) from error
                        raise
                    log.warning(
                        "The copy of %s in shard %s was interrupted after %d rows, resuming in %.1f s: %s",
                        snapshot_range.table,
                        snapshot_range.shard,
                        progress.rows,
                        pause,
                        error,
                    )
                    self.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Return a limited number of pauses, because a Spark task can't be stopped cleanly."""
        return islice(pauses(self.options.advanced), _MAX_PAUSES)

    def _resume(
        self, client: VtgateClient, snapshot_range: SnapshotRange, progress: _Progress
    ) -> Iterator[pa.RecordBatch]:
        stream = client.vstream(self._request(snapshot_range, progress).SerializeToString())
        responses = prefetch(stream, buffer_limit(self.options))
        copy = _Copy(snapshot_range, progress)
        silent_seconds = _SILENT_INTERVALS * self.options.stream.heartbeat_seconds
        try:
            while not copy.completed:
                response = responses.next(silent_seconds)
                if response is None:
                    raise TransientError(
                        f"the copy of {snapshot_range.table} sent no message for {silent_seconds} s"
                    )
                for batch in copy.take(response):
                    yield self._with_charsets(client, batch)
        finally:
            responses.close()

    def _with_charsets(self, client: VtgateClient, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add unknown collations to a record of fields; return other batches unchanged."""
        if batch.num_rows != 1 or batch.column("kind")[0].as_py() != SCHEMA:
            return batch
        (schema,) = batch.to_pylist()
        seconds = self.options.advanced.call_timeout_seconds
        complete = with_charsets(schema, client, self.options.tablet_type, seconds)
        return pa.RecordBatch.from_pylist([complete], schema=CHANGE_SCHEMA)

    def _request(self, snapshot_range: SnapshotRange, progress: _Progress) -> Any:
        keyspace, _, table = snapshot_range.table.partition(".")
        vgtid = VGtid()
        if progress.entry is None:
            vgtid.shard_gtids.add(keyspace=keyspace, shard=snapshot_range.shard, gtid="")
        else:
            vgtid.shard_gtids.append(progress.entry)
        condition = f" where {snapshot_range.where}" if snapshot_range.where else ""
        filters = Filter()
        filters.rules.add(match=table, filter=f"select * from {quoted(table)}{condition}")
        request = stream_request(vgtid, filters, self.options)
        request.flags.tables_to_copy.append(table)
        # A copy reads the existing shards, so reshard journals don't concern it.
        request.flags.stop_on_reshard = False
        request.flags.include_reshard_journal_events = False
        return request


class _Copy:
    """Parses the responses of one copy."""

    def __init__(self, snapshot_range: SnapshotRange, progress: _Progress) -> None:
        self.completed = False
        self._range = snapshot_range
        self._progress = progress
        self._origin = f"{snapshot_range.table.partition('.')[0]}/{snapshot_range.shard}"
        self._data = b""
        self._fields = b""
        self._schema_id = ""
        self._fields_sent = False
        self._last_key = b"" if progress.entry is None else _last_key(progress.entry)

    def take(self, response: bytes) -> Iterator[pa.RecordBatch]:
        """Add a response, and yield the records of the packets that it completes.

        Raises:
            TransientError: The tablet is behind the stored offset.
            CorruptInput: The response is invalid.
        """
        self._data += response
        events = scan(self._data)
        done = 0
        entry = None
        rows_of = events.changes.events
        others = np.flatnonzero(events.types != ROW)  # a packet has a ROW event for each row
        for number, kind in zip(others.tolist(), events.types[others].tolist(), strict=True):
            if kind == FIELD:
                self._fields = events.body(number)
                self._schema_id = schema_id(parse(FieldEvent, self._fields))
            elif kind == VGTID:
                entry = self._entry(events.body(number))
            elif kind == COMMIT and entry is not None:
                key = _last_key(entry)
                rows = np.arange(*np.searchsorted(rows_of, [done, number]))
                # In a table without a key, two packets may end with equal rows; packets have no timestamps.
                timeless = len(rows) > 0 and not events.timestamps[rows_of[rows]].any()
                is_packet = bool(key) and (key != self._last_key or timeless)
                if is_packet or not key:
                    self._require_recent(entry.gtid)
                if is_packet:
                    yield from self._packet_records(events, rows, entry)
                if key:
                    self._progress.entry = entry  # without a key it would start a stream, not a copy
                elif self._last_key:
                    self.completed = True
                self._last_key = key
                entry = None
                done = number + 1
            elif kind == COPY_COMPLETED and not events.table(number).shard:
                # Each shard's copy ends with its own event; the last event, without a shard, ends the whole
                # copy.
                self.completed = True
                yield from self._fields_record(self._progress.entry)
        self._data = self._data[int(events.ends[done - 1]) :] if done else self._data

    def _entry(self, body: bytes) -> Any:
        for entry in parse(VGtid, body).shard_gtids:
            if entry.shard == self._range.shard:
                return entry
        raise CorruptInput(
            f"a VGTID of the copy of {self._range.table} doesn't contain its shard",
            expected=self._range.shard,
        )

    def _require_recent(self, gtid: str) -> None:
        stored = GtidSet.parse(self._range.gtid)
        if not GtidSet.parse(gtid).contains(stored):
            raise TransientError(
                f"a tablet of {self._origin} is behind the stored offset",
                expected=f"all transactions of {self._range.gtid}",
                found=gtid,
                remedy="the copy is retried; wait until replication has caught up",
            )

    def _key(self, gtid: str) -> bytes:
        epoch = next_epoch(self._range.epoch, self._range.gtid, gtid)
        return position_key(epoch, GtidSet.parse(gtid).count)

    def _packet_records(self, events: Any, rows: Any, entry: Any) -> Iterator[pa.RecordBatch]:
        yield from self._fields_record(entry)
        if not len(rows):
            return
        yield snapshot_records(
            events,
            rows,
            table=self._range.table,
            origin=self._origin,
            key=self._key(entry.gtid),
            schema_id=self._schema_id,
            planned_us=self._range.planned_us,
            first_row=self._progress.rows,
            captured_us=time.time_ns() // 1000,
        )
        self._progress.rows += len(rows)

    def _fields_record(self, entry: Any) -> Iterator[pa.RecordBatch]:
        """Yield the record of the fields, once."""
        if self._fields_sent or not self._fields:
            return
        self._fields_sent = True
        gtid = entry.gtid if entry is not None and entry.gtid else self._range.gtid
        position = self._key(gtid) + LAST_ROW.to_bytes(4, "big") + bytes.fromhex(self._schema_id)
        record = schema_record(
            self._fields,
            self._schema_id,
            table=self._range.table,
            origin=self._origin,
            position=position,
            committed_us=0,
            captured_us=self._range.planned_us,
        )
        yield pa.RecordBatch.from_pylist([record], schema=CHANGE_SCHEMA)


def _last_key(entry: Any) -> bytes:
    """Return the last key of a copy; empty before its first packet and after its last."""
    return b"".join(one.SerializeToString(deterministic=True) for one in entry.table_p_ks)
