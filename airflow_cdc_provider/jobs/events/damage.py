"""What had to be left out of events and rows, because it is broken or on purpose, and how that is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from airflow_cdc_provider.exceptions import CorruptInput

_SHOWN_PLACES: Final = 20


@dataclass
class Damage:
    """What of the input had to be left out.

    Args:
        strict: Raise at the first such place.
        places: Where and why, one text each.
        skipped: Events that were left out on purpose, by kind; ``t`` are truncations, which have no event,
            ``copy`` what another node's log had told.
    """

    strict: bool
    places: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, reason: str) -> None:
        """Note a place.

        Raises:
            CorruptInput: The source is strict.
        """
        if self.strict:
            raise CorruptInput(
                f"{place}: {reason}", remedy="set source.advanced.strict: false to leave such places out"
            )
        self.places.append(f"{place}: {reason}")

    def told(self) -> list[str]:
        """Return lines for people: the first places, how many there are, and what was skipped."""
        lines = [f"left out: {place}" for place in self.places[:_SHOWN_PLACES]]
        if len(self.places) > _SHOWN_PLACES:
            lines.append(f"left out: and {len(self.places) - _SHOWN_PLACES} more")
        if self.places:
            lines.append(f"summary: {len(self.places)} places of the input were left out")
        if counted := +self.skipped:
            lines.append(
                "skipped: " + ", ".join(f"{n} of kind {kind}" for kind, n in sorted(counted.items()))
            )
        return lines
