"""Settling doubts: what a fresh look at the source says about rows whose state the data couldn't decide.

A row known from a SELECT may have a liveness or tombstones that the SELECT doesn't show. When a merge meets a
case that depends on them it reports the key. The key is then read again, and what the mirror shows but the
source does not is settled by contributions that say so at the very write times in question, and touch nothing
written later:

- a cell that the source doesn't show becomes a tombstone at the cell's own write time (it wins that tie);
- a row that the source doesn't show gets, at the time of its uncertain liveness, one that never lives;
- a row that the source shows without any cell has a liveness that no deletion known so far covers, so it gets
  the oldest of which that is true, and is not in doubt again because of the same deletion.

What a *replacing* snapshot should have seen and didn't is in doubt too (:func:`unseen_keys`).

Rows that the source shows as they are held, nearly all of them, are found by a kernel
(:mod:`~airflow_cdc_provider.lake.reconcile.shown`); the others are settled one by one in Python.
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
    MADE_UP_PATH_MARK,
    NEVER,
    NEVER_LIVED,
    ROW_DELETION,
    ROW_LIVENESS,
    ROW_STATIC,
    ROW_STRICT,
    ROW_UNCERTAIN,
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
from airflow_cdc_provider.lake.reconcile.shown import shown_whole
from airflow_cdc_provider.lake.reconcile.unseen import UNSEEN, seen_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXPIRED_LIVENESS_TTL = 2**31 - 1
"""TTL with which Cassandra itself writes a liveness that never lives."""

_SEEN_DDL = "key binary, seen tinyint"
_CLOCKS_APART_SECONDS = 3600


@dataclass(frozen=True)
class Settlement:
    """What settles one row, or the statics of a partition: a contribution of ``scope`` ROW or STATIC."""

    scope: int
    key: bytes
    clustering: bytes
    state: bytes


def unseen_keys(mirror: Mirror, state: MirrorState) -> DataFrame:
    """Return the keys of which a mirror holds something that the last replacing snapshot didn't see.

    Returns:
        One column ``key``, each once.
    """
    rows = mirror.table.read(state.head).select(f"{CDC_COLUMN}.key", f"{CDC_COLUMN}.state")
    if state.statics is not None:
        rows = rows.union(mirror.static_rows(state.statics).selectExpr("key", "cast(null as binary) state"))
    return unseen_among(rows, mirror.side.read(), state.unseen_before_us)


def unseen_among(rows: DataFrame, side: DataFrame, since_us: int) -> DataFrame:
    """Do what :func:`unseen_keys` does, for rows and a side table that may not be committed yet.

    Args:
        rows: Columns ``key`` and ``state`` of rows; without a state those that show only statics.
        side: Contributions beside them.
        since_us: Whatever the snapshot read was read then or later.
    """
    from pyspark.sql import functions as f

    now = int(time.time())
    work = _SeenBy(since_us, (now + _CLOCKS_APART_SECONDS) * 1_000_000, now)
    unseen = map_in_arrow(rows.where("state IS NOT NULL"), work, _SEEN_DDL).where(f"seen = {UNSEEN}")
    # The side table has older states of statics beside the newest, and of partitions that are gone. What
    # lives of them shows in the partition's rows.
    statics = side.where(f"scope = {STATIC}").join(rows.select("key"), "key", "left_semi")
    seen = (
        map_in_arrow(statics.select("key", "state"), work, _SEEN_DDL)
        .groupBy("key")
        .agg(f.max("seen").alias("seen"))
    )
    return unseen.select("key").union(seen.where(f"seen = {UNSEEN}").select("key")).distinct()


@dataclass(frozen=True)
class _SeenBy:
    since_us: int
    until_us: int
    now_seconds: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen = seen_by(batch.column("state"), self.since_us, self.until_us, self.now_seconds)
            yield pa.RecordBatch.from_arrays([batch.column("key"), seen], names=["key", "seen"])


def settle(
    mirror_rows: pa.Table,
    mirror_side: pa.Table,
    read_again: Iterable[pa.RecordBatch],
    now_seconds: int,
) -> Iterator[Settlement]:
    """Compare what a mirror holds of some keys with what the source shows of them now.

    Args:
        mirror_rows: All rows of these keys: columns ``key``, ``clustering``, ``state`` of ``_cdc``.
        mirror_side: Their statics and deletions, contributions of the side table.
        read_again: Contributions decoded from the second reading.
        now_seconds: The moment of the merge: cells that have expired are not missed.

    Yields:
        One settlement per row, and per partition's statics, that the source shows otherwise.
    """
    shown = pa.Table.from_batches(read_again, CONTRIBUTION_SCHEMA)
    shown_statics = {
        row["key"]: read_cell_row(row["state"])
        for row in shown.filter(pc.equal(shown["scope"], STATIC)).select(["key", "state"]).to_pylist()
    }
    statics: dict[bytes, list[CellRow]] = {}
    deletions: dict[bytes, list[_Deletion]] = {}
    for row in mirror_side.to_pylist():
        if row["scope"] == STATIC:
            statics.setdefault(row["key"], []).append(read_cell_row(row["state"]))
        elif row["scope"] in (PARTITION_DELETION, RANGE_DELETION):
            deletion = _Deletion(
                row["clustering"], row["clustering_end"], read_cell_row(row["state"]).deletion_us
            )
            deletions.setdefault(row["key"], []).append(deletion)
    for key, versions in statics.items():
        if gone := _unshown(_newest_cells(versions), shown_statics.get(key), now_seconds):
            yield Settlement(STATIC, key, b"", write_cell_row(CellRow(ROW_STATIC, cells=gone)))
    for row in _not_shown_whole(mirror_rows, shown, now_seconds).to_pylist():
        key, clustering, held = row["key"], row["clustering"], read_cell_row(row["state"])
        above = [d.deletion_us for d in deletions.get(key, ()) if d.covers(clustering)]
        seen = None if row["shown"] is None else read_cell_row(row["shown"])
        settled = _settle_row(held, seen, above, now_seconds)
        if settled is not None:
            yield Settlement(ROW, key, clustering, write_cell_row(settled))


def _not_shown_whole(mirror_rows: pa.Table, shown: pa.Table, now_seconds: int) -> pa.Table:
    """Return the rows that may need a settlement, with what is shown of each as column ``shown``, or null."""
    held = mirror_rows.filter(pc.is_valid(mirror_rows["state"]))
    shown = shown.filter(pc.equal(shown["scope"], ROW))
    place = pc.index_in(_row_ids(held), value_set=_row_ids(shown))
    states = pc.take(one_array(shown["state"]), place)
    both = pc.is_valid(place)
    whole = shown_whole(one_array(held["state"]).filter(both), states.filter(both), now_seconds)
    settled = pc.replace_with_mask(pa.array(np.zeros(len(held), np.bool_)), both, whole)
    return held.append_column("shown", states).filter(pc.invert(settled))


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
    return (newest[place] for place in sorted(newest))


def _settle_row(
    held: CellRow, shown: CellRow | None, above: Sequence[int], now_seconds: int
) -> CellRow | None:
    gone = _unshown(held.cells, shown, now_seconds)
    if shown is None and held.flags & (ROW_UNCERTAIN | ROW_LIVENESS):
        return CellRow(
            ROW_LIVENESS,
            EXPIRED_LIVENESS_TTL,
            _last_liveness(held),
            now_seconds,
            clustering=held.clustering,
            cells=gone,
        )
    if shown is not None and not shown.cells and not shown.flags & ROW_STRICT:
        hidden_us = _hidden_liveness(held, shown.liveness_us, above)
        if hidden_us is not None:
            return CellRow(
                ROW_UNCERTAIN,
                liveness_us=shown.liveness_us,
                expiry_seconds=hidden_us,
                clustering=held.clustering,
                cells=gone,
            )
    if not gone:
        return None
    return CellRow(0, clustering=held.clustering, expiry_seconds=NEVER, cells=gone)


def _last_liveness(held: CellRow) -> int:
    """Return the write time of the liveness by which a row lives; of an unknown one, when it was read."""
    told = held.flags & ROW_STRICT and not held.flags & ROW_LIVENESS and held.expiry_seconds != NEVER
    return held.expiry_seconds if told else held.liveness_us


def _hidden_liveness(held: CellRow, read_us: int, above: Sequence[int]) -> int | None:
    """Return the write time of a liveness by which a row that is shown without cells lives.

    It is just later than whatever would have ended it. None if what is known tells that the row lives.
    """
    outlived = [*above]
    if held.flags & ROW_DELETION:
        outlived.append(held.deletion_us)
    known_us, end = NEVER, 0
    if held.flags & ROW_LIVENESS:
        known_us = held.liveness_us
        end = NEVER_LIVED if held.ttl == EXPIRED_LIVENESS_TTL else held.expiry_seconds if held.ttl else 0
    elif held.flags & ROW_UNCERTAIN:
        known_us, end = held.expiry_seconds, held.ttl & NEVER_LIVED
    if known_us != NEVER:
        lives = end == 0 or (end != NEVER_LIVED and end > read_us // 1_000_000)
        if lives and known_us > max(outlived, default=-NEVER):
            return None
        outlived.append(known_us)
    elif not outlived and not held.cells:
        return None
    return max(outlived, default=-NEVER) + 1


def _unshown(cells: Iterable[Cell], shown: CellRow | None, now_seconds: int) -> tuple[Cell, ...]:
    """Return tombstones for the cells that live and aren't shown, in the same order."""
    shown_cells = () if shown is None else shown.cells
    seen = {(c.column, c.path) for c in shown_cells}
    missed = [c for c in cells if _lives(c, now_seconds) and (c.column, c.path) not in seen]
    # A list's element is shown under a made-up path: what tells it is its write time and value.
    elements = {(c.column, c.time_us, c.value) for c in shown_cells if _is_made_up(c)}
    return tuple(
        Cell(c.column, CELL_TOMBSTONE | (c.flags & CELL_PATH), 0, c.time_us, now_seconds, c.path, b"")
        for c in missed
        if _is_made_up(c) or (c.column, c.time_us, c.value) not in elements
    )


def _is_made_up(cell: Cell) -> bool:
    return len(cell.path) == 16 and cell.path[8:].startswith(MADE_UP_PATH_MARK)


def _lives(cell: Cell, now_seconds: int) -> bool:
    if cell.flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
        return False
    return not cell.flags & CELL_EXPIRING or cell.end_seconds > now_seconds
