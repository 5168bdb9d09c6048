"""Segments that a capture found, read and left, per feed: the sums over its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.jobs.spec import SegmentNumbers
from airflow_cdc_provider.sources.contract import Plan


class SegmentTally:
    """Adds up the segments of the batches of one capture.

    The head is fixed when a capture starts, so its first batch finds all segments that the capture reads.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, SegmentNumbers] = {}

    def add(self, plan: Plan) -> None:
        """Add a batch; its plan may be empty."""
        for origin, found in plan.segments.items():
            known = self._numbers.get(origin, SegmentNumbers(seen=found.waiting, pending_max=found.waiting))
            self._numbers[origin] = replace(
                known,
                at_once=max(known.at_once, found.taken),
                read=known.read + found.read,
                kept_max=max(known.kept_max, found.kept),
            )

    def joined(self, later: SegmentTally) -> SegmentTally:
        """Return the sum of both captures, with the first segments of the earlier one."""
        both = SegmentTally()
        both._numbers = {**later._numbers, **self._numbers}
        for origin in self._numbers.keys() & later._numbers.keys():
            mine, other = self._numbers[origin], later._numbers[origin]
            both._numbers[origin] = replace(
                mine,
                at_once=max(mine.at_once, other.at_once),
                read=mine.read + other.read,
                pending_max=max(mine.pending_max, other.pending_max),
                kept_max=max(mine.kept_max, other.kept_max),
            )
        return both

    def at_end(self, details: Mapping[str, Mapping[str, Any]]) -> dict[str, SegmentNumbers]:
        """Return the numbers per origin.

        Args:
            details: Per origin ``segments`` and ``kept`` of a
                :class:`~airflow_cdc_provider.sources.contract.Lag` at the end of the capture; origins without
                them are left out.
        """
        return {
            origin: _ended(self._numbers.get(origin, SegmentNumbers()), values["segments"], values["kept"])
            for origin, values in details.items()
            if "segments" in values
        }


def _ended(found: SegmentNumbers, waiting: int, kept: int) -> SegmentNumbers:
    return replace(
        found,
        pending=waiting,
        pending_max=max(found.pending_max, waiting),
        kept=kept,
        kept_max=max(found.kept_max, kept),
    )
