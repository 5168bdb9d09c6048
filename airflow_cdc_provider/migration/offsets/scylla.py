"""Converts stored offsets of the Scylla CDC Source Connector to positions, and back.

Kafka Connect stores an offset per table, generation and vnode; :mod:`.connect` has the file formats.
All values are strings::

    P = {"keyspace_name": k, "table_name": t, "vnode_id": "7", "generation_start": "1700000000000"}   ms
    O = {"window_start": UUID, "window_end": UUID}        times as UUIDs of version 1, the bounds of a query
        and, if a change of the window was emitted,
        {"change_id_stream_id": "0x...", "change_id_time": UUID}

``vnode_id`` is the vnode index in the stream's id, which is 0 for all streams of tablets. All changes before
``window_start`` were emitted. The window itself is read again: the connector skips changes up to the last
emitted id; for mirrors, reading a change twice has no effect.

The current generation is chosen as the connector's master does: the first unexpired one that not all of its
vnodes have read to its end. A vnode without an offset starts at the start of its generation. Offsets of
finished generations stay in Connect's topic.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.connect import (
    Stored,
    is_connect_offset_file,
    read_connect_offsets,
    to_rest,
)
from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets, ImportedOffset, OffsetFile
from airflow_cdc_provider.sources.scylla.generations import Groups, Timeline
from airflow_cdc_provider.sources.scylla.log_state import LogState, read_log_state
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.position import TablePosition, read_offset, write_offset
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS, STREAM_ID_BYTES, vnode_index

_PARTITION: Final = ("keyspace_name", "table_name", "vnode_id", "generation_start")
_TIME_VERSION: Final = 1
_TICKS_PER_MS: Final = 10_000
_LEAST_REST: Final = 0x8080808080808080
_GREATEST_REST: Final = 0x7F7F7F7F7F7F7F7F

Vnodes = Mapping[int, int]
"""The first microsecond that wasn't emitted, by ``vnode_id``."""


@dataclass(frozen=True)
class StoredOffset:
    """One stored offset.

    Args:
        table: ``keyspace.table``.
        generation_ms: Start of the generation.
        vnode: Index of the vnode.
        read_to_us: The first microsecond that wasn't emitted.
    """

    table: str
    generation_ms: int
    vnode: int
    read_to_us: int


class ScyllaOffsets(ConnectOffsets):
    """Offsets of ScyllaDB's source connector."""

    @staticmethod
    def recognizes(content: bytes) -> bool:
        """Return whether a file contains offsets of Kafka Connect rather than ours."""
        return is_connect_offset_file(content, ("window_start",))

    def imported(self, file: OffsetFile) -> ImportedOffset:
        """Convert the offsets of all vnodes; the cluster must be available."""
        offsets = read_offsets(file.content)
        with self._logs() as logs:
            positions, remarks = import_positions(offsets, logs)
        return ImportedOffset(write_offset(positions), remarks)

    def exported(self, offset: Mapping[str, Any]) -> str:
        """Convert an offset to one per vnode; the cluster must be available."""
        with self._logs() as logs:
            width_seconds = self._options.query_window_seconds
            return to_rest(to_connect(read_offset(offset), logs, width_seconds))

    @property
    def _options(self) -> ScyllaOptions:
        assert isinstance(self.connector.source, ScyllaOptions)
        return self.connector.source

    @contextmanager
    def _logs(self) -> Iterator[LogState]:
        """Connect to the cluster; streams of a generation are queried on demand."""
        with self.open_source() as session:
            yield read_log_state(session, self._options.advanced, self.connector.selects)


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file; the last one of a key wins.

    Raises:
        ConfigurationError: The file has none of the formats, or an offset isn't of this connector.
    """
    return [_read(partition, offset) for partition, offset in read_connect_offsets(content, "ScyllaDB")]


def import_positions(
    offsets: Sequence[StoredOffset], logs: LogState
) -> tuple[dict[str, TablePosition], tuple[str, ...]]:
    """Determine the positions to resume from.

    Args:
        offsets: From :func:`read_offsets`.
        logs: State of the logs of the selected tables.

    Returns:
        The positions by table, and remarks for the operator.

    Raises:
        ConfigurationError: No offset belongs to a selected table, or one belongs to another cluster.
    """
    stored: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for offset in offsets:
        stored[offset.table][offset.generation_ms][offset.vnode] = offset.read_to_us
    if not set(stored) & set(logs.timelines):
        raise ConfigurationError(
            "no offset belongs to a selected table with a log",
            expected=", ".join(sorted(logs.timelines)) or "a table with a log",
            found=", ".join(sorted(stored)) or "no offset",
        )
    remarks = [
        f"{table} has no log or isn't selected: its offsets are skipped"
        for table in sorted(set(stored) - set(logs.timelines))
    ]
    found = {}
    for table in sorted(logs.timelines):
        if table not in stored:
            remarks.append(f"{table} has no offset: its capture starts as for a new connector")
            continue
        _reject_foreign(table, stored[table], logs)
        found[table] = _position(table, stored[table], logs, remarks)
    return found, tuple(remarks)


def to_connect(positions: Mapping[str, TablePosition], logs: LogState, window_seconds: float) -> list[Stored]:
    """Convert positions to offsets as the connector stores them.

    Generations before a table's current one are marked as read to their end, else the connector would start
    with them. Its windows start at milliseconds, so it may read the last millisecond before a position again.

    Args:
        positions: Positions by table; tables without a log are skipped.
        logs: State of the logs of these tables.
        window_seconds: Width of the connector's next window.

    Raises:
        ConfigurationError: A table's streams are unknown.
    """
    width_ms = max(round(window_seconds * 1000), 1)
    return [
        entry
        for table, position in sorted(positions.items())
        if table in logs.timelines
        for entry in _entries(table, position, logs, width_ms)
    ]


def _position(table: str, stored: Mapping[int, Vnodes], logs: LogState, remarks: list[str]) -> TablePosition:
    timeline = logs.timelines[table]
    if not any(begin in timeline.begins_ms for begin in stored):
        # All stored offsets are of streams whose descriptions and rows have expired.
        newest = max(stored)
        remarks.append(f"the streams of the offsets of {table} have expired: later changes in them are lost")
        return TablePosition(newest, min(stored[newest].values()))
    generation = _unfinished(stored, timeline, logs.kept_us(table))
    groups, vnodes = timeline.groups(generation), stored.get(generation, {})
    missing = sorted({vnode_index(streams[0]) for streams in groups.values()} - set(vnodes))
    if missing:
        remarks.append(
            f"{len(missing)} of the vnodes of {table} have no offset in generation {generation}, so they are "
            f"read from its start: {', '.join(map(str, missing[:10]))}{' ...' if missing[10:] else ''}"
        )
    if any(other > generation for other in stored):
        remarks.append(
            f"generation {generation} of {table} isn't read to its end: it is read first, and offsets of "
            "later generations are skipped"
        )
    read_to = _read_to_of_groups(groups, generation, vnodes)
    read_to_us = min(read_to.values(), default=generation * 1000)
    return TablePosition(
        generation, read_to_us, {group: us for group, us in read_to.items() if us > read_to_us}
    )


def _unfinished(stored: Mapping[int, Vnodes], timeline: Timeline, kept_us: int) -> int:
    """Return the first generation that may contain changes that weren't emitted."""
    for generation in timeline.begins_ms[:-1]:
        end_ms = timeline.after(generation)
        assert end_ms is not None
        later = any(other > generation for other in stored)
        if end_ms * 1000 < kept_us and (later or generation not in stored):
            continue
        read_to = _read_to_of_groups(timeline.groups(generation), generation, stored.get(generation, {}))
        if min(read_to.values(), default=end_ms * 1000) < end_ms * 1000:
            return generation
    return timeline.begins_ms[-1]


def _read_to_of_groups(groups: Groups, generation_ms: int, vnodes: Vnodes) -> dict[str, int]:
    """Return the position of each group: not before the generation's start, which is also the default."""
    begin_us = generation_ms * 1000
    return {
        group: max(vnodes.get(vnode_index(streams[0]), begin_us), begin_us)
        for group, streams in groups.items()
    }


def _reject_foreign(table: str, stored: Mapping[int, Vnodes], logs: LogState) -> None:
    """Reject generations that the cluster never had, and times in its future.

    A generation may be unknown if it is older than all known ones and its rows have expired: the cluster then
    no longer lists it.
    """
    begins = logs.timelines[table].begins_ms
    if foreign := [
        begin
        for begin, vnodes in sorted(stored.items())
        if begin not in begins
        and (not begins or begin > begins[0] or max(vnodes.values()) >= logs.kept_us(table))
    ]:
        raise ConfigurationError(
            f"the offsets of {table} belong to a generation that this cluster doesn't have",
            expected=f"one of {', '.join(map(str, begins)) or 'no generation'}",
            found=", ".join(map(str, foreign)),
            remedy="check that source.conn_id is the cluster that the connector reads",
        )
    furthest_us = max(us for vnodes in stored.values() for us in vnodes.values())
    if furthest_us > logs.now_us:
        raise ConfigurationError(
            f"an offset of {table} is in the future",
            expected=f"a window_start of up to {logs.now_us // 1000} ms since 1970, the slowest node's clock",
            found=str(furthest_us // 1000),
            remedy="check that source.conn_id is the cluster that the connector reads, and its clocks",
        )


def _entries(table: str, position: TablePosition, logs: LogState, width_ms: int) -> Iterator[Stored]:
    timeline = logs.timelines[table]
    generation: int | None = position.generation_ms
    if generation not in timeline.begins_ms:
        generation = timeline.at(position.read_to_us)
    if generation is None:
        raise ConfigurationError(
            f"the streams of {table} at its position are unknown", remedy="run a capture first"
        )
    kept_us = logs.kept_us(table)
    for begin, end in zip(timeline.begins_ms, timeline.begins_ms[1:], strict=False):
        if begin < generation and end * 1000 >= kept_us:
            # A window that starts after the generation's end marks it as finished.
            done = dict.fromkeys(timeline.groups(begin), end + 1)
            yield from _offsets_of(table, begin, _by_vnode(timeline.groups(begin), done), width_ms)
    ahead = position.ahead if generation == position.generation_ms else {}
    group_positions = {
        group: max(position.read_to_us, ahead.get(group, 0), generation * 1000) // 1000
        for group in timeline.groups(generation)
    }
    yield from _offsets_of(
        table, generation, _by_vnode(timeline.groups(generation), group_positions), width_ms
    )


def _by_vnode(groups: Groups, positions_ms: Mapping[str, int]) -> dict[int, int]:
    """Return the position of each vnode: that of its group that is furthest behind."""
    found: dict[int, int] = {}
    for group, streams in groups.items():
        vnode = vnode_index(streams[0])
        found[vnode] = min(found.get(vnode, positions_ms[group]), positions_ms[group])
    return found


def _offsets_of(table: str, generation_ms: int, vnodes: Mapping[int, int], width_ms: int) -> Iterator[Stored]:
    keyspace, _, name = table.partition(".")
    for vnode, begin_ms in sorted(vnodes.items()):
        values = (keyspace, name, str(vnode), str(generation_ms))
        yield (
            dict(zip(_PARTITION, values, strict=True)),
            {
                "window_start": str(_bound(begin_ms * _TICKS_PER_MS, _LEAST_REST)),
                "window_end": str(_bound((begin_ms + width_ms) * _TICKS_PER_MS - 1, _GREATEST_REST)),
            },
        )


def _bound(ticks_since_1970: int, rest: int) -> uuid.UUID:
    ticks = ticks_since_1970 + EPOCH_TICKS
    time = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | _TIME_VERSION << 12 | ticks >> 48
    return uuid.UUID(int=time << 64 | rest)


def _read(partition: Mapping[str, Any], offset: Mapping[str, Any]) -> StoredOffset:
    try:
        keyspace, name, vnode, generation = (partition[member] for member in _PARTITION)
        start, _ = _time(offset["window_start"]), _time(offset["window_end"])
        if "change_id_time" in offset:
            _time(offset["change_id_time"])
            _check_stream(offset["change_id_stream_id"])
        return StoredOffset(f"{keyspace}.{name}", int(generation), int(vnode), (start - EPOCH_TICKS) // 10)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        stored = json.dumps({"partition": dict(partition), "offset": dict(offset)})
        raise ConfigurationError(
            "not a valid offset of ScyllaDB's source connector",
            expected=f"a partition of {', '.join(_PARTITION)}, and an offset of window_start and window_end "
            "with UUIDs of version 1",
            found=f"{stored[:300]} ({type(error).__name__}: {error})",
        ) from None


def _time(text: str) -> int:
    """Return the ticks of a time UUID (version 1), 100 ns since 1582."""
    found = uuid.UUID(text)
    if found.int >> 76 & 0xF != _TIME_VERSION:
        raise ValueError(f"{text} is not a UUID of version {_TIME_VERSION}")
    if found.time < EPOCH_TICKS:
        raise ValueError(f"{text} is before 1970")
    return found.time


def _check_stream(text: str) -> None:
    if len(bytes.fromhex(text.removeprefix("0x"))) != STREAM_ID_BYTES:
        raise ValueError(f"{text} is not a stream id")
