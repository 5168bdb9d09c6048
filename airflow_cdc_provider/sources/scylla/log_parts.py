"""What tasks read: windows of groups of streams, divided so that each task has about as many streams."""

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
        begin_us: The first microsecond.
        end_us: The first one after it.
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
    """What one task reads.

    Args:
        reads: Windows of groups.
        requests: How many requests it may have in flight.
    """

    reads: tuple[GroupRead, ...]
    requests: int


def group_reads(
    table: str, position: TablePosition, window: Window, timeline: Timeline
) -> Iterator[GroupRead]:
    """Yield what is to be read of each group; those that stand beyond the window are left out.

    Args:
        table: The table.
        position: Where it stands.
        window: What is read next of it.
        timeline: Its stream sets.
    """
    same = window.generation_ms == position.generation_ms
    for group, streams in timeline.groups(window.generation_ms).items():
        begin_us = max(window.begin_us, position.ahead.get(group, 0)) if same else window.begin_us
        if begin_us < window.end_us:
            yield GroupRead(table, group, window.generation_ms, begin_us, window.end_us, streams)


def divide(reads: Iterable[GroupRead], tasks: int, requests: int) -> list[LogPart]:
    """Divide groups among tasks so that each has about as many streams.

    Args:
        reads: The groups.
        tasks: How many tasks there may be.
        requests: How many requests may be in flight, all together, at least one; there are no more tasks than
            that.
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
