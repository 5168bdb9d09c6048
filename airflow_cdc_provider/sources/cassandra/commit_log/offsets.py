"""How far each node's log was read: the offset's form, and its arithmetic.

Per origin (host id), JSON::

    {"v": 1, "floor": 1795247392874, "done": [[1795247392875, 1795247392879]], "open": {"1795247392880":
    307939}}

``floor``   every segment with this id or a lower one was read, or isn't wanted
``done``    ranges of ids above it that were read to their end; ids on one node follow each other, so a new
            range begins with each start of the node, and after each stretch of segments without changes
``open``    segments that were read up to a logical position and may hold more; wins over the other two
``truncated``  by table, the time (ms) of the last truncation that was captured as the node tells it over CQL;
            absent without one

A segment that is in none of them was not read. So segments may arrive in any order (Cassandra 3 hands them
over when they are flushed), a segment without an index is read whenever it gets one, and a segment that was
read and deleted is not read again when a crashed node brings it back. When there are more than
:data:`MOST_RANGES` ranges, the lowest becomes part of the floor: a segment that comes later than so many
others is taken for read. So a landing area must not get segments that are that old.

A person sets an offset with ``floor`` and ``open`` alone: ``open`` names the position where an entry ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Offset

FORMAT: Final = 1
MOST_RANGES: Final = 256
WHOLE: Final = (1 << 63) - 1
"""A segment's position when it was, or may be, read to its end."""

_EXAMPLE: Final = '{"<host id>": {"v": 1, "floor": <segment id>, "open": {"<segment id>": <position>}}}'


@dataclass(frozen=True)
class NodeOffset:
    """How far one node's log was read.

    Args:
        floor: See the module's docstring.
        done: Ranges, ascending, both ends belonging to them.
        open: Position by segment.
        truncated: Milliseconds by table.
    """

    floor: int = 0
    done: tuple[tuple[int, int], ...] = ()
    open: Mapping[int, int] = field(default_factory=dict)
    truncated: Mapping[str, int] = field(default_factory=dict)

    def position(self, segment: int) -> int:
        """Return up to where a segment was read: :data:`WHOLE`, or a logical position, 0 for not at all."""
        if segment in self.open:
            return self.open[segment]
        if segment <= self.floor or any(first <= segment <= last for first, last in self.done):
            return WHOLE
        return 0

    def advance(self, segment: int, position: int) -> NodeOffset:
        """Return the offset with one segment read up to a position."""
        still_open = {number: at for number, at in self.open.items() if number != segment}
        if position != WHOLE:
            return replace(self, open={**still_open, segment: position})
        if segment <= self.floor or self.position(segment) == WHOLE:
            return replace(self, open=still_open)
        done = _merge([*self.done, (segment, segment)])
        floor = self.floor
        while len(done) > MOST_RANGES:
            floor = done.pop(0)[1]
        return replace(self, floor=floor, done=tuple(done), open=still_open)

    def to_json(self) -> dict[str, Any]:
        """Write it as part of an :data:`~airflow_cdc_provider.sources.base.Offset`."""
        told = {"truncated": dict(sorted(self.truncated.items()))} if self.truncated else {}
        return {
            "v": FORMAT,
            "floor": self.floor,
            "done": [list(r) for r in self.done],
            "open": {str(segment): at for segment, at in sorted(self.open.items())},
            **told,
        }

    @classmethod
    def from_json(cls, value: object) -> NodeOffset:
        """Read what :meth:`to_json` wrote, or a person.

        Raises:
            ConfigurationError: It has another form.
        """
        if not isinstance(value, Mapping) or value.get("v") != FORMAT:
            raise _wrong(value)
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
            raise _wrong(value)
        return cls(
            floor,
            tuple(_merge((r[0], r[1]) for r in done)),
            {int(s): at for s, at in still_open.items()},
            dict(truncated),
        )


def read_offset(offset: Offset | None) -> dict[str, NodeOffset]:
    """Read an offset of all nodes.

    Raises:
        ConfigurationError: It has another form.
    """
    if offset is not None and not isinstance(offset, Mapping):
        raise _wrong(offset)
    return {origin: NodeOffset.from_json(value) for origin, value in (offset or {}).items()}


def write_offset(nodes: Mapping[str, NodeOffset]) -> Offset:
    """Write an offset of all nodes."""
    return {origin: node.to_json() for origin, node in sorted(nodes.items())}


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


def _wrong(value: object) -> ConfigurationError:
    return ConfigurationError(
        "this is no offset of a Cassandra source", expected=_EXAMPLE, found=repr(value)[:200]
    )
