"""Rows before and after a write, as the coordinator knows them while it makes log rows.

They are read once, before the write and without isolation; each part of the write is then laid over what was
read **without comparing timestamps** (scylla source, cdc/log.cc, ``transformer``). So a write that loses in
storage still stands in its own postimage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server_kit.scylla.base_table import BaseTable, row_lives, show
from server_kit.scylla.mutations import path_type
from server_kit.scylla.partitions import Partition, Row
from server_kit.scylla.tables import AT, Column, Position, Preimage, Table
from server_kit.scylla.values import (
    CqlType,
    Native,
    pack_elements,
    pack_pairs,
    pack_parts,
    sort_key,
    unpack_elements,
    unpack_pairs,
    unpack_parts,
)

State = dict[str, Native]


@dataclass
class Images:
    """The rows of one mutation.

    Args:
        table: Their table.
        static: Values of the static row.
        rows: Values of rows that are there, by their place.
        follow: Whether what is logged is laid over them: for postimages, and for the preimages of later
            timestamps of the same mutation.
    """

    table: Table
    static: State = field(default_factory=dict)
    rows: dict[Position, State] = field(default_factory=dict)
    follow: bool = False
    static_touched: bool = False

    def state(self, clustering: tuple[bytes, ...] | None) -> State | None:
        """Return a row (None: the static row), None if it isn't there."""
        if clustering is None:
            return self.static if self.static or self.static_touched else None
        return self.rows.get(self.table.position(clustering, AT))

    def touch(self, clustering: tuple[bytes, ...] | None) -> None:
        """Note that something is written to a row: then it is there after."""
        if clustering is None:
            self.static_touched = True
        elif self.follow:
            self.rows.setdefault(self.table.position(clustering, AT), {})

    def set(self, clustering: tuple[bytes, ...] | None, column: str, value: Native) -> None:
        """Lay a cell over a row."""
        if self.follow:
            self._row(clustering)[column] = value

    def change(
        self,
        clustering: tuple[bytes, ...] | None,
        column: str,
        added: Native,
        removed: Native,
        *,
        cleared: bool,
    ) -> None:
        """Lay changes of a multi-cell column over a row: cleared first, then added to, then removed from.

        A collection from which all is removed is an empty one here, not null.
        """
        if not self.follow:
            return
        row = self._row(clustering)
        before = None if cleared else row.get(column)
        after = None
        if added is not None or (removed is not None and before is not None):
            after = _laid_over(self.table.column(column).type, before, added, removed)
        row[column] = after

    def remove(self, place: Position) -> None:
        """Take a row away."""
        if self.follow:
            self.rows.pop(place, None)

    def remove_between(self, start: Position, end: Position) -> None:
        """Take the rows of a range away."""
        if self.follow:
            self.rows = {p: row for p, row in self.rows.items() if not start < p < end}

    def remove_all(self) -> None:
        """Take all rows away; the static row stays."""
        if self.follow:
            self.rows.clear()

    def _row(self, clustering: tuple[bytes, ...] | None) -> State:
        if clustering is None:
            return self.static
        return self.rows.setdefault(self.table.position(clustering, AT), {})


def read_images(base: BaseTable, mutation: Partition, now: int) -> Images:
    """Read what a mutation's images need (scylla source, cdc/log.cc, ``pre_image_select``).

    Nothing is read for a mutation of ranges or of a whole partition alone. Unless all columns are needed only
    those are read that the mutation's *first* row touches, so preimages of its other rows may show columns as
    null that aren't. The server does so, and says so in a comment.

    Args:
        base: The table before the mutation.
        mutation: What is to be written.
        now: The second of the reading.
    """
    table, options = mutation.table, mutation.table.cdc
    images = Images(table)
    present = base.partitions.get(mutation.key)
    alone = mutation.deletion is not None and options.preimage_of_partition_deletes and not table.clustering
    if present is None or not (mutation.rows or mutation.static.written or alone):
        return images
    everything = options.postimage or options.preimage is Preimage.FULL
    if mutation.static.written:
        static_columns = set(mutation.static.columns)
        columns = [c for c in table.static_columns if everything or c.name in static_columns]
        images.static = _values(columns, present.static, present.deletion, now)
    rows = dict(mutation.in_order())
    if rows or alone:
        deleted = alone or any(row.deletion is not None for row in rows.values())
        first = set() if alone else set(next(iter(rows.values())).columns)
        columns = [c for c in table.regular if everything or deleted or c.name in first]
        for place in rows or [table.position((), AT)]:
            row, above = present.rows.get(place), present.deletion_at(place)
            if row and row_lives(row, above, now):
                images.rows[place] = _values(columns, row, above, now)
    return images


def _values(columns: list[Column], row: Row, above: int | None, now: int) -> State:
    found: State = {}
    for column in columns:
        # A list is read by its cells' ids, as the log shows it.
        cql_type = _as_logged(column.type)
        if (value := show(cql_type, row, column.name, above, now)) is not None:
            found[column.name] = value
    return found


def _as_logged(cql_type: CqlType) -> CqlType:
    if cql_type.multi_cell and cql_type.name == "list":
        return CqlType("map", (CqlType("timeuuid"), cql_type.parameters[0]))
    return cql_type


def _laid_over(cql_type: CqlType, before: Native, added: Native, removed: Native) -> bytes:
    gone = unpack_elements(removed) if removed is not None else []
    if cql_type.name == "udt":
        fields: list[Native] = [None] * len(cql_type.parameters)
        for number, value in enumerate(unpack_parts(before) if before is not None else []):
            fields[number] = value
        for number, value in enumerate(unpack_parts(added) if added is not None else []):
            fields[number] = fields[number] if value is None else value
        for path in gone:
            fields[int.from_bytes(path, "big", signed=True)] = None
        return pack_parts(fields)
    paths = path_type(cql_type)
    hidden = {sort_key(paths, path) for path in gone}
    if cql_type.name == "set":
        elements = {
            sort_key(paths, path): path
            for value in (before, added)
            for path in (unpack_elements(value) if value is not None else [])
        }
        return pack_elements([elements[place] for place in sorted(elements) if place not in hidden])
    pairs = {
        sort_key(paths, path): (path, part)
        for value in (before, added)
        for path, part in (unpack_pairs(value) if value is not None else [])
    }
    return pack_pairs([pairs[place] for place in sorted(pairs) if place not in hidden])
