"""How many segments a capture met, read and left, per feed: what its batches counted, added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.jobs.spec import SegmentNumbers
from airflow_cdc_provider.sources.base import Plan


class SegmentTally:
    """Adds up what the batches of one capture counted.

    The head is fixed when a capture begins, so what its first batch meets is all that it is to read.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, SegmentNumbers] = {}

    def add(self, plan: Plan) -> None:
        """Count a batch; its plan may be one that has nothing to read."""
        for origin, found in plan.segments.items():
            known = self._numbers.get(origin, SegmentNumbers(seen=found.waiting, waiting_max=found.waiting))
            self._numbers[origin] = replace(
                known,
                at_once=max(known.at_once, found.taken),
                read=known.read + found.read,
                kept_max=max(known.kept_max, found.kept),
            )

    def joined(self, later: SegmentTally) -> SegmentTally:
        """Return what both counted; the earlier one's beginning is that of both."""
        both = SegmentTally()
        both._numbers = {**later._numbers, **self._numbers}
        for origin in self._numbers.keys() & later._numbers.keys():
            mine, other = self._numbers[origin], later._numbers[origin]
            both._numbers[origin] = replace(
                mine,
                at_once=max(mine.at_once, other.at_once),
                read=mine.read + other.read,
                waiting_max=max(mine.waiting_max, other.waiting_max),
                kept_max=max(mine.kept_max, other.kept_max),
            )
        return both

    def at_end(self, details: Mapping[str, Mapping[str, Any]]) -> dict[str, SegmentNumbers]:
        """Return the numbers per origin.

        Args:
            details: Per origin ``segments`` and ``kept`` as a :class:`~airflow_cdc_provider.sources.base.Lag`
                has them that was taken at the end; those that have none are left out.
        """
        return {
            origin: _ended(self._numbers.get(origin, SegmentNumbers()), place["segments"], place["kept"])
            for origin, place in details.items()
            if "segments" in place
        }


def _ended(found: SegmentNumbers, waiting: int, kept: int) -> SegmentNumbers:
    return replace(
        found,
        waiting=waiting,
        waiting_max=max(found.waiting_max, waiting),
        kept=kept,
        kept_max=max(found.kept_max, kept),
    )
