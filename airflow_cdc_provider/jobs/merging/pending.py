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

REREAD_UNSEEN = b"reread"
"""Begins the payload of one whose snapshot asks to read again what it didn't see. u64 us follow, big-endian:
what it saw was read after that."""


@dataclass(frozen=True)
class Pending:
    """What waits for one table.

    Args:
        changes: Changes of the source.
        snapshot_rows: Rows of snapshots.
        oldest_captured_seconds: When the oldest of them was captured (epoch), 0 if there is none.
        fences: Truncates, drops and replacing snapshots.
        unseen_before_us: A snapshot that saw all that is there has read since then, by the source's clock; 0
            for none.
    """

    changes: int = 0
    snapshot_rows: int = 0
    oldest_captured_seconds: float = 0.0
    fences: tuple[FenceRecord, ...] = ()
    unseen_before_us: int = 0

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
        for table, pending in _fences(changes, {t: merged[t] for t in fenced}, through).items():
            found[table] = replace(
                found[table], fences=pending.fences, unseen_before_us=pending.unseen_before_us
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
        table: Pending(fences=tuple(sorted(fences[table])), unseen_before_us=unseen[table])
        for table in merged
    }


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
