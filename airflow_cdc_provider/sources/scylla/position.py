"""The offset of a ScyllaDB source: the read position of each table's log.

::

    {"shop.item": {"v": 1, "generation": 1700000000000, "read_to": 1700000123456789}}

``generation`` is the start of the current stream set, ms since 1970; ``read_to`` the first unread
microsecond. It applies to all stream groups of a table, except groups that are further ahead: these are in
``groups``, such as ``"groups": {"7": 1700000200000000}``. ``truncated`` is the time of the last TRUNCATE that
was emitted as a fence (:mod:`.truncations`). ``started`` is the time at which the connector started at this
position, or resumed here after a loss, if it has read nothing since. A batch consists of complete windows of
all streams and is committed with its offset, so no state inside a window is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.contract import Offset

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.scylla.generations import Timeline

FORMAT: Final = 1
_KEYS: Final = frozenset({"v", "generation", "read_to", "groups", "truncated", "started"})


@dataclass(frozen=True)
class TablePosition:
    """The read position of a table's log.

    Args:
        generation_ms: Start of its stream set; 0 if unknown.
        read_to_us: The first unread microsecond.
        ahead: The first unread microsecond of groups that are further ahead, by group.
        truncated_us: Time of the last TRUNCATE that was emitted; 0 for none.
        started_us: When the connector started, or resumed after a loss, if it has read nothing since; else 0.
    """

    generation_ms: int
    read_to_us: int
    ahead: Mapping[str, int] = field(default_factory=dict)
    truncated_us: int = 0
    started_us: int = 0

    def group_reads_from(self, group: str) -> int:
        """Return the first unread microsecond of a group."""
        return max(self.read_to_us, self.ahead.get(group, 0))

    def lag(self, timeline: Callable[[], Timeline], now_us: int) -> dict[str, Any]:
        """Return how far the groups are behind a clock, wherever a lag is reported.

        Args:
            timeline: Returns the table's stream sets; called only if the positions of groups differ.
            now_us: The clock, us since 1970. A clock that was set back may be before the position.

        Returns:
            ``seconds``, the lag of the slowest group; ``group``, its name, empty if all groups are at the
            same position; ``ahead``, the lag of the groups that are further ahead; ``generation``.
        """
        furthest, group = self.read_to_us, ""
        ahead = {name: us for name, us in self.ahead.items() if us > furthest}
        if ahead and self.generation_ms in (sets := timeline()).begins_ms:
            group = min(sets.groups(self.generation_ms), key=self.group_reads_from, default="")
            furthest = self.group_reads_from(group)
        return {
            "seconds": _seconds(now_us - furthest),
            "group": group,
            "ahead": {name: _seconds(now_us - us) for name, us in ahead.items() if us > furthest},
            "generation": self.generation_ms,
        }

    def moved(self, generation_ms: int, read_to_us: int) -> TablePosition:
        """Return the position after a window; groups of another generation are dropped."""
        same = generation_ms == self.generation_ms
        ahead = {group: us for group, us in self.ahead.items() if us > read_to_us} if same else {}
        return TablePosition(generation_ms, read_to_us, ahead, self.truncated_us)


def read_offset(offset: Offset) -> dict[str, TablePosition]:
    """Parse an offset.

    Raises:
        ConfigurationError: The offset is invalid.
    """
    return {table: _read(table, value) for table, value in offset.items()}


def write_offset(positions: Mapping[str, TablePosition]) -> dict[str, Any]:
    """Serialize positions for :func:`read_offset`."""
    return {
        table: {"v": FORMAT, "generation": p.generation_ms, "read_to": p.read_to_us}
        | ({"groups": dict(sorted(p.ahead.items()))} if p.ahead else {})
        | ({"truncated": p.truncated_us} if p.truncated_us else {})
        | ({"started": p.started_us} if p.started_us else {})
        for table, p in sorted(positions.items())
    }


def _read(table: str, value: Any) -> TablePosition:
    invalid = ConfigurationError(
        f"invalid offset of {table}",
        expected='{"v": 1, "generation": ms since 1970, "read_to": us since 1970}, and optionally '
        '"groups": {group: us since 1970}, "truncated" and "started": us since 1970',
        found=repr(value)[:200],
    )
    if not isinstance(value, Mapping) or set(value) - _KEYS:
        raise invalid
    numbers: list[Any] = [value.get(name) for name in ("generation", "read_to")]
    numbers += [value.get(name, 0) for name in ("truncated", "started")]
    groups = value.get("groups", {})
    if value.get("v") != FORMAT or not all(_is_moment(n) for n in numbers):
        raise invalid
    if not isinstance(groups, Mapping) or not all(_is_moment(n) for n in groups.values()):
        raise invalid
    generation, read_to, truncated, started = (int(n or 0) for n in numbers)
    return TablePosition(generation, read_to, dict(groups), truncated, started)


def _seconds(us: int) -> float:
    return round(max(us, 0) / 1_000_000, 3)


def _is_moment(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
