"""CQL table schemas for decoding native bytes.

They are built from ``system_schema`` rows (:mod:`.system_schema`), from ``DESCRIBE ... WITH INTERNALS`` text
(:mod:`.describe`), or from the log itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

ColumnKind = Literal["partition_key", "clustering", "static", "regular"]
KEY_KINDS: Final = ("partition_key", "clustering")
NEVER_DROPPED: Final = -(1 << 63)
"""Time of a :class:`DroppedColumn` whose cells all count: each says that its row exists."""


@dataclass(frozen=True)
class CqlType:
    """One CQL type.

    Args:
        name: CQL name: ``int``, ``text`` (also for varchar), ``list``, ``set``, ``map``, ``tuple``,
            ``udt``, ``vector`` ...; ``custom`` for a Java class, ``empty`` for EmptyType.
        parameters: Nested types: element; key and value; fields.
        frozen: Whether a collection or UDT is frozen (nested in another type it always is, in effect).
        fields: Field names of a UDT.
        udt: ``keyspace.name`` of a UDT; the Java class of a custom type.
        dimensions: Length of a vector.
    """

    name: str
    parameters: tuple[CqlType, ...] = ()
    frozen: bool = False
    fields: tuple[str, ...] = ()
    udt: str = ""
    dimensions: int = 0

    @property
    def multi_cell(self) -> bool:
        """Whether a column of this type is stored as a cell per element."""
        return self.name in {"list", "set", "map", "udt"} and not self.frozen


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: Its name without quotes.
        kind: Its kind.
        position: Position among the key columns of its kind, else -1.
        type: Its type.
        descending: Clustering order DESC.
        id: Number in cell rows; unique among static and regular columns of a table, kept when schemas change.
        lake_name: Its name in the mirror if that differs, kept when schemas change.
    """

    name: str
    kind: ColumnKind
    position: int
    type: CqlType
    descending: bool = False
    id: int = 0
    lake_name: str = ""

    @property
    def name_in_lake(self) -> str:
        """Its name in the mirror."""
        return self.lake_name or self.name


@dataclass(frozen=True)
class DroppedColumn:
    """A dropped column: its cells with a write time up to ``dropped_at_us`` are ignored."""

    name: str
    kind: ColumnKind
    type: CqlType
    dropped_at_us: int


@dataclass(frozen=True)
class ViewDefinition:
    """The definition of a materialized view.

    Args:
        base: ``keyspace.table`` of the base.
        partition_key: Names of the base's partition key columns.
        clustering: Names of its clustering columns.
        liveness_column: The column of the view's key that isn't in the base's, empty for none. A row of the
            view has that column's write time and TTL as its liveness, and exists by it alone.
        conditions: Conditions of its WHERE except ``IS NOT NULL``, each as CQL; unknown from a DESCRIBE.
    """

    base: str
    partition_key: tuple[str, ...]
    clustering: tuple[str, ...]
    liveness_column: str = ""
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSchema:
    """One version of one table.

    Args:
        keyspace: Its keyspace.
        name: Its name.
        id: Table id as 32 hex digits.
        columns: Partition key and clustering in order of position, then static and regular columns by name.
        dropped: Dropped columns by name.
        cdc: Whether the table has ``cdc = true``.
        view: Whether it is a materialized view.
        counter: Whether it is a counter table.
        definition: Definition of a materialized view, if its base is known.
    """

    keyspace: str
    name: str
    id: str
    columns: tuple[Column, ...]
    dropped: Mapping[str, DroppedColumn] = field(default_factory=dict)
    cdc: bool = False
    view: bool = False
    counter: bool = False
    definition: ViewDefinition | None = None

    @property
    def liveness_column(self) -> str:
        """The liveness column of a view (:class:`ViewDefinition`); empty for none, as in tables."""
        return self.definition.liveness_column if self.definition else ""

    @property
    def full_name(self) -> str:
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.name}"

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        """Partition key columns in order."""
        return tuple(c for c in self.columns if c.kind == "partition_key")

    @cached_property
    def clustering(self) -> tuple[Column, ...]:
        """Clustering columns in order."""
        return tuple(c for c in self.columns if c.kind == "clustering")

    @cached_property
    def static(self) -> tuple[Column, ...]:
        """Static columns."""
        return tuple(c for c in self.columns if c.kind == "static")

    @cached_property
    def regular(self) -> tuple[Column, ...]:
        """Regular columns."""
        return tuple(c for c in self.columns if c.kind == "regular")


def define_view(
    base: str,
    partition_key: Sequence[str],
    clustering: Sequence[str],
    columns: Iterable[Column],
    conditions: Sequence[str] = (),
) -> ViewDefinition | None:
    """Build the definition of a view.

    Args:
        base: ``keyspace.table`` of the base.
        partition_key: Names of the base's partition key columns.
        clustering: Names of its clustering columns.
        columns: The view's columns.
        conditions: As in :class:`ViewDefinition`.

    Returns:
        The definition, None if the base's key isn't known.
    """
    if not partition_key:
        return None
    known = {*partition_key, *clustering}
    added = [c.name for c in columns if c.kind in KEY_KINDS and c.name not in known]
    # Cassandra allows one.
    liveness_column = added[0] if added else ""
    return ViewDefinition(base, tuple(partition_key), tuple(clustering), liveness_column, tuple(conditions))


def number_columns(schema: TableSchema, memory: Mapping[str, int] | None = None) -> TableSchema:
    """Assign ids to static and regular columns: known columns keep theirs, new ones get the next.

    Args:
        schema: A schema, numbered or not.
        memory: Column name -> id from an earlier version of the table.

    Returns:
        The schema with ids.
    """
    ids = dict(memory or {})
    columns = []
    for column in schema.columns:
        if column.kind in ("static", "regular"):
            number = ids.setdefault(column.name, max(ids.values(), default=0) + 1)
            columns.append(replace(column, id=number))
        else:
            columns.append(column)
    return replace(schema, columns=tuple(columns))


@dataclass(frozen=True)
class Keyspace:
    """One keyspace.

    Args:
        name: Its name.
        durable_writes: If false, its writes are not in the commit log.
        replication: Options of its strategy.
    """

    name: str
    durable_writes: bool = True
    replication: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Schemas:
    """A cluster's schema at a point in time.

    Args:
        keyspaces: Keyspaces by name.
        types: User-defined types by ``keyspace.name``, not frozen.
        tables: Tables and views by ``keyspace.table``.
    """

    keyspaces: Mapping[str, Keyspace] = field(default_factory=dict)
    types: Mapping[str, CqlType] = field(default_factory=dict)
    tables: Mapping[str, TableSchema] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> Mapping[str, TableSchema]:
        """Tables and views by id, as 32 hex digits."""
        return {table.id: table for table in self.tables.values()}


def order_columns(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Sort columns in the order of a TableSchema, which is that of ``SELECT *``.

    Cassandra keeps static and regular columns sorted, those with a cell per element last, splits the list
    before the first of these and merges the halves by name. Its three comparisons treat bytes above 127
    differently, so the position of such names is unexpected.
    """
    given = list(columns)
    ordered = [
        column
        for kind in ("partition_key", "clustering")
        for column in sorted((c for c in given if c.kind == kind), key=lambda c: c.position)
    ]
    for kind in ("static", "regular"):
        stored = sorted((c for c in given if c.kind == kind), key=_stored_order)
        simple_count = [_stored_order(c) >= _FIRST_MULTI_CELL for c in stored].count(False)
        simple, multi_cell = deque(stored[:simple_count]), deque(stored[simple_count:])
        while simple and multi_cell:
            first = simple if _signed(simple[0]) < _signed(multi_cell[0]) else multi_cell
            ordered.append(first.popleft())
        ordered += [*simple, *multi_cell]
    return tuple(ordered)


def order_as_driver(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Sort columns in the order of DataStax's Java driver: regular before static, by name in Java's order.

    Events that are built from the driver's metadata have this order.
    """
    return tuple(sorted(columns, key=lambda c: (c.kind == "static", c.name.encode("utf-16-be"))))


def _stored_order(column: Column) -> tuple[bool, int, bytes]:
    """Return a sort key with the order of Cassandra's ``ColumnMetadata`` for columns of one kind.

    It converts the first six bytes of the name to a number and flips the highest bit, as for a signed
    comparison, but compares unsigned: names that start with a non-ASCII character sort first.
    """
    name = column.name.encode()
    return column.type.multi_cell, int.from_bytes(name[:6].ljust(6, b"\0"), "big") ^ 1 << 47, name


_FIRST_MULTI_CELL = (True, 1 << 47, b"")
"""Sort key at which Cassandra searches the first column with a cell per element: that of an empty name."""


def _signed(column: Column) -> bytes:
    """Return a sort key with the order of Java's ``ByteBuffer.compareTo``: bytes above 127 are negative."""
    return bytes(byte ^ 0x80 for byte in column.name.encode())
