"""Requests for events of a changes table, and batches of their records.

Used to print events as lines and to publish them. The batches of a changes table never change, so the events
of a batch are the same sequence each time they are built with the same ``now_ns`` and declaration: an
interrupted publisher skips as many records of the batch as it has sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_cdc_provider.events.framing import Registrar


@dataclass(frozen=True)
class EventRequest:
    """Which events to build.

    Args:
        after: Batches up to this one are excluded.
        through: The last batch.
        now_ns: The time at which events are built and TTLs are evaluated, ns since 1970.
        by_batch: Whether all events of a batch come before those of the next even if write times order them,
            and rows are read again once per batch.
        state: :attr:`EventBatch.state` of the last events of batch ``after``; None if unknown: then it is
            computed from earlier batches.
        registrar: Assigns ids to schemas, which precede encoded keys and values; None for none.
        first_only: Whether to build only the events of the first batch; they may depend on later batches.
        tables: Only events of these tables; empty for all.
        owners: By adjusted name of a topic the table that has it, of topics that several tables claim.
    """

    after: int
    through: int
    now_ns: int
    by_batch: bool = False
    state: str | None = None
    registrar: Registrar | None = None
    first_only: bool = False
    tables: Sequence[str] = ()
    owners: Mapping[str, str] = field(default_factory=dict)

    @property
    def until(self) -> int:
        """The last batch to build events of."""
        return self.after + 1 if self.first_only else self.through


@dataclass(frozen=True)
class EventBatch:
    """Records of events that follow each other in publishing order.

    Args:
        batch: The batch of the changes table that has their source records.
        records: The encoder's records; may be empty.
        state: State of the builder after these events, for the events after them; empty for none.
    """

    batch: int
    records: pa.RecordBatch
    state: str = ""
