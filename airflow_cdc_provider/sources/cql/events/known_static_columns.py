"""The current static cells of partitions in the tombstone table of a mirror."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, PARTITION_DELETION, STATIC
from airflow_cdc_provider.changes.fence import Fence, newest_generation
from airflow_cdc_provider.lake.mirror import Mirror
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.lake.reconcile.columns import only_columns
from airflow_cdc_provider.sources.cql.codec import CqlCodec


@dataclass(frozen=True)
class KnownStaticColumns:
    """The static columns of some partitions.

    Args:
        states: Cell rows of static columns, null where none of them has a value.
        written_us: The last time each partition's static columns were written or deleted, us since 1970; a
            small number if unknown.
    """

    states: pa.Array
    written_us: np.ndarray


NEVER_WRITTEN = np.iinfo(np.int64).min
"""Write time of a partition whose static columns were never written."""


def known_static_columns(
    mirror: Mirror, codec: CqlCodec, fences: Sequence[Fence], keys: pa.Array, now_seconds: int
) -> KnownStaticColumns:
    """Return the static cells of partitions.

    Args:
        mirror: The mirror.
        codec: The table's codec, with the column ids of the mirror.
        fences: The mirror's fences.
        keys: Partition keys (binary), in any order, with duplicates.
        now_seconds: The time at which expiry is evaluated, s since 1970.
    """
    from pyspark.sql import functions as f

    if not codec.schema.static or not len(keys):
        return KnownStaticColumns(pa.nulls(len(keys), pa.binary()), np.full(len(keys), NEVER_WRITTEN))
    remembered, names = mirror.tombstone_rows(), CONTRIBUTION_SCHEMA.names
    wanted = remembered.sparkSession.createDataFrame(pa.table({"key": pc.unique(keys)}))
    fence = newest_generation(fences)
    own = remembered.where(f"scope IN ({STATIC}, {PARTITION_DELETION}) AND generation >= {fence}")
    found = (
        own.join(f.broadcast(wanted), "key", "left_semi").select(*names).toArrow().cast(CONTRIBUTION_SCHEMA)
    )
    return static_columns_of(found, codec, keys, now_seconds, fence)


def static_columns_of(
    found: pa.Table, codec: CqlCodec, keys: pa.Array, now_seconds: int, generation: int = 0
) -> KnownStaticColumns:
    """Return the static cells of partitions, from their contributions in a tombstone table.

    Args:
        found: ``CONTRIBUTION_SCHEMA``: static cells and deletions of partitions.
        codec: The table's codec.
        keys: Partition keys.
        now_seconds: The time at which expiry is evaluated.
        generation: Contributions of lower generations don't count.
    """
    found = found.combine_chunks()
    if codec.column_ids is not None:
        states = only_columns(found["state"], codec.column_ids)
        found = found.set_column(found.schema.get_field_index("state"), "state", states)
    outcome = reconcile_cells(
        found, now_seconds, rules=codec.rules, min_generation=generation, static_columns_table=True
    )
    static_rows = outcome.static_columns.combine_chunks()
    owners = pc.index_in(keys, value_set=_one(static_rows["key"]))
    written = np.full(len(keys), NEVER_WRITTEN)
    contributed = _one(found["key"])
    if len(contributed):
        numbers = pc.index_in(contributed, value_set=pc.unique(keys)).to_numpy()
        latest = np.full(len(pc.unique(keys)), NEVER_WRITTEN)
        np.maximum.at(latest, numbers, latest_times(_one(found["state"])))
        written = latest[pc.index_in(keys, value_set=pc.unique(keys)).to_numpy()]
    return KnownStaticColumns(_one(static_rows["static_state"]).take(owners), written)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks().cast(pa.binary())
