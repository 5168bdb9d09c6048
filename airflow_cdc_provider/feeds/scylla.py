"""Measures how far a ScyllaDB cluster's logs are read, by group of streams, and detects newer streams.

Each check queries clocks, stream sets and table options. It reads no log: finding changes would need a query
per stream, and there may be tens of thousands of streams. The lag is the time between the clock and the
stored offset, for the group that is furthest behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.patterns import selects

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.log_state import LogState
    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced
    from airflow_cdc_provider.sources.scylla.position import TablePosition


@dataclass(frozen=True)
class GroupLags:
    """How far the stored offset is behind the slowest node's clock.

    Args:
        lag_seconds: Lag of the group of streams that is furthest behind; None before the first capture.
        table: That group's table; empty before the first capture.
        tables: By table ``seconds``, the lag of its slowest group; ``group``, that group's name, empty if all
            groups are at the same position; ``ahead``, the lag of the groups that are further ahead;
            ``generation``, the start of the streams that are read, ms since 1970, 0 if unknown. Tables
            without an offset are omitted.
        lost: Tables whose logs have expired past the offset, so that changes are lost.
    """

    lag_seconds: float | None
    table: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class StreamChanges:
    """Tables with streams that the capture hasn't switched to.

    Args:
        changed: The tables; empty before the first capture.
        tables: By table, the start of the streams that are read (``generation``) and of the newest ones
            (``newest``), ms since 1970; the latter may be in the future.
    """

    changed: Sequence[str]
    tables: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Feed:
    """The feed to check: a connector's options as JSON, so that a trigger can be serialized.

    Args:
        tables: Patterns of the selected tables.
        exclude_tables: Patterns of the excluded tables.
        distributed_keyspace: Keyspace of the generations.
        system_keyspace: Keyspace of the stream sets of tablets.
        schema_keyspace: Keyspace of ``scylla_tables``.
        recovers_from_loss: Whether the next run recovers from a lost position automatically.
    """

    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    distributed_keyspace: str = "system_distributed"
    system_keyspace: str = "system"
    schema_keyspace: str = "system_schema"
    recovers_from_loss: bool = False

    @property
    def names(self) -> ScyllaAdvanced:
        """The source's options that a check needs."""
        from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced

        return ScyllaAdvanced(
            distributed_keyspace=self.distributed_keyspace,
            system_keyspace=self.system_keyspace,
            schema_keyspace=self.schema_keyspace,
        )

    def selects(self, table: str) -> bool:
        """Return whether a table is selected."""
        return selects(self.tables, self.exclude_tables, table)


def look_at_lags(session: Session, feed: Feed, offset: Mapping[str, Any] | None) -> GroupLags:
    """Measure how far each group of streams is behind.

    Args:
        session: To the cluster.
        feed: The feed to check.
        offset: The ScyllaDB source's offset; None before the first capture.

    Raises:
        PositionLost: A log has expired past the offset, and no run recovers from that.
        ConfigurationError: The login is refused, no table has a log, or the offset is invalid.
        TransientError: The cluster doesn't answer.
    """
    if offset is None:
        return GroupLags(None)
    logs, positions = _look(session, feed, offset)
    tables = {
        table: position.lag(partial(logs.timelines.__getitem__, table), logs.now_us)
        for table, position in positions.items()
    }
    lost = [t for t, position in positions.items() if position.read_to_us < logs.kept_us(t)]
    if lost and not feed.recovers_from_loss:
        raise PositionLost(
            f"the logs of {', '.join(lost)} have expired past the stored offset",
            remedy="set snapshot.on_lost_position to let runs recover",
        )
    slowest = max(tables, key=lambda table: float(tables[table]["seconds"]), default="")
    return GroupLags(tables[slowest]["seconds"] if slowest else None, slowest, tables, lost)


def look_at_streams(session: Session, feed: Feed, offset: Mapping[str, Any] | None) -> StreamChanges:
    """Compare the streams that are read with the existing ones.

    Args:
        session: To the cluster.
        feed: The feed to check.
        offset: The ScyllaDB source's offset; None before the first capture.

    Raises:
        ConfigurationError: The login is refused, no table has a log, or the offset is invalid.
        TransientError: The cluster doesn't answer.
    """
    if offset is None:
        return StreamChanges([], {})
    logs, positions = _look(session, feed, offset)
    tables = {
        table: {
            "generation": position.generation_ms,
            "newest": max(logs.timelines[table].begins_ms, default=0),
        }
        for table, position in positions.items()
    }
    changed = [
        table for table, generations in tables.items() if generations["newest"] > generations["generation"]
    ]
    return StreamChanges(changed, tables)


def _look(
    session: Session, feed: Feed, offset: Mapping[str, Any]
) -> tuple[LogState, dict[str, TablePosition]]:
    """Return the existing logs, and the positions of those that are read."""
    from airflow_cdc_provider.sources.scylla.log_state import read_log_state
    from airflow_cdc_provider.sources.scylla.position import read_offset

    positions = read_offset(offset)
    logs = read_log_state(session, feed.names, feed.selects)
    if not logs.timelines:
        raise ConfigurationError(
            "no table that the connector selects has a log",
            expected=f"cdc = {{'enabled': true}} of tables {', '.join(feed.tables)}",
            found="none",
        )
    return logs, {table: positions[table] for table in logs.timelines if table in positions}
