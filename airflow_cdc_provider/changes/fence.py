"""Fences: they invalidate all earlier contributions of a table at once.

A truncate, a drop and a replacing snapshot each start a new *generation* of a table. Such an event writes a
record to every feed that it affects: each Cassandra node logs its own record of one TRUNCATE. A record
contains the position of its feed, so the position of a contribution in its own feed decides its generation:
at or before the record's position, it belongs to an earlier one. Records are stored as changes of kind
``truncate``, ``drop`` or ``snapshot_end``, and in the mirror's commit properties after they expire from the
changes table.

Records of different feeds with times within :data:`EVENT_US` of each other belong to one event, the closest
first. A second record of the same feed belongs to another event, and within a feed the order of positions
decides, whatever its clock says. The events depend only on the set of records, not on their order of arrival.

The number of a generation is the time of its event in microseconds since 1970: that of its earliest record.
So a late record joins its event without raising its number, and an event that is found late between others
doesn't invalidate later contributions. The reasons: ``docs/design/fences.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Self

EVENT_US: Final = 60_000_000
"""Maximum time between the records of one event: Cassandra's timeout of a TRUNCATE is a minute
(``truncate_request_timeout``)."""

MEMORY_US: Final = 3_600_000_000
"""How long events older than the newest are kept: long enough to match their late records."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, order=True)
class FenceRecord:
    """One feed's record of an event.

    Args:
        origin: The feed; empty for all feeds.
        position: The feed's position; unique to this record.
        moment_us: The record's time, by the writer's clock.
    """

    origin: str
    position: bytes
    moment_us: int

    @classmethod
    def of(cls, change: Mapping[str, Any]) -> Self:
        """Build it from a change record; without a time of the source, the time of capture is used."""
        moment = change["committed_at"] or change["captured_at"]
        return cls(
            change["origin"], bytes(change["position"]), (moment - _EPOCH) // timedelta(microseconds=1)
        )


@dataclass(frozen=True, order=True)
class Fence:
    """A record and its event.

    Args:
        generation: The generation that starts with the event: its time in us.
        origin: The feed whose positions are compared; empty for all feeds.
        position: Contributions at or before it belong to an earlier generation.
        moment_us: The record's time.
    """

    generation: int
    origin: str
    position: bytes
    moment_us: int


def generation_at(fences: Iterable[Fence], origin: str, position: bytes) -> int:
    """Return the generation of a contribution at a position, 0 before every fence."""
    return max(
        (f.generation for f in fences if f.origin in ("", origin) and position > f.position),
        default=0,
    )


def newest_generation(fences: Iterable[Fence]) -> int:
    """Return the current generation, 0 without a fence."""
    return max((f.generation for f in fences), default=0)


def newest_event(fences: Iterable[Fence]) -> frozenset[Fence]:
    """Return the records of the newest event. While they don't change, the current generation doesn't either.

    Contributions before them are invalid, so records of older events have no effect.
    """
    found = tuple(fences)
    newest = newest_generation(found)
    return frozenset(f for f in found if f.generation == newest)


def add_fences(fences: Sequence[Fence], records: Iterable[FenceRecord]) -> tuple[Fence, ...]:
    """Add records; known records, and those of events older than :data:`MEMORY_US`, have no effect.

    Args:
        fences: The known fences.
        records: The records to add, which may be known.

    Returns:
        All fences, in the order of generations.
    """
    known = {(f.origin, f.position): FenceRecord(f.origin, f.position, f.moment_us) for f in fences}
    new = {(r.origin, r.position): r for r in sorted(records) if (r.origin, r.position) not in known}
    if not new:
        return tuple(fences)
    numbered: list[Fence] = []
    generation = 0
    for event in _events([*known.values(), *new.values()]):
        generation = max(generation + 1, event[0].time_us)
        numbered += [Fence(generation, *astuple(timed.record)) for timed in event]
    return tuple(sorted(f for f in numbered if f.generation >= generation - MEMORY_US))


@dataclass(frozen=True, order=True)
class _Timed:
    """A record with a time that increases with the positions of its feed."""

    time_us: int
    record: FenceRecord


def _events(records: Iterable[FenceRecord]) -> list[list[_Timed]]:
    """Group records by event, the closest first, and return the events in order.

    An event is an interval of time in which each feed has at most one record, so the order of events is the
    order of positions in every feed.
    """
    timed = sorted(_timed(records))
    events = [[one] for one in timed]
    of_record = list(range(len(timed)))
    gaps = sorted((b.time_us - a.time_us, n) for n, (a, b) in enumerate(pairwise(timed)))
    for _, n in gaps:
        left, right = events[of_record[n]], events[of_record[n + 1]]
        if right[-1].time_us - left[0].time_us > EVENT_US or not _differ(left, right):
            continue
        left += right
        for later in range(n + 1, n + 1 + len(right)):
            of_record[later] = of_record[n]
    return [events[number] for number in sorted(set(of_record))]


def _differ(left: Sequence[_Timed], right: Sequence[_Timed]) -> bool:
    """Return whether no feed has a record in both; a record of all feeds excludes any other."""
    origins = {one.record.origin for one in left}
    others = {one.record.origin for one in right}
    return "" not in origins | others and origins.isdisjoint(others)


def _timed(records: Iterable[FenceRecord]) -> Iterator[_Timed]:
    last: dict[str, int] = {}
    for record in sorted(records):
        last[record.origin] = max(record.moment_us, last.get(record.origin, 0) + 1)
        yield _Timed(last[record.origin], record)


def fences_to_json(fences: Sequence[Fence]) -> str:
    """Write fences as one line of JSON."""
    return json.dumps([[f.generation, f.origin, f.position.hex(), f.moment_us] for f in fences])


def fences_from_json(text: str) -> tuple[Fence, ...]:
    """Read the output of :func:`fences_to_json`."""
    return tuple(Fence(g, o, bytes.fromhex(p), m) for g, o, p, m in json.loads(text))
