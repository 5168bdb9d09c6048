"""The mirror: a lake table that equals ``SELECT *`` at the source, and its tombstone table.

A mirror has the source's columns and one trailing struct ``_cdc``::

    _cdc struct<id binary, key binary, clustering binary, generation bigint, version binary, state binary,
                expires_at bigint>

``id`` identifies the row (see :func:`row_ids`). ``state`` is the row in the source's native bytes, such as
cells or BSON. A mirror holds live rows only, so a plain SELECT of any engine is right. The tombstone table
(``<mirror>__tombstones``) has the columns of a contribution and is only appended to. It holds what a live row
can't: deletions, static columns and the states of rows that aren't live. Its content is commutative, so it is
written before the mirror, and a crash between the two is harmless.

A mirror shows static columns in each row of their partition or, with ``lake.static_columns: table``, in a
separate table (``<mirror>__static_columns``): partition key, static columns and ``_cdc``, one row for each
partition in which a static column has a value. That table is committed just before the mirror. A merge that
ends between the two commits leaves it ahead; both commits carry a common id, by which the next merge detects
that and repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.column_names import clashing_column
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, UNRESOLVED, UPSERT
from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.changes.fence import Fence, fences_from_json, fences_to_json
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.layout import (
    MIRROR,
    MOST_OFFSET_CHARACTERS,
    STATIC_COLUMNS,
    STATIC_COLUMNS_SUFFIX,
    TOMBSTONES,
    TOMBSTONES_SUFFIX,
    table_name,
)
from airflow_cdc_provider.lake.table import Head, Lake, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

CDC_COLUMN = "_cdc"
CDC_TYPE = pa.struct(
    [
        pa.field("id", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("clustering", pa.binary()),
        pa.field("generation", pa.int64()),
        pa.field("version", pa.binary()),
        pa.field("state", pa.binary()),
        pa.field("expires_at", pa.int64()),
    ]
)

MERGED_THROUGH = "cdc.batch"
FENCES = "cdc.fences"
MEMORY = "cdc.memory"
NEXT_EXPIRY = "cdc.next-expiry"
UNRESOLVED_KEYS = "cdc.unresolved-keys"
UNRESOLVED_SINCE = "cdc.unresolved-since"
SNAPSHOT_STARTED = "cdc.snapshot-started"
ROWS = "cdc.rows"
OFFSET = "cdc.offset"
STATIC_COLUMNS_COMMIT = "cdc.static-columns"
OWNER = "cdc.mirror-of"

_STATIC_ONLY = b"\xff"
"""Takes the place of the clustering in a row of static columns only; no clustering begins with this byte."""


class RereadBasis(NamedTuple):
    """The unresolved keys of a mirror when they were read again; fields of :class:`MirrorState`."""

    merged_through: int
    unresolved_keys: int
    unresolved_since: int
    snapshot_started_us: int


@dataclass(frozen=True)
class StaticColumnsState:
    """Properties of the newest commit of a mirror's static columns table.

    Args:
        head: Base of the next commit.
        commit: Id shared by this commit and the mirror's commit of the same merge; empty before the first.
        merged_through: Last batch of the changes table that was merged, -1 for none.
        next_expiry: No static row expires before this epoch second, None for never.
    """

    head: Head
    commit: str = ""
    merged_through: int = -1
    next_expiry: int | None = None

    def properties(self) -> dict[str, str]:
        """Return the commit properties that :meth:`Mirror.static_columns_state` reads back."""
        found = {MERGED_THROUGH: str(self.merged_through)}
        if self.commit:
            found[STATIC_COLUMNS_COMMIT] = self.commit
        if self.next_expiry is not None:
            found[NEXT_EXPIRY] = str(self.next_expiry)
        return found


@dataclass(frozen=True)
class MirrorState:
    """Properties of a mirror's newest commit.

    Args:
        head: Base of the next commit.
        merged_through: Last batch of the changes table that was merged, -1 for none.
        fences: Fences of the table.
        memory: The source's memory of the table (see ``Source.remember``), None before the first merge.
        next_expiry: No row expires before this epoch second, None for never.
        unresolved_keys: Number of keys that must be read again at the source; a key may be counted twice.
            They are stored in the tombstone table (:meth:`Mirror.unresolved_keys`).
        unresolved_since: The batch of the first merge that reported one of them.
        snapshot_started_us: Start of a replacing snapshot that was merged, by the source's clock in us: rows
            not read since then must be read again too. 0 for none.
        rows: Number of rows in the mirror; None after a fence removed some, so that they must be counted.
        offset: The source's offset up to which all changes were merged; None before the first merge, and if
            it is too large for the properties of a commit.
        static_columns: State of its static columns table, None if it has none.
        static_columns_commit: Id of the commit of its static columns table that belongs to this one.
        owner: :attr:`Mirror.owner`.
    """

    head: Head
    merged_through: int = -1
    fences: tuple[Fence, ...] = ()
    memory: Mapping[str, Any] | None = None
    next_expiry: int | None = None
    unresolved_keys: int = 0
    unresolved_since: int = 0
    snapshot_started_us: int = 0
    rows: int | None = None
    offset: Mapping[str, Any] | None = None
    static_columns: StaticColumnsState | None = None
    static_columns_commit: str = ""
    owner: str = ""

    @property
    def static_columns_ahead(self) -> bool:
        """Whether the static columns table holds the commit of a merge that did not complete."""
        return self.static_columns is not None and self.static_columns.commit != self.static_columns_commit

    @property
    def earliest_expiry(self) -> int | None:
        """Epoch second before which nothing in mirror and static columns table expires, None for never."""
        expiries = (self.next_expiry, self.static_columns.next_expiry if self.static_columns else None)
        return min((s for s in expiries if s is not None), default=None)

    @property
    def reread_basis(self) -> RereadBasis:
        """The unresolved keys; equal for two states if no merge between them reported or resolved any."""
        return RereadBasis(
            self.merged_through, self.unresolved_keys, self.unresolved_since, self.snapshot_started_us
        )

    def properties(self) -> dict[str, str]:
        """Return the commit properties that :meth:`Mirror.state` reads back."""
        found = {MERGED_THROUGH: str(self.merged_through), FENCES: fences_to_json(self.fences)}
        if self.memory is not None:
            found[MEMORY] = json.dumps(self.memory, sort_keys=True)
        if self.next_expiry is not None:
            found[NEXT_EXPIRY] = str(self.next_expiry)
        if self.unresolved_keys:
            found[UNRESOLVED_KEYS] = str(self.unresolved_keys)
            found[UNRESOLVED_SINCE] = str(self.unresolved_since)
        if self.snapshot_started_us:
            found[SNAPSHOT_STARTED] = str(self.snapshot_started_us)
        if self.rows is not None:
            found[ROWS] = str(self.rows)
        offset = json.dumps(self.offset, sort_keys=True)
        if self.offset is not None and len(offset) <= MOST_OFFSET_CHARACTERS:
            found[OFFSET] = offset
        if self.static_columns_commit:
            found[STATIC_COLUMNS_COMMIT] = self.static_columns_commit
        if self.owner:
            found[OWNER] = self.owner
        return found


@dataclass
class Mirror:
    """A mirror in a lake, with its tombstone table and, optionally, its static columns table.

    Args:
        lake: The lake.
        name: The mirror's ``namespace.table``.
        static_columns_table: Whether static columns have a separate table.
        owner: Its connector and source table; empty for any.
    """

    lake: Lake
    name: str
    static_columns_table: bool = False
    owner: str = ""

    def __post_init__(self) -> None:
        """Look up the tables; none need exist."""
        self.table = self.lake.table(self.name, MIRROR)
        self.tombstones = self.lake.table(table_name(self.name, TOMBSTONES_SUFFIX), TOMBSTONES)
        self.static_columns = self.lake.table(table_name(self.name, STATIC_COLUMNS_SUFFIX), STATIC_COLUMNS)

    def is_owned(self) -> bool:
        """Return whether the mirror exists, and its newest commit names :attr:`owner`."""
        return self.table.exists() and self.table.head().properties.get(OWNER) == self.owner

    def tables(self) -> list[LakeTable]:
        """List the tables that exist."""
        tables = [self.table, self.tombstones]
        return (
            [*tables, self.static_columns]
            if self.static_columns_table and self.static_columns.exists()
            else tables
        )

    def layout(self, columns: pa.Schema, static_columns: StaticColumns | None) -> tuple[pa.Schema, pa.Schema]:
        """Split a source table's columns between mirror and static columns table.

        Args:
            columns: The codec's ``mirror_schema()``.
            static_columns: Its ``static_columns``.

        Returns:
            The columns of the mirror and of the static columns table, both without ``_cdc``; the second
            schema is empty if there is no such table. The table is kept when the last static column was
            dropped.
        """
        if (
            not self.static_columns_table
            or static_columns is None
            or not (static_columns.names or self.static_columns.exists())
        ):
            return columns, pa.schema([])
        return static_columns.of_rows(columns), static_columns.of_partitions(columns)

    def require_layout(
        self, static_columns: StaticColumns | None, replaced: frozenset[str] = frozenset()
    ) -> None:
        """Check that the mirror was created with the present value of ``lake.static_columns``.

        Args:
            static_columns: The codec's ``static_columns``.
            replaced: Columns that replace dropped ones of the same name, which the mirror may still have.

        Raises:
            ConfigurationError: The mirror was created with the other value.
        """
        if static_columns is None or not static_columns.names or not self.table.exists():
            return
        has_table = self.static_columns.exists()
        in_rows = not has_table and (set(static_columns.names) - replaced) & set(self.table.schema().names)
        if (in_rows and self.static_columns_table) or (has_table and not self.static_columns_table):
            expected, found = ("table", "rows") if self.static_columns_table else ("rows", "table")
            raise ConfigurationError(
                f"the mirror {self.name} was created with lake.static_columns: {found}",
                expected=f"a mirror created with lake.static_columns: {expected}",
                found=f"static columns {', '.join(static_columns.names)} in "
                f"{'its rows' if in_rows else f'the table {self.static_columns.name}'}",
                remedy=f"set lake.static_columns to {found}; or drop {self.name} and take a new snapshot of "
                "its source table",
            )

    def create(self, columns: pa.Schema, static_columns: StaticColumns | None = None) -> None:
        """Create its tables if they don't exist.

        The other tables of a mirror that was dropped are dropped too: their states refer to columns by ids
        that only the mirror recorded.

        Args:
            columns: The codec's ``mirror_schema()``.
            static_columns: Its ``static_columns``.

        Raises:
            ConfigurationError: A column's name begins with ``_cdc``, or can be taken for another one's.
        """
        require_distinct_names(self.name, columns)
        # Listed first, because a concurrent job creates the mirror before them.
        left_behind = [table for table in (self.tombstones, self.static_columns) if table.exists()]
        row_columns, partition_columns = self.layout(columns, static_columns)
        if not self.table.exists():
            for table in left_behind:
                table.drop()
            self.table.create(spark_schema(mirror_arrow_schema(row_columns)))
        if not self.tombstones.exists():
            self.tombstones.create(spark_schema(CONTRIBUTION_SCHEMA))
        if len(partition_columns):
            self.static_columns.create(spark_schema(mirror_arrow_schema(partition_columns)))

    def reserve(self, state: MirrorState, memory: Mapping[str, Any] | None, *, clear: bool) -> MirrorState:
        """Commit the source's memory before columns change and before the tombstone table is written.

        The recorded batch and fences don't change, so a run that is killed afterwards is repeated as a whole.

        Args:
            state: The state that :meth:`state` returned.
            memory: The new memory, None to keep the present one.
            clear: Delete all rows, because their source table was dropped.

        Returns:
            The state after the commit; the given one if there was nothing to do.

        Raises:
            CommitConflict: Another writer merged after the state.
        """
        if clear:
            state = self._clear_static_columns(state)
        clear = clear and not self.table.empty()
        if memory is None and not clear:
            return state
        reserved = state if memory is None else replace(state, memory=memory)
        if clear:
            reserved = replace(reserved, next_expiry=None, unresolved_keys=0, snapshot_started_us=0, rows=0)
        delete = "true" if clear else None
        return replace(
            reserved, head=self.table.commit(state.head, delete=delete, properties=reserved.properties())
        )

    def _clear_static_columns(self, state: MirrorState) -> MirrorState:
        """Delete all rows of the static columns table, which is ahead then until a merge completes."""
        if state.static_columns is None or self.static_columns.empty():
            return state
        cleared = replace(state.static_columns, commit="", next_expiry=None)
        head = self.static_columns.commit(cleared.head, delete="true", properties=cleared.properties())
        return replace(state, static_columns=replace(cleared, head=head))

    def prepare(
        self, columns: pa.Schema, drift: Drift = NO_DRIFT, static_columns: StaticColumns | None = None
    ) -> list[str]:
        """Create its tables, or evolve them to the source's present columns.

        Args:
            columns: The codec's ``mirror_schema()``.
            drift: How the columns that the mirror has changed at the source.
            static_columns: The codec's ``static_columns``.

        Returns:
            Descriptions of the changes to an existing mirror.

        Raises:
            ConfigurationError: A column's name begins with ``_cdc``, or its type changed beyond widening.
        """
        self.create(columns, static_columns)
        row_columns, partition_columns = self.layout(columns, static_columns)
        changes = self.table.evolve(spark_schema(mirror_arrow_schema(row_columns)), drift)
        if len(partition_columns) and static_columns is not None:
            of_key = replace(drift, keys=min(drift.keys, len(static_columns.key)))
            found = self.static_columns.evolve(spark_schema(mirror_arrow_schema(partition_columns)), of_key)
            changes += [f"{change} in its static columns table" for change in found]
        return changes

    def static_columns_state(self) -> StaticColumnsState | None:
        """Read the newest commit's properties of the static columns table; None if there is no such table."""
        if not self.static_columns_table or not self.static_columns.exists():
            return None
        head = self.static_columns.head()
        expiry = head.properties.get(NEXT_EXPIRY)
        return StaticColumnsState(
            head=head,
            commit=head.properties.get(STATIC_COLUMNS_COMMIT, ""),
            merged_through=int(head.properties.get(MERGED_THROUGH, "-1")),
            next_expiry=None if expiry is None else int(expiry),
        )

    def state(self) -> MirrorState:
        """Read the newest commit properties of the mirror and of its static columns table.

        Raises:
            ConfigurationError: It has another owner.
        """
        if not self.table.exists():
            return MirrorState(Head(None), owner=self.owner)
        return self.state_of(self.table.head())

    def state_of(self, head: Head) -> MirrorState:
        """Return the state in the properties of a commit; that of the static columns table is the newest.

        Raises:
            ConfigurationError: The mirror has another owner.
        """
        found = head.properties
        if self.owner and found.get(OWNER, self.owner) != self.owner:
            raise ConfigurationError(
                f"the mirror {self.name} already exists for another table",
                expected=self.owner,
                found=found[OWNER],
                remedy="give each connector its own lake.namespace; or exclude the table from one of them: "
                "if that is the mirror's, drop the mirror",
            )
        memory = found.get(MEMORY)
        expiry, rows, offset = found.get(NEXT_EXPIRY), found.get(ROWS), found.get(OFFSET)
        return MirrorState(
            head=head,
            merged_through=int(found.get(MERGED_THROUGH, "-1")),
            fences=fences_from_json(found.get(FENCES, "[]")),
            memory=None if memory is None else json.loads(memory),
            next_expiry=None if expiry is None else int(expiry),
            unresolved_keys=int(found.get(UNRESOLVED_KEYS, "0")),
            unresolved_since=int(found.get(UNRESOLVED_SINCE, "0")),
            snapshot_started_us=int(found.get(SNAPSHOT_STARTED, "0")),
            rows=None if rows is None else int(rows),
            offset=None if offset is None else json.loads(offset),
            static_columns=self.static_columns_state(),
            static_columns_commit=found.get(STATIC_COLUMNS_COMMIT, ""),
            owner=self.owner,
        )

    def rows(self, state: MirrorState) -> DataFrame:
        """Return the mirror's rows as contributions, as of a state, with the column ``expires_at``.

        The row of a partition that has only static columns has neither ``clustering`` nor ``state``.
        """
        return _as_contributions(self.table.read(state.head))

    def static_rows(self, static_columns: StaticColumnsState) -> DataFrame:
        """Return the rows of the static columns table as contributions.

        They have no ``clustering``; their ``state`` is that of the static columns.
        """
        return _as_contributions(self.static_columns.read(static_columns.head))

    def tombstone_rows(self) -> DataFrame:
        """Return the present content of the tombstone table for reconciliation: all but unresolved keys.

        The frame reads the newest snapshot by id. If it read the table itself, Spark would recompute a cached
        frame under a new plan whenever a merge appends. That frame could not be unpersisted, and it would
        fail once the files it was computed from are deleted.
        """
        return self.tombstones.read(self.tombstones.head()).where(f"scope <> {UNRESOLVED}")

    def unresolved_keys(self, state: MirrorState) -> DataFrame:
        """Return the unresolved keys as of a state: one column ``key``, with repetitions."""
        return (
            self.tombstones.read()
            .where(f"scope = {UNRESOLVED} AND generation >= {state.unresolved_since}")
            .select("key")
        )

    def remove_resolved(self, state: MirrorState) -> bool:
        """Remove resolved keys from the tombstone table; returns whether there were any.

        Raises:
            CommitConflict: A concurrent merge committed; nothing is removed.
        """
        # A concurrent merge has written its keys already, with the merged batch or a later one.
        through = (state.unresolved_since if state.unresolved_keys else state.merged_through) - 1
        resolved = f"scope = {UNRESOLVED} AND generation <= {through}"
        head = self.tombstones.head()
        if self.tombstones.read(head).where(resolved).isEmpty():
            return False
        self.tombstones.commit(head, delete=resolved, properties={})
        return True

    def row_count(self, state: MirrorState) -> int:
        """Count the mirror's rows as of a state; 0 before the first merge.

        Args:
            state: The state that :meth:`state` returned. The rows are only read if it has no count.
        """
        if state.merged_through < 0:
            return 0
        return self.table.read(state.head).count() if state.rows is None else state.rows


def require_distinct_names(mirror: str, columns: pa.Schema) -> None:
    """Refuse columns that engines confuse, or that a mirror has itself.

    Raises:
        ConfigurationError: As in :meth:`Mirror.create`.
    """
    if found := clashing_column(columns):
        raise ConfigurationError(
            f"the source of {mirror} has a column {found}",
            expected=f"names that differ by more than case, and that don't begin with {CDC_COLUMN}",
            remedy="exclude the table, or rename the column",
        )


def _as_contributions(rows: DataFrame) -> DataFrame:
    return rows.select(f"{CDC_COLUMN}.*").selectExpr(
        "key",
        f"cast({ROW} as tinyint) scope",
        "clustering",
        "cast(null as binary) clustering_end",
        "generation",
        "version",
        f"cast({UPSERT} as tinyint) op",
        "state",
        "expires_at",
    )


def mirror_arrow_schema(columns: pa.Schema) -> pa.Schema:
    """Return the mirror's columns with the trailing ``_cdc``."""
    return pa.schema([*columns, pa.field(CDC_COLUMN, CDC_TYPE)])


def spark_schema(schema: pa.Schema) -> StructType:
    """Translate an Arrow schema to Spark's, all fields nullable."""
    from pyspark.sql.pandas.types import from_arrow_schema

    annotated = pa.schema([field.with_type(_with_metadata(field.type)) for field in schema])
    return from_arrow_schema(annotated, prefer_timestamp_ntz=True)


def _with_metadata(kind: pa.DataType) -> pa.DataType:
    """Add metadata to fields of structs, such as ``wkb`` and ``srid`` of Debezium's geometries.

    Spark 4.1 looks for its own geometry types there, and fails if a field of these names has no metadata.
    """
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_metadata(one.type)).with_metadata(_PLAIN) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_metadata(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_with_metadata(kind.item_type)))
    return kind


_PLAIN = {"type": "plain"}


ID_KEY_BEGINS = 4
"""Offset of the key in an id; it is the rest of the id if rows have no clustering."""


def row_ids(keys: pa.Array, clusterings: pa.Array) -> pa.Array:
    """Build row ids: four bytes of key length, the key, the clustering.

    Args:
        keys: Binary, no nulls.
        clusterings: Binary; null for the row of a partition that has only static columns.

    Returns:
        Binary array of the same length; equal ids are equal rows.
    """
    lengths = np.asarray(pc.binary_length(keys).cast(pa.int32()), dtype=">i4")
    prefix = pa.Array.from_buffers(pa.binary(4), len(lengths), [None, pa.py_buffer(lengths.tobytes())])
    tail = pc.fill_null(clusterings, pa.scalar(_STATIC_ONLY, pa.binary()))
    return pc.binary_join_element_wise(prefix.cast(pa.binary()), keys, tail, pa.scalar(b"", pa.binary()))


def fingerprints(columns: Sequence[pa.Array]) -> pa.Array:
    """Join binary and integer columns to one binary per row; two are equal if and only if the rows are."""
    parts: list[pa.Array] = []
    for column in columns:
        if pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column).cast(pa.int64()), -1)
            parts += [_fixed(lengths), pc.fill_null(column, pa.scalar(b"", pa.binary()))]
        else:
            parts.append(_fixed(pc.fill_null(column.cast(pa.int64()), -(2**63))))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _fixed(numbers: pa.Array) -> pa.Array:
    raw = np.ascontiguousarray(np.asarray(numbers, dtype="<i8"))
    return pa.Array.from_buffers(pa.binary(8), len(raw), [None, pa.py_buffer(raw.tobytes())]).cast(
        pa.binary()
    )
