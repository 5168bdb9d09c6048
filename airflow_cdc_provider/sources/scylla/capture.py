"""Plans a capture: the next time window of a table's log, and the parts that tasks read. Pure functions.

A window is a time range of one stream set, from ``begin`` (inclusive) to ``end`` (exclusive), in which all
its streams are read. It never spans a change of streams, so one set is read to its end before the next one.
It ends at the latest at the head, which is the confidence window behind the clocks.

The width adapts to the content of previous windows (:class:`Paces`): it doubles while a table has no changes,
and halves under load. So an idle day takes a dozen windows, not thousands. All groups of a table share its
width: keys are spread over them by hash, so their load is similar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class Window:
    """A time range of one stream set.

    Args:
        generation_ms: Start of the stream set.
        begin_us: Start of the window, inclusive.
        end_us: End of the window, exclusive.
    """

    generation_ms: int
    begin_us: int
    end_us: int


@dataclass(frozen=True)
class Pace:
    """The width of the next window of a table.

    Args:
        width_us: The current width.
        narrowest_us: The minimum width.
        widest_us: The maximum width.
    """

    width_us: int
    narrowest_us: int
    widest_us: int

    @classmethod
    def between(cls, width_us: int, widest_us: int) -> Pace:
        """Return the pace that starts with a width; it is fixed if no greater width is allowed."""
        if width_us >= widest_us:
            return cls(width_us, width_us, width_us)
        return cls(width_us, min(width_us, _SECOND_US), widest_us)

    def wider(self, read_us: int) -> Pace:
        """Return the pace after a window whose width may be doubled.

        The last window before the head is narrower than the pace, and doesn't widen it.
        """
        if read_us < self.width_us:
            return self
        return replace(self, width_us=min(self.widest_us, 2 * self.width_us))

    def narrower(self, read_us: int) -> Pace:
        """Return the pace after a window that was too wide, halved."""
        return replace(self, width_us=max(self.narrowest_us, min(self.width_us, read_us) // 2))


@dataclass(frozen=True)
class Paces:
    """The widths of the next windows of all tables.

    Each table has its own width, but a batch consists of windows of all tables, which share its size limit.
    If a batch exceeds the limit, the largest windows are halved until their sum would have fitted. If a batch
    is below the limit, the smallest windows are doubled first. So one busy table doesn't slow down the
    others.

    Args:
        first: The pace of a table that wasn't read yet.
        tables: The paces of the other tables.
    """

    first: Pace
    tables: Mapping[str, Pace] = field(default_factory=dict)

    def of(self, table: str) -> Pace:
        """Return the pace of a table."""
        return self.tables.get(table, self.first)

    def after(
        self, read_us: Mapping[str, int], load: Mapping[str, float], *, overloaded: bool = False
    ) -> Paces:
        """Return the paces after a batch.

        Args:
            read_us: The widths of its windows, by table.
            load: The size of each window, as a fraction of the batch limit.
            overloaded: Whether the cluster rejected requests: then no window is widened.
        """
        changed = {}
        by_share = sorted(read_us, key=lambda table: (load.get(table, 0.0), table))
        total = sum(load.get(table, 0.0) for table in read_us)
        for table in reversed(by_share):
            if total <= 1:
                break
            changed[table] = self.of(table).narrower(read_us[table])
            total -= load.get(table, 0.0) / 2
        for table in by_share:
            total += load.get(table, 0.0)
            if overloaded or total > 1 or table in changed:
                break
            changed[table] = self.of(table).wider(read_us[table])
        return replace(self, tables={**self.tables, **changed})


def next_window(position: TablePosition, timeline: Timeline, head_us: int, width_us: int) -> Window | None:
    """Return the next window of a table, None if it is read up to the head.

    A stream set that is announced late, after reading has passed its start, is read from its start: none of
    its streams were read before, and changes read so far aren't in them.

    Args:
        position: The table's position.
        timeline: Its stream sets.
        head_us: Where to stop.
        width_us: Maximum width of the window.
    """
    begin_us = position.read_to_us
    generation = position.generation_ms
    if generation not in timeline.begins_ms:
        found = timeline.at(begin_us)
        if found is None:
            if not timeline.begins_ms:
                return None
            found = timeline.begins_ms[0]
        generation = found
    following = timeline.after(generation)
    if following is not None and begin_us >= following * 1000:
        generation, begin_us = following, following * 1000
        following = timeline.after(generation)
    begin_us = max(begin_us, generation * 1000)
    end_us = min(head_us, begin_us + width_us)
    if following is not None:
        end_us = min(end_us, following * 1000)
    return Window(generation, begin_us, end_us) if end_us > begin_us else None


class GroupRead(NamedTuple):
    """A window of one group of streams.

    Args:
        table: ``keyspace.table`` of the base.
        group: The group's name.
        generation_ms: Its stream set.
        begin_us: Start of the window, inclusive.
        end_us: End of the window, exclusive.
        streams: The streams' ids.
    """

    table: str
    group: str
    generation_ms: int
    begin_us: int
    end_us: int
    streams: tuple[bytes, ...]


@dataclass(frozen=True)
class LogPart:
    """The part that one task reads.

    Args:
        reads: Windows of groups.
        requests: Maximum number of requests in flight.
    """

    reads: tuple[GroupRead, ...]
    requests: int


def group_reads(
    table: str, position: TablePosition, window: Window, timeline: Timeline
) -> Iterator[GroupRead]:
    """Yield the read of each group; groups with a position beyond the window are skipped.

    Args:
        table: The table.
        position: Its position.
        window: The next window.
        timeline: Its stream sets.
    """
    same = window.generation_ms == position.generation_ms
    for group, streams in timeline.groups(window.generation_ms).items():
        begin_us = max(window.begin_us, position.ahead.get(group, 0)) if same else window.begin_us
        if begin_us < window.end_us:
            yield GroupRead(table, group, window.generation_ms, begin_us, window.end_us, streams)


def divide(reads: Iterable[GroupRead], tasks: int, requests: int) -> list[LogPart]:
    """Divide groups among tasks so that each has about the same number of streams.

    Args:
        reads: The groups.
        tasks: Maximum number of tasks.
        requests: Maximum number of requests in flight of all tasks together, at least one; also limits the
            number of tasks.
    """
    ordered = sorted(reads, key=lambda read: (-len(read.streams), read.table, read.group))
    parts: list[list[GroupRead]] = [[] for _ in range(max(1, min(tasks, requests, len(ordered))))]
    loads = [0] * len(parts)
    for read in ordered:
        least = loads.index(min(loads))
        parts[least].append(read)
        loads[least] += len(read.streams)
    share = requests // len(parts)
    return [LogPart(tuple(sorted(part)), share) for part in parts if part]
