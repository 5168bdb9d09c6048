"""What a cluster tells of its logs without their schemas: clocks, stream sets, how long rows live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_cdc_provider.sources.cql.driver.every_node import slowest_clock_us
from airflow_cdc_provider.sources.scylla.generations import StreamTables, Timeline
from airflow_cdc_provider.sources.scylla.log_options import read_log_options

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced


@dataclass(frozen=True)
class LogState:
    """The logs of some tables.

    Args:
        now_us: The slowest clock of the nodes, us since 1970.
        timelines: The stream sets of each table.
        ttl_seconds: How long rows of each table's log live; 0 for ever.
    """

    now_us: int
    timelines: Mapping[str, Timeline]
    ttl_seconds: Mapping[str, int]

    def kept_us(self, table: str) -> int:
        """Return the first microsecond whose rows a table's log still has; 0 where they stay."""
        ttl = self.ttl_seconds[table]
        return self.now_us - ttl * 1_000_000 if ttl else 0


def look_at_logs(session: Session, names: ScyllaAdvanced, selects: Callable[[str], bool]) -> LogState:
    """Ask for the logs of the selected tables that have one which isn't switched off.

    Args:
        session: To the cluster.
        names: Keyspaces of the server's own tables.
        selects: Tells whether a table counts.

    Raises:
        ConfigurationError: The login may not read the server's tables.
        TransientError: No node answers.
    """
    options = read_log_options(session, names.schema_keyspace)
    tables = sorted(table for table, option in options.items() if option.enabled and selects(table))
    return LogState(
        slowest_clock_us(session),
        StreamTables(session, names).timelines(tables) if tables else {},
        {table: options[table].ttl_seconds for table in tables},
    )
