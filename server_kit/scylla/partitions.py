"""Cells, rows and tombstones of one partition, and how two states of them become one.

A statement makes such a partition (a mutation), and a table's state is what all of them make together.
Merging is commutative, associative and idempotent: the write with the greater timestamp stands, and equal
timestamps have the tie rules of :meth:`Cell.rank`. Nothing is ever thrown away, so what a deletion or a TTL
hides is decided by who reads (:mod:`.base_table`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server_kit.scylla.tables import AFTER, AT, BEFORE, Position, Table
from server_kit.scylla.values import SortKey


class Cell(NamedTuple):
    """One cell, or its tombstone.

    Args:
        time: Write time in us.
        value: Native bytes, None for a tombstone.
        ttl: In seconds, 0 for none.
        expires: Second (epoch) from which it counts no more; only with a TTL.
    """

    time: int
    value: bytes | None
    ttl: int = 0
    expires: int = 0

    def rank(self) -> tuple[int, bool, bool, int, int, bytes]:
        """Order versions of one cell; the greatest wins.

        At equal timestamps a tombstone beats a live cell, a cell with TTL one without, then the later expiry,
        the shorter TTL, the greater value by unsigned bytes (scylla source, ``compare_atomic_cell_for_merge``
        in mutation/atomic_cell.cc).
        """
        return (self.time, self.value is None, self.ttl > 0, self.expires, -self.ttl, self.value or b"")

    def live(self, now: int) -> bool:
        """Return whether it has a value at a second. An expired cell continues to shadow older ones."""
        return self.value is not None and (not self.ttl or now < self.expires)


class Marker(NamedTuple):
    """What an INSERT leaves on its row, so that the row lives without any other cell."""

    time: int
    ttl: int = 0
    expires: int = 0

    def rank(self) -> tuple[int, bool, int, int]:
        """Order markers as cells are."""
        return (self.time, self.ttl > 0, self.expires, -self.ttl)

    def live(self, now: int) -> bool:
        """Return whether it counts at a second."""
        return not self.ttl or now < self.expires


@dataclass
class Elements:
    """The cells of a collection or user-defined type that isn't frozen.

    Args:
        tombstone: Write time in us of the greatest deletion of the whole column.
        cells: By the order of paths: path and cell. Paths are a set's elements, a map's keys, a list's cell
            ids and the int16 index of a field.
    """

    tombstone: int | None = None
    cells: dict[SortKey, tuple[bytes, Cell]] = field(default_factory=dict)

    def put(self, place: SortKey, path: bytes, cell: Cell) -> None:
        """Add a cell."""
        present = self.cells.get(place)
        if present is None or present[1].rank() < cell.rank():
            self.cells[place] = (present[0] if present else path, cell)

    def merge(self, other: Elements) -> None:
        """Take in another state."""
        self.tombstone = _latest(self.tombstone, other.tombstone)
        for place, (path, cell) in other.cells.items():
            self.put(place, path, cell)

    def in_order(self) -> list[tuple[bytes, Cell]]:
        """Return paths and cells in the order of the paths."""
        return [self.cells[place] for place in sorted(self.cells)]


@dataclass
class Row:
    """One row, or the static row of a partition."""

    clustering: tuple[bytes, ...] = ()
    marker: Marker | None = None
    deletion: int | None = None
    cells: dict[str, Cell] = field(default_factory=dict)
    elements: dict[str, Elements] = field(default_factory=dict)

    def put(self, column: str, cell: Cell) -> None:
        """Add a cell of a column that is one cell."""
        present = self.cells.get(column)
        if present is None or present.rank() < cell.rank():
            self.cells[column] = cell

    def of(self, column: str) -> Elements:
        """Return the cells of a multi-cell column, to add to them."""
        return self.elements.setdefault(column, Elements())

    def merge(self, other: Row) -> None:
        """Take in another state of the same row."""
        if other.marker and (self.marker is None or self.marker.rank() < other.marker.rank()):
            self.marker = other.marker
        self.deletion = _latest(self.deletion, other.deletion)
        for column, cell in other.cells.items():
            self.put(column, cell)
        for column, elements in other.elements.items():
            self.of(column).merge(elements)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that something is known of."""
        touched = (name for name, e in self.elements.items() if e.cells or e.tombstone is not None)
        return [*self.cells, *touched]

    @property
    def written(self) -> bool:
        """Whether there is a marker or any cell."""
        return self.marker is not None or bool(self.columns)


class Bound(NamedTuple):
    """A bound of a range: before or after all rows of a prefix of the clustering key."""

    prefix: tuple[bytes, ...]
    edge: int


class Range(NamedTuple):
    """A range of rows, in clustering order, that was deleted at a write time in us."""

    start: Bound
    end: Bound
    time: int


EVERYTHING_BEFORE = Bound((), BEFORE)
EVERYTHING_AFTER = Bound((), AFTER)


@dataclass
class Partition:
    """A partition, or what a write does to it.

    Args:
        table: Its table.
        key: Values of the partition key.
        by_service: Whether the server's expiry service made this write.
    """

    table: Table
    key: tuple[bytes, ...]
    deletion: int | None = None
    static: Row = field(default_factory=Row)
    rows: dict[Position, Row] = field(default_factory=dict)
    ranges: list[Range] = field(default_factory=list)
    by_service: bool = False

    def row(self, clustering: Sequence[bytes]) -> Row:
        """Return a row, to add to it."""
        place = self.table.position(clustering, AT)
        return self.rows.setdefault(place, Row(tuple(clustering)))

    def merge(self, other: Partition) -> None:
        """Take in another state of the same partition."""
        self.deletion = _latest(self.deletion, other.deletion)
        self.static.merge(other.static)
        for place, row in other.rows.items():
            self.rows.setdefault(place, Row(row.clustering)).merge(row)
        self.ranges += [r for r in other.ranges if r not in self.ranges]

    def in_order(self) -> Iterator[tuple[Position, Row]]:
        """Go through the rows in clustering order."""
        for place in sorted(self.rows):
            yield place, self.rows[place]

    def place_of(self, bound: Bound) -> Position:
        """Return the position of a bound among the rows."""
        return self.table.position(bound.prefix, bound.edge)

    def deletion_at(self, place: Position) -> int | None:
        """Return the greatest deletion of partition and ranges over a row."""
        latest = self.deletion
        for start, end, time in self.ranges:
            if self.place_of(start) < place < self.place_of(end):
                latest = _latest(latest, time)
        return latest

    def disjoint_ranges(self) -> list[Range]:
        """Cut ranges that lie over each other, in clustering order.

        Where several overlap the latest stands; neighbours of one time become one (scylla source,
        mutation/range_tombstone_list.cc: inserting a tombstone into the list).
        """
        bounds = {self.place_of(b): b for r in self.ranges for b in (r.start, r.end)}
        places = sorted(bounds)
        found: list[Range] = []
        for low, high in itertools.pairwise(places):
            over = [r.time for r in self.ranges if self.place_of(r.start) <= low < self.place_of(r.end)]
            if not over:
                continue
            last = found[-1] if found else None
            if last and last.time == max(over) and self.place_of(last.end) == low:
                found[-1] = last._replace(end=bounds[high])
            else:
                found.append(Range(bounds[low], bounds[high], max(over)))
        return found


def _latest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
