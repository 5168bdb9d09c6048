"""How far back a table's log reaches: where reading may begin, and what was lost before it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition
from airflow_cdc_provider.sources.scylla.truncations import Truncation

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class LogReach:
    """What there is of one log.

    Args:
        table: The base table.
        timeline: Its stream sets.
        ttl_seconds: How long log rows live; 0 for ever.
        now_us: The time.
        truncation: The log's own, not the base table's; None for none.
    """

    table: str
    timeline: Timeline
    ttl_seconds: int
    now_us: int
    truncation: Truncation | None = None

    def earliest(self) -> TablePosition:
        """Return the first time that the log still holds."""
        begins_ms = self.timeline.begins_ms
        return self.at(max(begins_ms[0] * 1000 if begins_ms else 0, self._kept_us))

    def begin(self, lookback_seconds: float) -> TablePosition:
        """Return where a new connector begins: so far back, or at the earliest time with 0."""
        begin = self.earliest()
        if lookback_seconds:
            begin = self.at(max(begin.read_to_us, self.now_us - round(lookback_seconds * _SECOND_US)))
        return replace(begin, begun_us=self.now_us)

    def at(self, moment_us: int) -> TablePosition:
        """Return a position by its time."""
        return TablePosition(self.timeline.at(moment_us) or 0, moment_us)

    def losses(self, position: TablePosition) -> Iterator[tuple[str, TablePosition]]:
        """Tell what was lost after a position, each with the position that takes it for read.

        The beginning of a log expires all the time. To a connector that began there, or goes on there after a
        loss, and has read nothing yet, only what was written since then is lost.
        """
        begun_us = position.begun_us
        if max(position.read_to_us, begun_us) < self._kept_us:
            text = (
                f"the log of {self.table} keeps changes for {self.ttl_seconds} s and was read to "
                f"{moment_text(position.read_to_us)}: those from then to {moment_text(self._kept_us)} have "
                "expired unread"
            )
            position = replace(self._moved(position, self._kept_us), begun_us=self.now_us)
            yield text, position
        gone = self.truncation
        known_us = max(position.read_to_us, begun_us)
        if gone is not None and known_us < gone.first_us <= self.now_us:
            text = (
                f"the log of {self.table} was truncated at {moment_text(gone.first_us)} and was read to "
                f"{moment_text(position.read_to_us)}: what was in it from then on is lost unread"
            )
            yield text, replace(self._moved(position, gone.first_us), begun_us=position.begun_us)

    @property
    def _kept_us(self) -> int:
        return self.now_us - self.ttl_seconds * _SECOND_US if self.ttl_seconds else 0

    def _moved(self, position: TablePosition, moment_us: int) -> TablePosition:
        generation_ms = self.timeline.at(moment_us) or position.generation_ms
        return position.moved(generation_ms, moment_us)


def all_losses(
    reaches: Mapping[str, LogReach], positions: Mapping[str, TablePosition]
) -> tuple[list[str], dict[str, TablePosition]]:
    """Tell what was lost of all tables, and the positions after it."""
    after = dict(positions)
    found = []
    for table, reach in reaches.items():
        for text, moved in reach.losses(positions[table]) if table in positions else ():
            found.append(text)
            after[table] = moved
    return found, after


def moment_text(moment_us: int) -> str:
    """Show a moment for people."""
    return f"{datetime.fromtimestamp(moment_us / _SECOND_US, UTC):%Y-%m-%d %H:%M:%S} UTC"
