"""Cassandra's read path in plain Python: what the kernels must agree with.

Written from ``docs/formats/cassandra-commit-log.md``, section 16, and the cell-row layout, with dictionaries
and tuples and without a thought for speed. Shares no code with ``airflow_cdc_provider.lake.reconcile``.

Two answers are given. :func:`visible` is what a reader sees, taken from all contributions as they are.
:func:`kept` is what must be stored: all that can still matter, in one form.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

NEVER = (1 << 63) - 1
ROW, STATIC, PARTITION_DELETION, RANGE_DELETION = range(4)
EXPIRED_MARKER = 2147483647

Deletion = tuple[int, int]
"""(write time, local deletion time): tuples compare as section 16, rule 1 says."""


@dataclass(frozen=True)
class Cell:
    """One version of a cell, or (``complex_deletion``) the deletion of a whole multi-cell column."""

    column: int
    time: int
    value: bytes = b""
    path: bytes | None = None
    tombstone: bool = False
    expiring: bool = False
    ttl: int = 0
    end: int = NEVER
    complex_deletion: bool = False
    uncertain: bool = False

    @property
    def place(self) -> tuple[int, int, bytes]:
        return (self.column, 0 if self.complex_deletion else 1, self.path or b"")

    def expired(self, now: int) -> bool:
        return self.expiring and (self.tombstone or now >= self.end)

    def live(self, now: int) -> bool:
        return not self.complex_deletion and not self.tombstone and not self.expired(now)

    def at(self, now: int) -> Cell:
        return replace(self, tombstone=True, value=b"", ttl=0) if self.expired(now) else self

    def rank(self, now: int, rules: str) -> tuple[Any, ...]:
        """The greatest rank wins. What follows the rules of the database makes the order total."""
        value, ttl = self.at(now).value, self.at(now).ttl
        pure = self.tombstone and not self.expiring
        has_end = self.tombstone or self.expiring or self.complex_deletion
        end = self.end if has_end else NEVER
        if rules == "3.11":
            signed = bytes(b ^ 0x80 for b in value)
            return (self.time, not self.live(now), self.uncertain, signed, end, pure, ttl)
        of_ttl, of_value = (-ttl, value) if rules == "scylla" else (value, ttl)
        return (self.time, self.tombstone or self.expiring, pure, end, self.uncertain, of_ttl, of_value)


@dataclass(frozen=True)
class Liveness:
    time: int
    ttl: int = 0
    expires: int = NEVER

    def rank(self) -> tuple[Any, ...]:
        return (self.time, True, self.ttl == EXPIRED_MARKER, self.ttl != 0, self.expires, self.ttl)

    def live(self, now: int) -> bool:
        return self.ttl == 0 or (self.ttl != EXPIRED_MARKER and now < self.expires)


@dataclass(frozen=True)
class Reading:
    """The unknown liveness of a row that a SELECT showed, and the greatest known one before it."""

    time: int
    known: Liveness | None = None

    def rank(self) -> tuple[Any, ...]:
        return (self.time, False)

    def end(self) -> int:
        """Return when the row may end: at the expiry of the known liveness, if it lived at the reading."""
        known = self.known
        end = _known_end(known) if known else 0
        return end if end not in (0, 0xFFFFFFFF) and end * 1_000_000 > self.time else NEVER

    def lived(self) -> bool:
        """Return whether the known liveness was live at the time of reading."""
        return self.known is not None and (self.known.ttl == 0 or self.end() != NEVER)


@dataclass(frozen=True)
class Row:
    liveness: Liveness | Reading | None = None
    deletion: Deletion | None = None
    clustering: bytes = b""
    cells: tuple[Cell, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.liveness or self.deletion or self.cells)


def write(row: Row, static: bool = False) -> bytes:
    """Write a cell row."""
    flags = 1 if static else 0
    time, ttl, expires = 0, 0, NEVER
    match row.liveness:
        case Liveness(time, ttl, expires):
            flags |= 2
        case Reading(time, known):
            flags |= 8
            ttl, expires = (_known_end(known), known.time) if known else (0, NEVER)
    flags |= 4 if row.deletion else 0
    cells = sorted(row.cells, key=lambda c: c.place)
    return (
        struct.pack("<BBHIqq", 1, flags, 0, ttl, time, expires)
        + struct.pack("<qqII", *(row.deletion or (0, 0)), len(row.clustering), len(cells))
        + row.clustering
        + b"".join(map(_write_cell, cells))
    )


def _known_end(known: Liveness) -> int:
    if known.ttl == EXPIRED_MARKER:
        return 0xFFFFFFFF
    return min(max(known.expires, 1), 0xFFFFFFFE) if known.ttl else 0


def _write_cell(cell: Cell) -> bytes:
    flags = (
        cell.tombstone
        | cell.expiring << 1
        | (cell.path is not None) << 2
        | cell.complex_deletion << 3
        | cell.uncertain << 4
    )
    path = cell.path or b""
    return (
        struct.pack("<HBBi", cell.column, flags, 0, cell.ttl)
        + struct.pack("<qqII", cell.time, cell.end, len(path), len(cell.value))
        + path
        + cell.value
    )


def read(data: bytes) -> Row:
    """Read a cell row."""
    form, flags, _, ttl, time, expires = struct.unpack_from("<BBHiqq", data)
    deleted, seconds, length, count = struct.unpack_from("<qqII", data, 24)
    assert form == 1
    at = 48 + length
    cells = []
    for _ in range(count):
        cell, at = _read_cell(data, at)
        cells.append(cell)
    assert at == len(data)
    liveness: Liveness | Reading | None = None
    if flags & 2:
        liveness = Liveness(time, ttl, expires if ttl else NEVER)
    elif flags & 8:
        ends = ttl & 0xFFFFFFFF
        gone = Liveness(expires, EXPIRED_MARKER)
        known = gone if ends == 0xFFFFFFFF else Liveness(expires, int(ends > 0), ends or NEVER)
        liveness = Reading(time, None if expires == NEVER else known)
    return Row(liveness, (deleted, seconds) if flags & 4 else None, data[48 : 48 + length], tuple(cells))


def _read_cell(data: bytes, at: int) -> tuple[Cell, int]:
    column, flags, _, ttl, time, end, path, value = struct.unpack_from("<HBBiqqII", data, at)
    at += 32
    return Cell(
        column=column,
        time=time,
        value=data[at + path : at + path + value],
        path=data[at : at + path] if flags & 4 else None,
        tombstone=bool(flags & 1),
        expiring=bool(flags & 2),
        ttl=ttl,
        end=end,
        complex_deletion=bool(flags & 8),
        uncertain=bool(flags & 16),
    ), at + path + value


@dataclass(frozen=True)
class Contribution:
    """A contribution, named as the Arrow columns are."""

    key: bytes
    scope: int
    clustering: bytes
    clustering_end: bytes | None
    generation: int
    row: Row

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "scope": self.scope,
            "clustering": self.clustering,
            "clustering_end": self.clustering_end,
            "generation": self.generation,
            "version": None,
            "op": 0,
            "state": write(self.row, static=self.scope == STATIC),
        }


@dataclass
class Partition:
    deletions: list[Deletion] = field(default_factory=list)
    ranges: list[tuple[bytes, bytes | None, Deletion]] = field(default_factory=list)
    static: list[Row] = field(default_factory=list)
    rows: dict[bytes, list[Row]] = field(default_factory=lambda: defaultdict(list))
    generation: int = 0

    def above(self, clustering: bytes) -> Deletion | None:
        """The deletion of partition and ranges over a row."""
        covering = [
            d for low, high, d in self.ranges if low <= clustering and (high is None or clustering < high)
        ]
        return max([*self.deletions, *covering], default=None)


def _partitions(contributions: Iterable[Contribution], min_generation: int) -> dict[bytes, Partition]:
    partitions: dict[bytes, Partition] = defaultdict(Partition)
    for c in contributions:
        empty_range = (
            c.scope == RANGE_DELETION and c.clustering_end is not None and c.clustering >= c.clustering_end
        )
        if c.generation < min_generation or not c.row or empty_range:
            continue
        partition = partitions[c.key]
        partition.generation = max(partition.generation, c.generation)
        if c.scope == ROW:
            partition.rows[c.clustering].append(c.row)
        elif c.scope == STATIC:
            partition.static.append(c.row)
        elif c.row.deletion and c.scope == PARTITION_DELETION:
            partition.deletions.append(c.row.deletion)
        elif c.row.deletion:
            partition.ranges.append((c.clustering, c.clustering_end, c.row.deletion))
    return partitions


def _covered(deletion: Deletion | None, time: int) -> bool:
    return deletion is not None and time <= deletion[0]


def _stronger(deletion: Deletion | None, other: Deletion | None) -> bool:
    return deletion is not None and (other is None or deletion > other)


# What a reader sees.


def visible(contributions: Iterable[Contribution], now: int, rules: str = "4.0") -> dict[Any, Any]:
    """Return the rows of a SELECT: (key, clustering) -> cells of the row and of the static row.

    A cell is (column, path) -> value. A partition with only static cells has the clustering None.
    """
    shown: dict[Any, Any] = {}
    for key, partition in _partitions(contributions, 0).items():
        _, static_cells = _visible_row(partition.static, max(partition.deletions, default=None), now, rules)
        alive = False
        for clustering, versions in partition.rows.items():
            exists, cells = _visible_row(versions, partition.above(clustering), now, rules)
            if exists or cells:
                shown[key, clustering] = (cells, static_cells)
                alive = True
        if static_cells and not alive:
            shown[key, None] = ({}, static_cells)
    return shown


def _visible_row(
    versions: list[Row], above: Deletion | None, now: int, rules: str
) -> tuple[bool, dict[tuple[int, bytes | None], bytes]]:
    deletions = [d for d in (above, *(v.deletion for v in versions)) if d is not None]
    deleted = max(deletions, default=None)
    markers = [v.liveness for v in versions if v.liveness and not _covered(deleted, v.liveness.time)]
    marker = max(markers, key=lambda m: m.rank(), default=None)
    exists = isinstance(marker, Reading) or (marker is not None and marker.live(now))
    cells = [c for v in versions for c in v.cells]
    shown = {}
    for column in {c.column for c in cells}:
        ends = [(c.time, c.end) for c in cells if c.column == column and c.complex_deletion]
        removed = max([*ends, *([deleted] if deleted else [])], default=None)
        for path in {c.path for c in cells if c.column == column and not c.complex_deletion}:
            left = [
                c
                for c in cells
                if (c.column, c.path) == (column, path)
                and not c.complex_deletion
                and not _covered(removed, c.time)
            ]
            winner = max(left, key=lambda c: c.rank(now, rules), default=None)
            if winner and winner.live(now):
                shown[column, path] = winner.value
    return exists, shown


# What is stored.


@dataclass(frozen=True)
class Kept:
    """What reconciliation gives, as dictionaries.

    Args:
        live: (key, clustering) -> (state, static state, expires at, generation).
        tombstones: (key, scope, clustering, clustering_end) -> (state, generation).
        unresolved_keys: Keys that must be read again.
    """

    live: Mapping[tuple[bytes, bytes | None], tuple[bytes | None, bytes | None, int | None, int]]
    tombstones: Mapping[tuple[bytes, int, bytes, bytes | None], tuple[bytes, int]]
    unresolved_keys: frozenset[bytes]


def kept(
    contributions: Iterable[Contribution],
    now: int,
    rules: str = "4.0",
    min_generation: int = 0,
    purge_before: int | None = None,
) -> Kept:
    """Reconcile and keep what can still matter."""
    horizon = -NEVER if purge_before is None else purge_before
    live: dict[Any, Any] = {}
    tombstones: dict[Any, Any] = {}
    unresolved_keys = set()
    for key, partition in _partitions(contributions, min_generation).items():
        generation = partition.generation
        whole = max(partition.deletions, default=None)
        if whole and whole[1] >= horizon:
            tombstones[key, PARTITION_DELETION, b"", None] = (write(Row(deletion=whole)), generation)
        for low, high, deletion in _disjoint(partition.ranges, whole):
            if deletion[1] >= horizon:
                tombstones[key, RANGE_DELETION, low, high] = (write(Row(deletion=deletion)), generation)
        static, unresolved = _keep_row(partition.static, whole, now, rules, horizon, static=True)
        if unresolved:
            unresolved_keys.add(key)
        static_state = None
        if static:
            tombstones[key, STATIC, b"", None] = (write(static, static=True), generation)
            if any(c.live(now) for c in static.cells):
                static_state = write(static, static=True)
        alive = False
        for clustering, versions in partition.rows.items():
            row, unresolved = _keep_row(
                versions, partition.above(clustering), now, rules, horizon, static=False
            )
            if unresolved:
                unresolved_keys.add(key)
            marker = row.liveness
            exists = isinstance(marker, Reading) or (marker is not None and marker.live(now))
            if exists or any(c.live(now) for c in row.cells):
                alive = True
                expiry = _expiry(row, now, static_state)
                live[key, clustering] = (write(row), static_state, expiry, generation)
            elif row:
                tombstones[key, ROW, clustering, None] = (write(row), generation)
        if static_state and not alive:
            live[key, None] = (None, static_state, _expiry(Row(), now, static_state), generation)
    return Kept(live, tombstones, frozenset(unresolved_keys))


def _expiry(row: Row, now: int, static_state: bytes | None) -> int | None:
    cells = [*row.cells, *(read(static_state).cells if static_state else ())]
    moments = [c.end for c in cells if c.expiring and c.live(now)]
    if isinstance(row.liveness, Liveness) and row.liveness.ttl and row.liveness.live(now):
        moments.append(row.liveness.expires)
    if isinstance(row.liveness, Reading) and now < (end := row.liveness.end()):
        moments.append(end)
    earliest = min(moments, default=NEVER)
    return None if earliest == NEVER else earliest


def _keep_row(
    versions: list[Row], above: Deletion | None, now: int, rules: str, horizon: int, *, static: bool
) -> tuple[Row, bool]:
    own = max((v.deletion for v in versions if v.deletion), default=None)
    if not _stronger(own, above):
        own = None
    active = own or above
    markers = [v.liveness for v in versions if v.liveness]
    marker = max(markers, key=lambda m: m.rank(), default=None)
    found_time = marker.time if marker else NEVER
    if marker and (_covered(active, marker.time) or (static and isinstance(marker, Liveness))):
        marker = None
    if isinstance(marker, Reading) and not static:
        known = [m.known if isinstance(m, Reading) else m for m in markers]
        uncovered = [m for m in known if m is not None and not _covered(active, m.time)]
        marker = Reading(marker.time, max(uncovered, key=lambda m: m.rank(), default=None))

    places: dict[tuple[int, int, bytes], list[Cell]] = defaultdict(list)
    for version in versions:
        for cell in version.cells:
            places[cell.place].append(cell)
    winners = {place: max(found, key=lambda c: c.rank(now, rules)) for place, found in places.items()}
    left: list[Cell] = []
    covers: dict[tuple[int, int, bytes], Deletion | None] = {}
    for place, cell in sorted(winners.items()):
        column_deletion = winners.get((cell.column, 0, b""))
        if cell.complex_deletion:
            if _stronger((cell.time, cell.end), active):
                left.append(cell)
            continue
        stronger = (column_deletion.time, column_deletion.end) if column_deletion else None
        covers[place] = max((d for d in (active, stronger) if d), default=None)
        if not _covered(covers[place], cell.time):
            left.append(cell.at(now))

    unresolved = _is_unresolved(versions, winners, covers, marker, found_time, now)
    cell_lives = any(c.live(now) for c in left)
    ended = isinstance(marker, Reading) and marker.end() <= now
    hidden = (places or active is not None) and not (isinstance(marker, Reading) and marker.lived())
    if isinstance(marker, Reading) and not static and not cell_lives and (hidden or ended):
        return Row(marker, own, max(v.clustering for v in versions), tuple(left)), True
    if isinstance(marker, Liveness) and not marker.live(now) and marker.expires < horizon:
        marker = None
    if own and own[1] < horizon:
        own = None
    left = [c for c in left if c.live(now) or c.end >= horizon]
    clustering = max((v.clustering for v in versions), default=b"")
    return Row(marker, own, clustering if marker or own or left else b"", tuple(left)), unresolved


def _is_unresolved(
    versions: list[Row],
    winners: Mapping[tuple[int, int, bytes], Cell],
    covers: Mapping[tuple[int, int, bytes], Deletion | None],
    marker: Liveness | Reading | None,
    found_time: int,
    now: int,
) -> bool:
    for cell in (c for v in versions for c in v.cells if c.uncertain):
        winner, cover = winners[cell.place], covers.get(cell.place)
        if not cell.complex_deletion and cover is not None and _covered(cover, winner.time):
            if cover[0] < found_time:
                return True
        elif winner.time < found_time and (
            winner.at(now).value != cell.at(now).value or winner.tombstone != cell.tombstone
        ):
            return True
    if not isinstance(marker, Reading):
        return False
    newest = [v for v in versions if isinstance(v.liveness, Reading) and v.liveness.time == found_time]
    read_places = {c.place for v in newest for c in v.cells}
    return any(
        winner.live(now)
        and place not in read_places
        and not _covered(covers[place], winner.time)
        and winner.time < found_time
        for place, winner in winners.items()
    )


def _disjoint(
    ranges: list[tuple[bytes, bytes | None, Deletion]], whole: Deletion | None
) -> list[tuple[bytes, bytes | None, Deletion]]:
    points: list[bytes | None] = [
        *sorted({p for low, high, _ in ranges for p in (low, high) if p is not None})
    ]
    result: list[tuple[bytes, bytes | None, Deletion]] = []
    for low, high in zip(points, [*points[1:], None][: len(points)], strict=True):
        assert low is not None
        over = [d for a, b, d in ranges if a <= low and (b is None or low < b)]
        strongest = max(over, default=None)
        if strongest is None or not _stronger(strongest, whole):
            continue
        if result and result[-1][1] == low and result[-1][2] == strongest:
            result[-1] = (result[-1][0], high, strongest)
        else:
            result.append((low, high, strongest))
    return result
