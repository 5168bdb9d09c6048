"""What a coordinator makes of statements: one mutation for each partition that they touch.

Where ScyllaDB and Cassandra agree (nearly everywhere) the rules are CQL's. They differ in list cells, whose
ids ScyllaDB takes from the write's timestamp (scylla source, cql3/lists.cc), Cassandra from its clock.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.partitions import Bound, Cell, Marker, Partition, Range, Row
from server_kit.scylla.statements import (
    AddElements,
    Assignment,
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    PrependElements,
    RemoveElements,
    SetElement,
    SetField,
    SetWhole,
    Statement,
    Update,
)
from server_kit.scylla.tables import AFTER, BEFORE, Table
from server_kit.scylla.timeuuids import list_id
from server_kit.scylla.values import CqlType, Native, sort_key, unpack_elements, unpack_pairs, unpack_parts

MIRRORED_AT_US = 1_262_304_000_000_000
"""2010-01-01: ids of prepended list cells are as far before it as the write is after it."""
SUBMICRO_LIMIT = 1 << 17


def mutations(base: BaseTable, statements: Iterable[Statement], now: int) -> list[Partition]:
    """Turn the statements of one request into mutations.

    A batch's statements on one partition become one mutation (scylla docs, CDC log table,
    ``cdc$batch_seq_no``; scylla source, cql3/statements/batch_statement.cc). What they read, as the places of
    lists, they read before any of them is written.

    Args:
        base: The table as it is.
        statements: All with a timestamp.
        now: The coordinator's clock in seconds: expiries count from it.

    Returns:
        One mutation for each partition, in the order in which they are first named.

    Raises:
        InvalidRequest: A place that a list doesn't have, or a prepend before 2010.
    """
    sequence = _Sequence()
    found: dict[tuple[bytes, ...], Partition] = {}
    for statement in statements:
        mutation = found.setdefault(statement.key, Partition(base.table, statement.key))
        _Writer(base, statement, mutation, now, sequence).write()
    for mutation in found.values():
        touched = {p: r for p, r in mutation.rows.items() if r.written or r.deletion is not None}
        mutation.rows = touched
    return list(found.values())


@dataclass
class _Sequence:
    """Numbers list cells of one request; appends count up, prepends down."""

    count: int = 0

    def append(self) -> int:
        self.count += 1
        return self.count - 1

    def prepend(self, entries: int) -> int:
        self.count += entries
        return SUBMICRO_LIMIT - self.count


@dataclass
class _Writer:
    base: BaseTable
    statement: Statement
    mutation: Partition
    now: int
    sequence: _Sequence

    def __post_init__(self) -> None:
        if self.statement.timestamp is None:
            raise InvalidRequest("expected a statement with its timestamp")
        self.time = self.statement.timestamp
        self.ttl = getattr(self.statement, "ttl", 0)

    @property
    def table(self) -> Table:
        return self.base.table

    def write(self) -> None:
        match self.statement:
            case Insert():
                self._insert(self.statement)
            case Update(clustering=clustering, assignments=assignments):
                for assignment in assignments:
                    self._assign(self._row(clustering, assignment.column), assignment)
            case DeleteColumns(clustering=clustering, parts=parts):
                for part in parts:
                    self._delete_part(self._row(clustering, part.column), part)
            case DeleteRow(clustering=clustering, by_service=by_service):
                self.mutation.by_service = by_service
                if self.table.clustering:
                    self.mutation.row(clustering).deletion = self._later(
                        self.mutation.row(clustering).deletion
                    )
                else:  # without clustering key a row is its partition
                    self.mutation.deletion = self._later(self.mutation.deletion)
            case DeletePartition(by_service=by_service):
                self.mutation.by_service = by_service
                self.mutation.deletion = self._later(self.mutation.deletion)
            case DeleteRange():
                self._delete_range(self.statement)

    def _later(self, deletion: int | None) -> int:
        return self.time if deletion is None else max(deletion, self.time)

    def _insert(self, statement: Insert) -> None:
        if statement.clustering is not None:
            marker = Marker(self.time, self.ttl, self.now + self.ttl if self.ttl else 0)
            written = Row(statement.clustering, marker)
            self.mutation.row(statement.clustering).merge(written)
        for name, value in statement.values.items():
            self._assign(self._row(statement.clustering, name), SetWhole(name, value))

    def _row(self, clustering: tuple[bytes, ...] | None, column: str) -> Row:
        if self.table.is_static(column):
            return self.mutation.static
        if clustering is None:
            raise InvalidRequest(f"expected a clustering key to write {column!r}")
        return self.mutation.row(clustering)

    def _cell(self, value: Native) -> Cell:
        if value is None or not self.ttl:
            return Cell(self.time, value)
        return Cell(self.time, value, self.ttl, self.now + self.ttl)

    def _assign(self, row: Row, assignment: Assignment) -> None:
        name = assignment.column
        cql_type = self.table.column(name).type
        match assignment:
            case SetWhole(value=value):
                if not cql_type.multi_cell:
                    row.put(name, self._cell(value))
                    return
                # An overwrite's tombstone is one microsecond before its cells, so that they stay.
                self._clear(row, name, self.time - 1)
                if value is not None:
                    self._put_whole(row, name, cql_type, value)
            case AddElements(elements=elements, pairs=pairs):
                self._add(row, name, cql_type, elements, pairs)
            case PrependElements(elements=elements):
                self._prepend(row, name, elements)
            case RemoveElements(elements=elements):
                if cql_type.name == "list":
                    gone = set(elements)
                    for path, cell in self._list_cells(row, name):
                        if cell.value in gone:
                            self._put(row, name, path, None)
                else:
                    for element in elements:
                        self._put(row, name, element, None)
            case SetElement(key=key, value=value):
                self._put(row, name, self._path_of(row, name, cql_type, key), value)
            case SetField(number=number, value=value):
                self._put(row, name, struct.pack(">h", number), value)

    def _delete_part(self, row: Row, part: SetWhole | SetElement | SetField) -> None:
        if isinstance(part, SetWhole) and self.table.column(part.column).type.multi_cell:
            # DELETE column, unlike SET column = null, is a tombstone at the write's own time.
            self._clear(row, part.column, self.time)
        else:
            self._assign(row, part)

    @staticmethod
    def _clear(row: Row, column: str, time: int) -> None:
        elements = row.of(column)
        elements.tombstone = time if elements.tombstone is None else max(elements.tombstone, time)

    def _put(self, row: Row, column: str, path: bytes, value: Native) -> None:
        place = sort_key(path_type(self.table.column(column).type), path)
        row.of(column).put(place, path, self._cell(value))

    def _put_whole(self, row: Row, column: str, cql_type: CqlType, value: bytes) -> None:
        if cql_type.name == "udt":
            for number, part in enumerate(unpack_parts(value)):
                if part is not None:  # the tombstone has cleared the others
                    self._put(row, column, struct.pack(">h", number), part)
        elif cql_type.name == "map":
            self._add(row, column, cql_type, (), unpack_pairs(value))
        else:
            self._add(row, column, cql_type, unpack_elements(value), ())

    def _add(
        self,
        row: Row,
        column: str,
        cql_type: CqlType,
        elements: Sequence[bytes],
        pairs: Sequence[tuple[bytes, bytes]],
    ) -> None:
        for key, value in pairs:
            self._put(row, column, key, value)
        for element in elements:
            if cql_type.name == "list":
                self._put(row, column, list_id(self.time, self.sequence.append()), element)
            else:
                self._put(row, column, element, b"")

    def _prepend(self, row: Row, column: str, elements: Sequence[bytes]) -> None:
        if self.time <= MIRRORED_AT_US:
            raise InvalidRequest("expected a timestamp after 2010-01-01 to prepend to a list")
        first = self.sequence.prepend(len(elements))
        for number, element in zip(itertools.count(first), elements, strict=False):
            self._put(row, column, list_id(2 * MIRRORED_AT_US - self.time, number), element)

    def _path_of(self, row: Row, column: str, cql_type: CqlType, key: bytes) -> bytes:
        if cql_type.name == "map":
            return key
        (number,) = struct.unpack(">i", key)
        cells = self._list_cells(row, column)
        if not 0 <= number < len(cells):
            raise InvalidRequest(f"expected a place in a list of {len(cells)}, found {number}")
        return cells[number][0]

    def _list_cells(self, row: Row, column: str) -> list[tuple[bytes, Cell]]:
        clustering = None if self.table.is_static(column) else row.clustering
        return self.base.live_elements(self.mutation.key, clustering, column, self.now)

    def _delete_range(self, statement: DeleteRange) -> None:
        prefix, low, high = statement.prefix, statement.low, statement.high
        if not prefix and not low and not high:
            self.mutation.deletion = self._later(self.mutation.deletion)
            return
        start, end = Bound(prefix, BEFORE), Bound(prefix, AFTER)
        if low or high:
            # Ranges are in clustering order: in a descending column the high limit is the start.
            descending = self.table.clustering[len(prefix)].name in self.table.descending
            first, last = (high, low) if descending else (low, high)
            if first:
                start = Bound((*prefix, first.value), BEFORE if first.inclusive else AFTER)
            if last:
                end = Bound((*prefix, last.value), AFTER if last.inclusive else BEFORE)
        if self.mutation.place_of(start) < self.mutation.place_of(end):
            self.mutation.ranges.append(Range(start, end, self.time))


def path_type(cql_type: CqlType) -> CqlType:
    """Return the type of the paths of a multi-cell column's cells."""
    if cql_type.name == "list":
        return CqlType("timeuuid")
    if cql_type.name == "udt":
        return CqlType("smallint")
    return cql_type.parameters[0]
