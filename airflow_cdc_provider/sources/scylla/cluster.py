"""What a cluster tells of itself: clocks, schemas, logs, streams, truncations; as of one moment.

A capture first asks the nodes for their clocks (:meth:`Cluster.observe`). What lies before the slowest of
them, less the confidence window, is read by schemas and streams that are asked for later, so a column or a
stream that is new there is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.driver.connect import driver_errors, open_session
from airflow_cdc_provider.sources.cql.driver.every_node import slowest_clock_us
from airflow_cdc_provider.sources.cql.schema import Schemas
from airflow_cdc_provider.sources.cql.system_schema import read_rows, schemas_from_rows
from airflow_cdc_provider.sources.scylla.generations import StreamTables, Timeline
from airflow_cdc_provider.sources.scylla.log_options import read_log_options
from airflow_cdc_provider.sources.scylla.log_schema import LoggedTable, log_tables
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.truncations import Truncation, last_truncations, told_by_nodes

if TYPE_CHECKING:
    from cassandra.cluster import Session

SECOND_US: Final = 1_000_000
_CLOCK_FRESH_SECONDS: Final = 10.0


class Cluster:
    """A cluster, over one connection that is opened when it is first asked.

    Args:
        options: The declaration's source part.
        connection: The Airflow connection's values (:func:`~..cql.driver.connect.open_session`).
    """

    def __init__(self, options: ScyllaOptions, connection: Mapping[str, Any]) -> None:
        self._options = options
        self._connection = dict(connection)
        self._timelines: Mapping[str, Timeline] = {}
        self._clock_asked_at = float("-inf")
        self._streams_asked_at = float("-inf")
        self.now_us = 0

    def observe(self) -> None:
        """Ask the nodes for their clocks, then forget what was known of all else.

        Raises:
            TransientError: No node answers.
        """
        self._read_clocks()
        for cached in ("schemas", "logs", "truncations"):
            self.__dict__.pop(cached, None)
        self._timelines = {}

    @property
    def head_us(self) -> int:
        """Up to when logs may be read as of the last observation: ``confidence`` behind the clocks."""
        return self.now_us - round(self._options.confidence_window_seconds * SECOND_US)

    def settled_us(self) -> int:
        """Return a time, a few seconds old at most, before which all is settled on all nodes, in us."""
        if time.monotonic() - self._clock_asked_at > _CLOCK_FRESH_SECONDS:
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
        """The tables that have a log, whether it is on or off."""
        options = read_log_options(self.session, self._options.advanced.schema_keyspace)
        return log_tables(self.schemas, options)

    @cached_property
    def truncations(self) -> dict[str, Truncation]:
        """The last TRUNCATE of tables, by their ids."""
        return last_truncations(told_by_nodes(self.session, self._options.advanced.system_keyspace))

    def timeline(self, table: str, tables: Callable[[], Sequence[str]]) -> Timeline:
        """Return the stream sets of a table.

        Args:
            table: The table.
            tables: Lists all that are read: what isn't known yet is asked for all of them at once.
        """
        if table not in self._timelines:
            self._streams_asked_at = time.monotonic()
            self._timelines = self._stream_tables.timelines(tables())
        return self._timelines[table]

    def forget_streams(self, *, at_once: bool) -> None:
        """Forget what was known of streams longer than ``generation_poll_seconds`` ago, or at once."""
        age_seconds = time.monotonic() - self._streams_asked_at
        if at_once or age_seconds >= self._options.advanced.generation_poll_seconds:
            self._timelines = {}

    def close(self) -> None:
        """End the connection."""
        if "session" in self.__dict__:
            self.session.cluster.shutdown()
            del self.__dict__["session"]
        self.__dict__.pop("_stream_tables", None)

    @cached_property
    def _stream_tables(self) -> StreamTables:
        return StreamTables(self.session, self._options.advanced)

    def _read_clocks(self) -> None:
        self.now_us = slowest_clock_us(self.session)
        self._clock_asked_at = time.monotonic()
