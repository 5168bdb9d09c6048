"""The retention of a table's log: where reading can start, and which unread changes were lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.position import TablePosition
from airflow_cdc_provider.sources.scylla.truncations import Truncation

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class LogReach:
    """The available range of one log.

    Args:
        table: The base table.
        timeline: Its stream sets.
        ttl_seconds: Lifetime of log rows; 0 for unlimited.
        now_us: The current time.
        truncation: The last TRUNCATE of the log itself, not of the base table; None for none.
    """

    table: str
    timeline: Timeline
    ttl_seconds: int
    now_us: int
    truncation: Truncation | None = None

    def earliest(self) -> TablePosition:
        """Return the first position that the log still contains."""
        begins_ms = self.timeline.begins_ms
        return self.at(max(begins_ms[0] * 1000 if begins_ms else 0, self._kept_us))

    def start(self, lookback_seconds: float) -> TablePosition:
        """Return the start position of a new connector: so far back, or the earliest position with 0."""
        start = self.earliest()
        if lookback_seconds:
            start = self.at(max(start.read_to_us, self.now_us - round(lookback_seconds * _SECOND_US)))
        return replace(start, started_us=self.now_us)

    def at(self, moment_us: int) -> TablePosition:
        """Return the position at a time."""
        return TablePosition(self.timeline.at(moment_us) or 0, moment_us)

    def losses(self, position: TablePosition) -> tuple[list[str], TablePosition]:
        """Return a message per loss after a position, and the position after the losses.

        The start of a log expires continuously. For a connector that started there, or resumed there after a
        loss, and has read nothing yet, only changes written since then are lost.
        """
        found = []
        started_us = position.started_us
        if max(position.read_to_us, started_us) < self._kept_us:
            found.append(
                f"the log of {self.table} keeps changes for {self.ttl_seconds} s and was read up to "
                f"{moment_text(position.read_to_us)}: changes from then to {moment_text(self._kept_us)} "
                "expired before they were read"
            )
            position = replace(self._moved(position, self._kept_us), started_us=self.now_us)
        truncation = self.truncation
        known_us = max(position.read_to_us, started_us)
        if truncation is not None and known_us < truncation.first_us <= self.now_us:
            found.append(
                f"the log of {self.table} was truncated at {moment_text(truncation.first_us)} and was read "
                f"up to {moment_text(position.read_to_us)}: its later, unread changes are lost"
            )
            position = replace(self._moved(position, truncation.first_us), started_us=position.started_us)
        return found, position

    @property
    def _kept_us(self) -> int:
        return self.now_us - self.ttl_seconds * _SECOND_US if self.ttl_seconds else 0

    def _moved(self, position: TablePosition, moment_us: int) -> TablePosition:
        generation_ms = self.timeline.at(moment_us) or position.generation_ms
        return position.moved(generation_ms, moment_us)


def moment_text(moment_us: int) -> str:
    """Format a time for messages."""
    return f"{datetime.fromtimestamp(moment_us / _SECOND_US, UTC):%Y-%m-%d %H:%M:%S} UTC"
