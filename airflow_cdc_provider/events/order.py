"""The order of events that are built table by table."""

from __future__ import annotations

from typing import Final

import numpy as np

EVENT_BITS: Final = 32
"""Number of low bits for the index of an event within its record."""


def event_order(records: np.ndarray) -> np.ndarray:
    """Return numbers that order the events of all tables.

    Args:
        records: Per event of one table, in order, the index of its source record.

    Returns:
        Numbers by which events of one record keep their order, however many there are: up to 2^32.
    """
    return records.astype(np.int64) * (1 << EVENT_BITS) + np.arange(len(records))
