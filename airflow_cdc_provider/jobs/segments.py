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
