"""What is asked of the events of a changes table, and what comes: records of one batch after the other.

For whoever prints them as lines and whoever publishes them. The batches of a changes table never change, so
events of a batch are the same sequence each time they are made with the same ``now_ns`` and declaration:
a publisher that was interrupted in its middle passes over as many as it has sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_cdc_provider.events.framing import Registrar


@dataclass(frozen=True)
class Wanted:
    """Which events are to be made.

    Args:
        after: Batches up to this one are left out.
        through: The last batch.
        now_ns: When events are built and TTLs are judged, ns since 1970.
        by_batch: Whether all events of a batch come before those of the next even where their write times
            order them, and rows that are read again are so once per batch.
        state: :attr:`Made.state` of the last events of batch ``after``; None where it isn't known: then what
            is needed of earlier batches is read.
        registrar: Gives schemas their ids, which stand before what they describe; None for none.
        alone: Whether only those of the first batch are wanted. What is behind it still tells what they are.
    """

    after: int
    through: int
    now_ns: int
    by_batch: bool = False
    state: str | None = None
    registrar: Registrar | None = None
    alone: bool = False

    @property
    def until(self) -> int:
        """The last batch whose events are wanted."""
        return self.after + 1 if self.alone else self.through


@dataclass(frozen=True)
class Made:
    """Records of events that follow each other in publishing order.

    Args:
        batch: The batch of the changes table that they come from.
        records: As the encoder makes them; may be none.
        state: What the makers of the events after these must know of those up to here; empty for nothing.
    """

    batch: int
    records: pa.RecordBatch
    state: str = ""
