"""The offset of a capture: how far each node's log was read.

Per origin (host id), JSON::

    {"v": 1, "floor": 1795247392874, "done": [[1795247392875, 1795247392879]], "open": {"1795247392880":
    307939}}

``floor``   segments with this id or a lower one were read, or are excluded
``done``    ranges of higher ids that were read completely; ids of one node are consecutive, so a new range
            starts at each restart of the node, and after segments without changes
``open``    segments that were read up to a logical position and may have more; takes precedence over both
``truncated``  by table, the time (ms) of the last captured truncation that was found over CQL; absent without
            one

A segment in none of them was not read. So segments may arrive in any order (Cassandra 3 moves them to cdc_raw
when they are flushed), a segment without an index is read once it has one, and a segment that was read and
deleted is not read again when a crashed node restores it. When there are more than :data:`MOST_RANGES`
ranges, the lowest whose segments are gone are dropped: such a segment is read again if it arrives again,
which no mirror shows. The floor is never raised, since a later segment of the node may have a lower id than
one that somebody put there.

An operator sets an offset with ``floor`` and ``open`` only: ``open`` has the position where an entry ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import Offset

FORMAT: Final = 1
MOST_RANGES: Final = 256
MOST_KEPT_RANGES: Final = 4096
"""The same if segments of all of them are present, with those that grow: no further one is read until some
are removed."""
WHOLE: Final = (1 << 63) - 1
"""A segment's position when it was, or may be, read completely."""

_EXAMPLE: Final = '{"<host id>": {"v": 1, "floor": <segment id>, "open": {"<segment id>": <position>}}}'


@dataclass(frozen=True)
class NodeOffset:
    """How far one node's log was read.

    Args:
        floor: See the module's docstring.
        done: Ranges, ascending, both ends inclusive.
        open: Position by segment.
        truncated: Milliseconds by table.
    """

    floor: int = 0
    done: tuple[tuple[int, int], ...] = ()
    open: Mapping[int, int] = field(default_factory=dict)
    truncated: Mapping[str, int] = field(default_factory=dict)

    def position(self, segment: int) -> int:
        """Return the position up to which a segment was read: :data:`WHOLE`, or logical, 0 for not at all."""
        if segment in self.open:
            return self.open[segment]
        before = bisect_right(self.done, (segment, WHOLE))
        if segment <= self.floor or (before and segment <= self.done[before - 1][1]):
            return WHOLE
        return 0

    def advance(self, segment: int, position: int) -> NodeOffset:
        """Return the offset with one segment read up to a position."""
        still_open = {number: at for number, at in self.open.items() if number != segment}
        if position != WHOLE:
            return replace(self, open={**still_open, segment: position})
        if segment <= self.floor or self.position(segment) == WHOLE:
            return replace(self, open=still_open)
        at = bisect_left(self.done, (segment, segment))
        near = _merge([*self.done[max(at - 1, 0) : at + 1], (segment, segment)])
        done = (*self.done[: max(at - 1, 0)], *near, *self.done[at + 1 :])
        return replace(self, done=done, open=still_open)

    def without_removed(self, present: Sequence[int]) -> NodeOffset:
        """Return the offset without the lowest ranges whose segments are gone, if there are too many.

        Args:
            present: The segments that may be listed again, ascending.
        """
        excess = len(self.done) - MOST_RANGES
        kept = []
        for first, last in self.done:
            if excess > 0 and bisect_left(present, first) == bisect_right(present, last):
                excess -= 1
            else:
                kept.append((first, last))
        return replace(self, done=tuple(kept))

    def to_json(self) -> dict[str, Any]:
        """Return it as part of an :data:`~airflow_cdc_provider.sources.contract.Offset`."""
        truncated = {"truncated": dict(sorted(self.truncated.items()))} if self.truncated else {}
        return {
            "v": FORMAT,
            "floor": self.floor,
            "done": [list(r) for r in self.done],
            "open": {str(segment): at for segment, at in sorted(self.open.items())},
            **truncated,
        }

    @classmethod
    def from_json(cls, value: object) -> NodeOffset:
        """Parse the JSON form.

        Raises:
            ConfigurationError: The value is not a valid offset of a node.
        """
        if not isinstance(value, Mapping) or value.get("v") != FORMAT:
            raise _invalid(value)
        unknown = set(value) - {"v", "floor", "done", "open", "truncated"}
        floor, done, still_open = value.get("floor", 0), value.get("done", []), value.get("open", {})
        truncated = value.get("truncated", {})
        if (
            unknown
            or not _is_count(floor)
            or not isinstance(done, (list, tuple))
            or not isinstance(still_open, Mapping)
            or not all(_is_range(r) for r in done)
            or not all(str(s).isdigit() and _is_count(at) for s, at in still_open.items())
            or not isinstance(truncated, Mapping)
            or not all(isinstance(table, str) and _is_count(at) for table, at in truncated.items())
        ):
            raise _invalid(value)
        return cls(
            floor,
            tuple(_merge((r[0], r[1]) for r in done)),
            {int(s): at for s, at in still_open.items()},
            dict(truncated),
        )


def read_offset(offset: Offset | None) -> dict[str, NodeOffset]:
    """Parse an offset of all nodes.

    Raises:
        ConfigurationError: The offset is not a valid Cassandra offset.
    """
    if offset is not None and not isinstance(offset, Mapping):
        raise _invalid(offset)
    return {origin: NodeOffset.from_json(value) for origin, value in (offset or {}).items()}


def write_offset(nodes: Mapping[str, NodeOffset]) -> Offset:
    """Build an offset of all nodes."""
    return {origin: node.to_json() for origin, node in sorted(nodes.items())}


def whole_segments(segments: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of segments that were, or may be, read completely."""
    return tuple(_merge((segment, segment) for segment in segments))


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_range(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_count(n) for n in value)


def _invalid(value: object) -> ConfigurationError:
    return ConfigurationError("not a valid Cassandra offset", expected=_EXAMPLE, found=repr(value)[:200])


def read_positions(offset: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Return how far each node's log was read: its newest segment, and the position in it.

    Args:
        offset: The source's offset.

    Returns:
        By host id: the segment's number, and the logical position; None if it was read to its end.
    """
    found = {}
    for host, node in read_offset(offset).items():
        newest = max(node.floor, *node.open, *(last for _, last in node.done), 0)
        if newest:
            found[host] = newest, node.open.get(newest)
    return found
