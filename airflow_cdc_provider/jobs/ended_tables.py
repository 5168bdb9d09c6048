"""Tables that the source no longer has, and whose mirrors still show rows: the feed told that they ended.

A job works on the tables that there are. One that was dropped, or renamed to another name, isn't among them,
but what ended it waits in the changes table like any other change, and its mirror is to become empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.sources.base import EndsTables

if TYPE_CHECKING:
    from airflow_cdc_provider.jobs.context import JobContext


def ended_tables(context: JobContext, tables: Collection[str]) -> Mapping[str, int]:
    """Find captured tables that are gone.

    Args:
        context: The job.
        tables: Those that the source has.

    Returns:
        By table, the newest batch that tells of its end.
    """
    source, changes = context.source, context.changes
    if not isinstance(source, EndsTables) or not changes.table.exists():
        return {}
    from pyspark.sql import functions

    rows = changes.pending(0, changes.state().batch, kinds=(record.DROP,))
    ended = rows.groupBy("source_table").agg(functions.max("batch").alias("batch")).collect()
    found = {row["source_table"]: int(row["batch"]) for row in ended}
    return {t: batch for t, batch in sorted(found.items()) if t not in tables and source.ends(t)}
