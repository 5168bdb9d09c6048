"""Rows from before a batch that its deletions of partitions and ranges cover.

The log has a range, not its rows. They are found in the mirror as of an earlier merge, and in the captured
changes between that merge and the batch. Only batches with such deletions need them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, PARTITION_DELETION, RANGE_DELETION
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.mirror_history import state_before
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.lake.table import Head
from airflow_cdc_provider.sources.cassandra.events.before_images import Known

_KINDS = (record.CHANGE, record.SNAPSHOT, record.TRUNCATE)


@dataclass(frozen=True)
class EarlierRows:
    """What the lake has of partitions from before a batch.

    Args:
        known: The mirror's rows in the deleted ranges, as of a merge before the batch.
        changes: ``CHANGE_SCHEMA``: all captured changes of the partitions since that merge, and truncations.
        complete: Whether that state of the mirror exists; without it only the changes are known.
    """

    known: Known
    changes: pa.Table
    complete: bool = True


EarlierRowsOf = Callable[[str, pa.Table, int], EarlierRows]
"""Finds rows of a table (``keyspace.table``) in ranges (:func:`deleted_ranges`) as of the end of a batch."""


def deleted_ranges(contributions: pa.RecordBatch) -> pa.Table:
    """Return the ranges of deletions: ``key``, first ``clustering``, exclusive ``clustering_end`` or null."""
    covering = np.isin(contributions["scope"].to_numpy(), (PARTITION_DELETION, RANGE_DELETION))
    ranges = pa.Table.from_batches([contributions.filter(pa.array(covering))])
    return ranges.select(["key", "clustering", "clustering_end"])


def earlier_rows(stores: Stores, now_ns: int, table: str, ranges: pa.Table, batch: int) -> EarlierRows:
    """Read the rows of ranges as of the end of a batch from the lake.

    Args:
        stores: The lake.
        now_ns: Build time of the events: later merges are ignored, so that the result is repeatable.
        table: The table.
        ranges: Result of :func:`deleted_ranges`, with at least one row.
        batch: The batch.
    """
    from pyspark.sql import functions as f

    mirror = stores.mirror(table)
    found = state_before(mirror, stores.lake.table(mirror.name), batch, now_ns // 1_000_000)
    state = found or MirrorState(Head(None))
    has_rows = state.head.snapshot is not None
    rows = _covered(stores, mirror, state, ranges) if has_rows else CONTRIBUTION_SCHEMA.empty_table()
    changes = record.CHANGE_SCHEMA.empty_table()
    if state.merged_through < batch:
        pending = stores.changes.pending(state.merged_through, batch, [table], _KINDS)
        keys = f.broadcast(stores.spark.createDataFrame(pa.table({"key": pc.unique(ranges["key"])})))
        ours = pending.join(keys, "key", "left_semi").unionByName(
            pending.where(f"kind = '{record.TRUNCATE}'")
        )
        ordered = ours.select(*record.TABLE_SCHEMA.names).orderBy("batch", "origin", "position")
        changes = ordered.toArrow().cast(record.TABLE_SCHEMA).drop_columns("batch")
    return EarlierRows(Known(rows, state.fences, state.memory), changes, found is not None)


def _covered(stores: Stores, mirror: Mirror, state: MirrorState, ranges: pa.Table) -> pa.Table:
    """Return the mirror's rows in some of the ranges."""
    from pyspark.sql import functions as f

    bounds = stores.spark.createDataFrame(ranges.rename_columns(["of", "first", "end"]))
    rows = mirror.rows(state).where("state IS NOT NULL").select(*CONTRIBUTION_SCHEMA.names)
    inside = f.expr("key = of AND clustering >= first AND (end IS NULL OR clustering < end)")
    return rows.join(f.broadcast(bounds), inside, "left_semi").toArrow().cast(CONTRIBUTION_SCHEMA)
