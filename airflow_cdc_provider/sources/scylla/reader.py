"""Reads windows of logs, with a query per stream, and converts the pages to change records.

Several requests are in flight at a time (:mod:`.throttle`). Changes of a stream stay in order within a task;
streams are read concurrently, those of a group in the order of their ids.

A change whose last row has no ``cdc$end_of_batch`` is read again from all replicas; a partial change is never
emitted.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput, TransientError
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics
from airflow_cdc_provider.sources.cql.connection import consistency_level, driver_errors, open_session
from airflow_cdc_provider.sources.scylla.capture import GroupRead, LogPart
from airflow_cdc_provider.sources.scylla.log_pages import MalformedPage, PageChanges, page_changes
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.payload import LOG_ROW_TTL
from airflow_cdc_provider.sources.scylla.records import to_records
from airflow_cdc_provider.sources.scylla.schema_history import LoggedTable
from airflow_cdc_provider.sources.scylla.stream_ids import first_time, time_after, timeuuid
from airflow_cdc_provider.sources.scylla.throttle import RetryPauses, Throttle

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cql.driver.raw_results import RawPage

_BATCH_CHANGES: Final = 10_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
_LEAST_FETCH_SIZE: Final = 50


@dataclass(frozen=True)
class LogReads:
    """How logs are queried.

    Args:
        consistency: Consistency level.
        fetch_size: Rows per page, 0 for the driver's default.
        timeout_seconds: Timeout of one request.
        slow_seconds: Duration from which a request is slow.
        pauses: Backoff between attempts.
    """

    consistency: str
    fetch_size: int
    timeout_seconds: float
    slow_seconds: float
    pauses: RetryPauses

    @classmethod
    def of(cls, options: ScyllaOptions) -> LogReads:
        """Build the settings from the declaration."""
        advanced = options.advanced
        pauses = RetryPauses(
            advanced.retries,
            advanced.retry_backoff_seconds,
            advanced.retry_max_backoff_seconds,
            advanced.retry_jitter_percent,
        )
        return cls(
            options.consistency,
            options.fetch_size,
            advanced.request_timeout_seconds,
            advanced.slow_request_seconds,
            pauses,
        )


@dataclass(frozen=True)
class LogReader(Reader):
    """Reads parts, on any machine that can connect to the cluster. Picklable.

    Args:
        connection: The Airflow connection's values.
        reads: Query settings.
        tables: The logged tables by name.
        connect: Opens a session with raw results; None for the driver's.
    """

    connection: Mapping[str, Any] = field(repr=False)
    reads: LogReads
    tables: Mapping[str, LoggedTable]
    connect: Callable[[Mapping[str, Any], float], Session] | None = None

    def read(self, parts: Iterable[LogPart], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read parts as batches of ``CHANGE_SCHEMA``.

        Adds to the counts ``requests``, ``retries``, ``events`` (changes), their ``bytes``, ``wait_us``; and
        ``events <table>``, ``bytes <table>``.

        Raises:
            TransientError: All attempts failed; or the columns of a log have changed.
            CorruptInput: A change is incomplete on all replicas; or a page is malformed.
        """
        with self._connected() as session:
            for part in parts:
                yield from _coalesced(_PartRead(session, self, part, metrics.counts).changes())

    @contextmanager
    def _connected(self) -> Iterator[Session]:
        session = (self.connect or _connect)(self.connection, self.reads.timeout_seconds)
        try:
            yield session
        finally:
            session.cluster.shutdown()


def _connect(connection: Mapping[str, Any], timeout_seconds: float) -> Session:
    return open_session(connection, timeout_seconds=timeout_seconds, raw_results=True)


@dataclass
class _Stream:
    """The read state of a stream: paging state, and the unfinished change of the previous page."""

    read: GroupRead
    stream: bytes
    bounds: tuple[bytes, bytes]
    paging_state: bytes | None = None
    rest: bytes = b""
    rest_rows: int = 0


@dataclass
class _Request:
    """A request in flight."""

    stream: _Stream
    future: Any
    sent_at: float
    answered_at: float = 0.0


class _PartRead:
    """One read of one part, over one connection."""

    def __init__(self, session: Session, reader: LogReader, part: LogPart, counts: Counter[str]) -> None:
        self._session = session
        self._reader = reader
        self._counts = counts
        self._streams = [
            _Stream(read, stream, (first_time(read.begin_us), first_time(read.end_us)))
            for read in part.reads
            for stream in read.streams
        ]
        self._throttle = Throttle(part.requests, reader.reads.slow_seconds)
        self._prepared = {
            table: self._prepare(reader.tables[table]) for table in {r.table for r in part.reads}
        }
        self._fetch_size = reader.reads.fetch_size or int(session.default_fetch_size or 5000)

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch per page that has changes."""
        pending = deque(self._streams)
        in_flight: deque[_Request] = deque()
        while pending or in_flight:
            while pending and len(in_flight) < self._throttle.requests:
                in_flight.append(self._send(pending.popleft()))
            request = in_flight.popleft()
            result = self._result(request)
            stream = request.stream
            stream.paging_state = result.paging_state
            rows: list[RawPage] = result.current_rows
            yield from self._to_batches(stream, rows[0] if rows else None)
            if stream.paging_state:
                pending.appendleft(stream)

    def _prepare(self, table: LoggedTable) -> Any:
        """Prepare the query of a log after checking that its columns match the plan."""
        with driver_errors(f"reading the log of {table.name}"):
            present = {column[2] for column in self._session.prepare(table.select_all).result_metadata}
            planned = {name for name, _ in table.columns if name != LOG_ROW_TTL}
            if present != planned:
                raise TransientError(
                    f"the columns of the log of {table.name} have changed since this batch was planned",
                    expected=", ".join(sorted(planned - present)) or "no further columns",
                    found=", ".join(sorted(present - planned)) or "missing columns",
                    remedy="run again: the next run uses the new schema",
                )
            prepared = self._session.prepare(table.select)
        prepared.consistency_level = consistency_level(self._reader.reads.consistency)
        return prepared

    def _send(self, stream: _Stream, consistency: str = "") -> _Request:
        from cassandra.query import BoundStatement

        statement = BoundStatement(self._prepared[stream.read.table], fetch_size=self._fetch_size)
        statement.values = [stream.stream, *stream.bounds]
        if consistency:
            statement.consistency_level = consistency_level(consistency)
        self._counts["requests"] += 1
        future = self._session.execute_async(statement, paging_state=stream.paging_state)
        request = _Request(stream, future, time.monotonic())

        def answered(_: Any) -> None:
            request.answered_at = time.monotonic()

        future.add_callbacks(answered, answered)
        return request

    def _result(self, request: _Request, consistency: str = "") -> Any:
        """Wait for the result, and retry while the cluster is overloaded."""
        pauses = iter(self._reader.reads.pauses)
        while True:
            began = time.monotonic()
            try:
                with driver_errors(f"reading the log of {request.stream.read.table}"):
                    result = request.future.result()
                self._throttle.answered(request.sent_at, request.answered_at or time.monotonic())
                return result
            except TransientError:
                self._throttle.overloaded(request.sent_at, time.monotonic())
                pause = next(pauses, None)
                if pause is None:
                    raise
                self._counts["retries"] += 1
                self._fetch_size = max(_LEAST_FETCH_SIZE, self._fetch_size // 2)
                time.sleep(pause)
                request = self._send(request.stream, consistency)
            finally:
                self._counts["wait_us"] += int(1_000_000 * (time.monotonic() - began))

    def _to_batches(self, stream: _Stream, page: RawPage | None) -> Iterator[pa.RecordBatch]:
        """Convert a page, and the rest of the previous one, to change records."""
        data = stream.rest + page.data if page else stream.rest
        rows = stream.rest_rows + (page.rows if page else 0)
        if not rows:
            return
        table = self._reader.tables[stream.read.table]
        try:
            found, at, left = page_changes(data, rows, len(table.columns), more=bool(stream.paging_state))
        except MalformedPage as error:
            raise CorruptInput(
                f"{error} of the log of {table.name} doesn't match its query",
                found=f"stream 0x{stream.stream.hex()}",
            ) from error
        stream.rest, stream.rest_rows = data[at:], left
        for number in np.flatnonzero(~found.complete).tolist():
            found = _replaced(found, number, self._reread(stream, found.times[number].tobytes()))
        if len(found.ends):
            batch = to_records(found, stream.read, stream.stream, table)
            size = int(found.ends[-1])
            for name, count in (("events", batch.num_rows), ("bytes", size)):
                self._counts[name] += count
                self._counts[f"{name} {table.name}"] += count
            yield batch

    def _reread(self, stream: _Stream, sortable: bytes) -> PageChanges:
        """Read an incomplete change again, from all replicas."""
        moment = timeuuid(sortable)
        single = _Stream(stream.read, stream.stream, (moment, time_after(moment)))
        table = self._reader.tables[stream.read.table]
        data, rows = b"", 0
        while True:
            result = self._result(self._send(single, "ALL"), "ALL")
            for page in result.current_rows:
                data, rows = data + page.data, rows + page.rows
            single.paging_state = result.paging_state
            if not single.paging_state:
                break
        found, _, _ = page_changes(data, rows, len(table.columns), more=False)
        where = f"stream 0x{stream.stream.hex()}, cdc$time {UUID(bytes=moment)}"
        if not rows:
            raise TransientError(
                f"a change of {table.name} expired while it was read", found=where, remedy="run again"
            )
        if len(found.ends) != 1 or not found.complete[0]:
            raise CorruptInput(
                f"a change of {table.name} is incomplete",
                expected="a last row with cdc$end_of_batch, at consistency level ALL",
                found=f"{rows} rows without, {where}",
                remedy="no available replica has its other rows: start the nodes that are down, repair "
                "the log table (nodetool repair), or raise source.confidence_window_seconds",
            )
        return found


def _replaced(found: PageChanges, number: int, reread: PageChanges) -> PageChanges:
    """Replace an incomplete change with the complete one."""
    begin = int(found.ends[number - 1]) if number else 0
    end = int(found.ends[number])
    payloads = np.concatenate([found.payloads[:begin], reread.payloads, found.payloads[end:]])
    ends = found.ends.copy()
    ends[number:] += len(reread.payloads) - (end - begin)
    complete, codes, rows = found.complete.copy(), found.unknown_code.copy(), found.rows.copy()
    complete[number], codes[number], rows[number] = True, reread.unknown_code[0], reread.rows[0]
    return PageChanges(payloads, ends, found.times, complete, codes, rows)


def _coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches: most pages of most streams have few changes."""
    buffered: list[pa.RecordBatch] = []
    changes = size = 0
    for batch in batches:
        buffered.append(batch)
        changes += batch.num_rows
        size += batch.nbytes
        if changes >= _BATCH_CHANGES or size >= _BATCH_BYTES:
            yield _concat(buffered)
            buffered, changes, size = [], 0, 0
    if buffered:
        yield _concat(buffered)


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    joined: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return joined
