"""Inferred columns: a mirror's columns are derived from pending changes before the merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.inferred_columns import FIELD_COUNTS
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.merging.due import DueTable
from airflow_cdc_provider.sources.contract import Codec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DDL = "name string, type string, count bigint, first_index bigint, whole boolean"


def learn(d: DueTable, contributions: DataFrame) -> DueTable:
    """Adapt a mirror's columns to the changes to be merged.

    The memory of the new columns is committed before the columns change, so after a crash in between the next
    job uses the same types.

    Args:
        d: The table.
        contributions: All contributions of the merge; this reads them one more time.

    Returns:
        The table with the codec for all columns, or unchanged.
    """
    if not d.codec.infers_columns:
        return d
    counted = map_in_arrow(contributions.select(*CONTRIBUTION_SCHEMA.names), _Tally(d.codec), _DDL)
    summed = counted.groupBy("name", "type").agg(
        *_expressions("sum(count) count", "min(first_index) first_index", "bool_and(whole) whole")
    )
    counts = summed.select(*FIELD_COUNTS.names).toArrow().cast(FIELD_COUNTS)
    learned = d.codec.learn(counts)
    if learned is d.codec:
        return d
    state = d.mirror.reserve(d.state, learned.reserve(d.state.memory), clear=False)
    for change in d.mirror.prepare(learned.mirror_schema(), learned.drift):
        log.info("%s: %s", d.mirror.name, change)
    return replace(d, codec=learned, state=state)


@dataclass(frozen=True)
class _Tally:
    codec: Codec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self.codec.tally(batch)


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]
