"""What waits to be merged, per table: counts, age and fences. Cheap aggregates over the changes table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import FenceRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.lake.changes_table import ChangesTable

REPLACE = b"replace"
"""Payload of a ``snapshot_end`` record that is a fence."""


@dataclass(frozen=True)
class Pending:
    """What waits for one table.

    Args:
        changes: Changes of the source.
        snapshot_rows: Rows of snapshots.
        oldest_captured_seconds: When the oldest of them was captured (epoch), 0 if there is none.
        fences: Truncates, drops and replacing snapshots.
    """

    changes: int = 0
    snapshot_rows: int = 0
    oldest_captured_seconds: float = 0.0
    fences: tuple[FenceRecord, ...] = ()

    @property
    def rows(self) -> int:
        """How many records there are to decode."""
        return self.changes + self.snapshot_rows


def pending_by_table(changes: ChangesTable, merged: Mapping[str, int], through: int) -> dict[str, Pending]:
    """Count what each table has beyond what its mirror has merged.

    Args:
        changes: The changes table.
        merged: Per table, the last batch that its mirror has.
        through: The last batch to look at.
    """
    found: dict[str, Pending] = {}
    fenced: set[str] = set()
    for after in sorted(set(merged.values())):
        for part in changes.summary(after, through):
            table = part.source_table
            if table is None or merged.get(table) != after:
                continue
            known = found.get(table, Pending())
            if part.kind in record.DATA_KINDS:
                seconds = part.captured_at.timestamp() if part.captured_at else 0.0
                oldest = min(known.oldest_captured_seconds or seconds, seconds)
                known = replace(known, oldest_captured_seconds=oldest)
                if part.kind == record.CHANGE:
                    known = replace(known, changes=part.count)
                else:
                    known = replace(known, snapshot_rows=part.count)
            elif part.kind in record.FENCE_KINDS:
                fenced.add(table)
            found[table] = known
    if fenced:
        for table, fences in _fences(changes, {t: merged[t] for t in fenced}, through).items():
            found[table] = replace(found[table], fences=fences)
    return found


def _fences(
    changes: ChangesTable, merged: Mapping[str, int], through: int
) -> dict[str, tuple[FenceRecord, ...]]:
    from pyspark.sql import functions as f

    rows = pending_changes(changes, merged, through, record.FENCE_KINDS)
    moment = f.unix_micros(f.coalesce("committed_at", "captured_at")).alias("moment_us")
    found: dict[str, set[FenceRecord]] = {}
    for row in rows.select("source_table", "kind", "origin", "position", "payload", moment).collect():
        if row["kind"] != record.SNAPSHOT_END or bytes(row["payload"]) == REPLACE:
            fence = FenceRecord(row["origin"], bytes(row["position"]), int(row["moment_us"]))
            found.setdefault(row["source_table"], set()).add(fence)
    return {table: tuple(sorted(fences)) for table, fences in found.items()}


def pending_changes(
    changes: ChangesTable, merged: Mapping[str, int], through: int, kinds: tuple[str, ...]
) -> DataFrame:
    """Read the changes of several tables, each from its own last merged batch on."""
    from pyspark.sql import functions as f

    rows = changes.pending(min(merged.values()), through, merged, kinds)
    if len(set(merged.values())) == 1:
        return rows
    own = [(f.col("source_table") == table) & (f.col("batch") > after) for table, after in merged.items()]
    return rows.where(reduce(lambda a, b: a | b, own))
