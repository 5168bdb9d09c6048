"""What stood of rows before the changes that events tell of: the field ``before``.

Changes are replayed in their order, on the rows that a mirror holds if they are from before all of them. What
neither tells is unknown, and shown as a row that wasn't there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.jobs.events.cassandra.row_states import rows_before
from airflow_cdc_provider.sources.cassandra.debezium.kept_rows import KeptRowDecoder
from airflow_cdc_provider.sources.cql.codec import CqlCodec

_OF_THE_MIRROR: Final = -1
"""Number of the change that stands for what a mirror holds."""


@dataclass(frozen=True)
class Known:
    """What a mirror holds of some keys.

    Args:
        contributions: ``CONTRIBUTION_SCHEMA``: its rows, and what stands beside them.
        fences: Of its table.
        memory: What gives columns the ids by which its rows name them.
    """

    contributions: pa.Table
    fences: tuple[Fence, ...] = ()
    memory: Mapping[str, Any] | None = None


KnownOf = Callable[[str, pa.Array], Known | None]
"""Gives what a mirror holds of partition keys of a table (``keyspace.table``), None for nothing."""


def nothing_known(table: str, keys: pa.Array) -> None:
    """Know of no row but from the changes themselves."""
    del table, keys


class RowsBefore:
    """What stood before each change of one table.

    Args:
        codec: The table's, with the column ids of the mirror.
        decoder: Shows rows; of the codec's schema.
        records: Changes and snapshot rows of the table, in the order in which they are to be replayed.
        fences: Of the table.
        known: What a mirror holds of their keys.
    """

    def __init__(
        self,
        codec: CqlCodec,
        decoder: KeptRowDecoder,
        records: pa.RecordBatch,
        fences: tuple[Fence, ...],
        known: Known | None,
    ) -> None:
        self._decoder = decoder
        decoded = codec.decode(records, (*known.fences, *fences) if known else fences)
        changes = np.asarray(decoded.rows, np.int64)
        own = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
        held = known.contributions if known else CONTRIBUTION_SCHEMA.empty_table()
        numbers = np.concatenate([np.full(held.num_rows, _OF_THE_MIRROR), changes])
        everything = pa.concat_tables([held, own]).combine_chunks()
        clustered = bool(codec.schema.clustering)
        before = rows_before(everything, numbers, codec.rules, clustered=clustered)
        self._before = before.slice(held.num_rows).combine_chunks()
        self._first = np.searchsorted(changes, np.arange(records.num_rows))

    def of(self, events: pa.RecordBatch, changes: np.ndarray, keys: pa.Array) -> pa.StructArray:
        """Return the rows that stood before events, as cells.

        Args:
            events: As the decoder gave them.
            changes: Number of each one's change among the records.
            keys: The partition key of each.
        """
        of_snapshot = events["snapshot"].to_numpy(zero_copy_only=False)
        places = self._first[changes] + events["ordinal"].to_numpy()
        chosen = pa.array(places, mask=of_snapshot)
        columns = {
            name: self._before[name].combine_chunks().take(chosen) for name in ("state", "static_state")
        }
        return self._decoder.whole_rows(
            pa.RecordBatch.from_pydict({"key": keys, **columns, "at_us": events["ts_us"]})
        )


def data_of(records: pa.Table, ours: pa.Array) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return some records as one batch, and their numbers."""
    numbers = np.flatnonzero(ours)
    (changes,) = records.take(pa.array(numbers)).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], record.CHANGE_SCHEMA)
    ]
    return changes, numbers


def keys_of(changes: pa.RecordBatch) -> pa.Array:
    """Return the partition keys of changes, each once."""
    return pc.unique(changes["key"])
