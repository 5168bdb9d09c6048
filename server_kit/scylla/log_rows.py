"""From a mutation to the rows that ScyllaDB's change data capture logs for it.

A mutation of one timestamp, one TTL and one kind of change is logged as it stands. Any other is split: one
change for each timestamp, in each the kinds one after the other (scylla source, cdc/split.cc). The rows of a
change share stream and ``cdc$time``; :mod:`.cluster` gives them both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server_kit.scylla.images import Images
from server_kit.scylla.partitions import Cell, Elements, Marker, Partition, Range, Row
from server_kit.scylla.tables import AFTER, BEFORE, CdcOptions, Delta, Position, Preimage, Table
from server_kit.scylla.values import CqlType, Native, pack_elements, pack_pairs, pack_parts

PREIMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE = range(5)
RANGE_START_INCLUSIVE, RANGE_START_EXCLUSIVE = 5, 6
RANGE_END_INCLUSIVE, RANGE_END_EXCLUSIVE = 7, 8
POSTIMAGE = 9
SERVICE_ROW_DELETE, SERVICE_PARTITION_DELETE = -3, -4
"""Codes of ``cdc$operation`` (scylla source, cdc/log.hh)."""


@dataclass
class LogRow:
    """One row of the log, without what its whole change shares (stream, time, key of the partition).

    Args:
        operation: One of the codes above.
        clustering: Values of the first columns of the clustering key; the others are null.
        ttl: ``cdc$ttl`` in seconds, None for null.
        values: Values of columns, in the log's types; what isn't there is null.
        deleted: Columns whose ``cdc$deleted_`` is true; of others it is null.
        deleted_elements: Values of ``cdc$deleted_elements_`` columns.
        end_of_batch: Whether ``cdc$end_of_batch`` is true; else it is null.
    """

    operation: int
    clustering: tuple[bytes, ...] = ()
    ttl: int | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    deleted_elements: dict[str, bytes] = field(default_factory=dict)
    end_of_batch: bool = False


@dataclass(frozen=True)
class Change:
    """One change: the rows of one stream and one ``cdc$time``, numbered by ``cdc$batch_seq_no`` from 0."""

    time: int
    rows: tuple[LogRow, ...]


@dataclass
class _Part:
    """What a mutation does to one row (None: the static row) at one timestamp with one TTL."""

    clustering: tuple[bytes, ...] | None
    ttl: int
    marker: Marker | None = None
    cells: dict[str, Cell] = field(default_factory=dict)
    elements: dict[str, Elements] = field(default_factory=dict)

    @property
    def columns(self) -> set[str]:
        return {*self.cells, *self.elements}


@dataclass
class _Moment:
    """All that a mutation does at one timestamp, by kind."""

    static_columns: list[_Part] = field(default_factory=list)
    inserts: list[_Part] = field(default_factory=list)
    updates: list[_Part] = field(default_factory=list)
    row_deletes: list[tuple[bytes, ...]] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    partition_delete: bool = False


def changes_of(mutation: Partition, images: Images | None = None) -> list[Change]:
    """Return what the log gets of a mutation.

    Args:
        mutation: As :func:`.mutations.mutations` makes it.
        images: The rows as they are before it; needed where the table's options ask for images.

    Returns:
        A change for each timestamp, ascending; none of a mutation that writes nothing.
    """
    options = mutation.table.cdc
    if options.preimage is Preimage.OFF and not options.postimage:
        images = None
    log = _Log(mutation, options, images)
    return log.split() if _must_split(mutation) else log.whole()


@dataclass
class _Log:
    mutation: Partition
    options: CdcOptions
    images: Images | None
    rows: list[LogRow] = field(default_factory=list)

    @property
    def table(self) -> Table:
        return self.mutation.table

    def whole(self) -> list[Change]:
        """Log a mutation of one timestamp unchanged, in the order of the server.

        That order is static row, rows in clustering order (each its cells, then its deletion), ranges,
        partition (scylla source, cdc/change_visitor.hh).
        """
        mutation = self.mutation
        self._begin(last=True)
        touched = _touched(mutation)
        self._preimages(touched)
        for part in _parts(mutation.static, None).values():
            self._static(part)
        for _, row in mutation.in_order():
            for part in _parts(row, row.clustering).values():
                self._row(part)
            if row.deletion is not None:
                self._row_delete(row.clustering)
        for deleted in mutation.disjoint_ranges():
            self._range(deleted)
        self._postimages(touched)
        (time,) = _moments(mutation)
        return self._end(time)

    def split(self) -> list[Change]:
        """Log one change for each timestamp, in it static, inserts, updates, deletes of rows, ranges, all."""
        found: list[Change] = []
        moments = _moments(self.mutation)
        for number, time in enumerate(sorted(moments)):
            moment = moments[time]
            self._begin(last=number == len(moments) - 1)
            touched = _touched_at(moment, self.table)
            if moment.partition_delete and _deletes_its_row(self.mutation):
                touched[()] = {c.name for c in self.table.regular}
            self._preimages(touched)
            for part in moment.static_columns:
                self._static(part)
            for part in (*moment.inserts, *moment.updates):
                self._row(part)
            for clustering in moment.row_deletes:
                self._row_delete(clustering)
            for deleted in moment.ranges:
                self._range(deleted)
            if moment.partition_delete:
                self._partition_delete()
            self._postimages(touched)
            found += self._end(time)
        return found

    def _begin(self, *, last: bool) -> None:
        self.rows = []
        if self.images:
            self.images.follow = self.options.postimage or not last

    def _end(self, time: int) -> list[Change]:
        if not self.rows:
            return []
        self.rows[-1].end_of_batch = True
        return [Change(time, tuple(self.rows))]

    def _preimages(self, touched: dict[tuple[bytes, ...] | None, set[str]]) -> None:
        if not self.images or self.options.preimage is Preimage.OFF:
            return
        for clustering, columns in touched.items():
            shown = columns if self.options.preimage is Preimage.ON else None
            self._image(PREIMAGE, clustering, shown)

    def _postimages(self, touched: dict[tuple[bytes, ...] | None, set[str]]) -> None:
        if self.images and self.options.postimage:
            for clustering in touched:
                self._image(POSTIMAGE, clustering, None)

    def _image(self, operation: int, clustering: tuple[bytes, ...] | None, columns: set[str] | None) -> None:
        assert self.images is not None
        state = self.images.state(clustering)
        if state is None:
            return
        row = LogRow(operation, clustering or ())
        for column in self.table.static_columns if clustering is None else self.table.regular:
            if columns is not None and column.name not in columns:
                continue
            value = state.get(column.name)
            if value is not None:
                row.values[column.name] = value
            elif (
                operation == PREIMAGE
            ):  # null before, or just omitted? In a preimage the flag distinguishes them.
                row.deleted.add(column.name)
        self.rows.append(row)

    def _static(self, part: _Part) -> None:
        self._delta(LogRow(UPDATE), part)

    def _row(self, part: _Part) -> None:
        assert part.clustering is not None
        self._delta(LogRow(INSERT if part.marker else UPDATE, part.clustering), part)

    def _delta(self, row: LogRow, part: _Part) -> None:
        row.ttl = part.ttl or None
        if self.images:
            self.images.touch(part.clustering)
        for name, cell in part.cells.items():
            if cell.value is None:
                row.deleted.add(name)
            else:
                row.values[name] = cell.value
            if self.images:
                self.images.set(part.clustering, name, cell.value)
        for name, elements in part.elements.items():
            cql_type = self.table.column(name).type
            value, removed = _added(cql_type, elements), _removed(elements)
            cleared = elements.tombstone is not None
            if cleared:
                row.deleted.add(name)
            if removed is not None:
                row.deleted_elements[name] = removed
            if value is not None:
                row.values[name] = value
            if self.images:
                self.images.change(part.clustering, name, value, removed, cleared=cleared)
        if self.options.delta is Delta.KEYS:
            row.values, row.deleted, row.deleted_elements = {}, set(), {}
        self._log(row)

    def _row_delete(self, clustering: tuple[bytes, ...]) -> None:
        self._log(LogRow(SERVICE_ROW_DELETE if self.mutation.by_service else ROW_DELETE, clustering))
        if self.images:
            self.images.remove(self.table.position(clustering))

    def _range(self, deleted: Range) -> None:
        """Log both bounds; a column of the clustering key that doesn't bound is null."""
        start, end, _ = deleted
        inclusive = start.edge == BEFORE
        self._log(LogRow(RANGE_START_INCLUSIVE if inclusive else RANGE_START_EXCLUSIVE, start.prefix))
        inclusive = end.edge == AFTER
        self._log(LogRow(RANGE_END_INCLUSIVE if inclusive else RANGE_END_EXCLUSIVE, end.prefix))
        if self.images:
            self.images.remove_between(self.mutation.place_of(start), self.mutation.place_of(end))

    def _partition_delete(self) -> None:
        self._log(LogRow(SERVICE_PARTITION_DELETE if self.mutation.by_service else PARTITION_DELETE))
        if self.images:
            self.images.remove_all()

    def _log(self, row: LogRow) -> None:
        if self.options.delta is not Delta.OFF:
            self.rows.append(row)


def _added(cql_type: CqlType, elements: Elements) -> Native:
    """Write the cells that were set: in a list by their ids, in a user-defined type by their places.

    Of a user-defined type there is always a value, if only one of nulls (scylla source, cdc/log.cc,
    ``udt_visitor``: the vector of fields is never empty).
    """
    live = [(path, cell.value) for path, cell in elements.in_order() if cell.value is not None]
    if cql_type.name == "udt":
        fields: list[Native] = [None] * len(cql_type.parameters)
        for path, value in live:
            fields[int.from_bytes(path, "big", signed=True)] = value
        return pack_parts(fields)
    if not live:
        return None
    return pack_elements([path for path, _ in live]) if cql_type.name == "set" else pack_pairs(live)


def _removed(elements: Elements) -> Native:
    """Write the paths of cells that were removed, null for none."""
    gone = [path for path, cell in elements.in_order() if cell.value is None]
    return pack_elements(gone) if gone else None


def _parts(row: Row, clustering: tuple[bytes, ...] | None) -> dict[tuple[int, int], _Part]:
    """Sort what is written to a row by timestamp and TTL; what has no TTL counts as of TTL 0.

    The tombstone of a collection is shown one microsecond later than it is, so that an overwrite, whose
    tombstone is one before its cells, is one change (scylla source, cdc/split.cc, ``collection_tombstone``).
    """
    found: dict[tuple[int, int], _Part] = {}

    def part(time: int, ttl: int) -> _Part:
        return found.setdefault((time, ttl), _Part(clustering, ttl))

    if row.marker:
        part(row.marker.time, row.marker.ttl).marker = row.marker
    for name, cell in row.cells.items():
        part(cell.time, cell.ttl).cells[name] = cell
    for name, elements in row.elements.items():
        if elements.tombstone is not None:
            here = part(elements.tombstone + 1, 0).elements.setdefault(name, Elements())
            here.tombstone = elements.tombstone
        for place, (path, cell) in elements.cells.items():
            here = part(cell.time, cell.ttl).elements.setdefault(name, Elements())
            here.cells[place] = (path, cell)
    return found


def _moments(mutation: Partition) -> dict[int, _Moment]:
    found: dict[int, _Moment] = {}

    def at(time: int) -> _Moment:
        return found.setdefault(time, _Moment())

    for (time, _), part in sorted(_parts(mutation.static, None).items()):
        at(time).static_columns.append(part)
    for _, row in mutation.in_order():
        for (time, _), part in sorted(_parts(row, row.clustering).items()):
            if not part.marker:
                at(time).updates.append(part)
                continue
            # An INSERT can't add to a collection without clearing it first: such cells are an update.
            added = {n: e for n, e in part.elements.items() if e.tombstone is None}
            own = {n: e for n, e in part.elements.items() if e.tombstone is not None}
            at(time).inserts.append(_Part(part.clustering, part.ttl, part.marker, part.cells, own))
            if added:
                at(time).updates.append(_Part(part.clustering, part.ttl, elements=added))
        if row.deletion is not None:
            at(row.deletion).row_deletes.append(row.clustering)
    for deleted in mutation.disjoint_ranges():
        at(deleted.time).ranges.append(deleted)
    if mutation.deletion is not None:
        at(mutation.deletion).partition_delete = True
    return found


def _must_split(mutation: Partition) -> bool:
    """Return whether a mutation has more than one timestamp, TTL or kind of change.

    The server goes through it once and stops where it must split (scylla source, cdc/split.cc,
    ``should_split_visitor``). It isn't strict: rows inserted and rows updated may stay together, and so may a
    row's deletion with what is written to a later row.
    """
    steps: list[tuple[int, int]] = [(time, ttl) for time, ttl in _parts(mutation.static, None)]
    if mutation.static.written and mutation.rows:
        return True
    if mutation.deletion is not None:
        return True  # logged alike either way; with anything else it must
    inserted = written = False
    for _, row in mutation.in_order():
        if row.written:
            written = True
            inserted = inserted or row.marker is not None
            steps += _parts(row, row.clustering)
            alive = (c.value is not None for e in row.elements.values() for _, c in e.cells.values())
            if inserted and any(alive):
                return True
        if row.deletion is not None:
            if written:
                return True
            steps.append((row.deletion, 0))
    ranges = mutation.disjoint_ranges()
    if ranges and (mutation.static.written or mutation.rows):
        return True
    steps += [(deleted.time, 0) for deleted in ranges]
    return len(set(steps)) != 1


def _touched(mutation: Partition) -> dict[tuple[bytes, ...] | None, set[str]]:
    """Name the rows that get images, and of each the columns that it touches: all, if it is deleted."""
    found: dict[tuple[bytes, ...] | None, set[str]] = {}
    if mutation.static.written:
        found[None] = set(mutation.static.columns)
    for _, row in mutation.in_order():
        everything = {c.name for c in mutation.table.regular}
        found[row.clustering] = everything if row.deletion is not None else set(row.columns)
    return found


def _touched_at(moment: _Moment, table: Table) -> dict[tuple[bytes, ...] | None, set[str]]:
    found: dict[tuple[bytes, ...] | None, set[str]] = {}
    if static_columns := set().union(*(part.columns for part in moment.static_columns)):
        found[None] = static_columns
    rows: dict[Position, tuple[tuple[bytes, ...], set[str]]] = {}
    for clustering in moment.row_deletes:
        rows[table.position(clustering)] = (clustering, {c.name for c in table.regular})
    for part in (*moment.inserts, *moment.updates):
        place = table.position(part.clustering or ())
        rows.setdefault(place, (part.clustering or (), set()))[1].update(part.columns)
    found.update(rows[place] for place in sorted(rows))
    return found


def _deletes_its_row(mutation: Partition) -> bool:
    """Return whether a partition's deletion has a preimage: that of its only row."""
    return mutation.table.cdc.preimage_of_partition_deletes and not mutation.table.clustering
