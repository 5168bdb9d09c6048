"""Resolving keys whose state the data can't decide, by reading them again at the source.

A row known from a SELECT may have a liveness or tombstones that the SELECT doesn't return. If the outcome of
a merge depends on them, the merge reports the key, which is then read again. Where mirror and source differ,
contributions with exactly the write times concerned correct the mirror; they don't affect later writes:

- a cell that the source doesn't return becomes a tombstone with the cell's write time (it wins that tie);
- a row that the source doesn't return gets a liveness that is never live, with the time of its uncertain one;
- a row that the source returns without cells has a liveness that no known deletion covers. It gets the oldest
  such liveness, so that the same deletion doesn't make it unresolved again.

Keys of which a *replacing* snapshot missed something are unresolved too (:func:`keys_not_in_snapshot`).

A kernel (:mod:`~airflow_cdc_provider.lake.reconcile.fully_observed`) finds the rows that the source returns
unchanged, nearly all of them; the others are resolved one by one in Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_row import Cell, CellRow, read_cell_row, write_cell_row
from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_PATH,
    CELL_TOMBSTONE,
    NEVER,
    NEVER_LIVED,
    ROW_DELETION,
    ROW_LIVENESS,
    ROW_STATIC,
    ROW_STRICT,
    ROW_UNCERTAIN,
    SYNTHETIC_PATH_MARK,
)
from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    STATIC,
)
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Mirror, MirrorState, row_ids
from airflow_cdc_provider.lake.reconcile.flat import one_array
from airflow_cdc_provider.lake.reconcile.fully_observed import fully_observed
from airflow_cdc_provider.lake.reconcile.not_in_snapshot import NOT_IN_SNAPSHOT, snapshot_status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPIRED_LIVENESS_TTL = 2**31 - 1
"""TTL of a liveness that is never live, as Cassandra writes it."""

_STATUS_DDL = "key binary, status tinyint"
_MAX_CLOCK_SKEW_SECONDS = 3600


@dataclass(frozen=True)
class Resolution:
    """A contribution of ``scope`` ROW or STATIC that resolves a row or the static columns of a partition."""

    scope: int
    key: bytes
    clustering: bytes
    state: bytes


def keys_not_in_snapshot(mirror: Mirror, state: MirrorState) -> DataFrame:
    """Return the keys of which a mirror holds data that the last replacing snapshot didn't read.

    Returns:
        One column ``key``, each once.
    """
    rows = mirror.table.read(state.head).select(f"{CDC_COLUMN}.key", f"{CDC_COLUMN}.state")
    if state.static_columns is not None:
        rows = rows.union(
            mirror.static_rows(state.static_columns).selectExpr("key", "cast(null as binary) state")
        )
    return find_keys_not_in_snapshot(rows, mirror.tombstones.read(), state.snapshot_started_us)


def find_keys_not_in_snapshot(rows: DataFrame, tombstones: DataFrame, since_us: int) -> DataFrame:
    """Find the keys of :func:`keys_not_in_snapshot` in rows and tombstones that may not be committed yet.

    Args:
        rows: Columns ``key`` and ``state`` of rows; rows with only static columns have no state.
        tombstones: Contributions of the tombstone table.
        since_us: Start of the snapshot: all its readings have this time or a later one.

    Returns:
        One column ``key``, each once.
    """
    from pyspark.sql import functions as f

    now = int(time.time())
    work = _SnapshotStatus(since_us, (now + _MAX_CLOCK_SKEW_SECONDS) * 1_000_000, now)
    missed = map_in_arrow(rows.where("state IS NOT NULL"), work, _STATUS_DDL).where(
        f"status = {NOT_IN_SNAPSHOT}"
    )
    # The tombstone table also has older states of static columns, and those of deleted partitions. The rows
    # of a partition have the live ones.
    static_columns = tombstones.where(f"scope = {STATIC}").join(rows.select("key"), "key", "left_semi")
    static_status = (
        map_in_arrow(static_columns.select("key", "state"), work, _STATUS_DDL)
        .groupBy("key")
        .agg(f.max("status").alias("status"))
    )
    return (
        missed.select("key")
        .union(static_status.where(f"status = {NOT_IN_SNAPSHOT}").select("key"))
        .distinct()
    )


@dataclass(frozen=True)
class _SnapshotStatus:
    since_us: int
    until_us: int
    now_seconds: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            status = snapshot_status(batch.column("state"), self.since_us, self.until_us, self.now_seconds)
            yield pa.RecordBatch.from_arrays([batch.column("key"), status], names=["key", "status"])


def resolve(
    mirror_rows: pa.Table,
    mirror_tombstones: pa.Table,
    read_again: Iterable[pa.RecordBatch],
    now_seconds: int,
) -> Iterator[Resolution]:
    """Compare a mirror's rows of some keys with the source's present rows.

    Args:
        mirror_rows: All rows of these keys: columns ``key``, ``clustering``, ``state`` of ``_cdc``.
        mirror_tombstones: Their static columns and deletions, contributions of the tombstone table.
        read_again: Contributions decoded from the second reading.
        now_seconds: Epoch second of the merge: cells that have expired don't count as missing.

    Yields:
        One resolution per row, and per partition's static columns, that differs at the source.
    """
    read = pa.Table.from_batches(read_again, CONTRIBUTION_SCHEMA)
    read_static = {
        row["key"]: read_cell_row(row["state"])
        for row in read.filter(pc.equal(read["scope"], STATIC)).select(["key", "state"]).to_pylist()
    }
    static_columns: dict[bytes, list[CellRow]] = {}
    deletions: dict[bytes, list[_Deletion]] = {}
    for row in mirror_tombstones.to_pylist():
        if row["scope"] == STATIC:
            static_columns.setdefault(row["key"], []).append(read_cell_row(row["state"]))
        elif row["scope"] in (PARTITION_DELETION, RANGE_DELETION):
            deletion = _Deletion(
                row["clustering"], row["clustering_end"], read_cell_row(row["state"]).deletion_us
            )
            deletions.setdefault(row["key"], []).append(deletion)
    for key, versions in static_columns.items():
        if tombstones := _missing_cells(_newest_cells(versions), read_static.get(key), now_seconds):
            yield Resolution(STATIC, key, b"", write_cell_row(CellRow(ROW_STATIC, cells=tombstones)))
    for row in _not_fully_observed(mirror_rows, read, now_seconds).to_pylist():
        key, clustering, stored = row["key"], row["clustering"], read_cell_row(row["state"])
        covering_us = [d.deletion_us for d in deletions.get(key, ()) if d.covers(clustering)]
        seen = None if row["read"] is None else read_cell_row(row["read"])
        resolution = _resolve_row(stored, seen, covering_us, now_seconds)
        if resolution is not None:
            yield Resolution(ROW, key, clustering, write_cell_row(resolution))


def _not_fully_observed(mirror_rows: pa.Table, read: pa.Table, now_seconds: int) -> pa.Table:
    """Return the rows that may need a resolution; column ``read`` has the state that was read, or null."""
    stored = mirror_rows.filter(pc.is_valid(mirror_rows["state"]))
    read = read.filter(pc.equal(read["scope"], ROW))
    index = pc.index_in(_row_ids(stored), value_set=_row_ids(read))
    states = pc.take(one_array(read["state"]), index)
    both = pc.is_valid(index)
    whole = fully_observed(one_array(stored["state"]).filter(both), states.filter(both), now_seconds)
    unchanged = pc.replace_with_mask(pa.array(np.zeros(len(stored), np.bool_)), both, whole)
    return stored.append_column("read", states).filter(pc.invert(unchanged))


def _row_ids(rows: pa.Table) -> pa.Array:
    return row_ids(rows["key"].combine_chunks(), rows["clustering"].combine_chunks())


class _Deletion(NamedTuple):
    """A deletion of a partition or of a range of its rows."""

    clustering: bytes | None
    clustering_end: bytes | None
    deletion_us: int

    def covers(self, clustering: bytes) -> bool:
        return (self.clustering or b"") <= clustering and (
            self.clustering_end is None or clustering < self.clustering_end
        )


def _newest_cells(versions: Iterable[CellRow]) -> Iterator[Cell]:
    """Yield the newest version of each cell, in the order of the layout; no deletions of whole columns."""
    newest: dict[tuple[int, bytes], Cell] = {}
    for version in versions:
        for cell in version.cells:
            known = newest.get((cell.column, cell.path))
            if not cell.flags & CELL_COMPLEX_DELETION and (known is None or cell.time_us > known.time_us):
                newest[cell.column, cell.path] = cell
    return (newest[cell_key] for cell_key in sorted(newest))


def _resolve_row(
    stored: CellRow, read: CellRow | None, covering_us: Sequence[int], now_seconds: int
) -> CellRow | None:
    tombstones = _missing_cells(stored.cells, read, now_seconds)
    if read is None and stored.flags & (ROW_UNCERTAIN | ROW_LIVENESS):
        return CellRow(
            ROW_LIVENESS,
            EXPIRED_LIVENESS_TTL,
            _last_liveness(stored),
            now_seconds,
            clustering=stored.clustering,
            cells=tombstones,
        )
    if read is not None and not read.cells and not read.flags & ROW_STRICT:
        hidden_us = _hidden_liveness(stored, read.liveness_us, covering_us)
        if hidden_us is not None:
            return CellRow(
                ROW_UNCERTAIN,
                liveness_us=read.liveness_us,
                expiry_seconds=hidden_us,
                clustering=stored.clustering,
                cells=tombstones,
            )
    if not tombstones:
        return None
    return CellRow(0, clustering=stored.clustering, expiry_seconds=NEVER, cells=tombstones)


def _last_liveness(stored: CellRow) -> int:
    """Return the write time of the liveness that keeps a row alive; of an unknown one, when it was read."""
    known = stored.flags & ROW_STRICT and not stored.flags & ROW_LIVENESS and stored.expiry_seconds != NEVER
    return stored.expiry_seconds if known else stored.liveness_us


def _hidden_liveness(stored: CellRow, read_us: int, covering_us: Sequence[int]) -> int | None:
    """Return the write time of a liveness that keeps a row without cells alive.

    It is just later than any known deletion or expiry. None if a known liveness keeps the row alive.
    """
    ended_us = [*covering_us]
    if stored.flags & ROW_DELETION:
        ended_us.append(stored.deletion_us)
    known_us, end = NEVER, 0
    if stored.flags & ROW_LIVENESS:
        known_us = stored.liveness_us
        end = (
            NEVER_LIVED if stored.ttl == EXPIRED_LIVENESS_TTL else stored.expiry_seconds if stored.ttl else 0
        )
    elif stored.flags & ROW_UNCERTAIN:
        known_us, end = stored.expiry_seconds, stored.ttl & NEVER_LIVED
    if known_us != NEVER:
        lives = end == 0 or (end != NEVER_LIVED and end > read_us // 1_000_000)
        if lives and known_us > max(ended_us, default=-NEVER):
            return None
        ended_us.append(known_us)
    elif not ended_us and not stored.cells:
        return None
    return max(ended_us, default=-NEVER) + 1


def _missing_cells(cells: Iterable[Cell], read: CellRow | None, now_seconds: int) -> tuple[Cell, ...]:
    """Return tombstones for the live cells that were not read again, in the same order."""
    read_cells = () if read is None else read.cells
    seen = {(c.column, c.path) for c in read_cells}
    missed = [c for c in cells if _lives(c, now_seconds) and (c.column, c.path) not in seen]
    # A list's element is read under a synthetic path: its write time and value identify it.
    elements = {(c.column, c.time_us, c.value) for c in read_cells if _is_synthetic(c)}
    return tuple(
        Cell(c.column, CELL_TOMBSTONE | (c.flags & CELL_PATH), 0, c.time_us, now_seconds, c.path, b"")
        for c in missed
        if _is_synthetic(c) or (c.column, c.time_us, c.value) not in elements
    )


def _is_synthetic(cell: Cell) -> bool:
    return len(cell.path) == 16 and cell.path[8:].startswith(SYNTHETIC_PATH_MARK)


def _lives(cell: Cell, now_seconds: int) -> bool:
    if cell.flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
        return False
    return not cell.flags & CELL_EXPIRING or cell.end_seconds > now_seconds
