"""How many rows a snapshot has read, table by table, told while its tasks still run.

Spark tells of a task's numbers when it has ended, and a task may read millions of rows. So each task tells
the driver itself, over a connection of its own, with each page that it hands on; the driver adds up and
appends a line to a file whenever a table has :data:`REFRESH_ROWS` more, and when a table is read to its end.
The operator follows that file (:mod:`airflow_cdc_provider.operators.snapshot_rows`).

What a task reads again, because an attempt failed or Spark runs two at once, counts once: of the attempts of
a task only one counts, the one that came to its end, before that the one that has read most. The numbers are
for people to watch. What is committed is counted in the lake, and that is what a job's result tells.

The driver listens where Spark's executors reach it (``spark.driver.host``; on a local master on this machine
alone), at a port of the system's choice, for those that know a random token. Executors that can't reach it
read all the same, and the log says so.

A task sends lines of JSON: ``[token, commit, task, attempt]``, then ``[table, rows, last]`` with what this
attempt has read of a table so far and its last row in words, at last ``[]``. The driver closes the connection
when it has taken in the last.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.jobs.spark.read import Reader, batches
from airflow_cdc_provider.sources.abilities import NamesRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

REFRESH_ROWS: Final = 10_000
"""A table's number is told anew before it is further behind than this."""

log = logging.getLogger("airflow_cdc_provider.jobs")

_CONNECT_SECONDS: Final = 5.0
_MOST_LINE_BYTES: Final = 4096

_unreachable: set[tuple[str, int]] = set()
"""Addresses of drivers that this worker process could not reach: the next task need not wait for them."""


class Tally:
    """Rows read by table, of all tasks of a snapshot. Safe to use from several threads.

    Args:
        path: File to which lines ``{"table": ..., "rows": ...}`` are appended, and ``{"snapshot": {...}}``
            with how far it came; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._told: dict[str, int] = {}
        self._tasks: dict[tuple[int, int], _Task] = {}
        self._committed = -1
        self.last_row = ""
        """The row that a task told of last, in words."""
        self.told_at: float | None = None
        """When a task told of rows last, epoch seconds."""

    def add(self, commit: int, task: int, attempt: int, table: str, rows: int, last: str = "") -> None:
        """Take in what an attempt of a task has read of a table so far."""
        with self._lock:
            self.last_row, self.told_at = last, time.time()
            if commit > self._committed:
                known = self._tasks.setdefault((commit, task), _Task())
                known.attempts.setdefault(attempt, Counter())[table] = rows
                self._count(known)

    def end(self, commit: int, task: int, attempt: int) -> None:
        """Take in that an attempt of a task came to its end."""
        with self._lock:
            if commit > self._committed:
                known = self._tasks.setdefault((commit, task), _Task())
                known.attempts.setdefault(attempt, Counter())
                known.ended = attempt
                self._count(known)

    def settle(self, commit: int, ended_tables: Iterable[str]) -> None:
        """Close a commit: what its tasks told counts as it is, what is told later doesn't.

        Args:
            commit: Its number; those before it are closed too.
            ended_tables: Tables that are read to their end with it; their numbers are told.
        """
        with self._lock:
            self._committed = commit
            self._tasks.clear()
            for table in ended_tables:
                self._tell(table, self._totals[table])

    def tell(self, snapshot: Mapping[str, Any]) -> None:
        """Tell how far the snapshot came."""
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
            told = self._told.get(table, 0)
            if new - told > REFRESH_ROWS and old > told:
                self._tell(table, old)
                told = old
            if new - told >= REFRESH_ROWS:
                self._tell(table, new)

    def _tell(self, table: str, rows: int) -> None:
        self._told[table] = rows
        self._append({"table": table, "rows": rows})

    def _append(self, line: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._path = None
            log.warning("rows read are told no more: %s", error)


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
    """What the driver knows of the rows that a snapshot has read. Use it as a context manager.

    Args:
        spark: Whose executors are to tell.
        path: As of :class:`Tally`.
    """

    def __init__(self, spark: SparkContext, path: Path | None) -> None:
        settings = spark.getConf()
        local = str(settings.get("spark.master")).startswith("local")
        self._host = "127.0.0.1" if local else str(settings.get("spark.driver.host"))
        self._bound_to = self._host if local else str(settings.get("spark.driver.bindAddress") or self._host)
        self._token = secrets.token_hex(16)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.tally = Tally(path)

    def __enter__(self) -> ScannedRows:
        try:
            self._server = _Server((self._bound_to, 0), self.tally, self._token)
        except OSError as error:
            log.warning(
                "rows are not told while they are read: can't listen at %s: %s", self._bound_to, error
            )
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
        """Return a reader that tells the driver what it reads.

        Args:
            reader: What reads.
            commit: The number of the commit that it reads for: they grow.
        """
        if self._server is None:
            return reader
        return Counted(reader, (self._host, self._server.server_address[1]), self._token, commit)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], tally: Tally, token: str) -> None:
        self.tally = tally
        self.token = token
        super().__init__(address, _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say that an attempt's word was not understood or broke off: its numbers stay as they are."""
        log.info("a task's word of its rows broke off", exc_info=True)


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Take in what one attempt of a task tells."""
        self.request.settimeout(_CONNECT_SECONDS)
        token, commit, task, attempt = self._line()
        if not hmac.compare_digest(str(token), self.server.token):
            return
        # An executor that is gone without a word is found by the system.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.request.settimeout(None)
        while told := self._line():
            table, rows, last = told
            self.server.tally.add(commit, task, attempt, str(table), int(rows), str(last))
        self.server.tally.end(commit, task, attempt)

    def _line(self) -> list[Any]:
        found = json.loads(self.rfile.readline(_MOST_LINE_BYTES))
        if not isinstance(found, list):
            raise ValueError("a line is no list")
        return found


@dataclass(frozen=True)
class Counted:
    """A reader that tells the driver how many rows it reads. Picklable.

    Args:
        reader: What reads.
        address: Where the driver listens.
        token: What it asks for.
        commit: The commit that the rows are for.
    """

    reader: Reader
    address: tuple[str, int]
    token: str = field(repr=False)
    commit: int

    def __call__(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return self.read_several([part])

    def read_several(self, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Read partitions one after the other."""
        word = _Word(self.address, [self.token, self.commit, *_task()])
        rows: Counter[str] = Counter()
        try:
            for batch in batches(self.reader, parts):
                for start in range(0, batch.num_rows, REFRESH_ROWS):
                    page = batch.slice(start, REFRESH_ROWS)
                    table = page.column("source_table")[0].as_py()  # a range is of one table
                    rows[table] += page.num_rows
                    last = self.reader.row_in_words(page) if isinstance(self.reader, NamesRows) else ""
                    word.send([table, rows[table], last])
                    yield page
            word.send([])
            word.await_end()
        finally:
            word.close()


def _task() -> tuple[int, int]:
    """Return number and attempt of the task that runs here."""
    from pyspark import TaskContext

    running = TaskContext.get()
    return (running.partitionId(), running.taskAttemptId()) if running is not None else (0, 0)


class _Word:
    """A connection to the driver. Once it fails, nothing more is sent, and reading goes on."""

    def __init__(self, address: tuple[str, int], first: list[Any]) -> None:
        self._socket: socket.socket | None = None
        if address in _unreachable:
            return
        try:
            self._socket = socket.create_connection(address, _CONNECT_SECONDS)
        except OSError as error:
            _unreachable.add(address)
            log.warning("rows are not told while they are read: %s:%d: %s", *address, error)
        self.send(first)

    def send(self, line: list[Any]) -> None:
        """Send a line."""
        if self._socket is not None:
            try:
                self._socket.sendall(json.dumps(line).encode() + b"\n")
            except OSError as error:
                self._give_up(error)

    def await_end(self) -> None:
        """Wait until the driver has taken in all, so that it knows when Spark tells that the task ended."""
        if self._socket is not None:
            try:
                self._socket.recv(1)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()

    def _give_up(self, error: OSError) -> None:
        log.warning("rows are told no more while they are read: %s", error)
        self.close()
        self._socket = None
