"""Rows before the changes of events: the field ``before``.

Changes are replayed in their order, on the rows of a mirror if it has merged none of them. A row that is in
neither is unknown, and ``before`` is as for a new row.
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
from airflow_cdc_provider.sources.cassandra.events.mirror_rows import MirrorRowDecoder
from airflow_cdc_provider.sources.cassandra.events.row_states import rows_before
from airflow_cdc_provider.sources.cql.codec import CqlCodec

_OF_THE_MIRROR: Final = -1
"""Change number of the mirror's rows."""


@dataclass(frozen=True)
class Known:
    """A mirror's rows of some keys.

    Args:
        contributions: ``CONTRIBUTION_SCHEMA``: its rows, and those of its tombstone table.
        fences: Fences of its table.
        memory: The mirror's memory, with the column ids that its rows use.
    """

    contributions: pa.Table
    fences: tuple[Fence, ...] = ()
    memory: Mapping[str, Any] | None = None


KnownOf = Callable[[str, pa.Array], Known | None]
"""Returns a mirror's rows of partition keys of a table (``keyspace.table``), None if it has none."""


def nothing_known(table: str, keys: pa.Array) -> None:
    """Return None: no row is known except from the changes themselves."""
    del table, keys


class RowsBefore:
    """The rows before each change of one table.

    Args:
        codec: The table's codec, with the column ids of the mirror.
        decoder: Decodes rows of the codec's schema.
        records: Changes and snapshot rows of the table, in replay order.
        fences: Fences of the table.
        known: The mirror's rows of their keys.
    """

    def __init__(
        self,
        codec: CqlCodec,
        decoder: MirrorRowDecoder,
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
        replayed = pa.concat_tables([held, own]).combine_chunks()
        clustered = bool(codec.schema.clustering)
        before = rows_before(replayed, numbers, codec.rules, clustered=clustered)
        self._before = before.slice(held.num_rows).combine_chunks()
        self._first = np.searchsorted(changes, np.arange(records.num_rows))

    def of(self, events: pa.RecordBatch, changes: np.ndarray, keys: pa.Array) -> pa.StructArray:
        """Return the rows before events, as cells.

        Args:
            events: Events of the decoder.
            changes: Per event, the index of its change among the records.
            keys: The partition key of each event.
        """
        of_snapshot = events["snapshot"].to_numpy(zero_copy_only=False)
        indexes = self._first[changes] + events["ordinal"].to_numpy()
        chosen = pa.array(indexes, mask=of_snapshot)
        columns = {
            name: self._before[name].combine_chunks().take(chosen) for name in ("state", "static_state")
        }
        return self._decoder.whole_rows(
            pa.RecordBatch.from_pydict({"key": keys, **columns, "at_us": events["ts_us"]})
        )


def data_of(records: pa.Table, ours: pa.Array) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the selected records as one batch, and their indexes."""
    numbers = np.flatnonzero(ours)
    (changes,) = records.take(pa.array(numbers)).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], record.CHANGE_SCHEMA)
    ]
    return changes, numbers


def keys_of(changes: pa.RecordBatch) -> pa.Array:
    """Return the distinct partition keys of changes."""
    return pc.unique(changes["key"])
