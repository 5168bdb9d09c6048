"""Captures with several parallel VStreams, each reading some of the shards, as if they were one stream.

Shards are assigned to streams round robin by name (:func:`.task_offsets.assign_shards`). A thread of the
driver reads each stream. A plan merges the output of all streams, so offsets, records and positions are the
same as those of one stream. Only a transaction's VGTID is limited to the shards of its stream, as with
Debezium's tasks.

Each plan assigns the shards of its offset again, so assignments change after a reshard. VTGate can follow a
reshard only in a stream that has all participating shards. Shards that the head shows as merged are assigned
to the same stream. If the reshard is detected too late (:class:`.failures.PartialReshard`), one stream
reads all shards until the set of shards changes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.exceptions import ReshardStopped
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.contract import Plan, ReadLimit
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics, sum_stream_metrics
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.failures import PartialReshard
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, overlap
from airflow_cdc_provider.sources.vitess.task_offsets import assign_shards

log = logger(__name__)

Assignment = tuple[str, ...]
"""The shards that one stream reads, ``keyspace/shard``."""


class ParallelStreams:
    """The number of streams set by the options. They stay open between consecutive plans.

    Args:
        create: Creates a stream from the source's options and a callable that returns whether another stream
            has failed, so that this one must stop.
        options: The source's options.
    """

    def __init__(
        self, create: Callable[[VitessOptions, Callable[[], bool]], ChangeStream], options: VitessOptions
    ) -> None:
        self._create = create
        self._options = options
        self._streams: dict[Assignment, ChangeStream] = {}
        self._closed = StreamMetrics()
        self._read_by_one: frozenset[str] = frozenset()
        self._failing = threading.Event()
        self._stopped_at: tuple[Position, Position] | None = None

    @property
    def counts(self) -> StreamMetrics:
        """Statistics of all streams so far."""
        total = sum_stream_metrics([self._closed, *(stream.counts for stream in self._streams.values())])
        advanced = self._options.advanced
        return replace(
            total, queue_bytes_limit=advanced.read_ahead_bytes, queue_events_limit=advanced.read_ahead_events
        )

    def plan(self, start: Position, head: Position, limit: ReadLimit) -> Plan:
        """Read from a position to the head or the limit, whichever comes first.

        Args:
            start: Position of the last plan's end, or another one.
            head: Position to read to.
            limit: Size at which the plan ends.

        Returns:
            The plan, with the slices and schema records of all streams.

        Raises:
            PositionLost: The server no longer has the transactions after ``start``.
            ReshardStopped: The stream ended at a reshard (option ``stop_on_reshard``).
            TransientError: The server can't be reached; nothing is changed.
        """
        if self._stopped_at is not None and self._stopped_at[0] == start:
            raise _reshard_error(*self._stopped_at)
        try:
            return self._plan(self._assign(start, head), start, head, limit)
        except PartialReshard as error:
            if self._read_by_one == frozenset(start.shards) or len(start.shards) == 1:
                raise
            log.warning("Reading all shards with one stream until the reshard is complete: %s", error)
            self._read_by_one = frozenset(start.shards)
            return self._plan(self._assign(start, head), start, head, limit)

    def close(self) -> None:
        """Close all streams."""
        self._close_except(())

    def _assign(self, start: Position, head: Position) -> list[Assignment]:
        if self._read_by_one == frozenset(start.shards):
            return [tuple(sorted(start.shards))]
        groups = {group[0]: group for group in merged_groups(start.shards, head.shards)}
        assignments = assign_shards(groups, self._options.streams)
        return [
            tuple(sorted(shard for first in assignment for shard in groups[first]))
            for assignment in assignments
        ]

    def _plan(
        self, assignments: Sequence[Assignment], start: Position, head: Position, limit: ReadLimit
    ) -> Plan:
        self._close_except(assignments)
        targets = {
            assignment: head.of_shards(_successors(assignment, head.shards)) for assignment in assignments
        }
        behind = [
            assignment
            for assignment in assignments
            if not start.of_shards(assignment).has(targets[assignment])
        ]
        count = max(len(behind), 1)
        part = replace(limit, bytes=max(limit.bytes // count, 1), changes=max(limit.changes // count, 1))
        for assignment in behind:
            if assignment not in self._streams:
                self._streams[assignment] = self._create(
                    self._stream_options(len(assignments)), self._failing.is_set
                )

        def read(assignment: Assignment) -> Plan:
            return self._streams[assignment].plan(start.of_shards(assignment), targets[assignment], part)

        try:
            plans = [read(behind[0])] if len(behind) == 1 else self._read_in_parallel(read, behind)
        except BaseException:
            self._close_except(())  # the streams are ahead of the position
            raise
        idle = start.of_shards(
            shard for assignment in assignments if assignment not in behind for shard in assignment
        )
        ends = {s: Position.from_offset(plan.end) for s, plan in zip(behind, plans, strict=True)}
        end = _merged(idle, *ends.values())
        resharded = {s: after for s in behind if (after := self._streams[s].resharded) is not None}
        if resharded:
            self._stopped_at = end, _merged(idle, *{**ends, **resharded}.values())
        return Plan(
            end.to_offset(),
            [part for plan in plans for part in plan.partitions],
            all(plan.at_head for plan in plans),
            [record for plan in plans for record in plan.records],
        )

    def _read_in_parallel(
        self, read: Callable[[Assignment], Plan], behind: Sequence[Assignment]
    ) -> list[Plan]:
        """Read several streams in parallel; the first failure stops the others."""
        if not behind:
            return []
        with ThreadPoolExecutor(len(behind), thread_name_prefix="cdc-assignment") as threads:
            running = [threads.submit(read, assignment) for assignment in behind]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            if any(one.exception() for one in done):
                self._failing.set()
            wait(running)
        self._failing.clear()
        for error in filter(None, [one.exception() for one in done]):
            raise error
        return [one.result() for one in running]

    def _stream_options(self, streams: int) -> VitessOptions:
        """Return the options of one of several streams, which share the prefetch limits."""
        advanced = self._options.advanced
        limits: dict[str, Any] = {
            name: max(limit // streams, 1) if (limit := getattr(advanced, name)) else 0
            for name in ("read_ahead_bytes", "read_ahead_events")
        }
        return replace(self._options, advanced=replace(advanced, **limits))

    def _close_except(self, assignments: Collection[Assignment]) -> None:
        """Close all streams except those of some assignments, and keep their statistics."""
        for assignment in [assignment for assignment in self._streams if assignment not in assignments]:
            stream = self._streams.pop(assignment)
            stream.close()
            self._closed = sum_stream_metrics([self._closed, replace(stream.counts, position={})])


def merged_groups(shards: Collection[str], head: Collection[str]) -> list[Assignment]:
    """Group shards that a reshard merged: a shard of the head overlaps all shards of its group."""
    groups: list[set[str]] = []
    for shard in sorted(shards):
        related = {shard}
        for new in head:
            if overlap(new, shard):
                related |= {other for other in shards if overlap(new, other)}
        unrelated = [group for group in groups if not group & related]
        groups = [*unrelated, related.union(*(group for group in groups if group & related))]
    return sorted(tuple(sorted(group)) for group in groups)


def _merged(*parts: Position) -> Position:
    return Position({shard: known for part in parts for shard, known in part.shards.items()})


def _successors(assignment: Assignment, head: Collection[str]) -> list[str]:
    """Return the shards of the head that overlap some shards."""
    return [shard for shard in head if any(overlap(shard, own) for own in assignment)]


def _reshard_error(before: Position, after: Position) -> ReshardStopped:
    old = sorted(set(before.shards) - set(after.shards))
    new = sorted(set(after.shards) - set(before.shards))
    return ReshardStopped(
        f"{', '.join(old)} turned into {', '.join(new)}: the stream stopped at the reshard "
        "(stream.stop_on_reshard)",
        expected="a new start offset, such as the offset after the reshard",
        found=json.dumps(after.to_offset(), sort_keys=True),
        remedy="store this or another offset with 'airflow cdc offsets set --connector FILE --offset JSON'",
    )
