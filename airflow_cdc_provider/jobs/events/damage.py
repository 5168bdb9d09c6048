"""Input records without events or rows: undecodable ones, and kinds that are left out on purpose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from airflow_cdc_provider.exceptions import CorruptInput

_MAX_REPORTED: Final = 20


@dataclass
class Damage:
    """Records of the input without events or rows.

    Args:
        strict: Whether to raise for the first undecodable record.
        places: Position and reason of each undecodable record, one text each.
        skipped: Number of events left out on purpose, by kind; ``t`` are truncations, which have no event,
            ``replica duplicate`` writes that the log of another node had already.
    """

    strict: bool
    places: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter[str])

    def add(self, position: str, reason: str) -> None:
        """Add an undecodable record.

        Raises:
            CorruptInput: The source is strict.
        """
        if self.strict:
            raise CorruptInput(
                f"{position}: {reason}", remedy="set source.advanced.strict: false to skip such records"
            )
        self.places.append(f"{position}: {reason}")

    def told(self) -> list[str]:
        """Return a readable report: the first undecodable records, their number, and what was left out."""
        lines = [f"undecodable: {text}" for text in self.places[:_MAX_REPORTED]]
        if len(self.places) > _MAX_REPORTED:
            lines.append(f"undecodable: and {len(self.places) - _MAX_REPORTED} more")
        if self.places:
            lines.append(f"summary: {len(self.places)} records of the input could not be decoded")
        if counted := +self.skipped:
            lines.append(
                "skipped: " + ", ".join(f"{n} of kind {kind}" for kind, n in sorted(counted.items()))
            )
        return lines
