"""Collect metadata of the cell rows of updates: liveness, deletions, expiry, present cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_HEADER_BYTES,
    CELL_TOMBSTONE,
    NEVER,
    NEVER_LIVED,
    ROW_DELETION,
    ROW_HEADER_BYTES,
    ROW_LIVENESS,
    ROW_STRICT,
    ROW_UNCERTAIN,
)
from airflow_cdc_provider.formats.byte_kernels import load_little16, load_little32, load_little64
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.cassandra.decoding.times import EXPIRED_TTL
from airflow_cdc_provider.sources.cql.decoding.sink import STATE_END, Sink
from airflow_cdc_provider.sources.cql.schema import Column
from airflow_cdc_provider.sources.cql.select_rows import UNKNOWN_TIME


@dataclass(frozen=True)
class Facts:
    """Metadata of contributions. By contribution, or by contribution and column.

    ``states``    cell rows in which removed elements that events list are marked as live
    ``inserted``  whether it has row liveness that its deletion doesn't cover
    ``deleted``, ``deleted_at``  its deletion, write time in us; or the liveness with which a view ends a row
    ``survives``  whether it has liveness or cells later than its deletion
    ``latest``    greatest write time
    ``live``, ``dead``  number of cells, without those that the deletion covers
    ``emptied``   whether the whole collection was deleted
    ``expires``, ``expiry``  whether all live cells expire in the same second, and which
    ``dead_at``   greatest write time of dead cells
    ``selected``  whether it was read by a SELECT; such a row counts as inserted. ``latest`` is the time of
                  reading if the row has no write time
    """

    states: Bytes
    inserted: Flags
    deleted: Flags
    deleted_at: Ints
    survives: Flags
    latest: Ints
    live: Ints
    dead: Ints
    emptied: Flags
    expires: Flags
    expiry: Ints
    dead_at: Ints
    selected: Flags

    def take(self, order: Ints) -> Facts:
        """Return the facts of the contributions at these indexes; ``states`` are unchanged."""
        if np.array_equal(order, np.arange(len(self.live))):
            return self
        selected = {f.name: getattr(self, f.name)[order] for f in fields(self) if f.name != "states"}
        return replace(self, **selected)


_SIMPLE: Final = 0
_SET: Final = 1
_MAP: Final = 2
_OTHER: Final = 3


def collect_facts(sink: Sink, rows: Ints, slots: Ints, cells: Sequence[Column]) -> Facts:
    """Walk the cell rows of a sink; see :func:`facts_of`."""
    return facts_of(sink.states, np.ascontiguousarray(rows[:, STATE_END]), slots, cells)


def facts_of(plain: Bytes, ends: Ints, slots: Ints, cells: Sequence[Column]) -> Facts:
    """Walk cell rows.

    Args:
        plain: The cell rows, concatenated. Cells that their row's own deletion covers get a column id that no
            table has.
        ends: End offset of each.
        slots: By column id, the column's index in ``cells``, -1 for none.
        cells: Static and regular columns.

    Returns:
        The facts of each cell row.
    """
    shapes = np.array(
        [
            {"set": _SET, "map": _MAP}.get(c.type.name, _OTHER) if c.type.multi_cell else _SIMPLE
            for c in cells
        ],
        np.int64,
    )
    size = (len(ends), max(len(cells), 1))
    facts = Facts(
        states=plain[: ends[-1] if len(ends) else 0],
        inserted=np.zeros(len(ends), np.bool_),
        deleted=np.zeros(len(ends), np.bool_),
        deleted_at=np.zeros(len(ends), np.int64),
        survives=np.zeros(len(ends), np.bool_),
        latest=np.full(len(ends), np.iinfo(np.int64).min),
        live=np.zeros(size, np.int64),
        dead=np.zeros(size, np.int64),
        emptied=np.zeros(size, np.bool_),
        expires=np.zeros(size, np.bool_),
        expiry=np.zeros(size, np.int64),
        dead_at=np.zeros(size, np.int64),
        selected=np.zeros(len(ends), np.bool_),
    )
    _collect(
        plain,
        ends,
        slots,
        facts.inserted,
        facts.deleted,
        facts.deleted_at,
        facts.survives,
        facts.latest,
        facts.live,
        facts.dead,
        facts.emptied,
        facts.expires,
        facts.expiry,
        facts.dead_at,
        facts.selected,
    )
    if not facts.dead.any() or not np.isin(shapes, (_SET, _MAP)).any():
        return facts
    states = facts.states.copy()
    _show_removed(states, ends, slots, shapes, facts.live)
    return replace(facts, states=states)


def liveness_at(plain: Bytes, starts: Ints, at_us: Ints) -> tuple[Flags, Flags]:
    """Return whether each cell row had unexpired liveness, and whether it exists by its liveness alone.

    Args:
        plain: The cell rows, concatenated.
        starts: Offset of each.
        at_us: The time at which to evaluate the expiry of each.

    Returns:
        Two booleans for each cell row.
    """
    flags = plain[starts + 1]
    ttl = _column(plain, starts + 4, np.int32)
    end = ttl.view(np.uint32).astype(np.int64)
    expiry = _column(plain, starts + 16, np.int64)
    strict = flags & ROW_STRICT != 0
    at_seconds = at_us // 1_000_000
    known = (flags & ROW_LIVENESS != 0) & ((ttl == 0) | ((ttl != EXPIRED_TTL) & (expiry > at_seconds)))
    read = (flags & ROW_UNCERTAIN != 0) & (flags & ROW_LIVENESS == 0)
    read &= ~strict | ((expiry != NEVER) & ((end == 0) | ((end != NEVER_LIVED) & (end > at_seconds))))
    return known | read, strict


def _column(plain: Bytes, starts: Ints, kind: type[np.generic]) -> NDArray[Any]:
    """Read a little-endian number at each offset."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(plain[starts[:, np.newaxis] + np.arange(width)]).view(kind).ravel()


@walker
def _collect(
    plain: Bytes,
    ends: Ints,
    slots: Ints,
    inserted: Flags,
    deleted: Flags,
    deleted_at: Ints,
    survives: Flags,
    latest: Ints,
    live: Ints,
    dead: Ints,
    emptied: Flags,
    expires: Flags,
    expiry: Ints,
    dead_at: Ints,
    selected: Flags,
) -> None:
    """Walk all cell rows; cells that the row's own deletion covers get a column id that no table has."""
    begin = np.int64(0)
    for row in range(len(ends)):
        flags = plain[begin + 1]
        ended = False
        if flags & ROW_DELETION:
            deleted[row] = True
            deleted_at[row] = load_little64(plain, begin + 24)
            latest[row] = max(latest[row], deleted_at[row])
        if flags & ROW_LIVENESS:
            time = load_little64(plain, begin + 8)
            latest[row] = max(latest[row], time)
            ended = load_little32(plain, begin + 4) == EXPIRED_TTL
            if ended:
                deleted_at[row] = max(deleted_at[row], time) if deleted[row] else time
                deleted[row] = True
            elif not deleted[row] or time > deleted_at[row]:
                inserted[row] = True
                survives[row] = True
        elif flags & ROW_UNCERTAIN and (flags & ROW_STRICT or load_little64(plain, begin + 16) == NEVER):
            selected[row], inserted[row], survives[row] = True, True, True
            if flags & ROW_STRICT:
                latest[row] = load_little64(plain, begin + 16)
        count = load_little32(plain, begin + 44)
        at = begin + ROW_HEADER_BYTES + load_little32(plain, begin + 40)
        for _ in range(count):
            column, mark = load_little16(plain, at), plain[at + 2]
            time, ending = load_little64(plain, at + 8), load_little64(plain, at + 16)
            after = at + CELL_HEADER_BYTES + load_little32(plain, at + 24) + load_little32(plain, at + 28)
            latest[row] = max(latest[row], time)
            slot = slots[column] if column < len(slots) else np.int64(-1)
            if deleted[row] and time <= deleted_at[row]:
                plain[at], plain[at + 1] = 255, 255
            elif slot >= 0:
                survives[row] = True
                if mark & CELL_COMPLEX_DELETION:
                    emptied[row, slot] = True
                elif mark & CELL_TOMBSTONE:
                    dead_at[row, slot] = max(dead_at[row, slot], time) if dead[row, slot] else time
                    dead[row, slot] += 1
                else:
                    expiring = mark & CELL_EXPIRING != 0
                    if live[row, slot] == 0:
                        expires[row, slot], expiry[row, slot] = expiring, ending
                    elif not expiring or expiry[row, slot] != ending:
                        expires[row, slot] = False
                    live[row, slot] += 1
            at = after
        if ended:
            survives[row] = False  # readers see no other cells of such a row
        if selected[row] and latest[row] <= UNKNOWN_TIME:
            latest[row] = load_little64(plain, begin + 8)
        begin = ends[row]


@walker
def _show_removed(states: Bytes, ends: Ints, slots: Ints, shapes: Ints, live: Ints) -> None:
    """Mark removed elements as live: all of maps, and those of sets to which the update adds none."""
    begin = np.int64(0)
    for row in range(len(ends)):
        at = begin + ROW_HEADER_BYTES + load_little32(states, begin + 40)
        for _ in range(load_little32(states, begin + 44)):
            column, mark = load_little16(states, at), states[at + 2]
            slot = slots[column] if column < len(slots) else np.int64(-1)
            if slot >= 0 and mark & CELL_TOMBSTONE:
                shape = shapes[slot]
                if shape == _MAP or (shape == _SET and live[row, slot] == 0):
                    states[at + 2] = mark & ~CELL_TOMBSTONE & 0xFF
            at += CELL_HEADER_BYTES + load_little32(states, at + 24) + load_little32(states, at + 28)
        begin = ends[row]
