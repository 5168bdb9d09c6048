"""Capture by several VStreams at once, each of its share of the shards, as if they were one.

Shards are dealt out round robin in the order of their names (:func:`.task_offsets.shares`). Each share has a
stream of its own, read by a thread of the driver. A plan joins what the streams have read, so offsets,
records and positions are those of one stream; only a transaction's VGTID tells the shards of its stream
alone, as with Debezium's tasks.

Shares are made anew from the shards of the offset at each plan, and so after a reshard. VTGate follows a
reshard only in a stream that has all shards which took part: those that the head shows to be one now are
dealt out together, and where it is seen too late (:class:`.failures.ParticipantsApart`) one stream reads all,
until the shards are others.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.exceptions import ReshardStopped
from airflow_cdc_provider.sources.base import Plan, ReadLimit
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers, added
from airflow_cdc_provider.sources.vitess.failures import ParticipantsApart
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, overlap
from airflow_cdc_provider.sources.vitess.stream import ChangeStream
from airflow_cdc_provider.sources.vitess.task_offsets import shares

log = logging.getLogger(__name__)

Share = tuple[str, ...]
"""Shards that one stream reads, ``keyspace/shard``."""


class ParallelStreams:
    """As many streams as the options say. They stay open between plans that follow each other.

    Args:
        make: Makes a stream by the source's options and what tells whether another one has failed: it
            stops then.
        options: The source's options.
    """

    def __init__(
        self, make: Callable[[VitessOptions, Callable[[], bool]], ChangeStream], options: VitessOptions
    ) -> None:
        self._make = make
        self._options = options
        self._streams: dict[Share, ChangeStream] = {}
        self._closed = StreamNumbers()
        self._together: frozenset[str] = frozenset()
        self._failing = threading.Event()
        self._stopped: tuple[Position, Position] | None = None

    @property
    def counts(self) -> StreamNumbers:
        """What all streams met so far."""
        total = added([self._closed, *(stream.counts for stream in self._streams.values())])
        advanced = self._options.advanced
        return replace(
            total,
            queue_bytes_limit=advanced.read_ahead_bytes,
            queue_events_limit=advanced.read_ahead_events,
        )

    def plan(self, start: Position, head: Position, limit: ReadLimit) -> Plan:
        """Read on from a position to the head or the limit, whichever comes first.

        Raises:
            PositionLost: The server no longer has the transactions after ``start``.
            ReshardStopped: The stream has ended at a reshard, as the options want.
            TransientError: The server can't be reached; nothing is changed.
        """
        if self._stopped is not None and self._stopped[0] == start:
            raise _stopped(*self._stopped)
        try:
            return self._plan(self._dealt(start, head), start, head, limit)
        except ParticipantsApart as error:
            if self._together == frozenset(start.shards) or len(start.shards) == 1:
                raise
            log.warning("one stream reads all shards until their reshard is over: %s", error)
            self._together = frozenset(start.shards)
            return self._plan(self._dealt(start, head), start, head, limit)

    def close(self) -> None:
        """End all streams."""
        self._keep(())

    def _dealt(self, start: Position, head: Position) -> list[Share]:
        if self._together == frozenset(start.shards):
            return [tuple(sorted(start.shards))]
        groups = {group[0]: group for group in joined_shards(start.shards, head.shards)}
        dealt = shares(groups, self._options.streams)
        return [tuple(sorted(shard for first in share for shard in groups[first])) for share in dealt]

    def _plan(self, dealt: Sequence[Share], start: Position, head: Position, limit: ReadLimit) -> Plan:
        self._keep(dealt)
        targets = {share: head.of_shards(_turned_into(share, head.shards)) for share in dealt}
        behind = [share for share in dealt if not start.of_shards(share).has(targets[share])]
        count = max(len(behind), 1)
        part = replace(limit, bytes=max(limit.bytes // count, 1), changes=max(limit.changes // count, 1))
        for share in behind:
            if share not in self._streams:
                self._streams[share] = self._make(self._options_of_one(len(dealt)), self._failing.is_set)

        def read(share: Share) -> Plan:
            return self._streams[share].plan(start.of_shards(share), targets[share], part)

        try:
            plans = [read(behind[0])] if len(behind) == 1 else self._at_once(read, behind)
        except BaseException:
            self._keep(())  # streams are ahead of what was taken
            raise
        idle = start.of_shards(shard for share in dealt if share not in behind for shard in share)
        ends = {s: Position.from_offset(plan.end) for s, plan in zip(behind, plans, strict=True)}
        end = _joined(idle, *ends.values())
        resharded = {s: place for s in behind if (place := self._streams[s].resharded) is not None}
        if resharded:
            self._stopped = end, _joined(idle, *{**ends, **resharded}.values())
        return Plan(
            end.to_offset(),
            [part for plan in plans for part in plan.partitions],
            all(plan.at_head for plan in plans),
            [record for plan in plans for record in plan.records],
        )

    def _at_once(self, read: Callable[[Share], Plan], behind: Sequence[Share]) -> list[Plan]:
        """Read some shares at once; the first that fails ends the others."""
        if not behind:
            return []
        with ThreadPoolExecutor(len(behind), thread_name_prefix="cdc-share") as threads:
            running = [threads.submit(read, share) for share in behind]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            if any(one.exception() for one in done):
                self._failing.set()
            wait(running)
        self._failing.clear()
        for error in filter(None, [one.exception() for one in done]):
            raise error
        return [one.result() for one in running]

    def _options_of_one(self, streams: int) -> VitessOptions:
        """Return the options of one of several streams: what may wait is shared."""
        advanced = self._options.advanced
        limits: dict[str, Any] = {
            name: max(most // streams, 1) if (most := getattr(advanced, name)) else 0
            for name in ("read_ahead_bytes", "read_ahead_events")
        }
        return replace(self._options, advanced=replace(advanced, **limits))

    def _keep(self, dealt: Collection[Share]) -> None:
        """End streams but those of some shares, and keep what they counted."""
        for share in [share for share in self._streams if share not in dealt]:
            stream = self._streams.pop(share)
            stream.close()
            self._closed = added([self._closed, replace(stream.counts, position={})])


def joined_shards(shards: Collection[str], head: Collection[str]) -> list[Share]:
    """Put shards together that a reshard has made one of: a shard of the head has keys of each of them."""
    groups: list[set[str]] = []
    for shard in sorted(shards):
        near = {shard}
        for new in head:
            if overlap(new, shard):
                near |= {other for other in shards if overlap(new, other)}
        apart = [group for group in groups if not group & near]
        groups = [*apart, near.union(*(group for group in groups if group & near))]
    return sorted(tuple(sorted(group)) for group in groups)


def _joined(*parts: Position) -> Position:
    return Position({shard: place for part in parts for shard, place in part.shards.items()})


def _turned_into(share: Share, head: Collection[str]) -> list[str]:
    """Return the shards of the head that have keys of some shards."""
    return [shard for shard in head if any(overlap(shard, own) for own in share)]


def _stopped(before: Position, after: Position) -> ReshardStopped:
    old = sorted(set(before.shards) - set(after.shards))
    new = sorted(set(after.shards) - set(before.shards))
    return ReshardStopped(
        f"{', '.join(old)} turned into {', '.join(new)}: there the stream ends (stream.stop_on_reshard)",
        expected="a new start, such as the offset behind the reshard",
        found=json.dumps(after.to_offset(), sort_keys=True),
        remedy="store it or another one with 'airflow cdc offsets set --connector FILE --offset JSON'",
    )
