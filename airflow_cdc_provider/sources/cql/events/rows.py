"""Rows of mirrors of Cassandra and ScyllaDB as events of their cells.

A mirror keeps the cells of each row; static cells of its partition are in the tombstone table. The event of a
row that a merge changed has the newest static cells: a repeated step may send newer ones than its first
attempt. To compare a whole mirror, its rows are reconciled again at one point in time, which drops cells that
expired since the last merge.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import newest_generation
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.lake.reconcile.columns import only_columns
from airflow_cdc_provider.lake.row_changes import READ
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.cql.events.known_static_columns import KnownStaticColumns
from airflow_cdc_provider.sources.cql.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.row_events import (
    EVENT_DDL,
    RowBuilder,
    RowEvents,
    built,
    keys_and_values,
    report_skipped,
)

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

_ROWS_PER_PARTITION: Final = 50_000
_ROWS_AT_ONCE: Final = 10_000
_SECOND_US: Final = 1_000_000

KnownOf = Callable[[pa.Array, int], KnownStaticColumns]
"""Returns the static columns of partition keys at a time, s since 1970."""


@dataclass(frozen=True, kw_only=True)
class CqlRows(RowEvents):
    """Builds events of one mirror's rows.

    Args:
        connector: The declaration.
        codec: The table's codec, with the column ids of the mirror.
        known_of: Returns current static columns; None if whole mirrors are read.
    """

    connector: Connector
    codec: CqlCodec
    known_of: KnownOf | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The static columns: they may change without a cell of the row."""
        return self.codec.static_columns.names

    @abstractmethod
    def of_cells(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of cells.

        Args:
            now_ns: Build time of events, ns since 1970.
            registrar: Assigns ids to schemas; None for none.
            skipped: Collects skipped records.

        Returns:
            A function of columns ``op``, ``key``, ``state`` (null for static columns), ``static_state`` and
            ``written_us``, the greatest write time of the cells, or of those before the deletion.
        """

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of rows; see :class:`.row_events.RowEvents`."""
        build = self.of_cells(now_ns, registrar, skipped)
        return lambda rows: build(self._cells(rows, now_ns // 1_000_000_000))

    def _cells(self, rows: pa.RecordBatch, now_seconds: int) -> pa.RecordBatch:
        """Return the cells of rows and of static columns."""
        assert self.known_of is not None
        keys, cells = rows["key"].cast(pa.binary()), rows["state"].cast(pa.binary())
        of_rows = np.flatnonzero(cells.is_valid())
        written = np.full(len(keys), UNKNOWN_TIME)
        written[of_rows] = latest_times(cells.take(pa.array(of_rows)))
        # Rows have static cells only if these have no separate events.
        with_static = cells.is_null() if self.static_columns_table else pa.repeat(True, len(keys))
        known = self.known_of(keys.filter(with_static), now_seconds)
        of_static = cells.is_null().to_numpy(zero_copy_only=False)
        written[of_static] = known.written_us[of_static[with_static.to_numpy(zero_copy_only=False)]]
        if self.codec.column_ids is not None:
            cells = only_columns(cells, self.codec.column_ids).cast(pa.binary())
        nothing = pa.nulls(len(keys), pa.binary())
        return pa.RecordBatch.from_pydict(
            {
                "op": rows["op"],
                "key": keys,
                "state": cells,
                "static_state": pc.replace_with_mask(nothing, with_static, known.states),
                "written_us": pa.array(written),
            }
        )


def with_times(cells: pa.RecordBatch, now_ns: int) -> pa.RecordBatch:
    """Add the column ``ts_us``: write times, the build time for unknown ones."""
    written = cells["written_us"].to_numpy()
    return cells.append_column("ts_us", pa.array(np.where(written <= UNKNOWN_TIME, now_ns // 1000, written)))


def events_of_cql_mirror(
    rows: CqlRows, mirror: Mirror, state: MirrorState, now_us: int, metrics: Accumulator[ReadMetrics]
) -> DataFrame:
    """Return key and value of the event of each row of a mirror, and of each partition with static columns.

    Args:
        rows: Builds the events.
        mirror: The mirror.
        state: The state of the mirror to read.
        now_us: The time at which events are built and expiry is evaluated, us since 1970.
        metrics: Gets the rows without an event.
    """
    names = CONTRIBUTION_SCHEMA.names
    stored = mirror.rows(state).where("state IS NOT NULL").select(*names)
    both = stored.unionByName(mirror.tombstone_rows().select(*names))
    partitions = mirror.row_count(state) // _ROWS_PER_PARTITION + 1
    build = MirrorCells(rows, newest_generation(state.fences), now_us, metrics)
    return map_in_arrow(both.repartition(partitions, "key"), build, EVENT_DDL)


@dataclass(frozen=True)
class MirrorCells:
    """Builds the events of some partitions of a mirror. Picklable.

    Args:
        rows: Builds the events of rows.
        generation: Cells of lower generations don't count.
        now_us: The time at which expiry is evaluated, us since 1970.
        metrics: Gets the rows without an event.
    """

    rows: CqlRows
    generation: int
    now_us: int
    metrics: Accumulator[ReadMetrics] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Build keys and values from batches of ``CONTRIBUTION_SCHEMA``, which have whole partitions."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        kept, codec = pa.Table.from_batches(found), self.rows.codec
        if codec.column_ids is not None:
            states = only_columns(kept["state"], codec.column_ids)
            kept = kept.set_column(kept.schema.get_field_index("state"), "state", states)
        outcome = reconcile_cells(
            kept,
            self.now_us // _SECOND_US,
            rules=codec.rules,
            min_generation=self.generation,
            static_columns_table=True,
        )
        skipped = SkippedRecords(strict=False)
        build = self.rows.of_cells(self.now_us * 1000, None, skipped)
        table = codec.schema.full_name
        for rows in (outcome.live, outcome.static_columns):
            for batch in rows.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE):
                if batch.num_rows:
                    for records in built(build, _as_read(batch), table, skipped):
                        yield keys_and_values(records, skipped)
        report_skipped(skipped, table, self.metrics)


def _as_read(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return cells of rows that are read, with write time 0."""
    states = {name: rows[name].cast(pa.binary()) for name in ("key", "state", "static_state")}
    written = pa.array(np.zeros(rows.num_rows, np.int64))
    return pa.RecordBatch.from_pydict({"op": pa.repeat(READ, rows.num_rows), **states, "written_us": written})
