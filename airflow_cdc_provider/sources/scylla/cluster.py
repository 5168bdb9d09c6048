"""A cluster's metadata as of one moment: clocks, schemas, logs, streams, truncations.

A capture first reads the clocks of the nodes (:meth:`Cluster.observe`). Changes before the slowest clock
minus the confidence window are decoded with schemas and streams that are read afterwards, so every column and
stream in them is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.connection import driver_errors, open_session
from airflow_cdc_provider.sources.cql.driver.node_queries import slowest_clock_us
from airflow_cdc_provider.sources.cql.schema import Schemas
from airflow_cdc_provider.sources.cql.system_schema import read_rows, schemas_from_rows
from airflow_cdc_provider.sources.scylla.generations import StreamTables, Timeline
from airflow_cdc_provider.sources.scylla.log_options import CdcOption, read_log_options
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.schema_history import LoggedTable, LogHistory, log_tables
from airflow_cdc_provider.sources.scylla.truncations import Truncation, last_truncations, read_truncations

if TYPE_CHECKING:
    import pyarrow as pa
    from cassandra.cluster import Session

SECOND_US: Final = 1_000_000
_CLOCK_FRESH_SECONDS: Final = 10.0


class Cluster:
    """A cluster, over one connection that is opened on first use.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~..cql.connection.open_session`).
    """

    def __init__(self, options: ScyllaOptions, connection: Mapping[str, Any]) -> None:
        self._options = options
        self._connection = dict(connection)
        self._timelines: Mapping[str, Timeline] = {}
        self._clock_read_at = float("-inf")
        self._streams_read_at = float("-inf")
        self.history = LogHistory()
        self.now_us = 0

    def observe(self) -> None:
        """Read the clocks of the nodes and invalidate all other cached metadata.

        Raises:
            TransientError: No node answers.
        """
        self._read_clocks()
        for cached in ("schemas", "logs", "_options_of_logs", "truncations"):
            self.__dict__.pop(cached, None)
        self._timelines = {}

    def learn(self, records: pa.Table) -> None:
        """Load the recorded schemas of logs."""
        self.history = LogHistory(records)
        self.__dict__.pop("logs", None)

    @property
    def head_us(self) -> int:
        """The time up to which logs may be read, as of :meth:`observe`: clocks minus confidence window."""
        return self.now_us - round(self._options.confidence_window_seconds * SECOND_US)

    def settled_us(self) -> int:
        """Return a time in us, at most a few seconds old, before which all nodes have all writes."""
        if time.monotonic() - self._clock_read_at > _CLOCK_FRESH_SECONDS:
            self._read_clocks()
        return self.head_us

    @cached_property
    def session(self) -> Session:
        """The connection."""
        if not self._connection:
            raise ConfigurationError("this needs a cluster", expected="source.conn_id", found="no connection")
        return open_session(self._connection, timeout_seconds=self._options.advanced.request_timeout_seconds)

    @cached_property
    def schemas(self) -> Schemas:
        """The schema at the first use after :meth:`observe`."""
        with driver_errors("reading the schema"):
            return schemas_from_rows(read_rows(self.session))

    @cached_property
    def logs(self) -> dict[str, LoggedTable]:
        """The tables that have a log, enabled or disabled."""
        return log_tables(self.schemas, self._options_of_logs, self.history)

    @cached_property
    def truncations(self) -> dict[str, Truncation]:
        """The last TRUNCATE of each table, by table id."""
        return last_truncations(read_truncations(self.session, self._options.advanced.system_keyspace))

    def timeline(self, table: str, tables: Callable[[], Sequence[str]]) -> Timeline:
        """Return the stream sets of a table.

        Args:
            table: The table.
            tables: Returns all tables that are read; missing timelines are read for all of them at once.
        """
        if table not in self._timelines:
            self._streams_read_at = time.monotonic()
            self._timelines = self._stream_tables.timelines(tables())
        return self._timelines[table]

    def invalidate_streams(self, *, force: bool) -> None:
        """Invalidate cached streams if they are older than ``generation_poll_seconds``, or with ``force``."""
        age_seconds = time.monotonic() - self._streams_read_at
        if force or age_seconds >= self._options.advanced.generation_poll_seconds:
            self._timelines = {}

    def close(self) -> None:
        """Close the connection."""
        if "session" in self.__dict__:
            self.session.cluster.shutdown()
            del self.__dict__["session"]
        self.__dict__.pop("_stream_tables", None)

    @cached_property
    def _options_of_logs(self) -> dict[str, CdcOption]:
        return read_log_options(self.session, self._options.advanced.schema_keyspace)

    @cached_property
    def _stream_tables(self) -> StreamTables:
        return StreamTables(self.session, self._options.advanced)

    def _read_clocks(self) -> None:
        self.now_us = slowest_clock_us(self.session)
        self._clock_read_at = time.monotonic()
