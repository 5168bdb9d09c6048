"""Which streams a table's changes are in, and from when to when.

Streams change: with vnodes all at once when a node joins or goes (a *generation*, the same for all tables),
with tablets for each table when its tablets are split or merged. Either way there is a set of streams from
one moment to the next, judged by the timestamps of writes. Within a set a partition has one stream, so what
one needs for the order of changes of a key is to read one set to its end before the next one.

The tables read here: ``cdc_generation_timestamps`` and ``cdc_streams_descriptions_v2`` of
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
from airflow_cdc_provider.sources.scylla.server_tables import rows_if_there
from airflow_cdc_provider.sources.scylla.stream_ids import stream_token, vnode_index

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced

Groups = Mapping[str, tuple[bytes, ...]]
"""Streams by the name of their group: the index of their vnode, or with tablets the stream's token."""

_IN_USE: Final = 0
"""``stream_state`` of a stream that works at a timestamp."""


@dataclass(frozen=True)
class Timeline:
    """The stream sets of a table.

    Args:
        begins_ms: From when each works, rising.
        describe: Gives the groups of one of them; asked once of each.
    """

    begins_ms: tuple[int, ...]
    describe: Callable[[int], Groups]
    _known: dict[int, Groups] = field(default_factory=dict, repr=False, compare=False)

    def at(self, moment_us: int) -> int | None:
        """Return the set that works at a moment, None before the first."""
        place = bisect_right(self.begins_ms, moment_us // 1000)
        return self.begins_ms[place - 1] if place else None

    def after(self, begin_ms: int) -> int | None:
        """Return the set that follows one, None for the last."""
        place = bisect_right(self.begins_ms, begin_ms)
        return self.begins_ms[place] if place < len(self.begins_ms) else None

    def groups(self, begin_ms: int) -> Groups:
        """Return the streams of a set."""
        if begin_ms not in self._known:
            self._known[begin_ms] = self.describe(begin_ms)
        return self._known[begin_ms]


def by_vnode(streams: Iterable[bytes]) -> Groups:
    """Group streams by the index of their vnode, each group in the order of its bytes."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    for stream in streams:
        groups[vnode_index(stream)].append(stream)
    return {str(index): tuple(sorted(groups[index])) for index in sorted(groups)}


def by_token(streams: Iterable[bytes]) -> Groups:
    """Make a group of each stream: those of tablets have no index."""
    groups: dict[int, list[bytes]] = defaultdict(list)
    for stream in streams:
        groups[stream_token(stream)].append(stream)
    return {str(token): tuple(sorted(groups[token])) for token in sorted(groups)}


class StreamTables:
    """Reads them, once for all tables of vnodes.

    Those of generations are read at QUORUM where there is more than one node, so a replica that lags can't
    hide a generation, or streams of one. Those of tablets are each node's own.

    Args:
        session: To the cluster.
        names: Keyspaces of the server's own tables.
    """

    def __init__(self, session: Session, names: ScyllaAdvanced) -> None:
        self._session = session
        self._names = names
        self._described: dict[int, Groups] = {}

    def timelines(self, tables: Sequence[str]) -> dict[str, Timeline]:
        """Return the stream sets of tables.

        Raises:
            ConfigurationError: Generations are described as release 4.3 did it.
        """
        times = {table: self._tablet_times(table) for table in tables}
        with_tablets = {table: begins for table, begins in times.items() if begins}
        generations = None
        if len(with_tablets) < len(tables):
            generations = self._generations(tablets=any(begins is not None for begins in times.values()))
        found = {}
        for table in tables:
            if table in with_tablets:
                found[table] = Timeline(with_tablets[table], partial(self._tablet_groups, table))
            else:
                assert generations is not None
                found[table] = generations
        return found

    def _generations(self, *, tablets: bool) -> Timeline:
        """Return the generations; none yet where tables of tablets are all that there is."""
        keyspace = self._names.distributed_keyspace
        rows = self._rows_if_there(
            f"SELECT time FROM {keyspace}.cdc_generation_timestamps WHERE key = 'timestamps'",
            level=self._level,
        )
        if rows is None:
            self._refuse_old_form(tablets=tablets)
        return Timeline(tuple(sorted(_ms(row.time) for row in rows or ())), self._vnode_groups)

    def _refuse_old_form(self, *, tablets: bool) -> None:
        keyspace = self._names.distributed_keyspace
        old = self._rows_if_there(f"SELECT time FROM {keyspace}.cdc_streams_descriptions LIMIT 1")
        if old is None and tablets:
            return
        raise ConfigurationError(
            "the cluster doesn't tell the generations of its streams",
            expected=f"{keyspace}.cdc_generation_timestamps and {keyspace}.cdc_streams_descriptions_v2, "
            "which ScyllaDB has from release 4.4 on",
            found=f"{keyspace}.cdc_streams_descriptions alone, the form of release 4.3"
            if old is not None
            else "neither these nor the form of release 4.3",
            remedy="upgrade the cluster: its nodes then rewrite the descriptions"
            if old is not None
            else "check that this is a cluster of ScyllaDB, and source.advanced.distributed_keyspace",
        )

    def _vnode_groups(self, begin_ms: int) -> Groups:
        if begin_ms not in self._described:
            rows = self._rows(
                f"SELECT streams FROM {self._names.distributed_keyspace}.cdc_streams_descriptions_v2 "
                "WHERE time = %s",
                (_moment(begin_ms),),
                level=self._level,
            )
            groups = by_vnode(stream for row in rows for stream in row.streams)
            self._described[begin_ms] = _described(groups, begin_ms, "generation")
        return self._described[begin_ms]

    def _tablet_times(self, table: str) -> tuple[int, ...] | None:
        """Return from when each set of a table works; None where there is no such table of sets."""
        rows = self._rows_if_there(
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
        return _described(by_token(row.stream_id for row in rows), begin_ms, f"stream set of {table}")

    @property
    def _level(self) -> int:
        """Consistency level of what is replicated."""
        from cassandra import ConsistencyLevel

        alone = len(self._session.cluster.metadata.all_hosts()) == 1
        return int(ConsistencyLevel.ONE if alone else ConsistencyLevel.QUORUM)

    def _rows(self, query: str, values: Sequence[Any] = (), level: int | None = None) -> list[Any]:
        rows = self._rows_if_there(query, values, level)
        if rows is None:
            raise ConfigurationError(
                "the cluster doesn't tell the streams of change data capture", found=f"no table for: {query}"
            )
        return rows

    def _rows_if_there(
        self, query: str, values: Sequence[Any] = (), level: int | None = None
    ) -> list[Any] | None:
        doing = "reading the streams of change data capture"
        return rows_if_there(self._session, query, values, doing=doing, level=level)


def _described(groups: Groups, begin_ms: int, what: str) -> Groups:
    """Refuse a set without streams: its time would be taken for read, and its changes lost."""
    if groups:
        return groups
    raise TransientError(
        f"the {what} that begins at {_moment(begin_ms):%Y-%m-%d %H:%M:%S.%f} UTC is announced, but "
        "its streams aren't described",
        expected="at least one stream",
        found="none",
        remedy="run again; if that stays so, look at the repair of the cluster's own tables of streams",
    )


def _ms(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
