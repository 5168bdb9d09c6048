"""Rows read by a snapshot per table, reported while its tasks run.

Spark reports a task's accumulators when it ends, and a task may read millions of rows. So each task opens a
connection to the driver and reports each page of rows; the driver adds them up and appends a line to a file
whenever a table has :data:`REFRESH_ROWS` more, and when a table is completed. The operator follows that file
(:mod:`airflow_cdc_provider.tasks.snapshot_rows`).

Rows that a task reads again, because an attempt failed or Spark runs two at once, count once: only one
attempt of a task counts, the one that succeeded, before that the one that has read most. The numbers are for
monitoring. Committed rows are counted in the lake, and a job's result has those.

The driver listens at an address that Spark's executors reach (``spark.driver.host``; with a local master only
on this machine), at a free port, and requires a random token. Executors that can't connect read all the same,
with a warning in the log.

A task sends lines of JSON: ``[token, commit, task, attempt]``, then ``[table, rows, last]`` with the rows
that this attempt has read of a table and a description of its last row, at the end ``[]``. The driver closes
the connection after the last line.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.regular_files import APPEND, open_regular
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

REFRESH_ROWS: Final = 10_000
"""A table's count is reported before it lags by more than this."""

log = logger("airflow_cdc_provider.jobs")

_CONNECT_SECONDS: Final = 5.0
_MOST_LINE_BYTES: Final = 4096
_MOST_TOKEN_BYTES: Final = 256
_MOST_UNKNOWN: Final = 64
"""Connections that have not yet sent the token; further ones are closed."""

_unreachable: set[tuple[str, int]] = set()
"""Addresses of drivers that this worker process could not reach: later tasks don't try again."""


class Tally:
    """Rows read by table, of all tasks of a snapshot. Thread-safe.

    Args:
        path: File to which lines ``{"table": ..., "rows": ...}`` are appended, and ``{"snapshot": {...}}``
            with its progress; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._reported: dict[str, int] = {}
        self._tasks: dict[tuple[int, int], _Task] = {}
        self._committed = -1
        self.last_row = ""
        """Description of the last row that a task reported."""
        self.reported_at: float | None = None
        """When a task last reported rows, epoch seconds."""

    def add(self, commit: int, task: int, attempt: int, table: str, rows: int, last: str = "") -> None:
        """Set the rows that an attempt of a task has read of a table so far."""
        with self._lock:
            self.last_row, self.reported_at = last, time.time()
            if commit > self._committed:
                known = self._tasks.setdefault((commit, task), _Task())
                known.attempts.setdefault(attempt, Counter())[table] = rows
                self._count(known)

    def end(self, commit: int, task: int, attempt: int) -> None:
        """Record that an attempt of a task succeeded."""
        with self._lock:
            if commit > self._committed:
                known = self._tasks.setdefault((commit, task), _Task())
                known.attempts.setdefault(attempt, Counter())
                known.ended = attempt
                self._count(known)

    def settle(self, commit: int, ended_tables: Iterable[str]) -> None:
        """Close a commit: counts that its tasks have reported are final, later reports are ignored.

        Args:
            commit: Its number; earlier ones are closed too.
            ended_tables: Tables that are completed with it; their counts are reported.
        """
        with self._lock:
            self._committed = commit
            self._tasks.clear()
            for table in ended_tables:
                self._report(table, self._totals[table])

    def discard(self) -> None:
        """Remove the counts of a commit that failed."""
        with self._lock:
            for task in self._tasks.values():
                self._totals.subtract(task.counted)
            self._tasks.clear()

    def report(self, snapshot: Mapping[str, Any]) -> None:
        """Report the snapshot's progress."""
        with self._lock:
            self._append({"snapshot": dict(snapshot)})

    def rows(self) -> dict[str, int]:
        """Return the rows read so far."""
        with self._lock:
            return dict(self._totals)

    def _count(self, task: _Task) -> None:
        before, after = task.counted, task.best()
        task.counted = after
        for table in {*before, *after}:
            old = self._totals[table]
            new = self._totals[table] = old - before[table] + after[table]
            reported = self._reported.get(table, 0)
            if new - reported > REFRESH_ROWS and old > reported:
                self._report(table, old)
                reported = old
            if new - reported >= REFRESH_ROWS:
                self._report(table, new)

    def _report(self, table: str, rows: int) -> None:
        self._reported[table] = rows
        self._append({"table": table, "rows": rows})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with open(open_regular(self._path, APPEND, 0o600), "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._path = None
            log.warning("snapshot progress is no longer reported: %s", error)


@dataclass
class _Task:
    attempts: dict[int, Counter[str]] = field(default_factory=dict)
    ended: int | None = None
    counted: Counter[str] = field(default_factory=Counter)

    def best(self) -> Counter[str]:
        """Return the counts of the attempt that counts."""
        if self.ended is not None:
            return Counter(self.attempts[self.ended])
        most = max(self.attempts, key=lambda attempt: self.attempts[attempt].total())
        return Counter(self.attempts[most])


class ScannedRows:
    """The driver's count of the rows that a snapshot has read. Use it as a context manager.

    Args:
        spark: The Spark context whose executors report.
        path: As for :class:`Tally`.
    """

    def __init__(self, spark: SparkContext, path: Path | None) -> None:
        self._host = self._bound_to = "127.0.0.1"
        if not spark.master.startswith("local"):
            settings = spark.getConf()
            self._host = str(settings.get("spark.driver.host"))
            self._bound_to = str(settings.get("spark.driver.bindAddress") or self._host)
        self._token = secrets.token_hex(16)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.tally = Tally(path)

    def __enter__(self) -> ScannedRows:
        try:
            self._server = _Server((self._bound_to, 0), self.tally, self._token)
        except OSError as error:
            log.warning("snapshot progress is not reported: can't listen at %s: %s", self._bound_to, error)
            return self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def counted(self, reader: Reader, commit: int) -> Reader:
        """Return a reader that reports its rows to the driver.

        Args:
            reader: The reader to wrap.
            commit: The number of the commit that it reads for; numbers increase.
        """
        if self._server is None:
            return reader
        return Counted(reader, (self._host, self._server.server_address[1]), self._token, commit)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], tally: Tally, token: str) -> None:
        self.tally = tally
        self.token = token.encode()
        self.unknown = threading.Semaphore(_MOST_UNKNOWN)
        super().__init__(address, _Connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether few enough connections have not yet sent the token."""
        return self.unknown.acquire(blocking=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that an attempt's report was invalid or incomplete: its counts stay as they are."""
        log.info("a task's report of its rows ended early", exc_info=True)


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Process the reports of one attempt of a task."""
        try:
            first = self._first()
        finally:
            self.server.unknown.release()
        if not first:
            return
        commit, task, attempt = first
        # Keepalive detects an executor that died without closing the connection.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.request.settimeout(None)
        while reported := self._line():
            table, rows, last = reported
            self.server.tally.add(commit, task, attempt, str(table), int(rows), str(last))
        self.server.tally.end(commit, task, attempt)

    def _first(self) -> list[Any]:
        """Return the numbers of the task; none if the token is wrong, or does not arrive in time."""
        deadline, line = time.monotonic() + _CONNECT_SECONDS, b""
        with suppress(ValueError, TypeError, RecursionError, OSError):
            while not line.endswith(b"\n") and len(line) < _MOST_TOKEN_BYTES:
                self.request.settimeout(max(0.001, deadline - time.monotonic()))
                line += (byte := self.request.recv(1))
                if not byte or time.monotonic() > deadline:
                    return []
            token, *numbers = json.loads(line)
            if isinstance(token, str) and hmac.compare_digest(token.encode(), self.server.token):
                return numbers
        return []

    def _line(self) -> list[Any]:
        found = json.loads(self.rfile.readline(_MOST_LINE_BYTES))
        if not isinstance(found, list):
            raise ValueError("a line is not a JSON list")
        return found


@dataclass(frozen=True)
class Counted(Reader):
    """A reader that reports to the driver how many rows it reads. Picklable.

    Args:
        reader: The wrapped reader.
        address: Address of the driver.
        token: The token that the driver requires.
        commit: The commit that the rows are for.
    """

    reader: Reader
    address: tuple[str, int]
    token: str = field(repr=False)
    commit: int

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read partitions in sequence."""
        connection = _DriverConnection(self.address, [self.token, self.commit, *_task()])
        rows: Counter[str] = Counter()
        try:
            for batch in self.reader.read(parts, metrics):
                for start in range(0, batch.num_rows, REFRESH_ROWS):
                    page = batch.slice(start, REFRESH_ROWS)
                    table = page.column("source_table")[0].as_py()  # a range is of one table
                    rows[table] += page.column("reason").null_count  # without static columns
                    connection.send([table, rows[table], self.reader.describe_row(page)])
                    yield page
            connection.send([])
            connection.await_end()
        finally:
            connection.close()


def _task() -> tuple[int, int]:
    """Return number and attempt of the current task."""
    from pyspark import TaskContext

    running = TaskContext.get()
    return (running.partitionId(), running.taskAttemptId()) if running is not None else (0, 0)


class _DriverConnection:
    """A connection to the driver. After a failure it sends nothing more, and reading continues."""

    def __init__(self, address: tuple[str, int], first: list[Any]) -> None:
        self._socket: socket.socket | None = None
        if address in _unreachable:
            return
        try:
            self._socket = socket.create_connection(address, _CONNECT_SECONDS)
        except OSError as error:
            _unreachable.add(address)
            log.warning("snapshot progress is not reported: %s:%d: %s", *address, error)
        self.send(first)

    def send(self, line: list[Any]) -> None:
        """Send a line."""
        if self._socket is not None:
            try:
                self._socket.sendall(json.dumps(line).encode() + b"\n")
            except OSError as error:
                self._give_up(error)

    def await_end(self) -> None:
        """Wait until the driver has processed all lines, before Spark reports that the task ended."""
        if self._socket is not None:
            try:
                self._socket.recv(1)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

    def _give_up(self, error: OSError) -> None:
        log.warning("snapshot progress is no longer reported: %s", error)
        self.close()
        self._socket = None
