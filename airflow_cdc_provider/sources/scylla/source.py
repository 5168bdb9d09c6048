"""The ScyllaDB source: log tables read in windows of time, and snapshots by token ranges, over CQL.

Everything is planned on the driver, so there is no barrier between tasks at a change of streams: a window
never reaches over it. A batch is whole windows, and its offset is in the same commit, so one that was killed
is read again from its begin. What is read of the log and what a snapshot reads merge in any order; a new
connector's place in the log is committed before its snapshot begins, so nothing falls between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, SchemaUnknown, TransientError
from airflow_cdc_provider.sources.abilities import ReadingCounts
from airflow_cdc_provider.sources.base import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan
from airflow_cdc_provider.sources.cql.driver.connect import driver_errors, open_session
from airflow_cdc_provider.sources.cql.driver.every_node import ask_nodes
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import state_payload
from airflow_cdc_provider.sources.cql.snapshots.token_ranges import (
    SnapshotRange,
    SnapshotReader,
    SnapshotReads,
    plan_ranges,
)
from airflow_cdc_provider.sources.cql.system_schema import read_rows, schemas_from_rows
from airflow_cdc_provider.sources.cql.types import cql_name
from airflow_cdc_provider.sources.scylla.check import (
    WantedImages,
    check_consistency,
    check_images,
    check_logs,
    read_cdc_options,
    release_of,
)
from airflow_cdc_provider.sources.scylla.generations import StreamTables, Timeline
from airflow_cdc_provider.sources.scylla.log_reader import (
    UNKNOWN_OPERATION,
    GroupRead,
    LogReader,
    LogReads,
    QuarantineReader,
    divide,
)
from airflow_cdc_provider.sources.scylla.log_schema import (
    CdcOption,
    LoggedTable,
    LogHistory,
    log_tables,
    schema_columns,
)
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.position import TablePosition, read_offset, write_offset
from airflow_cdc_provider.sources.scylla.throttle import RetryPauses
from airflow_cdc_provider.sources.scylla.windows import Pace, Window, next_window

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.base import Codec

log = logging.getLogger(__name__)

_SECOND_US: Final = 1_000_000
_CLOCK: Final = "SELECT toUnixTimestamp(now()) AS now_ms FROM system.local"
_STEP_SECONDS: Final = 0.1


class ScyllaSource:
    """Implements :class:`~airflow_cdc_provider.sources.base.Source`.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~..cql.driver.connect.open_session`).
        selects: Tells whether the declaration wants a table.
        names: Tells whether it spells out a table's name.
        images: What events are to show of rows that change; tables are checked for it.
    """

    type = "scylla"

    def __init__(
        self,
        options: ScyllaOptions,
        connection: Mapping[str, Any],
        selects: Callable[[str], bool],
        *,
        names: Callable[[str], bool] = lambda table: False,
        images: WantedImages | None = None,
    ) -> None:
        self.options = options
        self._connection = dict(connection)
        self._selects = selects
        self._names = names
        self._images = images or WantedImages()
        self._history = LogHistory()
        narrowest = min(options.query_window_seconds, options.widest_window_seconds)
        self._pace = Pace(
            _us(options.query_window_seconds),
            min(_us(narrowest), _SECOND_US),
            _us(max(options.query_window_seconds, options.widest_window_seconds)),
        )
        if options.query_window_seconds >= options.widest_window_seconds:
            self._pace = Pace(*[_us(options.query_window_seconds)] * 3)
        self._limit = ReadLimit()
        self._planned_us = 0
        self._planned_at = float("-inf")
        self._streams_asked_at = float("-inf")
        self._now_us = 0
        self._stopping: Callable[[], bool] = lambda: False

    def __repr__(self) -> str:
        return f"ScyllaSource({self.options!r})"

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Take what tells whether a clean stop was asked for: it ends the wait between windows."""
        self._stopping = stopping

    def check(self) -> list[Finding]:
        """Look at the cluster, the tables and their streams."""
        try:
            self._observe()
            tables = self.tables()
            nameless = [t for t in tables if not self._timelines[t].begins_ms]
        except CdcError as error:
            return [Finding("error", "logs", error.message, error.remedy)]
        if not tables:
            return [
                Finding(
                    "error",
                    "tables",
                    "none that the declaration selects has a log",
                    "ALTER TABLE ... WITH cdc = {'enabled': true}, or check tables",
                )
            ]
        found = [Finding("ok", "tables", f"{len(tables)} have a log: {', '.join(tables)}")]
        if nameless:
            found.append(Finding("warning", "streams", f"{', '.join(nameless)}: there are no streams yet"))
        found += check_consistency(self.options.consistency)
        try:
            release = release_of(self._session, self.options.advanced.system_keyspace)
            options = self._cdc_options(tables)
        except CdcError as error:
            return [*found, Finding("error", "options", error.message, error.remedy)]
        found.append(Finding("ok", "release", f"ScyllaDB {release}"))
        found += check_logs(options, self.options.confidence_window_seconds)
        return [*found, *check_images(options, self._images)]

    def _cdc_options(self, tables: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return the option ``cdc`` of tables."""
        found = read_cdc_options(self._session, self.options.advanced.schema_keyspace)
        return {table: found.get(table, {}) for table in tables}

    def tables(self) -> list[str]:
        """List the selected tables that have a log, or once had it, sorted.

        Raises:
            ConfigurationError: A table is named that has none.
        """
        logs = self._logs
        found = []
        for name, base in self.schemas.tables.items():
            if base.view or not self._selects(name):
                continue
            if self._history.captured(name) or (name in logs and logs[name].option.enabled):
                found.append(name)
            elif self._names(name):
                raise ConfigurationError(
                    f"the table {name} is named but its changes aren't logged",
                    expected="cdc = {'enabled': true}",
                    found="a log that is switched off" if name in logs else "no log",
                    remedy=f"ALTER TABLE {cql_name(name)} WITH cdc = {{'enabled': true}}, or take it out of "
                    "tables",
                )
        return sorted(found)

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table by its present schema; it knows the schemas of all log rows.

        Raises:
            SchemaUnknown: There is no such table.
        """
        from airflow_cdc_provider.sources.scylla.codec import recall_scylla_codec

        types = LakeTypes(self.options.advanced.timestamps)
        return recall_scylla_codec(self._schema(table), self._payloads(table), memory, types)

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return the JSON with the column ids of a codec."""
        return _own(codec).remember()

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory with the column ids of a codec beside those that it was recalled from."""
        return _own(codec).reserve(memory)

    def start(self) -> Offset | None:
        """Begin at the beginning of the logs, or as far back as the declaration says."""
        self._observe()
        return write_offset({table: self._begin(table) for table in self._read_tables()})

    def after_loss(self) -> Offset | None:
        """Begin at the beginning of the logs."""
        return None

    def head(self) -> Offset:
        """Return the time up to which logs may be read: the confidence window behind the slowest clock.

        What lies before it is read by schemas and streams that are asked for after it.
        """
        self._observe()
        positions = {
            table: TablePosition(self._timelines[table].at(self._head_us) or 0, self._head_us)
            for table in self._read_tables()
        }
        return write_offset(positions)

    def earliest(self) -> Offset:
        """Return the first times that logs still hold."""
        self._observe()
        return write_offset({table: self._earliest(table) for table in self._read_tables()})

    def lag(self, offset: Offset | None) -> Lag:
        """Tell how far reading is behind the clock, of the table that is the furthest."""
        self._observe()
        positions = read_offset(offset or {})
        behind = {
            table: (self._now_us - positions.get(table, self._begin(table)).read_to_us) / _SECOND_US
            for table in self._read_tables()
        }
        details = {table: {"seconds": round(seconds, 3)} for table, seconds in behind.items()}
        return Lag(max(behind.values(), default=0.0), None, details)

    def gaps(self, offset: Offset | None) -> tuple[Sequence[str], Offset]:
        """Tell of tables whose logs expired before they were read."""
        positions = read_offset(offset or {})
        found = []
        for table in self._read_tables() if offset else ():
            position, ttl = positions.get(table), self._logs[table].option.ttl_seconds
            kept_us = self._now_us - ttl * _SECOND_US
            if position is None or not ttl or position.read_to_us >= kept_us:
                continue
            found.append(
                f"the log of {table} keeps changes for {ttl} s and was read to {_text(position.read_to_us)}: "
                f"those from then to {_text(kept_us)} have expired unread"
            )
            generation = self._timelines[table].at(kept_us) or position.generation_ms
            positions[table] = TablePosition(generation, kept_us)
        return found, write_offset(positions)

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of another form."""
        read_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Cut the next batch: of each table the next window, all its streams."""
        self._wait()
        self._poll_streams()
        self._limit = limit
        positions = read_offset(start or {})
        reads: list[GroupRead] = []
        widest = 0
        at_head = True
        for table, stop in read_offset(head).items():
            position = positions.get(table) or self._begin(table)
            positions[table] = position
            timeline = self._timelines[table]
            window = next_window(position, timeline, stop.read_to_us, self._pace.width_us)
            if window is None:
                continue
            reads += _group_reads(table, position, window, timeline)
            positions[table] = position.moved(window.generation_ms, window.end_us)
            widest = max(widest, window.end_us - window.begin_us)
            at_head = at_head and window.end_us >= stop.read_to_us
        self._planned_us = widest
        parts = divide(reads, limit.tasks, self.options.advanced.requests_in_flight)
        return Plan(end=write_offset(positions), partitions=parts, at_head=at_head)

    def heard(self, reading: ReadingCounts) -> None:
        """Take in what the last batch held: the next windows are wider or narrower for it."""
        share = max(reading["events"] / self._limit.changes, reading["bytes"] / self._limit.bytes)
        # Requests that were asked again are load that the numbers of changes don't show.
        self._pace = self._pace.after(self._planned_us, share if not reading["retries"] else max(share, 0.5))

    def reader(self) -> LogReader:
        """Return the function that reads a part; it carries the connection's values."""
        advanced = self.options.advanced
        pauses = RetryPauses(
            advanced.retries,
            advanced.retry_pause_seconds,
            advanced.retry_longest_pause_seconds,
            advanced.retry_jitter_percent,
        )
        reads = LogReads(
            self.options.consistency,
            self.options.fetch_size,
            advanced.request_timeout_seconds,
            advanced.slow_request_seconds,
            pauses,
        )
        tables = {table: self._logs[table] for table in self._read_tables()}
        return LogReader(self._connection, reads, tables)

    def learn(self, records: pa.Table) -> None:
        """Take in what is recorded of the schemas of logs."""
        self._history = LogHistory(records)

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Make records of logs whose schemas aren't recorded so, or that are switched on or off."""
        selected = [self._logs[t] for t in self._read_tables()]
        yield from self._history.news(selected, self._now_us)

    def resumed_at(self, table: str) -> int:
        """Return when a table's log was switched on again after it had been off, µs; 0 for never."""
        return self._history.switched_us(table)[1]

    def schema_findings(self) -> list[str]:
        """Tell of tables whose log is off, or gone."""
        found = []
        for table in self.tables():
            log_table = self._logs.get(table)
            if log_table is not None and log_table.option.enabled:
                continue
            off_us, _ = self._history.switched_us(table)
            since = f", which was seen at {_text(off_us)}" if off_us else ""
            state = "is switched off" if log_table is not None else "is gone"
            found.append(
                f"the log of {table} {state}{since}: its mirror follows no longer. "
                f"ALTER TABLE {cql_name(table)} WITH cdc = {{'enabled': true}}, which takes a new snapshot, "
                "or exclude the table"
            )
        return found

    def may_land(self, reason: str) -> bool:
        """Tell so of operations that a later release may know."""
        return reason == UNKNOWN_OPERATION

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the function that looks again at changes that were set apart."""
        return QuarantineReader(schema_columns(self._history.payloads))

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Cut a table into token ranges; ``where`` is CQL that may follow ``AND``.

        Raises:
            SchemaUnknown: There is no such table.
        """
        return plan_ranges(
            self._session,
            self._schema(table),
            least_ranges=self.options.advanced.ranges_per_snapshot,
            where=where or "",
            origin="",
            position=_place(),
            sees_all=self.options.snapshot_consistency == "ALL" and not where,
        )

    def snapshot_reader(self) -> Callable[[SnapshotRange], Iterator[pa.RecordBatch]]:
        """Return the function that reads one token range; it carries the connection's values."""
        return self._snapshot_reader()

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read whole partitions again, by their keys, as snapshot changes."""
        return self._snapshot_reader().read_keys(table, keys, "", _place())

    def state_payload(self, codec: Codec, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes just this cell row."""
        return state_payload(_own(codec).schema, state)

    def row_count(self, table: str) -> int | None:
        """Return None: the database can't count a table without reading it."""
        del table
        return None

    def cluster_name(self) -> str:
        """Return the cluster's name as it says itself."""
        return str(self._session.cluster.metadata.cluster_name or "")

    def close(self) -> None:
        """End the connection."""
        if "_session" in self.__dict__:
            self._session.cluster.shutdown()
            del self.__dict__["_session"]

    @cached_property
    def schemas(self) -> Schemas:
        """The cluster's schema at the first use after :meth:`head`."""
        with driver_errors("reading the schema"):
            return schemas_from_rows(read_rows(self._session))

    @cached_property
    def _logs(self) -> dict[str, LoggedTable]:
        keyspace = self.options.advanced.schema_keyspace
        with driver_errors("reading which tables have a log"):
            rows = self._session.execute(
                f"SELECT keyspace_name, table_name, cdc FROM {keyspace}.scylla_tables"
            )
            options = {f"{r.keyspace_name}.{r.table_name}": CdcOption.read(r.cdc) for r in rows}
        return log_tables(self.schemas, options)

    @cached_property
    def _timelines(self) -> dict[str, Timeline]:
        self._streams_asked_at = time.monotonic()
        return self._stream_tables.timelines(self._read_tables())

    @cached_property
    def _stream_tables(self) -> StreamTables:
        return StreamTables(self._session, self.options.advanced)

    @cached_property
    def _session(self) -> Session:
        if not self._connection:
            raise ConfigurationError("this needs a cluster", expected="source.conn_id", found="no connection")
        return open_session(self._connection, timeout_seconds=self.options.advanced.request_timeout_seconds)

    @property
    def _head_us(self) -> int:
        return self._now_us - _us(self.options.confidence_window_seconds)

    def _read_tables(self) -> list[str]:
        """List the tables whose logs are there to be read; one that is off still holds what was written."""
        return [table for table in self.tables() if table in self._logs]

    def _observe(self) -> None:
        """Ask the nodes for their clocks, then forget what was known of schemas and streams."""
        found = [answer for _, answer in ask_nodes(self._session, _CLOCK)]
        clocks = [int(answer.one().now_ms) for answer in found if not isinstance(answer, CdcError)]
        if not clocks:
            raise TransientError(
                "no node tells its clock", remedy="check that the nodes run and can be reached"
            )
        self._now_us = min(clocks) * 1000
        for cached in ("schemas", "_logs", "_timelines"):
            self.__dict__.pop(cached, None)

    def _poll_streams(self) -> None:
        if time.monotonic() - self._streams_asked_at >= self.options.advanced.generation_poll_seconds:
            self.__dict__.pop("_timelines", None)

    def _wait(self) -> None:
        """Wait until the least time between two windows is over."""
        until = self._planned_at + self.options.minimal_wait_seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping():
            time.sleep(min(left, _STEP_SECONDS))
        self._planned_at = time.monotonic()

    def _earliest(self, table: str) -> TablePosition:
        timeline, ttl = self._timelines[table], self._logs[table].option.ttl_seconds
        first_us = timeline.begins_ms[0] * 1000 if timeline.begins_ms else 0
        return self._placed(table, max(first_us, self._now_us - ttl * _SECOND_US) if ttl else first_us)

    def _begin(self, table: str) -> TablePosition:
        """Return where a table begins that has no position yet."""
        earliest = self._earliest(table)
        if not self.options.lookback_seconds:
            return earliest
        return self._placed(
            table, max(earliest.read_to_us, self._now_us - _us(self.options.lookback_seconds))
        )

    def _placed(self, table: str, moment_us: int) -> TablePosition:
        return TablePosition(self._timelines[table].at(moment_us) or 0, moment_us)

    def _schema(self, table: str) -> TableSchema:
        try:
            return self.schemas.tables[table]
        except KeyError:
            raise SchemaUnknown(
                f"there is no table {table}", expected=", ".join(self.tables()) or "a table with a log"
            ) from None

    def _payloads(self, table: str) -> dict[str, bytes]:
        """Return the schema records that may decode a table's changes, by their names."""
        known = self._history.payloads_of(table)
        now = self._logs.get(table)
        return known | ({now.schema_id: now.payload} if now else {})

    def _snapshot_reader(self) -> SnapshotReader:
        advanced = self.options.advanced
        reads = SnapshotReads(
            self.options.snapshot_consistency, advanced.snapshot_fetch_size, advanced.request_timeout_seconds
        )
        return SnapshotReader(self._connection, reads, {name: self._schema(name) for name in self.tables()})


def _group_reads(
    table: str, position: TablePosition, window: Window, timeline: Timeline
) -> Iterator[GroupRead]:
    """Yield what is to be read of each group; those that stand beyond the window are left out."""
    same = window.generation_ms == position.generation_ms
    for group, streams in timeline.groups(window.generation_ms).items():
        begin_us = max(window.begin_us, position.ahead.get(group, 0)) if same else window.begin_us
        if begin_us < window.end_us:
            yield GroupRead(table, group, window.generation_ms, begin_us, window.end_us, streams)


def _own(codec: Codec) -> Any:
    from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec

    assert isinstance(codec, ScyllaCodec)
    return codec


def _place() -> bytes:
    """Return the position under which rows are read now: before all of the log, and after earlier ones."""
    return bytes(40) + (time.time_ns() // 1000).to_bytes(8, "big")


def _us(seconds: float) -> int:
    return round(seconds * _SECOND_US)


def _text(moment_us: int) -> str:
    return f"{datetime.fromtimestamp(moment_us / _SECOND_US, UTC):%Y-%m-%d %H:%M:%S} UTC"
