"""Reads windows of logs, a query per stream, and makes change records of the pages.

Several requests are under way at a time (:mod:`.throttle`). What a task reads of one stream stays in order;
streams are read side by side, those of a group in the order of their bytes.

A record is one change: all log rows of one stream and ``cdc$time``. Its position::

    0   u64  the stream set: ms since 1970
    8   16   cdc$time, as bytes whose order is the database's
    24  16   cdc$stream_id

A change whose last row has no ``cdc$end_of_batch`` is read again from all replicas, and never taken in part.
One with a ``cdc$operation`` that isn't known is set apart: kind ``quarantine``, its payload byte 'Q', 16
bytes of the schema's name, and the payload that it would have had.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE
from airflow_cdc_provider.changes.spans import fixed_width_binary
from airflow_cdc_provider.exceptions import CorruptInput, TransientError
from airflow_cdc_provider.sources.cql.buffers import binary_array
from airflow_cdc_provider.sources.cql.driver.connect import consistency_level, driver_errors, open_session
from airflow_cdc_provider.sources.scylla.log_pages import MalformedPage, PageChanges, page_changes
from airflow_cdc_provider.sources.scylla.log_parts import GroupRead, LogPart
from airflow_cdc_provider.sources.scylla.log_schema import LoggedTable
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.payload import LOG_ROW_TTL
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS, first_time, time_after, timeuuid
from airflow_cdc_provider.sources.scylla.throttle import RetryPauses, Throttle

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.abilities import ReadingCounts
    from airflow_cdc_provider.sources.cql.driver.raw_results import RawPage

UNKNOWN_OPERATION: Final = "unknown-operation"
"""Code of the reason for which a change is set apart."""
QUARANTINE_TAG: Final = b"Q"

_BATCH_CHANGES: Final = 10_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
_LEAST_FETCH_SIZE: Final = 50


@dataclass(frozen=True)
class LogReads:
    """How logs are asked.

    Args:
        consistency: Consistency level.
        fetch_size: Rows per page, 0 for the driver's own number.
        timeout_seconds: How long to wait for one answer.
        slow_seconds: A request that takes longer is slow.
        pauses: Between attempts.
    """

    consistency: str
    fetch_size: int
    timeout_seconds: float
    slow_seconds: float
    pauses: RetryPauses

    @classmethod
    def of(cls, options: ScyllaOptions) -> LogReads:
        """Take it from the declaration."""
        advanced = options.advanced
        pauses = RetryPauses(
            advanced.retries,
            advanced.retry_pause_seconds,
            advanced.retry_longest_pause_seconds,
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
class LogReader:
    """Reads parts, on any machine that reaches the cluster. Picklable.

    Args:
        connection: The Airflow connection's values.
        reads: How to ask.
        tables: By name.
        connect: Opens a session with raw results; None for the driver's own.
    """

    connection: Mapping[str, Any] = field(repr=False)
    reads: LogReads
    tables: Mapping[str, LoggedTable]
    connect: Callable[[Mapping[str, Any], float], Session] | None = None

    def __call__(self, part: LogPart) -> Iterator[pa.RecordBatch]:
        """Read a part (see :meth:`read_telling`)."""
        return self.read_telling(part, Counter())

    def read_telling(self, part: LogPart, counts: ReadingCounts) -> Iterator[pa.RecordBatch]:
        """Read a part as batches of ``CHANGE_SCHEMA``.

        Adds to ``counts``: ``requests``, ``retries``, ``events`` (changes), their ``bytes``, ``wait_us``; and
        ``events <table>``, ``bytes <table>``.

        Raises:
            TransientError: The cluster doesn't answer, after all attempts; or a log has other columns now.
            CorruptInput: A change isn't whole, on no replica; or a page is malformed.
        """
        with self._connected() as session:
            yield from _joined(_PartRead(session, self, part, counts).changes())

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
    """A stream that is being read: where it is, and what the page before left of a change."""

    read: GroupRead
    stream: bytes
    bounds: tuple[bytes, bytes]
    paging_state: bytes | None = None
    rest: bytes = b""
    rest_rows: int = 0


@dataclass
class _Asked:
    """A request that is under way."""

    stream: _Stream
    future: Any
    asked_at: float
    answered_at: float = 0.0


class _PartRead:
    """One reading of one part, over one connection."""

    def __init__(self, session: Session, reader: LogReader, part: LogPart, counts: ReadingCounts) -> None:
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
        waiting = deque(self._streams)
        under_way: deque[_Asked] = deque()
        while waiting or under_way:
            while waiting and len(under_way) < self._throttle.requests:
                under_way.append(self._ask(waiting.popleft()))
            asked = under_way.popleft()
            result = self._answer(asked)
            stream = asked.stream
            stream.paging_state = result.paging_state
            rows: list[RawPage] = result.current_rows
            yield from self._taken(stream, rows[0] if rows else None)
            if stream.paging_state:
                waiting.appendleft(stream)

    def _prepare(self, table: LoggedTable) -> Any:
        """Prepare the query of a log, once its columns are known to be those of the plan."""
        with driver_errors(f"reading the log of {table.name}"):
            present = {column[2] for column in self._session.prepare(table.select_all).result_metadata}
            planned = {name for name, _ in table.columns if name != LOG_ROW_TTL}
            if present != planned:
                raise TransientError(
                    f"the log of {table.name} has other columns than when this batch was planned",
                    expected=", ".join(sorted(planned - present)) or "no more than there were",
                    found=", ".join(sorted(present - planned)) or "fewer",
                    remedy="run again: the next run reads it by its new schema",
                )
            prepared = self._session.prepare(table.select)
        prepared.consistency_level = consistency_level(self._reader.reads.consistency)
        return prepared

    def _ask(self, stream: _Stream, consistency: str = "") -> _Asked:
        from cassandra.query import BoundStatement

        statement = BoundStatement(self._prepared[stream.read.table], fetch_size=self._fetch_size)
        statement.values = [stream.stream, *stream.bounds]
        if consistency:
            statement.consistency_level = consistency_level(consistency)
        self._counts["requests"] += 1
        future = self._session.execute_async(statement, paging_state=stream.paging_state)
        asked = _Asked(stream, future, time.monotonic())

        def answered(_: Any) -> None:
            asked.answered_at = time.monotonic()

        future.add_callbacks(answered, answered)
        return asked

    def _answer(self, asked: _Asked, consistency: str = "") -> Any:
        """Wait for an answer, and ask again while the cluster is too busy."""
        pauses = iter(self._reader.reads.pauses)
        while True:
            began = time.monotonic()
            try:
                with driver_errors(f"reading the log of {asked.stream.read.table}"):
                    result = asked.future.result()
                self._throttle.answered(asked.asked_at, asked.answered_at or time.monotonic())
                return result
            except TransientError:
                self._throttle.overloaded(asked.asked_at, time.monotonic())
                pause = next(pauses, None)
                if pause is None:
                    raise
                self._counts["retries"] += 1
                self._fetch_size = max(_LEAST_FETCH_SIZE, self._fetch_size // 2)
                time.sleep(pause)
                asked = self._ask(asked.stream, consistency)
            finally:
                self._counts["wait_us"] += int(1_000_000 * (time.monotonic() - began))

    def _taken(self, stream: _Stream, page: RawPage | None) -> Iterator[pa.RecordBatch]:
        """Turn a page, and what the one before left, into changes."""
        data = stream.rest + page.data if page else stream.rest
        rows = stream.rest_rows + (page.rows if page else 0)
        if not rows:
            return
        table = self._reader.tables[stream.read.table]
        try:
            found, at, left = page_changes(data, rows, len(table.columns), more=bool(stream.paging_state))
        except MalformedPage as error:
            raise CorruptInput(
                f"{error} of the log of {table.name} doesn't have the form of its query",
                found=f"stream 0x{stream.stream.hex()}",
            ) from error
        stream.rest, stream.rest_rows = data[at:], left
        for number in np.flatnonzero(~found.whole).tolist():
            found = _replaced(found, number, self._again(stream, found.times[number].tobytes()))
        if len(found.ends):
            batch = to_records(found, stream.read, stream.stream, table)
            size = int(found.ends[-1])
            for name, count in (("events", batch.num_rows), ("bytes", size)):
                self._counts[name] += count
                self._counts[f"{name} {table.name}"] += count
            yield batch

    def _again(self, stream: _Stream, sortable: bytes) -> PageChanges:
        """Read a change that isn't whole from all replicas."""
        moment = timeuuid(sortable)
        alone = _Stream(stream.read, stream.stream, (moment, time_after(moment)))
        table = self._reader.tables[stream.read.table]
        data, rows = b"", 0
        while True:
            result = self._answer(self._ask(alone, "ALL"), "ALL")
            for page in result.current_rows:
                data, rows = data + page.data, rows + page.rows
            alone.paging_state = result.paging_state
            if not alone.paging_state:
                break
        found, _, _ = page_changes(data, rows, len(table.columns), more=False)
        where = f"stream 0x{stream.stream.hex()}, cdc$time {_uuid_text(moment)}"
        if not rows:
            raise TransientError(
                f"a change of {table.name} expired while it was read", found=where, remedy="run again"
            )
        if len(found.ends) != 1 or not found.whole[0]:
            raise CorruptInput(
                f"a change of {table.name} isn't whole",
                expected="a last row with cdc$end_of_batch, at consistency level ALL too",
                found=f"{rows} rows without, {where}",
                remedy="its other rows are on no replica that answers: start the nodes that are down, repair "
                "the log table (nodetool repair), or raise source.confidence_window_seconds",
            )
        return found


def _uuid_text(moment: bytes) -> str:
    from uuid import UUID

    return str(UUID(bytes=moment))


def _replaced(found: PageChanges, number: int, better: PageChanges) -> PageChanges:
    """Put a change that was read again in the place of the one that isn't whole."""
    begin = int(found.ends[number - 1]) if number else 0
    end = int(found.ends[number])
    payloads = np.concatenate([found.payloads[:begin], better.payloads, found.payloads[end:]])
    ends = found.ends.copy()
    ends[number:] += len(better.payloads) - (end - begin)
    whole, codes, rows = found.whole.copy(), found.unknown_code.copy(), found.rows.copy()
    whole[number], codes[number], rows[number] = True, better.unknown_code[0], better.rows[0]
    return PageChanges(payloads, ends, found.times, whole, codes, rows)


def to_records(found: PageChanges, read: GroupRead, stream: bytes, table: LoggedTable) -> pa.RecordBatch:
    """Make change records of a stream's changes."""
    count = len(found.ends)
    positions = np.empty((count, 40), np.uint8)
    positions[:, :8] = np.frombuffer(read.generation_ms.to_bytes(8, "big"), np.uint8)
    positions[:, 8:24] = found.times
    positions[:, 24:] = np.frombuffer(stream, np.uint8)
    ticks = np.ascontiguousarray(found.times[:, :8]).view(">u8").ravel().astype(np.int64)
    constants = {
        "source_table": table.name,
        "kind": CHANGE,
        "origin": f"{table.name}/{read.group}",
        "generation": 0,
        "captured_at": time.time_ns() // 1000,
        "schema_id": table.schema_id,
    }
    columns = {
        "position": fixed_width_binary(positions),
        "committed_at": pa.array((ticks - EPOCH_TICKS) // 10, pa.int64()).cast(
            CHANGE_SCHEMA.field("committed_at").type
        ),
        "payload": binary_array(found.payloads, np.concatenate([np.zeros(1, np.int64), found.ends])),
    }
    if found.unknown_code.any():
        columns |= _set_apart(found, stream, table, columns["payload"])
    arrays = [
        columns[f.name] if f.name in columns else pa.repeat(pa.scalar(constants.get(f.name), f.type), count)
        for f in CHANGE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _set_apart(
    found: PageChanges, stream: bytes, table: LoggedTable, payloads: pa.Array
) -> dict[str, pa.Array]:
    """Return the columns of which changes with unknown codes have others."""
    kinds: list[str] = []
    reasons: list[str | None] = []
    contents: list[bytes] = []
    for number, (code, payload) in enumerate(
        zip(found.unknown_code.tolist(), payloads.to_pylist(), strict=True)
    ):
        known = code == 0
        moment = _uuid_text(timeuuid(found.times[number].tobytes()))
        kinds.append(CHANGE if known else QUARANTINE)
        reasons.append(
            None
            if known
            else f"{UNKNOWN_OPERATION}: cdc$operation {code} in the log of {table.name}, stream "
            f"0x{stream.hex()}, cdc$time {moment}"
        )
        contents.append(payload if known else QUARANTINE_TAG + bytes.fromhex(table.schema_id) + payload)
    return {
        "kind": pa.array(kinds, pa.string()),
        "schema_id": pa.array([None if reason else table.schema_id for reason in reasons], pa.string()),
        "reason": pa.array(reasons, pa.string()),
        "payload": pa.array(contents, pa.binary()),
    }


@dataclass(frozen=True)
class QuarantineReader:
    """Reads changes again that were set apart. Picklable.

    Args:
        columns: How many columns the schemas have, by their names.
    """

    columns: Mapping[str, int]

    def __call__(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield them, as changes where all their codes are known by now."""
        yield pa.RecordBatch.from_pylist([self._again(r) for r in records.to_pylist()], CHANGE_SCHEMA)

    def _again(self, record: dict[str, Any]) -> dict[str, Any]:
        payload: bytes = record["payload"] or b""
        schema_id = payload[1:17].hex()
        if payload[:1] != QUARANTINE_TAG or schema_id not in self.columns:
            return record
        rows = list(payload_rows(payload[17:]))
        found, _, _ = page_changes(b"".join(rows), len(rows), self.columns[schema_id], more=False)
        if found.unknown_code.any():
            return record
        return record | {"kind": CHANGE, "schema_id": schema_id, "reason": None, "payload": payload[17:]}


def payload_rows(payload: bytes) -> Iterator[bytes]:
    """Yield the rows of a change's payload."""
    at = 1
    while at < len(payload):
        length = int.from_bytes(payload[at : at + 4], "little")
        yield payload[at + 4 : at + 4 + length]
        at += 4 + length


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: most pages of most streams have few changes."""
    held: list[pa.RecordBatch] = []
    changes = size = 0
    for batch in batches:
        held.append(batch)
        changes += batch.num_rows
        size += batch.nbytes
        if changes >= _BATCH_CHANGES or size >= _BATCH_BYTES:
            yield _one(held)
            held, changes, size = [], 0, 0
    if held:
        yield _one(held)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    joined: pa.RecordBatch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return joined
