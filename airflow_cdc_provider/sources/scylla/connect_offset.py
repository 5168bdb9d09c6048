"""Offsets that the Scylla CDC Source Connector has stored, as positions of ours, and back.

Kafka Connect keeps one per table, generation and vnode; the forms of files are :mod:`..connect_offsets`'.
All values are texts::

    P = {"keyspace_name": k, "table_name": t, "vnode_id": "7", "generation_start": "1700000000000"}   ms
    O = {"window_start": UUID, "window_end": UUID}        times as UUIDs of version 1, the bounds of a query
        and, if a change of the window was handed on,
        {"change_id_stream_id": "0x...", "change_id_time": UUID}

``vnode_id`` is the index in the stream's id: that of all streams is 0 with tablets. Everything before
``window_start`` was handed on. What came of the window itself is read again: the connector skips changes
by the last one's id, mirrors absorb them.

Which generation counts is what the connector's own master decides: the first one, of those that haven't
expired, that isn't read to its end by all its vnodes. A vnode without an offset begins where its
generation does. Offsets of generations that are read to their end stay in Connect's topic for good.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.connect_offsets import Stored, is_stored_by_connect, read_stored
from airflow_cdc_provider.sources.scylla.generations import Groups, Timeline
from airflow_cdc_provider.sources.scylla.log_state import LogState
from airflow_cdc_provider.sources.scylla.position import TablePosition
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS, STREAM_ID_BYTES, vnode_index

_PARTITION: Final = ("keyspace_name", "table_name", "vnode_id", "generation_start")
_TIME_VERSION: Final = 1
_TICKS_PER_MS: Final = 10_000
_LEAST_REST: Final = 0x8080808080808080
_GREATEST_REST: Final = 0x7F7F7F7F7F7F7F7F

Vnodes = Mapping[int, int]
"""By ``vnode_id`` the first microsecond that wasn't handed on."""


@dataclass(frozen=True)
class StoredOffset:
    """One offset.

    Args:
        table: ``keyspace.table``.
        generation_ms: From when its streams work.
        vnode: Their index.
        read_to_us: The first microsecond that wasn't handed on.
    """

    table: str
    generation_ms: int
    vnode: int
    read_to_us: int


def is_the_connectors(content: bytes) -> bool:
    """Tell whether a file holds offsets of Kafka Connect, and not one of ours."""
    return is_stored_by_connect(content, ("window_start",))


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file; of several with one key the last counts.

    Raises:
        ConfigurationError: It has none of the forms, or an offset isn't of this connector.
    """
    return [_read(partition, offset) for partition, offset in read_stored(content, "ScyllaDB")]


def positions_of(
    offsets: Sequence[StoredOffset], logs: LogState
) -> tuple[dict[str, TablePosition], tuple[str, ...]]:
    """Choose the positions to go on from.

    Args:
        offsets: From :func:`read_offsets`.
        logs: What the cluster tells of the tables that the declaration selects.

    Returns:
        By table, and what a person should know, in sentences.

    Raises:
        ConfigurationError: No offset is of a selected table, or one is of another cluster.
    """
    stored: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for offset in offsets:
        stored[offset.table][offset.generation_ms][offset.vnode] = offset.read_to_us
    if not set(stored) & set(logs.timelines):
        raise ConfigurationError(
            "there is no offset of a table that the connector selects and that has a log",
            expected=", ".join(sorted(logs.timelines)) or "a table with a log",
            found=", ".join(sorted(stored)) or "none at all",
        )
    remarks = [
        f"{table} has no log or isn't selected: its offsets are left out"
        for table in sorted(set(stored) - set(logs.timelines))
    ]
    found = {}
    for table in sorted(logs.timelines):
        if table not in stored:
            remarks.append(f"{table} has no offset: its capture begins as at first")
            continue
        _refuse_foreign(table, stored[table], logs)
        found[table] = _position(table, stored[table], logs, remarks)
    return found, tuple(remarks)


def to_connect(positions: Mapping[str, TablePosition], logs: LogState, window_seconds: float) -> list[Stored]:
    """Write positions as what the connector stores.

    Generations before a table's are told to be read to their end, else the connector would begin with them.
    Its windows begin at milliseconds, so it may read what lies in a position's last one again.

    Args:
        positions: By table; those without a log are left out.
        logs: What the cluster tells of these tables.
        window_seconds: Width of the window that the connector reads next.

    Raises:
        ConfigurationError: A table's streams aren't known.
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
        # All that is stored is of streams whose descriptions are gone, as their rows are.
        newest = max(stored)
        remarks.append(f"the streams of {table} that were read are gone: what followed in them has expired")
        return TablePosition(newest, min(stored[newest].values()))
    generation = _unfinished(stored, timeline, logs.kept_us(table))
    groups, vnodes = timeline.groups(generation), stored.get(generation, {})
    missing = sorted({vnode_index(streams[0]) for streams in groups.values()} - set(vnodes))
    if missing:
        remarks.append(
            f"{len(missing)} of the vnodes of {table} have no offset in the generation {generation}, so they "
            f"are read from its begin: {', '.join(map(str, missing[:10]))}{' ...' if missing[10:] else ''}"
        )
    if any(other > generation for other in stored):
        remarks.append(
            f"the generation {generation} of {table} isn't read to its end: it is first, and offsets of "
            "later ones are left out"
        )
    reached = _reached(groups, generation, vnodes)
    read_to_us = min(reached.values(), default=generation * 1000)
    return TablePosition(
        generation, read_to_us, {group: us for group, us in reached.items() if us > read_to_us}
    )


def _unfinished(stored: Mapping[int, Vnodes], timeline: Timeline, kept_us: int) -> int:
    """Return the first generation that may hold what wasn't handed on."""
    for generation in timeline.begins_ms[:-1]:
        end_ms = timeline.after(generation)
        assert end_ms is not None
        later = any(other > generation for other in stored)
        if end_ms * 1000 < kept_us and (later or generation not in stored):
            continue
        reached = _reached(timeline.groups(generation), generation, stored.get(generation, {}))
        if min(reached.values(), default=end_ms * 1000) < end_ms * 1000:
            return generation
    return timeline.begins_ms[-1]


def _reached(groups: Groups, generation_ms: int, vnodes: Vnodes) -> dict[str, int]:
    """Return where each group stands: at the generation's begin without an offset, and never before it."""
    begin_us = generation_ms * 1000
    return {
        group: max(vnodes.get(vnode_index(streams[0]), begin_us), begin_us)
        for group, streams in groups.items()
    }


def _refuse_foreign(table: str, stored: Mapping[int, Vnodes], logs: LogState) -> None:
    """Refuse generations that the cluster never had, and times that it hasn't reached.

    A generation may be unknown if it is from before all that are known, and all that was read of it has
    expired: the cluster then has forgotten it.
    """
    begins = logs.timelines[table].begins_ms
    if foreign := [
        begin
        for begin, vnodes in sorted(stored.items())
        if begin not in begins
        and (not begins or begin > begins[0] or max(vnodes.values()) >= logs.kept_us(table))
    ]:
        raise ConfigurationError(
            f"the offsets of {table} are of a generation that this cluster doesn't know",
            expected=f"one of {', '.join(map(str, begins)) or 'no generation at all'}",
            found=", ".join(map(str, foreign)),
            remedy="check that source.conn_id names the cluster that the connector reads",
        )
    furthest_us = max(us for vnodes in stored.values() for us in vnodes.values())
    if furthest_us > logs.now_us:
        raise ConfigurationError(
            f"an offset of {table} lies in the future",
            expected=f"a window_start of up to {logs.now_us // 1000} ms since 1970, the slowest node's clock",
            found=str(furthest_us // 1000),
            remedy="check that source.conn_id names the cluster that the connector reads, and its clocks",
        )


def _entries(table: str, position: TablePosition, logs: LogState, width_ms: int) -> Iterator[Stored]:
    timeline = logs.timelines[table]
    generation: int | None = position.generation_ms
    if generation not in timeline.begins_ms:
        generation = timeline.at(position.read_to_us)
    if generation is None:
        raise ConfigurationError(
            f"the streams of {table} at its position aren't known", remedy="run a capture first"
        )
    kept_us = logs.kept_us(table)
    for begin, end in zip(timeline.begins_ms, timeline.begins_ms[1:], strict=False):
        if begin < generation and end * 1000 >= kept_us:
            # The connector asks for a window that begins after the generation's end.
            done = dict.fromkeys(timeline.groups(begin), end + 1)
            yield from _written(table, begin, _by_vnode(timeline.groups(begin), done), width_ms)
    ahead = position.ahead if generation == position.generation_ms else {}
    stands = {
        group: max(position.read_to_us, ahead.get(group, 0), generation * 1000) // 1000
        for group in timeline.groups(generation)
    }
    yield from _written(table, generation, _by_vnode(timeline.groups(generation), stands), width_ms)


def _by_vnode(groups: Groups, stands_ms: Mapping[str, int]) -> dict[int, int]:
    """Return where each vnode stands: where that of its groups does that is the furthest behind."""
    found: dict[int, int] = {}
    for group, streams in groups.items():
        vnode = vnode_index(streams[0])
        found[vnode] = min(found.get(vnode, stands_ms[group]), stands_ms[group])
    return found


def _written(table: str, generation_ms: int, vnodes: Mapping[int, int], width_ms: int) -> Iterator[Stored]:
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
        told = json.dumps({"partition": dict(partition), "offset": dict(offset)})
        raise ConfigurationError(
            "this is no offset of ScyllaDB's source connector",
            expected=f"a partition of {', '.join(_PARTITION)}, and an offset of window_start and window_end "
            "with UUIDs of version 1",
            found=f"{told[:300]} ({type(error).__name__}: {error})",
        ) from None


def _time(text: str) -> int:
    """Return the ticks of a time, 100 ns since 1582; only UUIDs of version 1 have any."""
    found = uuid.UUID(text)
    if found.int >> 76 & 0xF != _TIME_VERSION:
        raise ValueError(f"{text} is no UUID of version {_TIME_VERSION}")
    if found.time < EPOCH_TICKS:
        raise ValueError(f"{text} is of a time before 1970")
    return found.time


def _check_stream(text: str) -> None:
    if len(bytes.fromhex(text.removeprefix("0x"))) != STREAM_ID_BYTES:
        raise ValueError(f"{text} is no stream")
