"""The order of events that are made table by table."""

from __future__ import annotations

from typing import Final

import numpy as np

EVENT_BITS: Final = 32
"""How many of the lowest bits number the events of one record."""


def event_order(records: np.ndarray) -> np.ndarray:
    """Return numbers that order the events of all tables.

    Args:
        records: Per event of one table, in order, the record that it comes from.

    Returns:
        Numbers by which events of one record keep their order, however many there are: up to 2^32.
    """
    return records.astype(np.int64) * (1 << EVENT_BITS) + np.arange(len(records))
