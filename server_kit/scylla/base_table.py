"""The state of a base table, and what a SELECT shows of it at a moment.

This is CQL's read path in its plainest form. A row is there if its marker or any of its cells lives; a cell
lives if it is newer than every deletion over it (of its partition, of a range, of its row, of its column),
isn't a tombstone and hasn't expired. At equal timestamps a deletion wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from server_kit.scylla.partitions import Cell, Elements, Partition, Row
from server_kit.scylla.tables import AT, Table
from server_kit.scylla.values import CqlType, Native, pack_elements, pack_pairs, pack_parts

Shown = dict[str, Native]
"""A row as SELECT * shows it: native bytes by column."""


@dataclass
class BaseTable:
    """All that was ever written to a table."""

    table: Table
    partitions: dict[tuple[bytes, ...], Partition] = field(default_factory=dict)

    def apply(self, mutation: Partition) -> None:
        """Take in a mutation."""
        self.partitions.setdefault(mutation.key, Partition(self.table, mutation.key)).merge(mutation)

    def truncate(self) -> None:
        """Forget everything. The log says nothing of it."""
        self.partitions.clear()

    def select(self, now: int) -> list[Shown]:
        """Return all rows at a second; a partition with only static columns is one row without clustering."""
        return [row for key in sorted(self.partitions) for row in self._rows(self.partitions[key], now)]

    def live_elements(
        self, key: tuple[bytes, ...], clustering: tuple[bytes, ...] | None, column: str, now: int
    ) -> list[tuple[bytes, Cell]]:
        """Return the living cells of a multi-cell column, in order.

        Args:
            key: The partition's.
            clustering: The row's, None for a static column.
            column: Its name.
            now: The second.
        """
        partition = self.partitions.get(key)
        if partition is None:
            return []
        if clustering is None:
            return live_elements(partition.static, column, partition.deletion, now)
        place = self.table.position(clustering, AT)
        row = partition.rows.get(place)
        return live_elements(row, column, partition.deletion_at(place), now) if row else []

    def _rows(self, partition: Partition, now: int) -> Iterator[Shown]:
        names = [column.name for column in self.table.partition]
        key: Shown = dict(zip(names, partition.key, strict=True))
        static, deletion = partition.static, partition.deletion
        static_columns = {
            c.name: show(c.type, static, c.name, deletion, now) for c in self.table.static_columns
        }
        found = False
        for place, row in partition.in_order():
            deletion = partition.deletion_at(place)
            if row_lives(row, deletion, now):
                found = True
                names = [column.name for column in self.table.clustering]
                clustering: Shown = dict(zip(names, row.clustering, strict=True))
                regular = {c.name: show(c.type, row, c.name, deletion, now) for c in self.table.regular}
                yield {**key, **clustering, **static_columns, **regular}
        if not found and any(value is not None for value in static_columns.values()):
            names = [column.name for column in (*self.table.clustering, *self.table.regular)]
            yield {**key, **static_columns, **dict.fromkeys(names)}


def row_lives(row: Row, above: int | None, now: int) -> bool:
    """Return whether a SELECT returns a row.

    Args:
        row: The row.
        above: The greatest deletion of its partition and of ranges over it.
        now: The second.
    """
    deletion = deletion_of(row, above)
    if row.marker and not _covered(deletion, row.marker.time) and row.marker.live(now):
        return True
    if any(_lives(cell, deletion, now) for cell in row.cells.values()):
        return True
    return any(live_elements(row, name, above, now) for name in row.elements)


def deletion_of(row: Row, above: int | None) -> int | None:
    """Return the greatest deletion over a row's cells."""
    if row.deletion is None or above is None:
        return above if row.deletion is None else row.deletion
    return max(row.deletion, above)


def live_elements(row: Row, column: str, above: int | None, now: int) -> list[tuple[bytes, Cell]]:
    """Return the living cells of a row's multi-cell column, in the order of their paths."""
    elements = row.elements.get(column, Elements())
    deletion = deletion_of(Row(deletion=elements.tombstone), deletion_of(row, above))
    return [(path, cell) for path, cell in elements.in_order() if _lives(cell, deletion, now)]


def show(cql_type: CqlType, row: Row, column: str, above: int | None, now: int) -> Native:
    """Return what SELECT shows of a column; a collection without living cells is null."""
    if not cql_type.multi_cell:
        cell = row.cells.get(column)
        return cell.value if cell and _lives(cell, deletion_of(row, above), now) else None
    return assemble(cql_type, [(p, c.value or b"") for p, c in live_elements(row, column, above, now)])


def assemble(cql_type: CqlType, cells: list[tuple[bytes, bytes]]) -> Native:
    """Put cells of a multi-cell column together as the client sees them; null for none."""
    if not cells:
        return None
    if cql_type.name == "list":
        return pack_elements([value for _, value in cells])
    if cql_type.name == "set":
        return pack_elements([path for path, _ in cells])
    if cql_type.name == "map":
        return pack_pairs(cells)
    fields: list[Native] = [None] * len(cql_type.parameters)
    for path, value in cells:
        fields[int.from_bytes(path, "big", signed=True)] = value
    return pack_parts(fields)


def _covered(deletion: int | None, time: int) -> bool:
    return deletion is not None and time <= deletion


def _lives(cell: Cell, deletion: int | None, now: int) -> bool:
    return not _covered(deletion, cell.time) and cell.live(now)
