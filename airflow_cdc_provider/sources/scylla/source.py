"""The ScyllaDB source: reads log tables in time windows, and snapshots by token ranges, over CQL.

The driver plans all windows, so tasks need no barrier at a change of streams: a window never spans it. A
batch consists of complete windows and is committed with its offset, so a killed batch is read again from its
start. Log changes and snapshot rows can be merged in any order. A new connector's log position is committed
before its snapshot starts, so no change is missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.sources.contract import (
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    ReadMetrics,
    SnapshotPlan,
    Source,
)
from airflow_cdc_provider.sources.cql.connection import connection_findings
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.snapshot import (
    SnapshotRange,
    SnapshotReader,
    SnapshotReads,
    plan_ranges,
)
from airflow_cdc_provider.sources.filters import CQL_FUNCTIONS, refused_filter
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.scylla.capture import (
    GroupRead,
    Pace,
    Paces,
    divide,
    group_reads,
    next_window,
)
from airflow_cdc_provider.sources.scylla.check import RequiredImages, check_cluster, not_logged_error
from airflow_cdc_provider.sources.scylla.cluster import SECOND_US, Cluster
from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.log_reach import LogReach
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.payload import LOG_SUFFIX
from airflow_cdc_provider.sources.scylla.position import TablePosition, read_offset, write_offset
from airflow_cdc_provider.sources.scylla.quarantine import QuarantineReader
from airflow_cdc_provider.sources.scylla.reader import LogReader, LogReads
from airflow_cdc_provider.sources.scylla.records import UNKNOWN_OPERATION
from airflow_cdc_provider.sources.scylla.schema_history import schema_columns
from airflow_cdc_provider.sources.scylla.truncations import fence_record, position_at

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec

_STEP_SECONDS: Final = 0.1


class ScyllaSource(Source):
    """A ScyllaDB cluster.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~..cql.connection.open_session`).
        selects: Returns whether the declaration selects a table.
        names: Returns whether the declaration contains a table's literal name.
        images: The row images that events require; checked for each table.
    """

    has_schema_history = True
    rereads_keys = True
    planned_ranges = PlannedRanges({"tokens": SnapshotRange})
    many_feeds = True

    def __init__(
        self,
        options: ScyllaOptions,
        connection: Mapping[str, Any],
        selects: Callable[[str], bool],
        *,
        names: Callable[[str], bool] = lambda table: False,
        images: RequiredImages | None = None,
    ) -> None:
        self.options = options
        self._connection = dict(connection)
        self._cluster = Cluster(options, connection)
        self._selects = selects
        self._names = names
        self._images = images or RequiredImages()
        self._paces = Paces(
            Pace.between(_us(options.query_window_seconds), _us(options.max_query_window_seconds))
        )
        self._limit = ReadLimit()
        self._planned_us: dict[str, int] = {}
        self._planned_at = float("-inf")
        self._was_empty = False
        self._stopping: Callable[[], bool] = lambda: False

    def __repr__(self) -> str:
        return f"ScyllaSource({self.options!r})"

    def cancel_when(self, stopping: Callable[[], bool]) -> None:
        """Set the function that returns whether a clean stop was requested; it ends waits between windows."""
        self._stopping = stopping

    def check(self) -> list[Finding]:
        """Check the cluster, the tables and their streams."""
        found = check_cluster(
            self._cluster,
            self.options,
            self._logged_tables,
            self._images,
            self._selects,
            self._refusals,
        )
        findings = list(found)
        if not any(one.level == "error" for one in findings):
            findings += connection_findings(self._connection)
        return findings

    def tables(self) -> list[str]:
        """Return the selected tables that have or had a log, sorted.

        A named table that never had one is listed, too, but it has no codec, and nothing of it is read.
        """
        tables = self.schemas.tables.items()
        selected = [name for name, base in tables if not base.view and self._selects(name)]
        return sorted(name for name in selected if self._is_logged(name) or self._names(name))

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> ScyllaCodec:
        """Return the decoder of a table for its current schema; it has the schemas of all log rows.

        Raises:
            ConfigurationError: It is named and its changes aren't logged.
        """
        from airflow_cdc_provider.sources.scylla.codec import recall_scylla_codec

        types = LakeTypes(self.options.advanced.timestamps)
        return recall_scylla_codec(self._capturable(table), self._payloads(table), memory, types)

    def start(self) -> Offset | None:
        """Return the start of the logs, or the position as far back as the declaration says."""
        self._cluster.observe()
        return write_offset({table: self._start_position(table) for table in self._read_tables()})

    def head(self) -> Offset:
        """Return the time up to which logs may be read: the confidence window behind the slowest clock.

        Changes before it are decoded with schemas and streams that are read after it.
        """
        self._cluster.observe()
        return write_offset(
            {table: self._reach(table).at(self._cluster.head_us) for table in self._read_tables()}
        )

    def lag(self, offset: Offset | None) -> Lag:
        """Return how far the table that is furthest behind lags the clock."""
        self._cluster.observe()
        stored, now_us = read_offset(offset or {}), self._cluster.now_us
        positions = {table: stored.get(table) or self._start_position(table) for table in self._read_tables()}
        details = {t: one.lag(partial(self._timeline, t), now_us) for t, one in positions.items()}
        remarks = []
        if ahead := {t: one.read_to_us for t, one in sorted(positions.items()) if one.read_to_us > now_us}:
            remarks.append(
                f"a clock of the cluster is {(max(ahead.values()) - now_us) / SECOND_US:.0f} s behind the "
                "times that were read: it was set back, or a node's clock is wrong. Changes that it times "
                f"earlier than that are not captured: correct it, then verify {', '.join(ahead)}"
            )
        slowest = max((behind["seconds"] for behind in details.values()), default=0.0)
        return Lag(slowest, None, details, remarks)

    def gaps(self, offset: Offset | None) -> tuple[Sequence[PositionLost], Offset]:
        """Return losses of tables whose logs expired, or were truncated, before they were read."""
        positions = read_offset(offset or {})
        found = []
        for table in self._read_tables():
            if table in positions:
                texts, positions[table] = self._reach(table).losses(positions[table])
                if texts:
                    found.append(PositionLost("; ".join(texts)))
                    found[-1].tables = (table,)
        return found, write_offset(positions)

    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset."""
        read_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch: the next window of all streams of each table, and fences of TRUNCATEs."""
        self._wait()
        self._cluster.invalidate_streams(force=self._was_empty)
        self._limit = limit
        stops = read_offset(head)
        positions = {t: p for t, p in read_offset(start or {}).items() if t in stops or self._is_kept(t, p)}
        reads: list[GroupRead] = []
        records: list[Mapping[str, Any]] = []
        self._planned_us = {}
        at_head = True
        for table, stop in stops.items():
            position = positions.get(table) or self._start_position(table)
            position, fence = self._new_truncation(table, position, stop.read_to_us)
            records += fence
            positions[table] = position
            timeline = self._timeline(table)
            window = next_window(position, timeline, stop.read_to_us, self._paces.of(table).width_us)
            if window is None:
                continue
            reads += group_reads(table, position, window, timeline)
            positions[table] = position.moved(window.generation_ms, window.end_us)
            self._planned_us[table] = window.end_us - window.begin_us
            at_head = at_head and window.end_us >= stop.read_to_us
        parts = divide(reads, limit.tasks, self.options.advanced.requests_in_flight)
        return Plan(end=write_offset(positions), partitions=parts, at_head=at_head, records=records)

    def on_batch_read(self, metrics: ReadMetrics) -> bool:
        """Adapt the width of the next windows to the size of the last batch."""
        reading = metrics.counts
        self._was_empty = not reading["events"]
        load = {
            table: max(
                reading[f"events {table}"] / self._limit.changes,
                reading[f"bytes {table}"] / self._limit.bytes,
            )
            for table in self._planned_us
        }
        # Retried requests are load that the number of changes doesn't show.
        self._paces = self._paces.after(self._planned_us, load, overloaded=bool(reading["retries"]))
        return False

    def reader(self) -> LogReader:
        """Return the reader of parts; it contains the connection's values."""
        tables = {table: self._cluster.logs[table] for table in self._read_tables()}
        return LogReader(self._connection, LogReads.of(self.options), tables)

    def learn(self, records: pa.Table) -> None:
        """Load the recorded schemas of logs."""
        self._cluster.learn(records)

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Yield records of logs whose schemas have changed, or that were enabled or disabled."""
        logs, tables = self._cluster.logs, self._logged_tables()
        logged = [logs[table] for table in tables if table in logs]
        without = [self.schemas.tables[table] for table in tables if table not in logs]
        yield from self._cluster.history.new_records(logged, without, self._cluster.now_us)

    def resumed_at(self, table: str) -> int:
        """Return since when rows may have been added or removed without log rows, µs; 0 for never.

        That is when the log was disabled and re-enabled, when the table was re-created or truncated, or when
        a key column was renamed, which takes its values from the log's older rows.
        """
        truncation = self._cluster.truncations.get(self._schema(table).id)
        log = self._cluster.logs.get(table)
        moments = [truncation.last_us if truncation else 0, log.renamed_us if log else 0]
        # That much later, a snapshot is guaranteed to reflect the TRUNCATE, and the writes before the rename.
        window_us = _us(self.options.confidence_window_seconds)
        settled = [moment + window_us for moment in moments if 0 < moment <= self._cluster.head_us]
        return max([self._cluster.history.resumed_us(table), *settled])

    def schema_findings(self) -> list[str]:
        """Return messages about tables whose log is disabled or dropped."""
        return list(self._cluster.history.findings(self._logged_tables(), self._cluster.logs))

    def may_become_readable(self, reason: str) -> bool:
        """Return True for unknown operations: a later release may support them."""
        return reason == UNKNOWN_OPERATION

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the function that retries quarantined changes."""
        return QuarantineReader(schema_columns(self._cluster.history.payloads))

    def refused_filter(self, where: str) -> str:
        """Refuse all but comparisons of columns."""
        return refused_filter(where, CQL_FUNCTIONS)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Split a table into token ranges; ``where`` is CQL that may follow ``AND``."""
        return plan_ranges(
            self._cluster.session,
            self._capturable(table),
            least_ranges=self.options.advanced.ranges_per_snapshot,
            where=where or "",
            origin="",
            position=self._read_position(table),
            reads_all_replicas=self.options.snapshot_consistency == "ALL" and not where,
        )

    def snapshot_reader(self) -> SnapshotReader:
        """Return the reader of token ranges; it contains the connection's values."""
        advanced = self.options.advanced
        reads = SnapshotReads(
            self.options.snapshot_consistency, advanced.snapshot_fetch_size, advanced.request_timeout_seconds
        )
        return SnapshotReader(self._connection, reads, {name: self._schema(name) for name in self.tables()})

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read complete partitions again by their keys, as snapshot changes."""
        return self.snapshot_reader().read_keys(table, keys, "", self._read_position(table))

    def cluster_name(self) -> str:
        """Return the name that the cluster reports."""
        return str(self._cluster.session.cluster.metadata.cluster_name or "")

    def close(self) -> None:
        """Close the connection."""
        self._cluster.close()

    @property
    def schemas(self) -> Schemas:
        """The cluster's schema at the first use after :meth:`head`."""
        return self._cluster.schemas

    def _read_tables(self) -> list[str]:
        """Return the tables with a readable log; a disabled log still contains earlier changes."""
        logs = self._cluster.logs
        return [table for table in self._logged_tables() if table in logs]

    def _logged_tables(self) -> list[str]:
        return [table for table in self.tables() if self._is_logged(table)]

    def _is_logged(self, table: str) -> bool:
        """Return whether a table has or had a log."""
        log = self._cluster.logs.get(table)
        return self._cluster.history.captured(table) or (log is not None and log.option.enabled)

    def _refusal(self, table: str) -> ConfigurationError | None:
        """Return why a table that is listed can't be captured, None if it can."""
        if self._is_logged(table):
            return None
        return not_logged_error(self._schema(table), switched_off=table in self._cluster.logs)

    def _refusals(self) -> dict[str, ConfigurationError]:
        return {table: refusal for table in self.tables() if (refusal := self._refusal(table))}

    def _capturable(self, table: str) -> TableSchema:
        schema = self._schema(table)
        if self._names(table) and (refusal := self._refusal(table)):
            raise refusal
        return schema

    def _timeline(self, table: str) -> Timeline:
        return self._cluster.timeline(table, self._read_tables)

    def _reach(self, table: str) -> LogReach:
        cluster = self._cluster
        log = cluster.schemas.tables[table + LOG_SUFFIX]
        return LogReach(
            table,
            self._timeline(table),
            cluster.logs[table].option.ttl_seconds,
            cluster.now_us,
            cluster.truncations.get(log.id),
        )

    def _start_position(self, table: str) -> TablePosition:
        """Return the start position of a table without a stored position."""
        return self._reach(table).start(self.options.lookback_seconds)

    def _is_kept(self, table: str, position: TablePosition) -> bool:
        """Return whether the log of a table that isn't selected has all changes after its position.

        Otherwise it starts over once it is selected again, which makes its snapshot due anyway.
        """
        log = self._cluster.logs.get(table)
        ttl_us = _us(log.option.ttl_seconds) if log else 0
        return not ttl_us or position.read_to_us >= self._cluster.now_us - ttl_us

    def _new_truncation(
        self, table: str, position: TablePosition, head_us: int
    ) -> tuple[TablePosition, list[Mapping[str, Any]]]:
        """Return a fence for a TRUNCATE before the head that no batch has emitted."""
        found = self._cluster.truncations.get(self._schema(table).id)
        if found is None or found.last_us > head_us or found.first_us <= position.truncated_us:
            return position, []
        record = fence_record(table, found, self._timeline(table).at(found.first_us) or 0)
        return replace(position, truncated_us=found.first_us), [record]

    def _read_position(self, table: str) -> bytes:
        """Return the position of rows that are read now: after every TRUNCATE that they certainly follow.

        It is early by the confidence window, which is safe: later writes are in the log.
        """
        settled_us = self._cluster.settled_us()
        generation_ms = self._timeline(table).at(settled_us) if table in self._cluster.logs else None
        return position_at(generation_ms or 0, settled_us) + (time.time_ns() // 1000).to_bytes(8, "big")

    def _wait(self) -> None:
        """Wait until the minimum time between two windows has passed."""
        until = self._planned_at + self.options.minimal_wait_seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping():
            time.sleep(min(left, _STEP_SECONDS))
        self._planned_at = time.monotonic()

    def _schema(self, table: str) -> TableSchema:
        try:
            return self.schemas.tables[table]
        except KeyError:
            raise SchemaUnknown(
                f"there is no table {table}", expected=", ".join(self.tables()) or "a table with a log"
            ) from None

    def _payloads(self, table: str) -> dict[str, bytes]:
        """Return the schema records that a table's changes may need for decoding, by name."""
        known = self._cluster.history.payloads_of(table)
        now = self._cluster.logs.get(table)
        return known | ({now.schema_id: now.payload} if now else {})


def _us(seconds: float) -> int:
    return round(seconds * SECOND_US)
