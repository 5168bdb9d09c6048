"""Rows of mirrors of Cassandra and ScyllaDB for envelopes with separate events for static columns.

A mirror keeps the cells of each row; static cells of its partition are in the tombstone table. An event has
the newest static cells: a repeated step may send newer ones than its first attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.context.tables import learn_schema
from airflow_cdc_provider.jobs.events.known_static_columns import KnownStaticColumns, known_static_columns
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.reconcile.columns import only_columns
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.cql.snapshots.select_rows import UNKNOWN_TIME


@dataclass(frozen=True)
class MergedCells:
    """The cells of rows that merges changed.

    Args:
        stores: The lake.
        codec: The table's codec, with the column ids of the mirror.
        state: The mirror's state.
    """

    stores: Stores
    codec: CqlCodec
    state: MirrorState

    @classmethod
    def of(cls, stores: Stores, source: Source, table: str) -> MergedCells:
        """Return the cells of a table's mirror."""
        learn_schema(source, stores.changes)
        state = stores.mirror(table).state()
        codec = source.codec(table, state.memory)
        assert isinstance(codec, CqlCodec)
        return cls(stores, codec, state)

    @property
    def columns(self) -> tuple[str, ...]:
        """The static columns."""
        return tuple(column.name for column in self.codec.schema.static)

    def states(self, rows: pa.RecordBatch, now_ns: int) -> pa.RecordBatch:
        """Return the cells of rows and of static columns.

        Args:
            rows: Columns ``op``, ``key`` and ``state``, which is null for static columns.
            now_ns: Build time of events, ns since 1970.

        Returns:
            Columns ``op``, ``key``, ``state``, ``static_state`` and ``ts_us``: the greatest write time of the
            cells, or of those before the deletion; the build time if unknown.
        """
        keys = rows["key"].cast(pa.binary())
        cells = rows["state"].cast(pa.binary())
        if self.codec.column_ids is not None:
            cells = only_columns(cells, self.codec.column_ids).cast(pa.binary())
        of_rows = np.flatnonzero(cells.is_valid())
        of_static_columns = pa.array(np.flatnonzero(cells.is_null()))
        written = np.full(len(keys), UNKNOWN_TIME)
        written[of_rows] = latest_times(rows["state"].take(pa.array(of_rows)))
        static_columns = self.static_columns(keys.take(of_static_columns), now_ns // 1_000_000_000)
        written[of_static_columns] = static_columns.written_us
        return pa.RecordBatch.from_pydict(
            {
                "op": rows["op"],
                "key": keys,
                "state": cells,
                "static_state": pc.replace_with_mask(
                    pa.nulls(len(keys), pa.binary()), cells.is_null(), static_columns.states
                ),
                "ts_us": pa.array(np.where(written <= UNKNOWN_TIME, now_ns // 1000, written)),
            }
        )

    def static_columns(self, keys: pa.Array, now_seconds: int) -> KnownStaticColumns:
        """Return the current static cells of partitions."""
        return known_static_columns(self.stores, self.codec, self.state, keys, now_seconds)
