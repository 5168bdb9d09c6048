"""Fences: what ends the life of all earlier contributions of a table at once.

A truncate, a drop and a replacing snapshot raise the table's generation. Which contributions are older
follows from their place in their own origin: at or before ``position`` means an earlier generation. Fences
travel as change records of kind ``truncate``, ``drop`` or ``snapshot_end`` and stay in the mirror's commit
properties after the changes table has let them go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Fence:
    """One fence of one table.

    Args:
        generation: The generation that begins after it, counted from 1.
        origin: The feed whose positions it compares with; empty for all feeds.
        position: Contributions at or before it belong to an earlier generation.
    """

    generation: int
    origin: str
    position: bytes


def generation_at(fences: Iterable[Fence], origin: str, position: bytes) -> int:
    """Return the generation of a contribution at a place, 0 before every fence."""
    return max(
        (f.generation for f in fences if f.origin in ("", origin) and position > f.position),
        default=0,
    )


def add_fence(fences: Sequence[Fence], origin: str, position: bytes) -> tuple[Fence, ...]:
    """Add a fence unless it is known, keeping generations dense and in the order of positions.

    A fence seen twice (a replay, a copy) changes nothing.
    """
    places = {(f.origin, f.position) for f in fences} | {(origin, position)}
    ordered = sorted(places, key=lambda place: (place[1], place[0]))
    return tuple(Fence(number, o, p) for number, (o, p) in enumerate(ordered, start=1))


def fences_to_json(fences: Sequence[Fence]) -> str:
    """Write fences as one line of JSON."""
    return json.dumps([[f.generation, f.origin, f.position.hex()] for f in fences])


def fences_from_json(text: str) -> tuple[Fence, ...]:
    """Read what :func:`fences_to_json` wrote."""
    return tuple(Fence(g, o, bytes.fromhex(p)) for g, o, p in json.loads(text))
