"""How far the groups of streams of a ScyllaDB cluster's logs are read, and whether there are newer streams.

A look asks for clocks, stream sets and options of tables. It reads no log: only a query of each stream would
tell whether there is a change, and there may be tens of thousands of streams. What stands for it is how far
behind the clock the stored offset is, of the group that is the furthest behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.generations import Timeline
    from airflow_cdc_provider.sources.scylla.log_state import LogState
    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced
    from airflow_cdc_provider.sources.scylla.position import TablePosition


@dataclass(frozen=True)
class GroupLags:
    """How far behind the slowest node's clock reading stands.

    Args:
        lag_seconds: Of the group of streams that is the furthest behind; None before the first capture.
        table: Whose group it is, empty before the first capture.
        tables: By table ``seconds`` of its furthest group; ``group``, its name, empty where all stand alike;
            ``ahead``, the seconds of groups that stand further ahead; ``generation``, from when the streams
            work that are read, ms since 1970, 0 if that isn't known. A table without an offset isn't told.
        lost: Tables whose logs have expired behind the offset, so that changes are gone unread.
    """

    lag_seconds: float | None
    table: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class StreamChanges:
    """Which tables have streams that the capture hasn't gone over to.

    Args:
        changed: These tables; none before the first capture.
        tables: By table, from when the streams work that are read (``generation``) and from when the newest
            ones do (``newest``), ms since 1970; the latter may be in the future.
    """

    changed: Sequence[str]
    tables: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Feed:
    """What to watch; a connector's options as JSON, so that a trigger can carry it.

    Args:
        tables: Patterns of the tables that count.
        exclude_tables: Patterns of those that do not.
        distributed_keyspace: Keyspace of the generations.
        system_keyspace: Keyspace of the stream sets of tablets.
        schema_keyspace: Keyspace of ``scylla_tables``.
        mends_loss: Whether the run that is waited for goes on from a lost position by itself.
    """

    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    distributed_keyspace: str = "system_distributed"
    system_keyspace: str = "system"
    schema_keyspace: str = "system_schema"
    mends_loss: bool = False

    @property
    def names(self) -> ScyllaAdvanced:
        """The source's options as far as they matter here."""
        from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced

        return ScyllaAdvanced(
            distributed_keyspace=self.distributed_keyspace,
            system_keyspace=self.system_keyspace,
            schema_keyspace=self.schema_keyspace,
        )

    def selects(self, table: str) -> bool:
        """Tell whether a table counts."""
        return any(re.fullmatch(p, table) for p in self.tables) and not any(
            re.fullmatch(p, table) for p in self.exclude_tables
        )


def look_at_lags(session: Session, feed: Feed, offset: Mapping[str, Any] | None) -> GroupLags:
    """Measure how far each group of streams is behind.

    Args:
        session: To the cluster.
        feed: What to watch.
        offset: The ScyllaDB source's offset, None before the first capture.

    Raises:
        PositionLost: A log has expired behind the offset, and no run makes that good.
        ConfigurationError: The login is refused, no table has a log, or the offset has another form.
        TransientError: The cluster does not answer.
    """
    if offset is None:
        return GroupLags(None)
    logs, positions = _look(session, feed, offset)
    tables = {
        table: _lag(position, logs.timelines[table], logs.now_us) for table, position in positions.items()
    }
    lost = [t for t, position in positions.items() if position.read_to_us < logs.kept_us(t)]
    if lost and not feed.mends_loss:
        raise PositionLost(
            f"the logs of {', '.join(lost)} have expired behind the stored offset",
            remedy="snapshot.on_lost_position says what a run may do",
        )
    slowest = max(tables, key=lambda table: float(tables[table]["seconds"]), default="")
    return GroupLags(tables[slowest]["seconds"] if slowest else None, slowest, tables, lost)


def look_at_streams(session: Session, feed: Feed, offset: Mapping[str, Any] | None) -> StreamChanges:
    """Compare the streams that are read with those that there are.

    Args:
        session: To the cluster.
        feed: What to watch.
        offset: The ScyllaDB source's offset, None before the first capture.

    Raises:
        ConfigurationError: The login is refused, no table has a log, or the offset has another form.
        TransientError: The cluster does not answer.
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
    changed = [table for table, told in tables.items() if told["newest"] > told["generation"]]
    return StreamChanges(changed, tables)


def _look(
    session: Session, feed: Feed, offset: Mapping[str, Any]
) -> tuple[LogState, dict[str, TablePosition]]:
    """Return the logs that there are, and the positions of those that are read."""
    from airflow_cdc_provider.sources.scylla.log_state import look_at_logs
    from airflow_cdc_provider.sources.scylla.position import read_offset

    positions = read_offset(offset)
    logs = look_at_logs(session, feed.names, feed.selects)
    if not logs.timelines:
        raise ConfigurationError(
            "no table that the connector selects has a log",
            expected=f"cdc = {{'enabled': true}} of tables {', '.join(feed.tables)}",
            found="none",
        )
    return logs, {table: positions[table] for table in logs.timelines if table in positions}


def _lag(position: TablePosition, timeline: Timeline, now_us: int) -> dict[str, Any]:
    """Tell how far a table's groups are behind; streams are asked for only where groups stand apart."""
    furthest, group = position.read_to_us, ""
    ahead = {name: us for name, us in position.ahead.items() if us > furthest}
    if ahead and position.generation_ms in timeline.begins_ms:
        names = timeline.groups(position.generation_ms)
        group = min(names, key=position.group_reads_from, default="")
        furthest = position.group_reads_from(group)
    return {
        "seconds": _seconds(now_us - furthest),
        "group": group,
        "ahead": {name: _seconds(now_us - us) for name, us in ahead.items() if us > furthest},
        "generation": position.generation_ms,
    }


def _seconds(us: int) -> float:
    return round(max(us, 0) / 1_000_000, 3)
