"""The offset of a ScyllaDB source: per table how far its log is read.

::

    {"shop.item": {"v": 1, "generation": 1700000000000, "read_to": 1700000123456789}}

``generation`` is the time from which the streams work that were read, ms since 1970; ``read_to`` the first
microsecond that isn't read. All groups of streams of a table stand there; those that stand further ahead are
named beside it, ``"groups": {"7": 1700000200000000}``. ``"truncated"`` is the time of the last TRUNCATE that
was told as a fence (:mod:`.truncations`); ``"begun"`` the time at which a connector began there, or went on
there after a loss, that has read nothing since. A batch is whole windows of all streams, and its
offset is in the same commit, so there is nothing to remember of changes inside a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Offset

FORMAT: Final = 1
_KEYS: Final = frozenset({"v", "generation", "read_to", "groups", "truncated", "begun"})


@dataclass(frozen=True)
class TablePosition:
    """Where a table's log is read to.

    Args:
        generation_ms: Its streams, by the time from which they work; 0 if that isn't known.
        read_to_us: The first microsecond that isn't read.
        ahead: By group, the same of those that stand further.
        truncated_us: When the table was last truncated, as far as that was told; 0 for never.
        begun_us: When the connector began, or went on after a loss, if it has read nothing since; else 0.
    """

    generation_ms: int
    read_to_us: int
    ahead: Mapping[str, int] = field(default_factory=dict)
    truncated_us: int = 0
    begun_us: int = 0

    def group_reads_from(self, group: str) -> int:
        """Return where a group stands, in us."""
        return max(self.read_to_us, self.ahead.get(group, 0))

    def moved(self, generation_ms: int, read_to_us: int) -> TablePosition:
        """Return the position after a window; groups of another generation are forgotten."""
        same = generation_ms == self.generation_ms
        ahead = {group: us for group, us in self.ahead.items() if us > read_to_us} if same else {}
        return TablePosition(generation_ms, read_to_us, ahead, self.truncated_us)


def read_offset(offset: Offset) -> dict[str, TablePosition]:
    """Read an offset.

    Raises:
        ConfigurationError: It has another form.
    """
    return {table: _read(table, value) for table, value in offset.items()}


def write_offset(positions: Mapping[str, TablePosition]) -> dict[str, Any]:
    """Write what :func:`read_offset` reads."""
    return {
        table: {"v": FORMAT, "generation": p.generation_ms, "read_to": p.read_to_us}
        | ({"groups": dict(sorted(p.ahead.items()))} if p.ahead else {})
        | ({"truncated": p.truncated_us} if p.truncated_us else {})
        | ({"begun": p.begun_us} if p.begun_us else {})
        for table, p in sorted(positions.items())
    }


def _read(table: str, value: Any) -> TablePosition:
    wrong = ConfigurationError(
        f"the offset of {table} can't be read",
        expected='{"v": 1, "generation": ms since 1970, "read_to": us since 1970}, and optionally '
        '"groups": {group: us since 1970}, "truncated" and "begun": us since 1970',
        found=repr(value)[:200],
    )
    if not isinstance(value, Mapping) or set(value) - _KEYS:
        raise wrong
    numbers: list[Any] = [value.get(name) for name in ("generation", "read_to")]
    numbers += [value.get(name, 0) for name in ("truncated", "begun")]
    groups = value.get("groups", {})
    if value.get("v") != FORMAT or not all(_is_moment(n) for n in numbers):
        raise wrong
    if not isinstance(groups, Mapping) or not all(_is_moment(n) for n in groups.values()):
        raise wrong
    generation, read_to, truncated, begun = (int(n or 0) for n in numbers)
    return TablePosition(generation, read_to, dict(groups), truncated, begun)


def _is_moment(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
