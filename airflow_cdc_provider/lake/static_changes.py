"""Changes of static columns between two snapshots of a mirror that shows them in its rows.

All rows of a partition show the same static columns, and a merge that changes these rewrites all of its rows.
So a difference (:mod:`.iceberg_difference`) contains the change, unless it has rows of a partition from one
snapshot only: then a row was added or removed, and the partition's other rows, if any, are in files that both
snapshots share. Only for such partitions with static columns, the other snapshot is read.
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
"""Columns that rows have in addition to ``op`` and ``key``; they are null for static columns."""


def changed_static_columns(
    found: Difference, before: DataFrame, after: DataFrame, columns: Sequence[str]
) -> DataFrame:
    """Return the partitions whose static columns changed.

    Args:
        found: The difference of the mirror's snapshots.
        before: All rows of the earlier snapshot.
        after: All rows of the later one.
        columns: The static columns.

    Returns:
        Columns ``op``, ``key``, and ``clustering``, ``version`` and ``state`` as nulls. ``c`` and ``u`` mean
        that a static column has a value, or had one and the partition still has rows; ``d`` means that the
        partition no longer exists. Ordered by key.
    """
    removed, added = _partitions(found.removed, columns), _partitions(found.added, columns)
    old = removed.unionByName(_in_shared_files(added, removed, before, columns))
    new = added.unionByName(_in_shared_files(removed, added, after, columns))
    old, new = old.withColumnsRenamed(_renamed("before")), new.withColumnsRenamed(_renamed("after"))
    had, has = ("coalesce(before_has, false)", "coalesce(after_has, false)")
    op = (
        f"CASE WHEN {had} AND after_has IS NULL THEN '{DELETE}' WHEN {has} AND NOT {had} THEN '{INSERT}' "
        f"WHEN {had} AND NOT (before_static_columns <=> after_static_columns) THEN '{UPDATE}' END op"
    )
    changed = old.join(new, "key", "full_outer").selectExpr(op, "key", *_AS_ROWS)
    return changed.where("op IS NOT NULL").orderBy("key")


def all_static_columns(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return all partitions with static columns, as :func:`changed_static_columns` returns them."""
    partitions = _partitions(rows, columns).where("has")
    return partitions.orderBy("key").selectExpr(f"'{READ}' op", "key", *_AS_ROWS)


def _partitions(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each partition once: ``key``, whether it ``has`` static columns, and these for comparison."""
    has = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    static_columns = ", ".join(f"'{number}', {compared(rows, name)}" for number, name in enumerate(columns))
    partitions = rows.selectExpr(
        f"{CDC_COLUMN}.key key", f"({has}) has", f"named_struct({static_columns}) static_columns"
    )
    return partitions.dropDuplicates(["key"])


def _in_shared_files(
    ones: DataFrame, others: DataFrame, rows: DataFrame, columns: Sequence[str]
) -> DataFrame:
    """Return partitions with static columns that only ``ones`` has, as the rows of the other snapshot."""
    alone = ones.where("has").join(others, "key", "left_anti").selectExpr("key alone")
    own = rows.join(alone, rows[f"{CDC_COLUMN}.key"] == alone["alone"], "left_semi")
    return _partitions(own, columns)


def _renamed(side: str) -> dict[str, str]:
    return {name: f"{side}_{name}" for name in ("has", "static_columns")}
