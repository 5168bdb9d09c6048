"""The parts that tasks read: windows of stream groups, balanced by number of streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition
from airflow_cdc_provider.sources.scylla.windows import Window


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
