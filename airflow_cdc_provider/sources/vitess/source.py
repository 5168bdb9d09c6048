"""The Vitess source: implements the contract of :mod:`..contract` with VStreams and table copies."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    PositionLost,
    SchemaUnknown,
    TransientError,
)
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.contract import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan, Source
from airflow_cdc_provider.sources.filters import refused_filter
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.check import DEFAULT_RULES, SnapshotRules, check_keyspace
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues, Vtctld
from airflow_cdc_provider.sources.vitess.current_fields import with_current_fields
from airflow_cdc_provider.sources.vitess.ddl import bounded, recorded_bytes
from airflow_cdc_provider.sources.vitess.failures import StaleTabletSchema
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions, require_epochs_of
from airflow_cdc_provider.sources.vitess.parallel_streams import ParallelStreams
from airflow_cdc_provider.sources.vitess.pending import oldest
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition, require_known
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.requests import (
    current_position,
    each_keyspace,
    filter_of,
    home_shards,
    list_keyless,
    list_tables,
    serving_shards,
    tables_to_stream,
)
from airflow_cdc_provider.sources.vitess.schema_history import (
    TableHistory,
    TableRecords,
    by_table,
    lineage_of,
    records_of,
)
from airflow_cdc_provider.sources.vitess.schema_ids import REREAD
from airflow_cdc_provider.sources.vitess.selection import Selects
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, SnapshotRange, plan_snapshot
from airflow_cdc_provider.sources.vitess.tablets import require_binlogs_retained
from airflow_cdc_provider.sources.vitess.unknown_charsets import with_charsets
from airflow_cdc_provider.sources.vitess.vtctld import vtctld_position
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

log = logger(__name__)

_PRIMARY = "PRIMARY"
_SECOND_US = 1_000_000
_STOP_CHECK_SECONDS = 0.2
_PATIENCE_SECONDS = 5.0
"""How long a report of the lag may wait for the tablets' search."""

Answer = TypeVar("Answer")


class VitessSource(Source):
    """A keyspace of a Vitess cluster, some of its shards, or several keyspaces.

    Connections are opened when they are first needed, so decoding works without a connection.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection: host, port, login, password, extra.
        selects: Returns whether ``keyspace.table`` belongs to the capture.
        rules: When runs take snapshots; for :meth:`check`.
    """

    has_schema_history = True
    planned_ranges = PlannedRanges({"shard": SnapshotRange})

    def __init__(
        self,
        options: VitessOptions,
        connection: Mapping[str, Any],
        selects: Callable[[str], bool],
        rules: SnapshotRules = DEFAULT_RULES,
    ) -> None:
        self._rules = rules
        self._options = options
        self._connection = connection
        self._selects = Selects(options.keyspace, selects)
        self._open_client: VtgateClient | None = None
        self._open_streams: ParallelStreams | None = None
        self._records: list[dict[str, Any]] = []
        self._by_table: dict[str, TableRecords] = {}
        self._lineage: dict[str, tuple[str, ...]] = {}
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._histories: dict[str, TableHistory] = {}
        self._statement_bytes: Counter[tuple[str, str]] | None = None
        self._keyless: frozenset[str] | None = None
        self._homes: dict[str, str] = {}
        self._offset: Position | None = None
        self._verified: Position | None = None
        self._unreadable: frozenset[str] = frozenset()
        self._stopping: Callable[[], bool] = lambda: False
        self._connected_before = False
        self._created_us = time.time_ns() // 1000

    def cancel_when(self, stopping: Callable[[], bool]) -> None:
        """Set the callable that returns whether a clean stop was requested; a stop ends pauses."""
        self._stopping = stopping

    @property
    def _values(self) -> ConnectionValues:
        return ConnectionValues.read(self._connection)

    @property
    def _client(self) -> VtgateClient:
        if self._open_client is None:
            self._open_client = VtgateClient(self._values)
        return self._open_client

    @property
    def _stream(self) -> ParallelStreams:
        if self._open_streams is None:
            self._open_streams = ParallelStreams(self._new_stream, self._options)
        return self._open_streams

    def _new_stream(self, options: VitessOptions, failing: Callable[[], bool]) -> ChangeStream:
        """Create the stream of some shards; it stops with the job, or when another stream fails."""
        client = self._client

        def stopping() -> bool:
            return failing() or self._stopping()

        return ChangeStream(
            lambda: client,
            options,
            lambda: filter_of(tables_to_stream(client, options, self._is_readable)),
            self._selects,
            self._is_recorded,
            lambda seconds: _pause(seconds, stopping),
            stopping,
        )

    def _is_readable(self, table: str) -> bool:
        return self._selects(table) and table.partition(".")[2] not in self._unreadable

    def _with_retries(self, request: Callable[[], Answer]) -> Answer:
        """Call VTGate, and retry after connection losses. The first contact of a run isn't retried.

        Raises:
            TransientError: All attempts failed, or the job is being stopped.
        """
        left = pauses(self._options.advanced)
        while True:
            try:
                response = request()
            except TransientError as error:
                pause_seconds = next(left, None) if self._connected_before else None
                if pause_seconds is None or self._stopping():
                    raise
                log.warning("Lost the connection to VTGate, retrying in %.1f s: %s", pause_seconds, error)
                _pause(pause_seconds, self._stopping)
            else:
                self._connected_before = True
                return response

    def _is_recorded(self, table: str, schema_id: str) -> bool:
        return (table, schema_id) in self._known

    def check(self, offset: Offset | None = None) -> list[Finding]:
        """Verify VTGate, shards, tablets, tables and binlogs, and the stored offset if there is one."""
        position = Position.from_offset(offset) if offset is not None else None
        return check_keyspace(self._values, self._options, self._selects, position, self._rules)

    def tables(self) -> list[str]:
        """List the selected tables, ``keyspace.table``, sorted."""
        return self._with_retries(lambda: list_tables(self._client, self._options, self._selects))

    def in_batches(self, table: str) -> bool:
        """Return whether a table is read in full at each run, because it has no key."""
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
    def batch_interval_seconds(self) -> float:
        """Minimum interval between the starts of two full reads of such a table."""
        return self._options.batch_interval_seconds

    def learn(self, records: pa.Table) -> None:
        """Load all records of kind ``schema``."""
        self._records = records_of(records)
        self._by_table, self._lineage = by_table(self._records), lineage_of(self._records)
        self._known = frozenset((r["source_table"], r["schema_id"]) for r in self._records)
        self._histories = {}
        self._statement_bytes = None

    def resumed_at(self, table: str) -> int:
        """Return when a statement last changed rows without row events, in µs since 1970; 0 for never."""
        history = self._history(table)
        # A statement's time is in whole seconds: a snapshot that started in the same second may have missed
        # it.
        return max(history.due.moment_us + _SECOND_US - 1 if history.due else 0, history.reread_us)

    def schema_findings(self) -> list[str]:
        """Return a message for each table with values that the job's streams didn't contain."""
        return [
            f"{table}: VTGate's stream sent JSON values that aren't JSON, as it does for BIT or BLOB "
            "members before Vitess 24.0.4; these are in _rest until a snapshot has read the table"
            for table in sorted({one["source_table"] for one in self._records if one["schema_id"] == REREAD})
            if self._history(table).reread_us >= self._created_us
        ]

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> VitessCodec:
        """Return the codec of a table for all recorded versions of its fields."""
        history = self._history(table)
        if not history.shapes:
            raise SchemaUnknown(
                f"no fields of {table} are recorded",
                expected="a snapshot or a change of the table",
                found="none",
            )
        return VitessCodec(table, history, self._lineage, memory=memory)

    def _history(self, table: str) -> TableHistory:
        if table not in self._histories:
            self._histories[table] = TableHistory.of_parts(table, self._by_table, self._lineage)
        return self._histories[table]

    def start(self) -> Offset:
        """Return the current position, as snapshots cover everything before it; or option ``start_at``.

        Raises:
            ConfigurationError: ``start_at`` doesn't name exactly the existing shards.
            PositionLost: ``start_at`` contains transactions that a shard doesn't have.
        """
        now = self._initial_position()
        require_epochs_of((shard.partition("/")[2] for shard in now.shards), self._options.epochs)
        if self._options.start_at == CURRENT:
            vtctld = self._values.vtctld
            return (self._position_from_vtctld(vtctld, now) if vtctld else now).to_offset()
        entries = json.loads(self._options.start_at)
        chosen = {f"{e['keyspace']}/{e['shard']}": e["gtid"] for e in entries}
        shards = {
            shard: self._initial_shard_position(shard, gtid, is_configured=True)
            if is_real(gtid)
            else now.shards[shard]
            for shard, gtid in chosen.items()
            if is_real(gtid) or shard in now.shards
        }
        if set(shards) != set(now.shards):
            raise ConfigurationError(
                "option source.start_at doesn't name the existing shards",
                expected=", ".join(now.shards),
                found=", ".join(chosen),
            )
        position = Position(shards)
        self._require_known(position, now)
        log.info("Starting the first capture at %s", self._options.start_at)
        return position.to_offset()

    def offset_after_loss(self) -> Offset:
        """Return the current position; everything before it is lost, or covered by the snapshots that follow.

        All later changes sort after all captured ones, even if the servers were replaced.
        """
        before = self._offset
        now = self._head()
        if before is None:
            return self._initial_position().to_offset()
        epoch = 1 + max(known.epoch for known in before.shards.values())
        shards = {}
        for shard, current in now.shards.items():
            known = before.shards.get(shard)
            parents = known.parents if known is not None else before.ancestors_of(shard)
            shards[shard] = ShardPosition(current.gtid, epoch, parents, self._options.generation)
        return Position(shards).to_offset()

    def head(self) -> Offset:
        """Return the current position of all shards."""
        return self._head().to_offset()

    def lag(self, offset: Offset | None) -> Lag:
        """Return the age of the oldest selected change after an offset, and each shard's transactions."""
        head = self._head()
        position = Position.from_offset(offset) if offset is not None else head
        behind = {
            shard: current.set.count - position.shards[shard].set.count
            if shard in position.shards and is_real(position.shards[shard].gtid)
            else None
            for shard, current in head.shards.items()
        }
        details = {
            shard: {"head": head.shards[shard].gtid, "transactions": count} for shard, count in behind.items()
        }
        seconds: float | None = 0.0
        if not position.has(head):
            try:
                found = oldest(self._client, self._options, self._selects, position, head, _PATIENCE_SECONDS)
                seconds = found.lag_seconds
            except CdcError:  # the next capture reports it
                seconds = None
        return Lag(seconds, None, details)

    def validate_offset(self, offset: Offset) -> None:
        """Reject an offset of an invalid format."""
        Position.from_offset(offset)

    def seek_to(self, offset: Offset) -> None:
        """Set the stored offset; snapshots are planned at it."""
        self._offset = Position.from_offset(offset).of_generation(self._options.generation)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch.

        Raises:
            PositionLost: The binlogs after ``start`` were purged, one of its shards no longer exists, or a
                shard lacks transactions of it, so that its stream would stall silently. Or tablets can't read
                the changes of a table: the next plans, up to the head, don't contain it.
            TransientError: The server can't be reached.
        """
        if start is None:
            position = self._initial_position()
        else:
            position = Position.from_offset(start).of_generation(self._options.generation)
        target = Position.from_offset(head)
        self._offset = position
        _require_all_shards(position, target)
        if not all(is_real(p.gtid) for p in position.shards.values()):
            now = self._head()
            resolved = {
                s: p if is_real(p.gtid) else p.moved(now.shards[s].gtid) for s, p in position.shards.items()
            }
            position = Position(resolved)
        if self._verified != position:
            self._require_known(position, target)
        try:
            plan = self._with_charsets(self._stream.plan(position, target, limit))
        except StaleTabletSchema as error:
            if not error.table or error.table in self._unreadable:
                raise
            self._unreadable |= {error.table}
            if lost := self._loss_of(error):
                raise lost from error
            return self.plan(start, head, limit)  # the table was dropped since
        plan = with_current_fields(plan, self._values, self._options, self._selects)
        if plan.records:
            if self._statement_bytes is None:
                self._statement_bytes = recorded_bytes(self._records)
            plan = replace(plan, records=bounded(plan.records, self._statement_bytes))
        self._offset = self._verified = Position.from_offset(plan.end)
        if plan.at_head and self._unreadable:
            self._stream.close()
            self._unreadable = frozenset()
        return plan

    def _loss_of(self, error: StaleTabletSchema) -> PositionLost | None:
        """Return the loss of the changes of a table; None if the table doesn't exist any more."""
        tables = [table for table in self.tables() if table.partition(".")[2] == error.table]
        if not tables:
            return None
        lost = PositionLost(
            f"changes of {', '.join(tables)} can't be read: {error.message}",
            found=error.found,
            remedy="set snapshot.on_lost_position to what a run shall do; or run once with the table in "
            "exclude_tables, then without, and take a snapshot of it",
        )
        lost.tables = tables
        return lost

    def _with_charsets(self, plan: Plan) -> Plan:
        options = self._options
        seconds = options.advanced.call_timeout_seconds

        def complete() -> list[dict[str, Any]]:
            client = self._client
            return [with_charsets(dict(r), client, options.tablet_type, seconds) for r in plan.records]

        return replace(plan, records=self._with_retries(complete))

    def stream_metrics(self) -> Mapping[str, StreamMetrics]:
        """Return the statistics of the stream so far."""
        return {"stream": self._open_streams.counts} if self._open_streams is not None else {}

    def reader(self) -> SliceReader:
        """Return the reader that converts slices to records."""
        options = self._options
        return SliceReader(
            self._selects,
            options.stream.empty_transactions,
            options.advanced.strict,
            options.advanced.log_quarantined_events,
            self._homes_of(self.tables()),
        )

    def _homes_of(self, tables: Sequence[str]) -> dict[str, str]:
        """Return the shard from which each reference table is read (:func:`.requests.home_shards`)."""
        if new := [table for table in tables if table not in self._homes]:
            found = self._with_retries(lambda: home_shards(self._client, self._options, new))
            self._homes |= dict.fromkeys(new, "") | found
        return {table: home for table in tables if (home := self._homes[table])}

    def refused_filter(self, where: str) -> str:
        """Refuse all but comparisons of columns, and ``in_keyrange``."""
        return refused_filter(where, ("in_keyrange",))

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Plan a range per shard; ``where`` has the syntax of VTGate's stream: comparisons with constants."""
        if self._offset is None:
            self._offset = self._head()
        return plan_snapshot(self._offset, table, where, is_reference=bool(self._homes_of([table])))

    def plan_batch(self, table: str, where: str | None, resume_at: str) -> SnapshotPlan:
        """Plan the next full read of a table without a key."""
        now = self._head()
        known = self._offset.shards if self._offset is not None else {}
        # At the head, to also remove rows that an earlier read copied after the stored offset.
        shards = {s: known[s].moved(p.gtid) if s in known else p for s, p in now.shards.items()}
        return plan_snapshot(Position(shards), table, where, is_reference=bool(self._homes_of([table])))

    def snapshot_reader(self) -> RangeReader:
        """Return the reader of ranges."""
        return RangeReader(self._values, self._options)

    def close(self) -> None:
        """Close the stream and the connection."""
        if self._open_streams is not None:
            self._open_streams.close()
        if self._open_client is not None:
            self._open_client.close()
        self._open_streams = self._open_client = None

    def _initial_position(self) -> Position:
        """Return the current position with the epochs of a capture that starts there."""
        shards = self._head().shards
        return Position({shard: self._initial_shard_position(shard, p.gtid) for shard, p in shards.items()})

    def _initial_shard_position(self, shard: str, gtid: str, *, is_configured: bool = False) -> ShardPosition:
        """Return the position at which a capture starts in a shard.

        The first position that the server reports starts an epoch, as does one configured without epochs. A
        position configured with epochs belongs to the configured epoch.
        """
        options = self._options
        epoch = options.epochs.get(shard.partition("/")[2], 0)
        before = gtid if is_configured and options.epochs else CURRENT
        return ShardPosition(before, epoch, generation=options.generation).moved(gtid)

    def _head(self, tablet_type: str = "") -> Position:
        now = self._with_retries(
            lambda: current_position(
                self._client, self._options, serving_shards(self._client, self._options), tablet_type
            )
        )
        return Position({s: ShardPosition(CURRENT).moved(p.gtid) for s, p in now.shards.items()})

    def _position_from_vtctld(self, vtctld: Vtctld, now: Position) -> Position:
        """Request the position from vtctld.

        Raises:
            PositionLost: vtctld belongs to another cluster.
        """
        options = self._options
        seconds = options.advanced.call_timeout_seconds
        reported = vtctld_position(self._values, vtctld, list(now.shards), options.tablet_type, seconds)
        position = Position({s: self._initial_shard_position(s, p.gtid) for s, p in reported.shards.items()})
        # vtctld's position is newer than the head requested before it, so compare it with a new head.
        self._require_known(position, self._head())
        return position

    def _require_known(self, position: Position, head: Position) -> None:
        """Reject a position from which a shard can't resume. If a replica lags, the primary decides.

        Raises:
            PositionLost: A shard lacks transactions of the position, or its binlogs were purged.
        """
        try:
            require_known(position, head)
        except PositionLost:
            if self._options.tablet_type == _PRIMARY:
                raise
            require_known(position, self._head(_PRIMARY))
        positions = {shard: p.gtid for shard, p in position.shards.items() if shard in head.shards}
        seconds = self._options.advanced.call_timeout_seconds
        self._with_retries(
            lambda: require_binlogs_retained(self._client, positions, self._options.tablet_type, seconds)
        )


def _require_all_shards(position: Position, head: Position) -> None:
    """Reject an offset that has no shard from which an existing shard can derive.

    Raises:
        ConfigurationError: There are such shards.
    """
    if new := [
        shard for shard in head.shards if shard not in position.shards and not position.ancestors_of(shard)
    ]:
        raise ConfigurationError(
            f"the stored offset has no position of {', '.join(new)}",
            expected=", ".join(position.shards),
            found=", ".join(head.shards),
            remedy="exclude them with source.shards, or reset the offset, which takes new snapshots",
        )


def _pause(seconds: float, stopping: Callable[[], bool]) -> None:
    """Pause for some seconds, or until a stop is requested."""
    until = time.monotonic() + seconds
    while not stopping() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _STOP_CHECK_SECONDS))
