"""Fences: what ends the life of all earlier contributions of a table at once.

A truncate, a drop and a replacing snapshot each begin a new *generation* of a table. Such an event leaves a
record in every feed that it concerns: each Cassandra node writes its own of one TRUNCATE. A record says where
its feed stood, so which contributions are older follows from their place in their own feed: at or before the
record's position means an earlier generation. Records travel as changes of kind ``truncate``, ``drop`` or
``snapshot_end`` and stay in the mirror's commit properties after the changes table has let them go.

Records of different feeds whose times lie within :data:`EVENT_US` of each other are of one event, the closest
first. A second record of the same feed is of another event, and in one feed the order of positions rules,
whatever its clock says. Which events there are depends on the set of records alone, not on the order in which
they arrive.

The number of a generation is the time of its event, in microseconds since 1970: the earliest of its records.
So a late record joins its event without raising its number, and an event that is found late between others
takes nothing from what came after it. The reasons: ``docs/design/fences.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Self

EVENT_US: Final = 60_000_000
"""How far apart the records of one event may be: Cassandra gives a TRUNCATE a minute
(``truncate_request_timeout``)."""

MEMORY_US: Final = 3_600_000_000
"""How long before the newest event older ones are remembered: long enough to know their late records."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, order=True)
class FenceRecord:
    """What one feed tells of an event.

    Args:
        origin: The feed; empty for all feeds.
        position: Where the feed stood; unique to this record.
        moment_us: The record's time, by the clock of who wrote it.
    """

    origin: str
    position: bytes
    moment_us: int

    @classmethod
    def of(cls, change: Mapping[str, Any]) -> Self:
        """Take it from a change record; where the source tells no time, that of its capture stands in."""
        moment = change["committed_at"] or change["captured_at"]
        return cls(
            change["origin"], bytes(change["position"]), (moment - _EPOCH) // timedelta(microseconds=1)
        )


@dataclass(frozen=True, order=True)
class Fence:
    """A record and the event that it is of.

    Args:
        generation: The generation that begins with the event: its time in us.
        origin: The feed whose positions it compares with; empty for all feeds.
        position: Contributions at or before it belong to an earlier generation.
        moment_us: The record's own time.
    """

    generation: int
    origin: str
    position: bytes
    moment_us: int


def generation_at(fences: Iterable[Fence], origin: str, position: bytes) -> int:
    """Return the generation of a contribution at a place, 0 before every fence."""
    return max(
        (f.generation for f in fences if f.origin in ("", origin) and position > f.position),
        default=0,
    )


def newest_generation(fences: Iterable[Fence]) -> int:
    """Return the generation that counts, 0 without a fence."""
    return max((f.generation for f in fences), default=0)


def newest_event(fences: Iterable[Fence]) -> frozenset[Fence]:
    """Return the records of the newest event. While they stay the same, so does every generation that counts.

    What lies before them has lost its say, so records of older events change nothing.
    """
    found = tuple(fences)
    newest = newest_generation(found)
    return frozenset(f for f in found if f.generation == newest)


def add_fences(fences: Sequence[Fence], records: Iterable[FenceRecord]) -> tuple[Fence, ...]:
    """Add records; those that are known, and those of events long past, change nothing.

    Args:
        fences: What is known.
        records: What was seen, perhaps again.

    Returns:
        All that is known now, in the order of generations.
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
    """A record with a time that grows with the positions of its feed."""

    time_us: int
    record: FenceRecord


def _events(records: Iterable[FenceRecord]) -> list[list[_Timed]]:
    """Put records together that are of one event, the closest first; return the events in their order.

    An event is a stretch of time in which each feed has one record at most, so the order of events is the
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
    """Tell whether no feed has a record in both; one of all feeds leaves no room for others."""
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
    """Read what :func:`fences_to_json` wrote."""
    return tuple(Fence(g, o, bytes.fromhex(p), m) for g, o, p, m in json.loads(text))
