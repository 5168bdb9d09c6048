"""The Vitess source: VStreams and copies of tables behind the contract of :mod:`..base`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, SchemaUnknown, TransientError
from airflow_cdc_provider.sources.base import Codec, Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan
from airflow_cdc_provider.sources.pauses import pauses
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers
from airflow_cdc_provider.sources.vitess.check import check_keyspace
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues, Vtctld
from airflow_cdc_provider.sources.vitess.gtid import is_real
from airflow_cdc_provider.sources.vitess.history import TableHistory, lineage_of, records_of
from airflow_cdc_provider.sources.vitess.options import (
    CURRENT,
    VitessOptions,
    require_epochs_of,
)
from airflow_cdc_provider.sources.vitess.parallel_streams import ParallelStreams
from airflow_cdc_provider.sources.vitess.position import Position, ShardPlace, require_known
from airflow_cdc_provider.sources.vitess.records import SliceReader
from airflow_cdc_provider.sources.vitess.requests import (
    current_position,
    each_keyspace,
    filter_of,
    list_keyless,
    list_tables,
    quoted,
    serving_shards,
    wanted_tables,
)
from airflow_cdc_provider.sources.vitess.selection import Selects
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, SnapshotRange, plan_snapshot
from airflow_cdc_provider.sources.vitess.stream import ChangeStream
from airflow_cdc_provider.sources.vitess.tablets import require_kept
from airflow_cdc_provider.sources.vitess.unknown_charsets import with_charsets
from airflow_cdc_provider.sources.vitess.vtctld import vtctld_position
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

log = logging.getLogger(__name__)

_PRIMARY = "PRIMARY"
_SECOND_US = 1_000_000
_STOP_CHECK_SECONDS = 0.2

Answer = TypeVar("Answer")


class VitessSource:
    """A keyspace of a Vitess cluster, some of its shards, or several keyspaces.

    Connections are made when first needed, so decoding works without any.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection: host, port, login, password, extra.
        selects: Tells whether ``keyspace.table`` belongs to the capture.
    """

    type = "vitess"
    planned_ranges = PlannedRanges({"shard": SnapshotRange})

    def __init__(
        self, options: VitessOptions, connection: Mapping[str, Any], selects: Callable[[str], bool]
    ) -> None:
        self._options = options
        self._connection = connection
        self._selects = Selects(options.keyspace, selects)
        self._client_made: VtgateClient | None = None
        self._stream_made: ParallelStreams | None = None
        self._records: list[dict[str, Any]] = []
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._histories: dict[str, TableHistory] = {}
        self._keyless: frozenset[str] | None = None
        self._offset: Position | None = None
        self._checked: Position | None = None
        self._stopping: Callable[[], bool] = lambda: False
        self._reached = False

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Take what tells whether a clean stop was asked for: pauses for a lost VTGate then end."""
        self._stopping = stopping

    @property
    def _values(self) -> ConnectionValues:
        return ConnectionValues.read(self._connection)

    @property
    def _client(self) -> VtgateClient:
        if self._client_made is None:
            self._client_made = VtgateClient(self._values)
        return self._client_made

    @property
    def _stream(self) -> ParallelStreams:
        if self._stream_made is None:
            self._stream_made = ParallelStreams(self._new_stream, self._options)
        return self._stream_made

    def _new_stream(self, options: VitessOptions, failing: Callable[[], bool]) -> ChangeStream:
        """Make the stream of one share of the shards; it stops with the job, or when another one fails."""
        client = self._client

        def stopping() -> bool:
            return failing() or self._stopping()

        return ChangeStream(
            lambda: client,
            options,
            lambda: filter_of(wanted_tables(client, options, self._selects)),
            self._selects,
            self._knows,
            lambda seconds: _pause(seconds, stopping),
            stopping,
        )

    def _over_losses(self, ask: Callable[[], Answer]) -> Answer:
        """Ask VTGate again where it was lost; who has never reached it is told at once.

        Raises:
            TransientError: It was tried often enough, or the job is asked to stop.
        """
        left = pauses(self._options.advanced)
        while True:
            try:
                answer = ask()
            except TransientError as error:
                pause = next(left, None) if self._reached else None
                if pause is None or self._stopping():
                    raise
                log.warning("VTGate is lost, asked again in %.1f s: %s", pause, error)
                _pause(pause, self._stopping)
            else:
                self._reached = True
                return answer

    def _knows(self, table: str, schema_id: str) -> bool:
        return (table, schema_id) in self._known

    def check(self, offset: Offset | None = None) -> list[Finding]:
        """Look at VTGate, shards, tablets, tables and binlogs; with an offset, whether it holds."""
        place = Position.from_offset(offset) if offset is not None else None
        return check_keyspace(self._values, self._options, self._selects, place)

    def tables(self) -> list[str]:
        """List the selected tables, ``keyspace.table``, sorted."""
        return self._over_losses(lambda: list_tables(self._client, self._options, self._selects))

    def in_batches(self, table: str) -> bool:
        """Tell whether a table is read in full at each run: its rows can't be told apart."""
        history = self._history(table)
        if history.shapes:
            return not history.newest.key
        if self._keyless is None:
            self._keyless = frozenset(
                table
                for one in each_keyspace(self._client, self._options)
                for table in list_keyless(self._client, one, self._selects)
            )
        return table in self._keyless

    @property
    def batch_seconds(self) -> float:
        """How long after the begin of one reading of such a table the next one may begin."""
        return self._options.batch_seconds

    def learn(self, records: pa.Table) -> None:
        """Take in all records of kind ``schema`` that there are."""
        self._records = records_of(records)
        self._known = frozenset((r["source_table"], r["schema_id"]) for r in self._records)
        self._histories = {}

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Give none: the stream and copies tell of fields themselves."""
        return iter(())

    def resumed_at(self, table: str) -> int:
        """Return when a statement changed rows that no event tells of, µs since 1970; 0 for never."""
        due = self._history(table).due
        # A statement tells the second in which it ran: a snapshot that began in it may not have seen it.
        return due.moment_us + _SECOND_US - 1 if due is not None else 0

    def schema_findings(self) -> list[str]:
        """Tell what of the schema keeps mirrors from following: nothing, as snapshots follow it."""
        return []

    def may_land(self, reason: str) -> bool:
        """Tell whether a record in quarantine may be read by a better schema: each has its own."""
        del reason
        return False

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return what reads records of kind ``quarantine`` again: as they are."""
        return _as_they_are

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table by all fields that its rows came with.

        Raises:
            SchemaUnknown: No fields of the table are recorded.
        """
        history = self._history(table)
        if not history.shapes:
            raise SchemaUnknown(
                f"no fields of {table} are recorded",
                expected="a snapshot of it, or a change",
                found="none",
            )
        return VitessCodec(table, history, lineage_of(self._records), memory=memory)

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return what the mirror keeps: its columns."""
        assert isinstance(codec, VitessCodec)
        return codec.remember()

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory with columns that all rows are yet to be shown by."""
        del memory
        assert isinstance(codec, VitessCodec)
        return codec.reserve()

    def _history(self, table: str) -> TableHistory:
        if table not in self._histories:
            self._histories[table] = TableHistory.of(table, self._records)
        return self._histories[table]

    def start(self) -> Offset:
        """Return where shards stand now, for what came before is in the snapshots; or ``start_at``.

        Raises:
            ConfigurationError: ``start_at`` names other shards than there are.
            PositionLost: It names transactions that a shard doesn't have.
        """
        now = self._begun_at_head()
        require_epochs_of((shard.partition("/")[2] for shard in now.shards), self._options.epochs)
        if self._options.start_at == CURRENT:
            vtctld = self._values.vtctld
            return (self._told_by(vtctld, now) if vtctld else now).to_offset()
        entries = json.loads(self._options.start_at)
        chosen = {f"{e['keyspace']}/{e['shard']}": e["gtid"] for e in entries}
        places = {
            shard: self._first_place(shard, gtid, is_given=True) if is_real(gtid) else now.shards[shard]
            for shard, gtid in chosen.items()
            if is_real(gtid) or shard in now.shards
        }
        if set(places) != set(now.shards):
            raise ConfigurationError(
                "option source.start_at names other shards than there are",
                expected=", ".join(now.shards),
                found=", ".join(chosen),
            )
        position = Position(places)
        self._require_known(position, now)
        log.info("the first capture begins at %s", self._options.start_at)
        return position.to_offset()

    def after_loss(self) -> Offset:
        """Return where shards stand now: what came before is lost, or in the snapshots that follow.

        What comes then is newer than all that was captured, whatever became of the servers.
        """
        before = self._offset
        now = self._head()
        if before is None:
            return self._begun_at_head().to_offset()
        epoch = 1 + max(place.epoch for place in before.shards.values())
        places = {}
        for shard, place in now.shards.items():
            known = before.shards.get(shard)
            parents = known.parents if known is not None else before.ancestors_of(shard)
            places[shard] = ShardPlace(place.gtid, epoch, parents, self._options.generation)
        return Position(places).to_offset()

    def head(self) -> Offset:
        """Return where shards stand now."""
        return self._head().to_offset()

    def earliest(self) -> Offset:
        """Return where shards stand now: how far binlogs reach back, VTGate doesn't tell."""
        return self._head().to_offset()

    def lag(self, offset: Offset | None) -> Lag:
        """Tell by how many transactions an offset is behind; seconds can't be told but for none."""
        head = self._head()
        position = Position.from_offset(offset) if offset is not None else head
        behind = {
            shard: place.set.count - position.shards[shard].set.count
            if shard in position.shards and is_real(position.shards[shard].gtid)
            else None
            for shard, place in head.shards.items()
        }
        details = {
            shard: {"head": head.shards[shard].gtid, "transactions": count} for shard, count in behind.items()
        }
        return Lag(0.0 if position.has(head) else None, None, details)

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of a wrong form.

        Raises:
            ConfigurationError: With what is expected.
        """
        Position.from_offset(offset)

    def stand_at(self, offset: Offset) -> None:
        """Take in the stored offset: snapshots are placed there."""
        self._offset = Position.from_offset(offset).of_generation(self._options.generation)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Take the next batch.

        Raises:
            PositionLost: Binlogs after ``start`` are gone, a shard of it is gone, or a shard lacks
                transactions that it has, so that its stream would stand still without a word.
            TransientError: The server can't be reached.
        """
        if start is None:
            position = self._begun_at_head()
        else:
            position = Position.from_offset(start).of_generation(self._options.generation)
        target = Position.from_offset(head)
        self._offset = position
        _require_all_shards(position, target)
        unsettled = {s: p for s, p in position.shards.items() if not is_real(p.gtid)}
        if unsettled:
            now = self._head()
            settled = {
                s: p if is_real(p.gtid) else p.moved(now.shards[s].gtid) for s, p in position.shards.items()
            }
            position = Position(settled)
        if self._checked != position:
            self._require_known(position, target)
        plan = self._with_charsets(self._stream.plan(position, target, limit))
        self._offset = self._checked = Position.from_offset(plan.end)
        return plan

    def _with_charsets(self, plan: Plan) -> Plan:
        options = self._options
        seconds = options.advanced.call_seconds

        def complete() -> list[dict[str, Any]]:
            client = self._client
            return [with_charsets(dict(r), client, options.tablet_type, seconds) for r in plan.records]

        return replace(plan, records=self._over_losses(complete))

    def stream_numbers(self) -> Mapping[str, StreamNumbers]:
        """Tell what the stream met so far."""
        return {"stream": self._stream_made.counts} if self._stream_made is not None else {}

    def reader(self) -> SliceReader:
        """Return the picklable function that turns slices into records."""
        options = self._options
        return SliceReader(
            self._selects,
            options.stream.empty_transactions,
            options.advanced.strict,
            options.advanced.warn_of_broken,
        )

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Plan a copy of a table, a range per shard.

        Args:
            table: ``keyspace.table``.
            where: Comparisons of columns with constants, as VTGate's stream takes them.
        """
        if self._offset is None:
            self._offset = self._head()
        return plan_snapshot(self._offset, table, where)

    def plan_batch(self, table: str, where: str | None, reached: str) -> SnapshotPlan:
        """Plan the next reading of a table without a key: all of it, for nothing tells its rows apart."""
        del reached
        now = self._head()
        known = self._offset.shards if self._offset is not None else {}
        # At the head: rows that an earlier reading took beyond the stored offset are to go too.
        places = {s: known[s].moved(p.gtid) if s in known else p for s, p in now.shards.items()}
        return plan_snapshot(Position(places), table, where)

    def snapshot_reader(self) -> Callable[[SnapshotRange], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one range."""
        return RangeReader(self._values, self._options)

    def row_count(self, table: str) -> int | None:
        """Count the table's rows now."""
        keyspace, _, name = table.partition(".")
        answer = self._client.execute(
            f"select count(*) from {quoted(name)}",
            target=f"{keyspace}@{self._options.tablet_type.lower()}",
            timeout_seconds=self._options.advanced.call_seconds,
        ).texts()
        return int(answer[0][0])

    def close(self) -> None:
        """End the stream and the connection."""
        if self._stream_made is not None:
            self._stream_made.close()
        if self._client_made is not None:
            self._client_made.close()
        self._stream_made = self._client_made = None

    def _begun_at_head(self) -> Position:
        """Return where shards stand now, with the epochs of a capture that begins there."""
        shards = self._head().shards
        return Position({shard: self._first_place(shard, place.gtid) for shard, place in shards.items()})

    def _first_place(self, shard: str, gtid: str, *, is_given: bool = False) -> ShardPlace:
        """Return where a capture begins in a shard.

        The first position that the server tells begins an epoch, and so does one that is given without
        epochs; one that is given with them is of the epoch that it is given.
        """
        options = self._options
        epoch = options.epochs.get(shard.partition("/")[2], 0)
        before = gtid if is_given and options.epochs else CURRENT
        return ShardPlace(before, epoch, generation=options.generation).moved(gtid)

    def _head(self, tablet_type: str = "") -> Position:
        now = self._over_losses(
            lambda: current_position(
                self._client, self._options, serving_shards(self._client, self._options), tablet_type
            )
        )
        return Position({s: ShardPlace(CURRENT).moved(p.gtid) for s, p in now.shards.items()})

    def _told_by(self, vtctld: Vtctld, now: Position) -> Position:
        """Ask vtctld where the shards stand.

        Raises:
            PositionLost: It tells of another cluster.
        """
        options = self._options
        seconds = options.advanced.call_seconds
        told = vtctld_position(self._values, vtctld, list(now.shards), options.tablet_type, seconds)
        position = Position({s: self._first_place(s, p.gtid) for s, p in told.shards.items()})
        # What it tells is newer than the head that was asked for before.
        self._require_known(position, self._head())
        return position

    def _require_known(self, position: Position, head: Position) -> None:
        """Refuse a position that a shard can't go on from; a replica may just be behind.

        Raises:
            PositionLost: With the shard.
        """
        try:
            require_known(position, head)
        except PositionLost:
            if self._options.tablet_type == _PRIMARY:
                raise
            require_known(position, self._head(_PRIMARY))
        positions = {shard: place.gtid for shard, place in position.shards.items() if shard in head.shards}
        seconds = self._options.advanced.call_seconds
        self._over_losses(lambda: require_kept(self._client, positions, self._options.tablet_type, seconds))


def _require_all_shards(position: Position, head: Position) -> None:
    """Refuse to read on where there are shards that none of the offset can turn into.

    Raises:
        ConfigurationError: With them.
    """
    if new := [
        shard for shard in head.shards if shard not in position.shards and not position.ancestors_of(shard)
    ]:
        raise ConfigurationError(
            f"the stored offset has no place of {', '.join(new)}",
            expected=", ".join(position.shards),
            found=", ".join(head.shards),
            remedy="leave them out (source.shards), or reset the offset, which brings new snapshots",
        )


def _pause(seconds: float, stopping: Callable[[], bool]) -> None:
    """Pause for some seconds, or until something is asked to stop."""
    until = time.monotonic() + seconds
    while not stopping() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _STOP_CHECK_SECONDS))


def _as_they_are(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield records
