"""A driver's session on a log in memory, which records its requests.

It answers the readers' only query, in pages of the statement's size, and fails as configured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.query import PreparedStatement

from airflow_cdc_provider.sources.cql.driver.raw_results import RawPage
from airflow_cdc_provider.sources.scylla.stream_ids import sortable_time

Rows = list[tuple[bytes, bytes]]
"""Rows of a stream: ``cdc$time``, and the row."""


@dataclass
class FakeSession:
    """See the module.

    Args:
        streams: Rows by stream, in order.
        columns: Columns of the log.
        complete: Rows by stream as all replicas together have them; default: the same.
        fails: Returns the error with which the request of a number fails, None for none.
        requests: The requests: stream, page size, consistency level.
        most_in_flight: The most requests that waited for an answer at a time.
    """

    streams: Mapping[bytes, Rows]
    columns: list[str]
    complete: Mapping[bytes, Rows] | None = None
    fails: Callable[[int], Exception | None] = lambda number: None
    requests: list[tuple[bytes, int, str]] = field(default_factory=list)
    most_in_flight: int = 0
    shut_down: bool = False
    default_fetch_size: int = 5000
    _in_flight: int = 0

    @property
    def cluster(self) -> Any:
        """The cluster, which can be shut down."""
        return SimpleNamespace(shutdown=self._shut_down)

    def prepare(self, query: str) -> PreparedStatement:
        """Prepare a query; its result has all columns."""
        metadata = [("s", "t_scylla_cdc_log", name, None) for name in self.columns]
        return PreparedStatement([], b"", None, query, "s", 4, metadata, None)

    def execute_async(self, statement: Any, paging_state: bytes | None = None) -> FakeFuture:
        """Request a page."""
        stream, begin, end = statement.values
        level = ConsistencyLevel.value_to_name[statement.consistency_level]
        self.requests.append((stream, statement.fetch_size, level))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        error = self.fails(len(self.requests))
        if error is not None:
            return FakeFuture(self, error=error)
        known = self.complete if level == "ALL" and self.complete is not None else self.streams
        first, last = sortable_time(begin), sortable_time(end)
        rows = [row for time, row in known.get(stream, []) if first <= sortable_time(time) < last]
        at = int(paging_state or b"0")
        page = rows[at : at + statement.fetch_size]
        after = at + len(page)
        state = str(after).encode() if after < len(rows) else None
        result = SimpleNamespace(current_rows=[RawPage(b"".join(page), len(page))], paging_state=state)
        return FakeFuture(self, result=result)

    def answered(self) -> None:
        """Count an answer that was taken."""
        self._in_flight -= 1

    def _shut_down(self) -> None:
        self.shut_down = True


@dataclass
class FakeFuture:
    """An answer that is there already."""

    session: FakeSession
    result_: Any = None
    error: Exception | None = None

    def __init__(self, session: FakeSession, result: Any = None, error: Exception | None = None) -> None:
        self.session, self.result_, self.error = session, result, error

    def add_callbacks(self, answered: Callable[[Any], None], failed: Callable[[Any], None]) -> None:
        """Call back from another thread, as the driver does."""
        called = threading.Thread(target=answered if self.error is None else failed, args=(None,))
        called.start()
        called.join()

    def result(self) -> Any:
        """Return the answer or raise the error."""
        self.session.answered()
        if self.error is not None:
            raise self.error
        return self.result_
