"""The state of a cluster's logs without their schemas: clocks, stream sets, retention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_cdc_provider.sources.cql.driver.node_queries import slowest_clock_us
from airflow_cdc_provider.sources.scylla.generations import StreamTables, Timeline
from airflow_cdc_provider.sources.scylla.log_options import read_log_options

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced


@dataclass(frozen=True)
class LogState:
    """The state of the logs of some tables.

    Args:
        now_us: The slowest clock of the nodes, us since 1970.
        timelines: The stream sets of each table.
        ttl_seconds: Lifetime of the rows of each table's log; 0 for unlimited.
    """

    now_us: int
    timelines: Mapping[str, Timeline]
    ttl_seconds: Mapping[str, int]

    def kept_us(self, table: str) -> int:
        """Return the first microsecond that a table's log still contains; 0 if rows don't expire."""
        ttl = self.ttl_seconds[table]
        return self.now_us - ttl * 1_000_000 if ttl else 0


def read_log_state(session: Session, names: ScyllaAdvanced, selects: Callable[[str], bool]) -> LogState:
    """Read the state of the enabled logs of the selected tables.

    Args:
        session: To the cluster.
        names: Keyspaces of the server's own tables.
        selects: Returns whether a table is selected.

    Raises:
        ConfigurationError: The login has no permission to read the server's tables.
        TransientError: No node answers.
    """
    options = read_log_options(session, names.schema_keyspace)
    tables = sorted(table for table, option in options.items() if option.enabled and selects(table))
    return LogState(
        slowest_clock_us(session),
        StreamTables(session, names).timelines(tables) if tables else {},
        {table: options[table].ttl_seconds for table in tables},
    )
