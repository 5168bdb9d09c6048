"""Settling doubts: what a fresh look at the source says about rows whose state the data couldn't decide.

A row known from a SELECT may have a liveness or tombstones that the SELECT doesn't show. When a merge meets a
case that depends on them it reports the key. The key is then read again, and what the mirror shows but the
source does not is settled by contributions that say so at the very write times in question, and touch nothing
written later:

- a cell that the source doesn't show becomes a tombstone at the cell's own write time (it wins that tie);
- a row that the source doesn't show gets, at the time of its uncertain liveness, one that never lives;
- a row that the source shows without any cell has a liveness that no deletion known so far covers, so it gets
  the oldest of which that is true, and is not in doubt again because of the same deletion.

Handled one by one in Python: doubts are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

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
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.changes.contribution import ROW

EXPIRED_LIVENESS_TTL = 2**31 - 1
"""TTL with which Cassandra itself writes a liveness that never lives."""


@dataclass(frozen=True)
class Settlement:
    """What settles one row: a contribution of scope ROW."""

    key: bytes
    clustering: bytes
    state: bytes


def settle(
    mirror_rows: pa.Table, read_again: Iterable[pa.RecordBatch], now_seconds: int
) -> Iterator[Settlement]:
    """Compare what a mirror holds of some keys with what the source shows of them now.

    Args:
        mirror_rows: All rows of these keys: columns ``key``, ``clustering``, ``state`` of ``_cdc``.
        read_again: Contributions decoded from the second reading.
        now_seconds: The moment of the merge: cells that have expired are not missed.

    Yields:
        One settlement per row that the source shows otherwise.
    """
    shown = {
        (row["key"], row["clustering"]): read_cell_row(row["state"])
        for batch in read_again
        for row in batch.to_pylist()
        if row["scope"] == ROW
    }
    for row in mirror_rows.to_pylist():
        if row["state"] is None:
            continue
        held = read_cell_row(row["state"])
        settled = _settle_row(held, shown.get((row["key"], row["clustering"])), now_seconds)
        if settled is not None:
            yield Settlement(row["key"], row["clustering"], write_cell_row(settled))


def _settle_row(held: CellRow, shown: CellRow | None, now_seconds: int) -> CellRow | None:
    seen = {(c.column, c.path) for c in shown.cells} if shown is not None else set()
    # A list's element is shown under a made-up path: what tells it is its write time and value.
    elements = {(c.column, c.time_us, c.value) for c in (shown.cells if shown else ()) if _is_made_up(c)}
    gone = tuple(
        Cell(c.column, CELL_TOMBSTONE | (c.flags & CELL_PATH), 0, c.time_us, now_seconds, c.path, b"")
        for c in held.cells
        if _lives(c, now_seconds)
        and (c.column, c.path) not in seen
        and (_is_made_up(c) or (c.column, c.time_us, c.value) not in elements)
    )
    dead = shown is None and held.flags & (ROW_UNCERTAIN | ROW_LIVENESS)
    if shown is not None and not shown.cells and not held.cells and held.flags & ROW_UNCERTAIN:
        return _settle_liveness(held, shown.liveness_us, now_seconds)
    if not gone and not dead:
        return None
    if dead:
        return CellRow(
            ROW_LIVENESS,
            EXPIRED_LIVENESS_TTL,
            held.liveness_us,
            now_seconds,
            clustering=held.clustering,
            cells=gone,
        )
    return CellRow(0, clustering=held.clustering, expiry_seconds=NEVER, cells=gone)


def _settle_liveness(held: CellRow, read_us: int, now_seconds: int) -> CellRow | None:
    """Settle a row that lives without cells: a liveness just later than what would have ended it."""
    known_us, end = held.expiry_seconds, held.ttl & NEVER_LIVED
    lives = end == 0 or (end != NEVER_LIVED and end > max(now_seconds, held.liveness_us // 1_000_000))
    if known_us != NEVER and lives:
        return None
    outlived = [known_us] if known_us != NEVER else []
    if held.flags & ROW_DELETION:
        outlived.append(held.deletion_us)
    if not outlived:
        return None
    return CellRow(
        ROW_UNCERTAIN, liveness_us=read_us, expiry_seconds=max(outlived) + 1, clustering=held.clustering
    )


def _is_made_up(cell: Cell) -> bool:
    return len(cell.path) == 16 and cell.path[8:].startswith(MADE_UP_PATH_MARK)


def _lives(cell: Cell, now_seconds: int) -> bool:
    if cell.flags & (CELL_TOMBSTONE | CELL_COMPLEX_DELETION):
        return False
    return not cell.flags & CELL_EXPIRING or cell.end_seconds > now_seconds
