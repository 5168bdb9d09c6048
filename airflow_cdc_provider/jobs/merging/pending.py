"""Pending changes per table: counts, age and fences, by cheap aggregates over the changes table."""

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

REREAD_UNSEEN = b"reread"
"""Prefix of the payload of one whose snapshot requests a reread of rows that it didn't return. u64 us follow,
big-endian: the snapshot was read after that time."""


@dataclass(frozen=True)
class Pending:
    """Pending changes of one table.

    Args:
        changes: Number of changes of the source.
        snapshot_rows: Number of rows of snapshots.
        static_columns: Number of records of snapshots with static columns of a partition.
        oldest_captured_seconds: When the oldest of them was captured (epoch), 0 if there is none.
        fences: Truncates, drops and replacing snapshots.
        snapshot_started_us: Start of a complete snapshot, by the source's clock: rows that are older and not
            in it must be reread; 0 for none.
    """

    changes: int = 0
    snapshot_rows: int = 0
    static_columns: int = 0
    oldest_captured_seconds: float = 0.0
    fences: tuple[FenceRecord, ...] = ()
    snapshot_started_us: int = 0

    @property
    def rows(self) -> int:
        """Number of records to decode."""
        return self.changes + self.snapshot_rows + self.static_columns


def pending_by_table(changes: ChangesTable, merged: Mapping[str, int], through: int) -> dict[str, Pending]:
    """Count the changes of each table that its mirror hasn't merged.

    Args:
        changes: The changes table.
        merged: Per table, the last batch that its mirror has merged.
        through: The last batch to count.
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
                    known = replace(known, snapshot_rows=part.rows, static_columns=part.count - part.rows)
            elif part.kind in record.FENCE_KINDS:
                fenced.add(table)
            found[table] = known
    if fenced:
        for table, pending in _fences(changes, {t: merged[t] for t in fenced}, through).items():
            found[table] = replace(
                found[table], fences=pending.fences, snapshot_started_us=pending.snapshot_started_us
            )
    return found


def _fences(changes: ChangesTable, merged: Mapping[str, int], through: int) -> dict[str, Pending]:
    from pyspark.sql import functions as f

    rows = pending_changes(changes, merged, through, record.FENCE_KINDS)
    moment = f.unix_micros(f.coalesce("committed_at", "captured_at")).alias("moment_us")
    fences: dict[str, set[FenceRecord]] = {table: set() for table in merged}
    unseen = dict.fromkeys(merged, 0)
    for row in rows.select("source_table", "kind", "origin", "position", "payload", moment).collect():
        table, payload = row["source_table"], bytes(row["payload"] or b"")
        if row["kind"] != record.SNAPSHOT_END or payload == REPLACE:
            fence = FenceRecord(row["origin"], bytes(row["position"]), int(row["moment_us"]))
            fences[table].add(fence)
        elif payload.startswith(REREAD_UNSEEN):
            unseen[table] = max(unseen[table], int.from_bytes(payload.removeprefix(REREAD_UNSEEN), "big"))
    return {
        table: Pending(fences=tuple(sorted(fences[table])), snapshot_started_us=unseen[table])
        for table in merged
    }


def pending_changes(
    changes: ChangesTable, merged: Mapping[str, int], through: int, kinds: tuple[str, ...]
) -> DataFrame:
    """Read the changes of several tables, each after its own last merged batch."""
    from pyspark.sql import functions as f

    rows = changes.pending(min(merged.values()), through, merged, kinds)
    if len(set(merged.values())) == 1:
        return rows
    own = [(f.col("source_table") == table) & (f.col("batch") > after) for table, after in merged.items()]
    return rows.where(reduce(lambda a, b: a | b, own))
