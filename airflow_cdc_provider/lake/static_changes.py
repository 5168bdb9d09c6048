"""What became of partitions' static columns between two snapshots of a mirror that shows them in its rows.

All rows of a partition show the same static columns, and a merge that changes these writes all of its rows
anew. So a difference (:mod:`.iceberg_difference`) tells what became of them, but for a partition of which it
has rows of one snapshot alone: a row came or went, and the partition's other rows, if there are any, stand in
files that both snapshots share. Only of such a partition, if it has statics, the other snapshot is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.lake.iceberg_difference import Difference
from airflow_cdc_provider.lake.mirror import CDC_COLUMN
from airflow_cdc_provider.lake.row_changes import DELETE, INSERT, READ, UPDATE, compared, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AS_ROWS: Final = (
    "CAST(NULL AS BINARY) clustering",
    "CAST(NULL AS BINARY) version",
    "CAST(NULL AS BINARY) state",
)
"""What rows have besides ``op`` and ``key``, and statics don't."""


def changed_statics(
    found: Difference, before: DataFrame, after: DataFrame, columns: Sequence[str]
) -> DataFrame:
    """Return the partitions whose static columns changed.

    Args:
        found: Of the mirror.
        before: All rows of the earlier snapshot.
        after: All rows of the later one.
        columns: The static columns.

    Returns:
        Columns ``op``, ``key``, and ``clustering``, ``version`` and ``state`` as nulls. ``c`` and ``u`` say
        that a static column has a value, or had one and rows of the partition are still there; ``d`` that
        nothing of the partition is there any more. Ordered by key.
    """
    gone, new = _partitions(found.gone, columns), _partitions(found.new, columns)
    then = gone.unionByName(_of_others(new, gone, before, columns)).withColumnsRenamed(_renamed("before"))
    now = new.unionByName(_of_others(gone, new, after, columns)).withColumnsRenamed(_renamed("after"))
    had, has = ("coalesce(before_has, false)", "coalesce(after_has, false)")
    op = (
        f"CASE WHEN {had} AND after_has IS NULL THEN '{DELETE}' WHEN {has} AND NOT {had} THEN '{INSERT}' "
        f"WHEN {had} AND NOT (before_statics <=> after_statics) THEN '{UPDATE}' END op"
    )
    changed = then.join(now, "key", "full_outer").selectExpr(op, "key", *_AS_ROWS)
    return changed.where("op IS NOT NULL").orderBy("key")


def all_statics(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return all partitions that have statics, in the columns and order of :func:`changed_statics`."""
    partitions = _partitions(rows, columns).where("has")
    return partitions.orderBy("key").selectExpr(f"'{READ}' op", "key", *_AS_ROWS)


def _partitions(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each partition once: ``key``, whether it ``has`` statics, and these as they are compared."""
    has = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    statics = ", ".join(f"'{number}', {compared(rows, name)}" for number, name in enumerate(columns))
    shown = rows.selectExpr(f"{CDC_COLUMN}.key key", f"({has}) has", f"named_struct({statics}) statics")
    return shown.dropDuplicates(["key"])


def _of_others(ones: DataFrame, others: DataFrame, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return partitions with statics that one side of a difference has alone, as others' rows show them."""
    alone = ones.where("has").join(others, "key", "left_anti").selectExpr("key alone")
    own = rows.join(alone, rows[f"{CDC_COLUMN}.key"] == alone["alone"], "left_semi")
    return _partitions(own, columns)


def _renamed(side: str) -> dict[str, str]:
    return {name: f"{side}_{name}" for name in ("has", "statics")}
