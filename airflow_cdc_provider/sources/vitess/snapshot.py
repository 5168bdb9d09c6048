"""Snapshots: a table of a shard copied by a VStream of its own, as raw batches.

There is a range for each shard of a table: VTGate copies a shard's tables one after the other and waits a
second for each, so ranges are read side by side. A range asks for its table alone, with no position, which
means a copy (``vtgate.proto``, ``tables_to_copy``).

Between packets of a copy the tablet sends transactions of the binlog. The main stream has them: they are left
out here. What tells the two apart is the last key that each VGTID bears, which a packet changes and a
transaction repeats, and the time, which a transaction has.

A packet's rows have the version of its VGTID, and hold all that was committed up to it. The main stream must
have what follows it: a copy that begins before the stored offset (a replica may lag) is not taken but begun
again. So each change that a packet doesn't hold comes by the main stream, at a greater version.

A range that is interrupted goes on after its last key. One that is cancelled begins anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.sources.base import SnapshotPlan
from airflow_cdc_provider.sources.pauses import pauses
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import (
    LAST_ROW,
    MOST_TRANSACTIONS,
    Position,
    copy_key,
    next_epoch,
    place_key,
)
from airflow_cdc_provider.sources.vitess.protocol import FieldEvent, Filter, VGtid
from airflow_cdc_provider.sources.vitess.read_ahead import ReadAhead, StreamEnded
from airflow_cdc_provider.sources.vitess.records import schema_record, snapshot_records
from airflow_cdc_provider.sources.vitess.requests import quoted, room_of, stream_request
from airflow_cdc_provider.sources.vitess.schema_ids import schema_id
from airflow_cdc_provider.sources.vitess.unknown_charsets import with_charsets
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import (
    COMMIT,
    COPY_COMPLETED,
    FIELD,
    ROW,
    VGTID,
    scan,
)

log = logging.getLogger(__name__)

_SILENT_INTERVALS: Final = 3
_MOST_PAUSES: Final = 100


@dataclass(frozen=True)
class SnapshotRange:
    """A table of one shard.

    Args:
        table: ``keyspace.table``.
        planned_us: When it was planned, µs since 1970: its rows stand behind those of earlier snapshots.
        shard: The shard.
        gtid: Where the main stream stood when it was planned.
        epoch: Of that place.
        where: Filter of VTGate's, empty for none.
    """

    table: str
    planned_us: int
    shard: str
    gtid: str
    epoch: int
    where: str


def plan_snapshot(position: Position, table: str, where: str | None) -> SnapshotPlan:
    """Plan a range for each shard of a table.

    Args:
        position: Where the main stream stands: what was captured before belongs to an earlier generation.
        table: ``keyspace.table``.
        where: A condition as VTGate's stream takes them: comparisons of columns with constants.
    """
    keyspace = table.partition(".")[0]
    own = {s: place for s, place in sorted(position.shards.items()) if s.partition("/")[0] == keyspace}
    if not own:
        raise ConfigurationError(
            f"no shard of {table} is captured", expected=", ".join(position.shards), found=keyspace
        )
    planned_us = time.time_ns() // 1000
    # Behind all changes up to there and the rows of earlier copies at the same place, before this one's.
    fences = {s: copy_key(place.key, planned_us) for s, place in own.items()}
    first = next(iter(fences))
    # Shards that were resharded have rows in the mirror that nobody touched since. What became of them began
    # above their epochs; and since it inherits their fences, these must be below all that it has told.
    for parent in {parent for place in own.values() for parent in place.parents} - own.keys():
        epoch = min(place.epoch for place in own.values() if parent in place.parents)
        fences[parent] = copy_key(place_key(max(epoch - 1, 0), MOST_TRANSACTIONS), planned_us)
    return SnapshotPlan(
        table=table,
        ranges=tuple(
            SnapshotRange(table, planned_us, s.partition("/")[2], place.gtid, place.epoch, where or "")
            for s, place in own.items()
        ),
        position=fences[first],
        origin=first,
        others={s: fence for s, fence in fences.items() if s != first},
    )


@dataclass
class _Progress:
    """How far a copy came: the VGTID entry to go on from, and the rows so far."""

    entry: Any = None
    rows: int = 0


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges. Picklable; its text doesn't show the connection's values.

    Args:
        values: The connection.
        options: The source's options.
        lost: Called with 1 for each connection that is lost; None for nobody.
        sleep: Pauses for some seconds.
    """

    values: ConnectionValues = field(repr=False)
    options: VitessOptions
    lost: Callable[[int], None] | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = time.sleep

    def counting(self, lost: Callable[[int], None]) -> RangeReader:
        """Return one that tells of the connections that it loses."""
        return replace(self, lost=lost)

    def __call__(self, part: SnapshotRange) -> Iterator[pa.RecordBatch]:
        """Read a range: its fields as a record of kind ``schema``, and its rows.

        Raises:
            TransientError: The server can't be reached, or stays behind the stored offset.
            ConfigurationError: The table is gone, or the filter is wrong.
        """
        progress = _Progress()
        left = self._pauses()
        with VtgateClient(self.values) as client:
            while True:
                before = progress.entry
                try:
                    yield from self._read_on(client, part, progress)
                    return
                except (TransientError, StreamEnded) as error:
                    if self.lost is not None:
                        self.lost(1)
                    if progress.entry is not before:
                        left = self._pauses()
                    pause = next(left, None)
                    if pause is None:
                        if isinstance(error, StreamEnded):
                            raise TransientError(f"the copy of {part.table} ends unfinished") from error
                        raise
                    log.warning(
                        "the copy of %s in shard %s, interrupted after %d rows, goes on in %.1f s: %s",
                        part.table,
                        part.shard,
                        progress.rows,
                        pause,
                        error,
                    )
                    self.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Give pauses; a task can't be asked to stop, so that it may not wait without a limit."""
        return islice(pauses(self.options.advanced), _MOST_PAUSES)

    def _read_on(
        self, client: VtgateClient, part: SnapshotRange, progress: _Progress
    ) -> Iterator[pa.RecordBatch]:
        stream = client.vstream(self._request(part, progress).SerializeToString())
        ahead = ReadAhead(stream, room_of(self.options))
        copy = _Copy(part, progress)
        silent_seconds = _SILENT_INTERVALS * self.options.stream.heartbeat_seconds
        try:
            while not copy.completed:
                response = ahead.next(silent_seconds)
                if response is None:
                    raise TransientError(f"the copy of {part.table} is silent for {silent_seconds} s")
                for batch in copy.take(response):
                    yield self._with_charsets(client, batch)
        finally:
            ahead.close()

    def _with_charsets(self, client: VtgateClient, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Complete a batch of fields, which has one record; others stay."""
        if batch.num_rows != 1 or batch.column("kind")[0].as_py() != SCHEMA:
            return batch
        (told,) = batch.to_pylist()
        seconds = self.options.advanced.call_seconds
        whole = with_charsets(told, client, self.options.tablet_type, seconds)
        return pa.RecordBatch.from_pylist([whole], schema=CHANGE_SCHEMA)

    def _request(self, part: SnapshotRange, progress: _Progress) -> Any:
        keyspace, _, table = part.table.partition(".")
        vgtid = VGtid()
        if progress.entry is None:
            vgtid.shard_gtids.add(keyspace=keyspace, shard=part.shard, gtid="")
        else:
            vgtid.shard_gtids.append(progress.entry)
        condition = f" where {part.where}" if part.where else ""
        filters = Filter()
        filters.rules.add(match=table, filter=f"select * from {quoted(table)}{condition}")
        request = stream_request(vgtid, filters, self.options)
        request.flags.tables_to_copy.append(table)
        # A copy is of the shards that there are; a journal has nothing to tell it.
        request.flags.stop_on_reshard = False
        request.flags.include_reshard_journal_events = False
        return request


class _Copy:
    """What the responses of one copy give."""

    def __init__(self, part: SnapshotRange, progress: _Progress) -> None:
        self.completed = False
        self._part = part
        self._progress = progress
        self._origin = f"{part.table.partition('.')[0]}/{part.shard}"
        self._data = b""
        self._fields = b""
        self._schema_id = ""
        self._told = False
        self._last_key = b"" if progress.entry is None else _last_key(progress.entry)

    def take(self, response: bytes) -> Iterator[pa.RecordBatch]:
        """Take a response: give the records of the packets that it ends.

        Raises:
            TransientError: The tablet is behind the stored offset.
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
                self._schema_id = schema_id(FieldEvent.FromString(self._fields))
            elif kind == VGTID:
                entry = self._entry(events.body(number))
            elif kind == COMMIT and entry is not None:
                key = _last_key(entry)
                rows = np.arange(*np.searchsorted(rows_of, [done, number]))
                # Of a table without a key, two packets may end with equal rows; those of a copy have no time.
                timeless = len(rows) > 0 and not events.timestamps[rows_of[rows]].any()
                packet = bool(key) and (key != self._last_key or timeless)
                if packet or not key:
                    self._require_recent(entry.gtid)
                if packet:
                    yield from self._packet(events, rows, entry)
                if key:
                    self._progress.entry = entry  # without a key it would ask for a stream, not for a copy
                elif self._last_key:
                    self.completed = True
                self._last_key = key
                entry = None
                done = number + 1
            elif kind == COPY_COMPLETED and not events.table(number).shard:
                # Each shard's copy ends with one of its own; the last one, of no shard, ends them all.
                self.completed = True
                yield from self._tell_fields(self._progress.entry)
        self._data = self._data[int(events.ends[done - 1]) :] if done else self._data

    def _entry(self, body: bytes) -> Any:
        for entry in VGtid.FromString(body).shard_gtids:
            if entry.shard == self._part.shard:
                return entry
        raise CorruptInput(
            f"a VGTID of the copy of {self._part.table} lacks its shard", expected=self._part.shard
        )

    def _require_recent(self, gtid: str) -> None:
        stored = GtidSet.parse(self._part.gtid)
        if not GtidSet.parse(gtid).contains(stored):
            raise TransientError(
                f"a tablet of {self._origin} is behind the stored offset",
                expected=f"all of {self._part.gtid}",
                found=gtid,
                remedy="it is asked again; wait until replication has caught up",
            )

    def _key(self, gtid: str) -> bytes:
        epoch = next_epoch(self._part.epoch, self._part.gtid, gtid)
        return place_key(epoch, GtidSet.parse(gtid).count)

    def _packet(self, events: Any, rows: Any, entry: Any) -> Iterator[pa.RecordBatch]:
        yield from self._tell_fields(entry)
        if not len(rows):
            return
        yield snapshot_records(
            events,
            rows,
            table=self._part.table,
            origin=self._origin,
            key=self._key(entry.gtid),
            schema_id=self._schema_id,
            planned_us=self._part.planned_us,
            first_row=self._progress.rows,
            captured_us=time.time_ns() // 1000,
        )
        self._progress.rows += len(rows)

    def _tell_fields(self, entry: Any) -> Iterator[pa.RecordBatch]:
        """Give the record of the fields, once."""
        if self._told or not self._fields:
            return
        self._told = True
        gtid = entry.gtid if entry is not None and entry.gtid else self._part.gtid
        position = self._key(gtid) + LAST_ROW.to_bytes(4, "big") + bytes.fromhex(self._schema_id)
        record = schema_record(
            self._fields,
            self._schema_id,
            table=self._part.table,
            origin=self._origin,
            position=position,
            committed_us=0,
            captured_us=time.time_ns() // 1000,
        )
        yield pa.RecordBatch.from_pylist([record], schema=CHANGE_SCHEMA)


def _last_key(entry: Any) -> bytes:
    """Return what tells how far a copy came; empty before its first packet and after its last."""
    return b"".join(one.SerializeToString(deterministic=True) for one in entry.table_p_ks)
