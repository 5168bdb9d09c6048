"""The CDC streams of a table's log over time.

Streams change over time. With vnodes, all streams change when a node joins or leaves (a *generation*, the
same for all tables). With tablets, the streams of a table change when its tablets are split or merged. In
both cases a set of streams is valid for a period of write timestamps. Within a set, a partition has one
stream, so reading one set to its end before the next one preserves the order of changes of a key.

This module reads the tables ``cdc_generation_timestamps`` and ``cdc_streams_descriptions_v2`` of
``system_distributed``; ``cdc_timestamps`` and ``cdc_streams`` of ``system``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.scylla.server_tables import rows_or_none
from airflow_cdc_provider.sources.scylla.stream_ids import stream_token, vnode_index

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced

Groups = Mapping[str, tuple[bytes, ...]]
"""Streams by the name of their group: the index of their vnode, or with tablets the stream's token."""

_IN_USE: Final = 0
"""``stream_state`` of a stream that is active at a timestamp."""


@dataclass(frozen=True)
class Timeline:
    """The stream sets of a table.

    Args:
        begins_ms: Start time of each set, ascending.
        describe: Returns the groups of a set; called once per set.
    """

    begins_ms: tuple[int, ...]
    describe: Callable[[int], Groups]
    _known: dict[int, Groups] = field(default_factory=dict, repr=False, compare=False)

    def at(self, moment_us: int) -> int | None:
        """Return the set that is active at a time, None before the first."""
        index = bisect_right(self.begins_ms, moment_us // 1000)
        return self.begins_ms[index - 1] if index else None

    def after(self, begin_ms: int) -> int | None:
        """Return the set that follows one, None for the last."""
        index = bisect_right(self.begins_ms, begin_ms)
        return self.begins_ms[index] if index < len(self.begins_ms) else None

    def groups(self, begin_ms: int) -> Groups:
        """Return the streams of a set."""
        if begin_ms not in self._known:
            self._known[begin_ms] = self.describe(begin_ms)
        return self._known[begin_ms]


def by_vnode(streams: Iterable[bytes]) -> Groups:
    """Group streams by the index of their vnode; groups are sorted by stream id."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    for stream in streams:
        groups[vnode_index(stream)].append(stream)
    return {str(index): tuple(sorted(groups[index])) for index in sorted(groups)}


def by_token(streams: Iterable[bytes]) -> Groups:
    """Group streams by token: streams of tablets have no vnode index."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    for stream in streams:
        groups[stream_token(stream)].append(stream)
    return {str(token): tuple(sorted(groups[token])) for token in sorted(groups)}


class StreamTables:
    """Reads stream metadata; generations are read once for all vnode tables.

    Generations are read at QUORUM if there is more than one node, so a lagging replica can't hide a
    generation or its streams. The metadata of tablets is local to each node.

    Args:
        session: To the cluster.
        names: Keyspaces of the server's own tables.
    """

    def __init__(self, session: Session, names: ScyllaAdvanced) -> None:
        self._session = session
        self._names = names
        self._groups: dict[int, Groups] = {}

    def timelines(self, tables: Sequence[str]) -> dict[str, Timeline]:
        """Return the stream sets of tables.

        Raises:
            ConfigurationError: Generations are in the format of release 4.3, or there are none.
        """
        times = {table: self._tablet_times(table) for table in tables}
        with_tablets = {table: begins for table, begins in times.items() if begins}
        generations = None
        if len(with_tablets) < len(tables):
            generations = self._generations(tablets=any(begins is not None for begins in times.values()))
        timelines = {}
        for table in tables:
            if table in with_tablets:
                timelines[table] = Timeline(with_tablets[table], partial(self._tablet_groups, table))
            else:
                assert generations is not None
                timelines[table] = generations
        return timelines

    def _generations(self, *, tablets: bool) -> Timeline:
        """Return the generations; none if the cluster only has tablet tables."""
        keyspace = self._names.distributed_keyspace
        rows = self._rows_or_none(
            f"SELECT time FROM {keyspace}.cdc_generation_timestamps WHERE key = 'timestamps'",
            level=self._level,
        )
        if rows is None:
            self._reject_old_format(tablets=tablets)
        return Timeline(tuple(sorted(_ms(row.time) for row in rows or ())), self._vnode_groups)

    def _reject_old_format(self, *, tablets: bool) -> None:
        keyspace = self._names.distributed_keyspace
        old = self._rows_or_none(f"SELECT time FROM {keyspace}.cdc_streams_descriptions LIMIT 1")
        if old is None and tablets:
            return
        raise ConfigurationError(
            "the cluster does not expose CDC generations",
            expected=f"{keyspace}.cdc_generation_timestamps and {keyspace}.cdc_streams_descriptions_v2, "
            "which exist since ScyllaDB 4.4",
            found=f"{keyspace}.cdc_streams_descriptions only, the format of release 4.3"
            if old is not None
            else "neither these nor the format of release 4.3",
            remedy="upgrade the cluster: its nodes then migrate the descriptions"
            if old is not None
            else "check that this is a ScyllaDB cluster, and source.advanced.distributed_keyspace",
        )

    def _vnode_groups(self, begin_ms: int) -> Groups:
        if begin_ms not in self._groups:
            rows = self._rows(
                f"SELECT streams FROM {self._names.distributed_keyspace}.cdc_streams_descriptions_v2 "
                "WHERE time = %s",
                (_moment(begin_ms),),
                level=self._level,
            )
            groups = by_vnode(stream for row in rows for stream in row.streams)
            self._groups[begin_ms] = _require_streams(groups, begin_ms, "generation")
        return self._groups[begin_ms]

    def _tablet_times(self, table: str) -> tuple[int, ...] | None:
        """Return the start times of a table's sets; None if the server has no table of them."""
        rows = self._rows_or_none(
            f'SELECT "timestamp" AS time FROM {self._names.system_keyspace}.cdc_timestamps '
            "WHERE keyspace_name = %s AND table_name = %s",
            tuple(table.split(".", 1)),
        )
        return None if rows is None else tuple(sorted(_ms(row.time) for row in rows))

    def _tablet_groups(self, table: str, begin_ms: int) -> Groups:
        rows = self._rows(
            f"SELECT stream_id FROM {self._names.system_keyspace}.cdc_streams WHERE keyspace_name = %s "
            'AND table_name = %s AND "timestamp" = %s AND stream_state = %s',
            (*table.split(".", 1), _moment(begin_ms), _IN_USE),
        )
        return _require_streams(by_token(row.stream_id for row in rows), begin_ms, f"stream set of {table}")

    @property
    def _level(self) -> int:
        """Consistency level for replicated metadata."""
        from cassandra import ConsistencyLevel

        alone = len(self._session.cluster.metadata.all_hosts()) == 1
        return int(ConsistencyLevel.ONE if alone else ConsistencyLevel.QUORUM)

    def _rows(self, query: str, values: Sequence[Any] = (), level: int | None = None) -> list[Any]:
        rows = self._rows_or_none(query, values, level)
        if rows is None:
            raise ConfigurationError(
                "the cluster does not expose CDC streams", found=f"no table for: {query}"
            )
        return rows

    def _rows_or_none(
        self, query: str, values: Sequence[Any] = (), level: int | None = None
    ) -> list[Any] | None:
        doing = "reading the CDC streams"
        return rows_or_none(self._session, query, values, doing=doing, level=level)


def _require_streams(groups: Groups, begin_ms: int, what: str) -> Groups:
    """Reject a set without streams: its period would count as read, and its changes would be lost."""
    if groups:
        return groups
    raise TransientError(
        f"the {what} that starts at {_moment(begin_ms):%Y-%m-%d %H:%M:%S.%f} UTC is announced, but "
        "has no stream descriptions",
        expected="at least one stream",
        found="none",
        remedy="run again; if the error persists, repair the cluster's tables of stream descriptions",
    )


def _ms(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
